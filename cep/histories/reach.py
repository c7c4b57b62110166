"""Histories of the pages of one batch → the past events that the batch reads.

A count, a sum or a standard deviation is carried from batch to batch as a *tally*: the content of its window at the
page's clock. Only old events that leave the window before the last new event are read, so windows over minutes and over
months cost the same. The table in README.md has the events that each kind reads.

    ── clock ─────────────────────────────────────────▶ time
    │← leaves →│           carried in the tally        │← new events →│
    window start at the clock, and at the last new event

An *outdated* page was written for other rules. All its events are read once to build its tallies, and are retained from
then on as long as the present rules need them.
Tested by: tests/histories/test_values.py, tests/histories/test_reach.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.base.limits import TIME_MS_MAX
from cep.columnar.texts import numbered
from cep.functions.calendar import window_starts_ms
from cep.functions.columns import TextNumbers
from cep.histories.classes import LatestSearch, class_codes, code_table, codes_of_block
from cep.histories.numbers.bands import bands_of_entries, stays_in_band
from cep.histories.numbers.tally import Tallies
from cep.histories.store import Block, Histories, HistoryRows, PageFacts, Segment, concat_rows, segment_of, span_codes
from cep.histories.table import HistoryTable, NewEvents
from cep.kernels.histories import reach as kernels
from cep.kernels.histories import records
from cep.kernels.layout import Int32, Int64
from cep.lang.ir import CurrentField, HistoryWindow
from cep.nfa.histories import HistoryColumn, HistoryPlan


@dataclass(frozen=True, slots=True)
class BatchKeys:
    """The keys of one batch, text[K], and the index among them of each key of its histories."""

    keys: pa.Array
    of_histories: Int32


class LeavingPeriod(NamedTuple):
    """The times of events that leave a window now: after starts_ms int64[pages], by page (key group), up to end_ms."""

    starts_ms: Int64
    end_ms: int

    def contains(self, time_ms: Int64, page: Int32 | int) -> NDArray[np.bool_]:
        """bool[N]: the events that leave the window; `page` is the index of their page."""
        inside: NDArray[np.bool_] = (time_ms > self.starts_ms[page]) & (time_ms <= self.end_ms)
        return inside

    def meets(self, segment: Segment, page: int) -> bool:
        """Return True if an event of the segment (stored block of events) may leave the window."""
        return segment.first_ms <= self.end_ms and segment.last_ms > int(self.starts_ms[page])


@dataclass(frozen=True, slots=True)
class PastRows:
    """The past events that a batch reads, segment by segment, or in order of time after `with_latest_events`.

    Shapes: page int32[H], the index of an event's page (stored group of keys) in `ReadPast.page_facts`; segment
    int64[H], the index of its segment (stored block of events) in `ReadPast.segments`; row int64[H], its row there.
    """

    rows: HistoryRows
    page: Int32
    segment: Int64
    row: Int64

    def with_latest_events(self, latest: HistoryRows, page: Int32, periods: Sequence[LeavingPeriod]) -> PastRows:
        """Merge into these rows, by time, the latest event with each value of a field, to count its values.

        A latest event has only this field; its segment and row are -1. The ones that leave a window in one of `periods`
        are skipped, because these rows already have all events that leave. `page` is the page of each latest event.
        """
        leaves = np.zeros(len(latest), bool)
        for period in periods:
            leaves |= period.contains(latest.time_ms, page)
        if leaves.any():
            latest, page = latest.take(np.flatnonzero(~leaves)), page[~leaves]
        no_position = np.full(len(latest), -1)
        if not len(self.rows):
            return PastRows(latest, page, no_position, no_position)
        all_rows = concat_rows([self.rows, latest])
        order = np.argsort(all_rows.time_ms, kind="stable")
        page, segment, row = (
            np.concatenate([present, added])[order]
            for present, added in ((self.page, page), (self.segment, no_position), (self.row, no_position))
        )
        return PastRows(all_rows.take(order), page, segment, row)


@dataclass(frozen=True, slots=True)
class ReadPast:
    """The past that one batch reads: events, and the tallies (running counts and sums) that the previous batch left.

    `keys`: the keys of the batch, then other keys of *outdated* pages (written for other rules), which are read whole.
    `is_carried`: False if a key may have more events than a history counts. Then no tally is used: windows are read.
    `carried`: the names of tallies and pinned events that go on from batch to batch, so that windows are not read.
    `restarted`: by the name of a count or rank, the keys bool[K] without a usable value: their windows are read.
    """

    keys: pa.Array
    past: PastRows
    segments: tuple[Segment, ...]
    page_facts: tuple[PageFacts, ...]
    is_outdated: np.ndarray
    is_carried: bool
    carried: frozenset[str]
    restarted: Mapping[str, np.ndarray]
    tallies_before: Tallies


@dataclass(frozen=True, slots=True)
class _ReadRequest:
    """A request to read past events that are later than `after_ms`, for the keys marked in `keys`, bool[K + 1].

    A class is the events of a key with equal values in the fields `by`. With `by`, only the classes of new events, and
    of old events that leave a window, are read; with `is_latest` only the latest event of each. After `until_ms`, only
    the first event of each key is read. `is_restart`: the keys lack a usable carried value.
    """

    after_ms: int
    keys: np.ndarray  # the last entry, always False, is for unknown keys (-1)
    by: tuple[str, ...] = ()
    until_ms: int = TIME_MS_MAX
    event_type: int = -1  # of the latest or the first event; -1: any type
    is_latest: bool = False
    is_restart: bool = False

    def mark_rows(self, codes: records.CodeTable | None, block: Block, key_numbers: Int32, marked: np.ndarray) -> None:
        """Set marked bool[N] to True for each past event of a block that must be read for this request.

        `codes`: hashes of the classes (events of a key with equal values in `by`) to read; None: all. `key_numbers`:
        the batch's number of each key of the block. When a key's first event after `until_ms` is found, the key is
        cleared in `self.keys`, because its later events are not read.
        """
        rows, request = block.read_only_rows, records.BlockRequest(key_numbers, self.keys)
        if codes is not None:
            kernels.choose_classes(codes_of_block(block, self.by), codes, rows, request, self.after_ms, marked)
        elif self.until_ms == TIME_MS_MAX:
            kernels.choose(rows, request, self.after_ms, marked)
        else:
            kernels.choose_first(rows, request, self.after_ms, self.until_ms, self.event_type, marked)


@dataclass(frozen=True, slots=True)
class _OpenBlocks:
    """The blocks of past events that are read, in segment order, each with the time of its latest event.

    `numbers`: for each block, the batch's number of each of its keys, -1 for a key without new events. `leaving`: by
    block index, the events bool[N] that leave a window now; only blocks with such events.
    """

    texts: TextNumbers
    blocks: list[Block]
    last_ms: list[int]
    numbers: list[Int32]
    leaving: dict[int, np.ndarray]

    def search_latest(self, requests: list[_ReadRequest], new: NewEvents) -> list[LatestSearch]:
        """Search all blocks for the latest event of each class (key and field value), if a request wants only it."""
        searches = [self._prepare_search(request, new) for request in requests if request.is_latest and self.blocks]
        for search in searches:
            search.search(self.blocks, self.numbers, self.last_ms)
        return searches

    def needs_only_latest(self, requests: list[_ReadRequest]) -> bool:
        """Return True if no other events are read: the keys that start without a tally have no events here."""
        return all(
            request.event_type >= 0
            if request.is_latest
            else request.is_restart
            and not any(kernels.is_any_requested(number, request.keys) for number in self.numbers)
            for request in requests
        )

    def rows_to_read(self, requests: list[_ReadRequest], searches: list[LatestSearch], new: NewEvents) -> list[Int64]:
        """For each block of past events, return the rows to read, ascending: they leave a window, a request wants them,
        or a search found them as the latest event of a class (key and field value)."""
        if not requests and not searches:  # only the rows that leave
            nothing = np.empty(0, np.int64)
            return [np.flatnonzero(self.leaving.get(index, nothing)) for index in range(len(self.blocks))]
        found_by_search = [search.latest_rows(len(self.blocks)) for search in searches]
        others = [request for request in requests if not request.is_latest]  # the searches find the latest events
        if len(searches) == 1 and not others and not self.leaving:  # only found rows
            return found_by_search[0]
        classes_by_fields = {request.by: self._wanted_classes(request.by, new) for request in others if request.by}
        rows_by_block = []
        for block_index, (block, key_numbers) in enumerate(zip(self.blocks, self.numbers, strict=True)):
            # Rows that leave a window are read, because its tally (running count or sum) subtracts them.
            marked = self.leaving[block_index].copy() if block_index in self.leaving else np.zeros(len(block), bool)
            for request in others:
                request.mark_rows(classes_by_fields.get(request.by), block, key_numbers, marked)
            for rows_found in found_by_search:
                marked[rows_found[block_index]] = True
            rows_by_block.append(np.flatnonzero(marked))
        return rows_by_block

    def _wanted_classes(self, by: tuple[str, ...], new: NewEvents) -> records.CodeTable:
        """Return the codes (hashes) of wanted classes: key and field values of new events, and of events that leave."""
        fresh = class_codes(self.texts.hashed, new.key, [new.batch.columns[name] for name in by])
        leaving_codes = [codes_of_block(self.blocks[index], by)[leaves] for index, leaves in self.leaving.items()]
        return code_table(np.concatenate([fresh, *leaving_codes]))

    def _prepare_search(self, request: _ReadRequest, new: NewEvents) -> LatestSearch:
        """Prepare the search for the latest past event of each class: the events of a key with the same field value.

        The classes are those of new events, and of old events that leave a window now. The window loses the value of
        such an old event only if no later event has the value. Codes are hashes of classes.
        """
        (name,) = request.by  # such a request has one field
        column = new.batch.columns[name]
        keys, columns, codes = [new.key], [column], [class_codes(self.texts.hashed, new.key, [column])]
        for block_index, leaves in self.leaving.items():
            rows, block = np.flatnonzero(leaves), self.blocks[block_index]
            if name in block.rows.columns:  # otherwise the field is null in all its events
                keys.append(self.numbers[block_index][block.rows.key[rows]])
                columns.append(block.rows.columns[name].take(pa.array(rows)))
                codes.append(codes_of_block(block, request.by)[rows])
        classes = np.concatenate(keys), np.concatenate(codes), pa.concat_arrays(columns)
        return LatestSearch(name, *classes, request.after_ms, request.event_type)


def read_past_events(
    plan: HistoryPlan, histories: Histories, batch_keys: BatchKeys, new: NewEvents, clock_ms: int
) -> ReadPast:
    """Read the past events that a batch needs. After the batch the clock is `clock_ms`."""
    segments = [segment for segment in histories.segments if not segment.panes_number]
    pages = sorted({segment.page for segment in segments})
    page_facts, keys_count = tuple(histories.facts_of(page) for page in pages), len(batch_keys.keys)
    events_max = dict.fromkeys(pages, int(np.bincount(new.key).max()))
    for segment in segments:
        events_max[segment.page] += segment.busiest_key_events
    is_carried = max(events_max.values(), default=int(np.bincount(new.key).max())) <= plan.events_max
    crowded = frozenset[str]().union(*(facts.crowded for facts in page_facts))
    carried = plan.carried - crowded if is_carried else frozenset()
    is_covered = [plan.identities <= facts.identities and carried <= facts.carried for facts in page_facts]
    has_panes = [plan.approximate.keys() <= facts.panes for facts in page_facts]
    is_outdated = ~np.array(has_panes, bool) | (is_carried & ~np.array(is_covered, bool))
    first_ms, last_ms = int(new.batch.time_ms.min()), max(int(new.batch.time_ms.max()), clock_ms)
    before = Tallies(histories.tallies, histories.sub_tallies).of_keys(batch_keys.of_histories, keys_count)
    by_key = [h for h in plan.histories if is_carried and (h.ranked or (h.counted and h.carried not in carried))]
    tally_windows = plan.tally_windows(carried | {_restart_name(h) for h in by_key})
    periods = [_leaving_period(window, page_facts, last_ms) for window in tally_windows]
    page_index = {page: index for index, page in enumerate(pages)}
    opened = [(segment, page_index[segment.page]) for segment in segments]
    leaving_blocks = {
        s: s.load() for s, page in opened if is_outdated[page] or any(period.meets(s, page) for period in periods)
    }
    restarted, texts, new_counts = {}, TextNumbers(batch_keys.keys), np.bincount(new.key, minlength=keys_count)
    for history in by_key:
        assert history.expr.window is not None, "they have a window"
        period = _leaving_period(history.expr.window, page_facts, last_ms)
        leaving_counts = _count_leaving(texts, keys_count, leaving_blocks, period, page_index)
        restarted[_restart_name(history)] = _keys_to_restart(history, before, new_counts, leaving_counts)
    all_requests = _read_requests(plan, carried, restarted if is_carried else None, new, min(first_ms, clock_ms))
    requests = [request for request in all_requests if request.keys.any()]
    after_ms = min((request.after_ms for request in requests), default=first_ms)
    opened = [(s, page) for s, page in opened if s in leaving_blocks or s.last_ms > after_ms]
    blocks = [leaving_blocks[segment] if segment in leaving_blocks else segment.load() for segment, _ in opened]
    keys, numbers = _number_keys(batch_keys.keys, texts, blocks, [is_outdated[page] for _, page in opened])
    leaving = {
        index: leaves
        for index, ((segment, page), block) in enumerate(zip(opened, blocks, strict=True))
        if segment in leaving_blocks and (leaves := _mark_leaving(segment, page, periods, block)).any()
    }
    # All events of the other keys of outdated pages are read.
    batch_numbers = [
        np.where(number < keys_count, number, -1) if is_outdated[page] else number
        for (_, page), number in zip(opened, numbers, strict=True)
    ]
    open_blocks = _OpenBlocks(texts, blocks, [s.last_ms for s, _ in opened], batch_numbers, leaving)
    searches = open_blocks.search_latest(requests, new)
    is_alone = bool(searches) and not is_outdated.any() and open_blocks.needs_only_latest(requests)
    chosen = open_blocks.rows_to_read(*([], []) if is_alone else (requests, searches), new)
    outdated = [index for index, (_, page) in enumerate(opened) if is_outdated[page]]
    page_of_block = np.array([page for _, page in opened], np.int32)
    past_rows = _rows_of_blocks(blocks, numbers, chosen, page_of_block, outdated, leaving)
    for search in searches if is_alone else ():
        latest, block_of = search.latest_events()
        past_rows = past_rows.with_latest_events(latest, page_of_block[block_of], periods)
    return ReadPast(
        keys, past_rows, tuple(segment for segment, _ in opened), page_facts, is_outdated, is_carried, carried,
        {name: np.append(flags, np.zeros(len(keys) - len(flags), bool)) for name, flags in restarted.items()},
        before.of_keys(np.arange(keys_count), len(keys)) if len(keys) > keys_count else before,
    )  # fmt: skip


def _rows_of_blocks(
    blocks: list[Block], numbers: list[Int32], chosen: list[Int64], page_of_block: Int32, outdated: list[int],
    leaving: Mapping[int, np.ndarray],
) -> PastRows:  # fmt: skip
    """Read the chosen rows of each block of past events, and all rows of `outdated` ones (written for other rules).

    `numbers`: for each block, the batch's number of each key, -1: not read. `leaving`: by block, the rows that leave.
    """
    parts: list[HistoryRows] = []
    rows_by_block: list[Int64] = [np.empty(0, np.int64)]  # an empty first entry, because `concatenate` needs one
    for block_index, (block, key_numbers, rows_here) in enumerate(zip(blocks, numbers, chosen, strict=True)):
        if block_index in outdated:
            rows_here = np.arange(len(block))  # noqa: PLW2901
        if block_index in outdated or block_index in leaving:  # rows_here are of all keys: drop unread keys
            rows_here = rows_here[key_numbers[block.rows.key[rows_here]] >= 0]  # noqa: PLW2901
        rows_by_block.append(rows_here)
        if len(rows_here):
            part = block.rows if len(rows_here) == len(block) else block.rows.take(rows_here)
            parts.append(part.of_keys(key_numbers[part.key]))
    counts = [len(rows_here) for rows_here in rows_by_block[1:]]
    block_of_row = np.repeat(np.arange(len(blocks)), counts)
    return PastRows(concat_rows(parts), page_of_block[block_of_row], block_of_row, np.concatenate(rows_by_block))


def _mark_leaving(segment: Segment, page: int, periods: Sequence[LeavingPeriod], block: Block) -> np.ndarray:
    leaves = np.zeros(len(block), bool)
    for period in periods:
        if period.meets(segment, page):
            leaves |= period.contains(block.rows.time_ms, page)
    return leaves


def _restart_name(history: HistoryColumn) -> str:
    """Return the name of the history's carried count or rank, which may restart for some keys; "" without one."""
    return history.ranked or history.counted


