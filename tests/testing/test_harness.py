"""Tests of patterns: outcomes, the report of a failure, coverage, and past events."""

import pytest

from cep.lang.load import load_text
from cep.nfa.lists import given_lists
from cep.testing import trace
from cep.testing.explain import Explainer
from cep.testing.harness import Outcome, difference_lines, run_test
from cep.testing.journal import Coverage, coverage_of
from tests.testing.common import checked, verdict_of

# Outcomes of tests: the matches that count as expected, and the report of a failure.

PAIR = """seq a -> b within 5 min
  where a: pay amount < 10  b: pay amount > 100
  emit total = a.amount + b.amount, gone = b.event_time - a.event_time, at = b.event_time, km = b.km, kind = b.kind,
       note = b.note, ok = b.ok, small = a.amount < 5"""
EVENTS = "c1: 0s pay amount=1.50  1m pay amount=200 km=12.3456 kind=web  c2: 2m pay amount=2  3m pay amount=300 ok=true"


@pytest.mark.parametrize(
    "expects",
    [
        "expect match on c1 at 1m expect match on c2 at 3m",
        "expect match expect match",
        "expect match on c2 expect match",
        "expect match expect match on c2",  # the first must not take the match of the second
        "expect matches 2",
        "expect matches 2 expect match on c1 at 1m",
        "expect matches 1 on c1 expect matches 1 on c2",
        "expect matches 1 on c1 expect match on c2",
        """expect match on c1 { total: 201.50, gone: 1 min, at: 1m, km: 12.35, kind: web, note: null, ok: false,
                                small: true }
           expect match on c2""",
        "expect match on c1 { km: 12.3 } expect match on c2 { km: 0 }",
    ],
)
def test_passes(expects: str) -> None:
    verdict = verdict_of(PAIR, f"{EVENTS} {expects}")
    assert verdict.differences == ()
    assert verdict.outcome is Outcome.PASSED


STRICT = "seq a, b where a: pay amount < 10  b: pay amount > 100"
HUGE = " * ".join(["a.km"] * 22)  # beyond the largest float
NO_NUMBER = f"seq a where a: pay km > 1.0 emit y = {HUGE} - {HUGE}"
OTHER_TYPE = "c1: 0s pay amount=1  1s login  2s pay amount=200"
ABSENCE = "seq a -> !b within 5 min where a: pay ok == true  b: pay ok == false"


@pytest.mark.parametrize(
    ("pattern", "script"),
    [
        pytest.param(PAIR, "c1: 0s pay amount=1.50  1m pay amount=null expect none", id="an unreadable value is null"),
        pytest.param(PAIR, "c1: 0s pay amount=1.50  1m pay amount=200 expect matches 1", id="a readable value"),
        pytest.param(ABSENCE, "c1: 0s pay ok=true expect match on c1 at 5m", id="an absence, when its window closes"),
        pytest.param(ABSENCE, "c1: 0s pay ok=true 299s pay expect none", id="an absence, before"),
        pytest.param(ABSENCE, "c1: 0s pay ok=true 300s pay expect match on c1 at 5m", id="an absence, at its end"),
        pytest.param(
            NO_NUMBER,
            "c1: 0s pay km=1000000000000000.0 expect match on c1 { y: null }",
            id="a measure that is no number, as alerts",
        ),
        pytest.param(STRICT, f"{OTHER_TYPE} expect match", id="events of types that the pattern does not read"),
        pytest.param(f"{STRICT} over all", f"{OTHER_TYPE} expect none", id="events of types that it reads"),
        pytest.param(PAIR, "c1: 0s pay amount=1  0s pay amount=200 expect match", id="one time, as written"),
        pytest.param(PAIR, "c1: 0s pay amount=200  0s pay amount=1 expect none", id="one time, as written, no match"),
        pytest.param(PAIR, 'c1: 0s pay id="b" amount=1  0s pay id="a" amount=200 expect match', id="one time, any ids"),
        pytest.param(PAIR, "expect none", id="no events"),
    ],
)
def test_other_patterns_and_events_pass(pattern: str, script: str) -> None:
    assert verdict_of(pattern, script).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("expects", "lines"),
    [
        (
            "expect match on c1",
            ["expected nothing more", "got match on c2 at 3 min { total: 302.00, gone: 1 min, at: 3 min, "],
        ),
        ("expect match on c1 at 2m expect match on c2", ["expected match on c1 at 2 min", "got match on c1 at 1 min"]),
        (
            "expect match on c1 { km: 12.34 } expect match on c2",
            ["expected match on c1 { km: 12.34 }", "got match on c1"],
        ),
        ("expect match on c1 expect match on c1 expect match on c2", ["expected match on c1", "got nothing"]),
        ("expect matches 3", [" expected 3 matches, got 2", "got match on c1", "got match on c2"]),
        ("expect matches 1", [" expected 1 match, got 2", "got match on c1", "got match on c2"]),
        ("expect matches 2 on c1 expect matches 2", [" expected 2 matches on c1, got 1", "got match", "got match"]),
        ("expect none on c1 expect match on c2", ["expected nothing more", "got match on c1"]),
        ("expect none", ["expected nothing", "got match on c1", "expected nothing", "got match on c2"]),
    ],
)
def test_fails(expects: str, lines: list[str]) -> None:
    verdict = verdict_of(PAIR, f"{EVENTS} {expects}")
    assert verdict.outcome is Outcome.FAILED
    printed = [f"{title} {line}" for title, line in difference_lines(verdict)]
    assert len(printed) == len(lines)
    assert all(line.startswith(start) for line, start in zip(printed, lines, strict=True)), printed


