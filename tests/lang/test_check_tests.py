"""Checked tests: complete events, keys from labels, typed expectations."""

from __future__ import annotations

import pytest

from cep.lang.ir_tests import PatternTest
from cep.lang.load import Checked, bundle_source, load_text
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
