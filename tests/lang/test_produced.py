"""`produce`: the event that a match becomes, and the order in which patterns that feed each other are matched."""

from __future__ import annotations

from cep.base.limits import PRODUCE_DEPTH_MAX
from cep.lang.check.levels import levels_of
from cep.lang.format.file import format_text
from cep.lang.load import load_text
from tests.runners.laundering import NAMES, SOURCE

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