def test_time_outs_are_compared_if_one_is_expected_or_nothing_may_come() -> None:
    pattern = PAIR + " on timeout emit first = a.amount"
    events = "c1: 0s pay amount=1  c2: 1m pay amount=2"
    assert verdict_of(pattern, f"{events} expect matches 0").outcome is Outcome.PASSED
    assert verdict_of(pattern, f"{events} expect timeout on c1 at 5m expect timeout on c2").outcome is Outcome.PASSED
    verdict = verdict_of(pattern, f"{events} expect timeout on c1 at 6m")
    lines = [f"{title} {line}" for title, line in difference_lines(verdict)]
    assert lines == [
        "expected timeout on c1 at 6 min", "got timeout on c1 at 5 min { first: 1.00 }", "expected nothing more",
        "got timeout on c2 at 6 min { first: 2.00 }",
    ]  # fmt: skip
    assert verdict_of(pattern, f"{events} expect none").outcome is Outcome.FAILED


def test_a_time_out_has_values_of_its_own() -> None:
    """A time-out's measures may have names of the match's measures or others. An unbound variable gives null."""
    pattern = (
        "seq a -> b -> c within 5 min where a: pay amount < 3  b: pay  c: pay emit n = count(c) "
        "on timeout emit n = a.amount * 2, later = b.amount, k = a.card"
    )
    events = "c1: 0s pay amount=1  c2: 1m pay amount=2  2m pay amount=3"
    expects = (
        'expect timeout on c1 at 5m { n: 2.00, later: null, k: "c1" } expect timeout on c2 { n: 4.00, later: 3.00 }'
    )
    assert verdict_of(pattern, f"{events} {expects}").outcome is Outcome.PASSED
    verdict = verdict_of(pattern, f"{events} expect timeout on c1 {{ n: 2.01 }} expect timeout on c2 {{ later: 3.00 }}")
    lines = [f"{title} {line}" for title, line in difference_lines(verdict)]
    assert lines == [
        "expected timeout on c1 { n: 2.01 }", 'got timeout on c1 at 5 min { n: 2.00, later: null, k: "c1" }',
    ]  # fmt: skip


def test_a_known_gap_fails_nothing_and_says_when_it_passes() -> None:
    assert verdict_of(PAIR, f"{EVENTS} todo expect none").outcome is Outcome.GAP
    verdict = verdict_of(PAIR, f'{EVENTS} todo "why" expect matches 2')
    assert (verdict.outcome, verdict.differences) == (Outcome.GAP, ())


def test_keys_of_several_fields() -> None:
    text = """
    pattern p by (card, device) { seq a{2} where a: login emit n = count(a) }
    test "t" of p {
      a: 0s login  5s login
      b(card = "x", device = "y"): 0s login
      c(card = "x", device = "z"): 1s login
      expect match on a at 5s
    }"""
    loaded = checked(text)
    assert run_test(loaded.schema, loaded.tests[0]).outcome is Outcome.PASSED


def test_a_pattern_that_does_not_become_an_automaton_is_an_error() -> None:
    verdict = verdict_of("seq (a -> b){600} where a: pay  b: pay", "c1: 0s pay expect none")
    assert verdict.outcome is Outcome.BROKEN
    assert "NFA states" in verdict.error


def test_a_key_with_too_many_steps_is_tested_but_not_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "TRACE_STEPS_MAX", 5_000)
    events = "c1: 0s pay amount=1 x150 every 1s expect none"
    verdict = verdict_of("seq a ->> b ->> c where a: pay  b: pay  c: pay ok == true", events)
    assert verdict.outcome is Outcome.PASSED
    assert verdict.error.startswith("c1 is not explained: steps of a trace")


LISTED = """
list blocked: string = ["c1"]
pattern p(watch: list of string = blocked) by card { seq x  where x: pay  card in watch }
test "in the list" of p { c1: 0s pay  expect match on c1 }
test "in no list" of p { c2: 0s pay  expect none }
test "another list" of p with (watch = nobody) { c1: 0s pay  expect none }
"""


