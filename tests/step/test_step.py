"""The contract of the ports (contract.py), over memory, RocksDB and the form of Spark's state; the parts of a step.

Counters equal the library's sums, and each counter that hardly any job moves has a test with its name: a soak test
reads this list. Waiting events are released when the watermark reaches them. A job that accepts only signed changes
accepts only signed heartbeats. Ties out of order are counted exactly. Alerts are marked as the definition marks them,
for any cuts. Matching page by page equals matching the whole.
A job is described, programs are compiled, and rules fit a job's schema.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cep.base.audit import Head, add_line
from cep.base.errors import StateCorruptError, UsageError
from cep.base.limits import EQUAL_LETTERS_MAX, TIME_MS_MAX, TIME_MS_MIN
from cep.base.schema import Kind, Schema
from cep.columnar.batch import NO_VALUE, TEXT, EventBatch, concat_batches, no_order
from cep.columnar.decode import concat_decoded, route
from cep.columnar.order import rows_in_order
from cep.engine.alerts import NO_ALERTS
from cep.engine.keyed_state import KeyedState, concat_states, partition_keys
from cep.histories.store import Histories
from cep.model.rule import HeartbeatRecord
from cep.nfa.compile import problems
from cep.nfa.program import Program
from cep.rulebook.deploy import deploy, schema_of
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.rulebook.suppression import NO_MEASURE, LastAlerts, Policies, fired_from_json, fired_json, mark_name
from cep.rulebook.trust import sign_heartbeat
from cep.runners.spark.group_parts import GroupParts
from cep.runners.spark.group_ports import GroupProgress
from cep.sinks.json_form import json_lines
from cep.sources.pieces import read_pieces
from cep.state.manifest import KEY
from cep.state.memory import MemoryStore
from cep.state.rocks import RocksStore
from cep.step import marks as marks_module
from cep.step.dead_letters import bounded_equals, count_once
from cep.step.history_end import watermark_at_end
from cep.step.job import Job, add_counts, nonzero
from cep.step.level import LastEvent, drop_pages, last_matched, match_pages, out_of_order, split_due
from cep.step.marks import Marks, joined_marks, marks_bytes, marks_from_bytes, remember_marks, with_marks
from cep.step.match import MatchOutput, match_events
from cep.step.rules import Programs, apply_records, head_values, programs_by_level, read_head, sign_status
from cep.step.step import filter_alerts
from cep.step.validate import validate_events
from tests.columnar.common import ONE, TWO, decode, key_hashes, record
from tests.engine.bridge import batch_of, program_of
from tests.engine.rules import batch, program, rule
from tests.oracle.random_cases import SCHEMA, random_case
from tests.rulebook.people import ADA, EVE, RULE_SET, TRUST
from tests.rulebook.records import SCHEMA as BOOK_SCHEMA
from tests.rulebook.records import SOURCE, new_book, retire, upsert
from tests.rulebook.test_suppression import alert, table
from tests.runners.laundering import records, transfers
from tests.step.cases import PlainMap, SparkCase, StoredCase
from tests.step.contract import CHECKS, RULES, Check, read_events


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", ["memory", "rocks", "spark"])
def test_contract(kind: str, check: Check, tmp_path: Path) -> None:
    if kind == "memory":
        check(StoredCase(MemoryStore()))
    elif kind == "rocks":
        with RocksStore(tmp_path / "store") as store:
            check(StoredCase(store))
    else:
        check(SparkCase(GroupParts(cast("Any", PlainMap()))))


COUNTS = st.dictionaries(st.sampled_from("abcd"), st.integers(-3, 3))


@given(COUNTS, COUNTS)
def test_counts_are_added_as_by_update(before: dict[str, int], more: dict[str, int]) -> None:
    counters, expected = Counter(before), Counter(before)
    expected.update(more)
    add_counts(counters, more)
    assert list(counters.items()) == list(expected.items())


@given(COUNTS)
def test_what_says_nothing_is_left_out(counts: dict[str, int]) -> None:
    counters = nonzero(Counter(counts))
    assert dict(counters) == {name: count for name, count in counts.items() if count != 0}


AT_MS = 1_767_225_600_000


def test_suppression_that_is_forgotten_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.rulebook.suppression.FIRED_MAX", 1)
    memory = LastAlerts()
    alerts = table(alert(1, 5_000, key="first"), alert(2, 5_100, key="second"))
    assert filter_alerts(alerts, POLICIES, memory, 4_000).counters["fired_forgotten"] == 1
    assert list(memory.last) == [("a", "second")], "the one that is over first is forgotten"


def test_events_behind_the_cut_of_a_replay() -> None:
    read = read_events(*(f"t{second} c@{AT_MS + second * 1_000} 5" for second in range(5)))
    valid = validate_events(replace(RULES.job, ends_ms=AT_MS + 3_000), read)
    assert valid.counters["events_after_end"] == 2
    assert valid.batches[0].event_id.to_pylist() == ["t0", "t1", "t2"]


def test_origins_beyond_the_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("cep.engine.alerts.ORIGINS_MAX", 1)
    deployment = deploy(records())
    schema = deployment.schema
    pq.write_table(transfers(1, 120), tmp_path / "t.parquet")
    decoded = [piece.decode() for piece in read_pieces(tmp_path / "t.parquet", schema).pieces]
    output = MatchOutput()
    for programs in programs_by_level(deployment.rulebook, schema)[:-1]:
        for domain, chained in programs.items():
            events = route(concat_decoded(schema, decoded), domain, schema.columns())[0]
            match_events(chained, None, events, TIME_MS_MAX, output)
        decoded += output.produced
    assert output.counters["origins_dropped"] > 0


@pytest.mark.parametrize("seed", range(5))
def test_every_event_comes_out_when_its_time_is_passed(seed: int) -> None:
    random = np.random.default_rng(seed)
    events = batch_of(SCHEMA, random_case(seed, 3).events)
    waiting: list[EventBatch] = []
    came: list[str] = []
    times = np.sort(random.choice(events.time_ms, 4))
    for bound_ms, rows in zip(times.tolist(), np.array_split(random.permutation(len(events)), 4), strict=True):
        released, waiting = split_due([*waiting, events.take(rows)], bound_ms)
        assert released is None or (len(released) and released.time_ms.max() < bound_ms)
        assert all(len(batch) and batch.time_ms.min() >= bound_ms for batch in waiting)
        came += [] if released is None else released.event_id.to_pylist()
    released, rest = split_due(waiting, int(events.time_ms.max()) + 1)
    assert rest == []
    assert sorted(came + ([] if released is None else released.event_id.to_pylist())) == sorted(
        events.event_id.to_pylist()
    )


JOB = Job(Schema(()), (("card",),))
NOW_MS = 1_000_000
YEAR_2199_MS = 7_226_582_400_000


@pytest.mark.parametrize(
    ("job", "last_ms", "cut_ms", "expected_ms"),
    [
        (JOB, 900, None, 900),
        (JOB, TIME_MS_MIN, None, TIME_MS_MIN),
        (JOB, NOW_MS + 10, None, NOW_MS),
        (replace(JOB, ahead_ms=None), YEAR_2199_MS, None, YEAR_2199_MS),
        (replace(JOB, ends_ms=950), 900, None, 950),
        (replace(JOB, ends_ms=YEAR_2199_MS), 900, None, NOW_MS),
        (replace(JOB, ends_ms=950), 900, 950, 949),
        (replace(JOB, to_the_end=True), 900, None, TIME_MS_MAX),
    ],
)
def test_where_a_history_ends(job: Job, last_ms: int, cut_ms: int | None, expected_ms: int) -> None:
    assert watermark_at_end(job, last_ms, NOW_MS, cut_ms) == expected_ms


SECRET = "0123456789abcdef"


def test_with_and_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    head, _ = add_line(Head(), {"what": "change"})
    plain = head_values(head)
    assert (plain, read_head(plain, "here")) == (head.to_json(), head)
    monkeypatch.setenv(KEY, SECRET)
    signed = head_values(head)
    assert sign_status({"audit": plain, "epoch": 1}) == {"audit": signed, "epoch": 1}
    assert sign_status({"epoch": 1}) == {"epoch": 1}
    assert read_head(signed, "here") == head
    for wrong in (plain, {**signed, "count": 0}, {**signed, "hash": Head().hash}, {**signed, "signature": 5}):
        with pytest.raises(StateCorruptError, match="the head of the audit in here is not signed"):
            read_head(wrong, "here")
    monkeypatch.setenv(KEY, SECRET[::-1])
    with pytest.raises(StateCorruptError, match="is not signed with"):
        read_head(signed, "here")
    monkeypatch.delenv(KEY)
    assert read_head(signed, "here") == head


@pytest.mark.parametrize("values", [None, [], {}, {"count": "1", "hash": "x"}, {"count": True, "hash": "x"}])
def test_what_is_no_head_is_refused(values: object) -> None:
    with pytest.raises(StateCorruptError, match="cannot be read"):
        read_head(values, "here")


def test_a_heartbeat_counts_if_a_person_has_signed_it() -> None:
    plain = HeartbeatRecord(event_time="2026-03-01T00:00:00Z")
    good = sign_heartbeat(plain, ADA, RULE_SET)
    later = good.model_copy(update={"event_time": "2027-03-01T00:00:00Z"})
    withdrawn = replace(TRUST, signers=(replace(TRUST.signers[0], only=()), *TRUST.signers[1:]))
    narrow = replace(TRUST, signers=(replace(TRUST.signers[0], rules=("card_*",)), *TRUST.signers[1:]))
    cases = [
        (plain, TRUST, "unsigned"), (later, TRUST, "forged"), (good, withdrawn, "not_allowed"),
        (good, narrow, "not_allowed"), (sign_heartbeat(plain, EVE, RULE_SET), TRUST, "unknown_signer"),
        (sign_heartbeat(plain, ADA, "others"), TRUST, "other_rules"),
    ]  # fmt: skip
    for heartbeat, trust, cause in cases:
        book = new_book()
        book.trust = trust
        lines, counters, heartbeat_ms = apply_records(book, (heartbeat.to_json(),), None)
        letters = [orjson.loads(line) for line in lines]
        assert [letter["cause"] for letter in letters] == [cause, cause]
        assert [letters[0]["what"], letters[1]["code"]] == ["heartbeat", "control_refused"]
        assert (counters["control_unverified"], heartbeat_ms) == (1, TIME_MS_MIN)
    for job_trust, heartbeat in ((TRUST, good), (None, plain)):
        book = new_book()
        book.trust = job_trust
        lines, counters, heartbeat_ms = apply_records(book, (heartbeat.to_json(),), None)
        assert (lines, counters["control_heartbeat"], heartbeat_ms) == ([], 1, plain.event_time_ms)


POLICIES = Policies({("a", 1): (None, 1_000)})


def test_9_a_suppressed_alert_is_a_line_and_is_counted() -> None:
    memory = LastAlerts()
    first = filter_alerts(table(alert(1, 5_000)), POLICIES, memory, 5_000)
    assert (first.alerts.num_rows, first.suppressed, first.counters) == (1, (), {})
    second = filter_alerts(table(alert(2, 5_400), alert(3, 6_100)), POLICIES, memory, 6_100)
    assert second.alerts["alert_id"].to_pylist() == ["0003"]
    (line,) = map(orjson.loads, second.suppressed)
    assert (line["held"], line["alert"]["alert_id"]) == ("suppressed", "0002")
    assert second.counters == {"held[suppressed@a]": 1, "alerts[a@1]": -1}


def test_9_an_alert_far_ahead_makes_nobody_forget_what_the_watermark_has_not_passed() -> None:
    """In order of arrival, a fast partition alerts before a slow one has passed the time of the alert before."""
    memory = LastAlerts()
    filter_alerts(table(alert(1, 5_000, key="slow")), POLICIES, memory, 4_000)
    filter_alerts(table(alert(2, 9_000, key="fast")), POLICIES, memory, 4_000)
    later = filter_alerts(table(alert(3, 5_500, key="slow")), POLICIES, memory, 4_000)
    assert later.counters == {"held[suppressed@a]": 1, "alerts[a@1]": -1}
    filter_alerts(table(alert(4, 9_500, key="fast")), POLICIES, memory, 9_000)
    assert list(memory.last) == [("a", "fast")], "what is over at the watermark is forgotten"


def test_9_nothing_is_remembered_or_forgotten_without_alerts() -> None:
    memory = LastAlerts({("a", "k"): (1, 1, 0, NO_MEASURE)})
    assert filter_alerts(NO_ALERTS, POLICIES, memory, 9).counters == {}
    assert memory.last == {("a", "k"): (1, 1, 0, NO_MEASURE)}
    assert memory.changed() == {}
    assert filter_alerts(table(alert(1, 5_000)), Policies(), memory, TIME_MS_MIN).counters == {}


def test_a_late_event_is_counted_once_however_many_keys_it_has() -> None:
    job = Job(TWO, (("card_id",), ("device",)))
    decoded = decode(
        [
            record(event_type="payment"),
            record(event_type="login", login_id="l1", card_id="c1", device="d1"),
            record(event_type="login", login_id="l2", card_id=None, device="d2"),
        ],
        TWO,
    )
    counted = [
        count_once(job, number, route(decoded, domain, TWO.columns())[0]) for number, domain in enumerate(job.domains)
    ]
    assert counted == [2, 1], "the payment and a login by card, the login without a card by device"


def test_equal_letters_are_written_up_to_a_limit_and_counted_beyond_it() -> None:
    """Packed, a million empty records take a kilobyte. Letters that differ are all written."""
    decoded = decode([b"{}"] * 1_000 + [b'{"n": %d}' % n for n in range(1_000)])
    valid = validate_events(Job(ONE, (("card_id",),)), decoded)
    letters = Counter(valid.dead_letters)
    assert max(letters.values()) == EQUAL_LETTERS_MAX
    assert len(letters) == 1 + 1_000
    left_out = valid.counters["letters_left_out"]
    assert len(valid.dead_letters) + left_out == valid.counters["poison[missing_field]"] == 2_000


def test_letters_stay_in_their_order() -> None:
    counters: Counter[str] = Counter()
    letters = [b"%d" % (n % 3) for n in range(3 * EQUAL_LETTERS_MAX + 3)]
    assert list(bounded_equals(letters, counters)) == letters[:-3]
    assert bounded_equals(letters[:-3], counters) == letters[:-3]
    assert counters == {"letters_left_out": 3}


Tied = tuple[int, int]  # microseconds, declared field


def tied_batch(events: list[Tied], time_ms: int, first_id: int = 0) -> EventBatch:
    """A batch whose ids are against the order of its rows."""
    count = len(events)
    ids = pa.array([str(900 - first_id - number) for number in range(count)], TEXT)
    table = no_order(count)
    table[:, :2] = events
    order = table if any(event != (0, NO_VALUE) for event in events) else None
    return EventBatch(ids, ids, np.zeros(count, np.int16), np.full(count, time_ms, np.int64), {}, order)


@pytest.mark.parametrize("seed", range(20))
def test_an_event_counts_if_it_stands_before_one_that_was_matched(seed: int) -> None:
    """An event counts if and only if a replay, which has all events together, moves it before one that came earlier."""
    random = Random(seed)
    events = [(random.choice([0, 0, 3]), random.choice([NO_VALUE, NO_VALUE, 4])) for _ in range(12)]
    last: LastEvent | None = None
    batches: list[EventBatch] = []
    for first in range(0, 12, 3):
        batch = tied_batch(events[first : first + 3], 7, first)
        whole = concat_batches([*batches, batch])
        place = np.argsort(rows_in_order(whole))
        expected = [row for row in range(3) if batches and place[first + row] < place[:first].max()]
        assert expected == ([] if last is None else out_of_order(batch, 7, last).tolist())
        last = last_matched([tied_batch([(999, 0)], 6), batch], 7, last)
        batches.append(batch)
        assert last == max(events[: first + 3])


def test_an_event_of_another_time_is_no_tie() -> None:
    last = last_matched([tied_batch([(5, 0)], 7)], 7, None)
    assert last is not None
    assert not len(out_of_order(tied_batch([(0, 0)], 8), 7, last))
    assert last_matched([tied_batch([(5, 0)], 7)], 8, None) is None


def test_a_checkpoint_keeps_the_last_event_and_an_earlier_one_has_none() -> None:
    last = LastEvent(5, NO_VALUE)
    assert GroupProgress.from_bytes(GroupProgress(last_event=last).to_bytes()).last_event == last
    assert GroupProgress.from_bytes(b'["",0,{},{},null,{},{},0,{},5]').heartbeat_ms == 5
    assert GroupProgress.from_bytes(b'["",0,{},{},null,{},{},0,{},5]').last_event is None


def test_the_last_event_of_an_earlier_build_is_read() -> None:
    earlier = b'["",0,{},{},null,{},{},0,{},5,["an id",7,-3,512]]'
    assert GroupProgress.from_bytes(earlier).last_event == LastEvent(7, -3)


SPAN_MS = 10
KEYS = {("a", 1): "card_id", ("b", 1): "account_id"}
MARK_POLICIES = Policies(keys=KEYS)
TIMES = st.lists(st.tuples(st.sampled_from(("card_id", "account_id")), st.sampled_from("cd"), st.integers(0, 60)))
ALERTS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("cd"), st.integers(0, 60)), min_size=1)


def marks_at(events: Iterable[tuple[str, str, int]]) -> Marks:
    """The marks of events, each with the field and the value of its key, and its time."""
    return joined_marks({(mark_name(fields), key): [time_ms]} for fields, key, time_ms in events)


def flawed_ids(alerts: pa.Table) -> set[str]:
    return {row["alert_id"] for row in alerts.to_pylist() if row["flawed"]}


@given(TIMES, ALERTS, st.lists(st.integers(0, 70), max_size=5), st.booleans())
def test_a_job_marks_what_the_definition_marks(
    events: list[tuple[str, str, int]], fired: list[tuple[str, str, int]], cuts: list[int], is_moved: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(marks_module, "MARK_MS", SPAN_MS)
        rows = [alert(n, time_ms, rule_id=rule, key=key) for n, (rule, key, time_ms) in enumerate(fired)]
        expected = {
            f"{n:04}" for n, (rule, key, time_ms) in enumerate(fired)
            if any((f, k) == (KEYS[rule, 1], key) and t <= time_ms < t + SPAN_MS for f, k, t in events)
        }  # fmt: skip
        assert flawed_ids(with_marks(table(*rows), KEYS, marks_at(events))) == expected
        memory, flawed = LastAlerts(), set[str]()
        bounds = sorted({-1, *cuts, 100})
        for first, last in pairwise(bounds):
            here = [row for row in rows if first < row["detected_at"] <= last]
            marks = marks_at(event for event in events if first < event[2] <= last)
            marks = marks_from_bytes(marks_bytes(marks))
            flawed |= flawed_ids(filter_alerts(table(*here), MARK_POLICIES, memory, last, marks).alerts)
            if is_moved:
                memory = LastAlerts(fired_from_json(fired_json(memory.last)))
        assert flawed == expected
        memory.forget(100)
        assert (memory.last, memory.marks_count) == ({}, 0)


def test_a_noisy_producer_takes_no_room_of_rules_that_suppress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks_module, "MARKS_MAX", 3)
    memory = LastAlerts()
    noise = marks_at(("card_id", f"c{number}", 5) for number in range(5))
    sent = filter_alerts(table(), MARK_POLICIES, memory, 5, noise)
    assert sent.counters == {"fired_forgotten": 2}
    assert (memory.marks_count, len(memory.last)) == (3, 3)
    assert remember_marks(memory, marks_at([("card_id", "c0", 9)])) == 0, "a key that is known keeps its mark"


class PlainHistories:
    """Histories in a dict, each with the time at which its last window ends."""

    def __init__(self, slots: Callable[[pa.Array], NDArray[np.int64]]) -> None:
        self.slots = slots
        self.held: dict[int, tuple[Histories, int]] = {}

    def expired(self, watermark_ms: int) -> list[int]:
        return [slot for slot, (_, expiry_ms) in self.held.items() if expiry_ms <= watermark_ms]

    def read(self, slot: int) -> Histories:
        return self.held[slot][0] if slot in self.held else Histories()

    def write(self, slot: int, histories: Histories, expiry_ms: int) -> None:
        self.held[slot] = (histories, expiry_ms)

    def remove(self, slot: int) -> None:
        self.held.pop(slot, None)


class PlainPages:
    """Pages in a dict, each with its deadline."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.histories = PlainHistories(self.slots)
        self.held: dict[int, tuple[KeyedState, int]] = {}

    def slots(self, keys: pa.Array) -> NDArray[np.int64]:
        return (key_hashes(keys) % np.uint64(self.count)).astype(np.int64)

    def touched(self, keys: pa.Array, watermark_ms: int) -> NDArray[np.int64]:
        expired_slots = {slot for slot, (_, deadline_ms) in self.held.items() if deadline_ms <= watermark_ms}
        return np.array(sorted({*self.slots(keys).tolist(), *expired_slots}), np.int64)

    def take(self, slots: NDArray[np.int64], program: Program) -> tuple[KeyedState | None, Counter[str]]:
        states = [self.held[slot][0] for slot in slots.tolist() if slot in self.held]
        return concat_states(states, program.row_registers) if states else None, Counter()

    def put(self, slots: NDArray[np.int64], after: KeyedState, program: Program) -> None:
        part = np.searchsorted(slots, self.slots(after.keys))
        shares = partition_keys(after, part, len(slots), program.row_registers)
        for slot, share in zip(slots.tolist(), shares, strict=True):
            self.held.pop(slot, None)
            if share.expiry_min is not None:
                self.held[slot] = (share, share.expiry_min)

    def drop(self) -> int:
        runs_count = sum(len(page) for page, _ in self.held.values())
        self.held.clear()
        return runs_count


