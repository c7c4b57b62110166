"""Receivers over HTTP for tests. `Webhook` notes alerts, their micro-batches, and their delays.

Tested by: tests/faults/test_faults.py
"""

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson

from cep.base.text import utc_ms


class Handler(BaseHTTPRequestHandler):
    """A handler that answers a POST with `status_of` its body, and logs nothing."""

    def status_of(self, body: bytes) -> int:
        """Return the status of the answer: accept every body."""
        return 204

    def do_POST(self) -> None:
        self.answer(self.status_of(self.body()))

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def serving(handler: type[Handler], port: int = 0) -> ThreadingHTTPServer:
    """Return a server in a thread of its own; the thread ends with the process."""
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@dataclass
class Webhook:
    """Accepts alerts. While it is away it answers 503 and notes nothing.

    `arrived` has the milliseconds from the event time to the first arrival by id; `lines` an alert's bytes by id.
    """

    is_away: bool = False
    arrived: dict[str, float] = field(default_factory=dict)
    lines: dict[str, bytes] = field(default_factory=dict)
    arrived_s: dict[str, float] = field(default_factory=dict)  # the time of arrival, by the clock
    again: Counter[int] = field(default_factory=Counter)  # number of a micro-batch → alerts that it repeated
    changed: list[str] = field(default_factory=list)  # ids that came again with other bytes
    wrong_batches: list[str] = field(default_factory=list)  # ids that came again under another number
    _batches: dict[str, int] = field(default_factory=dict)

    @property
    def repeats(self) -> int:
        return self.again.total()

    def take(self, body: bytes, batch_id: int) -> None:
        """Note the alerts of a request."""
        now_s = time.time()
        for line in body.splitlines():
            alert = orjson.loads(line)
            name = alert["alert_id"]
            if name not in self.arrived:
                self.arrived[name] = now_s * 1_000 - utc_ms(alert["detected_at"])
                self.arrived_s[name], self.lines[name], self._batches[name] = now_s, line, batch_id
                continue
            self.again[batch_id] += 1
            if self.lines[name] != line:
                self.changed.append(name)
            if self._batches[name] != batch_id:
                self.wrong_batches.append(name)

    def serve(self) -> ThreadingHTTPServer:
        """Return a server; its thread ends with it."""
        webhook = self

        class Noting(Handler):
            def status_of(self, body: bytes) -> int:
                if webhook.is_away:
                    return 503
                webhook.take(body, int(self.headers["x-cep-batch"]))
                return 204

        return serving(Noting)


def url_of(server: ThreadingHTTPServer) -> str:
    """Return the URL to give as `--alerts`."""
    return f"http://127.0.0.1:{server.server_port}/alerts"
