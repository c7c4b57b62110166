"""Tallies: counts, sums and squares of whole numbers over windows, carried from call to call.

    tally    int64[S, 3] by segment: the number of events in the window at the clock | sum = high · 2^32 + low
             int64[S, 7] for stddev: the same, and the sum of squares Σ word · 2^(32 at) | word 0 … word 3

A segment is a key, or one value of a sub-key within a key. A new event *enters* a tally. An event *leaves* it if it was
in the tally or is new. The value at an event is the carried tally, plus the events that entered up to it, minus the
events that left before its window. No value is rounded.

Tallies of floats are exact sums, also carried from call to call (kernels/histories/float_sums.py), and rounded once.
Where each float may stand for many events (folds.py), sums and standard deviations are computed to twice the digits.
Tested by: tests/histories/test_tally.py, tests/histories/test_values.py, tests/histories/test_folds.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from cep.columnar.batch import TEXT, read_only, slot_values
from cep.columnar.texts import table_key
from cep.functions.columns import TextNumbers
from cep.histories.store import SubTallies, concat_sub_tallies
from cep.histories.table import HistoryTable, empty_places
from cep.kernels.groups import find_pairs, group_pairs
from cep.kernels.histories.float_sums import FLOATS_AT, SQUARES_AT, float_tallies_after, float_tallies_at
from cep.kernels.histories.records import Moves, SegmentWindows
from cep.kernels.histories.windows import sum_floats
from cep.kernels.layout import Int32, Int64

_SPLIT = 134217729.0  # 2^27 + 1
# Squares of smaller values, summed and multiplied by their count, stay below the greatest float.
_SQUARED_MAX = 2.0**480
# Possible error of a sum of two floats, in the standard deviation of equal values: 2^-101 of the sum of squares.
_LEVEL = 2.0**-101
Pair = tuple[np.ndarray, np.ndarray]  # float64[N] each: their sum is the number, the first is the nearest float


def can_be_squared(values: Int64) -> np.ndarray:
    """bool[N]: the floats, given by their bits, that are small enough for a standard deviation; others make it NaN."""
    is_small: np.ndarray = np.abs(values.view(np.float64)) < _SQUARED_MAX
    return is_small


def squares(values: Int64) -> tuple[Int64, Int64]:
    """Return the squares of floats, given by their bits: the nearest float and its error, as bits."""
    floats = values.view(np.float64)
    square = floats * floats
    return square.view(np.int64), _square_error(floats, square).view(np.int64)


def two_sums(values: Int64, lows: Int64, highs: Int64) -> Pair:
    """Return the sums of values[low:high] of finite floats, given by their bits, for windows that never move back."""
    sums, error = np.empty(len(lows), np.float64), np.empty(len(lows), np.float64)
    sum_floats(values, lows, highs, sums)
    # After each window its sum is subtracted, and added again for the windows that follow.
    off_and_on = np.stack([-sums, sums], axis=1).reshape(-1).view(np.int64)
    longer = np.insert(values, np.repeat(highs, 2), off_and_on)
    before = np.searchsorted(highs, lows, side="right")  # the number of windows whose sums are before each start
    ends = highs + 2 * np.arange(len(highs)) + 1
    sum_floats(longer, np.minimum(lows + 2 * before, ends), ends, error)
    return sums, error


def deviations_of(counts: Int64, sums: Pair, of_squares: Pair) -> np.ndarray:
    """float64[Q]: population standard deviations, √(n Σx² − (Σx)²) / n; 0 for an empty window."""
    n = counts.astype(np.float64)
    scaled_squares = n * of_squares[0]
    left_error = _product_error(n, of_squares[0], scaled_squares) + n * of_squares[1]
    right = sums[0] * sums[0]
    right_error = _square_error(sums[0], right) + 2.0 * sums[0] * sums[1]
    number = (scaled_squares - right) + (left_error - right_error)
    deviations: np.ndarray = np.sqrt(np.where(number > scaled_squares * _LEVEL, number, 0.0)) / np.maximum(n, 1.0)
    return deviations


def quotients(numbers: Pair, divisors: np.ndarray) -> Pair:
    """Divide the numbers by floats other than 0. The quotients are pairs of floats."""
    first = numbers[0] / divisors
    product = first * divisors
    error = ((numbers[0] - product) - _product_error(first, divisors, product)) + numbers[1]
    second = error / divisors
    second = np.where(np.isfinite(second), second, 0.0)
    nearest = first + second
    return nearest, np.where(np.isfinite(nearest), second - (nearest - first), 0.0)


def _product_error(one: np.ndarray, other: np.ndarray, product: np.ndarray) -> np.ndarray:
    """Return the exact rounding error of a product (Dekker, see kernels/expressions/twofold.py)."""
    (head, tail), (other_head, other_tail) = _split(one), _split(other)
    error: np.ndarray = ((head * other_head - product) + head * other_tail + tail * other_head) + tail * other_tail
    return error


def _square_error(numbers: np.ndarray, square: np.ndarray) -> np.ndarray:
    return _product_error(numbers, numbers, square)


def _split(numbers: np.ndarray) -> Pair:
    wide = _SPLIT * numbers
    head = wide - (wide - numbers)
    return head, numbers - head


_COUNT, _HIGH, _LOW, _SQUARES = range(4)
_TALLY_WIDTH, _WORDS = 3, 4
_MASK = np.int64(0xFFFFFFFF)


def tallies_at_events(tally: Int64, moves: Moves, segment: Int64, lows: Int64, highs: Int64) -> Int64:
    """int64[Q, W]: the tally of each new event's window, given its segment int64[Q] and its bounds in `moves`."""
    starts = np.searchsorted(moves.segment, segment)
    sums = tally[segment]
    entered, departed = (_running(_weighted(w, moves.values, tally.shape[1])) for w in (moves.enters, moves.leaves))
    sums += entered[highs] - entered[starts] - departed[lows] + departed[starts]
    return _normal(sums)


