"""Versions, intervals, refusals: one record at a time."""

from __future__ import annotations

import pytest

from cep.base.errors import StateCorruptError, StateFormatError
from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN, VERSIONS_PER_RULE_MAX
from cep.model.rule import HeartbeatRecord
from cep.rulebook import ledger as ledger_module
from cep.rulebook import rulebook as rulebook_module
from cep.rulebook.meaning import content_hash
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from tests.rulebook.records import SCHEMA, WITHIN_MS, new_book, retire, upsert

Interval = tuple[int, int, int, int]


def intervals(book: Rulebook) -> list[Interval]:
    return [(r.version, r.from_ms, r.starts_until_ms, r.until_ms) for r in book.deployed()]


def test_the_first_version_holds_since_ever() -> None:
    book = new_book()
    assert book.apply(upsert(1), None).kind == "applied"
    assert intervals(book) == [(1, TIME_MS_MIN, TIME_MS_MAX, TIME_MS_MAX)]
    (rule,) = book.deployed()
    assert (rule.rule_id, rule.epoch, rule.content_hash) == ("r", 1, content_hash(upsert(1)))


def test_a_successor_drains_the_version_before() -> None:
    book = new_book()
    book.apply(upsert(1), None)
    book.apply(upsert(2, effective_ms=1_000), None)
    assert intervals(book) == [(1, TIME_MS_MIN, 1_000, TIME_MS_MAX), (2, 1_000, TIME_MS_MAX, TIME_MS_MAX)]
    assert book.epoch == 2


def test_a_restart_drops_what_the_version_before_had_begun() -> None:
    book = new_book()
    book.apply(upsert(1), None)
    book.apply(upsert(2, effective_ms=1_000, on_update="restart"), None)
    assert intervals(book)[0] == (1, TIME_MS_MIN, 1_000, 1_000)


@pytest.mark.parametrize("record", [retire(2, effective_ms=1_000), upsert(2, effective_ms=1_000, status="retired")])
def test_retiring_ends_both(record: object) -> None:
    book = new_book()
    book.apply(upsert(1), None)
    assert book.apply(record, None).kind == "applied"  # type: ignore[arg-type]
    assert intervals(book) == [(1, TIME_MS_MIN, 1_000, 1_000)]


def test_a_draft_is_checked_and_not_deployed() -> None:
    book = new_book()
    assert book.apply(upsert(1, status="draft"), None).kind == "applied"
    assert book.deployed() == ()
    assert book.apply(upsert(2, status="draft", params={"nothing": 1}), None).kind == "refused"


def test_a_shadow_version_is_deployed_and_marked() -> None:
    book = new_book()
    book.apply(upsert(1, status="shadow"), None)
    assert [rule.status for rule in book.deployed()] == ["shadow"]


def test_a_retired_rule_stays_away_until_a_higher_version_comes() -> None:
    book = new_book()
    for record in (upsert(1), retire(2, effective_ms=0)):
        book.apply(record, None)
    book.forget(0)
    assert book.apply(upsert(1), None).kind == "ignored"
    assert book.apply(upsert(2), None).is_conflict, "version 2 is the retirement"
    assert book.deployed() == ()
    assert book.apply(upsert(3), None).kind == "applied"


def test_a_retire_may_come_before_the_upsert_it_overtook() -> None:
    book = new_book()
    assert book.apply(retire(2), None).kind == "applied"
    assert book.apply(upsert(1), None).kind == "ignored"
    assert book.deployed() == ()


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_or_equal_version_is_ignored_and_counted(version: int) -> None:
    book = new_book()
    book.apply(upsert(2), None)
    before = rulebook_bytes(book)
    outcome = book.apply(upsert(version, owner="another", severity="high" if version < 2 else "low"), None)
    assert (outcome.kind, outcome.reason) == ("ignored", f"version {version} is not newer than 2")
    assert rulebook_bytes(book) == before
    assert book.report().ignored_count == 1


def test_a_change_that_comes_too_late_starts_at_once_and_counts() -> None:
    book = new_book()
    book.apply(upsert(1), None)
    outcome = book.apply(upsert(2, effective_ms=1_000), 5_000)
    assert (outcome.kind, outcome.late_ms) == ("applied", 4_001)
    assert intervals(book)[1][1] == 5_001
    assert book.report().rule_late_ms == 4_001


def test_a_change_in_time_is_not_late() -> None:
    book = new_book()
    assert book.apply(upsert(1, effective_ms=5_001), 5_000).late_ms == 0
    assert intervals(book)[0][1] == 5_001


def test_a_change_without_a_time_starts_right_after_what_was_seen() -> None:
    book = new_book()
    assert book.apply(upsert(1), 5_000).late_ms == 0
    assert intervals(book)[0][1] == 5_001


def test_a_successor_that_starts_first_takes_the_whole_turn() -> None:
    book = new_book()
    book.apply(upsert(1), None)
    book.apply(upsert(2, effective_ms=2_000), None)
    book.apply(upsert(3, effective_ms=1_000), None)
    assert [(v, a, b) for v, a, b, _ in intervals(book)] == [(1, TIME_MS_MIN, 1_000), (3, 1_000, TIME_MS_MAX)]


def test_rules_come_in_the_order_of_their_alerts() -> None:
    book = new_book()
    for record in (upsert(1, "b"), upsert(1, "a"), upsert(1, "z", priority=1), upsert(2, "a", effective_ms=9)):
        book.apply(record, None)
    assert [(r.rule_id, r.version) for r in book.deployed()] == [("z", 1), ("a", 1), ("a", 2), ("b", 1)]


