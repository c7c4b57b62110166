"""rules.lock: accepted records, contradictions, and their repair."""

from __future__ import annotations

from pathlib import Path

import pytest

from cep.base.errors import UsageError
from cep.rulebook.lock import LOCK_FILE, locked, problems_of_lock, read_lock, with_version, write_lock
from tests.rulebook.records import upsert


def test_what_is_locked_stays(tmp_path: Path) -> None:
    first, other = upsert(1, "a"), upsert(4, "b")
    lock, problems = locked([first, other], {})
    assert problems == []
    write_lock(tmp_path, lock)
    assert read_lock(tmp_path) == lock
    assert problems_of_lock([first, other], lock) == []
    again, _ = locked([upsert(2, "a", severity="high")], lock)
    assert set(again["a"]) == {1, 2}
    assert again["b"] == lock["b"]


@pytest.mark.parametrize(
    ("version", "severity", "message"),
    [
        (3, "high", "a: it means something else than version 3 did when it was locked; run `cep rules bump a`"),
        (2, "low", "a: version 2 is below 3, which is locked: a version never goes back; run `cep rules bump a`"),
        (4, "low", "a: version 4 is not locked; run `cep rules lock`"),
    ],
)
def test_what_contradicts_it_names_the_command_that_mends_it(version: int, severity: str, message: str) -> None:
    lock, _ = locked([upsert(3, "a")], {})
    changed = upsert(version, "a", severity=severity)
    assert [str(problem) for problem in problems_of_lock([changed], lock)] == [message]


def test_a_changed_meaning_is_not_locked_over() -> None:
    lock, _ = locked([upsert(3, "a")], {})
    after, problems = locked([upsert(3, "a", severity="high"), upsert(1, "new")], lock)
    assert after["a"] == lock["a"]
    assert set(after) == {"a", "new"}
    assert len(problems) == 1


@pytest.mark.parametrize("text", ["a = 1", '[a]\nx = "y"', '[a]\n1 = "short"', "[["])
def test_a_file_that_is_no_lock_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / LOCK_FILE).write_text(text)
    with pytest.raises(UsageError, match="restore it from version control"):
        read_lock(tmp_path)


def test_only_the_version_of_a_file_changes() -> None:
    text = 'id = "a"\nversion  = 12 # as agreed\n\n[params]\nversion = 3\n'
    assert with_version(text, 13) == 'id = "a"\nversion  = 13 # as agreed\n\n[params]\nversion = 3\n'
    with pytest.raises(ValueError, match="no line"):
        with_version("[params]\nversion = 3\n", 13)