def _count_leaving(
    texts: TextNumbers, keys_count: int, blocks: Mapping[Segment, Block], period: LeavingPeriod,
    page_index: Mapping[int, int],
) -> Int64:  # fmt: skip
    """int64[K]: for each key of the batch, how many past events leave the window of a history now (in `period`).

    `page_index`: from the number of a page (stored group of keys) to its index in `period`.
    """
    counts = np.zeros(keys_count + 1, np.int64)  # counts[0]: keys that are not in the batch, whose number is -1
    for segment, block in blocks.items():
        rows = np.flatnonzero(period.contains(block.rows.time_ms, page_index[segment.page]))  # rows that leave
        if len(rows):
            key_numbers = texts.of_hashed(block.hashed_keys)
            counts += np.bincount(key_numbers[block.rows.key[rows]] + 1, minlength=len(counts))
    counts_of_keys: Int64 = counts[1:]
    return counts_of_keys


def _keys_to_restart(history: HistoryColumn, before: Tallies, new_counts: Int64, leaving_counts: Int64) -> np.ndarray:
    """bool[K]: the keys with new events whose carried value is missing, or may not be enough for this batch."""
    tally = before.by_key.get(_restart_name(history))
    is_restarted: np.ndarray = new_counts > 0
    if history.ranked:
        bands = bands_of_entries(tally, before.by_sub_key.get(history.band), len(new_counts))
        is_restarted &= ~stays_in_band(bands, history.percent, new_counts, leaving_counts)
    elif tally is not None:
        is_restarted &= tally[:, 0] == 0
    return is_restarted