def tallies_at_clock(tally: Int64, moves: Moves) -> Int64:
    """Return the tally after the call."""
    after = tally.copy()
    np.add.at(after, moves.segment, _weighted(moves.enters - moves.gone, moves.values, tally.shape[1]))
    return _normal(after)


def tallies_of_windows(values: Int64, lows: Int64, highs: Int64, width: int) -> Int64:
    """int64[Q, W]: the tallies of values[low:high], if no tally is carried."""
    return tallies_of_parts(parts_of(values, width), lows, highs)


def parts_of(values: Int64, width: int) -> Int64:
    """int64[M, W]: the contribution of each value to a tally."""
    return _weighted(np.ones(len(values), np.int64), values, width)


def tallies_of_parts(parts: Int64, lows: Int64, highs: Int64) -> Int64:
    """int64[Q, W]: the tallies of parts[low:high]."""
    running = _running(parts)
    return _normal(running[highs] - running[lows])


def whole_sums(tallies: Int64) -> tuple[Int64, int]:
    """Return the sums, and how many of them exceed 64 bits and were replaced by the least or the greatest integer.

    The tallies stay exact, so a sum is right again after the large values have left the window.
    """
    high = tallies[:, _HIGH]
    fits = (high >= -(2**31)) & (high < 2**31)
    bound = np.where(high < 0, np.int64(-(2**63)), np.int64(2**63 - 1))
    return np.where(fits, (np.where(fits, high, 0) << 32) | tallies[:, _LOW], bound), int((~fits).sum())


def averages(tallies: Int64, counts: Int64, scale: int) -> tuple[np.ndarray, np.ndarray]:
    """float64[N] twice: the floats nearest to the averages of decimals, and the rounding errors. Empty: undefined."""
    high, low = tallies[:, _HIGH] * 2.0**32, tallies[:, _LOW].astype(np.float64)
    total = high + low
    average = quotients((total, low - (total - high)), np.maximum(counts, 1).astype(np.float64))
    return quotients(average, np.full(1, 10.0**scale)) if scale else average


