"""Metrics equal the totals, health distinguishes a stuck job from an idle one, logs have one object a line.

The watch reports when brokers are away and when they are back, the lag, waiting events, and a slow sink. The port of a
job has limits, and gives a stranger no information.
"""

import errno
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from cep.base import limits
from cep.base.errors import UsageError
from cep.base.limits import HTTP_CONNECTIONS_MAX
from cep.base.terminal import Terminal
from cep.engine.alerts import NO_ALERTS
from cep.kernels.own_numba import event
from cep.runners import observe as observe_module
from cep.runners import watch as watch_module
from cep.runners.assembly import tell_totals
from cep.runners.compiling import announced_compiling
from cep.runners.http import served
from cep.runners.meanings import current_names
from cep.runners.observe import Log, Observed
from cep.runners.watch import Watch, Watched
from cep.sources.kafka import KafkaSettings
from tests.mock_kafka import MockKafka
from tests.rulebook.test_suppression import alert, table
from tests.sources.registry.registry_server import serve_registry

TOTALS = Counter(
    {
        "events": 12, "late_events": 3, "duplicates": 1, "poison[missing_field]": 2, "poison[unreadable]": 1,
        "unkeyed[card_id,merchant_id]": 4, "alerts[card_testing@3]": 5, "alerts[other@1]": 6, "runs_expired": 7,
        "runs": 9, "alerts_delivered[/alerts\nof b]": 8,
    }
)  # fmt: skip


