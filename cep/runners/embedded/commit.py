"""Micro-batches → commits: keyed state, positions and what has not been delivered, all of one moment.

    1  hold      alerts and letters of the micro-batches since the last commit wait in memory
    2  save      changed pages, waiting events and seen ids go into the store; nothing is matched meanwhile
    3  begin     the store's files are linked, with positions, rulebook, watermark, totals and what waits beside them
    4  publish   in the background: the checkpoint is copied, and published under its number
    5  deliver   alerts and letters go out under that number
    6  release   what was delivered is forgotten, and the next commit may begin

Start:

    R1 restore   the newest whole checkpoint: store, rulebook, watermark, totals, positions
    R2 deliver   what it holds, under its number: sinks take the same number twice as if it came once
    R3 seek      the sources go on behind its positions

A crash before 4 is over loses nothing that was shown: the work since the last checkpoint is done again. After it, R2
does what 5 did or was about to do. So every alert is delivered exactly once, if sinks keep their contract: a
transaction with the number in it (Kafka), a file with the number as its name. Numbers only grow, for a job's whole
life: a folder that was made from a savepoint adds to its own the number that the savepoint had. `on_step` is called
before each step with its name: what tests crash in.
Tested by: tests/runners/embedded/test_commit.py
"""

from __future__ import annotations

import base64
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from cep.base.errors import StateCorruptError, StateFormatError, UsageError
from cep.base.schema import Schema
from cep.columnar.decode import Decoded, decode_json
from cep.engine.alerts import ALERT_SCHEMA, sort_alerts
from cep.runners.embedded.engine import Engine, Stepped
from cep.runners.live_checkpoint import held
from cep.runners.output import decode_alerts, encode_alerts, write_letters
from cep.sinks.base import AlertSink
from cep.sources.live.base import LiveSource
from cep.state.checkpoints import Checkpoints, Part, Published, restore
from cep.state.memory import MemoryStore
from cep.state.rocks import RocksMemory, RocksSettings, RocksStore
from cep.state.store import DurableStore
from cep.state.target import Target

