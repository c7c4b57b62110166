"""A call reads the past events that leave windows, not whole windows. It reads pages of other rules entirely."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from cep.engine.advance import advance
from cep.engine.keyed_state import KeyedState
from cep.histories.store import Block, Histories, HistoryRows, Segment
from cep.histories.table import HistoryTable, build_table
from cep.histories.values import compact_page
from cep.lang.ir import History
from cep.lang.walk import histories as histories_in
from cep.nfa.program import Program
from tests.engine.bridge import batch_of, event_id, program_of, split, through_bytes
from tests.histories.test_values import (
    EVENTS,
    WRITTEN,
    differences,
    engine_values,
    oracle_values,
    patterns,
    random_events,
)
from tests.lang.common import bound_pattern
from tests.oracle.expressions import Value
from tests.oracle.matcher import Event


def program_over(*conditions: str, events: str = EVENTS) -> Program:
    texts = [f"{events}\npattern p by key {{ seq a where a: pay {condition} }}" for condition in conditions]
    bound = [bound_pattern(text) for text in texts]
    return program_of(bound[0][1], *(pattern for pattern, _ in bound))


def written_of(program: Program) -> list[History]:
    """Return the histories of a program in the order of its rules."""
    assert program.histories is not None
    return [column.expr for column in program.histories.written]


def payment(order: int, time_ms: int, key: str, **changes: Value) -> Event:
    fields: dict[str, Value] = {"id": event_id(order), "event_time": time_ms, "key": key, "amount": order, "size": 1}
    return Event(order, "pay", time_ms, order, {**fields, "way": 0, "weight": 0.5, **changes})


def batches_of_payments(batches: int, of_batch: int, changes: Callable[[int], dict[str, Value]]) -> list[list[Event]]:
    """Return micro-batches of one key, an event a millisecond; `changes` has other fields of an event by its number."""
    orders = [range(number * of_batch, (number + 1) * of_batch) for number in range(batches)]
    return [[payment(order, order, "x", **changes(order)) for order in batch] for batch in orders]


class Counting:
    """Histories whose segments count how many of their events are read."""

    def __init__(self) -> None:
        self.read = 0
        self._loads: set[Callable[[], Block]] = set()

    def of(self, histories: Histories) -> Histories:
        return replace(histories, segments=tuple(self._counted(segment) for segment in histories.segments))

    def _counted(self, segment: Segment) -> Segment:
        if segment.load in self._loads:
            return segment
        block = segment.load()

        def load() -> Block:
            self.read += len(block)
            return block

        self._loads.add(load)
        return replace(segment, load=load)


def rows_looked_at(monkeypatch: pytest.MonkeyPatch, program: Program, batches: Iterable[list[Event]]) -> list[int]:
    """For events of one key, return how many old events each batch puts before its new events."""
    row_counts: list[int] = []

    def counting(*arguments: object, **named: object) -> HistoryTable:
        stored = arguments[2]
        assert isinstance(stored, HistoryRows)
        row_counts.append(len(stored))
        return build_table(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr("cep.histories.values.build_table", counting)
    keyed_state: KeyedState | None = None
    for events in batches:
        batch, watermark_ms = batch_of(program.schema, {"x": events}), events[-1].time_ms
        after = advance(program, keyed_state, batch, watermark_ms).keyed_state
        keyed_state = through_bytes(program, after, watermark_ms)
    return row_counts


SUMS = (
    "count(pay over {}) > 1",
    "sum(pay.amount over previous {}) > 1.00",
    "stddev(pay.amount over {}) > 1",
    "count(pay over {} by (way, size)) > 1",
    "avg(pay.amount over {} by way) > 1.00",
)
SPARSE = (
    "max(pay.amount over {} by way) > 1",
    "min(pay.size over previous {}) > 1",
    "distinct(pay.amount over {}) > 1",
)


def events_read(window: str, written: Sequence[str], batches: int = 150, of_batch: int = 64) -> tuple[int, int]:
    """Return the events read from segments and the events kept at the end. Micro-batches lie an hour apart."""
    program = program_over(*(text.format(window) for text in written))
    assert program.histories is not None
    keyed_state: KeyedState | None = None
    counting, order = Counting(), 0
    for number in range(batches):
        events: dict[str, list[Event]] = {}
        for index in range(of_batch):
            key, time_ms = f"k{index % 16}", 1_700_000_000_000 + number * 3_600_000 + index
            events.setdefault(key, []).append(payment(order, time_ms, key, amount=index))
            order += 1
        batch = batch_of(program.schema, events)
        if keyed_state is not None:
            keyed_state = replace(keyed_state, histories=counting.of(keyed_state.histories))
        watermark_ms = int(batch.time_ms[-1])
        keyed_state = advance(program, keyed_state, batch, watermark_ms).keyed_state
        keyed_state = replace(
            keyed_state, histories=compact_page(program.histories, keyed_state.histories, watermark_ms)
        )
    assert keyed_state is not None
    return counting.read, sum(map(len, keyed_state.histories.segments))


@pytest.mark.parametrize("written", [SUMS, SPARSE])
def test_a_window_of_months_reads_no_more_than_one_of_minutes(written: Sequence[str]) -> None:
    batches, of_batch = 150, 64
    short, _ = events_read("1 min", written)
    long, rows_kept = events_read("90 d", written)
    assert rows_kept == batches * of_batch, "nothing has left the window"
    # An event is read when small segments are joined, and when it leaves the minute. None leaves the 90 days.
    assert short <= rows_kept
    assert long <= 5 * rows_kept
    leaving, rows_left = events_read("2 d", written)
    assert rows_left < rows_kept
    assert leaving <= batches * (4_096 + 8 * 64), "of the segments that a window begins in one is read, of the largest"


def test_of_the_first_event_of_a_window_those_are_looked_at_that_leave_and_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = program_over("first(pay over 100 ms).size > 1", "first(pay over previous 100 ms).amount > 1.00")
    of_batch = 5
    row_counts = rows_looked_at(monkeypatch, program, batches_of_payments(60, of_batch, lambda _: {}))
    assert max(row_counts) == of_batch + 1, "of the hundred in the window those that leave, to a pane, and the next one"


@pytest.mark.parametrize("seed", range(4))
def test_where_too_much_would_be_carried_windows_are_looked_at(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values are the same, and the pages record which histories are not carried."""
    random = Random(f"crowded {seed}")
    written = [text.format("9 ms") for text in (*SUMS[3:], *SPARSE)]
    program = program_over(*written)
    assert program.histories is not None
    exprs, events = written_of(program), random_events(random)
    batch = batch_of(program.schema, events)
    expected = oracle_values(events, exprs)
    monkeypatch.setattr("cep.histories.retained._CARRIED_MIN", 0)
    monkeypatch.setattr("cep.histories.retained._CARRIED_SHARE", random.choice((0.0, 0.3, 0.6)))
    values_by_event = engine_values(program, split(batch, random), exprs)
    assert values_by_event == expected
    keyed_state = advance(program, None, batch, int(batch.time_ms[-1])).keyed_state
    facts = through_bytes(program, keyed_state, int(batch.time_ms[-1])).histories.facts
    assert facts.carried | facts.crowded == program.histories.carried
    assert facts.crowded