def test_rules_are_grouped_by_their_key() -> None:
    source = upsert(1).source.replace("by card_id", "by (card_id, tx_id)")
    book = Rulebook(SCHEMA, None)
    book.apply(upsert(1, "pair", source=source), None)
    book.apply(upsert(1, "b"), None)
    book.apply(upsert(1, "a"), None)
    assert [(key, [r.rule_id for r in rules]) for key, rules in book.domains().items()] == [
        (("card_id",), ["a", "b"]),
        (("card_id", "tx_id"), ["pair"]),
    ]


def test_what_is_refused_leaves_what_was_in_force() -> None:
    book = new_book()
    book.apply(upsert(1), None)
    before = book.fingerprint
    outcome = book.apply(upsert(2, source="pattern {"), None)
    assert outcome.kind == "refused"
    assert outcome.diagnostics
    assert (book.fingerprint, book.epoch) == (before, 1)
    (refusal,) = book.report().refused
    assert (refusal.rule_id, refusal.version) == ("r", 2)
    assert outcome.diagnostics[0].message in refusal.reason
    assert book.apply(upsert(2), None).kind == "applied"  # the same version, corrected
    assert book.report().refused == ()
    assert (book.report().applied_count, book.report().refused_count) == (2, 1)


def test_a_heartbeat_is_no_change() -> None:
    book = new_book()
    outcome = book.apply(HeartbeatRecord(event_time="2026-01-01T00:00:00Z"), None)
    assert (outcome.kind, book.epoch, book.report().ignored_count) == ("ignored", 0, 0)


def test_a_drained_version_is_forgotten_when_its_last_run_is_gone() -> None:
    book = new_book()
    book.apply(upsert(1), None)
    book.apply(upsert(2, effective_ms=1_000), None)
    assert book.forget(1_000 + WITHIN_MS - 1) == 0
    assert book.forget(1_000 + WITHIN_MS) == 1
    assert [rule.version for rule in book.deployed()] == [2]
    assert book.epoch == 2


def test_a_restarted_version_is_forgotten_at_the_change() -> None:
    book = new_book()
    book.apply(upsert(1), None)
    book.apply(upsert(2, effective_ms=1_000, on_update="restart"), None)
    assert (book.forget(999), book.forget(1_000)) == (0, 1)


def test_a_version_without_a_window_drains_for_ever() -> None:
    source = upsert(1).source.replace("small -> large_one  within window", "small, large_one")
    book = new_book()
    assert book.apply(upsert(1, source=source), None).kind == "applied"
    book.apply(upsert(2, effective_ms=1_000), None)
    assert book.forget(TIME_MS_MAX - 1) == 0


def test_too_many_draining_versions_are_refused() -> None:
    book = new_book()
    for version in range(1, VERSIONS_PER_RULE_MAX + 1):
        assert book.apply(upsert(version, effective_ms=10 + version), 5).kind == "applied"
    outcome = book.apply(upsert(VERSIONS_PER_RULE_MAX + 1, effective_ms=10_000), 5)
    assert outcome.kind == "refused"
    assert str(VERSIONS_PER_RULE_MAX) in outcome.reason
    assert book.apply(retire(VERSIONS_PER_RULE_MAX + 1), 5).kind == "applied"


def test_before_the_first_event_a_history_may_have_more(monkeypatch: pytest.MonkeyPatch) -> None:
    book, most = new_book(), VERSIONS_PER_RULE_MAX + 6
    monkeypatch.setattr(rulebook_module, "CHANGES_BEFORE_EVENTS_MAX", most)
    kinds = [book.apply(upsert(v, effective_ms=v), None).kind for v in range(1, most + 2)]
    assert kinds == ["applied"] * most + ["refused"]


def test_too_many_rules_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (rulebook_module, ledger_module):
        monkeypatch.setattr(module, "RULES_MAX", 2)
    book = new_book()
    kinds = [book.apply(upsert(1, rule_id), None).kind for rule_id in ("a", "b", "c")]
    assert kinds == ["applied", "applied", "refused"]
    assert book.apply(upsert(2, "b"), None).kind == "applied"
    for rule_id in ("d", "e", "f"):
        book.apply(upsert(1, rule_id), None)
    assert [refusal.rule_id for refusal in book.report().refused] == ["e", "f"]  # the report is bounded as well


def test_what_a_restored_job_cannot_run_is_set_aside() -> None:
    book = new_book()
    book.apply(upsert(1), None)
    other = rulebook_from_bytes(rulebook_bytes(book), SCHEMA, (("account_id",),))
    assert other.deployed() == ()
    assert "does not route" in other.report().refused[0].reason
    assert other.epoch == 1


def test_bytes_of_another_format_are_refused_by_name() -> None:
    data = rulebook_bytes(new_book()).replace(b'format\\":3', b'format\\":99')
    with pytest.raises(StateFormatError, match="format 99, this build reads 3"):
        rulebook_from_bytes(data, SCHEMA, None)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"format":1}', b"\xff\xfe"])
def test_bytes_that_are_no_rulebook_are_corrupt(data: bytes) -> None:
    with pytest.raises(StateCorruptError, match="not a saved rulebook"):
        rulebook_from_bytes(data, SCHEMA, None)
