"""Expressions and values as text: the shown text has the meaning of the checked expression."""

from __future__ import annotations

import pytest

from cep.base.schema import Kind, Type
from cep.lang.show import show_duration, show_expr, show_time, show_value
from tests.lang.common import checked_pattern


@pytest.mark.parametrize(
    "text",
    [
        "amount > 5.00 and (tries == 1 or tries == 2) and online",
        "not (online and tries > 1)",
        'country is not null and country in ["KP", "IR"]',
        "amount - (amount - 1.00) > -amount",
        "if online then true else false",
        "status == approved",
        "event_time - a.event_time < 2 h",
        "count(a) > 3 and sum(a.amount) < 20.00 and first(a).amount == prev(a).amount",
        'country like "A%"',
    ],
)
def test_what_is_shown_checks_to_the_same(text: str) -> None:
    first = checked_pattern(f"seq a where a: transaction {text}").variable("a").where
    assert first is not None
    shown = show_expr(first)
    again = checked_pattern(f"seq a where a: transaction {shown}").variable("a").where
    assert again == first, shown


def test_values() -> None:
    assert show_duration(5_400_000) == "1 h 30 min"
    assert show_duration(0) == "0 s"
    assert show_time(0) == "1970-01-01T00:00:00Z"
    assert show_value(1999, Type(Kind.DECIMAL, scale=2)) == "19.99"
    assert show_value('a"b', Type(Kind.STRING)) == '"a\\"b"'
    assert show_value(None, Type(Kind.INT)) == "null"
