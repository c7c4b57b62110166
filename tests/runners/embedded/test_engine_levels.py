"""Patterns that feed patterns in the embedded engine: they find the circles of brute force, cut, saved and restored."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import pytest

from cep.base.errors import UsageError
from cep.columnar.decode import decode_table
from cep.columnar.route import KEY_SEPARATOR
from cep.rulebook.deploy import deploy
from cep.runners.embedded.engine import Engine, Stepped, Workers
from cep.state.memory import MemoryStore
from cep.step.job import Job
from tests.runners.embedded.cases import save
from tests.runners.laundering import circles, records, transfers
from tests.runners.spark.live_cases import END

INITIAL = tuple(record.to_json() for record in records())


def make_job(lateness_ms: int, levels_count: int = 3) -> Job:
    deployment = deploy(records())
    return Job(deployment.schema, deployment.key_domains, 16, 1, lateness_ms, levels_count=levels_count)


def found_in(stepped: Stepped) -> dict[str, tuple[str, str, str, int]]:
    """Return alert id → (origin, via, target, time)."""
    matches = {}
    for alert in stepped.alerts.to_pylist():
        origin, target = alert["key"].split(KEY_SEPARATOR)
        at_ms = round(alert["detected_at"].timestamp() * 1_000)
        matches[alert["alert_id"]] = (origin, json.loads(alert["measures"])["via"], target, at_ms)
    return matches


@pytest.mark.parametrize(("workers", "lateness_ms"), [(1, 0), (3, 0), (2, 400_000)])
def test_circles_are_found_however_the_stream_is_cut(workers: int, lateness_ms: int, tmp_path: Path) -> None:
    table, random = transfers(3, 150), Random(workers)
    job = make_job(lateness_ms)
    order = np.arange(len(table))
    if lateness_ms:
        times = np.array([round(t.timestamp() * 1_000) for t in table["event_time"].to_pylist()])
        order = np.argsort(times + np.array([random.randrange(lateness_ms) for _ in order]), kind="stable")
    cuts = [0, *sorted(random.sample(range(1, len(table)), 9)), len(table)]
    store = MemoryStore()
    engine = Engine(job, INITIAL, store, Workers(workers))
    matches: dict[str, tuple[str, str, str, int]] = {}
    counted, alerts = 0, 0
    for number, (first, end) in enumerate(pairwise(cuts)):
        part = table.take(order[first:end])
        decoded = decode_table(job.schema, part, str)
        stepped = engine.step([decoded], (), {"p": (int(decoded.time_ms.max()), False)})
        matches |= found_in(stepped)
        alerts += stepped.alerts.num_rows
        counted += stepped.counters["events"]
        if number % 3 == 1:
            save(engine, number)
            store.checkpoint(tmp_path / str(number))
            engine.close()
            store = MemoryStore.open(tmp_path / str(number))
            engine = Engine(job, INITIAL, store, Workers(workers))
            engine.restore()
    last = engine.step([], (END,), {})
    engine.close()
    matches |= found_in(last)
    assert set(matches.values()) == circles(table)
    assert len(matches) == alerts + last.alerts.num_rows, "no alert comes twice"
    assert counted == len(table)


def test_what_is_produced_may_belong_to_any_process() -> None:
    with pytest.raises(UsageError, match="one process"):
        Engine(make_job(0), INITIAL, MemoryStore(), Workers(1, 0, 8))


def test_a_rule_without_a_stage_is_told_once() -> None:
    engine = Engine(make_job(0, levels_count=2), INITIAL[:-1], MemoryStore(), Workers(1))
    stepped = engine.step([], (INITIAL[-1],), {})
    again = engine.step([], (END,), {})
    (refused,) = engine.rulebook.rulebook.report().refused
    engine.close()
    (letter,) = map(json.loads, stepped.dead_letters)
    assert (letter["code"], letter["rule_id"]) == ("control_refused", "circle")
    assert "--levels 3" in letter["reason"]
    assert stepped.counters["control_refused"] == 1
    assert again.dead_letters == ()
    assert refused.rule_id == "circle"
