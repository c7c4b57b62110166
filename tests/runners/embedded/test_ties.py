"""A job without lateness: ties in several micro-batches give the alerts of the replay, or are counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import orjson
import pytest

from cep.rulebook.deploy import deploy
from cep.runners.embedded.engine import Engine, Workers
from cep.sinks.json_form import json_lines
from cep.state.memory import MemoryStore
from cep.step.job import Job
from tests.runners.embedded.cases import decoded, expected, latest_ms, save
from tests.runners.parity_cases import tied
from tests.runners.spark.live_cases import END


def run(lines: list[bytes], size: int, records: list[bytes], job: Job, *, restart: bool) -> tuple[list[bytes], int]:
    """Return the alerts, sorted, and the counted ties of micro-batches of `size` lines."""
    store, counters = MemoryStore(), Counter[str]()
    alerts: list[bytes] = []
    engine = Engine(job, tuple(records), store, Workers(1))
    for commit, first in enumerate(range(0, len(lines), size), 1):
        piece = lines[first : first + size]
        stepped = engine.step(decoded(job, piece), (), {"p": (latest_ms(piece), False)})
        alerts += json_lines(stepped.alerts)
        counters.update(stepped.counters)
        if restart:
            save(engine, commit)
            engine.close()
            engine = Engine(job, tuple(records), store, Workers(1))
            engine.restore()
    stepped = engine.step([], (END,), {})
    engine.close()
    return sorted([*alerts, *json_lines(stepped.alerts)]), counters["ties_out_of_order"]


@pytest.mark.parametrize("seed", range(3))
def test_events_in_order_give_the_alerts_of_the_replay(seed: int, tmp_path: Path) -> None:
    stream = tied(seed)
    deployed = deploy(stream.records)
    job = Job(deployed.schema, deployed.key_domains, 4)
    lines, records = stream.lines[:120], [record.to_json() for record in stream.records]
    replayed = sorted(expected(lines, deployed, tmp_path))
    assert replayed
    assert run(lines, 1 + 3 * seed, records, job, restart=False) == (replayed, 0)


@pytest.mark.parametrize("seed", range(4))
def test_what_comes_out_of_order_is_counted(seed: int, tmp_path: Path) -> None:
    """Two events of a millisecond are exchanged: the live job counts them, also after a restart."""
    stream, random = tied(seed), Random(seed)
    deployed = deploy(stream.records)
    job = Job(deployed.schema, deployed.key_domains, 4)
    lines, records = stream.lines[:60], [record.to_json() for record in stream.records]
    same = [n for n in range(len(lines) - 1) if time_of(lines[n]) == time_of(lines[n + 1])]
    first = random.choice(same)
    lines[first], lines[first + 1] = lines[first + 1], lines[first]
    replayed = sorted(expected(lines, deployed, tmp_path))
    _, ties = run(lines, 1, records, job, restart=seed == 0)
    assert ties == 1
    job_of_late = Job(deployed.schema, deployed.key_domains, 4, lateness_ms=1)
    assert run(lines, 1, records, job_of_late, restart=False) == (replayed, 0), "with a lateness, ties meet"


def time_of(line: bytes) -> str:
    """Return the time of an event to the millisecond."""
    return str(orjson.loads(line)["event_time"])[:23]
