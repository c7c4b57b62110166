"""Tests in pattern files: parsing, and one mistake does not hide the next."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cep.lang.diagnostics import Collector
from cep.lang.explain.render import render_text
from cep.lang.load import load_text
from cep.lang.parse.file import parse
from cep.lang.syntax import Literal, NameRef, PatternTestSyntax


def parsed(body: str, header: str = 'test "x" of p') -> tuple[PatternTestSyntax, list[str]]:
    collector = Collector()
    (test,) = parse(f"{header} {{ {body} }}", "t.cep", collector).declarations
    assert isinstance(test, PatternTestSyntax)
    return test, [f"{d.code} {d.message}" for d in collector.diagnostics]


def test_times_are_sums_of_durations() -> None:
    test, codes = parsed("c1: 0s t 1 h 30 min t 1h30s t 20 s t 0.5 min t")
    assert codes == ["CEP104 `h30s` is not a unit of time"]
    test, codes = parsed("c1: 0s t 1 h 30 min t 2 d 1 ms t 0.5 min t")
    assert not codes
    assert [e.time.ms for e in test.keys[0].events] == [0, 5_400_000, 172_800_001, 30_000]


def test_a_unit_is_a_unit_unless_it_is_the_next_field() -> None:
    test, codes = parsed("c1: 0s t n=3 d=5 gap=5 m s=ok 10 s t n=-3, w=5min")
    assert not codes
    first, second = test.keys[0].events
    assert [f.name for f in first.fields] == ["n", "d", "gap", "s"]
    assert [f.name for f in second.fields] == ["n", "w"]


def test_repetitions() -> None:
    test, codes = parsed("c1: 0s t a=1 x5 every 20s 5m t x2 every 1 h 30 min expect none")
    assert not codes
    assert [(e.count, e.every.ms if e.every else None) for e in test.keys[0].events] == [(5, 20_000), (2, 5_400_000)]
    assert [e.kind for e in test.expects] == ["none"]


def test_labels_are_names_texts_and_numbers() -> None:
    test, codes = parsed('c1: 0s t\n "a b": 5s t\n 4711: 5 s t\n c2(k = "z"):\n c1: 6s t')
    assert not codes
    labels = [k.label.name if isinstance(k.label, NameRef) else k.label.value for k in test.keys]
    assert labels == ["c1", "a b", 4711, "c2", "c1"]
    assert [len(k.events) for k in test.keys] == [1, 1, 1, 0, 1]


def test_expectations() -> None:
    test, codes = parsed(
        'c1: 0s t expect match on c1 at 5m { a: 3, b: -1.5 }\n expect timeout on "c 2" at 1 h expect matches 3 on c1'
    )
    assert not codes
    match, timeout, count = test.expects
    assert match.at is not None
    assert (match.kind, match.at.ms, [m.name for m in match.measures]) == ("match", 300_000, ["a", "b"])
    assert isinstance(timeout.key, Literal)
    assert (count.kind, count.count) == ("matches", 3)


def test_todo_with_and_without_a_reason() -> None:
    assert parsed("expect none")[0].todo is None
    assert parsed("todo expect none")[0].todo == ""
    assert parsed('todo "later" expect none')[0].todo == "later"
    assert parsed('todo "later"\n todo expect none')[1] == ["CEP106 `todo` is given twice"]


def test_arguments() -> None:
    test, codes = parsed("expect none", 'test "x" of p with (tries = 2, window = 5 min,)')
    assert not codes
    assert [a.name for a in test.arguments] == ["tries", "window"]


def test_after_a_mistake_it_goes_on_with_the_next_entry() -> None:
    test, codes = parsed("c1: 0s t a=1 b\n 5s t\n expect mach\n c2: 5s t a==2\n expect none")
    assert len(codes) == 3
    assert test.broken
    assert [e.kind for e in test.expects] == ["none"]


def test_after_a_broken_test_comes_the_next_declaration() -> None:
    collector = Collector()
    text = 'test "x" of p { c1: 0s\ntest "y" of p { expect none }\nlist l = [1]\ntest x of p { }\nlist m = [2]'
    file = parse(text, "t.cep", collector)
    assert [d.name for d in file.declarations] == ["x", "y", "l", "m"]  # type: ignore[union-attr]
    assert len(collector.diagnostics) == 2


def test_a_field_and_a_variable_may_be_called_test() -> None:
    collector = Collector()
    parse("event e { i id\n test string\n of string }\npattern test by i { seq test }", "t.cep", collector)
    assert not collector.diagnostics


WORDS = (  # noqa: SIM905
    "test of with expect match none timeout matches todo on at x2 every p c1 c2 t u a s n k i 0 1 2 0s 5m 20 s min "
    'h 1.50 -3 1e3 "KP" " # : = ( ) { } , ; - true null ok bad event pattern by import \n'
).split(" ")
FRAME = """
event t { i id  event_time time  k string  a decimal(2)  s enum(ok, bad)  n int? }
event u { j id  event_time time  k string }
pattern p(n: int = 1) by k {
  seq v{n} within 5 min where v: t on timeout emit c = count(v) emit a = v.a, at = v.event_time
}
"""


@pytest.mark.slow
@pytest.mark.always
@given(st.lists(st.sampled_from(WORDS), max_size=40), st.booleans())
@example(["c1", ":", "0s", "t", "x2", "every", "0s", "expect", "none", "}"], True)
@example(["c1", ":", "0s", "t", "expect", "match", "{", "at", ":", "5m", "}"], True)
@settings(deadline=None, max_examples=400)
def test_any_words(words: list[str], inside: bool) -> None:
    checked = load_text(FRAME + ('test "x" of p { ' if inside else "") + " ".join(words))
    rendered = render_text(checked.diagnostics, checked.sources, color=True)
    assert bool(rendered) == bool(checked.diagnostics)
    assert checked.ok or rendered
