"""Times that count from a moment, against Python's own arithmetic."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from cep.columnar.elapsed import UNITS_US, moments_since

BASE = datetime(2013, 9, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize("unit", UNITS_US)
def test_random_numbers_of_each_unit(unit: str) -> None:
    rng = random.Random(1)
    numbers = [rng.randrange(0, 10**5) for _ in range(100)]
    expected = [BASE + timedelta(microseconds=number * UNITS_US[unit]) for number in numbers]
    for form in (numbers, [str(n) for n in numbers], [float(n) for n in numbers], [Decimal(n) for n in numbers]):
        assert moments_since(pa.array(form), "2013-09-01T04:00:00+02:00", unit).to_pylist() == expected


def test_what_is_no_number_or_no_time_is_null() -> None:
    texts = pa.array(["1.5", "x", "", None, "1e300", "-5", " 7 "])
    moments = moments_since(texts, "2013-09-01T02:00:00Z", "").to_pylist()
    assert moments == [BASE + timedelta(seconds=s) if s is not None else None for s in (1.5, *[None] * 4, -5, 7)]
