"""`cep docs`: the pages of this version, in the terminal, as HTML files, or on a small local web server.

The HTML needs no network, no script and no other file. Every page has the list of all pages at its side. Headings have
the anchors that the links of the pages use.
Tested by: tests/docs/test_verb.py
"""

from __future__ import annotations

import argparse
import html
import os
import re
import tempfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Markdown
from rich.text import Text

from cep import __version__
from cep.base.errors import UsageError
from cep.base.files import replace_file
from cep.base.terminal import Terminal
from cep.cli.doc_pages import assemble, page_named, page_paths, page_title, pages_in_order
from cep.cli.paths import printed

HELP = """\
Show the pages that came with this version. No network is needed.

examples:
  cep docs                      list all pages
  cep docs guides/replay        read one in the terminal; `cep docs replay` is enough
  cep docs --html pages         write all of them as HTML
  cep docs --serve              read them in a browser, on this machine only
"""
_STYLE = """\
body { margin: 0; display: flex; font: 16px/1.55 system-ui, sans-serif; color: #222 }
nav { flex: 0 0 17em; padding: 1em; background: #f4f6f9; font-size: 14px; min-height: 100vh }
nav a { display: block; text-decoration: none; padding: .1em 0 } nav b { display: block; margin-top: 1em }
main { flex: 1; max-width: 52em; padding: 1em 2em; min-width: 0 } a { color: #35507a }
pre { background: #f4f6f9; padding: .8em; overflow-x: auto } code { font-size: 14px }
table { border-collapse: collapse } th, td { border: 1px solid #ccd; padding: .3em .6em; text-align: left }
img { max-width: 100% } nav .here { font-weight: bold }
"""
_SECTIONS = {"start": "Start", "guides": "Guides", "reference": "Reference", "inside": "Inside"}
_HOST = "127.0.0.1"
_WIDTH_MAX = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("page", nargs="?", metavar="PAGE", help="a page, like guides/replay")
    which.add_argument("--html", type=Path, metavar="FOLDER", help="write all pages as HTML into this folder")
    which.add_argument(
        "--serve", nargs="?", type=int, const=8000, metavar="PORT", help="serve them at 127.0.0.1 (default port: 8000)"
    )


def run(options: argparse.Namespace) -> int:
    """List pages, print one, write them, or serve them. Raises: UsageError for a page that does not exist."""
    if options.html is not None:
        count = write_html(options.html)
        printed(f"wrote {count} pages; open {options.html / 'index.html'}")
    elif options.serve is not None:
        _serve(options.serve)
    elif options.page is not None:
        _show(page_named(options.page))
    else:
        names = pages_in_order()
        width = max(map(len, names))
        for name in names:
            printed(f"{name:{width}}  {page_title(name)}")
        printed("\n`cep docs PAGE` prints a page, `cep docs --serve` shows all of them in a browser")
    return 0


class _PlainCode(CodeBlock):
    """Code without margins and without line breaks of ours, so that a reader can copy it."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(str(self.text).rstrip(), style="cyan", no_wrap=True, overflow="ignore")


class _Page(Markdown):
    """A page for the terminal."""

    elements = {**Markdown.elements, "fence": _PlainCode, "code_block": _PlainCode}  # noqa: RUF012 as its base has it


def _show(name: str) -> None:
    console = Terminal()
    text = page_paths()[name].read_text(encoding="utf-8")
    console.print(_Page(text, hyperlinks=False), width=min(console.width, _WIDTH_MAX), crop=False)


def _serve(port: int) -> None:
    """Serve all pages until interrupted. Raises: UsageError if the port cannot be had."""
    with tempfile.TemporaryDirectory() as folder:
        write_html(Path(folder))
        handler = partial(SimpleHTTPRequestHandler, directory=folder)
        try:
            server = ThreadingHTTPServer((_HOST, port), handler)
        except OSError as error:
            raise UsageError(f"cannot listen at {_HOST}:{port}: {error}; give --serve another port") from error
        with server:
            printed(f"the pages are at http://{_HOST}:{server.server_port}/, ctrl-C ends it")
            server.serve_forever()


# ---------------------------------------------------------------------------------------------------------------- HTML


def write_html(folder: Path) -> int:
    """Write every page as HTML below the folder. Return how many there are.

    Leaves other files of the folder unchanged.
    """
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch)
        assemble(source)
        names = pages_in_order()
        titles = {name: page_title(name) for name in names}
        for name in names:
            text = (source / f"{name}.md").read_text(encoding="utf-8")
            target = folder / f"{name}.html"
            replace_file(target, _html_page(name, text, titles).encode())
        for picture in sorted(source.rglob("*.svg")):
            target = folder / picture.relative_to(source)
            replace_file(target, picture.read_bytes())
    return len(names)


def anchor_of(heading: str) -> str:
    """Return the anchor of a heading, as repositories on the web make it."""
    words = re.sub(r"[^\w\- ]", "", heading.lower().replace("`", ""))
    return words.strip().replace(" ", "-")


def _html_page(name: str, text: str, titles: dict[str, str]) -> str:
    markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
    tokens = markdown.parse(text)
    for heading, inline in pairwise(tokens):
        if heading.type == "heading_open":
            heading.attrSet("id", anchor_of(inline.content))
    _lead_to_html(tokens)
    body = markdown.renderer.render(tokens, markdown.options, {})
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(titles[name])}</title>\n'
        f"<style>{_STYLE}</style></head><body><nav>cep {__version__}\n{_navigation(name, titles)}</nav>\n"
        f"<main>{body}</main></body></html>\n"
    )


def _lead_to_html(tokens: list[Token]) -> None:
    """Make links to pages in Markdown lead to those in HTML."""
    for token in tokens:
        for child in token.children or ():
            link = child.attrGet("href")
            if child.type == "link_open" and isinstance(link, str) and "://" not in link:
                child.attrSet("href", re.sub(r"\.md(#|$)", r".html\1", link))


def _navigation(here: str, titles: dict[str, str]) -> str:
    lines, section = [], ""
    for name, title in titles.items():
        first = name.split("/")[0] if "/" in name else ""
        if first != section:
            lines.append(f"<b>{_SECTIONS.get(first, first)}</b>")
            section = first
        link = os.path.relpath(f"{name}.html", Path(here).parent)
        mark = ' class="here"' if name == here else ""
        lines.append(f'<a{mark} href="{link}">{html.escape(title)}</a>')
    return "\n".join(lines)
