"""Histories of the pages of one call → the past events that the call reads.

A count, a sum or a standard deviation is carried from call to call as a *tally*: the content of its window at the
page's clock. Only old events that leave the window before the last new event are read, so windows over minutes and over
months cost the same. The table in README.md has the events that each kind reads.

    ── clock ─────────────────────────────────────────▶ time
    │← leaves →│           carried in the tally        │← new events →│
    opens(clock) opens(now)

A *strange* page was written for other rules. All its events are read once to build its tallies, and are retained from
then on as long as the present rules need them.
Tested by: tests/histories/test_values.py, tests/histories/test_reach.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from cep.base.limits import TIME_MS_MAX
from cep.columnar.texts import numbered
from cep.functions.calendar import opens_ms
from cep.functions.columns import TextNumbers
from cep.histories.classes import Latest, class_codes, code_table, codes_of_block
from cep.histories.numbers.bands import bands_of, sure
from cep.histories.numbers.tally import Tallied
from cep.histories.store import Block, Histories, HistoryRows, PageFacts, Segment, concat_rows, segment_of, span_codes
from cep.histories.table import NewEvents
from cep.kernels.histories import reach as kernels
from cep.kernels.histories import records
from cep.kernels.layout import Int32, Int64
from cep.lang.ir import CurrentField, HistoryWindow
from cep.nfa.histories import HistoryColumn, HistoryPlan


@dataclass(frozen=True, slots=True)
class CallKeys:
    """The keys of one call, text[K], and the index among them of each key of its histories."""

    keys: pa.Array
    of_histories: Int32


@dataclass(frozen=True, slots=True)
class PastRows:
    """The past events that a call reads, in order of segments, or of time after `and_latest`.

    Shapes: page int32[H], the index in `Reached.facts` of a row's page; segment, row int64[H], its place in `segments`.
    """

    rows: HistoryRows
    page: Int32
    segment: Int64
    row: Int64

    def and_latest(self, rows: HistoryRows, page: Int32, edges: list[tuple[Int64, int]]) -> PastRows:
        """Add the latest event of each class, in time order, with the field of the class alone and the segment -1.

        Events that leave a window are not added again, because they are already present with all fields.
        """
        leaves = np.zeros(len(rows), bool)
        for lows, high in edges:
            leaves |= (rows.time_ms > lows[page]) & (rows.time_ms <= high)
        if leaves.any():
            rows, page = rows.take(np.flatnonzero(~leaves)), page[~leaves]
        nowhere = np.full(len(rows), -1)
        if not len(self.rows):
            return PastRows(rows, page, nowhere, nowhere)
        all_rows = concat_rows([self.rows, rows])
        order = np.argsort(all_rows.time_ms, kind="stable")
        page, segment, row = (
            np.concatenate([mine, more])[order]
            for mine, more in ((self.page, page), (self.segment, nowhere), (self.row, nowhere))
        )
        return PastRows(all_rows.take(order), page, segment, row)


@dataclass(frozen=True, slots=True)
class Reached:
    """The past events that a call reads, and the values that it carries from the call before.

    `keys` are the keys of the call, followed by other keys of strange pages. `is_carried` is False while a key may have
    more events than a history counts. `carried` names the histories with a carried value: of their events, only those
    are read that leave a window, and all events of strange pages. A key without a carried value is marked in `begun`,
    bool[K] by the name of the history. `before` are the carried values.
    """

    keys: pa.Array
    past: PastRows
    segments: tuple[Segment, ...]
    facts: tuple[PageFacts, ...]
    is_strange: np.ndarray
    is_carried: bool
    carried: frozenset[str]
    begun: Mapping[str, np.ndarray]
    before: Tallied


@dataclass(frozen=True, slots=True)
class _Look:
    """A request to read past events: events later than `back_ms`, of the marked keys (bool[K + 1] by number).

    `by`: read only events that share the values of these fields with a new event or an event that leaves. `is_latest`:
    read only the latest event of each such group, of one event type unless that is -1. `until_ms`: after this time,
    read only the first event of each key and type. `is_begun`: read all events of keys without a carried value.
    """

    back_ms: int
    keys: np.ndarray
    by: tuple[str, ...] = ()
    until_ms: int = TIME_MS_MAX
    event_type: int = -1
    is_latest: bool = False
    is_begun: bool = False

    def mark(self, classes: records.CodeTable | None, block: Block, number: Int32, chosen: np.ndarray) -> None:
        """Set chosen bool[N] to True for the events of a block that the request selects.

        `number` are the numbers of the block's keys, `classes` the groups of `by`. With `until_ms`, a key whose first
        event is found is taken out of the request.
        """
        rows, request = block.read_only_rows, records.BlockRequest(number, self.keys)
        if classes is not None:
            kernels.choose_classes(codes_of_block(block, self.by), classes, rows, request, self.back_ms, chosen)
        elif self.until_ms == TIME_MS_MAX:
            kernels.choose(rows, request, self.back_ms, chosen)
        else:
            kernels.choose_first(rows, request, self.back_ms, self.until_ms, self.event_type, chosen)


@dataclass(frozen=True, slots=True)
class _Opened:
    """The blocks that are read, in segment order, each with the time of its latest event.

    `numbers` are the indexes of a block's keys among the keys of the call, -1 for others. `leaving` has, by block
    index, the events that leave a window now, bool[N], for blocks with such events.
    """

    texts: TextNumbers
    blocks: list[Block]
    last_ms: list[int]
    numbers: list[Int32]
    leaving: dict[int, np.ndarray]

    def latest(self, looks: list[_Look], new: NewEvents) -> list[Latest]:
        latest = [self._latest(look, new) for look in looks if look.is_latest and self.blocks]
        for classes in latest:
            classes.look(self.blocks, self.numbers, self.last_ms)
        return latest

    def is_all(self, looks: list[_Look]) -> bool:
        """Return True if no other events are read: keys of which nothing is carried yet have no events here."""
        return all(
            look.event_type >= 0
            if look.is_latest
            else look.is_begun and not any(kernels.is_any_requested(number, look.keys) for number in self.numbers)
            for look in looks
        )

    def chosen(self, looks: list[_Look], latest: list[Latest], new: NewEvents) -> list[Int64]:
        """Return the rows to read of each block, ascending: events that leave a window or that a request selects."""
        if not looks and not latest:
            nothing = np.empty(0, np.int64)
            return [
                np.flatnonzero(self.leaving[block_index]) if block_index in self.leaving else nothing
                for block_index in range(len(self.blocks))
            ]
        latest_rows = [classes.rows(len(self.blocks)) for classes in latest]
        others = [look for look in looks if not look.is_latest]
        if len(latest) == 1 and not others and not self.leaving:
            return latest_rows[0]
        classes_by_fields = {look.by: self._wanted(look.by, new) for look in others if look.by}
        rows_by_block = []
        for block_index, (block, number) in enumerate(zip(self.blocks, self.numbers, strict=True)):
            chosen = self.leaving[block_index].copy() if block_index in self.leaving else np.zeros(len(block), bool)
            for look in others:
                look.mark(classes_by_fields.get(look.by), block, number, chosen)
            for rows in latest_rows:
                chosen[rows[block_index]] = True
            rows_by_block.append(np.flatnonzero(chosen))
        return rows_by_block

    def _wanted(self, by: tuple[str, ...], new: NewEvents) -> records.CodeTable:
        """Return the classes of new events and of events that leave."""
        fresh = class_codes(self.texts.hashed, new.key, [new.batch.columns[name] for name in by])
        leaving_codes = [codes_of_block(self.blocks[index], by)[leaves] for index, leaves in self.leaving.items()]
        return code_table(np.concatenate([fresh, *leaving_codes]))

    def _latest(self, look: _Look, new: NewEvents) -> Latest:
        """Prepare the search for the latest event of each class: a field's values in new and in leaving events."""
        (name,) = look.by
        column = new.batch.columns[name]
        numbers, columns, codes = [new.key], [column], [class_codes(self.texts.hashed, new.key, [column])]
        for block_index, leaves in self.leaving.items():
            rows, block = np.flatnonzero(leaves), self.blocks[block_index]
            if name in block.rows.columns:
                numbers.append(self.numbers[block_index][block.rows.key[rows]])
                columns.append(block.rows.columns[name].take(pa.array(rows)))
                codes.append(codes_of_block(block, look.by)[rows])
        requested = np.concatenate(numbers), np.concatenate(codes), pa.concat_arrays(columns)
        return Latest(name, *requested, look.back_ms, look.event_type)


