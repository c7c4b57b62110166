"""Whole patterns: event types, keys, values, limits, and patterns that feed each other with `produce`."""

from __future__ import annotations

import pytest

from cep.base.limits import PRODUCE_DEPTH_MAX
from cep.lang.check.order import levels_of
from cep.lang.format.file import format_text
from cep.lang.load import load_text
from tests.lang.common import EVENTS, checked_pattern, codes, pattern_codes
from tests.runners.laundering import NAMES, SOURCE

LOGIN = "event login { login_id id event_time time card_id string ok bool }\n"
OTHER = "event news { news_id id event_time time title string }\n"


def test_a_variable_without_condition_is_of_the_only_event_type() -> None:
    pattern = checked_pattern("seq a -> b")
    assert [v.event_type for v in pattern.variables] == ["transaction", "transaction"]
    assert codes(EVENTS + LOGIN + "pattern p by card_id { seq a }") == ["CEP216"]


def test_over_all_sees_every_event_type_that_has_the_key() -> None:
    text = EVENTS + LOGIN + OTHER + "pattern p by card_id { seq a where a: transaction %s }"
    assert load_text(text % "").patterns["p"].event_types == ("transaction",)
    assert load_text(text % "over all").patterns["p"].event_types == ("transaction", "login")


def test_keys() -> None:
    assert checked_pattern("seq a", "pattern p by (card_id, country)").key == ("card_id", "country")
    assert pattern_codes("seq a", "pattern p by card") == ["CEP417"]
    assert pattern_codes("seq a", "pattern p by lat") == ["CEP417"]
    assert pattern_codes("seq a", "pattern p by (card_id, card_id)") == ["CEP207"]


def test_values_need_names_of_their_own() -> None:
    assert pattern_codes("seq a emit x = a.lat, x = a.lon") == ["CEP207"]
    assert pattern_codes("seq a emit x = null") == ["CEP303"]
    assert pattern_codes("seq a emit x = 1 on timeout emit x = 2") == ["CEP419"]


def test_everything_may_be_unbound_on_timeout() -> None:
    pattern = checked_pattern("seq a -> b within 1 h emit x = b.lat on timeout emit x = b.lat")
    assert not pattern.measures[0].value.type.nullable
    assert pattern.timeout_measures is not None
    assert pattern.timeout_measures[0].value.type.nullable


def test_a_faulty_event_type_is_reported_once_and_keeps_its_patterns_out() -> None:
    text = "event t { i id event_time time k string a decimal }\npattern p by k { seq v where v: t }"
    checked = load_text(text)
    assert [d.code for d in checked.diagnostics] == ["CEP212"]
    assert not checked.patterns
    assert not checked.schema.event_types


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ("n: int = 3 in 1..5", []),
        ("n: int = 3, in 1..5, m: int = 2", []),
        ("d: decimal(4) = -0.5 in -1..1", []),
        ("w: duration = 10 min in 1 min .. 1 h", []),
        ('s: string = "x", b: bool = true, f: float = 1, e: enum(x, y) = y', []),
        ("n: int, n: int", ["CEP207"]),
        ("n: int = 3 in 5..1", ["CEP505"]),
        ('s: string = "x" in 1..2', ["CEP505", "CEP505", "CEP505"]),
        ("e: enum(x, y) = z", ["CEP505"]),
        ("w: duration = 5", ["CEP505"]),
        ("n: integer", ["CEP212"]),
        ("n: int?", ["CEP506"]),
        ("d: decimal(19)", ["CEP308"]),
        ("amount: int", ["CEP508"]),
    ],
)
def test_parameters(params: str, expected: list[str]) -> None:
    assert pattern_codes("seq a", f"pattern p({params}) by card_id") == expected


def test_a_decimal_parameter_without_scale_has_the_digits_of_its_default_but_those_of_money_at_least() -> None:
    pattern = checked_pattern("seq a", "pattern p(a1: decimal = 5, b1: decimal = 1.005, c1: decimal(1) = 2) by card_id")
    assert [p.type.scale for p in pattern.params] == [2, 3, 1]
    assert [p.default for p in pattern.params] == [500, 1005, 20]


def test_until_sees_the_fields_of_every_event_type_of_the_pattern() -> None:
    text = EVENTS + LOGIN + "pattern p by card_id { seq a+ until (ok) -> b within 1 h where a: transaction %s }"
    assert [d.code for d in load_text(text % "b: login").diagnostics] == []
    assert [d.code for d in load_text(text % "b: transaction").diagnostics] == ["CEP201"]


def test_conditions_given_twice() -> None:
    assert pattern_codes("seq a where a: transaction a: transaction") == ["CEP207"]


def test_a_field_that_could_not_be_read_is_reported_once() -> None:
    uses = "pattern p by card_id { seq a where a: login amount > 1 and last(login).amount > a.amount emit x = a.amount}"
    assert codes(LOGIN.replace("ok bool", "amount decimal(12,2)") + uses) == ["CEP105"]
    assert codes(LOGIN.replace("ok bool", "amount money") + uses) == ["CEP212"]
    assert set(codes(LOGIN + uses)) == {"CEP201", "CEP203"}


CHAIN = "event e0 { id0 id event_time time k string }\n" + "".join(
    f"event e{n} {{ id{n} id event_time time k string }}\n"
    f"pattern p{n} by k {{ seq a where a: e{n - 1} emit k = a.k produce e{n} }}\n"
    for n in range(1, PRODUCE_DEPTH_MAX + 2)
)


def test_what_a_pattern_produces_is_checked_and_known() -> None:
    checked = load_text(SOURCE)
    assert [d.code for d in checked.diagnostics if d.is_error] == []
    assert [checked.patterns[name].produces for name in NAMES] == ["credit", "debit", "hop", "back", None]
    derived = {e.name for e in checked.schema.event_types if e.derived}
    assert derived == {"credit", "debit", "hop", "back"}


def test_the_formatter_keeps_the_clause() -> None:
    formatted, _ = format_text(SOURCE)
    assert formatted is not None
    assert "  produce  hop\n" in formatted
    assert load_text(formatted).patterns == load_text(SOURCE).patterns


def test_a_chain_has_an_end() -> None:
    errors = [d for d in load_text(CHAIN).diagnostics if d.is_error]
    assert [d.code for d in errors] == ["CEP427"]
    assert f"p{PRODUCE_DEPTH_MAX + 1}" in errors[0].message


def test_levels_are_those_of_the_longest_way_from_the_source() -> None:
    feeds = {
        "raw": (("t",), "x"),
        "both": (("t", "x"), "y"),
        "last": (("y", "t"), None),
        "alone": (("t",), None),
    }
    assert levels_of(feeds) == {"raw": 0, "both": 1, "last": 2, "alone": 0}
    circle = {"there": (("y",), "x"), "back": (("x",), "y"), "reader": (("x",), None), "alone": (("t",), None)}
    assert levels_of(circle) == {
        "there": PRODUCE_DEPTH_MAX,
        "back": PRODUCE_DEPTH_MAX,
        "reader": PRODUCE_DEPTH_MAX,
        "alone": 0,
    }
