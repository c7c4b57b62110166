"""HistoryRows: the past events of many keys that histories may still ask for, as columns.

They are a part of the keyed state of their own: a key has a past long after its last run is over, and rules that ask
for no history never read it.
Tested by: tests/engine/test_histories.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cep.kernels.layout import Int32, Int64


@dataclass(frozen=True, slots=True)
class HistoryRows:
    """Kept events. Shapes: key int32[H], ascending, a number of the keyed state's keys; event_type, time_ms int64[H];
    columns Arrow arrays of length H. The events of a key are in their order.
    """

    key: Int32
    event_type: Int64
    time_ms: Int64
    columns: Mapping[str, pa.Array]

    def __len__(self) -> int:
        return len(self.time_ms)

    def take(self, rows: Int64) -> HistoryRows:
        """The events at these positions."""
        indices = pa.array(rows)
        columns = {name: column.take(indices) for name, column in self.columns.items()}
        return HistoryRows(self.key[rows], self.event_type[rows], self.time_ms[rows], columns)


def no_rows() -> HistoryRows:
    """Nothing is kept."""
    nothing = np.empty(0, np.int64)
    return HistoryRows(nothing.astype(np.int32), nothing, nothing, {})


def concat_rows(parts: Sequence[HistoryRows]) -> HistoryRows:
    """All events, part after part. A column that only some parts have is null in the others."""
    parts = [part for part in parts if len(part)]
    if len(parts) <= 1:
        return parts[0] if parts else no_rows()
    types = {name: column.type for part in parts for name, column in part.columns.items()}
    return HistoryRows(
        np.concatenate([part.key for part in parts]),
        np.concatenate([part.event_type for part in parts]),
        np.concatenate([part.time_ms for part in parts]),
        {
            name: pa.concat_arrays([part.columns.get(name, pa.nulls(len(part), type_)) for part in parts])
            for name, type_ in types.items()
        },
    )


def sort_rows(rows: HistoryRows) -> HistoryRows:
    """The events key by key again; those of one key keep their order."""
    if np.all(rows.key[1:] >= rows.key[:-1]):
        return rows
    return rows.take(np.argsort(rows.key, kind="stable"))