def deviations(tallies: Int64) -> np.ndarray:
    """Return the population standard deviation of each tally, √(n Σx² − (Σx)²) / n: float64[Q], 0 for an empty window.

    A tally is the count, the sum as high · 2^32 + low, and the sum of squares as words of 32 bits (the last is wider).
    The value under the root is exact: it is computed in such words and may be as large as 2^165.
    """
    count = tallies[:, _COUNT]
    is_negative = tallies[:, _HIGH] < 0  # the sum is made positive, because only its square is needed
    low = np.where(is_negative, -tallies[:, _LOW], tallies[:, _LOW])
    high = np.where(is_negative, -tallies[:, _HIGH], tallies[:, _HIGH]) + (low >> 32)  # with the carry of low
    sums = [low & _MASK, high & _MASK, high >> 32]
    squares = [tallies[:, _SQUARES + index] for index in range(_WORDS)]
    squares[3:] = [squares[3] & _MASK, squares[3] >> 32]  # the wide last word becomes two
    words = [np.zeros(len(tallies), np.int64) for _ in range(7)]
    for index, word in enumerate(squares):
        _add_product(words, index, count, word, 1)  # + n Σx²
    for i, one in enumerate(sums):
        for j, other in enumerate(sums):
            _add_product(words, i + j, one, other, -1)  # − (Σx)²
    carry, root = np.zeros(len(tallies), np.int64), np.zeros(len(tallies), np.float64)
    for index, word in enumerate(words):
        whole = word + carry
        carry, words[index] = whole >> 32, whole & _MASK
    for word in reversed(words):
        root = root * 2.0**32 + word  # the words as one float
    deviation: np.ndarray = np.sqrt(root) / np.maximum(count, 1)
    return deviation


def _add_product(words: list[Int64], index: int, one: Int64, other: Int64, sign: int) -> None:
    """Add the product of two numbers in [0, 2^32) to words of 32 bits. The caller carries the overflow later."""
    product = one.astype(np.uint64) * other.astype(np.uint64)
    words[index] += sign * (product & np.uint64(_MASK)).astype(np.int64)
    words[index + 1] += sign * (product >> np.uint64(32)).astype(np.int64)


def _weighted(weight: Int64, values: Int64, width: int) -> Int64:
    columns = [weight, weight * (values >> 32), weight * (values & _MASK)]
    if width > _TALLY_WIDTH:
        columns += [weight * word for word in _square(values)]
    return np.stack(columns, axis=1)


def _square(values: Int64) -> list[Int64]:
    """Four words of 32 bits whose sum Σ word · 2^(32 at) is the square, each below 2^35."""
    size = np.where(values < 0, np.uint64(0) - values.astype(np.uint64), values.astype(np.uint64))
    halves = [(size & np.uint64(_MASK)).astype(np.int64), (size >> np.uint64(32)).astype(np.int64)]
    words = [np.zeros(len(values), np.int64) for _ in range(_WORDS)]
    for i, one in enumerate(halves):
        for j, other in enumerate(halves):
            _add_product(words, i + j, one, other, 1)
    return words


def _running(parts: Int64) -> Int64:
    """int64[M + 1, W]: the sums of the parts before each row."""
    return np.cumsum(np.concatenate([np.zeros((1, parts.shape[1]), np.int64), parts]), axis=0)


def _normal(tallies: Int64) -> Int64:
    """Normalise, in place: the low half, and every word of squares except the last, is in [0, 2^32)."""
    tallies[:, _HIGH] += tallies[:, _LOW] >> 32
    tallies[:, _LOW] &= _MASK
    for column in range(_SQUARES, tallies.shape[1] - 1):
        tallies[:, column + 1] += tallies[:, column] >> 32
        tallies[:, column] &= _MASK
    return tallies


# ∞, −∞ and NaN are counted in 21 bits each of one number: no history counts that many events.
_SPECIAL_BITS = 21
_SPECIALS = (np.inf, -np.inf, np.nan)


