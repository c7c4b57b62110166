"""A key with many values: a call reads classes with new or expired events, and ranks come from a band of values."""

from collections.abc import Sequence
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from cep.columnar.batch import TEXT
from cep.functions.columns import hashed_texts
from cep.histories.classes import LatestSearch, class_codes, code_table, codes_of_block
from cep.histories.numbers import bands as ranks
from cep.histories.numbers.bands import (
    bands_of_entries,
    clear_bands,
    entries_of_bands,
    moved_bands,
    ranks_in_bands,
    stays_in_band,
)
from cep.histories.reach import PastRows
from cep.histories.store import Block, HistoryRows
from cep.kernels.histories import records
from cep.kernels.histories.reach import choose_classes
from cep.kernels.histories.records import Bands, Moves
from tests.engine.bridge import batch_of, event_id, split
from tests.histories.test_reach import batches_of_payments, payment, program_over, rows_looked_at, written_of
from tests.histories.test_store import random_block
from tests.histories.test_values import engine_values, oracle_values
from tests.oracle.expressions import Value
from tests.oracle.matcher import Event

MANY = (
    "distinct(pay.shop over 40 ms) > 1",
    "distinct(pay.shop over previous 70 ms) > 1",
    "distinct(pay.size over previous 25 ms where way == cash) > 1",
    "distinct(pay.weight over 60 ms) > 1",
    "distinct(pay.amount over 30 ms by shop) > 1",
    "count(pay over 40 ms by shop) > 1",
    "sum(pay.amount over previous 30 ms by (shop, way)) > 1.00",
    "max(pay.size over 20 ms by shop) > 1",
    "median(pay.size over 35 ms by shop) > 1",
)


def check_in_pieces(written: Sequence[str], events: dict[str, list[Event]], random: Random) -> None:
    """Check that the engine's values equal the definition's values, however finely the events are cut."""
    program = program_over(*written)
    exprs = written_of(program)
    values = engine_values(program, split(batch_of(program.schema, events), random, 40), exprs)
    expected = oracle_values(events, exprs)
    assert {event: values[event] for event in expected} == expected


def payments(random: Random, count: int = 120) -> dict[str, list[Event]]:
    """Return payments of two keys with many shops, some of which come again."""
    events: dict[str, list[Event]] = {"x": [], "y": []}
    time_ms = 1_700_000_000_000
    for order in range(count):
        time_ms += random.choice((0, 0, 1, 1, 2, 30 if random.random() < 0.1 else 3))
        fields: dict[str, Value] = {"id": event_id(order), "event_time": time_ms, "key": random.choice("xxy")}
        fields |= {"shop": random.choice((None, f"s{random.randint(0, 20)}")), "size": random.randint(0, 9)}
        fields |= {"amount": random.choice((None, random.randint(-3, 9) * 50)), "way": random.randint(0, 1)}
        fields["weight"] = random.choice((None, 0.0, random.randint(0, 9) / 7))
        events[str(fields["key"])].append(Event(order, "pay", time_ms, order, fields))
    return events


