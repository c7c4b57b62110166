"""Panes: long windows stored by periods of time, in which codes with weights replace a key's events.

    time   ──┼────────┼────────┼────────┼────────┼──▶      window / 64 long, from the epoch on
    key      codes    codes    codes    codes             a bucket or hash (below) → number of events

The grid depends only on the window, whose far edge is rounded outwards to a pane. A calendar unit is one pane.

Panes are rows of separate segments, of one history or of several that share them (`Segment.panes_number`). A
micro-batch adds the rows of its events. When newer segments have grown to the size of an older one, they are joined,
and equal codes of a pane become one row. So a key has at most twice as many rows as its panes have codes.

    HistoryRows   key | event_type -1 | time_ms: start of the pane | span | pane_code, pane_weight: int32 if they fit
                  pane_sub: the number of the sub-key (sub_keys.py), for histories that have one

The codes of values, from which the value of a window is computed:

    approx_percentile   a bucket: 50 of equal width between two powers of two, so that its middle is at most 1 % off
                        any value in it; each whole number or decimal below 64 units has its own. Computed with integers
                        only, so that no machine's logarithm matters. After DDSketch (Masson, Rim, Lee, "DDSketch: a
                        fast and fully-mergeable quantile sketch with relative-error guarantees", 2019).
    approx_distinct     63 bits of a hash. The count of a window follows from its least 1 024 distinct hashes: exact up
                        to that number, otherwise with a standard error of 3.1 % (Bar-Yossef and others, "Counting
                        distinct elements in a data stream", 2002: the k minimum values).
Tested by: tests/histories/test_panes.py, tests/histories/test_values.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.base.limits import DISTINCT_HASHES_MAX
from cep.base.schema import Type
from cep.columnar.batch import NO_TEXTS, text_buffers
from cep.columnar.texts import numbered
from cep.functions.calendar import pane_starts, window_starts_ms
from cep.functions.columns import TextNumbers
from cep.histories.store import Histories, HistoryRows, Segment, block_of, segment_of, span_code
from cep.histories.table import grouped
from cep.kernels.arrange import hash_texts
from cep.kernels.histories import sketches as kernels
from cep.kernels.histories.windows import sum_floats
from cep.kernels.layout import Int64
from cep.nfa.histories import HistoryColumn, HistoryPlan

UInt64 = NDArray[np.uint64]
_CUTS = 50  # buckets between two powers of two
_MANTISSA_BITS = 52
_MANTISSA = np.int64((1 << _MANTISSA_BITS) - 1)
_MAGNITUDE = np.int64(0x7FFFFFFFFFFFFFFF)
_BIAS, _INFINITE = 1023, 2047
_POWER_MAX = 52  # of numbers below 2**53
_HASH_BITS = 63
_SEED = 1  # differs from the seed of keys, because hashes of the keys of one key group are similar


def buckets(values: Int64, type_: Type) -> Int64:
    """Return the number of each value's bucket, for approximate percentiles: a bucket's values differ by at most 2 %.

    `values` are 64-bit slots of a column: integers, or the bits of floats. `_CUTS` buckets of equal width lie between
    two powers of two. A greater value never has a smaller number; negative values have negative numbers. Bucket 0 has
    zero and floats nearer to it than 2.3e-308; infinities and NaN have buckets of their own.
    """
    floats = values.view(np.float64) if type_.is_float else values.astype(np.float64)
    bits = np.ascontiguousarray(floats).view(np.int64)
    magnitude = bits & _MAGNITUDE
    exponent = magnitude >> _MANTISSA_BITS
    code = exponent * _CUTS + (((magnitude & _MANTISSA) * _CUTS) >> _MANTISSA_BITS) + 1  # + 1: 0 is for zero
    code[exponent == 0] = 0  # zero, and floats that are too near to it
    codes: Int64 = np.where(bits < 0, -code, code)
    return codes


def bucket_middles(codes: Int64, type_: Type) -> np.ndarray:
    """Return a value that represents each bucket, float64[N]: the middle of the values that the bucket can contain.

    The range between two powers of two has `_CUTS` buckets. A code is 1 + (exponent + bias) * _CUTS + cut; the code of
    negative values is negated, and 0 is for zero. A decimal is a whole number of units. Its bucket has the numbers from
    ceil(low) to ceil(high) - 1; the middle is half the sum (`doubled`) of these two.
    """
    bucket = np.maximum(np.abs(codes) - 1, 0)  # (exponent + bias) * _CUTS + cut
    exponent, cut = (bucket // _CUTS).astype(np.int32), bucket % _CUTS
    power = np.where(exponent == _INFINITE, 0, exponent - _BIAS).astype(np.int32)
    if type_.is_float:
        values = np.ldexp((_CUTS + cut + 0.5) / _CUTS, power)
        values[exponent == _INFINITE] = np.where(cut[exponent == _INFINITE] == 0, np.inf, np.nan)
    else:
        doubled_unit = 2 * 10**type_.scale
        bounds = _CUTS + cut + [[0], [1]]  # the low and the high bound of each bucket, in cuts of its power of two
        low, high = np.ceil(np.ldexp(bounds / _CUTS, power))
        # Values below 2**53: the bounds are computed again with integers, because `bounds / _CUTS` is rounded.
        # The other codes are 0, which is replaced below, or have bounds that no float has exactly.
        is_exact = (power >= 0) & (power <= _POWER_MAX)
        exact_low, exact_high = -(-(bounds << np.where(is_exact, power, 0).astype(np.int64)) // _CUTS)  # rounded up
        doubled = exact_low + exact_high - 1
        quotient = np.where(  # rounded once: a float has integers below 2**53 exactly
            doubled < 1 << 53, doubled / doubled_unit, doubled // doubled_unit + doubled % doubled_unit / doubled_unit
        )
        values = np.where(is_exact, quotient, (low + high - 1) / doubled_unit)
    values = np.where(codes < 0, -values, values)
    return np.where(codes == 0, 0.0, values)


def hashes(values: Int64, type_: Type, texts: pa.Array) -> Int64:
    """63 bits of a hash of each value, given by its slot; `texts` is the dictionary of texts."""
    hashed = text_hashes(texts)[values] if type_.is_text else mixed(values)
    return (hashed >> np.uint64(1)).view(np.int64)


def text_hashes(texts: pa.Array) -> UInt64:
    """64 bits of a hash of each text."""
    offsets, data = text_buffers(texts)
    hashed = np.empty(len(texts), np.uint64)
    hash_texts(offsets, data, _SEED, hashed)
    return hashed


def mixed(values: Int64) -> UInt64:
    """64 bits for each number, distinct for distinct numbers.

    The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
    """
    bits = values.view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    out: UInt64 = bits ^ (bits >> np.uint64(31))
    return out


def estimated(counts: Int64, hash_at: Int64) -> Int64:
    """Return the estimated number of distinct values in each window.

    Shapes: counts int64[Q] of hashes; hash_at int64[Q], the `DISTINCT_HASHES_MAX`th least hash where there are more.
    """
    estimates, are_more = counts.copy(), counts > DISTINCT_HASHES_MAX
    share = (hash_at[are_more] + 1) / 2.0**_HASH_BITS
    estimates[are_more] = np.rint((DISTINCT_HASHES_MAX - 1) / share).astype(np.int64)
    return estimates


_CODE, _WEIGHT, _SUB = "pane_code", "pane_weight", "pane_sub"
_EVENT_TYPE = -1
_SIZE_RATIO = 2  # join a segment with the newer ones unless it has more than this many times their rows


@dataclass(frozen=True, slots=True)
class PaneRows:
    """Rows of panes: partial aggregates of one time slice, in place of a key's events. Shapes: int64[P] each.

    `key` is an index into a list of keys that the caller holds, `pane_ms` the start of the slice. `code` is a value,
    bucket or hash, `weight` how many events have it. `sub` is the number of a sub-key (such as a card's merchant) or 0.
    """

    key: Int64
    pane_ms: Int64
    code: Int64
    weight: Int64
    sub: Int64

    def __len__(self) -> int:
        return len(self.key)

    def take(self, rows: np.ndarray) -> PaneRows:
        """Return the rows at these positions, or where this mask is true."""
        return PaneRows(self.key[rows], self.pane_ms[rows], self.code[rows], self.weight[rows], self.sub[rows])


@dataclass(frozen=True, slots=True)
class PanesAndEvents:
    """The panes of a history (partial aggregates of time slices) and its single events: rows by key, older rows first.

    The window of new event q is rows[lows[q]:highs[q]], int64[Q]; event_positions int64[M] are the rows of events.
    """

    rows: PaneRows
    lows: Int64
    highs: Int64
    event_positions: Int64


@dataclass(frozen=True, slots=True)
class PaneWindows:
    """The windows of new events. Shapes: int64[Q]: key, first pane, and the number of single events before the end."""

    key: Int64
    first_pane_ms: Int64
    highs: Int64


_NOTHING = np.empty(0, np.int64)
NO_PANES = PaneRows(_NOTHING, _NOTHING, _NOTHING, _NOTHING, _NOTHING)


def concat_panes(parts: Sequence[PaneRows]) -> PaneRows:
    """Join all rows, part after part."""
    if len(parts) == 1:
        return parts[0]
    parts = [NO_PANES, *parts]
    return PaneRows(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(PaneRows)))


def load_panes(segments: Sequence[Segment], keys: pa.Array, has_new_events: np.ndarray) -> Mapping[int, PaneRows]:
    """Load stored panes (partial aggregates of time slices) of the keys that has_new_events bool[K] marks, by the
    number of the panes: histories with the same number share their panes."""
    parts_by_number: dict[int, list[PaneRows]] = {}
    segments = [segment for segment in segments if segment.panes_number]  # the others have single events
    texts = TextNumbers(keys if segments else NO_TEXTS)
    for segment in segments:
        block = segment.load()
        number = texts.of(block.keys).astype(np.int64)  # the index in `keys` of each key of the block; -1: not in it
        is_touched = (number >= 0) & has_new_events[number]  # -1 reads the last flag, but its number >= 0 is False
        rows_here = np.flatnonzero(is_touched[block.rows.key])  # positions of rows in the block
        parts_by_number.setdefault(segment.panes_number, []).append(rows_of(block.rows, rows_here, number))
    return {panes_number: concat_panes(parts) for panes_number, parts in parts_by_number.items()}


def pane_of(history: HistoryColumn, time_ms: Int64) -> Int64:
    """Return the start of the pane of each time."""
    window = history.expr.window
    if window is not None and window.calendar is not None:
        return pane_starts(window.calendar, window.zone, time_ms)
    return time_ms // history.pane_ms * history.pane_ms


def first_pane_of_window(history: HistoryColumn, time_ms: Int64) -> Int64:
    """Return the first pane of the window of an event at each time."""
    first_pane_ms = window_starts_ms(history.expr.window, time_ms) + 1
    return first_pane_ms if history.is_of_calendar else pane_of(history, first_pane_ms)


def argument_type(history: HistoryColumn) -> Type:
    """Return the type of the field that a history reads."""
    assert history.expr.argument is not None, "it has a field"
    return history.expr.argument.type


def codes_of_values(history: HistoryColumn, values: Int64, texts: pa.Array) -> Int64:
    """Return the code of each of a history's values."""
    type_ = argument_type(history)
    return hashes(values, type_, texts) if history.is_hashed else buckets(values, type_)


def merge_panes_and_events(
    panes: PaneRows, events: PaneRows, is_new: np.ndarray, windows: PaneWindows
) -> PanesAndEvents:
    """Sort panes (partial aggregates of time slices) and single events by key and time, and find each window there.

    `events` are sorted by key and event order. New events (is_new bool[M]) come after all panes of their key, because a
    window ends at its new event. `windows.highs` counts the single events of all keys before the end of each window.
    The sorted row of each event is `event_positions` of the result.
    """
    unsorted_rows = concat_panes([panes, events])
    comes_last = np.concatenate([np.zeros(len(panes), bool), is_new])
    # Rows are sorted by one number of key and pane. It is below 2^63 for a million keys and windows of centuries.
    first_ms = int(unsorted_rows.pane_ms.min()) if len(unsorted_rows) else 0
    last_ms = int(unsorted_rows.pane_ms.max()) if len(unsorted_rows) else 0
    position_in_key = np.where(comes_last, last_ms - first_ms + 1, unsorted_rows.pane_ms - first_ms)
    width = last_ms - first_ms + 2
    if (int(unsorted_rows.key.max(initial=0)) + 1) * width < 2**63:
        order = np.argsort(unsorted_rows.key * width + position_in_key, kind="stable")
    else:  # a wrong date, such as the year 1
        order = np.lexsort((position_in_key, unsorted_rows.key))
    position_of = np.empty(len(unsorted_rows), np.int64)
    position_of[order] = np.arange(len(unsorted_rows))
    rows = unsorted_rows.take(order)
    key = windows.key
    keys_count = int(max(unsorted_rows.key.max(initial=-1), key.max(initial=-1))) + 1
    panes_before, events_before = (  # how many rows are before each key
        np.concatenate([[0], np.cumsum(np.bincount(part.key, minlength=keys_count))]) for part in (panes, events)
    )
    starts, ends = panes_before[key] + events_before[key], windows.highs + panes_before[key + 1]  # in `rows`
    lows = np.empty(len(key), np.int64)
    kernels.follow_panes(rows.key, rows.pane_ms, starts, windows.first_pane_ms, ends, lows)
    return PanesAndEvents(rows, lows, ends, position_of[len(panes) :])


def values_from_panes(history: HistoryColumn, merged: PanesAndEvents) -> tuple[Int64, np.ndarray]:
    """Return slots and null flags, at each new event, of a history that is computed from hashes or buckets."""
    expr, rows = history.expr, merged.rows
    assert expr.argument is not None, "they have a field"
    ranks = np.empty(len(merged.lows), np.int64)
    if history.is_hashed:
        return _count_hashes(merged), np.zeros(len(ranks), np.uint8)
    least = int(rows.code.min(initial=0))
    count = int(rows.code.max(initial=0)) - least + 1  # number of buckets in between: an octave has 50
    kernels.find_weighted_rank(rows.code - least, rows.weight, count, history.percent, merged.lows, merged.highs, ranks)
    return bucket_middles(ranks + least, expr.argument.type).view(np.int64), (ranks < 0).astype(np.uint8)


def _count_hashes(merged: PanesAndEvents) -> Int64:
    counts, positions = np.empty(len(merged.lows), np.int64), np.empty(len(merged.lows), np.int64)
    codes, firsts = grouped(merged.rows.code, merged.rows.code)
    different = merged.rows.code[firsts]
    order = np.argsort(different)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    kernels.count_different(rank[codes], len(order), DISTINCT_HASHES_MAX, merged.lows, merged.highs, counts, positions)
    chosen = different[order][np.maximum(positions, 0)] if len(order) else positions
    return estimated(counts, chosen)


def appended_panes(history: HistoryColumn, rows: PaneRows, keys: pa.Array, watermark_ms: int) -> Iterator[Segment]:
    """Yield a segment of these rows of a history, if a later event may still need any of them."""
    rows = merge_rows(history, rows, watermark_ms)
    if len(rows):
        yield _segment(history, rows, keys)


def without_outdated_panes(plan: HistoryPlan, histories: Histories) -> Histories:
    """Drop panes that the present rules do not need, or that have a gap because no rule needed them for a while."""
    retained = plan.retained_panes.keys()
    segments = histories.segments
    remaining = [
        s for s in segments if not s.panes_number or s.panes_number in retained & histories.facts_of(s.page).panes
    ]
    return replace(histories, segments=tuple(remaining)) if len(remaining) < len(segments) else histories


def joined_panes(plan: HistoryPlan, segments: Sequence[Segment], watermark_ms: int) -> Iterator[Segment]:
    """Join the panes of one page into fewer segments, where newer ones have grown to the size of an older one."""
    for number, history in plan.retained_panes.items():
        same_panes = [segment for segment in segments if segment.panes_number == number]
        yield from _compact_panes(history, same_panes, watermark_ms)


def _compact_panes(history: HistoryColumn, segments: list[Segment], watermark_ms: int) -> list[Segment]:
    """Join the newest segments of panes (partial aggregates of time slices), or rewrite one that is half expired."""
    start = len(segments) - 1  # the newest segment; older ones of a similar size are joined with it
    total = len(segments[start]) if segments else 0
    while start > 0 and len(segments[start - 1]) <= _SIZE_RATIO * total:
        start -= 1
        total += len(segments[start])
    if start < len(segments) - 1:
        return [*segments[:start], *_join_segments(history, segments[start:], watermark_ms)]
    for index, segment in enumerate(segments):
        # When half of its time has expired, so have about half of its rows, because panes are spread over the time.
        expired_ms = watermark_ms - segment.first_ms - segment.span_ms
        if 2 * expired_ms > segment.last_ms - segment.first_ms:
            rewritten = _join_segments(history, [segment], watermark_ms)
            return [*segments[:index], *rewritten, *segments[index + 1 :]]  # one per micro-batch; the others can wait
    return segments


def merge_rows(history: HistoryColumn, rows: PaneRows, watermark_ms: int) -> PaneRows:
    """Add up the weights (event counts) of rows with the same pane (time slice) and code (value, bucket or hash).

    Panes that no later window includes are dropped. For a tally (count and sums), a weight is a part of the tally; a
    part of 0 is dropped. `approx_distinct` estimates the count from the least hashes of a window. So a hash stays only
    in its newest pane, and only if it may be one of the least hashes of some window.
    """
    rows = rows.take(rows.pane_ms + history.panes_span_ms > watermark_ms)
    if not len(rows):
        return rows
    if history.is_extreme:
        return _least_of_each(rows)
    if history.is_float_sum:
        return _sum_floats_exactly(rows)
    if history.is_float_spread:
        return _sum_squares_exactly(rows)
    if history.is_hashed:
        return _keep_least_hashes(rows)
    added = _sum_weights(rows)
    return added.take(added.weight != 0) if history.tally else added


def _sum_weights(rows: PaneRows) -> PaneRows:
    """Merge equal codes of a pane into one row with the sum of their weights."""
    rows = rows.take(np.lexsort((rows.code, rows.pane_ms, rows.sub, rows.key)))
    begins = np.flatnonzero(differs(rows.key, rows.sub, rows.pane_ms, rows.code))
    return replace(rows.take(begins), weight=np.add.reduceat(rows.weight, begins))


def _least_of_each(rows: PaneRows) -> PaneRows:
    rows = rows.take(np.lexsort((rows.code, rows.pane_ms, rows.sub, rows.key)))
    return rows.take(differs(rows.key, rows.sub, rows.pane_ms))


def _sum_squares_exactly(rows: PaneRows) -> PaneRows:
    """Merge float panes that carry sums and sums of squares."""
    is_square = rows.weight < 0
    squares = _sum_floats_exactly(replace(rows, weight=0 * rows.weight).take(is_square))
    squares = squares.take(squares.code != 0)
    return concat_panes([_sum_floats_exactly(rows.take(~is_square)), replace(squares, weight=squares.weight - 1)])


def _sum_floats_exactly(rows: PaneRows) -> PaneRows:
    """Replace the floats of each pane (time slice of a key) by a few floats that have exactly the same sum.

    A code is the bits of a float. The first float is the one nearest to the sum, the second the one nearest to the
    remainder, and so on; their weight is 0. One more row has code 0 and the event count as weight. `sub`: a sub-key.
    """
    is_finite = np.isfinite(rows.code.view(np.float64))  # the others, infinities and NaN, stay as special rows
    special_rows = _sum_weights(replace(rows.take(~is_finite), weight=np.zeros(int((~is_finite).sum()), np.int64)))
    ordered = rows.take(np.lexsort((rows.pane_ms, rows.sub, rows.key)))
    begins = np.flatnonzero(differs(ordered.key, ordered.sub, ordered.pane_ms))  # the first row of each pane
    panes = replace(ordered.take(begins), code=np.zeros(len(begins), np.int64))
    panes = replace(panes, weight=np.add.reduceat(ordered.weight, begins))  # the rows with the event counts
    values = np.where(np.isfinite(ordered.code.view(np.float64)), ordered.code, 0)
    lows, highs, pane_index = begins, np.append(begins[1:], len(ordered)), np.arange(len(begins))
    parts, sums = [panes, special_rows], np.empty(len(begins), np.float64)
    sum_floats(values, lows, highs, sums)
    while sums.any():
        if not np.isfinite(sums).all():  # the sum is too large for a float: keep all values
            nonzero_rows = rows.take(is_finite & (rows.code.view(np.float64) != 0))
            return concat_panes([panes, special_rows, replace(nonzero_rows, weight=0 * nonzero_rows.weight)])
        sum_rows = replace(panes, code=sums.view(np.int64).copy(), weight=np.zeros(len(sums), np.int64))
        parts.append(sum_rows.take(sums != 0))
        # Add the negated sum to its pane, so that the next sum is the remainder.
        values = np.insert(values, highs, (-sums).view(np.int64))
        lows, highs = lows + pane_index, highs + pane_index + 1  # one value more in each pane up to this one
        sum_floats(values, lows, highs, sums)
    return concat_panes(parts)


def _keep_least_hashes(rows: PaneRows) -> PaneRows:
    """Return the newest pane of each hash, for the hashes that a window may need."""
    rows = rows.take(np.lexsort((rows.pane_ms, rows.code, rows.sub, rows.key)))
    is_newest = np.append(differs(rows.key, rows.sub, rows.code)[1:], True)
    rows = replace(rows.take(is_newest), weight=np.ones(int(is_newest.sum()), np.int64))
    panes, pane = np.unique(rows.pane_ms, return_inverse=True)
    is_retained = np.ones(len(rows), np.uint8)
    most = DISTINCT_HASHES_MAX + 1  # one more shows whether there are more
    kernels.keep_least(np.cumsum(differs(rows.key, rows.sub)), pane, len(panes), most, is_retained)
    return rows.take(is_retained.astype(bool))


def differs(*columns: Int64) -> np.ndarray:
    """Return where rows differ from the row before; the first row does."""
    is_different = np.zeros(len(columns[0]), bool)
    for column in columns:
        is_different[1:] |= column[1:] != column[:-1]
    is_different[:1] = True
    return is_different


def _join_segments(history: HistoryColumn, segments: Sequence[Segment], watermark_ms: int) -> list[Segment]:
    """Join all segments into one; return none if no row remains."""
    blocks = [segment.load() for segment in segments]
    keys, codes = numbered(pa.concat_arrays([block.keys for block in blocks]))
    numbers = np.split(codes.astype(np.int64), np.cumsum([len(b.keys) for b in blocks])[:-1])
    parts = [rows_of(b.rows, np.arange(len(b)), number) for b, number in zip(blocks, numbers, strict=True)]
    rows = merge_rows(history, concat_panes(parts), watermark_ms)
    return [replace(_segment(history, rows, keys), page=segments[0].page)] if len(rows) else []


def rows_of(rows: HistoryRows, positions: Int64, number: Int64) -> PaneRows:
    """Return stored rows at these positions as panes; `number` are the new numbers of the block's keys."""
    code, weight = (np.asarray(rows.columns[name])[positions].astype(np.int64) for name in (_CODE, _WEIGHT))
    sub = np.asarray(rows.columns[_SUB])[positions] if _SUB in rows.columns else np.zeros(len(positions), np.int64)
    return PaneRows(number[rows.key[positions]], rows.time_ms[positions], code, weight, sub)


def _segment(history: HistoryColumn, rows: PaneRows, keys: pa.Array) -> Segment:
    rows = rows.take(np.lexsort((rows.pane_ms, rows.key)))
    codes = np.full(len(rows), span_code(history.panes_span_ms), np.int8)
    columns = {_CODE: _narrow(rows.code), _WEIGHT: _narrow(rows.weight)}
    columns |= {_SUB: pa.array(rows.sub)} if history.by else {}
    types = np.full(len(rows), _EVENT_TYPE, np.int64)
    stored_rows = HistoryRows(rows.key.astype(np.int32), types, rows.pane_ms, codes, columns)
    return segment_of(block_of(keys, stored_rows), history.panes_span_ms, panes_number=history.panes)


def _narrow(values: Int64) -> pa.Array:
    info = np.iinfo(np.int32)
    fits = values.min(initial=0) >= info.min and values.max(initial=0) <= info.max
    return pa.array(values.astype(np.int32) if fits else values)
