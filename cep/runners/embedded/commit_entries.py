"""The entries of a commit besides keyed state: the progress of the job, and the undelivered alerts and letters.

    | FFFF | "" | "commit" | "head" |            →  JSON, see Head
    | FFFF | "" | "commit" | "sent" |            →  JSON: alerts that sinks have, unknown to any commit (queues.py)
    | FFFF | "" | "alerts" | | commit u64 |      →  Arrow stream, LZ4
    | FFFF | "" | "letters" | | commit u64 |     →  JSON array

Tested by: tests/runners/embedded/test_commit.py
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import orjson
import pyarrow as pa

from cep.base.errors import StateCorruptError, StateFormatError
from cep.base.schema import field_values
from cep.engine.alerts import NO_ALERTS, sorted_together
from cep.runners.embedded.engine import Stepped
from cep.runners.output import decode_alerts, encode_alerts
from cep.state.store import STORE_GROUP, KeyedStore, WriteBatch, prefix_range, split_key, store_key

# 1 had all of it outside the store, once per checkpoint; 2 pages with eight bytes for every number; 3 alerts
# uncompressed
FORMAT = 4
_CODEC = "lz4"
_COMMIT, _ALERTS, _DEAD_LETTERS = b"commit", b"alerts", b"letters"
HEAD, SENT = store_key(STORE_GROUP, b"", _COMMIT, b"head"), store_key(STORE_GROUP, b"", _COMMIT, b"sent")
_NUMBER = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class SinkPosition:
    """The progress of one sink: it has the alerts of all commits up to `position`."""

    position: int
    delivery: int | None = None  # the number under which the commits up to `last` are, or were, on their way
    last: int | None = None
    since_ms: int = 0  # when the oldest waiting commit was made (ms UTC)
    places: Sequence[str] = ()  # in the sink, such as an offset, before these commits were on their way (RecallingSink)


@dataclass(slots=True)
class Numbers:
    """The number of the last commit, the summand `base` of numbers for sinks, and the name of the store (Head)."""

    last: int = 0
    base: int = 0
    lineage: str = ""


@dataclass(frozen=True, slots=True)
class Head:
    """The entry of a commit: its number, and the positions of sources and sinks."""

    number: int
    base: int  # sinks get `base + number`: their numbers go on, though a restored job counts from 0
    lineage: str  # the random name of the store
    groups: range  # the key groups of the process
    totals: Mapping[str, int]  # counters of the whole job
    positions: Mapping[str, Mapping[str, int]]  # up to where the sources were read
    lanes: Mapping[str, SinkPosition] = field(default_factory=dict)  # by sink; "": of all, in an earlier build
    batch_id: int = 0  # of the next micro-batch
    topic_ids: Mapping[str, str] = field(default_factory=dict)  # of the topics in `positions`

    def save(self, batch: WriteBatch) -> None:
        """Add the head to a write batch."""
        body = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}
        body["groups"] = [self.groups.start, self.groups.stop]
        body["lanes"] = {name: field_values(position) for name, position in self.lanes.items()}
        batch.put(HEAD, orjson.dumps({"format": FORMAT, **body}))


def read_head(store: KeyedStore) -> Head | None:
    """Read the last commit of the store; None without commits. Raises: StateCorruptError, StateFormatError."""
    data = store.get(HEAD)
    return None if data is None else parse_head(data)


def parse_head(data: bytes) -> Head:
    """Parse the entry that describes a commit, also of earlier builds. Raises: StateCorruptError, StateFormatError."""
    head = _json(data)
    try:
        return Head(
            head["number"],
            head["base"],
            head["lineage"],
            range(*head["groups"]),
            head["totals"],
            head["positions"],
            {name: SinkPosition(*fields_of_sink) for name, fields_of_sink in head["lanes"].items()}
            if "lanes" in head  # the positions of sinks, by name
            # Earlier builds stored one position for all sinks, and the first ones stored no places in the sinks.
            else {"": SinkPosition(-1, head["delivery"], last=head["delivery"], places=head.get("places", ()))},
            head.get("batch_id", 0),  # an earlier build counted from 0 after each start
            head.get("topic_ids", {}),  # an earlier build did not store the ids of topics
        )
    except (KeyError, TypeError) as error:
        raise StateCorruptError(f"the last commit cannot be read ({error!r}); restore a checkpoint") from error


@dataclass(slots=True)
class PendingOutput:
    """The alerts and dead letters since the last commit, which are not delivered yet."""

    alerts: list[pa.Table] = field(default_factory=list)
    dead_letters: list[bytes] = field(default_factory=list)
    count: int = 0

    def take(self, stepped: Stepped) -> None:
        if stepped.alerts.num_rows:
            self.alerts.append(stepped.alerts)
        self.dead_letters += stepped.dead_letters
        self.count += stepped.alerts.num_rows + len(stepped.dead_letters)

    def __bool__(self) -> bool:
        return bool(self.alerts or self.dead_letters)

    def table(self) -> pa.Table:
        return sorted_together(self.alerts)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """The output of one commit: its alerts, in order, and its dead letters. The store has it until it is delivered."""

    alerts: pa.Table
    dead_letters: tuple[bytes, ...]

    @property
    def count(self) -> int:
        """How many alerts and dead letters there are."""
        return int(self.alerts.num_rows + len(self.dead_letters))

    @property
    def bytes(self) -> int:
        """Their bytes in memory."""
        return int(self.alerts.nbytes + sum(map(len, self.dead_letters)))

    def save(self, batch: WriteBatch, commit: int) -> None:
        if self.alerts.num_rows:
            # Compressed: two thirds of the bytes of a commit are its alerts, which the next commit removes again.
            batch.put(_key(_ALERTS, commit), pa.compress(encode_alerts(self.alerts), _CODEC, asbytes=True))
        if self.dead_letters:
            batch.put(_key(_DEAD_LETTERS, commit), orjson.dumps([letter.decode() for letter in self.dead_letters]))

    @staticmethod
    def forget(batch: WriteBatch, commit: int) -> None:
        """Remove the entries that `save` wrote."""
        batch.delete(_key(_ALERTS, commit))
        batch.delete(_key(_DEAD_LETTERS, commit))

    @staticmethod
    def stored(store: KeyedStore) -> dict[int, Outgoing]:
        """Return all that the store holds, by commit."""
        alerts, dead_letters = _entries(store, _ALERTS), _entries(store, _DEAD_LETTERS)
        return {
            commit: Outgoing(
                _alerts(alerts[commit]) if commit in alerts else NO_ALERTS,
                tuple(letter.encode() for letter in orjson.loads(dead_letters.get(commit, b"[]"))),
            )
            for commit in sorted({*alerts, *dead_letters})
        }


def _alerts(data: bytes) -> pa.Table:
    with pa.CompressedInputStream(pa.BufferReader(data), _CODEC) as stream:
        return decode_alerts(stream.read())


def payload_of(lineage: str, audit: dict[str, Any] | None = None) -> bytes:
    """Describe a commit for a checkpoint, whose store has the rest. `audit` is the signed head of the job's audit."""
    return orjson.dumps({"format": FORMAT, "lineage": lineage, "audit": audit})