def float_values_at_events(
    tally: Int64, moves: Moves, segment: Int64, lows: Int64, highs: Int64, *, with_errors: bool
) -> tuple[Int64, np.ndarray, np.ndarray]:
    """Return the count, sum and rounding error of each new event's window: int64[Q], float64[Q] and float64[Q].

    A row of `tally` has the state of a segment (key and sub-key) after the previous batch: the event count, the counts
    of ∞, −∞ and NaN in one number, and a few floats whose sum is exact. If floats of a sum of squares follow, the
    standard deviation replaces the sum. `moves` are the events that enter or leave since then, by segment; window q has
    the moves lows[q]:highs[q]. The errors are empty without `with_errors`.
    """
    starts = np.searchsorted(moves.segment, segment)  # the first move of each window's segment
    has_squares = tally.shape[1] > SQUARES_AT
    values, specials = _split_specials(moves.values, has_squares=has_squares)
    counts = tally[segment, :FLOATS_AT]  # two columns: the event count, and the counts of ∞, −∞ and NaN
    entered, departed = (_running(_weighted_floats(weight, specials)) for weight in (moves.enters, moves.leaves))
    counts += entered[highs] - entered[starts] - departed[lows] + departed[starts]  # running counts before each move
    out, rounding_errors = counts[:, 0].astype(np.float64), np.zeros(len(counts) if with_errors else 0, np.float64)
    float_tallies_at(tally, moves._replace(values=values), SegmentWindows(segment, lows, highs), out, rounding_errors)
    return counts[:, 0], _with_specials(out, counts[:, 1], has_squares=has_squares), rounding_errors


def float_tallies_at_clock(tally: Int64, moves: Moves) -> tuple[Int64, bool]:
    """Return the tally after the call, and whether its floats can express every sum. If not, discard the tally."""
    after = tally.copy()
    values, specials = _split_specials(moves.values, has_squares=tally.shape[1] > SQUARES_AT)
    change = moves.enters - moves.gone
    np.add.at(after[:, :FLOATS_AT], moves.segment, _weighted_floats(change, specials))
    return after, bool(float_tallies_after(after, moves.segment, values, change))


def float_values(tally: Int64) -> tuple[np.ndarray, np.ndarray]:
    """float64[S]: the sum or the standard deviation of each tally, and the rounding error of a sum."""
    nothing, bounds = np.zeros(0, np.int64), np.zeros(len(tally), np.int64)
    moves = Moves(nothing, nothing, nothing, nothing, nothing)
    with_errors = tally.shape[1] <= SQUARES_AT
    segments = np.arange(len(tally))
    _, values, rounding_errors = float_values_at_events(tally, moves, segments, bounds, bounds, with_errors=with_errors)
    return values, rounding_errors


def _split_specials(values: Int64, *, has_squares: bool) -> tuple[Int64, Int64]:
    """Return the bits of finite floats, 0 for other values, and counters of the other values: int64[M] both.

    A counter has one bit field for each of ∞, −∞ and NaN, so that a sum of counters counts each of them. For standard
    deviations, a value that is too large to be squared counts as ∞.
    """
    floats = values.view(np.float64)
    is_finite = can_be_squared(values) if has_squares else np.isfinite(floats)
    specials = np.zeros(len(values), np.int64)
    if is_finite.all():
        return values, specials
    if has_squares:
        specials[~is_finite & np.isfinite(floats)] = 1  # in the first bit field, of ∞
    for index, special_value in enumerate(_SPECIALS):
        is_special = np.isnan(floats) if np.isnan(special_value) else floats == special_value
        specials[is_special] = 1 << (_SPECIAL_BITS * index)
    return np.where(is_finite, values, 0), specials


def _with_specials(sums: np.ndarray, counts: Int64, *, has_squares: bool) -> np.ndarray:
    if not counts.any():
        return sums
    if has_squares:
        return np.where(counts != 0, np.nan, sums)
    for index, special in enumerate(_SPECIALS):
        has = (counts >> (_SPECIAL_BITS * index)) & ((1 << _SPECIAL_BITS) - 1) != 0
        with np.errstate(invalid="ignore"):
            sums = np.where(has, sums + special, sums)
    return sums


def _weighted_floats(weight: Int64, specials: Int64) -> Int64:
    return np.stack([weight, weight * specials], axis=1)


@dataclass(frozen=True, slots=True)
class Tallies:
    """Tallies (running counts and sums of windows) with which the next batch begins: by name, int64[K, W] by key.

    `by_sub_key` has an entry for each key and sub-key (such as a card's merchant). `crowded` names the tallies that are
    left out, because they have too many entries or floats to be stored again in each batch; their windows are read.
    """

    by_key: Mapping[str, Int64] = field(default_factory=dict)
    by_sub_key: Mapping[str, SubTallies] = field(default_factory=dict)
    crowded: frozenset[str] = frozenset()

    def of_keys(self, numbers: Int64 | Int32, keys_count: int) -> Tallies:
        """Return the same tallies, with key k renumbered as numbers[k] of `keys_count` keys."""
        by_key = {}
        for name, tally in self.by_key.items():
            by_key[name] = np.zeros((keys_count, tally.shape[1]), np.int64)
            by_key[name][numbers] = tally
        by_sub_key = {name: entries.of_keys(numbers[entries.key]) for name, entries in self.by_sub_key.items()}
        return Tallies(by_key, by_sub_key, self.crowded)


