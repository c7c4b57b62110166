"""The folder of pages in this package → page names, titles, and links between pages.

    cep/docs/guides/replay.md   → guides/replay
    cep/engine/README.md        → inside/rooms/engine
    cep/runners/handover/README.md → inside/rooms/runners-handover

`index.md` names every page once, in reading order. A room's README is its page, so nothing is written twice.
Tested by: tests/docs/test_verb.py
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import cep
from cep.base.errors import UsageError
from cep.base.files import replace_file
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
    """Return the page of this name, or the only page that has it as its last part. Links of pages are names, too.

    If a guide and a package have the same name, the guide is returned.
    Raises: UsageError with the nearest name if the page does not exist.
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
    """Return the files and folders that a page links to, in order. Links to other hosts and within the page are left
    out."""
    prose = _FENCE.sub("", path.read_text(encoding="utf-8"))
    targets = [link.split("#")[0] for _, link in _LINK.findall(prose) if "://" not in link]
    return [Path(os.path.normpath(path.parent / target)) for target in targets if target]


def rewrite_links(text: str, path: Path, change: Callable[[Path, str], str | None]) -> str:
    """Change the links of a page's text; code stays as it is.

    `change(target, anchor)` gives the new link of a file, or None to leave only the link's words.
    """

    def changed(link: re.Match[str]) -> str:
        words, target = link[1], link[2]
        if "://" in target or target.startswith("#"):
            return link[0]
        file, _, anchor = target.partition("#")
        fresh = change(Path(os.path.normpath(path.parent / file)), f"#{anchor}" if anchor else "")
        return words.strip("[]!") if fresh is None else f"{words}({fresh})"

    parts = _FENCE.split(text)
    return "".join(part if part.startswith("```") else _LINK.sub(changed, part) for part in parts)


def assemble(folder: Path) -> None:
    """Write all pages and their pictures into a folder, including the pages of packages, with links that work there.

    A link to a file that is not a page, such as a module, becomes plain text.
    """
    by_path = {path: name for name, path in page_paths().items()}
    for name, path in page_paths().items():
        here = (folder / name).parent

        def fresh(target: Path, anchor: str, here: Path = here) -> str | None:
            page = by_path.get(target) or by_path.get(target / "README.md")
            if page is not None:
                return os.path.relpath(folder / f"{page}.md", here) + anchor
            if DOCS in target.parents:
                return os.path.relpath(folder / target.relative_to(DOCS), here) + anchor
            return None

        text = rewrite_links(path.read_text(encoding="utf-8"), path, fresh)
        replace_file(folder / f"{name}.md", text.encode())
    for picture in sorted(DOCS.rglob("*.svg")):
        target = folder / picture.relative_to(DOCS)
        replace_file(target, picture.read_bytes())
