"""`cep run`: its options and results, refused alerts, the end on request, and its log."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import orjson
import psycopg
import pytest
from confluent_kafka import Producer

from cep.base.exits import Exit
from cep.cli.given_events import checked_alert
from cep.cli.main import main
from cep.runners.assembly import runs_text, tell_runs
from cep.runners.embedded.reports import ProgressLines
from cep.runners.live_checkpoint import lock_checkpoint
from cep.runners.meanings import forget_open_runs, open_runs
from cep.runners.observe import Log, Observed
from cep.sinks.postgres import _TABLE as TABLE
from cep.sources.live.files import FilesSource
from cep.state.savepoints import NAME
from tests.base.test_durable import readable_by_others
from tests.cli.monitored import missing
from tests.mock_kafka import send_all
from tests.output_of import OutputOf
from tests.real_postgres import IS_THERE, RealPostgres
from tests.rule_files import rule_text
from tests.rulebook.carry_cases import drawn
from tests.rulebook.test_carry import outcome_of
from tests.runners.embedded.cases import day, deployment, expected, morning
from tests.spark_versions import on_this_spark
from tests.state.test_manifest import forged
from tests.webhook import Handler, serving, url_of

# `cep run`: refuses senseless options; files and standard input to alerts; continues where it stopped.

ROOT = Path(__file__).parents[2]
RULES = str(ROOT / "rules")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "give the events"),
        (["--events", "x", "--topic", "y", "--bootstrap-servers", "z"], "give the events"),
        (["--topic", "y"], "needs --bootstrap-servers"),
        (["--events", "x", "--alerts", "kafka:alerts"], "needs --bootstrap-servers"),
        (["--events", "x", "--control", "a", "--control-topic", "b"], "not both"),
        (["--events", "x"], "there is no file or folder at x"),
        (["--events", "-", "--groups", "0-40000"], "below the job's"),
        (["--events", "-", "--groups", "7"], "give first-last"),
        (["--events", "x", "--workers", "0"], "$.embedded.workers"),
        (["--events", "x", "--format", "avro", "--schema-file", "y"], "avro is read from a topic only"),
        (["--topic", "x", "--bootstrap-servers", "y", "--format", "avro"], "a schema file"),
    ],
)
def test_bad_arguments(output_of: OutputOf, words: list[str], reason: str) -> None:
    assert reason in output_of(main(["run", "--rules", RULES, *words]), Exit.USAGE).err


def test_rules_are_needed(output_of: OutputOf) -> None:
    assert "give --rules" in output_of(main(["run", "--events", "-"]), Exit.USAGE).err


def written(folder: Path) -> list[bytes]:
    return [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize("store", ["memory", "rocksdb"])
def test_a_job_goes_on_where_it_was(store: str, tmp_path: Path, output_of: OutputOf) -> None:
    lines, batch_ids = [*day(), b"{"], list[int]()
    (tmp_path / "events").mkdir()
    arguments = [
        "run", "--rules", RULES, "--events", str(tmp_path / "events"), "--alerts", str(tmp_path / "alerts"),
        "--checkpoint", str(tmp_path / "job"), "--store", store, "--available-now", "--workers",
    ]  # fmt: skip
    for number in range(3):
        part = lines[number * 2_500 : (number + 1) * 2_500]
        (tmp_path / "events" / f"{number}.jsonl").write_bytes(b"\n".join(part))
        assert ("the job goes on" if number else "the job begins") in output_of(main([*arguments, str(1 + number)])).err
        batch_ids.append(json.loads((tmp_path / "job" / "progress.json").read_bytes())["batch_id"])
    assert batch_ids == sorted(set(batch_ids)), "micro-batches are counted for the job's whole life"
    assert sorted(written(tmp_path / "alerts")) == sorted(expected(list(day()), deployment(), tmp_path))
    assert len(written(tmp_path / "job" / "dead_letters")) == 1
    assert not readable_by_others(tmp_path / "job", tmp_path / "alerts")
    saved = ["job", "savepoint", "--checkpoint", str(tmp_path / "job"), "--to", str(tmp_path / "saved")]
    assert main(saved) == 0
    restore = ["job", "restore", "--from", str(tmp_path / "saved")]
    assert main([*restore, "--checkpoint", str(tmp_path / "again"), "--name", "none"]) == Exit.USAGE
    assert main([*restore, "--list"]) == 0
    assert main(["job", "restore", "--from", str(tmp_path / "sved"), "--list"]) == Exit.USAGE
    assert main([*restore, "--checkpoint", str(tmp_path / "again"), "--groups", "²-³"]) == Exit.USAGE
    assert main([*restore, "--checkpoint", str(tmp_path / "again")]) == 0
    assert not readable_by_others(tmp_path / "saved", tmp_path / "again")
    output_of.read()
    forged(tmp_path / "saved", NAME, f"beside/{tmp_path}/victim", b"bad")
    assert main(["job", "restore", "--from", str(tmp_path / "saved"), "--checkpoint", str(tmp_path / "forged")]) != 0
    assert "outside of" in output_of.read().err
    assert not [*tmp_path.rglob("victim"), *tmp_path.glob("forged")]


def test_standard_input_without_java_or_spark(tmp_path: Path) -> None:
    """The libraries of frames and of signatures are not loaded either: they would only make a start longer."""
    absent = "dict.fromkeys(('pyspark', 'narwhals', 'cryptography'))"
    script = f"import sys; sys.modules |= {absent}; from cep.cli.main import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAVA_HOME": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-c", script, "run", "--rules", RULES, "--events", "-", "--alerts", str(tmp_path / "alerts")],
        input=b"\n".join(day()),
        env=environment,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr.decode()
    assert b"nothing is kept" in process.stderr
    assert sorted(written(tmp_path / "alerts")) == sorted(expected(list(day()), deployment(), tmp_path))


def test_a_single_file_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(day()[:10]))
    source = FilesSource(path, follow=True)
    assert sum(len(chunk) for chunk in source.poll(100, 0.0)) + sum(len(c) for c in source.poll(100, 0.0)) == 10
    assert source.poll(100, 0.0) == []
    assert source.ended


def test_a_job_whose_broker_is_silent_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job is unhealthy, though neither a restart nor more records would help; its log has start and end."""
    monkeypatch.setattr("cep.runners.assembly.WATCH_MS", 1_000)
    broker = subprocess.Popen(
        [sys.executable, "-m", "tests.mock_kafka"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert broker.stdout is not None
    address = broker.stdout.readline().strip()
    lines = day()[:200]
    records: Any = ({"value": line, "partition": number % 4} for number, line in enumerate(lines))
    send_all(Producer({"bootstrap.servers": address, "log_level": 2}), "payments", records, 30)
    statuses_in_order: list[tuple[int, int, int]] = []
    scraped: list[str] = []
    port = free_port()

    def look(until: Callable[[tuple[int, int, int]], bool]) -> None:
        for _ in range(600):
            statuses = (asked(port, "/live")[0], asked(port, "/ready")[0], asked(port, "/health")[0])
            if until(statuses):
                break
            time.sleep(0.05)
        statuses_in_order.append(statuses)

    def operate() -> None:
        try:
            look(lambda statuses: statuses == (200, 200, 200))
            for _ in range(600):
                scraped.append(asked(port, "/metrics")[1])
                if "cep_events_total 200.0" in scraped[-1]:
                    break
                time.sleep(0.05)
            broker.send_signal(signal.SIGSTOP)
            look(lambda statuses: statuses[2] == 503)
            broker.send_signal(signal.SIGCONT)
            look(lambda statuses: statuses[2] == 200)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    operator = threading.Thread(target=operate)
    operator.start()
    try:
        arguments = ["--topic", "payments", "--bootstrap-servers", address, "--checkpoint", str(tmp_path / "job")]
        assert main(["run", "--rules", RULES, *arguments, "--listen", str(port), "--log", "json"]) == 0
    finally:
        operator.join()
        broker.kill()
        broker.wait()
    assert missing(scraped[-1], is_embedded=True) == set(), "what alert rules and the dashboard ask for is there"
    assert statuses_in_order == [(200, 200, 200), (200, 200, 503), (200, 200, 200)]
    log_lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in log_lines] == ["started", "rules", "progress", "unhealthy", "healthy", "ended"]
    assert log_lines[3]["part"] == log_lines[4]["part"] == "brokers"


def asked(port: int, path: str) -> tuple[int, str]:
    """Return the status and the answer of a job's port, 0 if it does not listen."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        number: int = one.getsockname()[1]
        return number


def test_a_second_process_is_told_of_the_job_and_not_of_its_port(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(day()[:10]))
    job = ["run", "--rules", RULES, "--events", str(tmp_path / "events.jsonl"), "--checkpoint", str(tmp_path / "job")]
    with socket.create_server(("127.0.0.1", 0)) as listener, lock_checkpoint(tmp_path / "job"):
        assert main([*job, "--listen", str(listener.getsockname()[1])]) == Exit.USAGE
    assert "is in use by process" in capsys.readouterr().err


# A webhook judges: an answer about the receiver makes the job wait, one about an alert makes a dead letter.


@dataclass
class Judge:
    """A receiver whose `judge` chooses the status of the answer to the alerts of a request."""

    judge: Callable[[list[str]], int] = lambda _: 204
    taken: list[str] = field(default_factory=list)
    server: ThreadingHTTPServer = field(init=False)

    def __post_init__(self) -> None:
        judge = self

        class Judging(Handler):
            def status_of(self, body: bytes) -> int:
                names = [orjson.loads(line)["alert_id"] for line in body.splitlines()]
                status = judge.judge(names)
                judge.taken += names if status == 204 else []
                return status

        self.server = serving(Judging)


@pytest.fixture
def receiver() -> Iterator[Judge]:
    judge = Judge()
    yield judge
    judge.server.shutdown()
    judge.server.server_close()


def test_every_alert_arrives_or_is_a_letter_that_can_be_sent_again(
    receiver: Judge, tmp_path: Path, output_of: OutputOf
) -> None:
    port, refusals, unwanted = free_port(), dict[str, tuple[int, str]](), set[str]()

    def judge(names: list[str]) -> int:
        """Refuse access first; then, after the job has reported it, refuse one alert of the first request."""
        if not refusals:
            refusals["first"] = (0, "")
            return 401
        if len(refusals) == 1:
            refusals.update({path: asked(port, path) for path in ("/live", "/ready", "/health", "/metrics")})
            unwanted.add(names[len(names) // 2])
        return 400 if unwanted & set(names) else 204

    receiver.judge = judge
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(morning()))
    conf = tmp_path / "cep.toml"
    conf.write_text(
        f"""[job]
rules = {json.dumps(RULES)}
checkpoint = "{tmp_path}/job"
[events]
folder = "{tmp_path}/events.jsonl"
[output]
alerts = ["{url_of(receiver.server)}?token=hidden", "{tmp_path}/alerts"]
webhook = {{ secret = "known" }}
[observe]
listen = "{port}"
log = "json"
"""
    )
    assert main(["run", "--conf", str(conf), "--available-now"]) == 0
    log_lines = [json.loads(line) for line in output_of.read().err.splitlines() if line.startswith("{")]
    name = f"{url_of(receiver.server)}?…"
    assert (refusals["/live"][0], refusals["/ready"][0], refusals["/health"][0]) == (200, 503, 503)
    assert f"{name}: it refuses access; check" in refusals["/health"][1]
    assert f'cep_sink_up{{address="{name}",reason="access",sink="{name}"}} 0.0' in refusals["/metrics"][1]
    (refusal,) = [line for line in log_lines if line["event"] == "alerts_refused"]
    assert (refusal["sink"], refusal["count"], refusal["reason"]) == (name, 1, f"{name} answered 400")
    assert log_lines[-1][f"alerts_refused[{name}]"] == 1
    assert log_lines[-1]["deliveries_retried"] == 1
    assert "hidden" not in json.dumps(log_lines)
    written = [
        orjson.loads(line) for path in (tmp_path / "alerts").iterdir() for line in path.read_bytes().splitlines()
    ]
    alert_ids = {alert["alert_id"] for alert in written}
    assert sorted(receiver.taken) == sorted(alert_ids - unwanted)

    letters = str(tmp_path / "job" / "dead_letters")
    shown = output_of(main(["job", "letters", "list", letters]), 1).out
    assert f"1 alerts were refused by {name}" in shown
    assert next(iter(unwanted)) in shown
    (tmp_path / "job" / "dead_letters" / "other.jsonl").write_bytes(b"[1]\n")
    assert main(["job", "letters", "send", letters, "--conf", str(conf)]) == 1
    assert f"{name}: 0 alerts sent, 1 refused again" in output_of.read().out
    unwanted_before, receiver.judge = set(unwanted), lambda _: 204
    assert main(["job", "letters", "send", letters, "--conf", str(conf)]) == 0
    assert sorted(receiver.taken) == sorted(alert_ids)
    assert receiver.taken[-1] in unwanted_before
    assert "no refused alerts" in output_of(main(["job", "letters", "list", letters])).out


# A line that is not an alert is refused, and the message names the wrong field.

FIELDS = ("rule_id", "version", "events", "detected_at")
GOOD = {"rule_id": "a", "version": 1, "events": [{"event_id": "e"}], "detected_at": "2026-03-01T10:00:00Z", "more": []}


def test_an_alert_is_returned_as_it_is() -> None:
    assert checked_alert(GOOD, FIELDS) is GOOD


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [None, 1.5, True, {}, [1], [{}], [{"event_id": 1}]])
def test_a_field_of_another_shape_is_named(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"`{field}` is not"):
        checked_alert({**GOOD, field: value}, FIELDS)
    with pytest.raises(ValueError, match=f"`{field}` is missing"):
        checked_alert({name: good_value for name, good_value in GOOD.items() if name != field}, FIELDS)


@pytest.mark.parametrize("value", [None, 1, "alert", [GOOD]])
def test_what_is_no_object_is_no_alert(value: Any) -> None:
    with pytest.raises(ValueError, match="no object"):
        checked_alert(value, FIELDS)


# A job that waits for another machine ends on request, with 0. It sends its alerts after the next start.

WAIT_S = 300
GRACE_S = 15  # of the unit of systemd and the manifests: later they kill the job
CONF = """[job]
rules = {rules}
checkpoint = "{folder}/job"
[events]
{events}
[output]
alerts = [{alerts}]
webhook = {{ secret = "known" }}
[observe]
log = "json"
{more}
"""


class Silent:
    """A server that takes connections and never answers: `asked` gets an item for each."""

    def __init__(self, port: int = 0) -> None:
        self.asked: SimpleQueue[None] = SimpleQueue()
        self._listener = socket.create_server(("127.0.0.1", port))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._take, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def _take(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            self.asked.put(None)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # or `accept` holds the port
        for one in (self._listener, *self._open):
            one.close()


def configured(folder: Path, events: str, alerts: list[str], port: int | None = None, more: str = "") -> Path:
    """Write the settings of a job into its folder."""
    folder.mkdir(exist_ok=True)
    shown = ", ".join(map(json.dumps, alerts))
    observed = more if port is None else f'listen = "{port}"\n{more}'
    text = CONF.format(rules=json.dumps(RULES), folder=folder, events=events, alerts=shown, more=observed)
    (folder / "cep.toml").write_text(text)
    return folder / "cep.toml"


def begun(verb: str, conf: Path, *more: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start a job in a process group of its own, which has Spark's Java in it."""
    return subprocess.Popen(
        [sys.executable, "-c", "from cep.cli.main import entry; entry()", verb, "--conf", str(conf), *more],
        env={**on_this_spark(), "PYTHONPATH": str(ROOT), **environment}, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


@contextmanager
def locked(postgres: RealPostgres) -> Iterator[None]:
    """Hold a lock on the table until the end of the block."""
    with psycopg.connect(postgres.address) as connection:
        connection.execute(TABLE)
        connection.commit()
        connection.execute("lock table cep_alerts in access exclusive mode")
        yield


def wait_for_lock(postgres: RealPostgres) -> None:
    """Wait until a session of a job waits for the lock."""
    with psycopg.connect(postgres.address, autocommit=True) as connection:
        while not connection.execute("select 1 from pg_locks where not granted").fetchall():
            connection.execute("select pg_sleep(0.05)")


def verify_end(process: subprocess.Popen[bytes], log_path: Path | None = None) -> int:
    """Ask a job to stop; return how many alerts it leaves to the next start. Its lines go to `log_path`."""
    began_s = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(GRACE_S)
    print(f"ended after {time.monotonic() - began_s:.1f} s")
    _, log = process.communicate(timeout=WAIT_S)  # Spark's Java has the same standard error, and may end later
    assert process.returncode == 0, log.decode()
    if log_path is not None:
        log_path.write_bytes(log)
    lines = [orjson.loads(line) for line in log.splitlines() if line.startswith(b"{")]
    assert lines[-1]["event"] == "ended", log.decode()
    return next((int(line["count"]) for line in lines if line["event"] == "undelivered"), 0)


def test_a_job_that_waits_ends_on_request(tmp_path: Path) -> None:
    """Jobs wait for a webhook that hangs or fails, for brokers, or for an object store."""
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(morning()))
    (tmp_path / "events").mkdir()
    events = f'folder = "{tmp_path}/events.jsonl"'
    hook, brokers, store = Silent(), Silent(), Silent()
    failed = threading.Event()

    def fail(_: list[str]) -> int:
        failed.set()
        return 500

    failing = Judge(fail)
    with ExitStack() as stack:
        for server in (hook, brokers, store):
            stack.callback(server.close)
        processes = {
            name: begun("run", configured(tmp_path / name, events, [address], more=more))
            for name, address, more in (
                ("hangs", f"http://127.0.0.1:{hook.port}/", ""),
                ("fails", url_of(failing.server), ""),
                ("at_once", f"http://127.0.0.1:{hook.port}/", '[embedded]\ndelivery = "at-least-once"'),
            )
        }
        for process in processes.values():
            stack.callback(process.kill)
        for _ in ("hangs", "at_once"):
            hook.asked.get(timeout=WAIT_S)
        assert failed.wait(WAIT_S)
        counts = {name: verify_end(process) for name, process in processes.items()}
        # These two alone: a start gives up after half a minute without its brokers or its store.
        kafka = f'[kafka]\nbootstrap_servers = "127.0.0.1:{brokers.port}"'
        conf = configured(tmp_path / "brokers", 'topic = "payments"', ["console"], more=kafka)
        without_brokers = begun("run", conf)
        stack.callback(without_brokers.kill)
        brokers.asked.get(timeout=WAIT_S)
        counts["brokers"] = verify_end(without_brokers)
        target = '[embedded]\ntarget = "s3://bucket/job"'
        without_store = begun(
            "run", configured(tmp_path / "store", events, [str(tmp_path / "alerts")], more=target),
            AWS_ENDPOINT_URL=f"http://127.0.0.1:{store.port}", AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="y",
        )  # fmt: skip
        stack.callback(without_store.kill)
        store.asked.get(timeout=WAIT_S)
        counts["store"] = verify_end(without_store)
        expected_alerts = sorted(expected(morning(), deployment(), tmp_path))
        # Alerts that wait for a watermark come later; all present alerts are left.
        assert 0 < counts["hangs"] == counts["fails"] <= len(expected_alerts)
        assert 0 < counts["at_once"] <= len(expected_alerts)
        assert counts["brokers"] == counts["store"] == 0
        failing.judge = lambda _: 204
        assert begun("run", tmp_path / "fails" / "cep.toml", "--available-now").wait(WAIT_S) == 0
        assert len(failing.taken) == len(set(failing.taken)) == len(expected_alerts)
    failing.server.shutdown()
    failing.server.server_close()


@pytest.mark.skipif(not IS_THERE, reason="no PostgreSQL on the path")
def test_a_job_that_waits_for_a_lock_ends_on_request(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(morning()))
    postgres = RealPostgres()
    with locked(postgres):
        conf = configured(tmp_path / "locked", f'folder = "{tmp_path}/events.jsonl"', [postgres.address])
        process = begun("run", conf)
        wait_for_lock(postgres)
        assert verify_end(process) > 0
    postgres.close()


# Lines of progress: the first at once, then one per interval, and none if no record was read.


def test_one_line_a_while_says_what_came_since_the_last() -> None:
    written = io.StringIO()
    observed = Observed(60_000)
    totals = Counter({"records": 100, "events": 100, "alerts[a@1]": 7, "runs": 3})
    lines = ProgressLines(Log("json", written), 60_000, Counter(totals))
    lines.tell(observed, totals, 0.0)
    assert written.getvalue() == "", "it goes on, and nothing has come yet"
    more = Counter({"records": 11, "events": 10, "late_events": 1, "poison[wrong_value]": 1, "alerts[a@1]": 1})
    for second in range(200):
        if second != 150:
            totals += more
        lines.tell(observed, totals, float(second))
    for second in range(200, 400):
        lines.tell(observed, totals, float(second))
    log_lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [line["events"] for line in log_lines] == [10, 600, 600, 590, 190]
    assert log_lines[1] | {"time": ""} == {
        "time": "", "event": "progress", "events": 600, "alerts": 60, "events_so_far": 710, "runs": 3,
        "lag_records": None, "watermark": None, "late_events": 60, "poison[wrong_value]": 60,
    }  # fmt: skip


def test_the_sentence_names_what_is_wrong() -> None:
    written = io.StringIO()
    observed = Observed(60_000)
    observed.lagging({"payments[0]": 4_000})
    observed.finished(1, {}, 1_700_000_000_000)
    observed.note("sinks", "a delivery has taken 20 s so far")
    ProgressLines(Log("text", written)).tell(observed, Counter({"records": 5, "events": 5}), 1.0)
    assert written.getvalue() == (
        "5 events, 0 alerts; 5 events so far, 0 runs open, 4,000 records wait, watermark 2023-11-14T22:13:20.000Z, "
        "unhealthy: sinks\n"
    )


# The open runs by rule: the job's counts equal its state, and the log reports how runs end.


def test_a_job_counts_by_rule_and_says_what_becomes_of_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = next(seed for seed in range(100) if outcome_of(drawn(seed)) == "carried")
    case = drawn(seed)
    for folder in ("rules", "control", "events"):
        (tmp_path / folder).mkdir()
    (tmp_path / "rules" / "shape.cep").write_text(case.source)
    second = case.versions("carry")[1]
    params = [f"{name} = {orjson.dumps(value).decode()}" for name, value in case.before.items()]
    (tmp_path / "rules" / "shape.toml").write_text(
        rule_text("shape", "shape.cep", message="{first} on {key}") + "[params]\n" + "\n".join(params) + "\n"
    )
    half = len(case.lines) // 2
    words = {"--rules": "rules", "--events": "events", "--control": "control", "--checkpoint": "job", "--alerts": "out"}
    job = ["run", "--available-now", *(word for flag, name in words.items() for word in (flag, str(tmp_path / name)))]

    def totals() -> dict[str, int]:
        return dict(orjson.loads((tmp_path / "job" / "progress.json").read_bytes())["totals"])

    (tmp_path / "events" / "0.jsonl").write_bytes(b"\n".join(case.lines[:half]))
    (tmp_path / "control" / "change.jsonl").write_bytes(second.to_json())
    assert main(job) == 0
    time = "2026-03-01T12:00:00.000Z"
    line = (
        f"shape version 2 begins at {time}: the runs of version 1 are carried (0 are open now): `on_update` is `carry`"
    )
    assert line in capsys.readouterr().err
    counts = open_runs(totals())
    assert counts.keys() == {"shape@1"}
    assert counts["shape@1"] <= totals()["runs"]
    (tmp_path / "events" / "1.jsonl").write_bytes(b"\n".join(case.lines[half:]))
    assert main(job) == 0
    assert open_runs(totals()).keys() == {"shape@2"}, "all went on as runs of the new version"
    assert all(count >= 0 for name, count in totals().items() if name.startswith("rule_runs"))


def test_a_line_for_each_new_successor_and_no_counts_of_versions_that_are_over() -> None:
    written = io.StringIO()
    runs = {"version": 1, "outcome": "drained", "why": "`on_update` is `drain`"}
    status: dict[str, Any] = {
        "rules": [{"rule_id": "a", "version": 2, "runs": runs}, {"rule_id": "b", "version": 1, "runs": None}]
    }
    tell_runs([], {**status, "open_runs": {"a@1": 1_200}}, Log("text", written))
    tell_runs(status["rules"], {**status, "open_runs": {}}, Log("text", written))
    assert written.getvalue() == (
        "a version 2 begins at once: the runs of version 1 are drained (1,200 are open now): `on_update` is `drain`\n"
    )
    assert "open now" not in runs_text(status["rules"][0], None)
    totals = Counter({"rule_runs[a@1]": 3, "rule_runs[a@2]": 4, "rule_runs[b@1]": -2, "runs": 9})
    forget_open_runs(totals, status)
    assert totals == Counter({"rule_runs[a@2]": 4, "rule_runs[b@1]": -2, "runs": 9})
    assert open_runs(totals) == {"a@2": 4}, "a state of an earlier build was not counted"
