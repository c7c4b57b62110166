"""A schema registry on the loopback interface, in a thread: only the HTTP calls that the client needs."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USER = "analyst:hunter2"


class _Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.schemas: list[dict[str, Any]] = []
        self.subjects: dict[str, list[int]] = {}
        self.is_broken = False
        self.asked: list[str] = []
        self.answers: dict[int, list[int]] = {}  # by the id of a schema, the next statuses; the last one stays
        self.failures_left = 0  # requests of any kind that get 503


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        parts = self.path.split("?")[0].strip("/").split("/")
        if self._refused():
            return
        odd = self.server.answers.get(int(parts[2])) if parts[:2] == ["schemas", "ids"] else None
        if odd is not None and (status := odd.pop(0) if len(odd) > 1 else odd[0]) != 200:
            self._answer(status, {"error_code": status, "message": "odd"})
        elif parts[:2] == ["schemas", "ids"] and parts[2].isdigit() and int(parts[2]) <= len(self.server.schemas):
            self._answer(200, self.server.schemas[int(parts[2]) - 1])
        else:
            self._answer(404, {"error_code": 40403, "message": "Schema not found"})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        subject = self.path.split("?")[0].strip("/").split("/")[1]
        if self._refused():
            return
        schema = {
            "schemaType": "AVRO",
            **{n: request[n] for n in ("schema", "schemaType", "references") if n in request},
        }
        if schema not in self.server.schemas:
            self.server.schemas.append(schema)
        number = self.server.schemas.index(schema) + 1
        versions = self.server.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        self._answer(200, {"id": number, "version": versions.index(number) + 1, "subject": subject, **schema})

    def _refused(self) -> bool:
        if self.headers.get("Authorization") != "Basic " + base64.b64encode(USER.encode()).decode():
            self._answer(401, {"error_code": 401, "message": "Unauthorized"})
            return True
        if self.server.failures_left:
            self.server.failures_left -= 1
            self._answer(503, {"error_code": 503, "message": "starting"})
            return True
        if self.server.is_broken:
            self._answer(422, {"error_code": 50001, "message": "Error in the backend data store"})
            return True
        return False

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def serve_registry() -> Iterator[tuple[_Server, tuple[tuple[str, str], ...]]]:
    """Yield the server, and the settings of a client of it."""
    server = _Server()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server, (("url", f"http://127.0.0.1:{server.server_port}"), ("basic.auth.user.info", USER))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
