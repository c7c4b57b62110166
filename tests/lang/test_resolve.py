"""Declarations to names, and the roles that the names of fields suggest."""

from __future__ import annotations

from decimal import Decimal

import pytest

from cep.base.schema import Kind, Type
from cep.lang.field_names import Role, role_of
from cep.lang.format.file import format_text
from cep.lang.load import load_text
from tests.lang.common import EVENTS, codes


def test_the_schema() -> None:
    schema = load_text(EVENTS).schema
    (event,) = schema.event_types
    assert (event.id_field, event.time_field) == ("tx_id", "event_time")
    assert schema.columns()["status"] == Type(Kind.ENUM, symbols=("approved", "declined", "reversed"))
    assert schema.columns()["country"] == Type(Kind.STRING, nullable=True)


def test_lists() -> None:
    text = 'list a = ["KP", "IR",]\nlist b = [1, -2.50]\nlist c = [declined]\nlist d = [5 min]\nlist e = []'
    assert load_text(text).lists == {
        "a": ("KP", "IR"),
        "b": (1, Decimal("-2.50")),
        "c": ("declined",),
        "d": (300_000,),
        "e": (),
    }


def test_identity_of_event_types() -> None:
    assert codes("event t { a id b id event_time time }") == ["CEP213"]
    assert codes("event t { a id opened time }") == ["CEP213"]
    assert codes("event t { a id event_time int opened time }") == ["CEP213"]
    assert codes("event t { a id? event_time time? }") == ["CEP213", "CEP213"]
    assert codes("event t { a int }") == ["CEP213", "CEP213"]


def test_an_event_has_times_beside_its_own() -> None:
    checked = load_text("event t { opened time?  a id  event_time time  expiry time }")
    assert checked.ok
    event_type = checked.schema.event_types[0]
    assert event_type.time_field == "event_time"
    assert event_type.times == ("opened", "event_time", "expiry")


_SYMBOLS = """event t { i id  event_time time  k string  s enum("3DS", "or", other) }
event u { j id  event_time time  k string  s enum("3DS", "or", other) }
pattern p(wanted: enum("3DS", "or", other) = "3DS") by k {
  seq a
  where a: t s == wanted or "3DS" == s or s in ["3DS", other] or s == "or" or (if k == "x" then s else "3DS") != other
  emit s = other, k = a.k
  produce u
}
pattern q by k { seq a  where a: u s == other  emit s = a.s }
test "one" of p { c: 0s t s="3DS"  expect match on c at 0s { s: other } }
"""


def test_symbols_in_quotes() -> None:
    checked = load_text(_SYMBOLS)
    assert checked.diagnostics == ()
    assert checked.patterns["p"].params[0].default == 0
    assert str(checked.schema.columns()["s"]) == 'enum("3DS", or, other)'
    formatted, _ = format_text(_SYMBOLS)
    assert formatted is not None
    assert load_text(formatted).ok


def test_fields_and_symbols_once() -> None:
    assert codes("event t { a id event_time time b int b int }") == ["CEP207"]
    assert codes("event t { a id event_time time e enum(x, x) }") == ["CEP207"]
    assert codes("event t { a id event_time time e enum }") == ["CEP212"]
    assert codes("event t { a id event_time time e string(5) }") == ["CEP105"]


def test_null_may_differ_between_event_types_but_the_type_may_not() -> None:
    first = "event t { a id event_time time x decimal(2) }\n"
    assert codes(first + "event u { b id event_time time x decimal(2)? }") == []
    assert codes(first + "event u { b id event_time time x decimal(4) }") == ["CEP215"]
    assert codes(first + "event u { x id event_time time }") == ["CEP215"]
    assert codes("event t { a id event_time time s id }\nevent u { b id event_time time s string }")[-1] == "CEP215"


@pytest.mark.parametrize(
    ("role", "names"),
    [
        (Role.LABEL, "is_fraud,isFraud,Class,label,Is Laundering,fraud_type,FraudFound_P,Betrug"),
        (Role.SENSITIVE, "gender,dob,customer_age,date_of_birth,first,job,zip,employment_status,AgeOfPolicyHolder"),
        (Role.SENSITIVE, "Geschlecht,PLZ,Alter,sexo"),
        (Role.COORDINATE, "lat,merch_long,homeLon,latitude"),
        (Role.MONEY, "amount,amt,TransactionAmt,fee,Amount Paid"),
        (Role.BALANCE, "oldbalanceOrg,new_balance"),
        (Role.OTHER, "status,channel,account_age,fraud_score,flat,longest,merchant_name,V1,step,country,alternative"),
    ],
)  # fmt: skip
def test_roles(role: Role, names: str) -> None:
    assert [name for name in names.split(",") if role_of(name) is not role] == []
