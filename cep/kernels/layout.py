"""The image of a program, and the rows that kernels read and write: one flat int64 array, and tables of int64.

The whole program of a key domain is one array, the *image*, because every array costs a kernel several arguments at
each call. References between parts of the image are offsets into it:

    header | state rows | wait rows | guard rows | bound rows | mark rows | action rows | measures | code | constants

    run row    | state | waits | expiry_ms | start_row | ordinal | start_ordinal | node | registers… |
    match row  | rule | key | node | detected_ms | start_row | kind | bound | null bits | measures… |
    node row   | event row | state | previous node |    or, where two paths meet, | -1 | node | other node |

`waits` of a run has a bit for each open wait of its state. Bit 62 is set when a time-out has been reported, bit 61 in a
complete match that still waits for an earlier start, bit 60 when a stop event has ended the greed of the run's loop.
`expiry_ms` of a complete match is FOREVER, plus the time of the deadline that completed it, if one did. `ordinal` is
the position of the last taken event in the rule's stream on the key; between micro-batches it is relative to the key's
next event.
Tested by: tests/engine/test_advance.py, tests/engine/test_against_oracle.py
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
UInt8 = NDArray[np.uint8]
UInt64 = NDArray[np.uint64]
Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

# np.int64 tells a kernel that a number has 64 bits. The type checker sees an int, as for array elements.
int64 = cast("Callable[[Any], int]", np.int64)
# np.uint64 tells a kernel that an index is not negative. numba lets a signed index count from the end, which costs an
# instruction and a register of the processor at each access. The interpreter of conditions takes a third less time
# without it.
unsigned = cast("Callable[[Any], int]", np.uint64)

FOREVER = 2**61  # as limits.TIME_MS_MAX

# ------------------------------------------------------------------------------------------------ event table
# The columns of the event table that every program has; the columns that rules read follow.
COLUMN_TYPE, COLUMN_TIME, COLUMN_KEY, COLUMN_ORDINAL = range(4)
COLUMNS_FIXED = 4

# ------------------------------------------------------------------------------------------------------- image
HEADER_STATES, HEADER_CONSTANTS = range(2)
HEADER_WIDTH = 2

# An NFA state: its waits and actions [from, to), and 1 if a run that enters it is a match. The loop counter in the
# accept register (-1: none) must also have reached the minimum.
S_WAITS, S_WAITS_END, S_ACCEPT, S_ACCEPT_REGISTER, S_ACCEPT_MIN, S_ACTIONS, S_ACTIONS_END, S_VARIABLE = range(8)
STATE_WIDTH = 8

# A wait: the state that it leads to; its contiguity; the bitmap of the part of its condition that needs only the event
# (-1: always true); code and result register for the rest (-1: no rest), or the rest in its simple form; the loop
# counter (or -1) and the half-open interval in which the wait opens; the loop counter that a take sets to 0 (or -1);
# registers that a take sets to the event's row; guards; bounds; and a bit for each wait of the state that, while open,
# keeps a relaxed wait open after a take (these waits precede it).
(
    W_TARGET, W_KIND, W_PREDICATE, W_CODE, W_CODE_END, W_RESULT, W_SIMPLE, W_SIMPLE_COLUMN, W_SIMPLE_REGISTER,
    W_SIMPLE_OTHER, W_COUNT_REGISTER, W_COUNT_MIN, W_COUNT_MAX, W_RESET, W_ROW_REGISTERS, W_ROW_REGISTERS_END,
    W_GUARDS, W_GUARDS_END, W_BOUNDS, W_BOUNDS_END, W_REOPENS,
) = range(21)  # fmt: skip
WAIT_WIDTH = 21
# Contiguity. ABSENCE takes no event: the run matches if it is still open when its window closes; ABSENCE_NEXT matches
# at the very next event of the stream too.
WAIT_STRICT, WAIT_RELAXED, WAIT_ANY, WAIT_ABSENCE, WAIT_ABSENCE_NEXT = range(5)

# A guard closes its wait at an event that satisfies the guard's bounds and condition.
G_MOMENT, G_PREDICATE, G_CODE, G_CODE_END, G_RESULT, G_FREED, G_BOUNDS, G_BOUNDS_END = range(8)
GUARD_WIDTH = 8
# When a guard applies: before the event may be taken; after it; after it, and only at the very next event of the
# stream; before, unless a stop event has ended the loop's greed (one of the run's flags in G_FREED is set); at such a
# stop event (which sets the flags); and after it, unless a wait is open that reopens the guarded one.
GUARD_BEFORE, GUARD_AFTER, GUARD_NEXT, GUARD_GREEDY, GUARD_FREES, GUARD_STOP = range(6)

# A bound: the gap to the event in the register (-1: the last taken event) is in [min, max).
B_REGISTER, B_MIN, B_MAX = range(3)
BOUND_WIDTH = 3

# An action: the effect of a taken event on a register of the run.
A_KIND, A_REGISTER, A_COLUMN, A_OTHER = range(4)
ACTION_WIDTH = 4
(
    ACT_COUNT, ACT_LAST, ACT_FIRST, ACT_PREVIOUS, ACT_SUM, ACT_FSUM, ACT_MIN, ACT_FMIN, ACT_MAX, ACT_FMAX,
    ACT_COUNT_PRESENT, ACT_HIGH, ACT_LOW, ACT_FREST, ACT_BASE, ACT_OFFSET, ACT_OFFSET_SQUARED, ACT_FOFFSET,
    ACT_FOFFSET_SQUARED,
) = range(19)  # fmt: skip

# A measure: its code and result register.
M_CODE, M_CODE_END, M_RESULT = range(3)
MEASURE_WIDTH = 3

# The simple form of a cross-event condition: a field of the event against a field of a bound event.
SIMPLE_NONE, SIMPLE_LT, SIMPLE_LE, SIMPLE_GT, SIMPLE_GE, SIMPLE_EQ, SIMPLE_NE = range(7)
SIMPLE_FLOAT = 8  # added for float64 columns
SIMPLE_OR_NULL = 16  # added if the condition also holds for a bound event whose field is null

# ------------------------------------------------------------------------------------------------ one rule's row
(
    R_NUMBER, R_START_STATE, R_END_STATE, R_WITHIN_MS, R_WITHIN_EVENTS, R_FROM_MS, R_STARTS_UNTIL_MS, R_UNTIL_MS,
    R_SKIP, R_SKIP_VARIABLE, R_TIMEOUTS, R_DEADLINES_MATTER, R_MEASURES, R_MEASURES_END, R_RUNS_MAX, R_MATCHES_MAX,
    R_COUNTS, R_IN_ORDER, R_MERGES, R_CONTROL, R_REACTS_TO_ALL, R_PLAIN,
    R_SAME_WAIT, R_REPEATS, R_SHARES, R_NODES_MAX,
) = range(26)  # fmt: skip
# R_DEADLINES_MATTER: deadlines cause matches or time-outs. R_CONTROL: a bit for each register that a condition may
# read. R_MERGES: runs may share a row. R_PLAIN: plain.py suffices. R_SAME_WAIT: all runs that have taken an event
# wait for the same condition. R_REPEATS: two runs may have bound the same events to the same variables. R_SHARES:
# other rules start on the same events, and the starts are stored once for all of them; one more than the number of
# the shared start, or 0. R_COUNTS: one more than the number of the stream in which the rule needs positions, or 0.
# R_RUNS_MAX, R_NODES_MAX: per key (base/limits.py).
RULE_WIDTH = 26
SKIP_NONE, SKIP_TO_NEXT, SKIP_PAST_LAST, SKIP_TO_FIRST, SKIP_TO_LAST = range(5)

# ------------------------------------------------------------------------------------------- predicates by index
# Predicates that compare one column with a constant: entries [first, end), ascending by constant.
INDEX_KIND, INDEX_COLUMN, INDEX_FIRST, INDEX_END = range(4)
INDEX_GROUP_WIDTH = 4
INDEX_EQ, INDEX_LT, INDEX_LE, INDEX_GT, INDEX_GE = range(5)
# The constant's slot, the predicate's bitmap, its event type (or -1), and code for the rest of it (or -1).
INDEX_CONSTANT, INDEX_PREDICATE, INDEX_TYPE, INDEX_CODE, INDEX_CODE_END, INDEX_RESULT = range(6)
INDEX_ENTRY_WIDTH = 6

# -------------------------------------------------------------------------------------------- runs, nodes, matches
RUN_STATE, RUN_OPEN_WAITS, RUN_EXPIRY, RUN_START_ROW, RUN_ORDINAL, RUN_START_ORDINAL, RUN_NODE = range(7)
RUN_HEADER = 7
TIMED_OUT = 1 << 62
HELD_BACK = 1 << 61
# A state with n waits uses bits 0 to n - 1; bits 60, 59, … mark the stop events of greedy loops that have come.
FREED = 1 << 60
EVERY_WAIT = FREED - 1

NODE_ROW, NODE_STATE, NODE_PREVIOUS = range(3)
NODE_WIDTH = 3

MATCH_RULE, MATCH_KEY, MATCH_NODE, MATCH_DETECTED, MATCH_START_ROW, MATCH_KIND, MATCH_COUNT, MATCH_NULLS = range(8)
MATCH_HEADER = 8
# BOTH: a certain absence, while the same run also waited for more and timed out. EVICTED is no match: it notes that
# runs of the key were evicted, and `bound` is their number.
KIND_MATCH, KIND_TIMEOUT, KIND_BOTH, KIND_EVICTED = range(4)

# ------------------------------------------------------------------------------------------- counters, cursor
COUNT_STARTED, COUNT_EXPIRED, COUNT_EVICTED, COUNT_DROPPED, COUNT_OVERFLOW, COUNT_STEPS = range(6)
COUNTERS = 6

# The current rule: the position in its queue and runs, and the amount of output before it. The stream whose positions
# are in the table, one more than its number, or 0. The number of nodes before the call, and the last mark of
# match/room.py. From CURSOR_COUNTED on: the counters before the rule.
(
    CURSOR_QUEUE, CURSOR_RUN, CURSOR_NODES, CURSOR_MATCHES, CURSOR_OUT, CURSOR_RULE, CURSOR_FIRST_OUT,
    CURSOR_STREAM, CURSOR_OLD_NODES, CURSOR_MARK, CURSOR_COUNTED,
) = range(11)  # fmt: skip
CURSOR_WIDTH = CURSOR_COUNTED + COUNTERS
NOT_FULL, FULL_RUNS, FULL_NODES, FULL_MATCHES, FULL_OUT, FULL_STACK, FULL_MARKS = range(7)