def reach(plan: HistoryPlan, histories: Histories, call_keys: CallKeys, new: NewEvents, clock_ms: int) -> Reached:
    """Choose the past events that a call reads. After the call the clock is `clock_ms`."""
    segments = [segment for segment in histories.segments if not segment.panes]
    pages = sorted({segment.page for segment in segments})
    facts = tuple(histories.facts_of(page) for page in pages)
    most = dict.fromkeys(pages, int(np.bincount(new.key).max()))
    for segment in segments:
        most[segment.page] += segment.most
    is_carried = max(most.values(), default=int(np.bincount(new.key).max())) <= plan.events_max
    crowded = frozenset[str]().union(*(fact.crowded for fact in facts))
    carried = plan.carried - crowded if is_carried else frozenset()
    is_covered = [plan.identities <= fact.identities and carried <= fact.carried for fact in facts]
    has_panes = [plan.approximate.keys() <= fact.panes for fact in facts]
    is_strange = ~np.array(has_panes, bool) | (is_carried & ~np.array(is_covered, bool))
    first_ms, last_ms = int(new.batch.time_ms.min()), max(int(new.batch.time_ms.max()), clock_ms)
    before = Tallied(histories.tallies, histories.sub_tallies).of_keys(call_keys.of_histories, len(call_keys.keys))
    by_key = [h for h in plan.histories if is_carried and (h.ranked or (h.counted and h.carried not in carried))]
    edges = [_edge(window, facts, last_ms) for window in plan.tally_windows(carried | {_name(h) for h in by_key})]
    place = {page: index for index, page in enumerate(pages)}
    opened = [(segment, place[segment.page]) for segment in segments]
    at_edges = {s: s.load() for s, page in opened if is_strange[page] or _may_leave(s, page, edges)}
    begun, texts = {}, TextNumbers(call_keys.keys)
    for history in by_key:
        assert history.expr.window is not None, "they have a window"
        goes = _goes(texts, len(call_keys.keys), at_edges, _edge(history.expr.window, facts, last_ms), place)
        begun[_name(history)] = _begun(history, before, np.bincount(new.key, minlength=len(call_keys.keys)), goes)
    all_looks = _looks(plan, carried, begun if is_carried else None, new, min(first_ms, clock_ms))
    looks = [look for look in all_looks if look.keys.any()]
    back_ms = min((look.back_ms for look in looks), default=first_ms)
    opened = [(s, page) for s, page in opened if s in at_edges or s.last_ms > back_ms]
    blocks = [at_edges[segment] if segment in at_edges else segment.load() for segment, _ in opened]
    keys, numbers = _numbered(call_keys.keys, texts, blocks, [is_strange[page] for _, page in opened])
    leaving = {
        index: leaves
        for index, ((segment, page), block) in enumerate(zip(opened, blocks, strict=True))
        if segment in at_edges and (leaves := _leaving(segment, page, edges, block)).any()
    }
    # Of the other keys of strange pages, all events are read.
    of_call = [
        np.where(number < len(call_keys.keys), number, -1) if is_strange[page] else number
        for (_, page), number in zip(opened, numbers, strict=True)
    ]
    events = _Opened(texts, blocks, [s.last_ms for s, _ in opened], of_call, leaving)
    latest = events.latest(looks, new)
    is_alone = bool(latest) and not is_strange.any() and events.is_all(looks)
    chosen = events.chosen(*([], []) if is_alone else (looks, latest), new)
    strange = [index for index, (_, page) in enumerate(opened) if is_strange[page]]
    place_of = np.array([page for _, page in opened], np.int32)
    looked_at = _rows_of_blocks(blocks, numbers, chosen, place_of, strange, leaving)
    for classes in latest if is_alone else ():
        events_alone, block_of = classes.events()
        looked_at = looked_at.and_latest(events_alone, place_of[block_of], edges)
    return Reached(
        keys,
        looked_at,
        tuple(segment for segment, _ in opened),
        facts,
        is_strange,
        is_carried,
        carried,
        {name: np.append(flags, np.zeros(len(keys) - len(flags), bool)) for name, flags in begun.items()},
        before.of_keys(np.arange(len(call_keys.keys)), len(keys)) if len(keys) > len(call_keys.keys) else before,
    )


