"""Each wait for another machine ends on request, with 0 and the count of waiting alerts; the list names its test."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from cep.base.errors import CepError, SinkAwayError, SinkError, SourceAwayError, StoreAwayError, StoreError
from cep.model.rule import PauseRecord
from cep.runners.stopping import Stopping
from tests.cli.broken_sinks import Answering
from tests.cli.test_outage import metrics, status, wait_for
from tests.cli.test_refused_alerts import asked
from tests.cli.test_run import free_port
from tests.cli.test_sink_queues import begun, configured, ids, killed, value
from tests.cli.test_stopping import WAIT_S, Silent, verify_end
from tests.real_kafka import RealKafka
from tests.real_s3 import open_s3
from tests.runners.embedded.cases import morning
from tests.runners.embedded.test_run import ROOT, consumed

RUNNERS = [pytest.param("run", marks=pytest.mark.always), pytest.param("live", marks=pytest.mark.spark)]
AVRO = b"\0\0\0\0\7record"  # a record whose schema has the number 7
# Calls that may wait for something outside of the thread, by file → the test that ends a job in it, or `local` and why
# it ends by itself.
_STOPS, _SINKS, _HERE = "test_stopping.py::", "test_broken_sinks.py::test_broken_sinks_of_every_kind", "test_waits.py::"
_FROZEN, _REGISTRY = f"{_HERE}test_a_frozen_broker", f"{_HERE}test_a_registry_that_gives_no_answer"
_BROKERS, _STORE = f"{_STOPS}test_a_job_that_waits_ends_on_request", f"{_HERE}test_a_target_that_gives_no_answer"
_STANDBY = "test_standby.py::test_the_work_goes_back_and_forth"
WAITS = {
    "base/durable.py": "local: the disk", "base/kafka.py": _FROZEN, "cli/main.py": "local: standard output",
    "runners/stopping.py": "local: the wait for the stop request itself",
    "kernels/compiler.py": "local: another process of this machine compiles",
    "rulebook/kafka.py": _FROZEN, "runners/ahead.py": "local: a process of our own that compiles",
    "runners/compiling.py": "local: a line on the terminal", "runners/embedded/changelog.py": _FROZEN,
    "runners/embedded/sink_queues.py": _BROKERS, "runners/embedded/commit.py": _SINKS,
    "runners/embedded/kafka.py": _STANDBY, "runners/embedded/lanes.py": _SINKS,
    "runners/embedded/outlets.py": _STANDBY, "runners/embedded/run.py": _FROZEN,
    "runners/embedded/standby.py": _STANDBY, "runners/fired_files.py": "local: the disk",
    "runners/java.py": "local: a program that prints its version", "runners/live_checkpoint.py": "local: a file",
    "runners/patience.py": _SINKS, "runners/spark/live.py": _FROZEN, "runners/spark/live_output.py": _SINKS,
    "runners/spark/sink_queue.py": _SINKS, "runners/spark/kafka_events.py": _REGISTRY,
    "runners/spark/kafka.py": _REGISTRY,
    "runners/warm.py": "local: a process of our own that compiles", "runners/watch.py": _BROKERS,
    "sinks/kafka.py": _FROZEN, "sinks/lake.py": _SINKS, "sinks/postgres.py": _SINKS,
    "sinks/transactions/kafka.py": _SINKS, "sinks/webhook.py": _SINKS, "sources/kafka.py": _BROKERS,
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
    "demo/", "api/", "testing/", "analysis/", "cli/test.py", "cli/letters.py", "cli/shadow.py",
    "runners/control_topic.py", "rulebook/files.py",
    "runners/embedded/replay.py", "runners/embedded/savepoint.py", "runners/spark/progress.py", "nfa/", "columnar/",
    "lang/", "docs/",
)  # fmt: skip


def test_every_wait_has_a_test() -> None:
    found = {
        str(path.relative_to(ROOT / "cep"))
        for path in (ROOT / "cep").rglob("*.py")
        if any(_WAIT.search(line.partition("#")[0]) for line in path.read_text().splitlines())
    }
    found = {name for name in found if not name.startswith(_OF_PERSONS)}
    assert found == set(WAITS)
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


@pytest.mark.slow
@pytest.mark.always
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
        left = verify_end(process)
        assert left > 0
        process = begun(runner, conf)
        stack.callback(process.kill)
        wait_for(lambda: status(port, "/health") == 503)
        assert verify_end(process) >= left, "those of the first start wait, too"
        kafka._process.send_signal(signal.SIGCONT)
        process = begun(runner, conf)
        stack.callback(process.kill)
        wait_for(lambda: status(port, "/ready") == 200 and value(port, "cep_sink_waiting_alerts", topic) == 0)
        killed(process)
        found = ids(consumed(kafka.address, "alerts", lambda values: len(values) > left))
        assert set(found.values()) == {1}