PAYLOAD_FORMAT = 1
PART = "store"
_STORE, _LINKS = "store", "links"
TARGET = "checkpoints"
DELIVERED = "delivered"  # a file that says up to which checkpoint, once the process has ended in order


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where keyed state is kept. `folder` None: in memory, and nothing survives. `target`: a path or what fsspec takes;
    None is a folder beside the store. `cache_bytes`: of RocksDB, write buffers included.
    """

    folder: Path | None
    backend: str = "rocksdb"
    target: str | None = None
    kept_count: int = 3
    cache_bytes: int = 256 << 20

    def open(self, path: Path) -> DurableStore:
        """The store at a path, which may be new or a checkpoint's."""
        if self.backend == "memory":
            return MemoryStore.open(path) if path.exists() else MemoryStore()
        memory = RocksMemory(self.cache_bytes, max(1 << 20, self.cache_bytes // 4))
        return RocksStore(path, RocksSettings(memory, wal=False))


@dataclass(slots=True)
class Held:
    """What has not been delivered: alerts and letters since the last commit began."""

    alerts: list[pa.Table] = field(default_factory=list)
    letters: list[bytes] = field(default_factory=list)

    def take(self, stepped: Stepped) -> None:
        if stepped.alerts.num_rows:
            self.alerts.append(stepped.alerts)
        self.letters += stepped.letters

    def table(self) -> pa.Table:
        return sort_alerts(pa.concat_tables(self.alerts)) if self.alerts else ALERT_SCHEMA.empty_table()


@dataclass(frozen=True, slots=True)
class Outlets:
    """Where alerts and letters go; letters nowhere if there is no folder."""

    sinks: Sequence[AlertSink]
    letters_folder: Path | None

    def deliver(self, alerts: pa.Table, letters: Sequence[bytes], number: int) -> None:
        """Raises: SinkError; the same number may then come again."""
        for sink in self.sinks:
            sink.write(alerts, number)
        if letters and self.letters_folder is not None:
            write_letters(self.letters_folder, number, letters)

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()


@dataclass(frozen=True, slots=True)
class Sources:
    """What is read: events, with what decodes their values, and control records if rules may change."""

    events: LiveSource
    control: LiveSource | None
    decode: Callable[[Schema, pa.Array], Decoded] = decode_json

    def positions(self) -> dict[str, dict[str, int]]:
        control = {} if self.control is None else self.control.positions()
        return {"events": self.events.positions(), "control": control}

    def seek(self, positions: Mapping[str, Mapping[str, int]]) -> None:
        self.events.seek(positions["events"])
        if self.control is not None:
            self.control.seek(positions["control"])

    def close(self) -> None:
        self.events.close()
        if self.control is not None:
            self.control.close()


@dataclass(slots=True)
class _InFlight:
    """A commit between 3 and 6."""

    held: Held
    copying: Future[Published]


class Commits:
    """The commit protocol of one process. Use it from one thread."""

    def __init__(
        self, settings: StoreSettings, on_step: Callable[[str], None] = lambda _: None,
        on_checkpoint: Callable[[int], None] = lambda _: None,
    ) -> None:  # fmt: skip
        """R1 as far as the store: after it `store` is what the newest whole checkpoint has, or empty.

        Raises: UsageError if another process has the folder; StateError.
        """
        self._settings = settings
        self._lock = ExitStack()
        self._on_step = on_step
        self._in_flight: _InFlight | None = None
        self._checkpoints: Checkpoints | None = None
        self.restored: dict[str, Any] | None = None
        self.restored_number = 0
        self.restored_part: range | None = None
        self._delivered = 0  # the newest checkpoint whose alerts went out
        self._base = 0  # what is added to a checkpoint's number
        self.refused: tuple[str, ...] = ()
        self.last: Published | None = None
        self.held = Held()
        self.totals: Counter[str] = Counter()
        if settings.folder is None:
            self.store: DurableStore = MemoryStore()
            return
        self._lock.enter_context(held(settings.folder))
        try:
            self._restore(settings.folder, on_checkpoint)
        except BaseException:
            self._lock.close()
            raise

    def _restore(self, folder: Path, on_checkpoint: Callable[[int], None]) -> None:
        settings = self._settings
        self._on_step("R1")
        target = Target(settings.target or str(folder / TARGET))
        working = folder / _STORE
        shutil.rmtree(working, ignore_errors=True)  # of a process that ended: nobody knows of which moment it is
        found = restore(target, working)
        self.store = settings.open(working / PART)
        self._checkpoints = Checkpoints(
            target, folder / _LINKS, kept_count=settings.kept_count, restored=found, on_step=on_checkpoint
        )
        if found is not None:
            self.restored = read_payload(found.payload)
            (part,) = found.manifest.parts
            self.restored_part = range(part.first, part.end)
            self.restored_number = found.manifest.number
            self.refused = found.refused

    def resume(self, engine: Engine, sources: Sources, outlets: Outlets) -> None:
        """R1 for the engine, R2 and R3; nothing of it for a job that begins.

        Raises: UsageError if the checkpoint is of other key groups; StateError, SinkError, SourceError.
        """
        if self.restored is None:
            return
        payload = self.restored
        assert self.restored_part is not None, "restored together"
        if self.restored_part != engine.groups:
            held, asked = _shown(self.restored_part), _shown(engine.groups)
            raise UsageError(
                f"the checkpoint is of the key groups {held}, not {asked}; start it with --groups {held}, or make a "
                "savepoint and restore it with the key groups of each process"
            )
        engine.restore(payload["engine"])
        self.totals = Counter(payload["totals"])
        self._on_step("R2")
        outlets.deliver(
            decode_alerts(base64.b64decode(payload["alerts"])),
            [letter.encode() for letter in payload["letters"]],
            payload["base"] + self.restored_number,
        )
        self._delivered = self.restored_number
        self._base = payload["base"]
        self._on_step("R3")
        sources.seek(payload["positions"])

    def take(self, stepped: Stepped) -> None:
        """1: keep what a micro-batch gave until the commit that delivers it."""
        self._on_step("1")
        self.held.take(stepped)

    def begin(self, engine: Engine, sources: Sources) -> bool:
        """2 and 3, unless a commit is still on its way; says whether one is now. Raises: StoreError."""
        if self._checkpoints is None or self._in_flight is not None:
            return False
        self._on_step("2")
        saved, _ = engine.save()
        payload = {
            "format": PAYLOAD_FORMAT,
            "base": self._base,
            "engine": saved,
            "positions": sources.positions(),
            "totals": dict(self.totals),
            "alerts": packed_alerts(self.held.table()),
            "letters": [letter.decode() for letter in self.held.letters],
        }
        self._on_step("3")
        part = Part(PART, self.store, engine.groups.start, engine.groups.stop)
        copying = self._checkpoints.begin((part,), orjson.dumps(payload), int(time.time() * 1_000))
        assert copying is not None, "one at a time"
        self._in_flight = _InFlight(self.held, copying)
        self.held = Held()
        return True

    def finish(self, outlets: Outlets, *, wait: bool) -> bool:
        """4 to 6, if the checkpoint is there or may be waited for; says whether a commit was finished.

        Raises: StoreError if it could not be published, SinkError; the job then goes on from the last checkpoint.
        """
        flight = self._in_flight
        if flight is None or not (wait or flight.copying.done()):
            return False
        self.last = flight.copying.result()
        self._on_step("5")
        outlets.deliver(flight.held.table(), flight.held.letters, self._base + self.last.number)
        self._on_step("6")
        self._delivered = self.last.number
        self._in_flight = None
        return True

    def close(self) -> None:
        """Let go of the store, which the next start makes anew from the checkpoint."""
        if self._checkpoints is not None:
            self._checkpoints.close()
        self.store.close()
        if self._settings.folder is not None and self._in_flight is None and self._delivered:
            (self._settings.folder / DELIVERED).write_text(str(self._delivered))
        self._lock.close()


def packed_alerts(alerts: pa.Table) -> str:
    """Alerts as a payload holds them."""
    return base64.b64encode(encode_alerts(alerts)).decode()


def _shown(groups: range) -> str:
    return f"{groups.start}-{groups.stop - 1}"


def read_payload(data: bytes) -> dict[str, Any]:
    """What a checkpoint keeps beside its store. Raises: StateCorruptError, StateFormatError."""
    try:
        payload: dict[str, Any] = orjson.loads(data)
        found = payload["format"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise StateCorruptError(f"the checkpoint's payload of {len(data)} bytes is not ours ({error!r})") from error
    if found != PAYLOAD_FORMAT:
        raise StateFormatError(
            f"the checkpoint was written in format {found}, this build reads {PAYLOAD_FORMAT}; start with the "
            "build that wrote it, or in a new folder"
        )
    return payload
