"""Functions of one event: their types, accepted arguments, and refused ones."""

from __future__ import annotations

import pytest

from cep.base.limits import REGEX_CHARS_MAX
from cep.lang.check.bind import bind
from cep.lang.show import show_expr
from tests.lang.common import checked_pattern, pattern_codes
from tests.lang.dump import dump_expr


def typed(text: str) -> str:
    where = checked_pattern(f"seq a where a: transaction {text}").variable("a").where
    assert where is not None
    again = checked_pattern(f"seq a where a: transaction {show_expr(where)}").variable("a").where
    assert again == where, show_expr(where)
    return dump_expr(where)


@pytest.mark.parametrize(
    ("text", "dump"),
    [
        ("round(amount) == 5", "(round(amount:decimal(2), 0:int):int == 5:int)"),
        ("round(amount, 1) == 5.1", "(round(amount:decimal(2), 1:int):decimal(1) == 51:decimal(1))"),
        ("round(amount, 2) == 5.1", "(amount:decimal(2) == 510:decimal(2))"),
        ("floor(lat) == 5.0", "(floor(lat:float):float == 5.0:float)"),
        ("ceil(tries) == 5", "(tries:int == 5:int)"),
        ('lower(country) == "fr"', '(lower(country:string?):string? == "fr")'),
        ('upper(substring(country, 1, 1)) in ["F"]', None),
        ("length(card_id) > 12", "(length(card_id:string):int > 12:int)"),
        ('ends_with(card_id, "0")', 'ends_with(card_id:string, "0"):bool'),
        ('contains(lower(card_id), "x")', 'contains(lower(card_id:string):string, "x"):bool'),
        ('card_id matches "^4[0-9]+$"', 'matches(card_id:string, "^4[0-9]+$"):bool'),
        ('card_id not matches "x"', '(not matches(card_id:string, "x"):bool)'),
        ('in_cidr(card_id, "10.0.0.0/8")', 'in_cidr(card_id:string, "10.0.0.0/8"):bool?'),
        ('hour(event_time, "Europe/Paris") between 0 and 5', None),
        ('weekday(event_time, "UTC") == 7', '(weekday(event_time:time, "UTC"):int == 7:int)'),
        ('event_time - date(event_time, "UTC") < 6 h', None),
    ],
)  # fmt: skip
def test_types(text: str, dump: str | None) -> None:
    result = typed(text)
    assert dump is None or result == dump


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("round(country) == 1", "CEP301"),
        ("round(amount, 19) == 1", "CEP301"),
        ("round(amount, 1, 2) == 1", "CEP307"),
        ("lower(amount) == 1", "CEP301"),
        ("lower() == 1", "CEP307"),
        ('a.country like "x"', "CEP314"),
        ('lower("X") == country', "CEP314"),
        ("starts_with(country, card_id)", "CEP301"),
        ("substring(country, 0, 2) == card_id", "CEP316"),
        ('substring(country, "1", 2) == card_id', "CEP301"),
        ('country matches "("', "CEP315"),
        (f'country matches "{"a" * (REGEX_CHARS_MAX + 1)}"', "CEP315"),
        ('in_cidr(country, "10.0.0.0/33")', "CEP316"),
        ("in_cidr(country, 5)", "CEP301"),
        ('hour(event_time, "Mars/Olympus") == 1', "CEP316"),
        ("hour(event_time) == 1", "CEP307"),
        ('hour(amount, "UTC") == 1', "CEP301"),
        ('hour(a.event_time, "UTC") == 1', "CEP314"),
        ("hour(event_time, country) == 1", "CEP316"),
    ],
)
def test_refused(text: str, code: str) -> None:
    assert pattern_codes(f"seq a where a: transaction {text}") == [code]


def test_a_parameter_as_the_constant_is_checked_when_it_is_bound() -> None:
    pattern = checked_pattern(
        "seq a where a: transaction country matches form", 'pattern p(form: string = "^K") by card_id'
    )
    assert bind(pattern, {})[0] is not None
    assert [d.code for d in bind(pattern, {"form": "("})[1]] == ["CEP503"]


def test_matches_is_no_reserved_word() -> None:
    pattern = checked_pattern(
        "seq matches where matches: transaction amount > 1 emit n = count(matches), matches = matches.amount"
    )
    assert [v.name for v in pattern.variables] == ["matches"]


def test_emit_has_no_event_under_test() -> None:
    assert pattern_codes("seq a emit c = lower(a.country)") == ["CEP314"]