def audit_of_payload(data: bytes) -> Any:
    """Read the head of the audit of a checkpoint; None without one. Raises: StateCorruptError, StateFormatError."""
    return _json(data).get("audit")


def store_of_payload(data: bytes) -> str:
    """Read the lineage of the store that a checkpoint is of. Raises: StateCorruptError, StateFormatError."""
    return str(_json(data).get("lineage"))


def _json(data: bytes) -> dict[str, Any]:
    """Parse an entry of a commit and check its format. Raises: StateCorruptError, StateFormatError."""
    try:
        document: dict[str, Any] = orjson.loads(data)
        format_ = document["format"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise StateCorruptError(
            f"{len(data)} bytes of a commit are not ours ({error!r}); restore a savepoint"
        ) from error
    if format_ != FORMAT:
        raise StateFormatError(
            f"the job's folder was written in format {format_}, this build reads {FORMAT}; make a savepoint with the "
            "build that wrote it and restore that with this one, or start in a new folder"
        )
    return document


def _key(namespace: bytes, commit: int) -> bytes:
    return store_key(STORE_GROUP, b"", namespace, b"", _NUMBER.pack(commit))


def _entries(store: KeyedStore, namespace: bytes) -> dict[int, bytes]:
    stored_entries = store.scan(prefix_range(STORE_GROUP, b"", namespace))
    return {int(_NUMBER.unpack(split_key(key).item)[0]): value for key, value in stored_entries}
