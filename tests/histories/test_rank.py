"""Ranks from a band equal the ranks of the sorted window. The band reports a value that may leave it in advance."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from cep.histories.numbers import bands as ranks
from cep.histories.numbers.bands import Bands, after, bands_of, ranked, sure
from cep.histories.numbers.tally import Moves
from tests.histories.test_classes import check_in_pieces, payments
from tests.histories.test_reach import batches_of_payments, program_over, rows_looked_at

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
    entries = bands.entries()
    order = list(range(KEYS))
    random.shuffle(order)
    rows = np.concatenate([np.flatnonzero(entries.key == key) for key in order])
    return bands_of(bands.counts, entries.take(rows), KEYS)


@pytest.mark.parametrize("seed", range(30))
def test_ranks_are_those_of_the_sorted_window(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of three keys move in calls of any size, with many or few different values."""
    random = Random(f"ranks {seed}")
    monkeypatch.setattr(ranks, "_REACH", random.choice((0, 1, 3, 10)))
    percent = random.choice((1, 25, 50, 90, 100))
    most = random.choice((3, 30, 10**6))
    windows_of_keys: list[list[int]] = [[] for _ in range(KEYS)]
    bands = bands_of(None, None, KEYS)
    begun_count = asked_count = 0
    for _ in range(40):
        segment: list[int] = []
        values: list[int] = []
        enters: list[int] = []
        gone: list[int] = []
        windows: list[tuple[int, int, int, list[int]]] = []
        new = [[random.randint(-most, most) for _ in range(random.choice((0, 1, 1, 2, 5)))] for _ in range(KEYS)]
        leaving = [random.randint(0, min(len(windows_of_keys[key]), random.choice((1, 2, 20)))) for key in range(KEYS)]
        begun = (flags(list(map(len, new))) > 0) & ~sure(bands, percent, flags(list(map(len, new))), flags(leaving))
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
        bands = bands.without(begun)
        bounds = np.array([window[:3] for window in windows], np.int64).reshape(-1, 3).T
        counts, key_ranks = ranked(bands, moves, percent, (bounds[0], bounds[1], bounds[2]))
        assert counts.tolist() == [len(window) for *_, window in windows]
        assert key_ranks.tolist() == [sorted(window)[(percent * len(window) + 99) // 100 - 1] for *_, window in windows]
        begun_count, asked_count = begun_count + int(begun.sum()), asked_count + len(windows)
        bands = through_entries(after(bands, moves, percent), random)
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
def test_values_are_those_of_the_definition(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
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
