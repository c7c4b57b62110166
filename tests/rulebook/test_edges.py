"""Common failures of rules in production, each with its outcome."""

from __future__ import annotations

from pathlib import Path

import orjson

from cep.base.limits import TIME_MS_MIN
from cep.rulebook.files import read_rules
from cep.rulebook.meaning import content_hash
from cep.step.rules import apply_records
from tests.rulebook.records import SOURCE, new_book, upsert

DAY_MS = 86_400_000
NOW_MS = 1_772_323_200_000


def test_a_record_of_ten_megabytes_is_set_aside_and_the_next_one_counts() -> None:
    book = new_book()
    huge = upsert(1, "huge").to_json().replace(b'"owner":"o"', b'"owner":"' + b"o" * 10_485_760 + b'"')
    letters, counters, _ = apply_records(book, (huge, upsert(1, "good").to_json()), NOW_MS)
    assert (counters["control_unreadable"], counters["control_applied"]) == (1, 1)
    (letter,) = (orjson.loads(letter) for letter in letters)
    assert "over the limit of 1048576" in letter["reason"]
    assert len(letter["record"]) < 5_000, "the letter says which record it was and does not carry it along"


def test_a_rule_that_stops_compiling_leaves_the_version_before_in_force() -> None:
    book = new_book()
    broken = upsert(2, source=SOURCE.replace("card_id     string", "card         string"))
    letters, counters, _ = apply_records(book, (upsert(1).to_json(), broken.to_json()), NOW_MS)
    assert (counters["control_applied"], counters["control_refused"], book.epoch) == (1, 1, 1)
    assert [rule.version for rule in book.deployed()] == [1]
    assert [(refusal.rule_id, refusal.version) for refusal in book.report().refused] == [("r", 2)]
    letter = orjson.loads(letters[0])
    assert (letter["rule_id"], letter["version"], letter["content_hash"]) == ("r", 2, content_hash(broken))
    assert letter["diagnostics"][0]["code"] in letter["reason"]
    assert letter["diagnostics"][0]["span"]["line"] > 1, "it says where in the pattern"
    mended = apply_records(book, (upsert(3).to_json(),), NOW_MS)[1]
    assert mended["control_applied"] == 1
    assert book.report().refused == ()


def test_a_cyclic_import_is_a_problem_of_its_rule_alone(tmp_path: Path) -> None:
    (tmp_path / "a.cep").write_text('import "b.cep"\n' + SOURCE)
    (tmp_path / "b.cep").write_text('import "a.cep"\n')
    (tmp_path / "good.cep").write_text(SOURCE)
    for name, file in (("cyclic", "a.cep"), ("good", "good.cep")):
        (tmp_path / f"{name}.toml").write_text(
            f'id = "{name}"\npattern = "large_after_small"\nfile = "{file}"\nversion = 1\nstatus = "live"\n'
            'severity = "low"\nowner = "o"\nmessage = "m"\n'
        )
    records, problems = read_rules(tmp_path)
    assert [record.id for record in records] == ["good"]
    assert len(problems) == 1
    assert "cyclic.toml" in problems[0]
    assert "import" in problems[0]


def test_a_version_that_goes_back_is_ignored_and_counted() -> None:
    book = new_book()
    counters = apply_records(book, (upsert(5).to_json(), upsert(4).to_json(), upsert(5).to_json()), NOW_MS)[1]
    assert (counters["control_applied"], counters["control_ignored"]) == (1, 2)
    assert [rule.version for rule in book.deployed()] == [5]


def test_a_publisher_whose_clock_is_a_day_off() -> None:
    """With a slow clock the change starts at once, a day late; with a fast one it waits a day, and says until when."""
    book = new_book()
    behind = book.apply(upsert(1, "behind", NOW_MS - DAY_MS), NOW_MS)
    ahead = book.apply(upsert(1, "ahead", NOW_MS + DAY_MS), NOW_MS)
    assert (behind.from_ms, behind.late_ms) == (NOW_MS + 1, DAY_MS + 1)
    assert (ahead.from_ms, ahead.late_ms) == (NOW_MS + DAY_MS, 0)
    assert {rule.rule_id: rule.from_ms for rule in book.report().rules} == {
        "behind": NOW_MS + 1, "ahead": NOW_MS + DAY_MS,
    }  # fmt: skip
    assert book.report().rule_late_ms == DAY_MS + 1
    assert all(rule.from_ms > TIME_MS_MIN for rule in book.deployed())
