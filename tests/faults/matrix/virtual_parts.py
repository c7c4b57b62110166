"""The other parts around a simulated job: a webhook, a PostgreSQL, an object store, and the disk of a process.

Each answers as the real one does while its `state` says that it is in trouble: with its status codes, its SQLSTATEs,
its errno, after its time. What it accepts is in `taken`.

A query of `cep live` runs without Java: plans, state and commits of micro-batches in the order in which Spark has them.

    1 plan      the readers of ours are asked for their ends; the plan is written
    2 match     their tasks are read, and the rows of each key group go through MatchStage, with the state of N - 1
    3 output    LiveOutput takes the rows
    4 commit    N is written as done

A plan without a commit is done again, with the same offsets and state. Files of Spark are a `SparkFolder`.
Tested by: tests/faults/test_faults.py
"""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import orjson
import psycopg
import pyarrow as pa
from fsspec.implementations.memory import MemoryFileSystem
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row

from cep.base.errors import CepError, SourceAwayError
from cep.base.schema import Schema
from cep.columnar.decode import Decoded
from cep.rulebook.saved import RulebookStore
from cep.runners.live_checkpoint import RULEBOOKS_FOLDER
from cep.runners.rule_output import RuleOutput
from cep.runners.spark.admission import ReadAllAvailable
from cep.runners.spark.group_parts import GroupParts
from cep.runners.spark.kafka import KafkaEventsReader, KafkaStreamReader, parse_options
from cep.runners.spark.live_output import StoppedBetween
from cep.runners.spark.match_stage import MatchStage
from cep.runners.spark.packed import CONTROL
from cep.runners.spark.paused_partitions import FILE, PausedPartitions
from cep.sources.registry.form import RecordFormat
from cep.sources.registry.kafka import decode
from cep.state.rocks import RocksStore, _translated
from cep.step.rules import JobRules, bundle_records, rule_status, rulebook_of
from tests.faults.matrix.virtual_time import Ended, clock
from tests.step.cases import PlainMap

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


_OFFSET_BITS = 48


@dataclass
class SparkFolder:
    """What Spark keeps of a query: plans, state by micro-batch and key group, and the last micro-batch that is done."""

    plans: dict[int, tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=dict)
    states: dict[int, dict[int, dict[Any, Any]]] = field(default_factory=dict)
    done: int = -1


