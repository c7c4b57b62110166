"""The stored parts of a share equal plain collections: pages, seen ids, waiting events, last alerts.

A commit writes the changes, and a start reads all of them.
"""

import struct
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import StateCorruptError, StateFormatError
from cep.base.limits import TIME_MS_MIN
from cep.base.text import utc_text
from cep.columnar.batch import TEXT, EventBatch, data_columns, empty_batch
from cep.columnar.decode import key_groups
from cep.engine.keyed_state import KeyedState, partition_keys
from cep.kernels.groups import NEW, OTHER, SAME
from cep.nfa.program import Program
from cep.rulebook.suppression import NO_MEASURE, UNKNOWN_SEVERITY, Policies, fired_from_json, suppress_alerts
from cep.runners.embedded import pages as pages_module
from cep.runners.embedded import waiting as waiting_module
from cep.runners.embedded.engine import FIRED, Engine, StoredLastAlerts, Workers
from cep.runners.embedded.pages import Shapes, stored_states
from cep.runners.embedded.seen import ADDED_SEEN, SeenOfLevel
from cep.runners.embedded.shares import PageSettings, Share
from cep.runners.embedded.waiting import ADDED_WAITING, WaitingOfShare
from cep.runners.handover.group_entries import EARLIER_SEEN, NEVER
from cep.sinks.json_form import json_lines
from cep.state.memory import MemoryStore
from cep.state.past import encode_page
from cep.state.store import STORE_GROUP, WriteBatch, group_range, prefix_range, split_key, store_key
from cep.step import duplicates
from cep.step.job import Job
from cep.step.match import MatchOutput, match_events
from cep.step.rules import programs_by_level
from cep.step.validate import validate_events
from tests.columnar.common import ONE
from tests.engine.selected import select_keys
from tests.rulebook.test_suppression import alert, table
from tests.runners.embedded.cases import cut, day, decoded, deployment, expected, latest_ms, morning, suppressing
from tests.runners.test_later_rules import written
from tests.seeds import seeds

GIVEN = deployment()
JOB = Job(GIVEN.schema, GIVEN.key_domains, 4)


@pytest.fixture(scope="module")
def whole() -> tuple[Program, KeyedState]:
    """Return the keyed state of one key domain after a morning of payments."""
    (programs,) = programs_by_level(GIVEN.rulebook, JOB.schema)
    domain, program = max(programs.items(), key=lambda item: len(item[1].rules))
    batch = validate_events(JOB, decoded(JOB, morning())[0]).batches[JOB.domains.index(domain)]
    return program, match_events(program, None, batch, TIME_MS_MIN, MatchOutput())


def open_share(store: MemoryStore, bytes_max: int | None) -> Share:
    return Share(JOB, range(JOB.groups_count), store, Shapes(store), PageSettings(16, bytes_max), 0, SeenOfLevel([], 1))


@pytest.mark.parametrize("open_min", [1, 6, 100])
@pytest.mark.parametrize("seed", seeds(4))
def test_pages_are_a_dictionary_whatever_fits_in_memory_and_stays_open(
    whole: tuple[Program, KeyedState], seed: int, open_min: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_module, "OPEN_MIN", open_min)
    program, keyed_state = whole
    random = np.random.default_rng(seed)
    store = MemoryStore()
    bytes_max = (None, 2, 40_000, 10**9)[seed]
    share = open_share(store, bytes_max)
    stored, pages = share.stored_pages[0], share.pages[0]
    slots = pages.slots(keyed_state.keys)
    states: dict[int, KeyedState] = {}
    chosen, was_open = slots[:0], 0
    for number in range(60):
        others = random.choice(np.unique(slots), int(random.integers(1, 12)), replace=False)
        chosen = np.unique(np.concatenate([chosen, others[:3]]) if number % 3 == 0 else others)
        before, changes = pages.take(chosen, program)
        chosen_states = [states[slot] for slot in chosen.tolist() if slot in states]
        assert not changes
        assert sorted([] if before is None else before.keys.to_pylist()) == sorted(
            key for state in chosen_states for key in state.keys.to_pylist()
        )
        for slot in chosen.tolist():
            page_state, _ = pages.take(np.array([slot]), program)
            assert (page_state is None) == (slot not in states)
            if page_state is not None:
                assert encode_page(page_state) == encode_page(states[slot])
        is_changed = np.isin(slots, chosen) & (random.random(len(slots)) < 0.7)
        after = select_keys(keyed_state, is_changed, program.row_registers)
        pages.put(chosen, after, program)
        assert not pages.open_bytes or len(chosen) >= open_min
        assert pages.open_bytes <= stored.open_bytes_max
        was_open += pages.open_bytes > 0
        if random.random() < 0.5:  # otherwise the next `take` asks for other pages, or for more
            pages.close()
        part = np.searchsorted(chosen, pages.slots(after.keys))
        for slot, state in zip(
            chosen.tolist(), partition_keys(after, part, len(chosen), program.row_registers), strict=True
        ):
            deadline_ms = state.expiry_min
            assert pages.open_bytes or stored.deadlines[slot] == (NEVER if deadline_ms is None else deadline_ms)
            states.pop(slot, None)
            if deadline_ms is not None:
                states[slot] = state
        if number % 5 == 0:
            pages.close()
            batch = WriteBatch()
            stored.save(batch)
            stored.shapes.save(batch)
            store.write(batch)
            assert sum(len(page) for page in stored._encoded if page is not None) == stored.cached_bytes
            assert bytes_max is None or stored.cached_bytes <= bytes_max // 2, "the rest is for histories"
    assert (stored.loads > 0) == (seed in (1, 2))
    assert (was_open > 0) == (open_min < 100 and seed != 1)


