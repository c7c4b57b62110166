"""A replay, watched → its alerts, and the events that it read as a few columns.

The pieces of a history are decoded once. While the replay takes them, the ids, times and the columns that are asked for
stay here, in the order of the history. Records that were set aside are not among them.
Tested by: tests/analysis/test_backtest.py
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from rich.console import Console

from cep.base.schema import Kind, Schema
from cep.columnar.batch import TEXT, arrow_type
from cep.columnar.decode import Decoded
from cep.rulebook.deploy import Deployment
from cep.runners.embedded.replay import replay_shown
from cep.runners.output import Replayed
from cep.sources.pieces import Piece, Pieces
from cep.step.job import Job

# What ends the id of a produced event: "~" and the id of the alert that it would be (engine/produced.py).
_PRODUCED = r"~[0-9a-f]{32}$"


@dataclass(frozen=True, slots=True)
class Events:
    """The events of a history. Shapes: all of length N. `time_ms` is event time; columns are those asked for."""

    schema: Schema
    event_id: pa.Array
    event_type: NDArray[np.int16]
    time_ms: NDArray[np.int64]
    columns: Mapping[str, pa.Array]

    def __len__(self) -> int:
        return len(self.time_ms)

    def taken(self, rows: NDArray[np.int64]) -> Decoded:
        """Take the events at these rows."""
        at = pa.array(rows)
        columns = {name: column.take(at) for name, column in self.columns.items()}
        return Decoded(self.event_id.take(at), self.event_type[rows], self.time_ms[rows], columns, ())

    def rows_of(self, event_ids: pa.Array) -> NDArray[np.int64]:
        """Return the row of each id, -1 for one that no event has. A produced event is the one that completed it."""
        source_ids = event_ids.cast(TEXT)
        if any(event_type.derived for event_type in self.schema.event_types):
            source_ids = pc.replace_substring_regex(source_ids, pattern=_PRODUCED, replacement="")
        at = pc.index_in(source_ids, value_set=self.event_id)
        return np.asarray(pc.fill_null(at, -1)).astype(np.int64)

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Return a column of numbers in its own unit; NaN where an event has none."""
        type_ = self.schema.columns()[name]
        values = np.asarray(self.columns[name].cast(pa.float64()).fill_null(np.nan), np.float64)
        return values / 10**type_.scale if type_.kind is Kind.DECIMAL else values


@dataclass(frozen=True, slots=True)
class History:
    """The outcome of a replay of the rules in force, and the events that it read."""

    deployment: Deployment
    replayed: Replayed
    events: Events


def replay_history(
    deployment: Deployment, pieces_of: Callable[[Schema], Pieces], columns: Sequence[str], cores: int, console: Console
) -> History:
    """Match the history with the rules of the deployment, and keep `columns` of its events. Raises: SourceError."""
    job = Job(deployment.schema, deployment.key_domains)
    parts: dict[int, Decoded] = {}
    pieces = _watched(pieces_of(job.schema), tuple(columns), parts)
    replayed = replay_shown(job, deployment.rulebook, pieces, cores, console)
    return History(deployment, replayed, _joined(job.schema, tuple(columns), [parts[at] for at in sorted(parts)]))


def _watched(pieces: Pieces, columns: tuple[str, ...], parts: dict[int, Decoded]) -> Pieces:
    """Return pieces that put what they decode into `parts`, by their number."""

    def watch(number: int, piece: Piece) -> Piece:
        def decode() -> Decoded:
            decoded = piece.decode()
            lean = {name: decoded.columns[name] for name in columns}
            parts[number] = Decoded(decoded.event_id, decoded.event_type, decoded.time_ms, lean, ())
            return decoded

        return Piece(piece.size, decode)

    return Pieces(pieces.rows, pieces.size, (watch(number, piece) for number, piece in enumerate(pieces.pieces)))


def _joined(schema: Schema, columns: tuple[str, ...], parts: Sequence[Decoded]) -> Events:
    types = schema.columns()
    return Events(
        schema,
        pa.concat_arrays([pa.array([], TEXT), *(part.event_id.cast(TEXT) for part in parts)]),
        np.concatenate([np.empty(0, np.int16), *(part.event_type for part in parts)]),
        np.concatenate([np.empty(0, np.int64), *(part.time_ms for part in parts)]),
        {
            name: pa.concat_arrays([pa.array([], arrow_type(types[name])), *(part.columns[name] for part in parts)])
            for name in columns
        },
    )