def _rows_of_blocks(
    blocks: list[Block], numbers: list[Int32], chosen: list[Int64], place_of: Int32, strange: list[int],
    leaving: Mapping[int, np.ndarray],
) -> PastRows:  # fmt: skip
    """Read the chosen rows of each block, and all rows of strange pages. `place_of` is the index of a block's page."""
    parts: list[HistoryRows] = []
    rows: list[Int64] = [np.empty(0, np.int64)]
    for block_index, (block, number, rows_here) in enumerate(zip(blocks, numbers, chosen, strict=True)):
        if block_index in strange:
            rows_here = np.arange(len(block))  # noqa: PLW2901
        if block_index in strange or block_index in leaving:  # events that leave may belong to other keys
            rows_here = rows_here[number[block.rows.key[rows_here]] >= 0]  # noqa: PLW2901
        rows.append(rows_here)
        if len(rows_here):
            part = block.rows if len(rows_here) == len(block) else block.rows.take(rows_here)
            parts.append(part.of_keys(number[part.key]))
    counts = [len(rows_here) for rows_here in rows[1:]]
    segment = np.repeat(np.arange(len(blocks)), counts)
    return PastRows(concat_rows(parts), place_of[segment], segment, np.concatenate(rows))


def _may_leave(segment: Segment, page: int, edges: list[tuple[Int64, int]]) -> bool:
    return any(segment.first_ms <= high and segment.last_ms > lows[page] for lows, high in edges)