def test_what_is_due_is_touched_once_its_time_has_come(whole: tuple[Program, KeyedState]) -> None:
    program, keyed_state = whole
    share = open_share(MemoryStore(), None)
    stored, pages = share.stored_pages[0], share.pages[0]
    slots = np.unique(pages.slots(keyed_state.keys))
    pages.put(slots, keyed_state, program)
    nobody = pa.array([], TEXT)
    for watermark_ms in np.sort(stored.deadlines[slots]).tolist()[:5]:
        assert set(pages.touched(nobody, watermark_ms - 1).tolist()) < set(pages.touched(nobody, watermark_ms).tolist())
        assert pages.touched(nobody, watermark_ms).tolist() == np.flatnonzero(stored.deadlines <= watermark_ms).tolist()


def test_dropped_pages_are_counted_and_gone(whole: tuple[Program, KeyedState]) -> None:
    program, keyed_state = whole
    store = MemoryStore()
    share = open_share(store, None)
    stored, pages = share.stored_pages[0], share.pages[0]
    pages.put(np.unique(pages.slots(keyed_state.keys)), keyed_state, program)
    batch = WriteBatch()
    stored.save(batch)
    store.write(batch)
    assert store.sizes().entries_count > 0
    assert pages.drop() == len(keyed_state)
    batch = WriteBatch()
    stored.save(batch)
    store.write(batch)
    assert store.sizes().entries_count == 0


def test_what_a_store_holds_and_what_it_lacks(whole: tuple[Program, KeyedState]) -> None:
    program, keyed_state = whole
    store = MemoryStore()
    share = open_share(store, 2)
    stored, pages = share.stored_pages[0], share.pages[0]
    pages.put(np.unique(pages.slots(keyed_state.keys)), keyed_state, program)
    batch = WriteBatch()
    stored.save(batch)
    store.write(batch)
    programs = {JOB.domains[0]: program}
    with pytest.raises(StateCorruptError, match="which the store lacks"):
        list(stored_states(store, 1, JOB.domains, programs, 0))
    batch = WriteBatch()
    stored.shapes.save(batch)
    store.write(batch)
    keys = [
        key
        for g in range(4)
        for _, state in stored_states(store, g, JOB.domains, programs, 0)
        for key in state.keys.to_pylist()
    ]
    assert sorted(keys) == sorted(keyed_state.keys.to_pylist())
    store.delete_range(group_range(0, 4))
    with pytest.raises(StateCorruptError, match="the store lacks it"):
        pages.take(np.flatnonzero(stored.deadlines != NEVER), program)


GROUPS = 8
NAMES = [b"account", b"card"]
KEYS = pa.array([f"k{number}" for number in range(30)], TEXT)
SEEN_STEPS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 3),
        st.lists(st.integers(0, 200), max_size=12),
        st.sampled_from(["", "commit", "whole", "restart", "forget"]),
    ),
    max_size=25,
)


def commit(level: SeenOfLevel, store: MemoryStore, number: int, *, whole: bool) -> None:
    batch = WriteBatch()
    if whole:
        level.save_whole(batch)
    else:
        level.save_changes(batch, number.to_bytes(8, "big") + b"\0\0")
    store.write(batch)


def _pairs(ids: list[int]) -> np.ndarray:
    """Return pairs; several have the same id."""
    return np.array([[id_ % 50 for id_ in ids], ids], np.uint64)


