"""The page about changes: every file that it names exists and has that name."""

from __future__ import annotations

import re
from pathlib import Path

from cep.cli.doc_pages import DOCS

ROOT = Path(__file__).parents[2]
PAGES = [(DOCS / "inside" / name).read_text(encoding="utf-8") for name in ("change.md", "change-operator.md")]
_ROWS = [line for page in PAGES for line in page.splitlines() if line.startswith("| ") and "`" in line]
_CODE = re.compile(r"`([^`]+)`")
_PATH = re.compile(r"[\w/-]+/[\w./-]*|[\w-]+\.(py|md|cep|toml|txt)")
_NAME_IN_FILE = re.compile(r"`(\w+)` in `([\w./-]+\.py)`")


def named_paths(row: str) -> list[Path]:
    """Return the files and folders of a row. A bare name lies in the folder of the file before; NAME is a new file."""
    paths: list[Path] = []
    folders = [ROOT]
    for code in filter(_PATH.fullmatch, _CODE.findall(row)):
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