def _leaving(segment: Segment, page: int, edges: list[tuple[Int64, int]], block: Block) -> np.ndarray:
    """bool[N]: the events of a block that leave a window now."""
    leaves = np.zeros(len(block), bool)
    for lows, high in edges:
        if segment.first_ms <= high and segment.last_ms > lows[page]:
            leaves |= (block.rows.time_ms > lows[page]) & (block.rows.time_ms <= high)
    return leaves


def _name(history: HistoryColumn) -> str:
    """Return the name under which a history's value may be carried for some keys and not for others."""
    return history.ranked or history.counted


def _goes(
    texts: TextNumbers, keys_count: int, at_edges: Mapping[Segment, Block], edge: tuple[Int64, int],
    place: Mapping[int, int],
) -> Int64:  # fmt: skip
    """int64[K]: at most how many events of each key leave a window now, at an `_edge` that these blocks cross."""
    counted = np.zeros(keys_count + 1, np.int64)
    lows, high = edge
    for segment, block in at_edges.items():
        rows = np.flatnonzero((block.rows.time_ms > lows[place[segment.page]]) & (block.rows.time_ms <= high))
        if len(rows):
            number = texts.of_hashed(block.hashed_keys)
            counted += np.bincount(number[block.rows.key[rows]] + 1, minlength=len(counted))  # 0: other keys
    counts: Int64 = counted[1:]
    return counts


def _begun(history: HistoryColumn, before: Tallied, comes: Int64, goes: Int64) -> np.ndarray:
    """bool[K]: the keys with new events whose deciding value is not carried or may not be enough."""
    tally = before.by_key.get(_name(history))
    begins: np.ndarray = comes > 0
    if history.ranked:
        bands = bands_of(tally, before.by_sub_key.get(history.band), len(comes))
        begins &= ~sure(bands, history.percent, comes, goes)
    elif tally is not None:
        begins &= tally[:, 0] == 0
    return begins