def test_ids_of_an_earlier_build_are_refused() -> None:
    earlier = [*((3, name) for name in EARLIER_SEEN), (STORE_GROUP, b"added-seen"), (STORE_GROUP, b"added-ids")]
    for group, namespace in earlier:
        store, batch = MemoryStore(), WriteBatch()
        batch.put(store_key(group, b"", namespace, NAMES[0], bytes(8)), bytes(8))
        store.write(batch)
        with pytest.raises(StateFormatError, match="without the content"):
            SeenOfLevel(NAMES, GROUPS).restore(store, range(GROUPS))


@given(SEEN_STEPS)
def test_what_was_seen_is_known_and_found_again(steps: list[tuple[int, int, list[int], str]]) -> None:
    store, seen_ids = MemoryStore(), SeenOfLevel(NAMES, GROUPS)
    expected: dict[tuple[int, int], dict[int, tuple[int, str]]] = {}  # id → content, key
    groups = dict(zip(KEYS.to_pylist(), key_groups(KEYS, GROUPS).tolist(), strict=True))
    secrets: dict[tuple[int, int, int], list[int]] = {}
    oldest = 0
    for step_number, (number, drawn, ids, action) in enumerate(steps):
        bucket = max(drawn, oldest)  # a forgotten bucket is never queried
        bucket_ids = expected.setdefault((number, bucket), {})
        keys = KEYS.take(pa.array([id_ % 10 for id_ in ids], pa.int64()))  # events of one id have one key
        secrets_of_ids = seen_ids.secrets(number, bucket, keys).tolist()
        verdicts = []
        for id_, key, secret in zip(ids, keys.to_pylist(), secrets_of_ids, strict=True):
            is_new = id_ % 50 not in bucket_ids
            content, _ = bucket_ids.setdefault(id_ % 50, (id_, key))
            verdicts.append(NEW if is_new else SAME if content == id_ else OTHER)
            if is_new:
                assert secrets.setdefault((number, bucket, groups[key]), secret) == secret, "as long as there are ids"
        assert seen_ids.take(number, bucket, _pairs(ids), keys).tolist() == verdicts
        if action == "forget":
            oldest = bucket
            seen_ids.forget(oldest)
            assert store.sizes().entries_count or not seen_ids._dropped_keys, "a job without commits keeps no keys"
            expected = {bucket_key: ids_ for bucket_key, ids_ in expected.items() if bucket_key[1] >= oldest}
        if action in ("commit", "restart"):
            commit(seen_ids, store, step_number, whole=False)
        if action == "whole":
            store.delete_range(prefix_range(STORE_GROUP, b"", ADDED_SEEN))
            commit(seen_ids, store, step_number, whole=True)
        if action == "restart":
            seen_ids = SeenOfLevel(NAMES, GROUPS)
            seen_ids.restore(store, range(GROUPS))
            seen_ids.forget(oldest)  # as the next micro-batch does
    for group in range(GROUPS):
        stored_buckets = {
            (number, bucket): duplicates.from_bytes(data) for number, bucket, data in seen_ids.of_group(group)
        }
        own_pairs = {
            bucket_key: sorted([id_, content] for id_, (content, key) in ids_.items() if groups[key] == group)
            for bucket_key, ids_ in expected.items()
        }
        assert {bucket_key: pairs.T.tolist() for bucket_key, (_, pairs) in stored_buckets.items()} == {
            bucket_key: i for bucket_key, i in own_pairs.items() if i
        }
        assert all(secret.tolist() == secrets[*bucket_key, group] for bucket_key, (secret, _) in stored_buckets.items())


WAITING_STEPS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 60), max_size=12),
        st.integers(0, 60),
        st.sampled_from(["", "", "commit", "whole", "restart"]),
    ),
    max_size=20,
)


def events(times: list[int], first: int) -> EventBatch:
    """Return events of these times, with numbers from `first` on as ids."""
    numbers = range(first, first + len(times))
    empty = empty_batch(ONE).columns
    return EventBatch(
        pa.array([f"k{number % 20}" for number in numbers], TEXT),
        pa.array([str(number) for number in numbers], TEXT),
        np.zeros(len(times), np.int16),
        np.array(times, np.int64),
        {name: pa.nulls(len(times), empty[name].type) for name in data_columns(ONE)},
    )


def fresh_share() -> WaitingOfShare:
    return WaitingOfShare([b"card"], range(GROUPS), GROUPS, ONE)