class Query:
    """Stands for StreamingQuery, and for the thread in which Spark runs it."""

    def __init__(self, settings: Any, output: Any, world: Any) -> None:
        self._settings, self._output, self._world = settings, output, world
        directory = settings.checkpoint.parent.resolve()
        self._folder: SparkFolder = world.spark_folder(directory)
        options = {"bootstrap.servers": "brokers:9092", "maxTasks": "1"}
        events = {"topic": "payments", "job": json.dumps(settings.job.to_json()), "startingOffsets": "earliest"}
        paused = {"pausedPartitions": str(directory / FILE)}
        self._events = KafkaEventsReader(parse_options({**options, **events, **paused}))
        control = {"topic": "control", "startingOffsets": "earliest", "plansLate": "true"}
        self._control = KafkaStreamReader(parse_options({**options, **control}))
        self._rules = JobRules(settings.job, settings.initial, RulebookStore(directory / RULEBOOKS_FOLDER))
        output.paused_partitions = PausedPartitions(directory, settings.job)
        output.rules = RuleOutput(directory, rule_status(rulebook_of(self._rules, "").rulebook))
        output.rules.announce()
        self._is_stopped = self._is_over = self._is_active = False
        self._error: str | None = None
        self._progress: Any = None
        self._firsts: tuple[dict[str, Any], dict[str, Any]] | None = None
        clock().spawn(clock().current.process, "query", self._run)

    # -------------------------------------------------------------------------------------- for the driver of the job

    @property
    def status(self) -> dict[str, Any]:
        return {"isTriggerActive": self._is_active, "message": "Waiting for data to arrive"}

    @property
    def lastProgress(self) -> Any:  # noqa: N802 as Spark has it
        return self._progress

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802
        """Wait for the end of the query. Raises: StreamingQueryException if it has failed."""
        clock().pause(timeout, lambda: self._is_over)
        if self._error is not None:
            raise StreamingQueryException(self._error)
        return self._is_over

    def stop(self) -> None:
        self._is_stopped = True

    # ------------------------------------------------------------------------------------------------- Spark's thread

    def _run(self) -> None:
        try:
            while not self._is_stopped:
                self._is_active = True
                is_quiet = not self._micro_batch()
                self._is_active = False
                if is_quiet:
                    clock().pause(1.0, lambda: self._is_stopped)
        except StoppedBetween:
            self._error = "stopped between two micro-batches"
        except Ended:
            raise
        except CepError as error:  # as text: Spark has it from Python's traceback
            self._error = f"cep.base.errors.{type(error).__name__}: {error}\n\nstack of Java"
        except OSError as error:
            self._error = f"java.io.IOException: {error.strerror}"
        finally:
            self._is_over = True
            self._is_active = False

    def _micro_batch(self) -> bool:
        """Plan and do a micro-batch; return False if there is none to do."""
        folder, number = self._folder, self._folder.done + 1
        start = folder.plans.get(number - 1) or self._begins()
        if number not in folder.plans:
            end = self._events.latest(start[0], ReadAllAvailable()), self._control.latest(start[1], ReadAllAvailable())
            if end == start:
                return False
            self._world.disk.check(self._settings.checkpoint)
            folder.plans[number] = end
            self._world.spark_step("2")
        end = folder.plans[number]
        rows, states = self._match(number, start, end)
        self._world.spark_step("3")
        self._output.take(SimpleNamespace(toArrow=lambda: rows), number)
        self._world.spark_step("5")
        self._world.disk.check(self._settings.checkpoint)
        folder.states[number], folder.done = states, number
        folder.states.pop(number - 2, None)
        progress = {"durationMs": {}, "stateOperators": [], "sources": [{"endOffset": part} for part in end]}
        self._progress = SimpleNamespace(json=json.dumps(progress))
        return True

    def _begins(self) -> tuple[dict[str, Any], dict[str, Any]]:
        if self._firsts is None:
            self._firsts = self._events.first(), self._control.first()
        return self._firsts

    def _match(self, number: int, start: Any, end: Any) -> tuple[pa.Table, dict[int, dict[Any, Any]]]:
        """Return the rows for the driver and the state after the micro-batch."""
        by_group: dict[int, list[Row]] = {}
        for row in [*self._event_rows(start[0], end[0]), *self._control_rows(start[1], end[1])]:
            by_group.setdefault(row.key_group, []).append(row)
        before = self._folder.states.get(number - 1, {})
        states = {group: dict(entries) for group, entries in before.items()}
        output_rows: list[Row] = []
        for group, rows in sorted(by_group.items()):
            handle = PlainMap()
            handle._entries = states.setdefault(group, {})
            stage = MatchStage(self._rules, 0, None, None, GroupParts(cast("Any", handle)))
            output_rows += stage.rows(group, iter(rows))
        kinds, payloads = [row.kind for row in output_rows], [row.payload for row in output_rows]
        return pa.table({"kind": pa.array(kinds, pa.string()), "payload": pa.array(payloads, pa.binary())}), states

    def _event_rows(self, start: Any, end: Any) -> Iterator[Row]:
        for task in self._events.partitions(start, end):
            for batch in self._events.read(task):
                for row in batch.to_pylist():
                    yield Row(**row)

    def _control_rows(self, start: Any, end: Any) -> list[Row]:
        records = [
            (row["partition"] << _OFFSET_BITS | row["offset"], "", row["value"])
            for task in self._control.partitions(start, end)
            for batch in self._control.read(task)
            for row in batch.to_pylist()
        ]
        store = self._rules.store
        if not records or store is None:
            return []
        place = bundle_records(store, records, int((clock().now_s + clock().wrong_s) * 1_000)).encode()
        groups = range(self._settings.job.groups_count)
        return [Row(key_group=group, kind=CONTROL, domain=0, order="", payload=place) for group in groups]