def _read_requests(
    plan: HistoryPlan, carried: frozenset[str], restarted: Mapping[str, np.ndarray] | None, new: NewEvents, from_ms: int
) -> Iterator[_ReadRequest]:  # fmt: skip
    """Decide which past events to read for new events from `from_ms` on. They depend on the kind of history.

    a tally in `carried`, pinned events, panes    nothing: they stand for the past events
    a distinct count or a rank (in `restarted`)   whole windows of the marked keys bool[K], whose carried value is not
                                                  usable; for a count also the latest event with each value
    the oldest event of a window                  events that leave, and the first one after them
    others                                        whole windows; all histories if `restarted` is None (without carry)
    """
    has_new_events = np.zeros(new.keys_count + 1, bool)  # the last entry, always False, is for unknown keys (-1)
    has_new_events[new.key] = True
    is_batch_key = np.arange(new.keys_count + 1) < new.keys_count
    whole_windows: dict[tuple[str, ...], int] = {}
    for history in plan.histories:
        if history.is_single or history.is_approximate or history.carried in carried:
            continue  # pinned events, panes (partial aggregates) or a tally (running count or sum) have its past
        extra_ms = history.retention_ms - history.span_ms  # the far edge of a window may be rounded outwards
        after_ms = int(window_starts_ms(history.expr.window, np.array([from_ms], np.int64))[0]) - extra_ms
        if restarted and _restart_name(history) in restarted:
            yield _ReadRequest(after_ms, np.append(restarted[_restart_name(history)], False), is_restart=True)
            if history.counted:  # the number of distinct values is carried
                assert isinstance(history.expr.argument, CurrentField), "others are not counted"
                # The latest event with a value shows whether the window has the value. A `where` is evaluated later.
                field, is_latest = history.expr.argument.field, history.expr.where is None
                yield _ReadRequest(after_ms, is_batch_key, (field,), event_type=history.event_type, is_latest=is_latest)
        elif restarted is not None and history.is_oldest:
            until_ms = int(window_starts_ms(history.expr.window, new.batch.time_ms.max(keepdims=True))[0])
            yield _ReadRequest(after_ms, has_new_events.copy(), until_ms=until_ms, event_type=history.event_type)
        else:
            by = () if restarted is None else history.expr.by  # None: a key's limit of events counts all sub-keys
            whole_windows[by] = min(after_ms, whole_windows.get(by, after_ms))
    for by, after_ms in whole_windows.items():
        yield _ReadRequest(after_ms, has_new_events, by)


