"""Observations of a job → answers over HTTP: /live, /ready, /health, /metrics, and the answers that a runner adds.

A stranger may reach the port, so connections, bytes and the time of a request are limited. A client that sends its
headers slowly loses its place to the next connection. Probes need no token, and have places of their own.

A web page of a stranger can make a browser on this machine request the page's own name at our address. The header Host
must therefore be an address, localhost, the host that the job listens at, or one of the setting `hosts`. A request with
the token may name any host.
Tested by: tests/runners/test_observe.py
"""

import hmac
import ipaddress
import re
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, make_server

import orjson
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from cep.base import limits
from cep.base.errors import UsageError
from cep.runners.observe import Observed

# Path → the answer to the parameters of a request; None for a resource that does not exist.
Answers = Mapping[str, Callable[[Mapping[str, list[str]]], Any]]
_StartResponse = Callable[..., Any]
_App = Callable[[Mapping[str, Any], _StartResponse], Iterable[bytes]]
_PROBES = ("/live", "/ready", "/health")
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]+?))\.?(?::\d{1,5})?")


@contextmanager
def served(
    address: tuple[str, int] | None, observed: Observed, answers: Answers | None = None, token: str | None = None,
    hosts: Collection[str] = (),
) -> Iterator[tuple[str, int] | None]:  # fmt: skip
    """Answer HTTP requests while the block runs: from the metrics and health in `observed`, and by the functions that
    `answers` has for paths. Yield the address, with the port that was chosen for 0; None serves nothing.

    `hosts`: more names that the header Host may have. Raises: UsageError if the address is not available.
    """
    if address is None:
        yield None
        return
    try:
        app = _app(observed, answers or {}, token, {"localhost", address[0].lower(), *map(str.lower, hosts)})
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        server: _Server = make_server(*address, app, type("Server", (_Server,), {"address_family": family}), _Handler)
    except OSError as error:
        raise UsageError(
            f"cannot listen at {address[0]}:{address[1]}: {error}; give --listen another port, or none"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="cep-http", daemon=True)
    thread.start()
    try:
        yield address[0], server.server_port
    finally:
        server.shutdown()
        server.close_all()
        server.server_close()
        thread.join()


class _Handler(WSGIRequestHandler):
    """A handler that asks the server, after the headers, if it may answer (not above its limit). It writes no log."""

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        assert isinstance(self.server, _Server)
        if self.server.begin_answer(self.request, self.path.partition("?")[0] in _PROBES):
            return True
        self.send_error(503, "too many requests at once")
        return False

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the base class has the name
        pass


class _Server(ThreadingWSGIServer):
    """A server with bounds on its connections, on the seconds for headers, and on the seconds for an answer."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, *args: Any, **options: Any) -> None:
        # When each connection began, oldest first: those without headers yet, other answers, and answers to probes.
        self._reading: dict[socket.socket, float] = {}
        self._answering: dict[socket.socket, float] = {}
        self._probing: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(*args, **options)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Accept a connection. At the limit it needs the place of the oldest one that is slow to send its headers."""
        slow = None
        with self._lock:
            if len(self._reading) + len(self._answering) + len(self._probing) >= limits.HTTP_CONNECTIONS_MAX:
                slow = next(iter(self._reading), None)  # the oldest of those without headers yet
                if slow is None or self._reading[slow] > time.monotonic() - limits.HTTP_HEADERS_PAUSE_MS / 1_000:
                    return False  # the base class closes the connection
                del self._reading[slow]
            self._reading[request] = time.monotonic()
        if slow is not None:
            _cut_off(slow)
        return True

    def begin_answer(self, request: Any, is_probe: bool) -> bool:
        """Note that a connection has sent its headers. Return False if its request cannot be answered now."""
        with self._lock:
            if self._reading.pop(request, None) is None:
                return False  # it was slow, and another one has its place
            if not is_probe and len(self._answering) >= limits.HTTP_CONNECTIONS_MAX - limits.HTTP_PROBE_CONNECTIONS:
                return False
            (self._probing if is_probe else self._answering)[request] = time.monotonic()
        return True

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            for connections in (self._reading, self._answering, self._probing):
                connections.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut off connections whose time is up; the server's loop calls this twice a second."""
        now_s = time.monotonic()
        self._cut_off_old(now_s - limits.HTTP_HEADERS_S_MAX, now_s - limits.HTTP_REQUEST_S_MAX)

    def close_all(self) -> None:
        now_s = time.monotonic()
        self._cut_off_old(now_s, now_s)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that broke: a stranger must not fill the log."""

    def _cut_off_old(self, reading_since_s: float, answering_since_s: float) -> None:
        with self._lock:
            late = [connection for connection, began_s in self._reading.items() if began_s <= reading_since_s]
            for connections in (self._answering, self._probing):
                late += [connection for connection, began_s in connections.items() if began_s <= answering_since_s]
        for connection in late:
            _cut_off(connection)


def _cut_off(connection: socket.socket) -> None:
    """Wake the thread that reads a connection; the thread closes it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _app(observed: Observed, answers: Answers, token: str | None, hosts: Collection[str]) -> _App:
    """Build the WSGI application: probes, /metrics, and `answers` by path. It checks the header Host and the token."""
    registry = CollectorRegistry()
    registry.register(observed)
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    probes = dict(zip(_PROBES, (observed.live, observed.ready, observed.health), strict=True))
    metrics: _App = make_wsgi_app(registry)

    def answer(environ: Mapping[str, Any], start_response: _StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        header = str(environ.get("HTTP_AUTHORIZATION", ""))  # its bytes as Latin-1; many clients send UTF-8
        given = header.encode("latin-1", "replace"), header.encode("utf-8", "surrogateescape")
        # compare_digest takes as long for every wrong token, so nobody can guess the token byte by byte.
        is_trusted = token is not None and any(hmac.compare_digest(h, f"Bearer {token}".encode()) for h in given)
        if not is_trusted and not _names_this_machine(environ.get("HTTP_HOST"), hosts):
            start_response("421 Misdirected Request", [("Content-Type", "text/plain")])
            return [b"the header Host names no host of this job; add the name to `hosts` of [observe]\n"]
        if path in probes:
            is_well, reasons = probes[path]()
            return _json(start_response, "200 OK" if is_well else "503 Service Unavailable", reasons)
        if token is not None and not is_trusted:
            start_response("401 Unauthorized", [("Content-Type", "text/plain"), ("WWW-Authenticate", "Bearer")])
            return [b"this needs the job's token: Authorization: Bearer ...\n"]
        if path == "/metrics":
            return metrics(environ, start_response)
        if path in answers:
            value = answers[path](parse_qs(environ["QUERY_STRING"]))
            return _json(start_response, "404 Not Found" if value is None else "200 OK", value)
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [" ".join(["here are /metrics", *probes, *answers]).encode() + b"\n"]

    return answer


def _names_this_machine(header: str | None, hosts: Collection[str]) -> bool:
    """Return True if the header Host is an address or a name of this machine. A stranger's web page can give its own
    name our address (DNS rebinding). A browser then sends that name as Host, which is refused here."""
    if header is None:
        return True  # no browser, which always sends Host: perhaps an old probe
    host = _HOST.fullmatch(header.strip())
    if host is None:
        return False
    name = host[1] or host[2]  # [1]: an IPv6 address; [2]: a name, or an IPv4 address
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower() in hosts
    return True


def _json(start_response: _StartResponse, status: str, value: Any) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "application/json")])
    return [orjson.dumps(value) + b"\n"]
