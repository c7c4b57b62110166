"""The texts of events → their counts as bound events, for the limit of a key (match/room.py).

An event counts once more for each NODE_TEXT_BYTES of its id and of the texts that rules read from bound events. The
texts of all rules of the program count, because they are stored together.
Tested by: tests/kernels/test_room.py
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from cep.base.limits import NODE_TEXT_BYTES
from cep.columnar.batch import text_offsets
from cep.engine.keyed_state import RetainedEvents
from cep.kernels.layout import Int64, UInt8
from cep.kernels.text.texts import longest_text
from cep.nfa.program import Program

NO_WEIGHTS = np.empty(0, np.int64)  # each event counts once


def table_weights(
    program: Program, texts: pa.Array, columns: Int64, nulls: UInt8, ids: tuple[pa.Array, ...], order: Int64
) -> Int64:
    """Return how many more times than once each event counts, because of long texts; empty if none does.

    Shapes: columns and nulls [C, N] have numbers of `texts`; row n has the id order[n] of all ids.
    """
    numbers = program.retained_texts
    longest = max(longest_text(text_offsets(part)) for part in ids)
    if numbers:
        longest += len(numbers) * longest_text(text_offsets(texts))
    if longest < NODE_TEXT_BYTES:  # no row can have more
        return NO_WEIGHTS
    lengths = _lengths(texts)
    sizes = np.concatenate([_lengths(part) for part in ids])[order]
    for number in numbers if len(lengths) else ():
        sizes += np.where(nulls[number] == 0, lengths[columns[number]], 0)
    return _weights(sizes)


def retained_weights(program: Program, events: RetainedEvents) -> Int64:
    """Return what `table_weights` gives, for a table of retained events alone."""
    sizes = _lengths(events.event_id)
    for number in program.retained_texts:
        sizes = sizes + _lengths(events.columns[program.columns[number].name])
    return _weights(sizes)


def _lengths(texts: pa.Array) -> Int64:
    """Return the bytes of each text; 0 for a null."""
    lengths: Int64 = np.diff(text_offsets(texts))
    return lengths


def _weights(sizes: Int64) -> Int64:
    weights: Int64 = sizes // NODE_TEXT_BYTES
    return weights if weights.any() else NO_WEIGHTS
