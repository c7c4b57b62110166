"""Sinks of every kind that do not take alerts, each for a reason of its own, until all of them are repaired.

    hangs     a webhook that takes a request and gives no answer        fails      one that answers 500
    down      a webhook whose port is closed                            locked     a table that a session has locked
    database  a PostgreSQL that is stopped                              lake       a Delta table whose S3 answers 503
    topic     a topic whose broker is stopped                           folder     a folder, which takes all

Tested by: tests/cli/test_broken_sinks.py
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path

import deltalake
import orjson
import psycopg
import pytest

from tests.cli.test_refused_alerts import Judge
from tests.cli.test_stopping import WAIT_S, locked
from tests.real_kafka import RealKafka
from tests.real_postgres import RealPostgres
from tests.real_s3 import S3Server, open_s3
from tests.runners.embedded.test_run import consumed
from tests.webhook import Handler, url_of

REASONS = {
    "hangs": ("slow", "no_answer"), "fails": ("busy",), "down": ("no_answer",), "locked": ("slow", "locked"),
    "database": ("no_answer",), "lake": ("busy",), "topic": ("slow", "no_answer"),
}  # fmt: skip


class Hanging(Judge):
    """A receiver that gives no answer until it is released. Requests from before that do not count as taken."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.released = threading.Event()

    def _answer(self, _: list[str]) -> int:
        if self.released.is_set():
            return 204
        self.released.wait(WAIT_S)
        return 500

    def close(self) -> None:
        """End the server."""
        self.released.set()
        self.server.shutdown()
        self.server.server_close()


class Answering(ThreadingHTTPServer):
    """A server that answers every request with one status."""

    def __init__(self, port: int, status: int) -> None:
        class OneStatus(Handler):
            def handle_any(self) -> None:
                if "Expect" not in self.headers:  # a client that asks first sends nothing before the answer
                    self.body()
                self.answer(status)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815 names of http.server

        super().__init__(("127.0.0.1", port), OneStatus)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        """End the server."""
        self.shutdown()
        self.server_close()


@dataclass
class BrokenSinks:
    """The sinks as `--alerts` has them, by kind. `names` and `addresses` are those of health, log and metrics."""

    folder: Path
    alerts: dict[str, str]
    hanging: Hanging
    failing: Judge
    down: Judge
    locked: RealPostgres
    database: RealPostgres
    s3: S3Server
    kafka: RealKafka
    stack: ExitStack
    faults: ExitStack = field(default_factory=ExitStack)

    @property
    def names(self) -> dict[str, str]:
        """The names of all sinks, by kind."""
        return {kind: where.replace("cep@", "…@") for kind, where in self.alerts.items()}

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses of all sinks, by kind."""
        return {**self.names, "topic": self.kafka.address}

    def repair(self) -> None:
        """Let every sink take alerts."""
        self.hanging.released.set()
        self.failing.judge = lambda _: 204
        port = self.down.server.server_port
        self.down.server = ThreadingHTTPServer(("127.0.0.1", port), self.down.server.RequestHandlerClass)
        threading.Thread(target=self.down.server.serve_forever, daemon=True).start()
        self.stack.callback(self.down.server.server_close)
        self.stack.callback(self.down.server.shutdown)
        self.faults.close()
        self.database.start()
        self.s3.start()
        self.kafka.start()

    def taken(self) -> dict[str, Counter[str]]:
        """Return the ids that each sink has, by kind, once all are repaired."""
        lines = [line for path in (self.folder / "alerts").iterdir() for line in path.read_bytes().splitlines()]
        files = Counter(orjson.loads(line)["alert_id"] for line in lines)
        topic = consumed(self.kafka.address, "alerts", lambda values: len(values) >= files.total())
        table = deltalake.DeltaTable(self.s3.url("lake")).to_pyarrow_table(columns=["alert_id"])
        return {
            "folder": files,
            **{kind: Counter(hook.taken) for kind, hook in self._hooks.items()},
            "locked": _rows(self.locked),
            "database": _rows(self.database),
            "lake": Counter(table["alert_id"].to_pylist()),
            "topic": Counter(orjson.loads(line)["alert_id"] for line in topic),
        }

    @property
    def _hooks(self) -> dict[str, Judge]:
        return {"hangs": self.hanging, "fails": self.failing, "down": self.down}


def _rows(postgres: RealPostgres) -> Counter[str]:
    with psycopg.connect(postgres.address) as connection:
        return Counter(row[0] for row in connection.execute("select alert_id from cep_alerts").fetchall())


@contextmanager
def open_broken_sinks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BrokenSinks]:
    """Start all sinks, and break all but the folder."""
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    with ExitStack() as stack:
        hanging, failing, down = Hanging(), Judge(lambda _: 500), Judge()
        stack.callback(hanging.close)
        stack.callback(failing.server.server_close)
        stack.callback(failing.server.shutdown)
        down.server.shutdown()
        down.server.server_close()
        tables = RealPostgres(), RealPostgres()
        for postgres in tables:
            stack.callback(postgres.close)
        s3 = stack.enter_context(open_s3())
        kafka = stack.enter_context(RealKafka())
        kafka.create("alerts", 1)
        alerts = {
            "hangs": url_of(hanging.server), "fails": url_of(failing.server), "down": url_of(down.server),
            "locked": tables[0].address, "database": tables[1].address, "lake": f"delta:{s3.url('lake')}",
            "topic": "kafka:alerts", "folder": str(folder / "alerts"),
        }  # fmt: skip
        sinks = BrokenSinks(folder, alerts, hanging, failing, down, *tables, s3, kafka, stack)
        stack.callback(sinks.faults.close)
        sinks.faults.enter_context(locked(tables[0]))
        tables[1].stop()
        s3.stop()
        sinks.faults.callback(Answering(int(s3.address.rpartition(":")[2]), 503).close)
        kafka.stop()
        yield sinks
