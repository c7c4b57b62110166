"""A sink that is away is retried until it is back and shown as away; no alert is lost or comes twice."""

import io
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

from cep.base.errors import SinkAwayError, SinkError, SourceAwayError
from cep.base.schema import Schema
from cep.columnar.decode import Decoded, decode_json
from cep.runners.embedded import queues as queues_module
from cep.runners.embedded import run as run_module
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.run import Listener, Pace
from cep.runners.observe import Log, Observed
from cep.runners.output import BatchReport
from cep.runners.patience import Newest, Patience
from cep.runners.watch import Watch, Watched
from cep.sinks.base import AlertSink
from cep.sinks.files import FileSink
from cep.sources.live.base import Chunk
from cep.step.job import Job
from tests.runners.embedded.cases import deployment, expected, morning
from tests.runners.embedded.outside import Lines, Process
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
    sources = Sources(Lines(list(morning()), np.random.default_rng(1)), None)
    outlets = Outlets((sink,), None, patience=patience)
    with Process(commits, JOB, INITIAL, sources, outlets, pace=Pace(sends_at_once=at_once)) as life:
        try:
            life.read_all()
            life.end()
        finally:
            patience.stop.set()


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
    source, idle = Asleep([], np.random.default_rng(1)), list[int]()
    heartbeats: Any = Heartbeats([END])
    listener = Listener(idle=lambda: idle.append(1))
    with Process(commits, JOB, INITIAL, Sources(source, heartbeats), listener=listener) as life:
        life.runner.cycle(0.0)
        assert source.unanswered == -1
        assert len(idle) >= 3, "the job is seen to get on meanwhile"
        assert commits.totals["control_heartbeat"] == 1


@dataclass
class Registry:
    """A registry that gives no answer to some questions; without them records cannot be decoded."""

    silent: Callable[[], bool]
    asked: int = 0

    def decode(self, schema: Schema, values: pa.Array) -> Decoded:
        self.asked += 1
        if self.silent():
            raise SourceAwayError("no answer")
        return decode_json(schema, values)


class Few(Lines):
    """A source that gives few lines at a time."""

    def poll(self, records_max: int, wait_s: float) -> list[Chunk]:
        return self.give(60)

    def behind(self) -> dict[str, bool]:
        return dict.fromkeys(("a", "b"), False)  # so that the watermark goes on with each micro-batch


def test_records_wait_for_the_registry_of_their_schemas(tmp_path: Path) -> None:
    """Earlier alerts are delivered meanwhile; a stop leaves the records to the next start, and nothing comes twice."""
    stop, idle, counts = threading.Event(), list[int](), list[int]()
    alerts = tmp_path / "alerts"
    is_away, is_back = [False], threading.Event()
    registry = Registry(lambda: is_away[0])

    def report(batch: BatchReport) -> None:
        counts.append(batch.alerts.num_rows)
        is_away[0] = any(counts) and not is_back.is_set()  # as soon as there are alerts

    def note_idle() -> None:
        if is_away[0]:
            idle.append(len(written(alerts)) if alerts.exists() else 0)
            if len(idle) > 5 and idle[-1] == sum(counts):
                stop.set()

    for _ in range(2):
        commits = Commits(StoreSettings(tmp_path / "job", "rocksdb", cache_bytes=8 << 20))
        sources = Sources(Few(list(morning()), np.random.default_rng(1)), None, registry.decode)
        outlets, listener = Outlets((FileSink(alerts),), None), Listener(report, note_idle)
        with Process(commits, JOB, INITIAL, sources, outlets, listener=listener) as life:
            life.runner.run(stop)
            if stop.is_set():
                assert commits.deliveries.undelivered_count == 0, "earlier alerts are delivered"
                assert commits.totals["events"] < len(list(morning()))
                stop.clear()
                is_back.set()
                is_away[0] = False
            else:
                life.end()
    assert len(idle) > 5, "the job is seen to wait"
    assert written(alerts) == sorted(expected(morning(), GIVEN, tmp_path))


@dataclass
class Hanging:
    """A sink that gives no answer until it is released."""

    sink: AlertSink
    released: threading.Event = field(default_factory=threading.Event)

    def write(self, alerts: pa.Table, batch_id: int) -> None:
        self.released.wait()
        self.sink.write(alerts, batch_id)

    def close(self) -> None:
        self.sink.close()


@pytest.mark.parametrize("has_folder", [True, False])
def test_a_sink_that_hangs_delays_no_other_where_alerts_wait_for_no_commit(
    has_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues_module, "_WAIT_FOR_SINKS_S", 0.01)
    commits = Commits(StoreSettings(tmp_path / "job" if has_folder else None, "rocksdb", cache_bytes=8 << 20))
    hanging, names = Hanging(FileSink(tmp_path / "late")), ("late", "other")
    outlets = Outlets((hanging, FileSink(tmp_path / "other")), None, names=names)
    sources = Sources(Lines(list(morning()), np.random.default_rng(1)), None)
    with Process(commits, JOB, INITIAL, sources, outlets, pace=Pace(sends_at_once=True)) as life:
        life.read_all()
        while commits.deliveries.backlogs["other"].size:
            commits.wait_for_delivery(0.01)
            commits.finish(wait=False)
        count = len(written(tmp_path / "other"))
        assert count > 0
        assert not (tmp_path / "late").exists() or not written(tmp_path / "late")
        backlogs = commits.deliveries.backlogs
        assert {name: backlog.size for name, backlog in backlogs.items()} == {"late": count, "other": 0}
        assert commits.deliveries.undelivered_count == count
        assert commits.deliveries.undelivered_bytes > 0
        head = commits.head
        life.runner.cycle(0.0)
        assert commits.head is head, "no commit while alerts wait in memory"
        hanging.released.set()
        life.runner.finish()
        assert written(tmp_path / "late") == written(tmp_path / "other")
        assert (commits.deliveries.undelivered_count, commits.deliveries.undelivered_bytes) == (0, 0)
        assert {commits.totals[f"alerts_delivered[{name}]"] for name in names} == {count}
        assert (commits.head is not head) == has_folder


def test_a_refusal_of_a_sink_ends_a_job_whose_alerts_wait_for_no_commit(tmp_path: Path) -> None:
    @dataclass
    class Refusing(Hanging):
        def write(self, alerts: pa.Table, batch_id: int) -> None:
            raise SinkError("no right to write")

    with pytest.raises(SinkError, match="no right"):
        live(tmp_path / "job", Refusing(FileSink(tmp_path / "alerts")), Patience(threading.Event()), at_once=True)


def test_a_receiver_of_the_status_that_hangs_gets_the_newest_text() -> None:
    taken, began, released = list[bytes](), threading.Event(), threading.Event()

    def write(text: bytes) -> None:
        began.set()
        released.wait()
        taken.append(text)

    newest = Newest("status", write, Patience(threading.Event()))
    newest.offer(b"1")
    assert began.wait(60)
    for text in (b"2", b"3"):
        newest.offer(text)
    assert not newest.settle(0.0)
    released.set()
    assert newest.settle(60.0)
    assert taken == [b"1", b"3"]
    newest.offer(b"4")
    assert newest.settle(60.0)
    assert taken[-1] == b"4"


def test_a_refusal_of_the_status_reaches_the_job() -> None:
    def refuse(_: bytes) -> None:
        raise SinkError("no right to write")

    newest = Newest("status", refuse, Patience(threading.Event()))
    newest.offer(b"1")
    with pytest.raises(SinkError, match="no right"):
        newest.settle(60.0)
    with pytest.raises(SinkError, match="no right"):
        newest.offer(b"2")
