"""Mistakes that only the compiler finds are reported at their place, and every pattern that compiles is accepted."""

from __future__ import annotations

import pytest

from cep.lang.check.bind import bind
from cep.lang.load import load_text
from cep.nfa.compile import problems
from cep.nfa.diagnose import compilable
from tests.lang.common import EVENTS
from tests.lang.generate import random_file


def codes_and_texts(seq: str, params: str = "") -> list[tuple[str, str]]:
    """Return the codes, with the text at their places."""
    text = f"{EVENTS}\npattern p{params} by card_id {{ seq {seq} }}\npattern good by card_id {{ seq a }}"
    checked = compilable(load_text(text))
    assert "good" in checked.patterns
    assert ("p" in checked.patterns) == checked.ok
    return [(d.code, text[d.span.start : d.span.end]) for d in checked.diagnostics if d.is_error and d.span is not None]


@pytest.mark.parametrize(
    ("seq", "code", "place"),
    [
        ("a -> (b -> !c within 5 min) -> d within 1 h", "CEP424", "d"),
        ("a -> (b -> !c within 5 min){2} within 1 h", "CEP424", "b"),
        ("((a -> b){90} -> c){90} within 1 h", "CEP425", "p"),
        ("a -> (b & c & d & e & f & g & h) within 1 h", "CEP425", "p"),
        ("first -> (" + " | ".join(f"v{i}" for i in range(61)) + ") within 1 h", "CEP425", "first"),
        ("(" + " | ".join(f"v{i}" for i in range(61)) + ") within 1 h", "CEP425", "p"),
        ("a -> (b{1,2} -> c){70} -> d within 1 h", "CEP425", "p"),
    ],
)
def test_what_does_not_compile(seq: str, code: str, place: str) -> None:
    assert codes_and_texts(seq) == [(code, place)]


def test_a_parameter_without_a_default_stands_for_its_least_value() -> None:
    group = "((a -> b){n} -> c){n} within 1 h"
    assert codes_and_texts(group, "(n: int)") == []
    assert codes_and_texts(group, "(n: int in 50..60)") == [("CEP425", "p")]
    assert codes_and_texts(group, "(n: int = 50)") == [("CEP425", "p")]
    many = "(n: int, d: duration, x: decimal, f: float, s: string, b: bool, e: enum(approved, declined))"
    assert codes_and_texts("a -> (b -> !c within 5 min) -> d ->[d] e within 1 h", many) == [("CEP424", "d")]


@pytest.mark.slow
@pytest.mark.always
def test_random_patterns_are_refused_exactly_if_they_do_not_compile() -> None:
    patterns_count = 0
    for seed in range(40):
        checked = load_text(random_file(seed))
        after = compilable(checked)
        for name, pattern in checked.patterns.items():
            bound, _ = bind(pattern, {})
            if bound is not None:
                patterns_count += 1
                assert (name in after.patterns) == (not problems(bound, checked.schema)), seed
    assert patterns_count > 40
