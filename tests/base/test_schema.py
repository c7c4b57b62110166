"""Types, event types and the schema of a job; a class of values is like a frozen dataclass, except for its guard."""

import json
import pickle
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import pytest

from cep.base.schema import EventType, Field, Kind, Schema, Type, misreadings, valueclass
from cep.base.text import of_type, texts

STATUS = Type(Kind.ENUM, symbols=("approved", "declined"))
PAYMENT = EventType(
    "payment",
    (
        Field("tx_id", Type(Kind.ID)),
        Field("event_time", Type(Kind.TIME)),
        Field("amount", Type(Kind.DECIMAL, scale=2)),
        Field("status", STATUS),
    ),
)
LOGIN = EventType(
    "login",
    (
        Field("tx_id", Type(Kind.ID)),
        Field("event_time", Type(Kind.TIME)),
        Field("amount", Type(Kind.DECIMAL, nullable=True, scale=2)),
    ),
)
SCHEMA = Schema((PAYMENT, LOGIN))


def test_an_event_type_knows_what_identifies_an_event() -> None:
    assert (PAYMENT.id_field, PAYMENT.time_field) == ("tx_id", "event_time")
    assert PAYMENT.field("status") == Field("status", STATUS)
    assert PAYMENT.field("none") is None


def test_an_event_type_finds_its_fields_by_name_in_every_process() -> None:
    assert PAYMENT.field("amount") == PAYMENT.fields[2]
    assert PAYMENT.field("amuont") is None
    assert list(PAYMENT.types.items()) == [(field.name, field.type) for field in PAYMENT.fields]
    sent = pickle.loads(pickle.dumps(PAYMENT))
    assert sent == PAYMENT
    assert vars(sent).keys() == {"name", "fields", "retain_ms", "derived", "order_field"}


def test_the_code_of_a_type_is_its_place() -> None:
    assert [SCHEMA.code(e.name) for e in SCHEMA.event_types] == [0, 1]
    assert SCHEMA.event_type("login") is LOGIN
    assert SCHEMA.event_type("none") is None


def test_a_column_is_nullable_where_an_event_may_lack_it() -> None:
    columns = SCHEMA.columns()
    assert {name: kind.nullable for name, kind in columns.items()} == {
        "tx_id": False,
        "event_time": False,
        "amount": True,
        "status": True,
    }


def test_a_schema_survives_json() -> None:
    assert Schema.from_json(json.loads(json.dumps(SCHEMA.to_json()))) == SCHEMA


def test_a_schema_that_went_to_another_process_is_hashed_anew() -> None:
    """The other process hashes texts differently, and a schema stores its own hash."""
    assert hash(SCHEMA) == hash(Schema((PAYMENT, LOGIN)))
    arrived = pickle.loads(pickle.dumps(SCHEMA))
    assert vars(arrived) == {"event_types": SCHEMA.event_types}
    assert arrived == SCHEMA
    assert hash(arrived) == hash(SCHEMA)


@pytest.mark.parametrize(
    ("value_type", "text"),
    [
        (Type(Kind.STRING, nullable=True), "string?"),
        (Type(Kind.DECIMAL, scale=3), "decimal(3)"),
        (STATUS, "enum(approved, declined)"),
    ],
)
def test_a_type_is_written_as_authors_write_it(value_type: Type, text: str) -> None:
    assert str(value_type) == text


def test_kinds_fall_into_text_number_and_float() -> None:
    assert [k for k in Kind if Type(k).is_text] == [Kind.ID, Kind.STRING]
    assert [k for k in Kind if Type(k).is_number] == [Kind.INT, Kind.DECIMAL, Kind.FLOAT]
    assert [k for k in Kind if Type(k).is_float] == [Kind.FLOAT]


