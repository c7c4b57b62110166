"""Sinks that hang, fail or refuse, and every wait of a job for another machine."""

import os
import re
import signal
import subprocess
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path

import deltalake
import orjson
import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from cep.base.errors import CepError, SinkAwayError, SinkError, SourceAwayError, StoreAwayError, StoreError
from cep.cli.main import main
from cep.model.rule import PauseRecord
from cep.runners.stopping import Stopping
from tests.cli.test_outage import metrics, status, wait_for
from tests.cli.test_run import (
    WAIT_S,
    Judge,
    Silent,
    asked,
    begun,
    configured,
    free_port,
    locked,
    verify_end,
)
from tests.output_of import OutputOf
from tests.real_kafka import KafkaCluster, RealKafka
from tests.real_postgres import IS_THERE, RealPostgres
from tests.real_s3 import S3Server, open_s3
from tests.runners.embedded.cases import deployment, expected, morning
from tests.runners.embedded.test_run import ROOT, consumed
from tests.webhook import Handler, url_of

# Sinks of every kind that do not take alerts, each for a reason of its own, until all of them are repaired.
#
#     hangs     a webhook that takes a request and gives no answer        fails      one that answers 500
#     down      a webhook whose port is closed                            locked     a table that a session has locked
#     database  a PostgreSQL that is stopped                              lake       a Delta table whose S3 answers 503
#     topic     a topic whose broker is stopped                           folder     a folder, which takes all

REASONS = {
    "hangs": ("slow", "no_answer"), "fails": ("busy",), "down": ("no_answer",), "locked": ("slow", "locked"),
    "database": ("no_answer",), "lake": ("busy",), "topic": ("slow", "no_answer"),
}  # fmt: skip


class Hanging(Judge):
    """A receiver that gives no answer until it is released. Requests from before that do not count as taken."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.released = threading.Event()

    def _answer(self, _: list[str]) -> int:
        if self.released.is_set():
            return 204
        self.released.wait(WAIT_S)
        return 500

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()


class Answering(ThreadingHTTPServer):
    """A server that answers every request with one status."""

    def __init__(self, port: int, status: int) -> None:
        class OneStatus(Handler):
            def handle_any(self) -> None:
                if "Expect" not in self.headers:  # a client that asks first sends nothing before the answer
                    self.body()
                self.answer(status)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815 names of http.server

        super().__init__(("127.0.0.1", port), OneStatus)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()


@dataclass
class BrokenSinks:
    """The sinks as `--alerts` has them, by kind. `names` and `addresses` are those of health, log and metrics."""

    folder: Path
    alerts: dict[str, str]
    hanging: Hanging
    failing: Judge
    down: Judge
    locked: RealPostgres
    database: RealPostgres
    s3: S3Server
    kafka: RealKafka
    stack: ExitStack
    faults: ExitStack = field(default_factory=ExitStack)

    @property
    def names(self) -> dict[str, str]:
        """The names of all sinks, by kind."""
        return {kind: where.replace("cep@", "…@") for kind, where in self.alerts.items()}

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses of all sinks, by kind."""
        return {**self.names, "topic": self.kafka.address}

    def repair(self) -> None:
        """Let every sink take alerts."""
        self.hanging.released.set()
        self.failing.judge = lambda _: 204
        port = self.down.server.server_port
        self.down.server = ThreadingHTTPServer(("127.0.0.1", port), self.down.server.RequestHandlerClass)
        threading.Thread(target=self.down.server.serve_forever, daemon=True).start()
        self.stack.callback(self.down.server.server_close)
        self.stack.callback(self.down.server.shutdown)
        self.faults.close()
        self.database.start()
        self.s3.start()
        self.kafka.start()

    def taken(self) -> dict[str, Counter[str]]:
        """Return the ids that each sink has, by kind, once all are repaired."""
        lines = [line for path in (self.folder / "alerts").iterdir() for line in path.read_bytes().splitlines()]
        files = Counter(orjson.loads(line)["alert_id"] for line in lines)
        topic = consumed(self.kafka.address, "alerts", lambda values: len(values) >= files.total())
        table = deltalake.DeltaTable(self.s3.url("lake")).to_pyarrow_table(columns=["alert_id"])
        return {
            "folder": files,
            **{kind: Counter(hook.taken) for kind, hook in self._hooks.items()},
            "locked": _rows(self.locked),
            "database": _rows(self.database),
            "lake": Counter(table["alert_id"].to_pylist()),
            "topic": Counter(orjson.loads(line)["alert_id"] for line in topic),
        }

    @property
    def _hooks(self) -> dict[str, Judge]:
        return {"hangs": self.hanging, "fails": self.failing, "down": self.down}


