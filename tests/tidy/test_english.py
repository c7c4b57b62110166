"""Sentences are cut where a reader breathes, and what is no prose is not counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tidy.english import (
    BAD_NAMES,
    BAD_STARTS,
    PARAGRAPH_WORDS_MAX,
    WORDS_MAX,
    check_folder,
    check_page,
    check_source,
    not_imperative,
    sentences,
)
from tests.tidy.source import ROOT, Source

ROOMS = sorted(path.name for path in (ROOT / "cep").iterdir() if path.is_dir() and path.name != "__pycache__")
FOLDERS = ("demo", "patterns", "rules", "tests")
# Where a finding stays → why.
EXCEPTIONS = {
    "cep/kernels/expressions/opcodes.py": "the comments of a table, which follow each other",
    "cep/model/embedded_settings.py": "`kept` is the name of a setting",
}


def test_paragraphs_items_and_stops_end_a_sentence() -> None:
    text = "First one here. Second one: and a third; a fourth\n\n- an item\n- another item\n  that goes on"
    assert list(sentences(text)) == [
        "First one here.", "Second one:", "and a third;", "a fourth", "an item", "another item that goes on",
    ]  # fmt: skip


def test_code_tables_headings_and_drawings_are_no_prose() -> None:
    page = [
        "# A heading of words",
        "| a table | of words |",
        "```sh\nsome code here\n```",
        "    an indented block",
        "a ──▶ b",
    ]
    assert list(sentences("\n\n".join([*page, "Prose it is."]))) == ["Prose it is."]


def test_what_is_to_be_mended_is_listed() -> None:
    long = " ".join(["word"] * (WORDS_MAX + 1))
    text = f'"""A module."""\n\n# {long}.\n\n\ndef told(x):\n    """What it says."""\n    found = x\n    return found\n'
    findings = check_source(Source("cep/x/y.py", text))
    assert findings.counts["docstring start"] == 1
    assert findings.counts["name"] == 2
    assert findings.counts[f"code over {WORDS_MAX} words"] == 1
    assert {"told", "found"} <= BAD_NAMES
    starts = [check_source(Source("cep/x/y.py", f'"""{word} it is."""\n')).counts for word in (*BAD_STARTS, "All:")]
    assert [counts["docstring start"] for counts in starts] == [1] * (len(BAD_STARTS) + 1)


def test_a_long_paragraph_of_a_page_is_listed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("A word or two. " * (PARAGRAPH_WORDS_MAX // 4) + "\n\n- A word or two.\n- One more.\n")
    assert check_page(page, tmp_path).lines == []
    page.write_text("A word or two. " * (PARAGRAPH_WORDS_MAX // 4) + "\nOne more.\n")
    assert [line.split(":")[0] for line in check_page(page, tmp_path).lines] == ["page.md paragraph over 80 words"]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_speaks_plainly(room: str) -> None:
    lines = check_folder(f"cep/{room}").lines
    assert [line for line in lines if line.split(":")[0].split(" ")[0] not in EXCEPTIONS] == []


def test_pages_outside_the_package_speak_plainly() -> None:
    pages = [*ROOT.glob("*.md"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*.md"))]
    assert [line for path in sorted(pages) for line in check_page(path).lines] == []


def test_functions_begin_with_a_verb() -> None:
    assert not_imperative("cep") == []


def test_exceptions_are_still_needed() -> None:
    for name, reason in EXCEPTIONS.items():
        assert reason
        assert check_source(Source(name, (ROOT / name).read_text(encoding="utf-8"))).lines, f"{name} is clean"