def _looks(
    plan: HistoryPlan, carried: frozenset[str], begun: Mapping[str, np.ndarray] | None, new: NewEvents, first_ms: int
) -> Iterator[_Look]:
    """Decide which past events must be read for new events from `first_ms` on, as one request per group of histories.

    If `begun` is None, nothing is carried, and events beyond the limit count by key and not by sub-key.
    """
    touched = np.zeros(new.keys_count + 1, bool)  # the last entry: keys of other calls
    touched[new.key] = True
    in_call = np.arange(new.keys_count + 1) < new.keys_count
    whole: dict[tuple[str, ...], int] = {}
    for history in plan.histories:
        if history.is_single or history.is_approximate or history.carried in carried:
            continue
        first_times = np.array([first_ms], np.int64)
        back_ms = int(opens_ms(history.expr.window, first_times)[0]) - (history.retention_ms - history.span_ms)
        if begun and _name(history) in begun:
            yield _Look(back_ms, np.append(begun[_name(history)], False), is_begun=True)
            if history.counted:
                assert isinstance(history.expr.argument, CurrentField), "others are not counted"
                # The latest event with a value shows whether the value is still in the window. Conditions are not known
                # yet.
                field, is_latest = history.expr.argument.field, history.expr.where is None
                yield _Look(back_ms, in_call, (field,), event_type=history.event_type, is_latest=is_latest)
        elif begun is not None and history.is_oldest:
            until_ms = int(opens_ms(history.expr.window, new.batch.time_ms.max(keepdims=True))[0])
            yield _Look(back_ms, touched.copy(), until_ms=until_ms, event_type=history.event_type)
        else:
            by = () if begun is None else history.expr.by
            whole[by] = min(back_ms, whole.get(by, back_ms))
    for by, back_ms in whole.items():
        yield _Look(back_ms, touched, by)


def _edge(window: HistoryWindow, facts: tuple[PageFacts, ...], last_ms: int) -> tuple[Int64, int]:
    """By page, the time up to which events have left a window; and the time up to which they leave now."""
    return left_until(window, facts), int(opens_ms(window, np.array([last_ms]))[0])


def left_until(window: HistoryWindow, facts: tuple[PageFacts, ...]) -> Int64:
    """Return for each page the time up to which events have left a window at its clock."""
    return opens_ms(window, np.array([fact.clock_ms for fact in facts], np.int64))


def _numbered(
    keys: pa.Array, texts: TextNumbers, blocks: list[Block], strange: list[bool]
) -> tuple[pa.Array, list[Int32]]:
    """Return the keys of the call and of strange pages, and the index of each block's keys, -1 if a key is not read."""
    numbers = [texts.of_hashed(block.hashed_keys) for block in blocks]
    others = [
        block.keys.filter(pa.array(number < 0)) for block, number, is_new in zip(blocks, numbers, strange, strict=True)
        if is_new
    ]  # fmt: skip
    if any(map(len, others)):
        more, codes = numbered(pa.concat_arrays(others))
        offset, codes = 0, codes + np.int32(len(keys))
        for number, is_new in zip(numbers, strange, strict=True):
            unknown = np.flatnonzero(number < 0) if is_new else np.empty(0, np.int64)
            number[unknown] = codes[offset : offset + len(unknown)]
            offset += len(unknown)
        keys = pa.concat_arrays([keys, more])
    return keys, numbers


def extended_segments(reached: Reached, span_ms: Int64) -> dict[Segment, Segment]:
    """Return the segments of strange pages that the present rules retain longer than before, each with its new form.

    Shapes: span_ms int64[H], by row of `reached`: for how long after the row a window may include it.
    """
    extended: dict[Segment, Segment] = {}
    span = span_codes(span_ms)
    for index, segment in enumerate(reached.segments):
        rows_here = np.flatnonzero(reached.past.segment == index)
        if not len(rows_here) or not reached.is_strange[reached.past.page[rows_here[0]]]:
            continue
        block = segment.load()
        codes = block.rows.span.copy()
        codes[reached.past.row[rows_here]] = np.maximum(codes[reached.past.row[rows_here]], span[rows_here])
        longest_ms = max(segment.span_ms, int(span_ms[rows_here].max()))
        if longest_ms > segment.span_ms or (codes != block.rows.span).any():
            rows = replace(block.rows, span=codes)
            extended[segment] = segment_of(Block(block.keys, rows), longest_ms, segment.page)
    return extended
