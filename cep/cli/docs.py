"""`cep docs`: the pages of this version, in the terminal, as HTML files, or on a small local web server.

Tested by: tests/docs/test_verb.py
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Markdown
from rich.text import Text

from cep.base.errors import UsageError
from cep.base.terminal import Terminal
from cep.cli.doc_html import write_html
from cep.cli.doc_pages import page_named, page_paths, page_title, pages_in_order
from cep.cli.paths import printed

HELP = """\
Show the pages that came with this version. No network is needed.

examples:
  cep docs                      list all pages
  cep docs guides/replay        read one in the terminal; `cep docs replay` is enough
  cep docs --html pages         write all of them as HTML
  cep docs --serve              read them in a browser, on this machine only
"""
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
