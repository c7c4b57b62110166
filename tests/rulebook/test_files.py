"""Rule files to records, and the rules of this repository."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from cep.base.errors import UsageError
from cep.lang.load import bundle_checked, bundle_source, load_text
from cep.lang.parse import lexer
from cep.lists.store import ListStore
from cep.model.rule import RetireRecord
from cep.rulebook import files
from cep.rulebook.deploy import deploy
from cep.rulebook.files import read_control, read_lists, read_rules
from cep.rulebook.rulebook import Rulebook
from tests.rulebook.records import SOURCE

ROOT = Path(__file__).parents[2]
RULE = """
id = "good"
pattern = "large_after_small"
file = "patterns.cep"
version = 1
status = "live"
severity = "low"
owner = "o"
message = "m"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "patterns.cep").write_text(SOURCE)
    (tmp_path / "good.toml").write_text(RULE)
    return tmp_path


def test_a_good_file_becomes_a_record(folder: Path) -> None:
    (record,), problems = read_rules(folder)
    assert problems == []
    assert (record.id, record.version) == ("good", 1)
    assert "pattern large_after_small" in record.source


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("other.toml", RULE, "$.id: is `good`, but the file is named `other.toml`"),
        ("lost.toml", RULE.replace("good", "lost").replace("patterns.cep", "gone.cep"), "$.file: cannot bundle"),
        ("broken.toml", "id = ", "$: not TOML"),
        ("extra.toml", RULE.replace("owner", "ownr"), "$.ownr: no such name here; did you mean `owner`?"),
        ("large.toml", "#" * 100_000, "100000 bytes are over the limit of 65536"),
    ],
)
def test_a_bad_file_is_a_problem_and_the_good_ones_stay(folder: Path, name: str, text: str, expected: str) -> None:
    (folder / name).write_text(text)
    records, problems = read_rules(folder)
    assert [record.id for record in records] == ["good"]
    assert any(expected in problem for problem in problems)
    assert all(problem.startswith(f"{folder / name}: $") for problem in problems)


def test_an_empty_folder_is_a_problem(tmp_path: Path) -> None:
    assert read_rules(tmp_path) == ([], [f"{tmp_path}: no rule files (*.toml) here"])


def test_the_rules_of_this_repository_are_in_force() -> None:
    records, problems = read_rules(ROOT / "rules")
    assert problems == []
    schema = load_text(bundle_source(ROOT / "patterns" / "events.cep"), "events.cep").schema
    book = Rulebook(schema, (("card_id",), ("account_id",)))
    outcomes = {record.id: book.apply(record, None) for record in records}
    assert {rule_id: o.reason for rule_id, o in outcomes.items() if o.kind != "applied"} == {}
    assert [rule.rule_id for rule in book.deployed()] == [
        "impossible_travel",
        "card_testing",
        "dormant_then_large",
        "small_then_large",
        "rising_amounts",
    ]


def test_the_history_of_a_control_topic(folder: Path) -> None:
    (record,), _ = read_rules(folder)
    retired = RetireRecord(id="good", version=2)
    path = folder / "control.jsonl"
    path.write_bytes(b"\n".join([record.to_json(), b"", b'{"kind": "upsrt"}', retired.to_json(), b""]))
    records, problems = read_control(path)
    assert records == [record, retired]
    assert problems
    assert all(problem.startswith(f"{path}:3: $") for problem in problems)
    with pytest.raises(UsageError, match="cannot be read"):
        read_control(folder / "gone.jsonl")


def test_a_pattern_file_is_read_once_however_many_rules_name_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time to load rules grows with their text: each pass over a text happens once for all rules of a file."""
    for number in range(5):
        (folder / f"r{number}.toml").write_text(RULE.replace('"good"', f'"r{number}"'))
    source = SOURCE + "# read once\n"  # other tests have not cached it
    (folder / "patterns.cep").write_text(source)
    lexed = Mock(side_effect=lexer._Lexer)
    monkeypatch.setattr(lexer, "_Lexer", lexed)
    records, problems = read_rules(folder)
    assert problems == []
    read_lists(folder, ListStore())
    assert len(deploy(records).rulebook.deployed()) == 6
    assert lexed.call_count == 2, "to bundle and check it, and to spell its meaning"


def test_a_broken_pattern_file_is_read_once_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "patterns.cep").write_text(SOURCE + "pattern {")
    (folder / "second.toml").write_text(RULE.replace('"good"', '"second"'))
    bundled = Mock(side_effect=bundle_checked)
    monkeypatch.setattr(files, "bundle_checked", bundled)
    records, problems = read_rules(folder)
    assert records == []
    assert [problem.split(": ")[1] for problem in problems] == ["$.file", "$.file"]
    assert bundled.call_count == 1
