"""The port of a job has limits, and gives a stranger no information."""

from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cep.base.limits import HTTP_CONNECTIONS_MAX
from cep.runners import http
from cep.runners.http import served
from cep.runners.observe import Observed

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
    monkeypatch.setattr(http, "HTTP_CONNECTIONS_MAX", 3)
    monkeypatch.setattr(http, "HTTP_PROBE_CONNECTIONS", 1)
    monkeypatch.setattr(http, "HTTP_REQUEST_S_MAX", 0.2)
    monkeypatch.setattr(http, "HTTP_HEADERS_S_MAX", 0.2)
    with served(("127.0.0.1", 0), Observed(60_000)) as address:
        assert address is not None
        yield address


def until_closed(connection: socket.socket) -> bytes:
    """Return all bytes until the other side closes."""
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
    monkeypatch.setattr(http, "HTTP_HEADERS_S_MAX", 3_600)  # so only a new connection ends a slow one
    monkeypatch.setattr(http, "HTTP_HEADERS_PAUSE_MS", 0)
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
    monkeypatch.setattr(http, "HTTP_CONNECTIONS_MAX", 3)
    monkeypatch.setattr(http, "HTTP_PROBE_CONNECTIONS", 1)
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
