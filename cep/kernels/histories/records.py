"""Records of the kernels of histories: arrays that belong together under one name.

Letters of shapes: N rows of the history table, M members of windows, Q new events, S segments of the table, C classes.
Tested by: tests/histories/test_values.py, tests/histories/test_tally.py
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cep.kernels.layout import Bool, Int32, Int64, UInt8, UInt64

UInt32 = NDArray[np.uint32]


class TableRows(NamedTuple):
    """Rows of a history table: order int64[N] by segment and event order; by row, segment and time int64[N], member
    uint8[N], and new_at int64[N], the number of a new event or -1.
    """

    order: Int64
    segment: Int64
    member: UInt8
    new_at: Int64
    time: Int64


class Windows(NamedTuple):
    """Windows of new events `at`: members lows <= i < highs, int64[Q]; folded uint8[Q]: 1 if older ones are cut off."""

    lows: Int64
    highs: Int64
    at: Int64
    folded: UInt8


class SegmentWindows(NamedTuple):
    """Windows with the segment of each: members lows <= i < highs. Shapes: int64[Q], by segment and in order."""

    segment: Int64
    lows: Int64
    highs: Int64


class Moves(NamedTuple):
    """The events that enter or leave windows in one call. A tally is the stored count or sum of a window's events.

    Shapes: int64[M] by segment (the number of a key or sub-key), then by event. `values` are 0 if events are only
    counted. The other fields are flags. `enters`: the stored tally lacks the event, so the event is added to it.
    `leaves`: the event is subtracted for each new event whose window begins later. `gone`: the event is outside of the
    window at the end of the call, so the next stored tally lacks it.
    """

    segment: Int64
    values: Int64
    enters: Int64
    leaves: Int64
    gone: Int64


class Bands(NamedTuple):
    """The bands of S segments (bands.py). Shapes: counts int64[S, 2], starts int64[S + 1], values int64[B]."""

    counts: Int64
    starts: Int64
    values: Int64


class ValueRows(NamedTuple):
    """Rows of sub-keys: numbers of values, positions by key, time and value, times, int64[M]; member uint8[M]: 1 if it
    counts, 0 if it only reads.
    """

    value: Int64
    position: Int64
    time: Int64
    member: UInt8


class KeyOrder(NamedTuple):
    """The positions of all rows: time int64[P]; starts and ends int64[G] of the positions of each value's key."""

    time: Int64
    starts: Int64
    ends: Int64


class Memory(NamedTuple):
    """Remembered values: last, since, forgotten_until int64[G]; is_lasting, is_remembered uint8[G]: known_values.py."""

    last: Int64
    since: Int64
    forgotten_until: Int64
    is_lasting: UInt8
    is_remembered: UInt8


class RowAnswers(NamedTuple):
    """The results by row: first_rows, forgotten_until int64[M]; is_forgotten uint8[M] (known_values.py)."""

    first_rows: Int64
    forgotten_until: Int64
    is_forgotten: UInt8


class BlockRows(NamedTuple):
    """The events of a block: key int32[N], an index of the block's keys; time and event_type int64[N]."""

    key: Int32
    time: Int64
    event_type: Int64


class CodeTable(NamedTuple):
    """A hash table of the codes (hashes) of classes, uint32[C]: a filter, bits uint64[2^m], and places int32[2^n]."""

    codes: UInt32
    bits: UInt64
    places: Int32


class ValueBytes(NamedTuple):
    """Values as bytes: value i is data[offsets[i]:offsets[i + 1]]. nulls uint8[N], or uint8[0] if no value is null."""

    offsets: Int64
    data: UInt8
    nulls: UInt8


class Latest(NamedTuple):
    """The latest event of each class: its time, and its number among the events of all blocks, int64[C]."""

    time: Int64
    at: Int64


class Scratch(NamedTuple):
    """Scratch for rows, times and key numbers: int64[N] each, or longer."""

    rows: Int64
    times: Int64
    numbers: Int64


class BlockRequest(NamedTuple):
    """The requested keys of a call: keys bool[K]. key_numbers int32[B] are the numbers of a block's keys, or -1."""

    key_numbers: Int32
    keys: Bool


class Classes(NamedTuple):
    """Wanted classes (events of a key with one value): the table of their codes, their keys int32[C], their values."""

    table: CodeTable
    key_numbers: Int32
    values: ValueBytes


class ClassBlock(NamedTuple):
    """A block of stored events in which `find_latest` searches for the latest event of each wanted class.

    A class is a key's events with the same value of a field. By event: `codes` uint32[N], the hash of its class, and
    `values` of the field. key_numbers int32[B] by key of the block: its number among the keys of the call, or -1.
    `first` is the number of its first event among the events of all blocks, `last_ms` the time of its latest event.
    """

    rows: BlockRows
    codes: UInt32
    values: ValueBytes
    key_numbers: Int32
    first: int
    last_ms: int