def in_order(batch: EventBatch | None) -> list[tuple[int, int]]:
    """Return (time, id) in the order of a matcher: by time, then by arrival."""
    if batch is None:
        return []
    pairs = zip(batch.time_ms.tolist(), map(int, batch.event_id.to_pylist()), strict=True)
    return sorted(pairs, key=lambda event: event[0])


@given(WAITING_STEPS, st.sampled_from([3, 10, 1 << 16]))
def test_each_event_is_due_once_and_those_of_one_time_as_they_came(
    steps: list[tuple[list[int], int, str]], run_events: int
) -> None:
    store, share = MemoryStore(), fresh_share()
    waits: list[tuple[int, int]] = []
    first = latest_ms = 0
    is_ordered = True
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(waiting_module, "_BLOCK_EVENTS_MAX", run_events)
        for step_number, (times, asked_ms, action) in enumerate(steps):
            due_ms = latest_ms = max(latest_ms, asked_ms)
            new = events(times, first) if times else None
            waits += zip(times, range(first, first + len(times)), strict=True)
            first += len(times)
            expected = sorted((event for event in waits if event[0] < due_ms), key=lambda event: event[0])
            waits = [event for event in waits if event[0] >= due_ms]
            released = in_order(share.release(0, new, due_ms))
            assert (released == expected) if is_ordered else (sorted(released) == sorted(expected))
            batch = WriteBatch()
            if action in ("commit", "restart"):
                share.save_changes(batch, step_number.to_bytes(8, "big") + b"\0\0")
            if action == "whole":
                batch.delete_range(prefix_range(STORE_GROUP, b"", ADDED_WAITING))
                share.save_whole(batch)
            store.write(batch)
            if action == "restart":
                share, is_ordered = fresh_share(), False  # each key group has its own order
                share.restore(store)
        assert sorted(in_order(share.release(0, None, 61))) == sorted(waits)
        assert share.is_empty


def test_a_micro_batch_moves_little_of_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """20 000 events wait. 50 new ones arrive and 50 are released with each micro-batch; some stay for very long."""
    moved, take = 0, EventBatch.take

    def counting(batch: EventBatch, rows: np.ndarray) -> EventBatch:
        nonlocal moved
        taken_rows = take(batch, rows)
        moved += len(taken_rows)
        return taken_rows

    share, random = fresh_share(), np.random.default_rng(1)
    size, waiting_count = 50, 20_000
    monkeypatch.setattr(waiting_module, "_BLOCK_EVENTS_MAX", 4_096)
    monkeypatch.setattr(EventBatch, "take", counting)
    due_count = 0
    for number in range(1_200):
        times = number * size + random.integers(0, size, size)
        times[0] = 10**9
        released = share.release(0, events(times.tolist(), number * size), number * size - waiting_count)
        due_count += 0 if released is None else len(released)
    assert due_count > 30_000
    assert moved < 1_200 * size * 25
    assert len(share._waiting[0]) < 40
    assert sum(len(run.events) for run in share._waiting[0]) < 3 * waiting_count


MANY = 50_000


def saved(memory: StoredLastAlerts, store: MemoryStore) -> int:
    """Write the changes; return their size in bytes."""
    batch = WriteBatch()
    memory.save(batch)
    store.write(batch)
    return sum(len(key) + len(value) for _, key, value in batch.changes)


def restored(store: MemoryStore) -> StoredLastAlerts:
    memory = StoredLastAlerts()
    memory.restore(store)
    return memory


def test_a_commit_of_the_job_writes_what_has_changed_of_fifty_thousand_keys() -> None:
    """A start reads the same memory; forgotten keys are gone from the store."""
    records = suppressing()
    deployed, store = deployment(records), MemoryStore()
    engine = Engine(
        Job(deployed.schema, deployed.key_domains, 8), tuple(record.to_json() for record in records), store, Workers(1)
    )
    lines = list(day()[:1_000])
    engine._last_alerts.put(
        dict.fromkeys(
            (("often_long", f"another {number}") for number in range(MANY)),
            (latest_ms(lines), 172_800_000, 2, NO_MEASURE),
        )
    )
    sizes: list[int] = []
    alerts: list[int] = []
    for number, piece in enumerate(cut(lines, 20, seed=1)):
        stepped = engine.step(decoded(engine.job, piece), (), {"p": (latest_ms(piece), False)} if piece else {})
        batch = WriteBatch()
        engine.save(batch, number)
        entry_sizes = [len(k) + len(v) for _, k, v in batch.changes if split_key(k).namespace in (FIRED, b"engine")]
        sizes.append(sum(entry_sizes))
        alerts.append(stepped.alerts.num_rows)
        store.write(batch)
    assert sizes[0] > 30 * MANY, "all of it, once"
    assert all(size < 1_000 + 100 * count for size, count in zip(sizes[1:], alerts[1:], strict=True))
    assert sum(alerts[1:]) > 100
    assert len(engine._last_alerts.last) > MANY
    last = dict(engine._last_alerts.last)
    engine.close()
    again = Engine(
        Job(deployed.schema, deployed.key_domains, 8), tuple(r.to_json() for r in records), store, Workers(1)
    )
    again.restore()
    assert again._last_alerts.last == last
    batch = WriteBatch()
    again._last_alerts.save(batch)
    assert len(batch) == 0, "all of it is in the store"
    again.close()


