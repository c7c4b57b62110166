"""Texts that collide in Arrow's own hash cost a report of events no more than other texts, with the same result."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from cep.analysis import suggest
from cep.analysis.atoms import few_values
from cep.analysis.history import Events
from cep.base.schema import EventType, Field, Kind, Schema, Type
from cep.columnar.texts import different_texts
from tests.columnar.common import COUNT, assert_crafted_cost_what_others_do

FIELD = Field("shop", Type(Kind.STRING))


def count_of_values(texts: pa.Array) -> int:
    schema = Schema((EventType("payment", (FIELD,)),))
    zeros = np.zeros(len(texts), np.int64)
    events = Events(schema, texts, zeros.astype(np.int16), zeros, {"shop": texts})
    return len(list(few_values(events, np.arange(len(texts)), FIELD, 3)))


WAYS: dict[str, tuple[Callable[[pa.Array], int], int]] = {
    "values of a field": (count_of_values, 0),
    "numbers of values": (lambda texts: int(suggest._codes(texts).max()) + 1, COUNT),
    "different keys": (lambda texts: len(different_texts(pa.chunked_array([texts, texts]))), COUNT),
}


@pytest.mark.parametrize("way", WAYS)
def test_crafted_texts_cost_what_others_do(way: str) -> None:
    count_of, expected = WAYS[way]

    def count(texts: pa.Array) -> None:
        assert count_of(texts) == expected

    assert_crafted_cost_what_others_do(count)


def test_values_are_numbered_as_they_differ() -> None:
    for values in (pa.array([3, None, 0, 3, 0, 7]), pa.array(["c", None, "", "c", "", "d"], pa.large_string())):
        codes = suggest._codes(values).tolist()
        assert codes[1] == -1
        assert (codes[0], codes[2]) == (codes[3], codes[4])
        assert sorted({codes[0], codes[2], codes[5]}) == [0, 1, 2]
    texts = pa.array(["b", "a", None, "b"], pa.large_string())
    schema = Schema((EventType("payment", (FIELD,)),))
    zeros = np.zeros(4, np.int64)
    events = Events(schema, texts, zeros.astype(np.int16), zeros, {"shop": texts})
    rows_by_value = {written: holds.tolist() for written, holds in few_values(events, np.arange(4), FIELD, 3)}
    assert rows_by_value == {'"a"': [False, True, False, False], '"b"': [True, False, False, True]}
