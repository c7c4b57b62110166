"""Links between pages, README files and files of the repository lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cep.cli.doc_pages import DOCS, INDEX, ROOMS, link_targets, page_paths, pages_in_order
from cep.cli.docs import anchor_of
from tests.docs.pages import blocks_of
from tests.tidy.english import sentences

ROOT = Path(__file__).parents[2]
FOLDERS = ("cep", "demo", "patterns", "rules", "tests")
PAGES = sorted({*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))})
WORDS_MAX = 1500
# Readers look things up in generated pages, so these may be long.
LONG = {"api", "verbs", "control-records", "settings", "diagnostics", "limits", "metrics"}
_ANCHORED = re.compile(r"\]\(([^()\s]*)#([^()\s]+)\)")
_PATH = re.compile(r"`((?:cep|demo|patterns|rules|tests)/[\w./-]+\w/?)`")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def path_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PAGES, ids=path_name)
def test_links_lead_to_files(path: Path) -> None:
    assert [str(target) for target in link_targets(path) if not target.exists()] == []


@pytest.mark.parametrize("path", PAGES, ids=path_name)
def test_no_merge_is_left_open(path: Path) -> None:
    assert re.search(r"^(<{7}|>{7}) ", path.read_text(encoding="utf-8"), re.MULTILINE) is None


@pytest.mark.parametrize("path", PAGES, ids=path_name)
def test_anchors_are_headings(path: Path) -> None:
    broken = []
    for file, anchor in _ANCHORED.findall(_FENCE.sub("", path.read_text(encoding="utf-8"))):
        if "://" in file:
            continue
        target = path.parent / file if file else path
        target = target / "README.md" if target.is_dir() else target
        headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", target.read_text(encoding="utf-8")), re.MULTILINE)
        if anchor not in {anchor_of(heading) for heading in headings}:
            broken.append(f"{file}#{anchor}")
    assert broken == []


@pytest.mark.parametrize("path", PAGES, ids=path_name)
def test_paths_of_the_repository_are_there(path: Path) -> None:
    """A path in backquotes that begins with a folder of the project must exist; `nnn` and `NAME` stand for any."""
    named = _PATH.findall(_FENCE.sub("", path.read_text(encoding="utf-8")))
    assert [file for file in named if not re.search("nnn|NAME", file) and not (ROOT / file).exists()] == []


@pytest.mark.parametrize("path", [path for path in PAGES if DOCS in path.parents], ids=path_name)
def test_a_page_is_short(path: Path) -> None:
    """The test counts prose and tables, without examples."""
    if path.stem not in LONG:
        assert len(_FENCE.sub("", path.read_text(encoding="utf-8")).split()) <= WORDS_MAX


@pytest.mark.parametrize("path", sorted((ROOT / "cep").rglob("README.md")), ids=path_name)
def test_the_page_of_a_room_is_short(path: Path) -> None:
    """The test counts the drawings of the page too."""
    assert len(path.read_text(encoding="utf-8").split()) <= WORDS_MAX


@pytest.mark.parametrize("path", [path for path in PAGES if DOCS in path.parents], ids=path_name)
def test_a_page_has_a_title_and_prose(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert list(sentences(text)) or blocks_of(text)


def test_the_table_of_rooms_leads_to_each_room() -> None:
    linked = set(link_targets(DOCS / "inside" / "architecture.md"))
    rooms = [path for path in DOCS.parent.iterdir() if (path / "__init__.py").exists()]
    assert [room.name for room in rooms if room / "README.md" not in linked] == []


def test_the_index_names_every_page() -> None:
    linked = set(link_targets(DOCS / f"{INDEX}.md"))
    decisions = set(link_targets(DOCS / "inside" / "decisions" / "index.md"))
    missing = [
        page for page, path in page_paths().items()
        if page != INDEX and not page.startswith(ROOMS) and path not in linked | decisions
    ]  # fmt: skip
    assert missing == []


def test_pages_are_in_the_order_of_the_index() -> None:
    assert pages_in_order()[:3] == [INDEX, "start/first-rule", "guides/write"]
