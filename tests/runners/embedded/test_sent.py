"""A process that dies between two sinks, and a job that goes back: each sink has all alerts in the end.

Sinks that can report their alerts get no alert twice.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
import orjson
import pyarrow as pa
import pytest

from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.commit_entries import SENT
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.run import Pace, Runner
from cep.runners.embedded.sent import Sent
from cep.sinks.base import Recalled
from cep.state.memory import MemoryStore
from cep.state.store import WriteBatch
from cep.step.job import Job
from tests.runners.embedded.cases import MINUTE_MS, day, deployment, expected
from tests.runners.embedded.outside import Crash, Lines
from tests.runners.spark.live_cases import END, disordered, rules

GIVEN = deployment()
INITIAL = tuple(record.to_json() for record in rules().values())
LATENESS_MS = 5 * MINUTE_MS
JOB = Job(GIVEN.schema, GIVEN.key_domains, 8, 2, LATENESS_MS)


@dataclass
class Silent:
    """A sink that cannot report its alerts. It dies before or after a write once `dies_in` writes are over."""

    taken: list[tuple[int, list[str]]] = field(default_factory=list)
    dies_in: int = 1 << 30
    is_first_lost: bool = False

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        self.dies_in -= 1
        if self.dies_in == 0 and self.is_first_lost:
            raise Crash
        if batch_id not in [number for number, _ in self.taken]:
            self.taken.append((batch_id, alerts["alert_id"].to_pylist()))
        if self.dies_in == 0:
            raise Crash

    def ids(self) -> Counter[str]:
        return Counter(alert_id for _, ids in self.taken for alert_id in ids)

    def close(self) -> None:
        pass


@dataclass
class Telling(Silent):
    """A sink that reports its alerts."""

    def place(self) -> str:
        return ""

    def recall(self, after: int, since_ms: int, places: Sequence[str] = ()) -> Recalled:
        newer = [(number, ids) for number, ids in self.taken if number > after]
        return Recalled(
            frozenset(i for _, ids in newer for i in ids), max((number for number, _ in newer), default=after)
        )


def live(folder: Path, sinks: Sequence[Silent], lines: list[bytes], seed: int) -> bool:
    """Run a life of the process; return whether it came to its end."""
    random = np.random.default_rng(seed)
    commits = Commits(StoreSettings(folder, "rocksdb", cache_bytes=8 << 20, checkpoint_ms=20))
    engine = Engine(JOB, INITIAL, commits.store, Workers(1), commits.lists)
    source = Lines(lines, random)
    runner = Runner(engine, Sources(source, None), Outlets(tuple(sinks), None), commits, Pace())
    try:
        runner.start()
        while not source.ended:
            runner.cycle(0.0)
            commits.finish(wait=True)
        commits.take(engine.step([], (END,), {}))
        runner.finish()
    except Crash:
        return False
    finally:
        engine.close()
        commits.close()
    return True


@pytest.mark.parametrize("seed", range(6))
def test_who_dies_between_two_sinks_leaves_nobody_short(seed: int, tmp_path: Path) -> None:
    chance, lines = Random(seed), disordered(list(day()), LATENESS_MS, seed)
    sinks = [Telling(), Silent(), Telling(), Silent(), Telling()]
    folder = tmp_path / "job"
    for life in range(4):
        dying = sinks[chance.randrange(len(sinks))]
        dying.dies_in, dying.is_first_lost = chance.randrange(3, 12), chance.random() < 0.5
        if live(folder, sinks, lines, seed * 10 + life):
            break
        dying.dies_in = 1 << 30
        shutil.rmtree(folder / "store")  # it goes back to its newest checkpoint
    live(folder, sinks, lines, seed * 10 + 9)
    expected_counts = Counter(orjson.loads(line)["alert_id"] for line in expected(list(day()), GIVEN, tmp_path))
    for sink in sinks:
        assert set(sink.ids()) == set(expected_counts), "nothing is missing"
        if isinstance(sink, Telling):
            assert sink.ids() == expected_counts, "and nothing came twice"


def table(*ids: str) -> pa.Table:
    return pa.table({"alert_id": list(ids)})


def test_ids_that_a_commit_stores_are_those_of_each_sink() -> None:
    sent, store, batch = Sent({"a": {"x", "y"}, "b": {"x"}}, is_new=True), MemoryStore(), WriteBatch()
    sent.save(batch)
    store.write(batch)
    assert not sent.is_new
    assert Sent.stored(store, ["b"]).ids == {"a": {"x", "y"}, "b": {"x"}}
    assert Sent.stored(MemoryStore(), ["a"]).ids == {}


def test_ids_that_an_earlier_build_has_stored() -> None:
    """Early builds stored ids that all sinks had. Later builds also counted how many of the first sinks had an id."""
    store, batch = MemoryStore(), WriteBatch()
    batch.put(SENT, b'["x"]')
    store.write(batch)
    assert Sent.stored(store, ["a", "b"]).ids == {"a": {"x"}, "b": {"x"}}
    batch.put(SENT, b'{"sinks": 3, "counts": {"all": 3, "some": 1}}')
    store.write(batch)
    assert Sent.stored(store, ["a", "b", "c"]).ids == {"a": {"all", "some"}, "b": {"all"}, "c": {"all"}}
    assert Sent.stored(store, ["a", "b"]).ids == {"a": {"all"}, "b": {"all"}}


def test_each_sink_gets_the_alerts_that_it_lacks() -> None:
    sent, alerts = Sent({"a": {"x", "y"}, "b": {"x"}}), table("x", "y", "z")
    lacking = {name: sent.lacking(name, alerts)["alert_id"].to_pylist() for name in ("a", "b", "c")}
    assert lacking == {"a": ["z"], "b": ["y", "z"], "c": ["x", "y", "z"]}
    sent.settle("a", alerts)
    assert sent.ids == {"a": set(), "b": {"x"}}
    assert sent.is_new