@pytest.mark.parametrize("seed", range(12))
def test_page_by_page_is_the_whole(seed: int) -> None:
    patterns = [random_case(seed * 7 + i, 1 + i % 3).pattern for i in range(4)]
    chosen = [pattern for pattern in patterns if not problems(pattern, SCHEMA)]
    if not chosen:
        return
    program = program_of(SCHEMA, *chosen)
    events = batch_of(SCHEMA, random_case(seed, 3).events)
    order = np.argsort(events.time_ms, kind="stable")
    whole: KeyedState | None = None
    one, many = MatchOutput(), MatchOutput()
    pages = PlainPages(1 + seed % 4)
    for part in np.array_split(order, 3):
        batch: EventBatch = events.take(part)
        watermark_ms = int(batch.time_ms.max())
        whole = match_events(program, whole, batch, watermark_ms, one)
        match_pages(pages, program, batch, watermark_ms, many)
        assert many.counters["runs"] == len(whole)
        assert all(page for page, _ in pages.held.values()), "an empty page is kept"
    assert sorted(json_lines(many.alert_table())) == sorted(json_lines(one.alert_table()))
    drop_pages(pages, many)
    assert not pages.held
    assert whole is not None
    assert (many.counters["runs"], many.counters["runs_orphaned"]) == (0, len(whole))


