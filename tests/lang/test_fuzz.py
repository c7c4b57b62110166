"""No text ends in a traceback, and every diagnostic can be shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cep.lang.check.bind import bind
from cep.lang.explain.render import render_text, to_json
from cep.lang.load import load_text
from tests.lang.dump import dump_pattern

GOLDEN = Path(__file__).parent / "golden"
EVENT = "event t { i id event_time time k string a decimal(2) s enum(x, y) c string? n int b bool d float }\n"
WORDS = (  # noqa: SIM905
    "event list define pattern import by seq where skip emit within over all on timeout and or not in between is null "
    "true false if then else like greedy strict any until none to next past last first order events t p k a s x y c n "
    "b d event_time v w u count sum avg min max prev abs sqrt least distance_km starts_with id time string decimal "
    "enum { } ( ) [ ] , -> ->> ! ? * + - / % | & == != <> = < <= > >= : ; . .. 0 1 2 3 2.00 0.005 1e3 10 5m 10min min "
    '"KP" \' " # ## \n'
).split(" ")


def never_a_traceback(text: str) -> None:
    checked = load_text(text)
    rendered = render_text(checked.diagnostics, checked.sources, color=True)
    assert bool(rendered) == bool(checked.diagnostics)
    json.dumps([to_json(d, checked.sources) for d in checked.diagnostics])
    for pattern in checked.patterns.values():
        dump_pattern(pattern)
        bind(pattern, {})


@pytest.mark.slow
@pytest.mark.always
@given(st.text(max_size=200))
@example("\ufeff")
@example("pattern p by by where by: where: seq:")
@example("pattern p by k { seq a where where: t }")
@example("pattern p by k { seq a where a: t skip: t seq: emit: }")
@example("1" * 5_000)
@example("event t { " + "a " * 50)
@settings(deadline=None, max_examples=150)
def test_any_text(text: str) -> None:
    never_a_traceback(text)


@pytest.mark.slow
@pytest.mark.always
@given(st.lists(st.sampled_from(WORDS), max_size=60))
@settings(deadline=None, max_examples=300)
def test_any_words(words: list[str]) -> None:
    never_a_traceback(EVENT + "pattern p by k { seq v -> w where v: t " + " ".join(words))


@pytest.mark.slow
@pytest.mark.always
@given(st.lists(st.sampled_from(WORDS), max_size=25), st.lists(st.sampled_from(WORDS), max_size=25))
@settings(deadline=None, max_examples=300)
def test_any_structure_and_condition(structure: list[str], condition: list[str]) -> None:
    body = f"seq v {' '.join(structure)}\n where v: t {' '.join(condition)}\n w: t emit r = v.a"
    never_a_traceback(f"{EVENT} pattern p(n1: int = 2, w1: duration = 5 min) by k {{ {body} }}")


@pytest.mark.slow
@pytest.mark.always
@given(st.data())
@settings(deadline=None, max_examples=200)
def test_a_good_file_with_a_cut_or_a_swap(data: st.DataObject) -> None:
    files = sorted(GOLDEN.glob("ir/*.cep"))
    text = data.draw(st.sampled_from(files)).read_text(encoding="utf-8")
    start = data.draw(st.integers(0, len(text)))
    length = data.draw(st.integers(0, 30))
    insert = data.draw(st.sampled_from(["", *WORDS]))
    never_a_traceback(text[:start] + insert + text[start + length :])


@pytest.mark.slow
@pytest.mark.always
def test_nesting_is_bounded() -> None:
    for deep in ("(" * 5_000, "not " * 5_000, "-" * 5_000, "if " * 5_000, "abs(" * 5_000, "1 + (" * 5_000, "[" * 5_000):
        never_a_traceback(EVENT + "pattern p by k { seq v where v: t " + deep + " a > 1 }")
        never_a_traceback(EVENT + "pattern p by k { seq " + deep + "v where v: t a > 1 }")
        never_a_traceback(f"list l = {deep}")
        never_a_traceback(f"define f(x) = {deep}")
        never_a_traceback(f"pattern p(x: int = {deep}1) by k {{ }}")


@pytest.mark.slow
@pytest.mark.always
def test_long_chains_are_bounded() -> None:
    for operator in ("and", "or", "+", "*", "==", ".", ","):
        chain = f" {operator} ".join(["a > 1" if operator in ("and", "or") else "a"] * 3_000)
        never_a_traceback(EVENT + "pattern p by k { seq v where v: t " + chain + " }")
    never_a_traceback(EVENT + "pattern p by k { seq " + " -> ".join(f"v{i}" for i in range(3_000)) + " }")


def test_definitions_that_double_are_bounded() -> None:
    lines = ["define f0(x) = x + x"] + [f"define f{i}(x) = f{i - 1}(x) + f{i - 1}(x)" for i in range(1, 40)]
    body = "pattern p by k { seq v where v: t f39(a) > 1 }"
    never_a_traceback(EVENT + "\n".join(lines) + "\n" + body)
    assert "CEP311" in [d.code for d in load_text(EVENT + "\n".join(lines) + "\n" + body).diagnostics]
