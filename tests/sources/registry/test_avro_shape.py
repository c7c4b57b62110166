"""Schemas that make a few bytes cost without end are recognised; other schemas are accepted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.sources.registry.avro_shape import Shape, shape_of
from tests.sources.registry.test_registry import AVRO

_JSON = st.recursive(
    st.none() | st.integers(0, 1) | st.sampled_from(["null", "long", "A", "n.A", "record", "array", "fixed"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "name", "fields", "items", "values", "size"]), inner, max_size=4)
    ),
    max_leaves=20,
)


def record(name: str, *types: object) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": f"f{n}", "type": t} for n, t in enumerate(types)]}


def array(items: object) -> dict[str, object]:
    return {"type": "array", "items": items}


@pytest.mark.parametrize(
    ("schema", "is_nested", "has_empty_items"),
    [
        (AVRO, False, False),
        (record("A", record("B", "long"), "B", array("B"), array("long")), False, False),
        (record("A", ["null", "A"]), True, False),
        (record("n.A", {"type": "map", "values": {"type": "n.A"}}), True, False),
        (record("A", record("B", array(record("C", ["null", "B"])))), True, False),
        (record("A", array("null")), False, True),
        (record("A", array({"type": "null"})), False, True),
        (record("A", array({"type": "fixed", "name": "F", "size": 0})), False, True),
        (record("A", array({"type": "fixed", "name": "F", "size": 1})), False, False),
        (record("A", record("E", record("F"), "null"), array(["null"]), {"type": "map", "values": "E"}), False, False),
        (record("A", record("E", record("F"), "null"), {"type": "map", "values": array("E")}), False, True),
        (array("A"), False, False),
    ],
)
def test_what_may_cost_without_end(schema: object, is_nested: bool, has_empty_items: bool) -> None:
    assert shape_of(schema) == Shape(is_nested, has_empty_items)


def test_types_of_other_schemas() -> None:
    others = [record("n.Empty"), record("n.Node", ["null", "Node"])]
    assert shape_of(record("A", array("n.Empty")), others) == Shape(is_nested=False, has_empty_items=True)
    assert shape_of(record("A", "n.Node"), others) == Shape(is_nested=True, has_empty_items=False)


def test_many_types_of_types_take_no_time() -> None:
    types = [record("R0"), *(record(f"R{n}", f"R{n - 1}", f"R{n - 1}") for n in range(1, 60))]
    assert shape_of(record("A", array("R59")), types) == Shape(is_nested=False, has_empty_items=True)


@given(_JSON)
def test_what_is_no_schema_has_a_shape_too(schema: object) -> None:
    assert isinstance(shape_of(schema), Shape)
