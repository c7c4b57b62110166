"""Alerts to a real HTTP server: signed; each answer concerns the alerts or the receiver, and loses nothing."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path

import orjson
import pytest

from cep.base.errors import SinkAwayError, SinkError, UsageError
from cep.sinks.base import SINK_REASONS, RefusedAlerts
from cep.sinks.files import DeadLetterFiles
from cep.sinks.webhook import WebhookSink, WebhookTarget, signature
from tests.sinks.alerts import alert_table
from tests.webhook import Handler

SECRET = b"known to both"


@dataclass
class Receiver:
    """Answers with the given statuses, one after the other, then with 204."""

    server: ThreadingHTTPServer
    answers: list[int] = field(default_factory=list)
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/alerts"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    class Noting(Handler):
        def status_of(self, body: bytes) -> int:
            state.paths.append(self.path)
            state.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
            return state.answers.pop(0) if state.answers else 204

    with ThreadingHTTPServer(("127.0.0.1", 0), Noting) as server:
        state = Receiver(server)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield state
        server.shutdown()
        thread.join()


def sink_of(url: str, folder: Path) -> WebhookSink:
    return WebhookSink(WebhookTarget(url, SECRET), RefusedAlerts("webhook", DeadLetterFiles(folder)))


def test_alerts_are_sent_signed(receiver: Receiver, tmp_path: Path) -> None:
    sink = sink_of(receiver.url, tmp_path / "letters")
    sink.write(alert_table(0, 3), 7)
    sink.write(alert_table(0, 0), 8)
    sink.close()
    ((headers, body),) = receiver.requests
    assert [orjson.loads(line)["alert_id"] for line in body.splitlines()] == ["a0", "a1", "a2"]
    assert headers["x-cep-batch"] == "7"
    assert headers["x-cep-signature"] == signature(SECRET, headers["x-cep-timestamp"], body)
    assert signature(b"another", headers["x-cep-timestamp"], body) != headers["x-cep-signature"]
    assert not (tmp_path / "letters").exists()


# Every status that a receiver may answer with, except 1xx, which is not an answer, and 2xx.
OF_ALERTS = (400, 413, 422)
OF_THE_RECEIVER = [status for status in range(300, 600) if status not in OF_ALERTS]


def test_an_answer_that_concerns_the_receiver_is_no_loss(receiver: Receiver, tmp_path: Path) -> None:
    sink = sink_of(receiver.url, tmp_path / "letters")
    reasons: dict[int, str] = {}
    for status in OF_THE_RECEIVER:
        receiver.answers = [status]
        with pytest.raises(
            SinkAwayError, match=f"did not reach .*: it answered {status}; .*: nothing is lost"
        ) as error:
            sink.write(alert_table(0, 1), 0)
        reasons[status] = error.value.reason
    sink.write(alert_table(0, 1), 0)
    sink.close()
    assert len(receiver.requests) == len(OF_THE_RECEIVER) + 1
    assert len({body for _, body in receiver.requests}) == 1
    assert not (tmp_path / "letters").exists()
    assert set(reasons.values()) <= SINK_REASONS.keys()
    parts = [reasons[status] for status in (301, 302, 401, 403, 404, 429, 500, 503)]
    assert parts == ["missing", "missing", "access", "access", "missing", "busy", "busy", "busy"]


@pytest.mark.parametrize("status", OF_ALERTS)
def test_what_the_receiver_refuses_is_set_aside(receiver: Receiver, tmp_path: Path, status: int) -> None:
    receiver.answers = [status, status, 204, status]  # of four alerts: of the halves of the first half, the second one
    sink = sink_of(receiver.url, tmp_path)
    sink.write(alert_table(0, 4), 3)
    sink.write(alert_table(4, 1), 4)
    counted = [sink.refused.counted() for _ in range(2)]
    sink.close()
    (file,) = tmp_path.iterdir()
    letters = [orjson.loads(line) for line in file.read_bytes().splitlines()]
    assert [orjson.loads(letter["record"])["alert_id"] for letter in letters] == ["a1"]
    assert [(letter["code"], letter["sink"], letter["reason"]) for letter in letters] == [
        ("alert_refused", "webhook", f"{receiver.url} answered {status}")
    ]
    assert counted == [{"alerts_refused[webhook]": 1}, {"alerts_refused[webhook]": 0}]
    sent = [[orjson.loads(line)["alert_id"] for line in body.splitlines()] for _, body in receiver.requests]
    assert sent == [["a0", "a1", "a2", "a3"], ["a0", "a1"], ["a0"], ["a1"], ["a2", "a3"], ["a4"]]
    assert {headers["x-cep-batch"] for headers, _ in receiver.requests} == {"3", "4"}


def test_nobody_answers(tmp_path: Path) -> None:
    sink = sink_of("http://127.0.0.1:1/alerts", tmp_path)
    with pytest.raises(SinkAwayError, match=r"micro-batch 5 did not reach http://127\.0\.0\.1:1/alerts: ") as error:
        sink.write(alert_table(0, 1), 5)
    assert error.value.reason == "no_answer"
    sink.close()


def test_a_secret_is_needed_and_never_shown() -> None:
    with pytest.raises(UsageError, match="are signed; give the secret"):
        WebhookTarget("http://127.0.0.1", b"")
    assert "known" not in repr(WebhookTarget("http://127.0.0.1", SECRET))


@pytest.mark.parametrize("url", ["https://user:pass-word@bank.example/alerts", "https://token@bank.example/a"])
def test_a_url_with_a_user_or_password_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(UsageError, match="a user or a password") as error:
        WebhookTarget(url, SECRET)
    assert "pass-word" not in str(error.value)
    assert "token" not in str(error.value)


@pytest.mark.parametrize("url", ["", "http://", "https://h:pass-word/", "ftp://h/x", "/alerts", "https:h"])
def test_a_url_that_cannot_be_read_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(UsageError, match="cannot be read; write it as https://HOST/PATH"):
        WebhookTarget(url, SECRET)


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "[::1]:80", "127.3.2.1"])
def test_this_machine_may_be_reached_without_encryption(host: str) -> None:
    assert WebhookTarget(f"http://{host}/alerts", SECRET).shown.startswith(f"http://{host.removesuffix(':80')}")


@pytest.mark.parametrize("host", ["bank.example", "10.0.0.1", "localhost.bank", "127.0.0.1.bank", "[2001:db8::1]"])
def test_another_machine_needs_encryption_or_an_explicit_setting(host: str) -> None:
    with pytest.raises(UsageError, match="unencrypted to another machine"):
        WebhookTarget(f"http://{host}/alerts", SECRET)
    assert WebhookTarget(f"http://{host}/alerts", SECRET, is_insecure=True).url == f"http://{host}/alerts"
    assert WebhookTarget(f"https://{host}/alerts", SECRET).shown == f"https://{host}/alerts"


def test_a_query_is_sent_and_not_shown(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answers = [400]
    url = receiver.url + "?token=top-secret#part"
    sink = sink_of(url, tmp_path / "letters")
    sink.write(alert_table(0, 1), 3)
    sink.close()
    assert receiver.paths == ["/alerts?token=top-secret"]
    (path,) = (tmp_path / "letters").rglob("*.jsonl")
    assert b"top-secret" not in path.read_bytes()
    assert orjson.loads(path.read_bytes())["reason"] == f"{receiver.url}?… answered 400"
    silent = sink_of("http://127.0.0.1:1/alerts?token=top-secret", tmp_path)
    with pytest.raises(SinkError) as error:
        silent.write(alert_table(0, 1), 5)
    assert "top-secret" not in str(error.value)
    assert "top-secret" not in repr(WebhookTarget(url, SECRET))