def test_a_test_sees_the_lists_of_its_file() -> None:
    loaded = checked(LISTED)
    verdicts = [run_test(loaded.schema, test, given_lists(loaded).timelines()) for test in loaded.tests]
    assert [(verdict.outcome, verdict.error) for verdict in verdicts] == [(Outcome.PASSED, "")] * 3


# Coverage of tests: NFA states, transitions, and both outcomes of each condition.

PATTERN = """
pattern p(n: int = 2) by card {
  seq a{n} -> (b | c) -> !d within 5 min
  where a: pay amount < 10 and ok == true
        b: pay amount > 100
        c: login
        d: pay ok == false
}
"""


def coverage(*scripts: str) -> Coverage:
    loaded = checked(PATTERN + "\n".join(f'test "{n}" of p {script}' for n, script in enumerate(scripts)))
    tested = [run_test(loaded.schema, test) for test in loaded.tests]
    return coverage_of(loaded.patterns["p"], (trace for t in tested for trace in t.traces.values()))


def test_without_tests_there_is_nothing() -> None:
    covered = coverage_of(checked(PATTERN).patterns["p"], ())
    assert (covered.states.counts, covered.transitions.counts, covered.outcomes.counts) == ((0, 0), (0, 0), (0, 0))


def test_what_no_test_reached_is_named() -> None:
    covered = coverage("{ c1: 0s pay amount=1 ok=true  1s pay amount=50 ok=true  expect none }")
    assert covered.states.missing() == ["b", "c"]
    assert covered.transitions.missing() == [
        "a -> a", "a -> b", "a -> c", "b -> !d until the time is up", "c -> !d until the time is up",
    ]  # fmt: skip
    assert covered.outcomes.missing() == [
        "a: ok == true is not true", "b: amount > 100.00 is true", "b: amount > 100.00 is not true",
        "d: ok == false is true", "d: ok == false is not true",
    ]  # fmt: skip


def test_several_tests_add_up_also_with_other_parameters() -> None:
    covered = coverage(
        "{ c1: 0s pay amount=1 ok=true x2 every 1s  5s pay amount=200 ok=true  6s pay amount=9 ok=true  expect match }",
        "with (n = 1) { c1: 0s pay amount=1 ok=true  5s login  expect match }",
        "{ c1: 0s pay amount=1 ok=true x2 every 1s  5s pay amount=50  6s login  7s pay  expect none }",
    )
    assert covered.states.missing() == []
    assert covered.transitions.missing() == []
    assert covered.outcomes.missing() == []


LOOPS = """
pattern loops by card {
  seq (a+ until (ok == true) -> c)+ until (amount > 5) -> b within 5 min
  where a: pay amount < 10
        b: pay amount > 100
        c: login
}
test "a large payment ends both loops" of loops { c1: 0s pay amount=1  1m pay amount=7 ok=false  expect none }
"""


def test_each_until_around_a_variable_is_a_condition() -> None:
    loaded = checked(LOOPS)
    traces = run_test(loaded.schema, loaded.tests[0]).traces.values()
    outcomes = coverage_of(loaded.patterns["loops"], traces).outcomes
    untils = [name for name in outcomes.missing() if name.startswith("until")]
    assert untils == ["until a: ok == true is true", "until c: amount > 5.00 is not true"]


# A test of a pattern that reads past events: the events that fire, and a report about one that does not.

TEXT = """
event pay { id id  event_time time  card string  amount decimal(2)  shop string }
pattern unusual by card {
  seq    a
  where  a: pay  amount > 3 * avg(pay.amount over previous 30 d) and first_seen(shop) < 1 min
                 and count(pay over 1 h) < 5
  emit   amount = a.amount
}
test "far above what is usual, in a new shop" of unusual {
  c1:  0s  pay amount=10 shop="a"
       1d  pay amount=20 shop="a"
       2d  pay amount=46 shop="b"
  c2:  2d  pay amount=46 shop="a"
  expect match on c1 at 2d { amount: 46.00 }
}
test "the shop is known" of unusual {
  c1:  0s  pay amount=10 shop="a"
       2d  pay amount=90 shop="a"
  expect match on c1 at 2d
}
"""


def test_past_events_in_a_test_of_a_pattern() -> None:
    checked = load_text(TEXT)
    assert checked.ok, [d.message for d in checked.diagnostics]
    first, second = (run_test(checked.schema, test) for test in checked.tests)
    assert first.outcome is Outcome.PASSED, first.error
    assert first.error == ""
    assert second.outcome is Outcome.FAILED
    assert second.error == ""
    lines = "\n".join(Explainer(second.traces["c1"], str).not_started())
    assert "first_seen(shop) = 2 d" in lines