def changed(**types: Type | None) -> Schema:
    """Return one event type with an id, a time and three more fields, whose types `types` replaces or removes."""
    fields = {"id": Type(Kind.ID), "event_time": Type(Kind.TIME), "amount": Type(Kind.DECIMAL, scale=2)}
    types_by_name: dict[str, Type | None] = {**fields, "status": STATUS, "note": Type(Kind.STRING), **types}
    return Schema((EventType("e", tuple(Field(n, t) for n, t in types_by_name.items() if t is not None)),))


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({}, ""),
        ({"extra": Type(Kind.INT)}, ""),
        ({"note": None}, ""),
        ({"status": Type(Kind.ENUM, symbols=("approved", "declined", "reversed"))}, ""),
        (
            {"status": Type(Kind.ENUM, symbols=("declined", "approved"))},
            "`e.status` was enum(approved, declined) and is",
        ),
        ({"status": Type(Kind.ENUM, symbols=("approved",))}, "`e.status` was"),
        ({"amount": Type(Kind.DECIMAL, scale=3)}, "`e.amount` was decimal(2) and is decimal(3)"),
        ({"amount": Type(Kind.INT)}, "`e.amount` was decimal(2) and is int"),
        ({"note": Type(Kind.STRING, nullable=True)}, ""),
        ({"amount": Type(Kind.DECIMAL, nullable=True, scale=3)}, "`e.amount` was decimal(2) and is decimal(3)?"),
    ],
)
def test_what_stored_events_still_mean(types: dict[str, Type | None], message: str) -> None:
    misread = misreadings(changed(), changed(**types))
    assert misread == [] if not message else message in misread[0]


def test_what_may_be_null_stays_so() -> None:
    before = changed(note=Type(Kind.STRING, nullable=True))
    assert misreadings(before, changed()) == ["`e.note` was string? and is string"]


def test_event_types_keep_their_places() -> None:
    one, other = changed().event_types[0], EventType("f", changed().event_types[0].fields)
    assert misreadings(Schema((one,)), Schema((one, other))) == []
    assert "`e` is not in its place" in misreadings(Schema((one,)), Schema((other, one)))[0]
    assert "`f` is not in its place" in misreadings(Schema((one, other)), Schema((one,)))[0]


@valueclass(frozen=True, slots=True)
class Quick:
    number: int
    text: str | None = None
    names: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Guarded:
    number: int
    text: str | None = None
    names: dict[str, int] = field(default_factory=dict)


@valueclass(frozen=True, slots=True)
class Pair:
    first: int
    second: tuple[int, ...] = ()


def test_it_is_shown_and_described_like_a_frozen_one() -> None:
    assert repr(Quick(1)) == repr(Guarded(1)).replace("Guarded", "Quick")
    assert is_dataclass(Quick)
    assert [(f.name, f.type, f.default) for f in fields(Quick)] == [
        (f.name, f.type, f.default) for f in fields(Guarded)
    ]
    assert Quick.__slots__ == Guarded.__slots__


def test_it_is_equal_and_hashed_by_its_fields() -> None:
    assert Pair(1, (2,)) == Pair(first=1, second=(2,))
    assert Pair(1) != Pair(2)
    assert hash(Pair(1, (2,))) == hash((1, (2,)))
    assert replace(Pair(1), second=(3,)) == Pair(1, (3,))


def test_a_default_that_is_made_is_made_for_each() -> None:
    assert Quick(1).names is not Quick(2).names


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_it_is_pickled(protocol: int) -> None:
    assert pickle.loads(pickle.dumps(Quick(1, "a", {"b": 2}), protocol)) == Quick(1, "a", {"b": 2})
    assert copy(Pair(1, (2,))) == Pair(1, (2,))


def test_its_fields_are_set_without_a_guard() -> None:
    """Only mypy refuses it: a guard is what makes frozen dataclasses slow."""
    assert "__setattr__" not in vars(Quick)
    assert "__setattr__" in vars(Guarded)


def test_values_of_the_type_are_returned() -> None:
    assert of_type("base", 3, int) == 3
    assert texts("keys", ["a", "b"]) == ("a", "b")


@pytest.mark.parametrize("value", ["a", None, {"a": 1}, [1], [["a"]]])
def test_another_type_is_named(value: Any) -> None:
    with pytest.raises(TypeError, match="keys is"):
        texts("keys", value)
    with pytest.raises(TypeError, match="base is"):
        of_type("base", value, int)