END_MS = 2**61 - 1
DOMAIN = ("card_id",)
PAIR = "seq a -> b within 10 ms\nwhere a: e kind == a\n b: e kind == b\n"


@pytest.mark.parametrize("groups_count", [0, 32_769])
def test_a_job_has_a_sensible_number_of_key_groups(groups_count: int) -> None:
    with pytest.raises(UsageError, match="key groups are 1 to 32768"):
        Job(BOOK_SCHEMA, (DOMAIN,), groups_count)


def test_a_job_routes_events_by_something() -> None:
    with pytest.raises(UsageError, match="no key to route events by"):
        Job(BOOK_SCHEMA, ())


def test_a_rulebook_is_compiled_once() -> None:
    programs, book = Programs(), new_book()
    book.apply(upsert(1), None)
    first = programs.of(book, BOOK_SCHEMA)
    again = programs.of(rulebook_from_bytes(rulebook_bytes(book), BOOK_SCHEMA, (DOMAIN,)), BOOK_SCHEMA)
    assert again is first
    book.apply(upsert(2), None)
    assert programs.of(book, BOOK_SCHEMA) is not first


def test_programs_are_kept_within_a_bound() -> None:
    programs, book = Programs(), new_book()
    for version in range(1, 80):
        book.apply(upsert(version, f"r{version}"), None)
        programs.of(book, BOOK_SCHEMA)
    assert len(programs._programs) == 64


