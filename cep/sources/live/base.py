"""The contract of a live source: records in lanes, how far each lane was read, and whether more of it waits.

A lane is read in order: a partition of a topic, or all files of a folder. A checkpoint stores `positions`. A source
that is sent back to positions gives the same records again, except for standard input.
Tested by: tests/sources/test_live.py
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.base.errors import InputError
from cep.base.schema import Schema
from cep.columnar.decode import (
    UNREADABLE_FILE,
    Decoded,
    Poison,
    concat_decoded,
    decode_json,
    decode_table,
    in_partition,
)
from cep.columnar.mapping import PLAIN, FieldMapping
from cep.columnar.shown import RowTexts
from cep.sources.tables import TableFile

# Lane or file → offset, bytes or rows done.
Positions = dict[str, int]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one lane (a partition or a folder), in order: values (large_binary, JSON by default), or a table.

    `table_file`: the file that a table comes from; None: each column is a field of events. `bad_lines`: rejected lines
    of a CSV file. `unreadable`: a rejected file, if this chunk reports one. `partition`: its number in the topic."""

    lane: str
    records: pa.Array | pa.Table
    unreadable: Poison | None = None
    table_file: TableFile | None = None
    bad_lines: tuple[Poison, ...] = ()
    partition: int = 0

    def __len__(self) -> int:
        return len(self.records) + len(self.bad_lines)

    @property
    def values(self) -> list[Any]:
        """Return the records, if they are control records (rule changes). A rejected file is one value: its reason."""
        values: list[Any] = self.records.to_pylist() if isinstance(self.records, pa.Array) else []
        return values if self.unreadable is None else [*values, self.unreadable.reason.encode()]


class LiveSource(Protocol):
    """A source of records for one thread, in lanes: a partition or a folder, read in order from a position of its own.
    Every method may raise SourceError."""

    def poll(self, records_max: int, wait_s: float) -> list[Chunk]:
        """Return new records, about `records_max` at most; wait for the first one up to `wait_s`."""
        ...

    def positions(self) -> Positions:
        """Return the positions after all records that `poll` has returned."""
        ...

    def seek(self, positions: Mapping[str, int]) -> None:
        """Continue after these positions; other lanes begin at their start. Call it before the first `poll`."""
        ...

    def behind(self) -> dict[str, bool]:
        """Return for each lane True if it has more records to read, as far as is known without a request."""
        ...

    def look(self) -> None:
        """Query the source for waiting records, so that `behind` counts all present ones."""
        ...

    def hold(self, lanes: Collection[str]) -> None:
        """Pause these lanes until the next call. A source of one lane does nothing."""
        ...

    @property
    def ended(self) -> bool:
        """True if nothing will come any more."""
        ...

    def close(self) -> None:
        """Close the source's resources."""
        ...


@runtime_checkable
class IdentifiedSource(LiveSource, Protocol):
    """A live source with an id in addition to its name: a topic that was created again has another id."""

    def ids(self) -> dict[str, str]:
        """Return the id by name, as far as it is known."""
        ...

    def expect(self, ids: Mapping[str, str]) -> None:
        """Refuse another id from here on. Before `seek`; SourceError comes from `seek`, `look` and `poll`."""
        ...


@runtime_checkable
class GappedSource(LiveSource, Protocol):
    """A live source whose records can be deleted before they are read."""

    @property
    def gaps(self) -> Mapping[str, tuple[int, int]]:
        """The positions [first, end) by lane that the last `seek` has passed over because their records are gone."""
        ...


@dataclass(frozen=True, slots=True)
class DecodedChunks:
    """Events of several chunks, and the event times of each lane that has any: int64[N], ms UTC."""

    parts: list[Decoded]
    time_ms: dict[str, NDArray[np.int64]]

    @property
    def latest_ms(self) -> dict[str, int]:
        return {lane: int(times.max()) for lane, times in self.time_ms.items()}


def decode_chunks(
    schema: Schema, chunks: Sequence[Chunk], decode: Callable[[Schema, pa.Array], Decoded] = decode_json,
    mapping: FieldMapping = PLAIN,
) -> DecodedChunks:  # fmt: skip
    """Decode the records of one poll, with the event times of each lane (a partition or a folder): all lanes at once,
    which is faster, or lane by lane if a record was rejected or becomes several events (views). `in_partition` notes
    the partition of each event; 0 for all is enough if no lane has another."""
    value_chunks = [chunk for chunk in chunks if isinstance(chunk.records, pa.Array) and len(chunk)]
    table_chunks = [chunk for chunk in chunks if isinstance(chunk.records, pa.Table) and len(chunk)]
    decoded = DecodedChunks([], {})
    if value_chunks:
        records = [chunk.records for chunk in value_chunks]
        values = records[0] if len(records) == 1 else pa.concat_arrays(records)
        whole = decode(schema, values)
        if len(whole) == len(values) and not mapping.has_views:
            counts = [len(chunk) for chunk in value_chunks]
            partitions = [chunk.partition for chunk in value_chunks]
            decoded.parts.append(in_partition(whole, np.repeat(partitions, counts) if any(partitions) else 0))
            ends = [0, *accumulate(counts)]
            _add_times(decoded, value_chunks, [whole.time_ms[start:end] for start, end in pairwise(ends)])
        else:
            # Some records were rejected or are several events, so the row of an event does not tell its lane.
            parts = [in_partition(decode(schema, chunk.records), chunk.partition) for chunk in value_chunks]
            decoded.parts.extend(parts)
            _add_times(decoded, value_chunks, [part.time_ms for part in parts])
    for chunk in table_chunks:
        part = _decode_rows(schema, chunk, mapping)
        decoded.parts.append(part)
        _add_times(decoded, [chunk], [part.time_ms])
    if unreadable_files := tuple(chunk.unreadable for chunk in chunks if chunk.unreadable is not None):
        decoded.parts.append(replace(concat_decoded(schema, []), poison=unreadable_files))
    return decoded


def _decode_rows(schema: Schema, chunk: Chunk, mapping: FieldMapping) -> Decoded:
    """Decode a table; none of its rows if its form cannot be told."""
    try:
        file_mapping = mapping if chunk.table_file is None else chunk.table_file.mapping(schema, mapping)
    except InputError as error:
        assert chunk.table_file is not None
        return replace(concat_decoded(schema, []), poison=(unreadable_file(chunk.table_file.path, error),))
    part = decode_table(schema, chunk.records.combine_chunks(), RowTexts(chunk.records), file_mapping)
    return replace(part, poison=(*part.poison, *chunk.bad_lines))


def unreadable_file(path: Path, error: Exception) -> Poison:
    """Return a file, or the rest of it, as a rejected record."""
    name, reason = file_name(path), str(error).partition("\n")[0].encode("utf-8", "backslashreplace").decode()
    return Poison(UNREADABLE_FILE, f"{name}, or what is left of it, cannot be read: {reason}", name)


def file_name(path: Path) -> str:
    """Return the name of a file for positions and letters: they are JSON, and a name may have any bytes."""
    return path.name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _add_times(decoded: DecodedChunks, chunks: Sequence[Chunk], times: Sequence[NDArray[np.int64]]) -> None:
    for chunk, time_ms in zip(chunks, times, strict=True):
        if len(time_ms):
            before = decoded.time_ms.get(chunk.lane)
            decoded.time_ms[chunk.lane] = time_ms if before is None else np.concatenate([before, time_ms])
