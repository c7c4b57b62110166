"""Properties of any sequence of control records."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cep.model.rule import RetireRecord, UpsertRecord
from cep.rulebook.ledger import hash_of
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes, save
from tests.rulebook.records import SCHEMA, new_book, retire, upsert

Record = UpsertRecord | RetireRecord

TIMES = st.one_of(st.none(), st.integers(0, 20).map(lambda n: n * 1_000))
VERSIONS = st.integers(1, 6)
IDS = st.sampled_from(["a", "b"])
RECORDS = st.one_of(
    st.builds(
        lambda version, rule_id, time_ms, on_update, params: upsert(
            version, rule_id, time_ms, on_update=on_update, params=params
        ),
        VERSIONS,
        IDS,
        TIMES,
        st.sampled_from(["drain", "restart"]),
        st.sampled_from([{}, {"large": 7}, {"unknown": 1}]),  # the last is refused
    ),
    st.builds(retire, VERSIONS, IDS, TIMES),
)
# A record, and the largest event time that the job had seen before it, in ascending order.
HISTORIES = st.lists(st.tuples(RECORDS, st.integers(0, 4_000)), max_size=10).map(
    lambda steps: [(record, sum(gap for _, gap in steps[: i + 1])) for i, (record, _) in enumerate(steps)]
)


def applied(history: list[tuple[Record, int]]) -> Rulebook:
    book = new_book()
    for record, seen_ms in history:
        book.apply(record, seen_ms or None)
    return book


def without_refusals(book: Rulebook) -> dict[str, Any]:
    index: dict[str, Any] = json.loads(save(book).index)
    return {name: value for name, value in index.items() if name != "refused"}


@given(HISTORIES, st.data())
def test_records_that_come_again_change_nothing(history: list[tuple[Record, int]], data: st.DataObject) -> None:
    repeated: list[tuple[Record, int]] = []
    for number, (record, seen_ms) in enumerate(history):
        repeated.append((record, seen_ms))
        again = data.draw(st.lists(st.integers(0, number), max_size=3))
        repeated.extend((history[earlier][0], seen_ms) for earlier in again)
    once, often = applied(history), applied(repeated)
    assert [r.version for r in often.deployed()] == [r.version for r in once.deployed()]
    assert without_refusals(often) == without_refusals(once)
    if len({(record.id, record.version, hash_of(record)) for record, _ in history}) == len(
        {(record.id, record.version) for record, _ in history}
    ):  # one version has one meaning; otherwise a repeated refusal may count for the other record of that version
        assert rulebook_bytes(often) == rulebook_bytes(once)
    assert often.fingerprint == once.fingerprint


@given(HISTORIES)
def test_only_what_is_applied_moves_the_epoch(history: list[tuple[Record, int]]) -> None:
    book = new_book()
    last: dict[str, int] = {}
    applied_hashes: dict[tuple[str, int], str] = {}
    for record, seen_ms in history:
        before, fingerprint = book.epoch, book.fingerprint
        outcome = book.apply(record, seen_ms)
        assert book.epoch == before + (outcome.kind == "applied")
        if record.version <= last.get(record.id, 0):
            first = applied_hashes.get((record.id, record.version), hash_of(record))
            assert outcome.kind == ("ignored" if first == hash_of(record) else "refused")
            assert outcome.is_conflict == (outcome.kind == "refused")
        if outcome.kind == "applied":
            applied_hashes[record.id, record.version] = hash_of(record)
            last[record.id] = record.version
        else:
            assert book.fingerprint == fingerprint


@given(HISTORIES)
def test_one_version_of_a_rule_starts_matches_at_a_time(history: list[tuple[Record, int]]) -> None:
    rules = applied(history).deployed()
    for rule in rules:
        assert rule.from_ms < rule.starts_until_ms <= rule.until_ms
        for other in rules:
            if other.rule_id == rule.rule_id and other.version > rule.version:
                assert rule.starts_until_ms <= other.from_ms


@given(HISTORIES)
def test_a_change_never_touches_what_was_seen(history: list[tuple[Record, int]]) -> None:
    book = new_book()
    for record, seen_ms in history:
        before = {(r.rule_id, r.version): r for r in book.deployed()}
        book.apply(record, seen_ms)
        after = {(r.rule_id, r.version): r for r in book.deployed()}
        for key, rule in before.items():
            if rule.from_ms <= seen_ms:  # it has had events: its end may move, but not before them
                assert min(after[key].starts_until_ms, seen_ms + 1) == min(rule.starts_until_ms, seen_ms + 1)
        for key in after.keys() - before.keys():
            assert after[key].from_ms > seen_ms


@given(HISTORIES, st.integers(0, 700_000))
def test_a_restored_rulebook_says_the_same(history: list[tuple[Record, int]], watermark_ms: int) -> None:
    book = applied(history)
    for _ in range(2):
        again = rulebook_from_bytes(rulebook_bytes(book), SCHEMA, (("card_id",),))
        assert again.deployed() == book.deployed()
        assert rulebook_bytes(again) == rulebook_bytes(book)
        assert (again.epoch, again.fingerprint, again.report().refused) == (
            book.epoch,
            book.fingerprint,
            book.report().refused,
        )
        # The next record has the same outcome.
        for version in (1, 7):
            assert again.apply(upsert(version, "a"), 50_000).kind == book.apply(upsert(version, "a"), 50_000).kind
        assert again.forget(watermark_ms) == book.forget(watermark_ms)


@given(HISTORIES, st.integers(0, 700_000), st.integers(0, 700_000))
def test_forgetting_in_steps_is_forgetting_at_once(
    history: list[tuple[Record, int]], first_ms: int, second_ms: int
) -> None:
    stepwise, at_once = applied(history), applied(history)
    stepwise.forget(min(first_ms, second_ms))
    stepwise.forget(max(first_ms, second_ms))
    at_once.forget(max(first_ms, second_ms))
    assert rulebook_bytes(stepwise) == rulebook_bytes(at_once)