def _leaving_period(window: HistoryWindow, page_facts: tuple[PageFacts, ...], last_ms: int) -> LeavingPeriod:
    """Return the times at which events leave a window between the clock of each page and `last_ms`."""
    end_ms = int(window_starts_ms(window, np.array([last_ms]))[0])
    return LeavingPeriod(window_starts_at_clocks(window, page_facts), end_ms)


def window_starts_at_clocks(window: HistoryWindow, page_facts: tuple[PageFacts, ...]) -> Int64:
    """Return for each page the start of a window at its clock: events up to this time have already left it."""
    return window_starts_ms(window, np.array([facts.clock_ms for facts in page_facts], np.int64))


def _number_keys(
    keys: pa.Array, texts: TextNumbers, blocks: list[Block], is_outdated: list[bool]
) -> tuple[pa.Array, list[Int32]]:
    """Return all keys that are read, and for each block (past events of some keys) the number of each of its keys.

    `texts` numbers the batch's `keys`. A block of an outdated page (written for other rules) is read whole, so its
    other keys get the next numbers. In all other blocks, a key that is not in the batch is not read: -1.
    """
    numbers = [texts.of_hashed(block.hashed_keys) for block in blocks]  # indexes into `keys`, -1 for other keys
    unknown_keys = [
        block.keys.filter(pa.array(key_numbers < 0))
        for block, key_numbers, is_whole in zip(blocks, numbers, is_outdated, strict=True)
        if is_whole
    ]
    if any(map(len, unknown_keys)):
        more_keys, codes = numbered(pa.concat_arrays(unknown_keys))
        offset, codes = 0, codes + np.int32(len(keys))
        for key_numbers, is_whole in zip(numbers, is_outdated, strict=True):
            unknown = np.flatnonzero(key_numbers < 0) if is_whole else np.empty(0, np.int64)
            key_numbers[unknown] = codes[offset : offset + len(unknown)]
            offset += len(unknown)
        keys = pa.concat_arrays([keys, more_keys])
    return keys, numbers