NO_TALLIES = Tallies()


def no_entries(table: HistoryTable, names: Sequence[str], width: int) -> SubTallies:
    """Return no entries, for a sub-key of these fields."""
    by = tuple(table.fields[name].slice(0, 0) for name in names)
    return SubTallies(np.empty(0, np.int32), by, np.empty((0, width), np.int64))


def segments_of_entries(entries: SubTallies, table: HistoryTable, by: Sequence[int]) -> Int64:
    """int64[E]: the segment (number of a key and sub-key in the table) of each stored tally (running sum of a sub-key),
    -1 if it has no row. `by`: the table's columns with the values of sub-keys."""
    # Rows and entries with the same key and values get the same group number; each turn adds one column.
    rows = np.flatnonzero(table.has_all(by))
    row_group, entry_group = table.key[rows], entries.key.astype(np.int64)
    for column, values in zip(by, entries.by, strict=True):
        codes = _codes(values, table.texts)
        row_group, entry_group = _number_pairs(row_group, table.columns[column, rows], entry_group, codes)
    segment, _ = table.segments(tuple(by))
    segment_of_group = np.full(int(row_group.max(initial=-1)) + 2, -1, np.int64)  # the last element stays -1
    segment_of_group[row_group] = segment[rows]
    of_entries: Int64 = segment_of_group[entry_group]  # group -1, without a row, reads the last element
    return of_entries


def _number_pairs(first: Int64, second: Int64, others_first: Int64, others_second: Int64) -> tuple[Int64, Int64]:
    """Return a number for each pair, and the number of each other pair, -1 if it is not among the pairs."""
    places, firsts = empty_places(len(first)), np.empty(len(first), np.int64)
    codes, other_codes = np.empty(len(first), np.int64), np.empty(len(others_first), np.int64)
    pairs = read_only(first), read_only(second)
    group_pairs(*pairs, table_key(), places, firsts, codes)
    find_pairs(*pairs, table_key(), places, firsts, read_only(others_first), read_only(others_second), other_codes)
    return codes, other_codes


def update_entries(entries: SubTallies, segment_of: Int64, sums: Int64, table: HistoryTable, by: Sequence[int],
                  names: Sequence[str]) -> SubTallies:  # fmt: skip
    """Update the entries after a batch: an entry has the running sums of one sub-key (value of `by`) of a key.

    A segment is the table's number of a key and sub-key. Shapes: sums int64[S, W], the new sums by segment, the event
    count first; segment_of int64[E], the segment of each old entry, -1: not in the table. Empty entries are dropped.
    """
    segment, _ = table.segments(tuple(by))
    row_of = np.zeros(len(sums), np.int64)
    row_of[segment] = np.arange(len(segment))  # any row of the segment: all have its key and fields
    in_table = np.flatnonzero(segment_of >= 0)
    new_sums = entries.sums.copy()
    new_sums[in_table] = sums[segment_of[in_table]]
    is_new = sums[:, 0] != 0  # column 0: the event count
    is_new[segment_of[in_table]] = False  # these have an entry
    rows = row_of[is_new]  # one row for each new entry
    fields = tuple(table.fields[name].take(pa.array(rows)) for name in names)
    new_entries = SubTallies(table.key[rows].astype(np.int32), fields, sums[is_new])
    old, is_nonempty = SubTallies(entries.key, entries.by, new_sums), new_sums[:, 0] != 0
    if not is_nonempty.all():
        old = old.take(np.flatnonzero(is_nonempty))
    return concat_sub_tallies([part for part in (old, new_entries) if len(part)] or [new_entries])  # at least one part


def _codes(values: pa.Array, texts: pa.Array) -> Int64:
    """Return the values as a table with these texts encodes them; -1 for unknown texts."""
    if values.type != TEXT:
        return slot_values(values)
    return TextNumbers(texts).of(values).astype(np.int64)
