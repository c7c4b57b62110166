"""Tests in pattern files: one mistake of syntax does not hide the next; complete events, keys, typed expectations."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cep.lang.diagnostics import Collector
from cep.lang.explain.render import render_text
from cep.lang.ir import PatternTest
from cep.lang.load import Checked, bundle_source, load_text
from cep.lang.parse.file import parse
from cep.lang.syntax import Literal, NameRef, PatternTestSyntax
from tests.lang.common import EVENTS, shown

PATTERN = """
pattern p(steps: int = 3 in 1..5, least: decimal = 1.00, what: string = "x", wait: duration = 5 min) by card_id {
  seq v{steps,} -> w within wait
  where v: transaction amount > least
  on timeout emit n = count(v)
  emit n = count(v), total = sum(v.amount), mean = avg(v.amount), first = first(v).event_time, online = w.online
}
"""


def loaded(body: str, header: str = 'test "x" of p') -> Checked:
    return load_text(f"{EVENTS}{PATTERN}{header} {{ {body} }}")


def one(body: str, header: str = 'test "x" of p') -> PatternTest:
    checked = loaded(body, header)
    assert checked.ok, shown(checked)
    (test,) = checked.tests
    return test


def test_unnamed_fields_have_neutral_values() -> None:
    (event,) = one("c1: 5s transaction amount=2 expect none").events
    assert event.time_ms == 5_000
    assert event.event_id == "e00001"
    assert dict(event.fields) == {
        "tx_id": "e00001", "card_id": "c1", "amount": 200, "status": 0, "country": None, "device_id": None,
        "lat": 0.0, "lon": 0.0, "tries": 0, "online": False,
    }  # fmt: skip


def test_events_are_in_the_order_of_time_and_text_and_so_are_their_ids() -> None:
    test = one("c2: 9s transaction c1: 0s transaction x2 every 9s c3: 0s transaction expect none")
    events = [(e.key, e.time_ms, e.event_id) for e in test.events]
    assert events == [("c1", 0, "e00001"), ("c3", 0, "e00002"), ("c2", 9_000, "e00003"), ("c1", 9_000, "e00004")]


def test_times_of_a_key_that_go_back_are_a_mistake() -> None:
    checked = loaded("c1: 9s transaction c2: 1s transaction c1: 5s transaction expect none")
    assert [d.code for d in checked.diagnostics] == ["CEP610"]
    assert [d.code for d in loaded("c1: 0s transaction x9 every 26000000000 d expect none").diagnostics] == ["CEP104"]
    assert loaded("c1: 9s transaction x2 every 5 min\n 9s transaction 1 min transaction expect none").ok


def test_a_given_id_is_kept_and_no_made_up_one_equals_it() -> None:
    test = one('c1: 0s transaction tx_id="e00002" 1s transaction expect none')
    assert [e.event_id for e in test.events] == ["e00002", "e00002'"]


def test_arguments_are_bound() -> None:
    test = one(
        "c1: 0s transaction expect none", 'test "x" of p with (steps = 2, least = 0.5, what = "y", wait = 1 min)'
    )
    assert test.pattern.within_ms == 60_000
    assert not test.pattern.params


@pytest.mark.parametrize(
    ("argument", "code"),
    [("steps = 9", "CEP504"), ("steps = 1.5", "CEP604"), ("what = y", "CEP604"), ("x = 1", "CEP501")],
)
def test_arguments_are_checked_where_they_stand(argument: str, code: str) -> None:
    checked = loaded("c1: 0s transaction expect none", f'test "x" of p with ({argument})')
    (diagnostic,) = checked.diagnostics
    assert diagnostic.code == code
    assert diagnostic.span is not None
    assert not checked.tests
    assert [t.name for t in checked.refused_tests] == ["x"]


def test_expected_values_are_typed() -> None:
    test = one("c1: 0s transaction expect match on c1 at 5m { n: 3, total: 4.5, mean: 1.50, first: 20s, online: true }")
    (expected,) = test.expected
    values = {v.name: (v.value, v.tolerance) for v in expected.values}
    assert values == {"n": (3, 0), "total": (450, 0), "mean": (1.5, 0.005), "first": (20_000, 0), "online": (True, 0)}


@pytest.mark.parametrize(
    ("expects", "codes"),
    [
        ("expect none on c1 expect match on c2", []),
        ("expect none on c1 expect match on c1", ["CEP602"]),
        ("expect none expect matches 2", ["CEP602"]),
        ("expect none expect matches 0", []),
        ("expect none expect timeout", ["CEP602"]),
        ("expect matches 2 on c1 expect matches 3", []),
        ("expect matches 2 on c1 expect match on c1 expect match on c1", []),
        ("expect none on c1 expect none on c2", []),
        ("expect none expect none", ["CEP602"]),
        ("", ["CEP602"]),
    ],
)
def test_contradictions(expects: str, codes: list[str]) -> None:
    checked = loaded(f"c1: 0s transaction c2: 0s transaction {expects}")
    assert [d.code for d in checked.diagnostics] == codes


def test_keys_that_are_no_single_text() -> None:
    checked = load_text(
        """
        event t { i id event_time time n int b bool s enum(on, off) payer string payee string }
        pattern by_n by n { seq v where v: t }
        pattern by_b by b { seq v where v: t }
        pattern by_s by s { seq v where v: t }
        pattern by_two by (payer, payee) { seq v where v: t }
        test "a" of by_n { 4711: 0s t expect none }
        test "b" of by_b { "true": 0s t expect none }
        test "c" of by_s { off: 0s t expect none }
        test "d" of by_two { p1: 0s t p2(payee = "z"): 0s t expect none }
        """
    )
    assert checked.ok, shown(checked)
    fields = [dict(e.fields) for test in checked.tests for e in test.events]
    assert [f["n"] for f in fields] == [4711, 0, 0, 0, 0]
    assert [f["b"] for f in fields] == [False, True, False, False, False]
    assert [f["s"] for f in fields] == [0, 0, 1, 0, 0]
    assert [(f["payer"], f["payee"]) for f in fields[3:]] == [("p1.payer", "p1.payee"), ("p2.payer", "z")]


def test_a_test_of_a_broken_pattern_is_refused_without_a_report_of_its_own() -> None:
    checked = load_text(EVENTS + 'pattern p by card { seq v }\ntest "x" of p { c1: 0s transaction expect none }')
    assert [d.code for d in checked.diagnostics] == ["CEP417"]
    assert [t.pattern for t in checked.refused_tests] == ["p"]


def test_tests_do_not_belong_to_the_rule(tmp_path: object) -> None:
    assert hasattr(tmp_path, "joinpath")
    path = tmp_path.joinpath("p.cep")
    path.write_text(EVENTS + 'pattern p by card_id { seq v }\ntest "x" of p { c1: 0s transaction expect none }\n# end')
    assert "test" not in bundle_source(path)
    assert "# end" in bundle_source(path)


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


@given(st.lists(st.sampled_from(WORDS), max_size=40), st.booleans())
@example(["c1", ":", "0s", "t", "x2", "every", "0s", "expect", "none", "}"], True)
@example(["c1", ":", "0s", "t", "expect", "match", "{", "at", ":", "5m", "}"], True)
@settings(deadline=None, max_examples=400)
def test_any_words(words: list[str], inside: bool) -> None:
    checked = load_text(FRAME + ('test "x" of p { ' if inside else "") + " ".join(words))
    rendered = render_text(checked.diagnostics, checked.sources, color=True)
    assert bool(rendered) == bool(checked.diagnostics)
    assert checked.ok or rendered
