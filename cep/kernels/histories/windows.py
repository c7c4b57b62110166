"""Aggregates over sliding windows of past events, for all keys of a table at once.

    members   int64[M]   rows of the table that count, by (sub-)key and event order
    lows, highs int64[Q] the window of each new event: members[low:high]; neither ever decreases

Every kernel moves two pointers over the members, so its cost does not depend on the length of windows.
Tested by: tests/histories/test_values.py
"""

import numpy as np

from cep.kernels.histories.count_tree import add, find, new_tree
from cep.kernels.histories.exact_sums import CHUNKS, accumulate, accumulate_square, as_two, rounded, spread_of
from cep.kernels.histories.records import TableRows, Windows
from cep.kernels.jit import bare, kernel
from cep.kernels.layout import Float64, Int64, UInt8, int64


@bare
def find_windows(rows: TableRows, starts: Int64, previous: bool, events_max: int, members: Int64, out: Windows) -> int:
    """Find the members (rows that a history counts), int64[N], and each new event's window; return how many members.

    rows.order is by segment (key or sub-key) and time. The window of new event n has the members later than
    starts[n] (int64[Q]), but not the event itself if `previous`. It keeps the newest events_max; `folded`: it had more.
    """
    count = low = q = 0
    for i in range(rows.order.shape[0]):
        row = rows.order[i]
        if i == 0 or rows.segment[row] != rows.segment[rows.order[i - 1]]:
            low = count
        if rows.member[row] != 0:
            members[count] = row
            count += 1
        if rows.new_at[row] >= 0:  # a new event: this is its number, otherwise -1
            high = count - 1 if previous and rows.member[row] != 0 else count
            while low < high and rows.time[members[low]] <= starts[rows.new_at[row]]:
                low += 1
            out.folded[q] = high - low > events_max
            out.lows[q], out.highs[q], out.at[q] = max(low, high - events_max), high, rows.new_at[row]
            q += 1
    return count


@bare
def mark_retained(
    members: Int64, segment: Int64, time: Int64, starts: Int64, events_max: int, oldest: bool, marked: UInt8
) -> None:
    """Set marked uint8[N] for the newest events_max members of each segment, or with `oldest` for the oldest ones.

    Marked events are stored for later windows. An event up to starts[row] is in no later window, so it is not marked.
    `oldest` is for histories of the first event, with events_max 1. Shapes: members int64[M], the rows that a history
    counts, by segment (the number of a key or sub-key) and time; segment, time, starts int64[N] by row.
    """
    members_seen = 0
    for i in range(members.shape[0]):
        j = i if oldest else members.shape[0] - 1 - i
        row = members[j]
        previous_row = members[j - 1 if oldest else min(j + 1, members.shape[0] - 1)]  # unused if i is 0
        if i == 0 or segment[row] != segment[previous_row]:
            members_seen = 0
        if members_seen < events_max and time[row] > starts[row]:
            marked[row] = 1
        members_seen += 1


@bare
def mark_least(members: Int64, segment: Int64, time: Int64, starts: Int64, values: Int64, marked: UInt8) -> None:
    """Mark the events to retain: their value is less than all later ones, so a later window can have it as its least.

    Shapes: members int64[M], the events' rows by segment (the number of a key or sub-key) and time; values int64[M];
    segment, time, starts int64[N] by row; marked uint8[N]. No later window begins before starts[row].
    """
    count = members.shape[0]
    best = int64(0)
    for j in range(count):
        i = count - 1 - j
        row = members[i]
        is_last = i == count - 1 or segment[row] != segment[members[i + 1]]
        if is_last or values[i] < best:
            best = values[i]
            if time[row] > starts[row]:  # otherwise each later window begins after the event
                marked[row] = 1


