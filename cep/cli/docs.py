"""`cep docs`, `cep job monitor`: the pages and the monitoring files that came with this package.

    cep/docs/guides/replay.md   → guides/replay
    cep/engine/README.md        → inside/rooms/engine
    cep/runners/handover/README.md → inside/rooms/runners-handover

`index.md` names every page once, in reading order. A room's README is its page, so nothing is written twice. The HTML
needs no network, no script and no other file.
Tested by: tests/docs/test_reference.py, tests/cli/test_monitor.py
"""

import argparse
import html
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Markdown
from rich.text import Text

import cep
from cep import __version__
from cep.base.errors import UsageError
from cep.base.files import replace_file
from cep.base.terminal import Terminal
from cep.cli.paths import printed
from cep.cli.verbs import Parser
from cep.lang.diagnostics import did_you_mean

PACKAGE = Path(cep.__file__).parent
DOCS = PACKAGE / "docs"
INDEX = "index"
ROOMS = "inside/rooms"
_LINK = re.compile(r"(!?\[[^\]\n]*(?:\n[^\]\n]*)?\])\(([^()\s]+)\)")
_FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)


@cache
def page_paths() -> Mapping[str, Path]:
    """Return the file of each page by the page's name."""
    paths = {path.relative_to(DOCS).with_suffix("").as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
    for path in sorted(PACKAGE.rglob("README.md")):
        room = "-".join(path.parent.relative_to(PACKAGE).parts)
        if room and DOCS not in path.parents:
            paths[f"{ROOMS}/{room}"] = path
    return paths


def pages_in_order() -> list[str]:
    """Return the names of all pages: first the pages of the index, in its order."""
    index = DOCS / f"{INDEX}.md"
    by_path = {path: name for name, path in page_paths().items()}
    linked = [by_path.get(target) for target in link_targets(index)]
    return list(dict.fromkeys([INDEX, *(name for name in linked if name), *page_paths()]))


def page_named(page_name: str) -> str:
    """Return the page with this name, link or last part. A guide goes before a package of the same name.

    Raises: UsageError with the nearest name.
    """
    name = page_name.split("#", maxsplit=1)[0].replace("../", "").strip("/").removesuffix(".md")
    matches = [page for page in page_paths() if page == name or page.endswith(f"/{name}")]
    matches = [page for page in matches if not page.startswith(ROOMS)] or matches
    if name in matches or len(matches) == 1:
        return name if name in matches else matches[0]
    if matches:
        raise UsageError(f"`{page_name}` may be {' or '.join(matches)}")
    last = {page.rsplit("/", 1)[-1]: page for page in page_paths()}
    hint = did_you_mean(name, [*page_paths(), *last])
    raise UsageError(f"there is no page `{page_name}`; {hint or '`cep docs` lists all pages'}")


def page_title(name: str) -> str:
    """Return the text of the page's first heading."""
    first = page_paths()[name].read_text(encoding="utf-8").split("\n", 1)[0]
    return first.lstrip("# ").replace("`", "")


def link_targets(path: Path) -> list[Path]:
    """Return the files and folders that a page links to, in order; other hosts and the page itself are left out."""
    prose = _FENCE.sub("", path.read_text(encoding="utf-8"))
    targets = [link.split("#")[0] for _, link in _LINK.findall(prose) if "://" not in link]
    return [Path(os.path.normpath(path.parent / target)) for target in targets if target]


def rewrite_links(text: str, path: Path, change: Callable[[Path, str], str | None]) -> str:
    """Change the links of a text, but not of its code. `change` gives a new target, or None to keep only the words."""

    def changed(link: re.Match[str]) -> str:
        words, target = link[1], link[2]
        if "://" in target or target.startswith("#"):
            return link[0]
        file, _, anchor = target.partition("#")
        new_target = change(Path(os.path.normpath(path.parent / file)), f"#{anchor}" if anchor else "")
        return words.strip("[]!") if new_target is None else f"{words}({new_target})"  # `![` begins a picture

    parts = _FENCE.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(changed, part) for part in parts)


