"""Names for the columns of the kernels' integer tables, and the tuples of arrays that kernels are handed.

    run row int64[7 + registers]   | state | waits | expiry_ms | start_row | ordinal | start_ordinal | node | registers… |
    match row int64[8]             | rule | key | node | detected_ms | start_row | kind | bound_count | match number |

`waits` has a bit for each wait of the NFA state that is still open; bit 62 says that a time-out has been reported. `ordinal` counts the events of the rule's stream
on the key and belongs to the last event taken; between micro-batches it is relative to the key's next event.
Tested by: tests/kernels/test_advance.py
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
UInt8 = NDArray[np.uint8]
UInt64 = NDArray[np.uint64]

RUN_STATE, RUN_WAITS, RUN_EXPIRY, RUN_START_ROW, RUN_ORDINAL, RUN_START_ORDINAL, RUN_NODE = range(7)
RUN_HEADER = 7
TIMED_OUT = np.int64(1) << np.int64(62)

MATCH_RULE, MATCH_KEY, MATCH_NODE, MATCH_DETECTED, MATCH_START_ROW, MATCH_KIND, MATCH_BOUND, MATCH_NUMBER = range(8)
MATCH_WIDTH = 8
# BOTH: an absence that is certain, while the same run also waited for more and timed out.
KIND_MATCH, KIND_TIMEOUT, KIND_BOTH = range(3)

NODE_ROW, NODE_STATE, NODE_PREVIOUS = range(3)
NODE_WIDTH = 3

# Contiguity of a wait. ABSENCE takes nothing: the run matches if it is still open when its window closes;
# ABSENCE_NEXT matches at the very next event of the stream too.
WAIT_STRICT, WAIT_RELAXED, WAIT_ANY, WAIT_ABSENCE, WAIT_ABSENCE_NEXT = range(5)
# When a guard closes its wait: before the event may be taken, after it, or only on the very next event.
GUARD_BEFORE, GUARD_AFTER, GUARD_NEXT = range(3)
ACCEPT_NO, ACCEPT_NOW = range(2)
SKIP_NONE, SKIP_TO_NEXT, SKIP_PAST_LAST, SKIP_TO_FIRST, SKIP_TO_LAST = range(5)

# What taking an event does to the registers of the run.
(
    ACT_COUNT, ACT_LAST, ACT_FIRST, ACT_PREVIOUS, ACT_SUM, ACT_FSUM, ACT_MIN, ACT_FMIN, ACT_MAX, ACT_FMAX,
    ACT_FSQUARES, ACT_COUNT_PRESENT,
) = range(12)  # fmt: skip

# Fast form of a cross-event condition: a field of the event against a field of a bound event.
SIMPLE_NONE, SIMPLE_LT, SIMPLE_LE, SIMPLE_GT, SIMPLE_GE, SIMPLE_EQ, SIMPLE_NE = range(7)
SIMPLE_FLOAT = 8  # added for float64 columns

COUNT_STARTED, COUNT_EXPIRED, COUNT_EVICTED, COUNT_DROPPED, COUNT_OVERFLOW, COUNT_STEPS = range(6)
COUNTERS = 6

CURSOR_QUEUE, CURSOR_RUN, CURSOR_NODES, CURSOR_MATCHES, CURSOR_OUT = range(5)
CURSOR_WIDTH = 5
FULL_NOT, FULL_WORK, FULL_NODES, FULL_MATCHES, FULL_OUT = range(5)


class ProgramArrays(NamedTuple):
    """The transition tables and code of every rule of one key domain. S states, W waits, G guards, B bounds."""

    state_first_wait: Int32  # [S + 1]
    state_accept: Int32  # [S] ACCEPT_*
    state_accept_register: Int32  # [S] loop counter that must have reached state_accept_min, or -1
    state_accept_min: Int64  # [S]
    state_first_action: Int32  # [S + 1]
    state_variable: Int32  # [S] index of the variable in its pattern
    wait_target: Int32  # [W]
    wait_kind: Int32  # [W] WAIT_*
    wait_predicate: Int32  # [W] bitmap of the part of the condition that needs this event alone, or -1: always true
    wait_code: Int32  # [W, 3] first, last instruction and result register of the rest, or -1
    wait_simple: Int32  # [W, 4] SIMPLE_*, column, run register, column of the bound event
    wait_count: Int64  # [W, 3] loop counter (or -1) and the half-open interval in which the wait opens
    wait_reset: Int32  # [W] loop counter that a take sets to 0 first, or -1
    wait_first_mark: Int32  # [W + 1]
    mark_register: Int32  # [*] registers that a take sets to this event's row (start of a group's window)
    wait_first_guard: Int32  # [W + 1]
    wait_first_bound: Int32  # [W + 1]
    guard_condition: Int32  # [G, 5] GUARD_*, predicate, first, last, result
    guard_gap: Int64  # [G, 2] the gap to the last event taken in which it speaks
    bound_register: Int32  # [B] register whose event the gap is measured from; -1: the last event taken
    bound_ms: Int64  # [B, 2] the gap lies in [min, max)
    action: Int32  # [A, 4] ACT_*, register, column, other register
    measure_code: Int32  # [M, 3] first, last, result
    code: Int32  # [I, MACHINE_WIDTH]
    constants: Int64  # [K]


class RuleScalars(NamedTuple):
    """One rule, as the kernel sees it. Times in ms; `measure_first … measure_last` are rows of measure_code."""

    rule: int
    start_state: int
    end_state: int
    within_ms: int
    within_events: int
    from_ms: int
    starts_until_ms: int
    until_ms: int
    skip_kind: int
    skip_variable: int
    report_timeouts: int
    fires: int  # whether the rule reports anything when time runs out: absences or time-outs
    register_count: int
    measure_first: int
    measure_last: int
    runs_max: int
    matches_max: int


class EventTable(NamedTuple):
    """Events as columns: rows [0, first_row) are retained from before, the rest is new, by key, time, order.

    columns[0] is the event type's code, columns[1] the event time in ms.
    """

    columns: Int64  # [C, N]
    nulls: UInt8  # [C, N]
    key: Int32  # [N]
    ordinal: Int32  # [N] position among the events of the rule's stream on the key, in this batch
    stream_count: Int32  # [K] events of the rule's stream on each key, in this batch
    bitmaps: UInt64  # [P, words]; bit 0 is first_row
    first_row: int


class Machine(NamedTuple):
    """Scratch registers of the scalar interpreter; `floats` is the same memory as `ints`. `nodes` are the bound events."""

    ints: Int64  # [R]
    floats: NDArray[np.float64]  # [R]
    nulled: UInt8  # [R]
    nodes: Int64  # [*, NODE_WIDTH]
