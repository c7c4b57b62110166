"""The contract of a live source: records in lanes, how far each lane was read, and whether more of it waits.

A lane is read in order: a partition of a topic, or all files of a folder. A checkpoint stores `positions`. A source
that is sent back to positions gives the same records again, except for standard input.
Tested by: tests/sources/test_live.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import numpy as np
import pyarrow as pa

from cep.base.limits import TIME_MS_MIN
from cep.base.schema import Schema
from cep.columnar.decode import Decoded, decode_json, decode_table

# Lane or file → offset, bytes or rows done.
Positions = dict[str, int]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one lane in order: values (large_binary, JSON unless said), or a table whose columns are fields."""

    lane: str
    records: pa.Array | pa.Table

    def __len__(self) -> int:
        return len(self.records)


class LiveSource(Protocol):
    """A source of records for one thread. Every method may raise SourceError."""

    def poll(self, records_max: int, wait_s: float) -> list[Chunk]:
        """Return new records, about `records_max` at most; wait for the first one up to `wait_s`."""
        ...

    def positions(self) -> Positions:
        """Return the positions behind all that `poll` has returned."""
        ...

    def seek(self, positions: Mapping[str, int]) -> None:
        """Go on behind these positions; lanes that are not among them begin at their start. Before the first `poll`."""
        ...

    def behind(self) -> dict[str, bool]:
        """Return for each lane True if more of it waits in the source, as far as is known without asking."""
        ...

    @property
    def ended(self) -> bool:
        """True if nothing will come any more."""
        ...

    def close(self) -> None:
        """Close what the source has open."""
        ...


@dataclass(frozen=True, slots=True)
class DecodedChunks:
    """Events of several chunks, and the largest event time of each lane that has any (ms UTC)."""

    parts: list[Decoded]
    latest_ms: dict[str, int]


def decode_chunks(
    schema: Schema, chunks: Sequence[Chunk], decode: Callable[[Schema, pa.Array], Decoded] = decode_json
) -> DecodedChunks:
    """Decode what one poll gave, values by `decode`: those of all lanes at once, unless a record spoils it."""
    texts = [chunk for chunk in chunks if isinstance(chunk.records, pa.Array) and len(chunk)]
    tables = [chunk for chunk in chunks if isinstance(chunk.records, pa.Table) and len(chunk)]
    decoded = DecodedChunks([], {})
    if texts:
        values = texts[0].records if len(texts) == 1 else pa.concat_arrays([chunk.records for chunk in texts])
        whole = decode(schema, values)
        if len(whole) == len(values):
            starts = [0, *accumulate(len(chunk) for chunk in texts[:-1])]
            decoded.parts.append(whole)
            _note(decoded, texts, np.maximum.reduceat(whole.time_ms, starts).tolist())
        else:
            # Rows do not tell their lanes any more.
            parts = [decode(schema, chunk.records) for chunk in texts]
            decoded.parts.extend(parts)
            _note(decoded, texts, [int(part.time_ms.max(initial=TIME_MS_MIN)) for part in parts])
    for chunk in tables:
        part = decode_table(schema, chunk.records.combine_chunks(), _shower(chunk.records))
        decoded.parts.append(part)
        _note(decoded, [chunk], [int(part.time_ms.max(initial=TIME_MS_MIN))])
    return decoded


def _note(decoded: DecodedChunks, chunks: Sequence[Chunk], latest_ms: Sequence[int]) -> None:
    for chunk, ms in zip(chunks, latest_ms, strict=True):
        if ms > TIME_MS_MIN:
            decoded.latest_ms[chunk.lane] = max(ms, decoded.latest_ms.get(chunk.lane, TIME_MS_MIN))


def _shower(table: pa.Table) -> Callable[[int], str]:
    return lambda row: json.dumps(table.slice(row, 1).to_pylist()[0], default=str)
