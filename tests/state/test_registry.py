"""What may change between two versions of a program that declares state, and what is refused with both sides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cep.base.errors import StateSchemaError
from cep.base.schema import Field, Kind, Type
from cep.state.descriptors import Cleanup, Descriptor, StateKind, Ttl, TtlTime
from cep.state.keys import ALL_KEYS
from cep.state.memory import MemoryStore
from cep.state.states import States
from tests.state.declared import ManualClock, at, declare, opened, row

BASE = declare(StateKind.VALUE)
COUNTRY = Field("country", Type(Kind.ENUM, symbols=("FR", "DE")))
INT, TEXT = Type(Kind.INT), Type(Kind.STRING)


def with_fields(*fields: Field, kind: StateKind = StateKind.VALUE) -> Descriptor:
    return Descriptor("s", kind, fields)


def reopened(first: Descriptor, *then: Descriptor) -> States:
    store, clock = MemoryStore(), ManualClock()
    states = opened(store, clock, first)
    for descriptor in then:
        states = opened(store, clock, descriptor)
    return states


def test_a_field_added_is_null_in_old_values_and_a_field_dropped_is_gone() -> None:
    store, clock = MemoryStore(), ManualClock()
    opened(store, clock, BASE).value("s").put(at(0), row(1))
    evolved = with_fields(Field("n", INT), Field("late", TEXT.as_nullable()))
    value = opened(store, clock, evolved).value("s")
    assert value.get(at(0)) == {"n": 1, "late": None}
    value.put(at(0), {"n": 2, "late": "x"})
    back = opened(store, clock, BASE).value("s")
    assert back.get(at(0)) == {"n": 2, "note": None}


def test_what_is_allowed() -> None:
    country = with_fields(COUNTRY)
    longer = with_fields(replace(COUNTRY, type=Type(Kind.ENUM, symbols=("FR", "DE", "AT"))))
    reopened(country, longer)
    reopened(country, with_fields(replace(COUNTRY, type=COUNTRY.type.as_nullable())))
    reopened(BASE, replace(BASE, ttl=Ttl(5, TtlTime.EVENT)), BASE)


def test_a_longer_life_does_not_bring_back_what_was_removed() -> None:
    store, clock = MemoryStore(), ManualClock(10_000)
    short = replace(BASE, ttl=Ttl(100, TtlTime.EVENT, cleanup=Cleanup.COMPACTION))
    value = opened(store, clock, short).value("s")
    value.put(at(0), row(1))
    clock.move(70)
    value.put(at(0), row(2))
    value.put(at(1), row(3))
    clock.move(60)
    value.clear(at(0))
    longer = replace(BASE, ttl=Ttl(1_000, TtlTime.EVENT, cleanup=Cleanup.COMPACTION))
    value = opened(store, clock, longer).value("s")
    assert value.get(at(0)) is None
    clock.move(500)
    assert value.get(at(1)) == row(3)


@pytest.mark.parametrize(
    ("versions", "reason"),
    [
        ([BASE, declare(StateKind.LIST)], "s is a value in the store"),
        ([BASE, with_fields(Field("n", TEXT))], "field n of s has the type int in the store"),
        ([with_fields(Field("n", Type(Kind.DECIMAL, scale=2))), with_fields(Field("n", Type(Kind.DECIMAL, scale=3)))],
         "decimal(2)"),
        ([BASE, with_fields(*BASE.fields, Field("new", INT))], "declare it int?"),
        ([with_fields(Field("n", INT.as_nullable())), with_fields(Field("n", INT))], "has the type int?"),
        ([with_fields(COUNTRY), with_fields(Field("country", Type(Kind.ENUM, symbols=("DE", "FR"))))], "enum(FR, DE)"),
        # Left out, and back with another type: values in between have the first one.
        ([BASE, with_fields(Field("n", INT)), with_fields(Field("n", INT), Field("note", INT.as_nullable()))],
         "field note of s has the type string? in the store"),
        ([with_fields(Field("a", INT), Field("b", INT)), with_fields(Field("a", INT)),
          with_fields(Field("a", INT), Field("b", INT))], "field b of s is back"),
        ([BASE, replace(BASE, ttl=Ttl(5, TtlTime.EVENT, cleanup=Cleanup.COMPACTION))], "cleanup in compaction"),
        ([replace(BASE, ttl=Ttl(ms, TtlTime.EVENT, cleanup=Cleanup.COMPACTION)) for ms in (40, 10_000)], "past 640 ms"),
    ],
)  # fmt: skip
def test_what_is_refused_is_shown_from_both_sides(versions: list[Descriptor], reason: str) -> None:
    with pytest.raises(StateSchemaError) as error:
        reopened(*versions)
    first, *sides = str(error.value).splitlines()
    assert reason in str(error.value)
    assert "s" in first
    assert [side.split()[0] for side in sides] == ["stored", "declared"]
    assert sides[1].endswith(str(versions[-1]))


def test_a_renamed_state_is_refused_until_it_is_given_up() -> None:
    store, clock = MemoryStore(), ManualClock()
    bucketed = replace(declare(StateKind.MAP, name="m"), ttl=Ttl(5, TtlTime.EVENT, cleanup=Cleanup.COMPACTION))
    states = opened(store, clock, BASE, bucketed)
    states.value("s").put(at(0), row(1))
    states.map("m").put(at(0), "e", row(1))
    renamed = replace(BASE, name="t")
    with pytest.raises(StateSchemaError) as error:
        opened(store, clock, renamed)
    assert str(error.value).splitlines()[1:] == [
        "  stored    m: map { n int, note string? }",
        "  stored    s: value { n int, note string? }",
        "  declared  t: value { n int, note string? }",
    ]
    States(store, clock.clock, [renamed], groups=range(3), given_up=["s", "m"]).value("t").put(at(0), row(2))
    assert len(list(store.scan(ALL_KEYS))) == 2, "one value and one schema are left"
    assert opened(store, clock, renamed).value("t").get(at(0)) == row(2)
