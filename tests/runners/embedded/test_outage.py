"""A sink that is away is retried until it is back and shown as away; no alert is lost or comes twice."""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

from cep.base.errors import SinkAwayError, SinkError, SourceAwayError
from cep.runners.embedded import run as run_module
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.run import Pace, Runner
from cep.runners.observe import Log, Observed
from cep.runners.patience import Patience
from cep.runners.watch import Watch, Watched
from cep.sinks.base import AlertSink
from cep.sinks.files import FileSink
from cep.sources.live.base import Chunk
from cep.step.job import Job
from tests.runners.embedded.cases import deployment, expected, morning
from tests.runners.embedded.outside import Lines
from tests.runners.spark.live_cases import END, rules

GIVEN = deployment()
INITIAL = tuple(record.to_json() for record in rules().values())
JOB = Job(GIVEN.schema, GIVEN.key_domains, 8)


@dataclass
class Away:
    """A sink that is unreachable for a while, before the write or after it: then the answer is lost."""

    sink: AlertSink
    chance: Random
    share: float = 0.7

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        drawn = self.chance.random()
        if drawn < self.share / 2:
            raise SinkAwayError("no way there")
        self.sink.write(alerts, batch_id)
        if drawn < self.share:
            raise SinkAwayError("no way back")

    def close(self) -> None:
        self.sink.close()


def live(folder: Path, sink: AlertSink, patience: Patience, *, at_once: bool = False) -> None:
    """Run one life of a job, to the end of its stream. Raises: SinkError."""
    commits = Commits(StoreSettings(folder, "rocksdb", cache_bytes=8 << 20))
    engine = Engine(JOB, INITIAL, commits.store, Workers(1))
    sources = Sources(Lines(list(morning()), np.random.default_rng(1)), None)
    runner = Runner(engine, sources, Outlets((sink,), None, patience=patience), commits, Pace(at_once=at_once))
    try:
        runner.start()
        while not sources.events.ended:
            runner.cycle(0.0)
        commits.take(engine.step([], (END,), {}))
        runner.finish()
    finally:
        patience.stop.set()
        engine.close()
        commits.close()


def written(folder: Path) -> list[bytes]:
    return sorted(line for path in folder.iterdir() for line in path.read_bytes().splitlines())


def test_a_sink_that_is_away_is_tried_until_it_is_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "UNDELIVERED_MAX", 2)  # and the job does not read for a sink that does not accept
    reports: list[SinkAwayError | None] = []
    patience = Patience(threading.Event(), lambda _, error: reports.append(error), 0.0)
    live(tmp_path / "job", Away(FileSink(tmp_path / "alerts"), Random(1)), patience)
    assert written(tmp_path / "alerts") == sorted(expected(morning(), GIVEN, tmp_path))
    assert patience.retries == len([error for error in reports if error is not None]) > 0
    assert reports[-1] is None, "it is back"


def test_a_job_that_is_stopped_in_an_outage_sends_its_alerts_after_the_next_start(tmp_path: Path) -> None:
    stop = threading.Event()
    patience = Patience(stop, lambda *_: stop.set(), 0.0)
    with pytest.raises(SinkAwayError, match="no way there"):
        live(tmp_path / "job", Away(FileSink(tmp_path / "alerts"), Random(1), 2.0), patience)
    live(tmp_path / "job", FileSink(tmp_path / "alerts"), Patience(threading.Event()))
    assert written(tmp_path / "alerts") == sorted(expected(morning(), GIVEN, tmp_path))


def test_what_no_waiting_mends_ends_the_job_at_once() -> None:
    patience = Patience(threading.Event(), pause_s=0.0)

    def refuse() -> None:
        raise SinkError("no right to write")

    with pytest.raises(SinkError, match="no right"):
        patience.keep_trying("alerts", refuse)
    assert patience.retries == 0


def test_a_job_that_waits_for_a_sink_is_live_and_neither_ready_nor_healthy() -> None:
    lines = io.StringIO()
    observed = Observed(60_000, Log("json", lines), sink_addresses={"kafka:alerts": "broker:9092"})
    observed.begin()
    away = SinkAwayError("3 alerts did not reach topic alerts", "too_large")
    observed.away("kafka:alerts", away)
    observed.away("alerts/", SinkAwayError("no folder", "missing"))
    Watch(Watched(), observed, 1_000).look()
    assert [ask()[0] for ask in (observed.live, observed.ready, observed.health)] == [True, False, False]
    assert observed.troubles["sinks"].startswith("alerts/: it is not at this address; check")
    assert "kafka:alerts at broker:9092: an alert is larger than it allows" in observed.troubles["sinks"]
    assert observed.ready()[0] is False
    observed.away("kafka:alerts", away)
    observed.away("alerts/", None)
    assert observed.ready()[0] is False, "one of two sinks is still away"
    observed.away("kafka:alerts", None)
    assert [ask()[0] for ask in (observed.live, observed.ready, observed.health)] == [True, True, True]
    log_lines = [orjson.loads(line) for line in lines.getvalue().splitlines()]
    of_part = [line for line in log_lines if "part" in line]
    assert [(line["event"], line["part"]) for line in of_part] == [("unhealthy", "sinks"), ("healthy", "sinks")]
    assert of_part[0]["reason"] == "3 alerts did not reach topic alerts"
    of_sinks = [
        (line["event"], line["sink"], line["address"], line.get("reason")) for line in log_lines if "sink" in line
    ]
    assert of_sinks == [
        ("sink_away", "kafka:alerts", "broker:9092", "too_large"), ("sink_away", "alerts/", "alerts/", "missing"),
        ("sink_back", "alerts/", "alerts/", None), ("sink_back", "kafka:alerts", "broker:9092", None),
    ], "each sink has lines of its own"  # fmt: skip


class Asleep(Lines):
    """Events whose brokers do not answer the first questions about the ends."""

    unanswered = 3

    def look(self) -> None:
        self.unanswered -= 1
        if self.unanswered >= 0:
            raise SourceAwayError("no answer")


@dataclass
class Heartbeats:
    """A control topic with one heartbeat."""

    values: list[bytes]

    def poll(self, records_max: int, wait_s: float) -> list[Chunk]:
        values, self.values = self.values, []
        return [Chunk("control", pa.array(values, pa.large_binary()))] if values else []

    def positions(self) -> dict[str, int]:
        return {}

    def behind(self) -> dict[str, bool]:
        return {"control": bool(self.values)}

    ended = False


def test_a_heartbeat_in_an_outage_waits_for_the_brokers(tmp_path: Path) -> None:
    commits = Commits(StoreSettings(tmp_path / "job", "rocksdb", cache_bytes=8 << 20))
    engine = Engine(JOB, INITIAL, commits.store, Workers(1))
    source, idle = Asleep([], np.random.default_rng(1)), list[int]()
    heartbeats: Any = Heartbeats([END])
    runner = Runner(
        engine, Sources(source, heartbeats), Outlets((), None), commits, Pace(), idle=lambda: idle.append(1)
    )  # fmt: skip
    runner.cycle(0.0)
    assert source.unanswered == -1
    assert len(idle) >= 3, "the job is seen to get on meanwhile"
    assert commits.totals["control_heartbeat"] == 1
    engine.close()
    commits.close()
