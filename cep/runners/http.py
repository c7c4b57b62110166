"""Observations of a job → answers over HTTP: /live, /ready, /health, /metrics, and what a runner adds.

A stranger may reach the port, so it is bounded: connections at once, bytes of a request, and the time that one takes.
A connection above the bound is closed at once. /live, /ready and /health say yes or no with a reason and ask for no
token: probes of a platform need them. Everything else asks for the bearer token, if there is one. /metrics has the
process as well, in the names that Prometheus' own clients use.
Tested by: tests/runners/test_http.py, tests/runners/test_observe.py
"""

from __future__ import annotations

import hmac
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, make_server

import orjson
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from cep.base.errors import UsageError
from cep.base.limits import HTTP_CONNECTIONS_MAX, HTTP_REQUEST_S_MAX
from cep.runners.observe import Observed

# Path → the answer to the parameters of a request, None for what does not exist.
Answers = Mapping[str, Callable[[Mapping[str, list[str]]], Any]]
_StartResponse = Callable[..., Any]
_App = Callable[[Mapping[str, Any], _StartResponse], Iterable[bytes]]


@contextmanager
def served(
    address: tuple[str, int] | None, observed: Observed, answers: Answers | None = None, token: str | None = None
) -> Iterator[tuple[str, int] | None]:
    """Answer requests for as long as the block runs. Yield the address, with the port that was chosen for 0.

    Raises: UsageError if the address cannot be had.
    """
    if address is None:
        yield None
        return
    try:
        server = make_server(*address, _app(observed, answers or {}, token), _server_class(address[0]), _Handler)
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
    """Write no line for a request: the log is the job's."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the base class has the name
        pass


class _Server(ThreadingWSGIServer):
    """A server with a bound on connections and on the seconds that each may last."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, *args: Any, **options: Any) -> None:
        self._began: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(*args, **options)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Refuse a connection above the bound; a refused one is closed by the base class."""
        with self._lock:
            if len(self._began) >= HTTP_CONNECTIONS_MAX:
                return False
            self._began[request] = time.monotonic()
        return True

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, and give its place to the next."""
        with self._lock:
            self._began.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cut off connections whose time is up; the server's loop calls this twice a second."""
        self._cut_off(time.monotonic() - HTTP_REQUEST_S_MAX)

    def close_all(self) -> None:
        """Cut off every connection."""
        self._cut_off(time.monotonic())

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that broke: a stranger must not fill the log."""

    def _cut_off(self, before_s: float) -> None:
        with self._lock:
            late = [connection for connection, began_s in self._began.items() if began_s <= before_s]
        for connection in late:
            try:
                connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it, which closes it
            except OSError:
                continue


def _server_class(host: str) -> type[_Server]:
    class Server(_Server):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    return Server


def _app(observed: Observed, answers: Answers, token: str | None) -> _App:
    registry = CollectorRegistry()
    registry.register(observed)
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    probes = {"/live": observed.live, "/ready": observed.ready, "/health": observed.health}
    metrics: _App = make_wsgi_app(registry)

    def answer(environ: Mapping[str, Any], start_response: _StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path in probes:
            is_well, reasons = probes[path]()
            return _json(start_response, "200 OK" if is_well else "503 Service Unavailable", reasons)
        if token is not None and not _has_token(environ, token):
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


def _has_token(environ: Mapping[str, Any], token: str) -> bool:
    """Return True if the request bears the token; the time that this takes tells nothing of it."""
    given = str(environ.get("HTTP_AUTHORIZATION", ""))
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), f"Bearer {token}".encode())


def _json(start_response: _StartResponse, status: str, value: Any) -> Iterable[bytes]:
    start_response(status, [("Content-Type", "application/json")])
    return [orjson.dumps(value) + b"\n"]
