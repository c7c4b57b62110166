"""The embedded live job: rules that come while it runs, both ways of delivery, Kafka to Kafka and killed."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import orjson
import pytest

from cep.model.rule import utc_text
from cep.runners.embedded.commit import Commits, Outlets, Sources, StoreSettings
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.run import BatchReport, Pace, Runner
from cep.runners.job import Job
from cep.sinks.jsonl import JsonLinesSink
from cep.sources.live.files import FilesSource
from tests.runners.embedded.cases import day, deployment, expected
from tests.runners.spark.live_cases import END, rules, time_ms

ROOT = Path(__file__).parents[3]
GIVEN = deployment()
WAIT_S = 90


def written(folder: Path) -> list[bytes]:
    return [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().splitlines()]


def place(folder: Path, name: str, lines: list[bytes]) -> None:
    """A file that appears whole."""
    folder.mkdir(exist_ok=True)
    (folder / f".{name}").write_bytes(b"\n".join(lines))
    (folder / f".{name}").rename(folder / name)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_rule_that_is_published_while_the_job_runs(at_once: bool, tmp_path: Path) -> None:
    lines = list(day())
    noon_ms = time_ms(lines[len(lines) // 2])
    later = [line for line in lines if time_ms(line) >= noon_ms]
    known = rules()
    late_rule = known.pop("impossible_travel").model_copy(update={"effective_at": utc_text(noon_ms)})
    place(tmp_path / "events", "1.jsonl", lines[: len(lines) - len(later)])
    (tmp_path / "control").mkdir()
    job = Job(GIVEN.schema, GIVEN.key_domains, 8)
    commits = Commits(StoreSettings(tmp_path / "job", "rocksdb"))
    engine = Engine(job, tuple(r.to_json() for r in known.values()), commits.store, Workers(2))
    sources = Sources(FilesSource(tmp_path / "events", follow=True), FilesSource(tmp_path / "control", follow=True))
    outlets = Outlets((JsonLinesSink(tmp_path / "alerts"),), tmp_path / "letters")
    totals: Counter[str] = Counter()
    stop = threading.Event()

    def report(found: BatchReport) -> None:
        """What is published next depends on what was done: no clock is asked."""
        totals.update(found.counters)
        if found.counters["control_applied"]:
            place(tmp_path / "events", "2.jsonl", later)
        elif totals["events"] == len(lines) and not totals["control_heartbeat"]:
            place(tmp_path / "control", "2.jsonl", [b"{", END])
        elif totals["events"] == len(lines) - len(later) and not totals["control_applied"]:
            place(tmp_path / "control", "1.jsonl", [late_rule.to_json()])
        if totals["control_heartbeat"]:
            stop.set()

    runner = Runner(engine, sources, outlets, commits, Pace(interval_ms=20, at_once=at_once), report)
    guard = threading.Timer(WAIT_S, stop.set)
    guard.start()
    runner.run(stop)
    guard.cancel()
    engine.close()
    commits.close()
    given = deployment([*known.values(), late_rule])
    assert sorted(written(tmp_path / "alerts")) == sorted(expected(lines, given, tmp_path))
    assert [orjson.loads(line)["code"] for line in written(tmp_path / "letters")] == ["control_unreadable"]
    assert commits.totals == totals