def test_a_step_counts_alerts_by_rule_and_version() -> None:
    compiled, output = program(rule(PAIR, "r1"), rule(PAIR, "r2", version=3)), MatchOutput()
    state = match_events(compiled, None, batch("x a@1", "y a@1", "x b@2"), 2, output)
    match_events(compiled, state, batch("y b@3", "z b@3"), END_MS, output)
    assert (output.counters["alerts[r1@1]"], output.counters["alerts[r2@3]"]) == (2, 2)
    assert output.alert_table().num_rows == 4
    assert output.counters["runs_started"] == 4


def test_nothing_found_is_an_empty_table() -> None:
    assert MatchOutput().alert_table().num_rows == 0


# ------------------------------------------------------------------------------------------------- deployment


def test_rules_bring_their_schema_and_their_keys() -> None:
    deployment = deploy([upsert(1, "r1"), upsert(1, "r2"), retire(2, "r2")])
    assert deployment.schema == BOOK_SCHEMA
    assert deployment.key_domains == (DOMAIN,)
    assert deployment.set_aside == ()


def test_a_rule_that_does_not_compile_is_set_aside_and_the_others_run() -> None:
    broken = upsert(1, "broken", source=SOURCE.replace("amount > large", "amont > large"))
    deployment = deploy([broken, upsert(1, "good")])
    assert [r.rule_id for r in deployment.rulebook.deployed()] == ["good"]
    (aside,) = deployment.set_aside
    assert (aside.rule_id, aside.version, aside.source) == ("broken", 1, broken.source)
    assert [d.code for d in aside.diagnostics] == ["CEP201"]


