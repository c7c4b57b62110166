"""The last alerts of rules that suppress, in the store: a commit writes the changes, and a start reads all of them."""

from __future__ import annotations

import struct
from pathlib import Path

import orjson
import pytest

from cep.base.errors import StateCorruptError
from cep.base.utc import utc_text
from cep.rulebook.suppression import NO_MEASURE, UNKNOWN_SEVERITY, Policies, fired_from_json, suppress_alerts
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.fired import FIRED, StoredLastAlerts
from cep.sinks.json_form import json_lines
from cep.state.keys import STORE_GROUP, prefix_range, split_key, store_key
from cep.state.memory import MemoryStore
from cep.state.store import WriteBatch
from cep.step.job import Job
from tests.rulebook.test_suppression import alert, table
from tests.runners.embedded.cases import cut, day, decoded, deployment, expected, latest_ms, suppressing
from tests.runners.test_later_rules import written

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
    engine._memory.put(
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
    assert len(engine._memory.last) > MANY
    last = dict(engine._memory.last)
    engine.close()
    again = Engine(
        Job(deployed.schema, deployed.key_domains, 8), tuple(r.to_json() for r in records), store, Workers(1)
    )
    again.restore()
    assert again._memory.last == last
    batch = WriteBatch()
    again._memory.save(batch)
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
