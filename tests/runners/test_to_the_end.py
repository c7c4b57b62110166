"""A history that is cut anywhere gives no alert that the whole lacks; its savepoint and the rest give the whole.

All seeds, a thousand in this process: `pytest tests/runners/test_to_the_end.py -m "slow or not slow"`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from cep.base.limits import TIME_MS_MAX
from cep.base.text import utc_text
from cep.rulebook.deploy import Deployment, deploy
from cep.rulebook.rulebook import by_level
from cep.runners.embedded import replay as embedded
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.handover.warm_start import About, Ending, finish, job_until, open_warm_start
from cep.runners.output import Replayed, replay_to_the_end
from cep.sinks.json_form import json_lines
from cep.sources.pieces import read_pieces
from cep.state.memory import MemoryStore
from cep.step.job import Job
from tests.runners.embedded.test_engine import feed
from tests.runners.test_later_rules import written
from tests.seeds import RELEASE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Replay = Callable[[Job, Deployment, Path], Replayed]
START_MS = 1_772_323_200_000
MINUTE_MS = 60_000
EVENTS_COUNT = 40
SEEDS, AT_ONCE = 1_000, 50
SOURCE = """
event n { i id  event_time time  h string  k enum(created, recovered, other) }
event lost { lost_id id  event_time time  h string }
pattern absent by h { seq c -> !r within 10 min  where c: n k == created  r: n k == recovered }
pattern late by h {
  seq c -> r within 5 min  where c: n k == created  r: n k == recovered
  on timeout emit since = c.event_time
}
pattern ordered by h {
  seq c -> o+ -> r within 8 min  where c: n k == created  o: n k == other  r: n k == recovered
  skip past last in order
}
pattern produced by h {
  seq c -> !r within 7 min  where c: n k == created  r: n k == recovered
  emit h = c.h  produce lost
}
pattern chain by h { seq l -> c within 20 min  where l: lost  c: n k == created }
pattern again by h { seq l -> !c within 6 min  where l: lost  c: n k == created }
pattern often by h { seq c  where c: n count(lost over 30 min) > 1 }
"""
NAMES = ("absent", "late", "ordered", "produced", "chain", "again", "often")


def deployed() -> Deployment:
    rules = deploy(written(name, SOURCE, name) for name in NAMES)
    assert rules.set_aside == ()
    return rules


def drawn(random: Random) -> list[tuple[int, bytes]]:
    """Draw events with their times, in the order of their times; some are equal. The last one comes much later."""
    times = sorted(START_MS + random.randrange(90) * MINUTE_MS // 2 for _ in range(EVENTS_COUNT))
    times.append(times[-1] + 60 * MINUTE_MS)
    events = []
    for number, time_ms in enumerate(times):
        key, kind = random.choice("abc"), random.choice(("created", "created", "recovered", "other"))
        row = {"event_type": "n", "i": f"{number:03}", "event_time": utc_text(time_ms), "h": key, "k": kind}
        events.append((time_ms, json.dumps(row).encode()))
    return events


@dataclass(frozen=True)
class History:
    """A history of drawn events, its rules, and an engine's replay of a part of it."""

    given: Deployment
    events: list[tuple[int, bytes]]
    folder: Path
    replay: Replay

    def job(self, **terms: Any) -> Job:
        levels = len(by_level(self.given.rulebook.deployed(), self.given.schema))
        return Job(self.given.schema, self.given.key_domains, 8, levels_count=levels, **terms)

    def alerts(self, job: Job, until_ms: int) -> list[bytes]:
        """Replay the events before a time."""
        path = self.folder / "history.jsonl"
        path.write_bytes(b"\n".join(line for time_ms, line in self.events if time_ms < until_ms))
        return list(json_lines(replay_to_the_end(job, lambda one: self.replay(one, self.given, path)).alerts))

    def continued(self, until_ms: int) -> list[bytes]:
        """Replay the events before a time into a savepoint, and let a live job go on from it."""
        folder, path = self.folder / f"savepoint-{until_ms}", self.folder / "history.jsonl"
        path.write_bytes(b"\n".join(line for _, line in self.events))
        ending = Ending(folder, until_ms)
        job = job_until(self.job(), ending)
        replayed = embedded.replay(job, self.given.rulebook, read_pieces(path, job.schema), 1, ending=ending)
        records = tuple(record.to_json() for record in self.given.taken)
        finish(folder, replayed.state_files, About(job, records, replayed.since_ms, until_ms))
        warm = open_warm_start(str(folder))
        engine = Engine(replace(self.job(), begins_ms=until_ms), warm.about.rules, MemoryStore(), Workers(1))
        engine.begin(warm)
        rest = [line for time_ms, line in self.events if time_ms >= until_ms]
        later = feed(engine, [rest[:5], rest[5:]], Counter())
        engine.close()
        return [*json_lines(replayed.alerts), *later]


def in_this_process(job: Job, deployment: Deployment, path: Path) -> Replayed:
    return embedded.replay(job, deployment.rulebook, read_pieces(path, job.schema), 1)


def check(history: History, random: Random, *, continues: bool) -> Counter[str]:
    """Cut the history at some times. Return how many alerts of each kind the cuts gave."""
    whole = history.alerts(history.job(), TIME_MS_MAX)
    assert not any(b'"unconfirmed"' in line for line in whole)
    counts = Counter({"whole": len(whole)})
    for cut_ms in random.sample(sorted({time_ms for time_ms, _ in history.events})[1:], 2):
        part = history.alerts(history.job(), cut_ms)
        assert set(part) <= set(whole), cut_ms
        until = history.alerts(history.job(ends_ms=cut_ms), TIME_MS_MAX)
        assert set(part) <= set(until) <= set(whole), cut_ms
        closed = history.alerts(history.job(to_the_end=True), cut_ms)
        marked = [line for line in closed if b'"unconfirmed":true' in line]
        assert set(closed) - set(marked) == set(part), cut_ms
        counts.update(part=len(part), marked=len(marked), untrue=len(set(ids(marked)) - set(ids(whole))))
        if continues:
            assert sorted(history.continued(cut_ms)) == sorted(whole), cut_ms
    return counts


def ids(lines: list[bytes]) -> list[str]:
    return [json.loads(line)["alert_id"] for line in lines]


def check_seeds(first: int, count: int, folder: Path, replay: Replay, *, continues: bool) -> None:
    rules, counts = deployed(), Counter[str]()
    for seed in range(first, first + count):
        random = Random(f"cut {seed}")
        place = folder / str(seed)
        place.mkdir()
        try:
            counts += check(History(rules, drawn(random), place, replay), random, continues=continues)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert min(counts["part"], counts["marked"], counts["untrue"]) > 0, "the seeds show something"


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=RELEASE) for n in range(AT_ONCE, SEEDS, AT_ONCE))])
def test_a_history_is_cut_anywhere(first: int, tmp_path: Path) -> None:
    count = 5 if first == 0 else AT_ONCE
    check_seeds(first, count, tmp_path, in_this_process, continues=True)


@pytest.mark.spark
@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=RELEASE) for n in range(3, 30, 3))])
def test_a_history_is_cut_anywhere_on_spark(first: int, tmp_path: Path, spark: SparkSession) -> None:
    from cep.runners.spark.replay import read_events, replay  # noqa: PLC0415 the other tests need no Spark

    def on_spark(job: Job, deployment: Deployment, path: Path) -> Replayed:
        return replay(job, deployment.rulebook, read_events(spark, path), 2)

    check_seeds(first, 3 if first else 2, tmp_path, on_spark, continues=False)
