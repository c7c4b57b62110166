"""Links and named files of pages lead somewhere, and the site builds."""

import re
from pathlib import Path

import pytest

from cep.cli import docs
from cep.cli.docs import DOCS, INDEX, ROOMS, anchor_of, link_targets, page_paths, pages_in_order
from tests.docs.pages import blocks_of
from tests.docs.site import build
from tests.tidy.english import sentences

# Links between pages, README files and files of the repository lead somewhere.

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


@pytest.mark.parametrize("path", sorted((ROOT / "cep").glob("*/README.md")), ids=path_name)
def test_the_page_of_a_room_names_its_own_files(path: Path) -> None:
    """A name without a folder is a file of the room; NAME stands for any. No file is named twice in a row."""
    text, room = path.read_text(encoding="utf-8"), path.parent
    files = [f"/{file.relative_to(room)}" for file in room.rglob("*.py")]
    lost = []
    for name in re.findall(r"[\w./-]*\w\.py\b", text):
        is_own = any(file.endswith(f"/{name}") for file in files)
        is_elsewhere = "/" in name and any((folder / name).is_file() for folder in (ROOT, ROOT / "cep", room))
        lost += [] if is_own or is_elsewhere or "NAME" in name else [name]
    assert lost == []
    assert re.findall(r"(`[\w/]+\.py`)(?:,| and) \1", text) == []


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


# The page about changes: every file that it names exists and has that name.


CHANGE_PAGES = [(DOCS / "inside" / name).read_text(encoding="utf-8") for name in ("change.md", "change-operator.md")]
_ROWS = [line for page in CHANGE_PAGES for line in page.splitlines() if line.startswith("| ") and "`" in line]
_CODE = re.compile(r"`([^`]+)`")
_FILE = re.compile(r"[\w/-]+/[\w./-]*|[\w-]+\.(py|md|cep|toml|txt)")
_NAME_IN_FILE = re.compile(r"`(\w+)` in `([\w./-]+\.py)`")


def named_paths(row: str) -> list[Path]:
    """Return the files and folders of a row. A bare name lies in the folder of the file before; NAME is a new file."""
    paths: list[Path] = []
    folders = [ROOT]
    for code in filter(_FILE.fullmatch, _CODE.findall(row)):
        if "NAME" not in code:
            there = [folder / code for folder in folders if (folder / code).exists()]
            assert there, f"{code} is not there: {row}"
            paths.append(there[0])
        folders.append((paths[-1] if "NAME" not in code else ROOT / code).parent)
    return paths


def test_what_a_row_names_is_there() -> None:
    rows = [named_paths(row) for row in _ROWS]
    assert len(rows) > 20
    assert all(rows), "every row names a file"


def test_a_file_has_the_name_that_stands_before_it() -> None:
    pairs = [(name, path, row) for row in _ROWS for name, path in _NAME_IN_FILE.findall(row)]
    assert len(pairs) > 10
    lost = []
    for name, path, row in pairs:
        (file,) = (named for named in named_paths(row) if str(named).endswith(f"/{path}"))
        if not re.search(rf"\b{name}\b", file.read_text(encoding="utf-8")):
            lost.append(f"{path} has no {name}")
    assert lost == []


# The site builds, and a broken link ends the build.


def test_the_site_builds(tmp_path: Path) -> None:
    process = build(tmp_path / "site")
    assert process.returncode == 0, process.stdout + process.stderr
    written = {path.parent for path in (tmp_path / "site").rglob("index.html")}
    assert len(written) >= len(page_paths())
    first = (tmp_path / "site" / "index.html").read_text()
    assert not re.search(r'(?:src|href)="https?://(?!zensical\.org)', first), "a reader needs no network"


def test_a_broken_link_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "index.md"
    page.write_text("# A page\n\n[gone](guides/gone.md)\n")
    monkeypatch.setattr(docs, "DOCS", tmp_path)
    monkeypatch.setattr(docs, "page_paths", lambda: {"index": page})
    assert build(tmp_path / "site").returncode != 0
