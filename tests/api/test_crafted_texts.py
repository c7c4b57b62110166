"""Texts that collide in Arrow's own hash cost a notebook no more than other texts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from cep.api.describe import describe
from cep.api.frames import present_types
from cep.api.plots import spread
from cep.base.schema import EventType, Schema
from tests.columnar.common import COUNT, assert_crafted_cost_what_others_do


def draft(texts: pa.Array) -> str:
    times = pa.array(np.arange(len(texts)), pa.timestamp("ms", "UTC"))
    return describe(pa.table({"event_time": times, "tx_id": texts, "shop": texts})).text


def drawn(texts: pa.Array) -> str:
    return spread(pa.chunked_array([texts]), "testing", "shop")._chart.text


def types(texts: pa.Array) -> int:
    schema = Schema((EventType("payment", ()), EventType("login", ())))
    return len(present_types(schema, pa.table({"event_type": texts}), {}))


WAYS: dict[str, tuple[Callable[[pa.Array], object], Callable[[object], bool]]] = {
    "a draft": (draft, lambda text: "shop" in str(text) and "string" in str(text)),
    "a chart": (drawn, lambda text: f"{COUNT:,} values" in str(text)),
    "types of events": (types, lambda count: count == 0),
}


@pytest.mark.parametrize("way", WAYS)
def test_crafted_texts_cost_what_others_do(way: str) -> None:
    use, is_right = WAYS[way]

    def check(texts: pa.Array) -> None:
        assert is_right(use(texts))

    assert_crafted_cost_what_others_do(check)
