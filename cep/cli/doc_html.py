"""Pages in Markdown → a folder of HTML that needs no network, no script and no other file.

Every page has the list of all pages at its side. Headings have the anchors that the links of the pages use.
Tested by: tests/docs/test_verb.py
"""

from __future__ import annotations

import html
import os
import re
import tempfile
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from cep import __version__
from cep.base.durable import replace_file
from cep.cli.doc_pages import assemble, page_title, pages_in_order

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
            replace_file(target, _page(name, text, titles).encode())
        for picture in sorted(source.rglob("*.svg")):
            target = folder / picture.relative_to(source)
            replace_file(target, picture.read_bytes())
    return len(names)


def anchor_of(heading: str) -> str:
    """Return the anchor of a heading, as repositories on the web make it."""
    words = re.sub(r"[^\w\- ]", "", heading.lower().replace("`", ""))
    return words.strip().replace(" ", "-")


def _page(name: str, text: str, titles: dict[str, str]) -> str:
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