def extended_segments(read_past: ReadPast, table: HistoryTable, table_span_ms: Int64) -> dict[Segment, Segment]:
    """Map segments (blocks of events) of outdated pages (written for other rules) to copies that stay for longer.

    The present rules may have longer windows. table_span_ms int64[N] is how long after its time a window may include
    each row of the table. A stored row has a code instead: the exponent of the next power of two.
    """
    extended: dict[Segment, Segment] = {}
    if not read_past.is_outdated.any():
        return extended
    span_ms, old_rows = np.zeros(len(read_past.past.rows), np.int64), table.old_rows
    span_ms[table.source[old_rows] - table.pinned_count] = table_span_ms[old_rows]  # `source` counts pinned first
    new_codes = span_codes(span_ms)
    for index, segment in enumerate(read_past.segments):
        read_rows = np.flatnonzero(read_past.past.segment == index)
        if not len(read_rows) or not read_past.is_outdated[read_past.past.page[read_rows[0]]]:
            continue
        block = segment.load()
        codes = block.rows.span.copy()
        positions = read_past.past.row[read_rows]
        codes[positions] = np.maximum(codes[positions], new_codes[read_rows])
        longest_ms = max(segment.span_ms, int(span_ms[read_rows].max()))
        if longest_ms > segment.span_ms or (codes != block.rows.span).any():
            rows = replace(block.rows, span=codes)
            extended[segment] = segment_of(Block(block.keys, rows), longest_ms, segment.page)
    return extended