def _rows(postgres: RealPostgres) -> Counter[str]:
    with psycopg.connect(postgres.address) as connection:
        return Counter(row[0] for row in connection.execute("select alert_id from cep_alerts").fetchall())


@contextmanager
def open_broken_sinks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokenSinks]:
    """Start all sinks, and break all but the folder."""
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    with ExitStack() as stack:
        hanging, failing, down = Hanging(), Judge(lambda _: 500), Judge()
        stack.callback(hanging.close)
        stack.callback(failing.server.server_close)
        stack.callback(failing.server.shutdown)
        down.server.shutdown()
        down.server.server_close()
        tables = RealPostgres(), RealPostgres()
        for postgres in tables:
            stack.callback(postgres.close)
        s3 = stack.enter_context(open_s3())
        kafka = stack.enter_context(RealKafka())
        kafka.create("alerts", 1)
        alerts = {
            "hangs": url_of(hanging.server), "fails": url_of(failing.server), "down": url_of(down.server),
            "locked": tables[0].address, "database": tables[1].address, "lake": f"delta:{s3.url('lake')}",
            "topic": "kafka:alerts", "folder": str(folder / "alerts"),
        }  # fmt: skip
        sinks = BrokenSinks(folder, alerts, hanging, failing, down, *tables, s3, kafka, stack)
        stack.callback(sinks.faults.close)
        sinks.faults.enter_context(locked(tables[0]))
        tables[1].stop()
        s3.stop()
        sinks.faults.callback(Answering(int(s3.address.rpartition(":")[2]), 503).close)
        kafka.stop()
        yield sinks


# Sinks of seven kinds are broken, each in its own way: they delay no healthy one and no end, and lack no alert.


def is_named(sinks: BrokenSinks, kind: str, health: str, up: list[str]) -> bool:
    """True if health and the metric have a sink, its address and one of the reasons for which it may be broken."""
    name, address = sinks.names[kind], sinks.addresses[kind]
    labels = [f'cep_sink_up{{address="{address}",reason="{reason}",sink="{name}"}} 0.0' for reason in REASONS[kind]]
    shown = name if name == address else f"{name} at {address}"
    return f"{shown}: " in health and any(line in up for line in labels)


