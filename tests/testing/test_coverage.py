"""Coverage of tests: NFA states, transitions, and both outcomes of each condition."""

from __future__ import annotations

from cep.testing.coverage import Coverage, coverage_of
from cep.testing.harness import run_test
from tests.testing.common import checked

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
