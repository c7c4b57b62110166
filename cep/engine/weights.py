"""The texts of events → how often each counts as a bound event, for the limit of what a key may keep (match/room.py).

An event counts once more for each NODE_TEXT_BYTES of its id and of the texts that rules read of bound events. All rules
of the program have a say in which texts these are: they are kept together.
Tested by: tests/kernels/test_room.py
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from cep.base.limits import NODE_TEXT_BYTES
from cep.columnar.batch import text_buffers
from cep.engine.keyed_state import RetainedEvents
from cep.kernels.layout import Int64, UInt8
from cep.nfa.program import Program

NO_WEIGHTS = np.empty(0, np.int64)  # each event counts once


def table_weights(
    program: Program, texts: pa.Array, columns: Int64, nulls: UInt8, ids: tuple[pa.Array, ...], order: Int64
) -> Int64:
    """Return how often each row of an event table counts beyond once; nothing if none does.

    Shapes: columns and nulls [C, N] have numbers of `texts`; row n has the id order[n] of all ids.
    """
    numbers = _text_columns(program)
    lengths = _lengths(texts) if numbers else NO_WEIGHTS
    of_ids = [_lengths(part) for part in ids]
    longest = len(numbers) * _most(lengths) + max(map(_most, of_ids))
    if longest < NODE_TEXT_BYTES:  # no row can have more
        return NO_WEIGHTS
    sizes = np.concatenate(of_ids)[order]
    for number in numbers if len(lengths) else ():
        sizes += np.where(nulls[number] == 0, lengths[columns[number]], 0)
    return _weights(sizes)


def retained_weights(program: Program, events: RetainedEvents) -> Int64:
    """Return what `table_weights` gives, for a table of retained events alone."""
    sizes = _lengths(events.event_id)
    for number in _text_columns(program):
        sizes = sizes + _lengths(events.columns[program.columns[number].name])
    return _weights(sizes)


def _text_columns(program: Program) -> list[int]:
    return [number for number, column in program.retained if column.type.is_text]


def _lengths(texts: pa.Array) -> Int64:
    """Return the bytes of each text; a null has none."""
    ends = text_buffers(texts).offsets
    lengths: Int64 = ends[1:] - ends[:-1]  # as np.diff, which takes longer for the few events of a micro-batch
    return lengths


def _most(lengths: Int64) -> int:
    return int(np.maximum.reduce(lengths)) if len(lengths) else 0


def _weights(sizes: Int64) -> Int64:
    weights: Int64 = sizes // NODE_TEXT_BYTES
    return weights if weights.any() else NO_WEIGHTS
