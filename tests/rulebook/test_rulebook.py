"""Versions, intervals, pauses, snoozes and refusals of a rulebook; its properties, and its files."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import SinkError, StateCorruptError, StateFormatError
from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN, VERSIONS_PER_RULE_MAX
from cep.base.text import utc_text
from cep.model.rule import HeartbeatRecord, PauseRecord, ResumeRecord, RetireRecord, SnoozeRecord, UpsertRecord
from cep.rulebook import ledger as ledger_module
from cep.rulebook import rulebook as rulebook_module
from cep.rulebook.files import read_rules
from cep.rulebook.ledger import hash_of
from cep.rulebook.meaning import content_hash
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import RulebookStore, rulebook_bytes, rulebook_from_bytes, save
from cep.rulebook.versions import Snoozes
from cep.step.rules import apply_records
from tests.rule_files import rule_text
from tests.rulebook.records import SCHEMA, SOURCE, WITHIN_MS, new_book, restarted, retire, upsert

# Versions, intervals, refusals: one record at a time.

Interval = tuple[int, int, int, int]
Record = UpsertRecord | RetireRecord


def intervals(book: Rulebook) -> list[Interval]:
    return [(r.version, r.from_ms, r.starts_until_ms, r.until_ms) for r in book.deployed()]


def test_the_first_version_holds_since_ever() -> None:
    book = new_book()
    assert book.apply(upsert(1), None).kind == "applied"
    assert intervals(book) == [(1, TIME_MS_MIN, TIME_MS_MAX, TIME_MS_MAX)]
    (rule,) = book.deployed()
    assert (rule.rule_id, rule.epoch, rule.content_hash) == ("r", 1, content_hash(upsert(1)))


def test_a_successor_drains_the_version_before() -> None:
    book = new_book(upsert(1), upsert(2, effective_ms=1_000))
    assert intervals(book) == [(1, TIME_MS_MIN, 1_000, TIME_MS_MAX), (2, 1_000, TIME_MS_MAX, TIME_MS_MAX)]
    assert book.epoch == 2


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        pytest.param(
            [upsert(1), upsert(2, effective_ms=1_000, on_update="restart")],
            [(1, TIME_MS_MIN, 1_000, 1_000), (2, 1_000, TIME_MS_MAX, TIME_MS_MAX)],
            id="a restart drops what the version before had begun",
        ),
        pytest.param(
            [upsert(1), retire(2, effective_ms=1_000)], [(1, TIME_MS_MIN, 1_000, 1_000)], id="a retirement ends both"
        ),
        pytest.param(
            [upsert(1), upsert(2, effective_ms=1_000, status="retired")],
            [(1, TIME_MS_MIN, 1_000, 1_000)],
            id="a retired version ends both",
        ),
        pytest.param(
            [upsert(1), upsert(2, effective_ms=2_000), upsert(3, effective_ms=1_000)],
            [(1, TIME_MS_MIN, 1_000, TIME_MS_MAX), (3, 1_000, TIME_MS_MAX, TIME_MS_MAX)],
            id="a successor that starts first takes the whole turn",
        ),
    ],
)
def test_changes_cut_the_intervals_before_them(records: list[Record], expected: list[Interval]) -> None:
    book = new_book()
    assert {book.apply(record, None).kind for record in records} == {"applied"}
    assert intervals(book) == expected


def test_a_draft_is_checked_and_not_deployed() -> None:
    book = new_book()
    assert book.apply(upsert(1, status="draft"), None).kind == "applied"
    assert book.deployed() == ()
    assert book.apply(upsert(2, status="draft", params={"nothing": 1}), None).kind == "refused"


def test_a_shadow_version_is_deployed_and_marked() -> None:
    book = new_book(upsert(1, status="shadow"))
    assert [rule.status for rule in book.deployed()] == ["shadow"]


def test_a_retired_rule_stays_away_until_a_higher_version_comes() -> None:
    book = new_book(upsert(1), retire(2, effective_ms=0))
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
    book = new_book(upsert(2))
    before = rulebook_bytes(book)
    outcome = book.apply(upsert(version, owner="another", severity="high" if version < 2 else "low"), None)
    assert (outcome.kind, outcome.reason) == ("ignored", f"version {version} is not newer than 2")
    assert rulebook_bytes(book) == before
    assert book.report().ignored_count == 1


def test_a_change_that_comes_too_late_starts_at_once_and_counts() -> None:
    book = new_book(upsert(1))
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


def test_rules_come_in_the_order_of_their_alerts() -> None:
    book = new_book(upsert(1, "b"), upsert(1, "a"), upsert(1, "z", priority=1), upsert(2, "a", effective_ms=9))
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
    book = new_book(upsert(1))
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
    book = new_book(upsert(1), upsert(2, effective_ms=1_000))
    assert book.forget(1_000 + WITHIN_MS - 1) == 0
    assert book.forget(1_000 + WITHIN_MS) == 1
    assert [rule.version for rule in book.deployed()] == [2]
    assert book.epoch == 2


def test_a_restarted_version_is_forgotten_at_the_change() -> None:
    book = new_book(upsert(1), upsert(2, effective_ms=1_000, on_update="restart"))
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
    book = new_book(upsert(1))
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


# Properties of any sequence of control records.

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
        again = restarted(book)
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


# Common failures of rules in production, each with its outcome.

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
        (tmp_path / f"{name}.toml").write_text(rule_text(name, file, pattern="large_after_small"))
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


# Pauses cut the interval of the version in force.


def pause(version: int, effective_ms: int | None = None) -> PauseRecord:
    return PauseRecord(id="r", version=version, effective_at=None if effective_ms is None else utc_text(effective_ms))


def resume(version: int, effective_ms: int | None = None) -> ResumeRecord:
    return ResumeRecord(id="r", version=version, effective_at=None if effective_ms is None else utc_text(effective_ms))


def test_the_part_after_a_pause_is_another_automaton() -> None:
    book = new_book(upsert(1), pause(1, 1_000))
    assert intervals(book) == [(1, TIME_MS_MIN, 1_000, 1_000)]
    assert book.report().paused == ("r",)
    book.apply(resume(2, 2_000), None)
    assert intervals(book) == [(1, TIME_MS_MIN, 1_000, 1_000), (1, 2_000, TIME_MS_MAX, TIME_MS_MAX)]
    assert book.report().paused == ()
    before, after = book.deployed()
    assert before.identity != after.identity
    assert before.content_hash == after.content_hash


def test_a_version_that_comes_in_a_pause_waits_for_its_end() -> None:
    book = new_book(upsert(1), pause(1, 1_000), upsert(2, effective_ms=1_500), resume(2, 2_000))
    assert intervals(book) == [(1, TIME_MS_MIN, 1_000, 1_000), (2, 2_000, TIME_MS_MAX, TIME_MS_MAX)]


def test_a_pause_may_come_before_its_rule() -> None:
    book = new_book(pause(1), upsert(1))
    assert intervals(book) == [(1, TIME_MS_MIN, TIME_MS_MIN, TIME_MS_MIN)], "it matches nothing, and its past is stored"
    assert book.report().rules == ()
    book.apply(resume(2), 5_000)
    assert intervals(book) == [(1, 5_001, TIME_MS_MAX, TIME_MS_MAX)]


def test_a_pause_that_is_over_is_forgotten_and_the_part_after_it_stays_the_same() -> None:
    book = new_book(upsert(1), pause(1, 1_000), resume(2, 2_000))
    after = book.deployed()[1]
    assert book.forget_ms == 2_000
    book.forget(2_000)
    assert book.deployed() == (after,)
    assert book.apply(resume(2, 3_000), 2_500).kind == "ignored"


def test_turning_off_twice_is_one_pause() -> None:
    book = new_book(upsert(1))
    for version, time_ms in ((1, 1_000), (2, 1_500)):
        book.apply(pause(version, time_ms), None)
    book.apply(resume(3, 2_000), None)
    assert [rule[1:3] for rule in intervals(book)] == [(TIME_MS_MIN, 1_000), (2_000, TIME_MS_MAX)]


# Snoozes: the time in which alerts are suppressed, and which snooze wins.


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
    book = new_book(snooze(2, 10_000, "card 1"), snooze(1, 20_000))
    assert book.apply(snooze(1, 90_000, "card 1"), None).kind == "ignored"
    assert [s[0::2] for s in spans(book.snoozes)] == [(None, 20_000), ("card 1", 10_000)]


def test_what_is_over_is_forgotten_and_its_version_is_not() -> None:
    book = new_book(snooze(3, 10_000))
    assert book.forget_ms == 10_000
    book.forget(10_000)
    assert spans(book.snoozes) == []
    for later in (book, rulebook_from_bytes(rulebook_bytes(book), SCHEMA, None)):
        assert later.apply(snooze(3, 10_000), 10_000).kind == "ignored"
        assert later.apply(snooze(3, 90_000), 10_000).is_conflict
        assert later.snoozes.report() == ()


# Rulebooks as files: shared parts are stored once, and damage is detected.


def test_rulebooks_that_differ_in_one_rule_share_the_others(tmp_path: Path) -> None:
    store, book = RulebookStore(tmp_path), new_book()
    for name in ("a", "b", "c"):
        book.apply(upsert(1, name), None)
    first = store.put(save(book))
    book.apply(upsert(2, "c", params={"large": 9}, on_update="restart"), None)
    second = store.put(save(book))
    assert first != second
    assert len(list((tmp_path / "record").iterdir())) == 4
    assert rulebook_bytes(store.get(second, SCHEMA, None)) == rulebook_bytes(book)
    assert [rule.version for rule in store.get(first, SCHEMA, None).deployed()] == [1, 1, 1]


def test_what_is_missing_or_damaged_is_told(tmp_path: Path) -> None:
    store, book = RulebookStore(tmp_path), new_book()
    book.apply(upsert(1), None)
    digest = store.put(save(book))
    (record,) = (tmp_path / "record").iterdir()
    record.write_bytes(record.read_bytes() + b" ")
    with pytest.raises(StateCorruptError, match="other bytes than its name says"):
        store.get(digest, SCHEMA, None)
    record.unlink()
    with pytest.raises(StateCorruptError, match="cannot be read"):
        store.get(digest, SCHEMA, None)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match="cannot be written"):
        RulebookStore(tmp_path / "file").put(save(new_book()))
