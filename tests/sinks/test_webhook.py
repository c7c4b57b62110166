"""Alerts to a real HTTP server: signed, tried again where that may help, set aside where it cannot."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import orjson
import pytest

from cep.base.errors import SinkError, UsageError
from cep.sinks.dead_letters import DeadLetterFiles
from cep.sinks.webhook import WebhookSink, WebhookTarget, signature
from tests.sinks.alerts import alert_table

SECRET = b"known to both"


@dataclass
class Receiver:
    """Answers with the statuses that it was given, one after the other, then with 204."""

    server: ThreadingHTTPServer
    answers: list[int] = field(default_factory=list)
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/alerts"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.paths.append(self.path)
            found.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(found.answers.pop(0) if found.answers else 204)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Receiver(server)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield found
        server.shutdown()
        thread.join()


def sink_of(url: str, folder: Path, pauses: list[float], wait_ms_max: int = 60_000) -> WebhookSink:
    return WebhookSink(WebhookTarget(url, SECRET, wait_ms_max), DeadLetterFiles(folder), pauses.append)


def test_alerts_are_sent_signed(receiver: Receiver, tmp_path: Path) -> None:
    sink = sink_of(receiver.url, tmp_path / "letters", [])
    sink.write(alert_table(0, 3), 7)
    sink.write(alert_table(0, 0), 8)
    sink.close()
    ((headers, body),) = receiver.requests
    assert [orjson.loads(line)["alert_id"] for line in body.splitlines()] == ["a0", "a1", "a2"]
    assert headers["x-cep-batch"] == "7"
    assert headers["x-cep-signature"] == signature(SECRET, headers["x-cep-timestamp"], body)
    assert signature(b"another", headers["x-cep-timestamp"], body) != headers["x-cep-signature"]
    assert not (tmp_path / "letters").exists()


def test_what_may_pass_is_tried_again_with_longer_pauses(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answers = [503, 429, 500]
    pauses: list[float] = []
    sink = sink_of(receiver.url, tmp_path, pauses)
    sink.write(alert_table(0, 1), 0)
    sink.close()
    assert len({body for _, body in receiver.requests}) == 1
    assert (len(receiver.requests), pauses) == (4, [0.1, 0.2, 0.4])


@pytest.mark.parametrize("status", [400, 401, 404, 413])
def test_what_the_receiver_refuses_is_set_aside(receiver: Receiver, tmp_path: Path, status: int) -> None:
    receiver.answers = [status]
    sink = sink_of(receiver.url, tmp_path, [])
    sink.write(alert_table(0, 2), 3)
    sink.write(alert_table(2, 1), 4)
    sink.close()
    (file,) = tmp_path.iterdir()
    letters = [orjson.loads(line) for line in file.read_bytes().splitlines()]
    assert [orjson.loads(letter["record"])["alert_id"] for letter in letters] == ["a0", "a1"]
    assert {(letter["code"], letter["reason"]) for letter in letters} == {
        ("webhook_refused", f"{receiver.url} answered {status}")
    }
    assert len(receiver.requests) == 2


def test_nobody_answers(tmp_path: Path) -> None:
    pauses: list[float] = []
    sink = sink_of("http://127.0.0.1:1/alerts", tmp_path, pauses, 0)
    with pytest.raises(SinkError, match=r"micro-batch 5 did not reach http://127\.0\.0\.1:1/alerts in 0 ms"):
        sink.write(alert_table(0, 1), 5)
    sink.close()
    assert pauses == []


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
    receiver.answers = [404]
    url = receiver.url + "?token=top-secret#part"
    sink = sink_of(url, tmp_path / "letters", [])
    sink.write(alert_table(0, 1), 3)
    sink.close()
    assert receiver.paths == ["/alerts?token=top-secret"]
    (path,) = (tmp_path / "letters").rglob("*.jsonl")
    assert b"top-secret" not in path.read_bytes()
    assert orjson.loads(path.read_bytes())["reason"] == f"{receiver.url}?… answered 404"
    silent = sink_of("http://127.0.0.1:1/alerts?token=top-secret", tmp_path, [], 0)
    with pytest.raises(SinkError) as error:
        silent.write(alert_table(0, 1), 5)
    assert "top-secret" not in str(error.value)
    assert "top-secret" not in repr(WebhookTarget(url, SECRET))