def get(address: tuple[str, int] | None, path: str) -> tuple[int, str]:
    assert address is not None
    try:
        with urllib.request.urlopen(f"http://{address[0]}:{address[1]}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def registry_of(observed: Observed) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(observed)
    return registry


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return every sample by name and labels, as Prometheus reads them."""
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_every_total_is_a_metric() -> None:
    observed = Observed(60_000)
    observed.finished(16, TOTALS, int(time.time() * 1_000) - 30_000, {"matching": 125.0})
    observed.finished(17, TOTALS)
    observed.measured({"state_bytes": 1_000.0}, {"addBatch": 250.0})
    observed.lagging({"payments[0]": 5, "payments[1]": 0})
    with served(("127.0.0.1", 0), observed) as address:
        status, text = get(address, "/metrics")
    assert status == 200
    metrics = samples(text)
    assert metrics["cep_events_total", ()] == 12
    assert metrics["cep_late_events_total", ()] == 3
    assert metrics["cep_poison_total", (("code", "missing_field"),)] == 2
    assert metrics["cep_unkeyed_total", (("key", "card_id,merchant_id"),)] == 4
    assert metrics["cep_alerts_total", (("rule", "card_testing"), ("version", "3"))] == 5
    assert metrics["cep_alerts_delivered_total", (("sink", "/alerts\nof b"),)] == 8
    assert metrics["cep_runs", ()] == 9
    assert metrics["cep_state_bytes", ()] == 1_000
    assert 30 <= metrics["cep_watermark_delay_seconds", ()] < 600
    assert metrics["cep_micro_batch_seconds", (("phase", "addBatch"),)] == 0.25
    assert metrics["cep_micro_batch_seconds", (("phase", "matching"),)] == 0.125
    assert metrics["cep_micro_batch_id", ()] == 17
    assert metrics["cep_lag_records", (("partition", "payments[0]"),)] == 5
    assert metrics["process_open_fds", ()] > 0, "the process is seen as well"
    counted = sum(value for (name, _), value in metrics.items() if name.startswith("cep_") and name.endswith("_total"))
    assert counted == TOTALS.total() - TOTALS["runs"]
    assert metrics["cep_matches_dropped_total", ()] == 0, "there before the first one"


def test_health_tells_stuck_from_idle() -> None:
    observed = Observed(0)
    with served(("127.0.0.1", 0), observed) as address:
        status, text = get(address, "/health")
        assert (status, json.loads(text)["healthy"]) == (503, False), "no progress for longer than 0 ms"
        observed.stalled_ms = 3_600_000
        observed.idle()
        observed.finished(4, TOTALS)
        status, text = get(address, "/health")
        assert (status, json.loads(text)["batch_id"]) == (200, 4)
        observed.failure = "SinkError"
        status, text = get(address, "/health")
        assert (status, json.loads(text)["failure"]) == (503, "SinkError")
        assert get(address, "/live")[0] == get(address, "/ready")[0] == 503
        assert get(address, "/other")[0] == 404


def test_a_part_in_trouble_is_unhealthy_and_no_reason_for_a_restart() -> None:
    lines = io.StringIO()
    observed = Observed(3_600_000, Log("json", lines))
    assert not observed.ready()[0], "it has no state yet"
    observed.begin()
    observed.note("sinks", None)
    assert observed.health()[0]
    for _ in range(3):
        observed.note("brokers", "no answer since then", "kafka:9092 gave no answer")
    is_healthy, answer = observed.health()
    assert (is_healthy, answer["parts"]) == (False, {"brokers": "no answer since then", "sinks": "well"})
    assert observed.live()[0]
    assert observed.ready()[0]
    assert samples(generate_latest(registry_of(observed)).decode())["cep_part_up", (("part", "brokers"),)] == 0
    for _ in range(3):
        observed.note("brokers", None)
    assert observed.health()[0]
    log_lines = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [(line["event"], line["part"]) for line in log_lines] == [("unhealthy", "brokers"), ("healthy", "brokers")]
    assert log_lines[0]["reason"] == "kafka:9092 gave no answer"
    assert "kafka:9092" not in json.dumps(answer), "who asks has no token"


@pytest.mark.parametrize(
    ("stalled_ms", "failure", "is_live"), [(3_600_000, None, 1), (0, None, 0), (3_600_000, "x", 0)]
)
def test_the_metric_of_life_says_stuck_and_failed(stalled_ms: int, failure: str | None, is_live: int) -> None:
    observed = Observed(stalled_ms)
    observed.failure = failure
    assert samples(generate_latest(registry_of(observed)).decode())["cep_live", ()] == is_live


def test_latency_counts_each_alert_once_it_is_delivered() -> None:
    observed = Observed(0)
    now_ms = int(time.time() * 1_000)
    with observed.sending(
        "alerts", table(alert(1, now_ms - 20_000), alert(2, now_ms - 7_000_000), alert(3, now_ms + 60_000))
    ):
        assert list(observed.sending_since_s) == ["alerts"]
    with pytest.raises(ValueError, match="refused"), observed.sending("alerts", table(alert(4, now_ms))):
        raise ValueError("refused")
    assert observed.sending_since_s == {}
    metrics = samples(generate_latest(registry_of(observed)).decode())
    below = {
        labels[0][1]: value for (name, labels), value in metrics.items() if name.endswith("latency_seconds_bucket")
    }
    assert (below["0.01"], below["10.0"], below["60.0"], below["3600.0"], below["+Inf"]) == (1, 1, 2, 2, 3)
    assert metrics["cep_alert_latency_seconds_count", ()] == 3


def test_every_name_on_the_port_has_a_sentence() -> None:
    """The totals include names of an earlier build, which had reason and rule of suppressed alerts in two brackets."""
    observed = Observed(0)
    observed.finished(1, current_names({**TOTALS, "held[shadow][card_testing]": 2, "held[shadow@card_testing]": 3}))
    text = generate_latest(registry_of(observed)).decode()
    assert samples(text)["cep_held_total", (("reason", "shadow"), ("rule", "card_testing"))] == 5
    helps = [line.split(" ", 3) for line in text.splitlines() if line.startswith("# HELP cep_")]
    assert [name for _, _, name, text in helps if len(text.split()) < 3 or text.startswith("Counter ")] == []


def test_nowhere_and_a_port_that_is_taken() -> None:
    threads = threading.active_count()
    with served(None, Observed(0)) as address:
        assert address is None
    with (
        served(("127.0.0.1", 0), Observed(0)) as open_address,
        pytest.raises(UsageError, match="cannot listen"),
        served(open_address, Observed(0)),
    ):
        pass
    assert threading.active_count() == threads, "the server's thread has ended"


def test_log() -> None:
    text, lines = io.StringIO(), io.StringIO()
    for form, stream in (("text", text), ("json", lines)):
        log = Log("json" if form == "json" else "text", stream)
        log.tell("micro_batch", "micro-batch 3: 12 events", batch_id=3, events=12)
        log.tell("stopped", 'a "quoted"\nline', reason='a "quoted"\nline')
    assert text.getvalue().splitlines()[0] == "micro-batch 3: 12 events"
    first, second = map(json.loads, lines.getvalue().splitlines())
    assert (first["event"], first["batch_id"], first["events"]) == ("micro_batch", 3, 12)
    assert first["time"].endswith("Z")
    assert second["reason"] == 'a "quoted"\nline'


class Full(io.StringIO):
    def write(self, _: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_log_that_cannot_be_written_ends_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log("json", Full())
    log.tell("micro_batch", "micro-batch 3")
    tell_totals({"events": 1}, "the end", Log("text", Full()), Terminal(file=Full()))
    monkeypatch.setattr(sys, "stderr", Full())
    with announced_compiling(), event.trigger_event("numba:compile"):
        pass


def test_a_line_of_the_log_is_one_write() -> None:
    """Threads write to one stream, and a second write for the line feed could come after a line of another thread."""
    writes: list[str] = []
    stream = io.StringIO()
    stream.write = writes.append  # type: ignore[method-assign, assignment]
    for form in ("text", "json"):
        Log(form, stream).tell("unhealthy", "a part is not well")
    assert [text.count("\n") for text in writes] == [1, 1]


LOOKS_MAX = 100


def watched(address: str, folder: Path | None = None) -> Watched:
    return Watched(KafkaSettings(address), "payments", "payments", folder)


def test_a_broker_that_is_stopped_and_one_that_is_gone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.mock_kafka"]
    broker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    observed = Observed(60_000)
    watch = Watch(watched(broker.stdout.readline().strip(), tmp_path), observed, 500)
    try:
        watch.look()
        assert observed.health()[1]["parts"]["brokers"] == "well"
        assert observed.gauges["disk_free_bytes"] > 0
        broker.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, broker.pid, os.WSTOPPED)
        watch.look()
        assert not observed.health()[0]
        since = observed.troubles["brokers"]
        watch.look()
        assert observed.troubles["brokers"] == since, "it says since when"
        broker.send_signal(signal.SIGCONT)
        for _ in range(LOOKS_MAX):
            watch.look()
            if not observed.troubles:
                break
        assert observed.health()[0]
        broker.kill()
        broker.wait()
        watch.look()
        assert list(observed.troubles) == ["brokers"]
    finally:
        broker.kill()
        broker.wait()
    with watch:
        pass
    observed.note("brokers", None)
    watch.look()
    assert observed.troubles == {}, "a job that has ended says nothing more"


def test_lag_and_events_that_nobody_reads() -> None:
    with MockKafka() as kafka:
        kafka.send("payments", ({"value": b"{}", "partition": n % 2} for n in range(10)))
        observed = Observed(0)  # no waiting is allowed
        watch = Watch(watched(kafka.address), observed, 2_000)
        observed.positions = {"payments[0]": 2, "payments[1]": 5}
        watch.look()
        assert observed.lags == {"payments[0]": 3, "payments[1]": 0, "payments[2]": 0, "payments[3]": 0}
        assert observed.troubles["events"].startswith("3 records wait")
        assert observed.health()[1]["lag_records"] == 3
        observed.stalled_ms = 3_600_000
        observed.positions = {"payments[0]": 5, "payments[1]": 5}
        watch.look()
        assert (sum(observed.lags.values()), observed.troubles) == (0, {})


def test_a_registry_that_gives_no_answer() -> None:
    with serve_registry() as (server, registry):
        observed = Observed(60_000)
        watch = Watch(Watched(registry=registry), observed, 1_000)
        watch.look()
        assert observed.health()[1]["parts"]["registry"] == "well"
        server.failures_left = 1_000
        watch.look()
        assert observed.troubles["registry"].startswith("no answer since 20")
        assert not observed.health()[0]
        server.failures_left = 0
        watch.look()
        assert observed.health()[0]


def test_a_job_is_ready_once_it_has_caught_up_with_its_topic() -> None:
    with MockKafka() as kafka:
        kafka.send("payments", ({"value": b"{}", "partition": 0} for _ in range(100)))
        observed = Observed(3_600_000, ready_lag_ms=10_000)
        watch = Watch(replace(watched(kafka.address), first_positions=lambda: {"payments[0]": 20}), observed, 2_000)
        observed.begin()
        assert observed.ready() == (False, {**observed.ready()[1], "ready": False, "lag_records": None})
        watch.look()  # the job has not reported yet
        for position, is_ready in ((None, False), (60, False), (100, True)):
            if position is not None:
                observed.positions = {"payments[0]": position}
                watch.look()
            report = observed.ready()[1]
            assert report["lag_records"] == (80 if position is None else 100 - position)
            assert report["ready"] == observed.health()[1]["ready"] == is_ready
        kafka.send("payments", ({"value": b"{}", "partition": 0} for _ in range(50)))
        watch.look()
        assert (observed.ready()[0], sum(observed.lags.values())) == (True, 50), "a later lag is for alarms"


def test_as_many_events_may_wait_as_arrive_in_the_time_of_the_setting() -> None:
    observed = Observed(3_600_000, ready_lag_ms=10_000)
    observed.begin()
    for waiting, is_ready in ((2_001, False), (2_000, True)):
        observed.lagging({"payments[0]": waiting - 1, "payments[1]": 1}, arriving_per_s=200.0)
        assert observed.ready()[0] == is_ready
    standby = Observed(3_600_000, ready_lag_ms=10_000)
    standby.begin()
    standby.measured({"standby": 1.0}, {})
    assert standby.ready()[0], "a process that stands by reads no topic of events"
    standby.measured({"standby": 0.0}, {})
    assert not standby.ready()[0]


def test_a_folder_that_goes_while_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observed, usage = Observed(60_000), shutil.disk_usage
    (tmp_path / "job").mkdir()

    def late(folder: Path) -> object:
        folder.rmdir()
        return usage(folder)

    monkeypatch.setattr("cep.runners.watch.shutil.disk_usage", late)
    Watch(Watched(folder=tmp_path / "job"), observed, 1_000).look()
    assert "disk_free_bytes" not in observed.gauges


def test_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    observed = Observed(60_000)
    watch = Watch(Watched(folder=tmp_path / "job"), observed, 1_000)
    watch.look()
    assert "disk_free_bytes" not in observed.gauges, "the job has not made its folder yet"
    (tmp_path / "job").mkdir()
    monkeypatch.setattr(watch_module, "DISK_FREE_BYTES_MIN", 1 << 62)
    watch.look()
    assert "MB are left" in observed.troubles["disk"]

    def fail(_: Path) -> object:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("cep.runners.watch.shutil.disk_usage", fail)
    watch.look()
    assert "gives no answer" in observed.troubles["disk"]
    monkeypatch.undo()
    monkeypatch.setattr(watch_module, "DISK_FREE_BYTES_MIN", 1)
    watch.look()
    assert observed.health()[0]


def test_a_delivery_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    observed = Observed(60_000)
    watch = Watch(Watched(), observed, 1_000)
    with observed.sending("alerts", NO_ALERTS):
        watch.look()
        assert observed.health()[0]
        monkeypatch.setattr(observe_module, "SENDING_MS_MAX", 0)
        is_healthy, answer = observed.health()
        assert not is_healthy
        assert answer["parts"]["sinks"].startswith("alerts: it has not answered a delivery"), "without a look before"
    monkeypatch.undo()
    watch.look()
    assert observed.health()[0]


WAIT_S = 30


def ask(
    address: tuple[str, int] | None, path: str, token: str | None = None, host: str | None = None
) -> tuple[int, str]:
    assert address is not None
    request = urllib.request.Request(f"http://{address[0]}:{address[1]}{path}")
    if host is not None:
        request.add_header("Host", host)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    """Serve a port that takes three connections at once, each for a moment."""
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS_MAX", 3)
    monkeypatch.setattr(limits, "HTTP_PROBE_CONNECTIONS", 1)
    monkeypatch.setattr(limits, "HTTP_REQUEST_S_MAX", 0.2)
    monkeypatch.setattr(limits, "HTTP_HEADERS_S_MAX", 0.2)
    with served(("127.0.0.1", 0), Observed(60_000)) as address:
        assert address is not None
        yield address


def until_closed(connection: socket.socket) -> bytes:
    connection.settimeout(WAIT_S)
    data = b""
    try:
        while piece := connection.recv(1_000):
            data += piece
    except ConnectionResetError:
        pass
    return data


def test_only_health_is_for_everybody() -> None:
    answers = {"/key": lambda parameters: parameters or None}
    with served(("127.0.0.1", 0), Observed(60_000), answers, "right") as address:
        assert ask(address, "/health")[0] == 200
        for path in ("/metrics", "/key?key=c1", "/other"):
            for token in (None, "", "wrong", "rightly", "r\u00ecght".encode().decode("latin-1")):
                status, text = ask(address, path, token)
                assert status == 401, (path, token)
                assert "cep_" not in text
                assert "c1" not in text
        assert ask(address, "/metrics", "right")[0] == 200
        assert ask(address, "/key?key=c1", "right") == (200, '{"key":["c1"]}\n')
        assert ask(address, "/other", "right")[0] == 404
    with served(("127.0.0.1", 0), Observed(60_000), answers, "r\u00ecght") as address:
        for token in ("r\u00ecght", "r\u00ecght".encode().decode("latin-1")):  # the client sends Latin-1, or UTF-8
            assert ask(address, "/metrics", token)[0] == 200
        assert ask(address, "/metrics", "right")[0] == 401


def test_without_a_token_nobody_needs_one() -> None:
    with served(("127.0.0.1", 0), Observed(60_000)) as address:
        assert ask(address, "/metrics")[0] == 200
        assert ask(address, "/key?key=c1")[0] == 404, "not there unless the runner answers it"


def test_a_connection_that_says_nothing_ends(few: tuple[str, int]) -> None:
    with socket.create_connection(few) as silent:
        assert until_closed(silent) == b""
    assert ask(few, "/health")[0] == 200


def test_a_request_that_never_ends_is_cut_off(few: tuple[str, int]) -> None:
    with socket.create_connection(few) as slow:
        deadline_s = time.monotonic() + WAIT_S
        with pytest.raises(OSError):  # noqa: PT012 the port closes it while more is sent
            slow.sendall(b"GET /metrics HTTP/1.1\r\n")
            while time.monotonic() < deadline_s:
                slow.sendall(b"x: y\r\n")
                time.sleep(0.01)
    assert ask(few, "/health")[0] == 200


def test_connections_above_the_bound_are_closed_and_threads_are_few(few: tuple[str, int]) -> None:
    many = [socket.create_connection(few) for _ in range(50)]
    try:
        assert all(until_closed(connection) == b"" for connection in many)
    finally:
        for connection in many:
            connection.close()
    deadline_s = time.monotonic() + WAIT_S
    while time.monotonic() < deadline_s:  # the places of closed connections come back
        try:
            if ask(few, "/health")[0] == 200:
                break
        except OSError:
            continue
    else:
        pytest.fail("no place came back")


def test_the_end_does_not_wait_for_open_connections() -> None:
    with served(("127.0.0.1", 0), Observed(60_000)) as address:
        assert address is not None
        open_one = socket.create_connection(address)
    with open_one:
        assert until_closed(open_one) == b""


def test_slow_clients_do_not_starve_the_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_HEADERS_S_MAX", 3_600)  # so only a new connection ends a slow one
    monkeypatch.setattr(limits, "HTTP_HEADERS_PAUSE_MS", 0)
    with served(("127.0.0.1", 0), Observed(60_000)) as address:
        assert address is not None
        slow = []
        for _ in range(3):
            for _ in range(HTTP_CONNECTIONS_MAX):
                slow.append(socket.create_connection(address))
                slow[-1].sendall(b"GET /health HTTP/1.1\r\nHost: ")
            assert ask(address, "/health")[0] == 200
        for connection in slow:
            connection.close()


def test_answers_leave_places_for_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS_MAX", 3)
    monkeypatch.setattr(limits, "HTTP_PROBE_CONNECTIONS", 1)
    begun, end = threading.Semaphore(0), threading.Event()

    def answer(_: object) -> str:
        begun.release()
        assert end.wait(WAIT_S)
        return "done"

    with served(("127.0.0.1", 0), Observed(60_000), {"/key": answer}) as address, ThreadPoolExecutor(2) as clients:
        waiting = [clients.submit(ask, address, "/key") for _ in range(2)]
        assert all(begun.acquire(timeout=WAIT_S) for _ in waiting)
        assert ask(address, "/key")[0] == 503
        assert ask(address, "/health")[0] == 200
        end.set()
        assert [one.result(WAIT_S) for one in waiting] == [(200, '"done"\n')] * 2


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200), ("LOCALHOST.:9464", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("10.1.2.3:9464", 200),
        ("cep.bank.example:9464", 200), ("evil.example", 421), ("evil.example:9464", 421), ("localhost.evil.org", 421),
        ("localhost, evil.example", 421), ("", 421), ("[localhost]", 421), ("localhost:x", 421), ("1.2.3.4.evil", 421),
    ],
)  # fmt: skip
def test_a_page_of_a_stranger_cannot_ask_by_its_own_name(host: str, status: int) -> None:
    with served(("127.0.0.1", 0), Observed(60_000), token="right", hosts=("Cep.bank.example",)) as address:
        assert ask(address, "/health", host=host)[0] == status
        assert ask(address, "/metrics", "right", host)[0] == 200, "nobody else has the token"
        with socket.create_connection(address or ("", 0)) as old:
            old.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            assert until_closed(old).startswith(b"HTTP/1.0 200")