def test_entries_come_and_go_with_what_is_remembered() -> None:
    store, memory = MemoryStore(), StoredLastAlerts()
    memory.put({("a", f"key {number}"): (number, 1_000, 0, NO_MEASURE) for number in range(500)})
    memory.put({("a", "long " * 2_000): (999, 1_000, 3, 7.5)})
    saved(memory, store)
    memory.forget(1_400)
    memory.put({("a", "key 450"): (2_000, 1_000, 0, NO_MEASURE)})
    assert saved(memory, store) < 402 * 84
    assert restored(store).last == memory.last
    memory.forget(10_000)
    saved(memory, store)
    assert list(store.scan(prefix_range(STORE_GROUP, b"", FIRED))) == []
    assert saved(memory, store) == 0


def test_entries_of_0_2_0_suppress_alerts_of_every_severity() -> None:
    """Release 0.2.0 stored two numbers, without the severity."""
    store, memory = MemoryStore(), StoredLastAlerts()
    memory.put({("a", "k"): (5, 1_000, 3, NO_MEASURE)})
    batch = WriteBatch()
    memory.save(batch)
    ((_, key, _),) = batch.changes
    store.write(WriteBatch([(batch.changes[0][0], key, struct.pack("<qq", 5, 1_000) + b"k")]))
    assert restored(store).last == {("a", "k"): (5, 1_000, UNKNOWN_SEVERITY, NO_MEASURE)}
    assert fired_from_json([["a", "k", 5, 1_000]]) == restored(store).last
    alerts = table(alert(1, 900, severity="critical"), alert(2, 1_005, severity="critical"))
    policies = Policies({("a", 1): (None, 1_000)})
    assert suppress_alerts(alerts, policies, restored(store).last).reasons == ("suppressed",)


@pytest.mark.parametrize("suppress", [("5 s", "1 h"), ("1 h", "5 s"), ("5 s", "15 s")])
def test_a_version_with_another_time_holds_back_alike_however_the_stream_is_cut(
    suppress: tuple[str, str], tmp_path: Path
) -> None:
    """An alert of the version before counts until its own time is over, and then no longer anywhere."""
    source = "event payment { tx_id id  event_time time  card string }\npattern p by card { seq a where a: payment }"
    start_ms = 1_700_000_000_000
    lines = [
        orjson.dumps({"tx_id": f"t{n:03}", "event_time": utc_text(start_ms + 7_000 * n), "card": "xy"[n % 2]})
        for n in range(40)
    ]
    records = [
        written("r", source, "p").model_copy(update={"suppress": suppress[0]}),
        written("r", source, "p", utc_text(start_ms + 110_000)).model_copy(
            update={"suppress": suppress[1], "version": 2}
        ),
    ]
    deployed = deployment(records)
    job = Job(deployed.schema, deployed.key_domains, 4)
    whole = sorted(expected(lines, deployed, tmp_path))
    for pieces in ([lines], cut(lines, 5, seed=5), [[line] for line in lines]):
        engine = Engine(job, (records[0].to_json(),), MemoryStore(), Workers(1))
        alerts: list[bytes] = []
        began = False
        for piece in pieces:
            starts = bool(piece) and not began and latest_ms(piece) >= start_ms + 110_000
            began |= starts
            controls = (records[1].to_json(),) if starts else ()
            times = {"p": (latest_ms(piece), False)} if piece else {}
            alerts += json_lines(engine.step(decoded(job, piece), controls, times).alerts)
        engine.close()
        assert sorted(alerts) == whole
    assert 2 < len(whole) < len(lines)


def test_bytes_that_are_not_ours_are_told() -> None:
    store = MemoryStore()
    store.put(store_key(STORE_GROUP, b"", FIRED, b"a", b"digest"), b"short")
    with pytest.raises(StateCorruptError, match="who was alerted"):
        restored(store)
