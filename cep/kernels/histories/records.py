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
    """The events that enter and leave a tally in one call: M members by segment, in the order of the windows' bounds.

    Shapes: segment, values int64[M] (values are 0 where events are only counted); enters, leaves, gone int64[M] of 0
    and 1. `gone` marks the events that have left at the clock after the call.
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
    """The rows of sub-keys: value, place, time int64[M]; member uint8[M], 0 for a row that reads but does not count."""

    value: Int64
    place: Int64
    time: Int64
    member: UInt8


class Places(NamedTuple):
    """The places of all rows: time int64[P]; starts and ends int64[G] of the places of each value's key."""

    time: Int64
    starts: Int64
    ends: Int64


class Memory(NamedTuple):
    """Remembered values: last, since, lacks int64[G]; is_lasting, is_remembered uint8[G] (known_values.py)."""

    last: Int64
    since: Int64
    lacks: Int64
    is_lasting: UInt8
    is_remembered: UInt8


class RowAnswers(NamedTuple):
    """The results by row: begins, lacking int64[M]; forgotten uint8[M] (known_values.py)."""

    begins: Int64
    lacking: Int64
    forgotten: UInt8


class BlockRows(NamedTuple):
    """The events of a block: key int32[N], an index of the block's keys; time and event_type int64[N]."""

    key: Int32
    time: Int64
    event_type: Int64


class CodeTable(NamedTuple):
    """A table of codes uint32[C] (reach.py): bits uint64[2^m] and places int32[2^n]."""

    codes: UInt32
    bits: UInt64
    places: Int32


class ValueBytes(NamedTuple):
    """Values as bytes: value i is data[offsets[i]:offsets[i + 1]]. nulls uint8[N], or uint8[0] if no value is null."""

    offsets: Int64
    data: UInt8
    nulls: UInt8


class Latest(NamedTuple):
    """The latest event of each class: its time and its place, int64[C]."""

    time: Int64
    at: Int64


class Scratch(NamedTuple):
    """Scratch for rows, times and key numbers: int64[N] each, or longer."""

    rows: Int64
    times: Int64
    numbers: Int64


class BlockRequest(NamedTuple):
    """The requested keys: number int32[B] by key of a block (reach.py), and keys bool[K]."""

    number: Int32
    keys: Bool


class Classes(NamedTuple):
    """Wanted classes: their table, the number of the key of each, int32[C], and their values."""

    table: CodeTable
    number: Int32
    values: ValueBytes


class ClassBlock(NamedTuple):
    """A block of events for `find_latest`: its rows, the codes and values of each, and the number of each of its keys.

    `first` is the place of its first event, `last_ms` the time of its latest.
    """

    rows: BlockRows
    codes: UInt32
    values: ValueBytes
    number: Int32
    first: int
    last_ms: int
