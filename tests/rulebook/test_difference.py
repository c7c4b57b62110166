"""The differences between two records, in lines for a person."""

from __future__ import annotations

from cep.model.rule import Changes, ListRecord, RollbackRecord, SnoozeRecord
from cep.rulebook.difference import difference
from tests.rulebook.records import SOURCE, upsert


def test_parameters_are_named_with_both_values() -> None:
    before = upsert(1, params={"large": 5, "window": "10 min"})
    after = upsert(2, params={"large": 7, "extra": True}, severity="high", by="ann", changes=Changes(version=1))
    assert difference(before, after) == [
        "severity low → high",
        "params.large 5 → 7",
        "params.window 10 min → none",
        "params.extra none → True",
    ]
    assert difference(before, upsert(9, params={"large": 5, "window": "10 min"})) == []


def test_the_text_of_the_pattern_counts_if_its_meaning_does() -> None:
    tabs, other = SOURCE.replace("  ", "\t"), SOURCE.replace("1.00", "2.00")
    assert difference(upsert(1), upsert(2, source=tabs)) == []
    assert difference(upsert(1), upsert(2, source=other)) == ["text of the pattern: 1 line(s) new, 1 gone"]


def test_a_rollback_is_the_version_that_it_brings_back() -> None:
    back = RollbackRecord(id="r", version=3, to_version=1, rule=upsert(1))
    assert difference(upsert(2, score=9), back) == ["score 9 → 0"]


def test_other_changes() -> None:
    one = SnoozeRecord(id="r", version=1, until="2030-01-01T00:00:00Z", by="a")
    two = SnoozeRecord(id="r", version=1, until="2031-01-01T00:00:00Z", by="b")
    assert difference(one, two) == ["until 2030-01-01T00:00:00.000Z → 2031-01-01T00:00:00.000Z"]
    more = ListRecord(id="l", of="int", version=1, change="add", entries=[1])
    less = ListRecord(id="l", of="int", version=1, change="remove", entries=[])
    assert difference(more, less) == ["change add → remove", "entries 1 → 0"]