@pytest.mark.parametrize("odd", [0, 1, None], ids=["all codes are one", "codes are alike", "as they are"])
@pytest.mark.parametrize("seed", range(3))
def test_values_are_those_of_the_definition(seed: int, odd: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are right for any start of crowding and for classes with equal codes."""
    random = Random(f"many {seed}")
    if odd is not None:
        monkeypatch.setattr("cep.histories.classes._ODD", np.uint64(odd))
    monkeypatch.setattr("cep.histories.retained._CARRIED_MIN", random.choice((0, 2, 5)))
    monkeypatch.setattr("cep.histories.retained._CARRIED_SHARE", 0.0)
    check_in_pieces(MANY, payments(random), random)


ALONE = (
    "distinct(pay.shop over 65 ms) > 1",
    "distinct(pay.shop over 40 ms) > 1",
    "distinct(pay.size over previous 70 ms) > 1",
    "sum(pay.amount over 15 ms) > 1.00",
    "avg(pay.size over 55 ms where way == cash) > 1",
    "last(pay over 40 ms).amount > 1.00",
)


@pytest.mark.parametrize("seed", range(4))
def test_events_of_one_field_are_laid_beside_those_that_leave_other_windows(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no other history reads the events, only the value of the latest event of a class is read."""
    random, row_counts = Random(f"alone {seed}"), []

    def with_latest_events(self: PastRows, rows: HistoryRows, *arguments: object) -> PastRows:
        row_counts.append((len(self.rows), len(rows)))
        return laid(self, rows, *arguments)  # type: ignore[arg-type]

    laid = PastRows.with_latest_events
    monkeypatch.setattr(PastRows, "with_latest_events", with_latest_events)
    monkeypatch.setattr("cep.histories.retained._CARRIED_MIN", 0)
    monkeypatch.setattr("cep.histories.retained._CARRIED_SHARE", 0.0)
    check_in_pieces(ALONE, payments(random), random)
    assert any(leave and laid_beside for leave, laid_beside in row_counts)


def test_of_a_key_that_nothing_is_known_of_nothing_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key's events leave while other keys of its page have new events."""
    monkeypatch.setattr("cep.histories.retained._CARRIED_MIN", 0)
    monkeypatch.setattr("cep.histories.retained._CARRIED_SHARE", 0.0)
    program = program_over("distinct(pay.shop over 40 ms) > 1", "count(pay over 1 h) > 1")
    exprs = written_of(program)
    moments = [[(0, "x"), (1, "z"), (2, "z")], [(10, "x")], [(100, "x")], [(101, "z"), (102, "z")]]
    events: dict[str, list[Event]] = {"x": [], "z": []}
    deliveries = []
    for moment in moments:
        events_by_key: dict[str, list[Event]] = {}
        for time_ms, key in moment:
            events_by_key.setdefault(key, []).append(payment(time_ms, time_ms, key, shop=f"s{time_ms}"))
        for key, new in events_by_key.items():
            events[key] += new
        deliveries.append((batch_of(program.schema, events_by_key), moment[-1][0]))
    assert engine_values(program, deliveries, exprs) == oracle_values(events, exprs)


def test_what_is_looked_at_does_not_grow_with_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_over("distinct(pay.shop over 90 d) > 1", "count(pay over 90 d by shop) > 1")
    batches, of_batch = 30, 60
    payments = batches_of_payments(batches, of_batch, lambda order: {"shop": f"s{order}"})
    row_counts = rows_looked_at(monkeypatch, program, payments)
    assert row_counts[1] == of_batch, "all of it once, to count the values"
    assert max(row_counts[2:]) <= 0.2 * batches * of_batch, (
        "no new shop has been there: few have the same code by chance"
    )


def test_of_a_value_that_comes_again_and_again_the_latest_event_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.histories.retained._CARRIED_MIN", 0)
    monkeypatch.setattr("cep.histories.retained._CARRIED_SHARE", 0.0)
    program = program_over("distinct(pay.shop over 90 d) > 1")
    shops = 20
    payments = batches_of_payments(30, 60, lambda order: {"shop": f"s{order % shops}"})
    assert set(rows_looked_at(monkeypatch, program, payments)[2:]) == {shops}


@pytest.mark.parametrize("odd", [0, None], ids=["all codes are one", "as they are"])
@pytest.mark.parametrize("type_", [TEXT, pa.int64(), pa.float64()], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_the_latest_event_of_a_class_is_found(
    seed: int, type_: pa.DataType, odd: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events lie in several blocks that overlap in time, have two types, and some values are null."""
    if odd is not None:
        monkeypatch.setattr("cep.histories.classes._ODD", np.uint64(odd))
    random = np.random.default_rng(seed)
    keys = pa.array(["x", "y", "z", ""], TEXT)
    number = np.array([2, -1, 0, 1], np.int32)  # the key of the second row is not requested
    back_ms, event_type = 30, int(random.integers(-1, 2))

    def values(count: int) -> pa.Array:
        drawn = random.integers(0, 6, count)
        texts = ["" if value == 0 else f"s{value}" for value in drawn.tolist()]
        return pa.array(texts if type_ == TEXT else drawn.astype(float), mask=random.random(count) < 0.2).cast(type_)

    blocks = []
    for _ in range(4):
        key, times = np.sort(random.integers(0, 4, 40)).astype(np.int32), random.permutation(100)[:40]
        rows = HistoryRows(key, random.integers(0, 2, 40), times, np.zeros(40, np.int8), {"shop": values(40)})
        blocks.append(Block(keys, rows))
    class_numbers, column = random.integers(-1, 3, 25).astype(np.int32), values(25)
    codes = class_codes(hashed_texts(keys.take([2, 3, 0])), np.maximum(class_numbers, 0), [column])
    latest = LatestSearch("shop", class_numbers, codes, column, back_ms, event_type)
    latest.search(blocks, [number] * 4, [int(block.rows.time_ms.max()) for block in blocks])
    expected: dict[tuple[int, object], int] = {}
    pairs = {
        (number, value)
        for number, value in zip(class_numbers.tolist(), column.to_pylist(), strict=True)
        if value is not None
    }
    for block in blocks:
        of_rows = zip(number[block.rows.key].tolist(), block.rows.columns["shop"].to_pylist(), strict=True)
        for row, pair in enumerate(of_rows):
            time_ms = int(block.rows.time_ms[row])
            is_own = event_type < 0 or block.rows.event_type[row] == event_type
            if pair[0] >= 0 and pair in pairs and time_ms > back_ms and is_own:
                expected[pair] = max(expected.get(pair, 0), time_ms)
    latest_ms = {}
    for block, chosen in zip(blocks, latest.latest_rows(4), strict=True):
        assert sorted(chosen.tolist()) == chosen.tolist()
        for row in chosen.tolist():
            latest_ms[int(number[block.rows.key[row]]), block.rows.columns["shop"][row].as_py()] = int(
                block.rows.time_ms[row]
            )
    assert latest_ms == expected
    assert sum(map(len, latest.latest_rows(4))) == len(expected) > 3
    alone, block_of = latest.latest_events()
    of_events = zip(alone.key.tolist(), alone.columns["shop"].to_pylist(), strict=True)
    assert dict(zip(of_events, alone.time_ms.tolist(), strict=True)) == expected
    assert sorted(alone.time_ms) == alone.time_ms.tolist()
    assert [*map(len, latest.latest_rows(4))] == np.bincount(block_of, minlength=4).tolist()


def test_no_event_of_a_class_is_missing() -> None:
    block, _ = random_block(np.random.default_rng(5), 0, 400)
    (name, values), *_ = block.rows.columns.items()
    classes = list(zip(block.keys.take(block.rows.key).to_pylist(), values.to_pylist(), strict=True))
    codes = codes_of_block(block, (name,))
    by_class: dict[object, set[int]] = {}
    for class_name, code in zip(classes, codes.tolist(), strict=True):
        by_class.setdefault(class_name, set()).add(code)
    assert all(len(class_codes_set) == 1 for class_codes_set in by_class.values())
    assert len({code for class_codes_set in by_class.values() for code in class_codes_set}) == len(by_class)
    again = Block(
        block.keys.take(np.arange(len(block.keys))[::-1].copy()),
        block.rows.of_keys(len(block.keys) - 1 - block.rows.key),
    )
    assert (codes_of_block(again, (name,)) == codes).all(), "whatever the keys are numbered"
    chosen = codes[::7]
    is_wanted, number = np.zeros(len(block), bool), np.arange(len(block.keys), dtype=np.int32)
    request = records.BlockRequest(number, number >= 0)
    choose_classes(codes, code_table(chosen), block.read_only_rows, request, -1, is_wanted)
    assert is_wanted[np.isin(codes, chosen)].all()
    assert not is_wanted.all()


KEYS = 3
WRITTEN = (
    "median(pay.amount over 40 ms) > 1",
    "median(pay.size over previous 25 ms where way == cash) > 1",
    "percentile(pay.weight over 60 ms, 90) > 1",
    "percentile(pay.size * 3 over 70 ms, 1) > 1",
    "percentile(pay.amount over previous 9 ms, 100) > 1",
    'median(pay.size over day in "Europe/Paris") > 1',
)


def flags(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


def through_entries(bands: Bands, random: Random) -> Bands:
    """Return the same bands, passed through entries in any order of keys."""
    entries = entries_of_bands(bands)
    order = list(range(KEYS))
    random.shuffle(order)
    rows = np.concatenate([np.flatnonzero(entries.key == key) for key in order])
    return bands_of_entries(bands.counts, entries.take(rows), KEYS)


@pytest.mark.parametrize("seed", range(30))
def test_ranks_are_those_of_the_sorted_window(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of three keys move in calls of any size, with many or few different values."""
    random = Random(f"ranks {seed}")
    monkeypatch.setattr(ranks, "_REACH", random.choice((0, 1, 3, 10)))
    percent = random.choice((1, 25, 50, 90, 100))
    most = random.choice((3, 30, 10**6))
    windows_of_keys: list[list[int]] = [[] for _ in range(KEYS)]
    bands = bands_of_entries(None, None, KEYS)
    begun_count = asked_count = 0
    for _ in range(40):
        segment: list[int] = []
        values: list[int] = []
        enters: list[int] = []
        gone: list[int] = []
        windows: list[tuple[int, int, int, list[int]]] = []
        new = [[random.randint(-most, most) for _ in range(random.choice((0, 1, 1, 2, 5)))] for _ in range(KEYS)]
        leaving = [random.randint(0, min(len(windows_of_keys[key]), random.choice((1, 2, 20)))) for key in range(KEYS)]
        begun = (flags(list(map(len, new))) > 0) & ~stays_in_band(
            bands, percent, flags(list(map(len, new))), flags(leaving)
        )
        for key in range(KEYS):
            first, old_values = len(values), windows_of_keys[key]
            # A new key reads its whole window. Other keys read the leaving events, and maybe some that stay.
            shown = len(old_values) if begun[key] else random.randint(leaving[key], len(old_values))
            segment += [key] * (shown + len(new[key]))
            values += old_values[:shown] + new[key]
            enters += [int(begun[key])] * shown + [1] * len(new[key])
            gone += [int(index < leaving[key]) for index in range(shown)] + [0] * len(new[key])
            low = 0
            for number in range(len(new[key])):
                low = random.randint(low, leaving[key])
                window = old_values[low:] + new[key][: number + 1]
                if not begun[key]:
                    windows.append((key, first + low, first + shown + number + 1, window))
            windows_of_keys[key] = old_values[leaving[key] :] + new[key]
        moves = Moves(flags(segment), flags(values), flags(enters), np.ones(len(values), np.int64), flags(gone))
        bands = clear_bands(bands, begun)
        bounds = np.array([window[:3] for window in windows], np.int64).reshape(-1, 3).T
        counts, key_ranks = ranks_in_bands(bands, moves, percent, (bounds[0], bounds[1], bounds[2]))
        assert counts.tolist() == [len(window) for *_, window in windows]
        assert key_ranks.tolist() == [sorted(window)[(percent * len(window) + 99) // 100 - 1] for *_, window in windows]
        begun_count, asked_count = begun_count + int(begun.sum()), asked_count + len(windows)
        bands = through_entries(moved_bands(bands, moves, percent), random)
        for key in range(KEYS):
            count, below = bands.counts[key].tolist()
            band = bands.values[bands.starts[key] : bands.starts[key + 1]].tolist()
            if count:
                assert (count, band) == (
                    len(windows_of_keys[key]),
                    sorted(windows_of_keys[key])[below : below + len(band)],
                )
                assert band
            else:
                assert not band
    assert asked_count > begun_count, "most are told from bands"


@pytest.mark.parametrize("seed", range(6))
def test_ranks_are_those_of_the_definition(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(f"ranks of histories {seed}")
    monkeypatch.setattr(ranks, "_REACH", random.choice((0, 1, 4)))
    monkeypatch.setattr(ranks, "_CHANGES_MAX", random.choice((1, 8, 1024)))
    check_in_pieces(WRITTEN, payments(random), random)


def test_few_events_of_a_long_window_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(8)
    program = program_over("median(pay.size over 90 d) > 1", "percentile(pay.size over 90 d, 95) > 1")
    batches, of_batch = 150, 4
    payments = batches_of_payments(batches, of_batch, lambda _: {"size": random.randint(0, 10**6)})
    row_counts = rows_looked_at(monkeypatch, program, payments)
    assert sum(row_counts) <= 0.2 * sum(range(0, batches * of_batch, of_batch)), "of all that are in the windows"