@pytest.mark.slow
@pytest.mark.skipif(not IS_THERE, reason="no PostgreSQL on the path")
@pytest.mark.parametrize(
    "runner", [pytest.param("run", marks=pytest.mark.always), pytest.param("live", marks=pytest.mark.spark)]
)
def test_broken_sinks_of_every_kind(runner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is asked to stop, started, killed, and started again once all sinks are repaired."""
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "1.jsonl").write_bytes(b"\n".join(morning()))
    port, healthy = free_port(), str(tmp_path / "alerts")
    with open_broken_sinks(tmp_path, monkeypatch) as sinks:
        broken = [sinks.names[kind] for kind in REASONS]
        more = f'[kafka]\nbootstrap_servers = "{sinks.kafka.address}"'
        conf = configured(tmp_path / "job", f'folder = "{tmp_path}/events"', [*sinks.alerts.values()], port, more)
        process = begun(runner, conf)
        sinks.stack.callback(process.kill)
        wait_for(lambda: has_all_but(port, [healthy], broken))

        def are_named() -> bool:
            (code, health), up = asked(port, "/health"), [m for m in metrics(port) if m.startswith("cep_sink_up")]
            return code == 503 and all(is_named(sinks, kind, health, up) for kind in REASONS)

        wait_for(are_named)
        assert status(port, "/ready") == 503
        assert verify_end(process, tmp_path / "said") == len(ids(lines_of(Path(healthy)))) > 0
        log = [orjson.loads(line) for line in (tmp_path / "said").read_bytes().splitlines() if line.startswith(b"{")]
        logged = {(line["sink"], line["address"]): line["reason"] for line in log if line["event"] == "sink_away"}
        assert all(logged[sinks.names[kind], sinks.addresses[kind]] in reasons for kind, reasons in REASONS.items())

        process = begun(runner, conf)
        sinks.stack.callback(process.kill)
        wait_for(lambda: has_all_but(port, [healthy], broken))
        assert killed(process)
        assert process.returncode == -signal.SIGKILL

        sinks.repair()
        last = begun(runner, conf, "--available-now")
        sinks.stack.callback(last.kill)
        _, complaint = last.communicate(timeout=WAIT_S)
        assert last.returncode == 0, complaint.decode()
        alerts = sinks.taken()
        if runner == "run":
            assert alerts["folder"] == ids(expected(morning(), deployment(), tmp_path))
        assert set(alerts["folder"].values()) == {1}
        assert {kind: counts for kind, counts in alerts.items() if counts != alerts["folder"]} == {}


# A real sink that hangs or refuses delays no other sink: it is named, it survives kill -9, and no alert is lost.

ALERT_BYTES_MAX = 200  # of a topic that takes no alert


def killed(process: subprocess.Popen[bytes]) -> bytes:
    """Kill a job and all its processes without notice; return what it has said."""
    os.killpg(process.pid, signal.SIGKILL)
    _, log = process.communicate(timeout=WAIT_S)
    return log


def value(port: int, name: str, sink: str) -> float:
    """A metric of a sink; -1 if there is none."""
    start = f'{name}{{sink="{sink}"}} '
    return next((float(line.removeprefix(start)) for line in metrics(port) if line.startswith(start)), -1.0)


def has_all_but(port: int, healthy: list[str], waiting: list[str]) -> bool:
    """True if alerts wait for some sinks, and the others have taken all."""
    if status(port, "/live") == 0:
        return False
    counts = {name: value(port, "cep_sink_waiting_alerts", name) for name in (*healthy, *waiting)}
    delivered = {name: value(port, "cep_alerts_delivered_total", name) for name in healthy}
    is_waiting = min(counts[name] for name in waiting) > 0
    return is_waiting and max(counts[name] for name in healthy) == 0 and min(delivered.values()) > 0


def ids(lines: list[bytes]) -> Counter[str]:
    return Counter(orjson.loads(line)["alert_id"] for line in lines)


def lines_of(folder: Path) -> list[bytes]:
    return [line for path in folder.iterdir() for line in path.read_bytes().splitlines()]


def test_sinks_that_hang_or_refuse_delay_no_other(real_broker: RealKafka, tmp_path: Path) -> None:
    """A webhook hangs, and alerts are too large for a topic; a topic, a folder and a table have all meanwhile."""
    good, small = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("good", "small"))
    real_broker.create(good, 1)
    real_broker.create(small, 1, max_message_bytes=str(ALERT_BYTES_MAX))
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(morning()))
    port, hook, folder = free_port(), Hanging(), str(tmp_path / "alerts")
    with ExitStack() as stack:
        stack.callback(hook.close)
        healthy, broken = [f"kafka:{good}", folder], [url_of(hook.server), f"kafka:{small}"]
        table: RealPostgres | None = None
        if IS_THERE:
            table = RealPostgres()
            stack.callback(table.close)
            healthy.append(table.address.replace("cep@", "…@"))
        sinks = [*broken, *healthy[:2], *([] if table is None else [table.address])]
        more = f'[kafka]\nbootstrap_servers = "{real_broker.address}"'
        conf = configured(tmp_path / "run", f'folder = "{tmp_path}/events.jsonl"', sinks, port, more)
        process = begun("run", conf)
        stack.callback(process.kill)
        wait_for(lambda: has_all_but(port, healthy, broken))
        wait_for(lambda: all(f"{name}" in asked(port, "/health")[1] for name in broken))
        code, health = asked(port, "/health")
        assert code == 503
        assert f"kafka:{small} at {real_broker.address}: an alert is larger than it allows" in health
        up = [line for line in metrics(port) if line.startswith("cep_sink_up")]
        address = f'address="{real_broker.address}"'
        assert f'cep_sink_up{{{address},reason="too_large",sink="kafka:{small}"}} 0.0' in up
        assert any(f'sink="{broken[0]}"}} 0.0' in line for line in up)
        assert all(any(f'reason="",sink="{name}"}} 1.0' in line for line in up) for name in healthy)
        log_text = killed(process).decode()
        assert any(
            small in line and real_broker.address in line for line in log_text.splitlines() if "unhealthy" in line
        )
        raise_limit(real_broker, small)
        hook.released.set()
        assert begun("run", conf, "--available-now").wait(WAIT_S) == 0
        expected_ids = ids(expected(morning(), deployment(), tmp_path))
        assert ids(lines_of(Path(folder))) == expected_ids
        for topic in (good, small):
            alerts = consumed(real_broker.address, topic, lambda values: len(values) >= len(expected_ids))
            assert ids(alerts) == expected_ids, topic
        assert set(hook.taken) == set(expected_ids)
        if table is not None:
            with psycopg.connect(table.address) as connection:
                rows = connection.execute("select alert_id from cep_alerts").fetchall()
            assert {row[0] for row in rows} == set(expected_ids)


def raise_limit(kafka: KafkaCluster, topic: str) -> None:
    """Let a topic take records of a megabyte."""
    limit = ConfigEntry("max.message.bytes", "1048576", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[limit])
    admin = AdminClient({"bootstrap.servers": kafka.address, "log_level": 2})
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)


def test_refused_alerts_in_a_topic_are_listed_and_sent_again(
    kafka_broker: KafkaCluster, tmp_path: Path, output_of: OutputOf
) -> None:
    topic, unwanted = f"letters-{uuid.uuid4().hex[:8]}", list[str]()
    kafka_broker.create(topic, 1)
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(morning()))
    receiver = Judge()

    def judge(names: list[str]) -> int:
        unwanted.append(names[0]) if not unwanted else None
        return 422 if unwanted[0] in names else 204

    receiver.judge = judge
    name = url_of(receiver.server)
    conf = configured(
        tmp_path / "run", f'folder = "{tmp_path}/events.jsonl"', [name], free_port(),
        f'[kafka]\nbootstrap_servers = "{kafka_broker.address}"',
    )  # fmt: skip
    conf.write_text(conf.read_text().replace("[output]\n", f'[output]\ndead_letter_topic = "{topic}"\n'))
    try:
        assert main(["run", "--conf", str(conf), "--available-now"]) == 0
        where = [f"kafka:{topic}", "--conf", str(conf)]
        output_of.read()
        shown = output_of(main(["job", "letters", "list", *where]), 1).out
        assert unwanted[0] in shown
        assert f"1 alerts were refused by {name}" in shown
        assert f"{name}: 0 alerts sent, 1 refused again" in output_of(main(["job", "letters", "send", *where]), 1).out
        receiver.judge = lambda _: 204
        assert main(["job", "letters", "send", *where]) == 0
        expected_ids = ids(expected(morning(), deployment(), tmp_path))
        assert Counter(receiver.taken) == expected_ids
    finally:
        receiver.server.shutdown()
        receiver.server.server_close()


# Each wait for another machine ends on request, with 0 and the count of waiting alerts; the list names its test.

RUNNERS = [pytest.param("run", marks=pytest.mark.always), pytest.param("live", marks=pytest.mark.spark)]
AVRO = b"\0\0\0\0\7record"  # a record whose schema has the number 7
# Calls that may wait for something outside of the thread, by file → the test that ends a job in it, or `local` and why
# it ends by itself.
_STOPS, _SINKS, _HERE = "test_run.py::", "test_sinks.py::test_broken_sinks_of_every_kind", "test_sinks.py::"
_FROZEN, _REGISTRY = f"{_HERE}test_a_frozen_broker", f"{_HERE}test_a_registry_that_gives_no_answer"
_BROKERS, _STORE = f"{_STOPS}test_a_job_that_waits_ends_on_request", f"{_HERE}test_a_target_that_gives_no_answer"
_STANDBY = "test_outage.py::test_the_work_goes_back_and_forth"
WAITS = {
    "base/files.py": "local: the disk", "base/kafka.py": _FROZEN, "cli/main.py": "local: standard output",
    "runners/stopping.py": "local: the wait for the stop request itself",
    "kernels/compiler.py": "local: another process of this machine compiles",
    "rulebook/kafka.py": _FROZEN, "runners/ahead.py": "local: a process of our own that compiles",
    "runners/compiling.py": "local: a line on the terminal", "runners/observe.py": "local: the log",
    "runners/embedded/changelog.py": _FROZEN,
    "runners/embedded/queues.py": _SINKS, "runners/embedded/commit.py": _SINKS,
    "runners/embedded/copies.py": _STORE, "runners/embedded/deliveries.py": _SINKS,
    "runners/embedded/kafka.py": _STANDBY,
    "runners/embedded/outlets.py": _STANDBY, "runners/embedded/run.py": _FROZEN,
    "runners/embedded/job.py": _STANDBY, "runners/fired_files.py": "local: the disk",
    "runners/java.py": "local: a program that prints its version", "runners/live_checkpoint.py": "local: a file",
    "runners/patience.py": _SINKS, "runners/spark/live.py": _FROZEN, "runners/spark/live_output.py": _SINKS,
    "runners/spark/sink_queue.py": _SINKS, "runners/spark/kafka_events.py": _REGISTRY,
    "runners/spark/kafka.py": _REGISTRY,
    "runners/warm.py": "local: a process of our own that compiles", "runners/watch.py": _BROKERS,
    "sinks/kafka.py": _SINKS, "sinks/lake.py": _SINKS, "sinks/postgres.py": _SINKS,
    "sinks/webhook.py": _SINKS, "sources/kafka.py": _BROKERS,
    "sources/live/files.py": "local: a folder", "sources/live/kafka.py": _FROZEN,
    "sources/registry/kafka.py": _REGISTRY,
    "state/checkpoints.py": _STORE, "state/rocks.py": "local: the disk", "state/target.py": _STORE,
}  # fmt: skip
_WAIT = re.compile(
    r"\.poll\(|\bconnect\(|create_connection|\.execute|\.flush\(|urlopen|boto|sleep\(|\bwait\(|\.result\(|\.post\(|"
    r"list_topics|\.consume\(|_transactions?\(|describe_topics|create_topics|watermark_offsets\(|offsets_for_times|"
    r"\.committed\(|url_to_fs|awaitTermination|recv\(|fsync|flock|get_schema|DeltaTable\(|write_deltalake|self\._files\.\w+\(|read_range\(|latest_offsets\(|subprocess\.run"
)
# What no job does: verbs that a person waits for, and what a replay or the demo waits for.
_OF_PERSONS = (
    "demo/", "api/", "testing/", "analysis/", "cli/test.py", "cli/letters.py", "cli/shadow.py", "cli/lsp.py",
    "runners/control_topic.py", "rulebook/files.py",
    "runners/embedded/replay.py", "runners/embedded/savepoint.py", "runners/spark/progress.py", "nfa/", "columnar/",
    "lang/", "docs/",
)  # fmt: skip


def test_every_wait_has_a_test() -> None:
    waits = {
        str(path.relative_to(ROOT / "cep"))
        for path in (ROOT / "cep").rglob("*.py")
        if any(_WAIT.search(line.partition("#")[0]) for line in path.read_text().splitlines())
    }
    waits = {name for name in waits if not name.startswith(_OF_PERSONS)}
    assert waits == set(WAITS)
    for named in {test for test in WAITS.values() if not test.startswith("local: ")}:
        file, _, function = named.partition("::")
        assert f"def {function}(" in (ROOT / "tests" / "cli" / file).read_text(), named


@pytest.mark.parametrize(
    ("error", "ends"),
    [(SourceAwayError, True), (SinkAwayError, True), (StoreAwayError, True), (StoreError, False), (SinkError, False)],
)
def test_a_machine_that_is_away_is_no_failure_of_a_job_that_is_asked_to_stop(
    error: Callable[[str], CepError], ends: bool
) -> None:
    with Stopping() as stop:
        assert not stop.ends(error("no answer")), "nobody has asked"
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(stop.event.is_set)
        assert stop.ends(error("no answer")) is ends


def test_a_target_that_gives_no_answer(tmp_path: Path) -> None:
    """An object store that hangs while a job works and while it starts, then one that answers 503."""
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "1.jsonl").write_bytes(b"\n".join(morning()[:700]))
    port = free_port()
    with open_s3() as s3, ExitStack() as stack:
        more = f'[embedded]\ntarget = "{s3.url("job")}"\ncheckpoints = "500 ms"'
        folder, place = f'folder = "{tmp_path}/events"', int(s3.address.rpartition(":")[2])
        conf = configured(tmp_path / "run", folder, [str(tmp_path / "alerts")], port, more)
        process = begun("run", conf)
        stack.callback(process.kill)
        wait_for(lambda: any("manifest" in name for name in s3.objects("job")))
        s3.stop()
        store = Silent(place)
        stack.callback(store.close)
        (tmp_path / "events" / "2.jsonl").write_bytes(b"\n".join(morning()[700:1_400]))
        store.asked.get(timeout=WAIT_S)
        assert verify_end(process) == 0, "the alerts are in their folder"
        while not store.asked.empty():
            store.asked.get()
        process = begun("run", conf)
        stack.callback(process.kill)
        store.asked.get(timeout=WAIT_S)
        assert verify_end(process) == 0
        store.close()
        s3.start()
        process = begun("run", conf)
        stack.callback(process.kill)
        wait_for(lambda: status(port, "/ready") == 200)
        s3.stop()
        stack.callback(Answering(place, 503).close)
        (tmp_path / "events" / "3.jsonl").write_bytes(b"\n".join(morning()[1_400:]))
        wait_for(lambda: "cep_checkpoints_failed_total 0.0" not in metrics(port))
        assert 'cep_part_up{part="checkpoints"} 0.0' in metrics(port)
        assert verify_end(process) == 0


@pytest.mark.slow
@pytest.mark.parametrize("runner", RUNNERS)
def test_a_registry_that_gives_no_answer(runner: str, tmp_path: Path) -> None:
    registry, port = Silent(), free_port()
    with RealKafka() as kafka, ExitStack() as stack:
        stack.callback(registry.close)
        kafka.create("payments", 1)
        kafka.send("payments", [{"value": AVRO, "partition": 0}])
        events = f'topic = "payments"\nformat = "avro"\nregistry = {{ "url" = "http://127.0.0.1:{registry.port}" }}'
        more = f'[kafka]\nbootstrap_servers = "{kafka.address}"'
        process = begun(runner, configured(tmp_path / "job", events, [str(tmp_path / "alerts")], port, more))
        stack.callback(process.kill)
        registry.asked.get(timeout=WAIT_S)
        assert verify_end(process) == 0


def controls(port: int) -> float:
    """Return how many control records a job has judged."""
    names = ("cep_control_applied_total ", "cep_control_refused_total ")
    return sum(float(line.split()[-1]) for line in metrics(port) if line.startswith(names))


@pytest.mark.slow
@pytest.mark.parametrize("runner", RUNNERS)
def test_a_frozen_broker(runner: str, tmp_path: Path) -> None:
    """Alerts, status and, of `cep run`, state go to topics. The broker freezes while the job works, and at a start."""
    for name in ("events", "control"):
        (tmp_path / name).mkdir()
    (tmp_path / "events" / "1.jsonl").write_bytes(b"\n".join(morning()[:700]))
    port, topic = free_port(), "kafka:alerts"
    with RealKafka() as kafka, ExitStack() as stack:
        kafka.create("alerts", 1)
        more = f'[kafka]\nbootstrap_servers = "{kafka.address}"\n[control]\nfolder = "{tmp_path}/control"\n'
        more += 'status_topic = "status"\n' + ('[embedded]\nchangelog = "state"\n' if runner == "run" else "")
        conf = configured(tmp_path / "job", f'folder = "{tmp_path}/events"', [topic], port, more)
        process = begun(runner, conf)
        stack.callback(process.kill)
        wait_for(lambda: status(port, "/ready") == 200 and "cep_events_total 700.0" in metrics(port))
        assert kafka._process is not None
        kafka._process.send_signal(signal.SIGSTOP)
        (tmp_path / "events" / "2.jsonl").write_bytes(b"\n".join(morning()[700:]))
        wait_for(lambda: value(port, "cep_sink_waiting_alerts", topic) > 0)
        wait_for(lambda: f"{topic} at {kafka.address}: it has not answered" in asked(port, "/health")[1])
        pause = PauseRecord(id="card_testing", version=1)
        (tmp_path / "control" / "1.jsonl").write_bytes(pause.to_json())
        wait_for(lambda: controls(port) > 0)  # though the status topic hangs
        undelivered = verify_end(process)
        assert undelivered > 0
        process = begun(runner, conf)
        stack.callback(process.kill)
        wait_for(lambda: status(port, "/health") == 503)
        assert verify_end(process) >= undelivered, "those of the first start wait, too"
        kafka._process.send_signal(signal.SIGCONT)
        process = begun(runner, conf)
        stack.callback(process.kill)
        wait_for(lambda: status(port, "/ready") == 200 and value(port, "cep_sink_waiting_alerts", topic) == 0)
        killed(process)
        delivered = ids(consumed(kafka.address, "alerts", lambda values: len(values) > undelivered))
        assert set(delivered.values()) == {1}
