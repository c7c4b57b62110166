"""Snoozes: the time in which alerts are suppressed, and which snooze wins."""

from __future__ import annotations

from cep.base.utc import utc_text
from cep.model.rule import SnoozeRecord
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.rulebook.versions import Snoozes
from tests.rulebook.records import SCHEMA, new_book


def snooze(version: int, until_ms: int, key: str | None = None, effective_ms: int | None = None) -> SnoozeRecord:
    effective = None if effective_ms is None else utc_text(effective_ms)
    return SnoozeRecord(id="r", version=version, until=utc_text(until_ms), key=key, by="ann", effective_at=effective)


def spans(snoozes: Snoozes) -> list[tuple[str | None, int, int]]:
    return [(s.key, s.from_ms, s.until_ms) for s in snoozes.report()]


def test_a_later_snooze_takes_over_at_its_start() -> None:
    book = new_book()
    book.apply(snooze(1, 10_000), 1_000)
    book.apply(snooze(2, 30_000, effective_ms=5_000), 1_000)
    assert spans(book.snoozes) == [(None, 1_001, 5_000), (None, 5_000, 30_000)]
    assert book.epoch == 2


def test_a_date_that_is_past_ends_it() -> None:
    book = new_book()
    book.apply(snooze(1, 10_000), 1_000)
    book.apply(snooze(2, 1_000), 4_000)
    assert spans(book.snoozes) == [(None, 1_001, 4_001)]


def test_keys_are_apart_and_older_ones_are_ignored() -> None:
    book = new_book()
    book.apply(snooze(2, 10_000, "card 1"), None)
    book.apply(snooze(1, 20_000), None)
    assert book.apply(snooze(1, 90_000, "card 1"), None).kind == "ignored"
    assert [s[0::2] for s in spans(book.snoozes)] == [(None, 20_000), ("card 1", 10_000)]


def test_what_is_over_is_forgotten_and_its_version_is_not() -> None:
    book = new_book()
    book.apply(snooze(3, 10_000), None)
    assert book.forget_ms == 10_000
    book.forget(10_000)
    assert spans(book.snoozes) == []
    for later in (book, rulebook_from_bytes(rulebook_bytes(book), SCHEMA, None)):
        assert later.apply(snooze(3, 10_000), 10_000).kind == "ignored"
        assert later.apply(snooze(3, 90_000), 10_000).is_conflict
        assert later.snoozes.report() == ()
