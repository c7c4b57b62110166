"""The other parts around a simulated job: a webhook, a PostgreSQL, an object store, and the disk of a process.

Each answers as the real one does while its `state` says that it is in trouble: with its status codes, its SQLSTATEs,
its errno, after its time. What it accepts is in `taken`.
Tested by: tests/faults/test_matrix.py
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import orjson
import psycopg
import pyarrow as pa
from fsspec.implementations.memory import MemoryFileSystem

from cep.base.errors import CepError, SourceAwayError
from cep.base.schema import Schema
from cep.columnar.decode import Decoded
from cep.sources.registry.form import RecordFormat
from cep.sources.registry.kafka import decode
from cep.state.rocks import RocksStore, _translated
from tests.faults.matrix.virtual_time import clock

_HTTP_WAIT_S = 10.0
_REGISTRY_S = 7.0  # of three pauses between four requests
_STATUSES = {"refuses": (401, 302, 404, 503), "refuses alerts": (400,)}


@dataclass
class Webhook:
    """A receiver of alerts over HTTP. `state` is "", hangs, refuses, refuses alerts, slow or breaks."""

    state: str = ""
    status: int = 0
    taken: Counter[str] = field(default_factory=Counter)  # alerts by id
    first_trouble_s: float | None = None  # when it first did not take an alert at once

    def answer(self, content: bytes) -> Any:
        """Answer a request, or raise the error of the client."""
        ids = [orjson.loads(line)["alert_id"] for line in content.splitlines()]
        if self.state and self.first_trouble_s is None:
            self.first_trouble_s = clock().now_s
        if self.state == "slow":
            clock().pause(3.0)
        elif self.state == "hangs":
            if not clock().pause(_HTTP_WAIT_S, lambda: self.state != "hangs"):
                raise httpx2.ReadTimeout("timed out")
        elif self.state in _STATUSES:
            return SimpleNamespace(is_success=False, status_code=self.status)
        self.taken.update(ids)
        if self.state == "breaks":
            raise httpx2.RemoteProtocolError("server disconnected without sending a response")
        return SimpleNamespace(is_success=True, status_code=200)


@dataclass
class Registry:
    """A registry of schemas, of which each micro-batch needs one. It refuses connections while it is away."""

    is_away: bool = False

    def decode(self, form: RecordFormat, schema: Schema, values: pa.Array, topic: str) -> Decoded:
        """Stand for the decoder, which asks the registry as often as its settings say."""
        if self.is_away and not clock().pause(_REGISTRY_S, lambda: not self.is_away):
            raise SourceAwayError("the schema registry at http://registry:8081 does not give schema 1")
        return decode(form, schema, values, topic)


@dataclass
class Database:
    """A PostgreSQL with one table. `state` is "", locked or down; `has_table` is False once the table is dropped."""

    state: str = ""
    has_table: bool = False
    taken: dict[str, str] = field(default_factory=dict)
    first_trouble_s: float | None = None

    def check(self) -> None:
        """Raise the error of the library for the present trouble."""
        if self.state and self.first_trouble_s is None:
            self.first_trouble_s = clock().now_s
        if self.state == "down":
            raise psycopg.OperationalError("connection failed: Connection refused")
        if self.state == "locked" and not clock().pause(3.0, lambda: self.state != "locked"):
            raise psycopg.errors.LockNotAvailable("canceling statement due to lock timeout")

    def connect(self) -> Connection:
        """Stand for psycopg.connect."""
        if self.state == "down":
            self.check()
        return Connection(self)


class Connection:
    """Stands for a connection and its cursor."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def execute(self, statement: str) -> None:
        if statement.startswith("create"):
            self._database.check()
            self._database.has_table = True

    def executemany(self, _: str, rows: Sequence[tuple[Any, ...]]) -> None:
        self._database.check()
        if not self._database.has_table:
            if self._database.first_trouble_s is None:
                self._database.first_trouble_s = clock().now_s
            raise psycopg.errors.UndefinedTable('relation "cep_alerts" does not exist')
        for row in rows:
            self._database.taken.setdefault(row[0], row[-1])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        yield

    @contextmanager
    def cursor(self) -> Iterator[Connection]:
        yield self

    def close(self) -> None:
        pass


class BusyError(Exception):
    """Stands for botocore's ClientError, which is no OSError."""


class Bucket(MemoryFileSystem):  # type: ignore[misc]
    """An object store in memory. `state` is "", failing or slow."""

    protocol = "bucket"
    store: dict[str, Any] = {}  # noqa: RUF012 fsspec keeps files on the class
    pseudo_dirs: list[str] = [""]  # noqa: RUF012
    state = ""
    first_trouble_s: float | None = None
    cachable = False

    @classmethod
    def check(cls) -> None:
        """Raise the error of an object store in trouble."""
        if cls.state and cls.first_trouble_s is None:
            cls.first_trouble_s = clock().now_s
        if cls.state == "failing":
            raise BusyError("An error occurred (503) when calling the PutObject operation: Service Unavailable")
        if cls.state == "slow":
            clock().pause(5.0)

    def ls(self, path: str, detail: bool = True, **more: Any) -> Any:
        self.check()
        return super().ls(path, detail=detail, **more)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **more: Any) -> Any:
        self.check()
        return super().pipe_file(path, value, mode=mode, **more)

    def put_file(self, lpath: str, rpath: str, *more: Any, **named: Any) -> Any:
        self.check()
        self.makedirs(self._parent(rpath), exist_ok=True)
        return super().put_file(lpath, rpath, *more, **named)

    def exists(self, path: str, **more: Any) -> bool:
        self.check()
        return bool(super().exists(path, **more))


@dataclass
class Disk:
    """The disk of a process. `code` is 0, or the errno of each write."""

    code: int = 0

    @property
    def free_bytes(self) -> int:
        """The bytes that the operating system says are free."""
        return 0 if self.code == errno.ENOSPC else 1 << 40

    def check(self, path: Path) -> None:
        """Raise what a write raises. Raises: OSError."""
        if self.code:
            raise OSError(self.code, os.strerror(self.code), str(path))

    def refuse(self, path: Path, doing: str) -> CepError | None:
        """Return the error of RocksDB on this disk."""
        if not self.code:
            return None
        reason = {errno.ENOSPC: "No space left on device", errno.EROFS: "Read-only file system"}.get(
            self.code, "Input/output error"
        )
        return _translated(Exception(f"IO error: {reason}: While appending to file: {path}"), path, doing)


DISK: list[Disk] = []  # of the cell that runs in this process


class DiskStore(RocksStore):
    """A store on the disk of the cell."""

    def __init__(self, path: Path, settings: Any = None) -> None:
        self._check(path, "open")
        super().__init__(path, settings)

    def write(self, batch: Any) -> None:
        self._check(self._path, "write")
        super().write(batch)

    def sync(self) -> None:
        self._check(self._path, "sync")
        super().sync()

    @staticmethod
    def _check(path: Path, doing: str) -> None:
        error = DISK[-1].refuse(path, doing)
        if error is not None:
            raise error
