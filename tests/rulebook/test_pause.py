"""Pauses cut the interval of the version in force."""

from __future__ import annotations

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.base.utc import utc_text
from cep.model.rule import PauseRecord, ResumeRecord
from cep.rulebook.rulebook import Rulebook
from tests.rulebook.records import new_book, upsert


def pause(version: int, effective_ms: int | None = None) -> PauseRecord:
    return PauseRecord(id="r", version=version, effective_at=None if effective_ms is None else utc_text(effective_ms))


def resume(version: int, effective_ms: int | None = None) -> ResumeRecord:
    return ResumeRecord(id="r", version=version, effective_at=None if effective_ms is None else utc_text(effective_ms))


def intervals(book: Rulebook) -> list[tuple[int, int, int, int]]:
    return [(r.version, r.from_ms, r.starts_until_ms, r.until_ms) for r in book.deployed()]


def test_the_part_after_a_pause_is_another_automaton() -> None:
    book = new_book()
    book.apply(upsert(1), None)
    book.apply(pause(1, 1_000), None)
    assert intervals(book) == [(1, TIME_MS_MIN, 1_000, 1_000)]
    assert book.report().paused == ("r",)
    book.apply(resume(2, 2_000), None)
    assert intervals(book) == [(1, TIME_MS_MIN, 1_000, 1_000), (1, 2_000, TIME_MS_MAX, TIME_MS_MAX)]
    assert book.report().paused == ()
    before, after = book.deployed()
    assert before.identity != after.identity
    assert before.content_hash == after.content_hash


def test_a_version_that_comes_in_a_pause_waits_for_its_end() -> None:
    book = new_book()
    book.apply(upsert(1), None)
    book.apply(pause(1, 1_000), None)
    book.apply(upsert(2, effective_ms=1_500), None)
    book.apply(resume(2, 2_000), None)
    assert intervals(book) == [(1, TIME_MS_MIN, 1_000, 1_000), (2, 2_000, TIME_MS_MAX, TIME_MS_MAX)]


def test_a_pause_may_come_before_its_rule() -> None:
    book = new_book()
    book.apply(pause(1), None)
    book.apply(upsert(1), None)
    assert intervals(book) == []
    book.apply(resume(2), 5_000)
    assert intervals(book) == [(1, 5_001, TIME_MS_MAX, TIME_MS_MAX)]


def test_a_pause_that_is_over_is_forgotten_and_the_part_after_it_stays_the_same() -> None:
    book = new_book()
    book.apply(upsert(1), None)
    book.apply(pause(1, 1_000), None)
    book.apply(resume(2, 2_000), None)
    after = book.deployed()[1]
    assert book.forget_ms == 2_000
    book.forget(2_000)
    assert book.deployed() == (after,)
    assert book.apply(resume(2, 3_000), 2_500).kind == "ignored"


def test_turning_off_twice_is_one_pause() -> None:
    book = new_book()
    book.apply(upsert(1), None)
    for version, time_ms in ((1, 1_000), (2, 1_500)):
        book.apply(pause(version, time_ms), None)
    book.apply(resume(3, 2_000), None)
    assert [rule[1:3] for rule in intervals(book)] == [(TIME_MS_MIN, 1_000), (2_000, TIME_MS_MAX)]