def assemble(folder: Path) -> None:
    """Write all pages and pictures into a folder, with links that work there. A link to a module becomes plain text."""
    by_path = {path: name for name, path in page_paths().items()}
    for name, path in page_paths().items():
        here = (folder / name).parent

        def new_target(target: Path, anchor: str, here: Path = here) -> str | None:
            page = by_path.get(target) or by_path.get(target / "README.md")
            if page is not None:
                return os.path.relpath(folder / f"{page}.md", here) + anchor
            if DOCS in target.parents:
                return os.path.relpath(folder / target.relative_to(DOCS), here) + anchor
            return None

        text = rewrite_links(path.read_text(encoding="utf-8"), path, new_target)
        replace_file(folder / f"{name}.md", text.encode())
    for picture in sorted(DOCS.rglob("*.svg")):
        target = folder / picture.relative_to(DOCS)
        replace_file(target, picture.read_bytes())


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


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    which = parser.add_mutually_exclusive_group()
    parser.declare("page PAGE", "a page, like guides/replay", nargs="?", group=which)
    parser.declare("--html FOLDER", "write all pages as HTML into this folder", group=which)
    parser.declare(
        "--serve PORT", "serve them at 127.0.0.1 (default port: 8000)", nargs="?", type=int, const=8000, group=which
    )


def run(options: argparse.Namespace) -> int:
    """List pages, print one, write them, or serve them. Raises: UsageError for a page that does not exist."""
    if options.html is not None:
        count = write_html(options.html)
        printed(f"wrote {count} pages; open {options.html / 'index.html'}")
    elif options.serve is not None:
        _serve(options.serve)
    elif options.page is not None:
        console = Terminal()
        page = _Page(page_paths()[page_named(options.page)].read_text(encoding="utf-8"), hyperlinks=False)
        console.print(page, width=min(console.width, _WIDTH_MAX), crop=False)
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
    elements = {**Markdown.elements, "fence": _PlainCode, "code_block": _PlainCode}  # noqa: RUF012 as its base has it


def _serve(port: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_html(Path(folder))
        handler = partial(SimpleHTTPRequestHandler, directory=folder)
        try:
            server = ThreadingHTTPServer((_HOST, port), handler)
        except (OSError, OverflowError) as error:  # the latter for a number that no port has
            raise UsageError(f"cannot listen at {_HOST}:{port}: {error}; give --serve another port") from error
        with server:
            printed(f"the pages are at http://{_HOST}:{server.server_port}/, ctrl-C ends it")
            server.serve_forever()


def write_html(folder: Path) -> int:
    """Write every page as HTML below the folder, whose other files stay. Return the number of pages."""
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
    _lead_to_html(tokens)  # links to pages end with .html in place of .md
    body = markdown.renderer.render(tokens, markdown.options, {})
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(titles[name])}</title>\n'
        f"<style>{_STYLE}</style></head><body><nav>cep {__version__}\n{_navigation(name, titles)}</nav>\n"
        f"<main>{body}</main></body></html>\n"
    )


def _lead_to_html(tokens: list[Token]) -> None:
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


MONITORING_FILES = {"alerts": "alerts.yml", "dashboard": "dashboard.json"}
MONITORING = DOCS / "monitoring"

HELP_MONITOR = """\
Print alert rules for Prometheus, or a dashboard for Grafana. They hold for jobs of `cep run` and of `cep live`, whose
metrics have the same names. Thresholds are to begin with.

examples:
  cep job monitor alerts > /etc/prometheus/rules/cep.yml
  cep job monitor dashboard > cep.json                       (in Grafana: Dashboards, New, Import)
"""


def add_arguments_monitor(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    parser.declare("what", "which file", choices=sorted(MONITORING_FILES))


def run_monitor(options: argparse.Namespace) -> int:
    """Print the file; returns 0."""
    print((MONITORING / MONITORING_FILES[options.what]).read_text(encoding="utf-8"), end="")
    return 0