def test_event_types_are_joined_where_they_agree() -> None:
    wider = SOURCE.replace("amount      decimal(2)", "amount      decimal(2)\n  country     string?")
    other = SOURCE.replace("payment", "refund").replace("tx_id ", "ref_id")
    schema = schema_of([upsert(1, "r1"), upsert(1, "r2", source=wider), upsert(1, "r3", source=other)])
    assert [e.name for e in schema.event_types] == ["payment", "refund"]
    payment, refund = schema.event_types
    assert [f.name for f in payment.fields] == ["tx_id", "event_time", "card_id", "amount", "country"]
    assert refund.id_field == "ref_id"


def test_of_two_types_for_a_field_the_first_is_right() -> None:
    finer = SOURCE.replace("decimal(2)", "decimal(3)")
    deployment = deploy([upsert(1, "r1"), upsert(1, "r2", source=finer)])
    field = deployment.schema.event_types[0].field("amount")
    assert field is not None
    assert (field.type.kind, field.type.scale) == (Kind.DECIMAL, 2)
    (aside,) = deployment.set_aside
    assert "`payment.amount` is decimal(3) in the rule and decimal(2) in the job" in aside.reason


def test_an_event_type_has_one_id() -> None:
    renamed = SOURCE.replace("tx_id ", "number")
    deployment = deploy([upsert(1, "r1"), upsert(1, "r2", source=renamed)])
    assert deployment.schema.event_types[0].id_field == "tx_id"
    assert [aside.rule_id for aside in deployment.set_aside] == ["r2"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("groups_count",), "4"),
        (("pages_count",), None),
        (("ahead_ms",), "soon"),
        (("key_domains", 0, 0), 1.5),
        (("event_types", 0, "name"), []),
        (("event_types", 0, "retain_ms"), {}),
        (("event_types", 0, "fields", 0, "name"), 7),
        (("event_types", 0, "fields", 0, "scale"), [0]),
        (("event_types", 0, "fields", 0, "nullable"), {}),
        (("event_types", 0, "fields", 0, "symbols"), [[]]),
    ],
)
def test_a_value_of_another_type_is_no_description_of_a_job(path: tuple[str | int, ...], value: Any) -> None:
    data: Any = json.loads(json.dumps(Job(BOOK_SCHEMA, (DOMAIN,)).to_json()))
    assert Job.from_json(data) == Job(BOOK_SCHEMA, (DOMAIN,))
    *outer, last = path
    node = data
    for step in outer:
        node = node[step]
    node[last] = value
    with pytest.raises(TypeError, match=" is "):
        Job.from_json(data)


@pytest.mark.parametrize("count", [0, -1])
def test_a_job_without_pages_is_refused(count: int) -> None:
    """A folder may say so; the kernels that put keys into pages would divide by it."""
    data = {**Job(BOOK_SCHEMA, (DOMAIN,)).to_json(), "pages_count": count}
    with pytest.raises(UsageError, match="a page or more"):
        Job.from_json(data)