@pytest.mark.parametrize("seed", range(6))
def test_a_rule_that_comes_later_finds_what_the_schema_keeps(seed: int) -> None:
    """For any earlier and later rules, values equal the definition's values if the schema retains all events."""
    random = Random(seed)
    retaining = EVENTS.replace("  way         enum(card, cash)\n", "  way         enum(card, cash)\n  retain 1000 d\n")
    retaining = retaining.replace("  ok          bool\n", "  ok          bool\n  retain 1000 d\n")
    assert retaining.count("retain") == 2
    _, every = patterns()
    first, then = (random.sample(range(len(WRITTEN)), 6) for _ in range(2))
    before, after = (program_over(*(WRITTEN[index] for index in chosen), events=retaining) for chosen in (first, then))
    exprs = [next(histories_in(every[index])) for index in then]
    events = random_events(random)
    batch = batch_of(after.schema, events)
    cut = len(batch) // 2
    expected = oracle_values(events, exprs)
    watermark_ms = int(batch.time_ms[cut - 1])
    state = advance(before, None, batch.take(np.arange(cut)), watermark_ms).keyed_state
    values_by_event = engine_values(after, [(batch.take(np.arange(cut, len(batch))), 2**61)], exprs,
                          through_bytes(before, state, watermark_ms))  # fmt: skip
    assert len(values_by_event) == len(batch) - cut
    texts = [WRITTEN[index] for index in then]
    assert differences(values_by_event, {event: expected[event] for event in values_by_event}, texts) == []


def test_a_rule_that_comes_later_finds_keys_without_new_events_too() -> None:
    """If only the schema kept the events of a page, all its keys are read, even keys without new events."""
    retaining = EVENTS.replace("  way         enum(card, cash)\n", "  way         enum(card, cash)\n  retain 1000 d\n")
    before = program_over("exists(login)", events=retaining)
    written = ("median(pay.size over 9 d) > 1", "first(pay over 9 d).size > 1", "count(pay over 9 d by shop) > 1")
    after = program_over(*written, events=retaining)
    events = {f"k{index}": [payment(index, index, f"k{index}")] for index in range(9)}
    watermark_ms = 8
    state = advance(before, None, batch_of(after.schema, events), watermark_ms).keyed_state
    new = batch_of(after.schema, {"k7": [payment(20, 20, "k7")]})
    exprs = written_of(after)
    values_by_event = engine_values(after, [(new, 20)], exprs, through_bytes(before, state, watermark_ms))
    assert values_by_event == {
        event_id(20): oracle_values({"k7": [*events["k7"], payment(20, 20, "k7")]}, exprs)[event_id(20)]
    }


def test_what_a_dropped_rule_read_is_freed_with_time() -> None:
    long = program_over('count(pay over 90 d where shop == "s1") > 1', "sum(pay.weight over 90 d) > 1.0")
    short = program_over("count(pay.size over 1 h) > 1")
    assert short.histories is not None
    keyed_state: KeyedState | None = None
    for number in range(30):
        time_ms = 1_700_000_000_000 + number * 1_000_000
        batch = batch_of(long.schema, {"x": [payment(number, time_ms, "x")]})
        program = long if number < 10 else short
        keyed_state = through_bytes(program, advance(program, keyed_state, batch, time_ms).keyed_state, time_ms)
    assert keyed_state is not None
    blocks = [segment.load() for segment in keyed_state.histories.segments]
    assert sum(map(len, blocks)) <= 4 + 8, "those of an hour, and what waits to be joined with them"
    assert {name for block in blocks for name in block.rows.columns} == {"size"}
    assert set(keyed_state.histories.tallies) == {h.tally for h in short.histories.histories}