@kernel
def sum_floats(values: Int64, lows: Int64, highs: Int64, out: Float64) -> None:
    """Fill out float64[Q] with the sum of each window, rounded once. values int64[M] are the bits of finite float64."""
    acc = np.zeros(CHUNKS, np.int64)  # an exact sum as integers, so that subtracting a value leaves no error
    low = high = 0
    for q in range(lows.shape[0]):
        while high < highs[q]:
            accumulate(acc, values[high], 1)
            high += 1
        while low < lows[q]:
            accumulate(acc, values[low], -1)
            low += 1
        out[q] = rounded(acc)


@kernel
def spread_floats(values: Int64, lows: Int64, highs: Int64, out: Float64) -> None:
    """Fill out float64[Q] with the population standard deviation of each window; 0 where it is empty.

    values int64[M] are bits of finite floats. The sums of values and squares are exact: CHUNKS integers each. Each is
    read as two floats, so that a small spread around a large mean keeps its digits. spread_of: count² · variance.
    """
    floats = values.view(np.float64)
    sums, squares = np.zeros(CHUNKS, np.int64), np.zeros(CHUNKS, np.int64)
    pair, pair_squares = np.zeros(2, np.float64), np.zeros(2, np.float64)
    float_scratch = np.zeros(1, np.float64)  # scratch to read the bits of a float
    float_bits = float_scratch.view(np.int64)
    low = high = 0
    for q in range(lows.shape[0]):
        while high < highs[q] or low < lows[q]:
            sign = 1 if high < highs[q] else -1  # add a value that enters the window, or subtract one that leaves
            position = high if sign > 0 else low
            accumulate(sums, values[position], sign)
            accumulate_square(squares, floats[position], float_scratch, float_bits, sign)
            high, low = (high + 1, low) if sign > 0 else (high, low + 1)
        as_two(sums, pair, float_scratch, float_bits)
        as_two(squares, pair_squares, float_scratch, float_bits)
        count = highs[q] - lows[q]
        out[q] = np.sqrt(max(spread_of(count, pair, pair_squares), 0.0)) / count if count > 0 else 0.0


@kernel
def least(values: Int64, lows: Int64, highs: Int64, out: Int64) -> None:
    """Find the position of the least value of each window: int64[Q] into `values` int64[M], -1 for an empty window."""
    queue = np.empty(values.shape[0] + 1, np.int64)  # positions that may be the least in this window or a later one
    head = tail = 0
    high = 0  # a window is values[low:high]; both bounds never decrease
    for q in range(lows.shape[0]):
        while high < highs[q]:
            while tail > head and values[queue[tail - 1]] >= values[high]:
                tail -= 1  # not less than a later value, so never the least again
            queue[tail] = high
            tail += 1
            high += 1
        while head < tail and queue[head] < lows[q]:
            head += 1
        out[q] = queue[head] if head < tail else -1


@kernel
def count_distinct(codes: Int64, codes_count: int, lows: Int64, highs: Int64, out: Int64) -> None:
    """Fill out int64[Q] with how many different codes (int64[M], below codes_count) each window has."""
    counts = np.zeros(codes_count + 1, np.int64)
    different = low = high = 0
    for q in range(lows.shape[0]):
        while high < highs[q]:
            different += counts[codes[high]] == 0
            counts[codes[high]] += 1
            high += 1
        while low < lows[q]:
            counts[codes[low]] -= 1
            different -= counts[codes[low]] == 0
            low += 1
        out[q] = different


@kernel
def find_rank(codes: Int64, codes_count: int, percent: int, lows: Int64, highs: Int64, out: Int64) -> None:
    """Fill out int64[Q] with the code of nearest rank, ⌈percent · n / 100⌉ of n, in each window; -1 where it is empty.

    Codes int64[M] are in the order of the values. Cost: O(log codes_count) an event.
    """
    tree = new_tree(codes_count)
    low = high = 0
    for q in range(lows.shape[0]):
        while high < highs[q]:
            add(tree, codes[high], 1)
            high += 1
        while low < lows[q]:
            add(tree, codes[low], -1)
            low += 1
        count = high - low
        out[q] = find(tree, (percent * count + 99) // 100) if count > 0 else -1
