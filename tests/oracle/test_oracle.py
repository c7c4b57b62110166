"""The oracle on the answers of Apache Flink CEP. The corpus (tests/corpus) has cases with answers by hand."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from cep.base.schema import Kind, Type
from cep.lang.diagnostics import Collector
from cep.lang.ir import Binary, Call, Const, CurrentField
from tests.conformance.compare import disagreement
from tests.conformance.differences import known_differences
from tests.conformance.run import _checked, check_pattern
from tests.conformance.scenario import Scenario
from tests.conformance.shared_differences import DIFFERENCES
from tests.conformance.structure import pattern_text
from tests.conformance.test_conformance import SCENARIOS
from tests.fuzz.examine import oracle_answer
from tests.oracle.expressions import evaluate
from tests.oracle.matcher import find_matches
from tests.oracle.random_cases import random_case


@contextmanager
def without_refusals() -> Iterator[None]:
    """Accept an absence that is never certain: the oracle has an answer for it."""
    add = Collector.add

    def add_others(self: Collector, code: str, *rest: Any) -> None:
        if code != "CEP401":
            add(self, code, *rest)

    with patch.object(Collector, "add", add_others):
        yield
    _checked.cache_clear()


@pytest.mark.parametrize("scenario", [one for one in SCENARIOS if one.expected], ids=lambda scenario: scenario.name)
def test_conformance(scenario: Scenario) -> None:
    """The language differs from Flink on purpose in some scenarios, and the oracle in the same ones."""
    with without_refusals():
        subject = check_pattern(pattern_text(scenario))
    assert scenario.expected is not None
    difference = disagreement(scenario, subject, scenario.expected, oracle_answer(subject, scenario), oracle_answer)
    numbers = DIFFERENCES.get(scenario.name, ())
    assert bool(difference) is bool(numbers)
    assert not numbers or known_differences(scenario, difference) == numbers


# ------------------------------------------------------------------------------------------------ expressions

INT = Type(Kind.INT, nullable=True)
BOOL = Type(Kind.BOOL, nullable=True)
V = CurrentField("v", INT)


def test_null_is_unknown() -> None:
    null, true, false = (Const(value, BOOL) for value in (None, True, False))
    assert evaluate(Binary("and", null, false, BOOL), {}, {}) is False
    assert evaluate(Binary("or", null, true, BOOL), {}, {}) is True
    assert evaluate(Binary("and", null, true, BOOL), {}, {}) is None
    assert evaluate(Binary("/", Const(1, INT), Const(0, INT), INT), {}, {}) is None
    assert evaluate(Binary("<", V, Const(1, INT), BOOL), {"v": None}, {}) is None


def test_distance() -> None:
    number = Type(Kind.FLOAT)
    paris_london = tuple(Const(x, number) for x in (48.8566, 2.3522, 51.5074, -0.1278))
    km = evaluate(Call("distance_km", paris_london, number), {}, {})
    assert isinstance(km, float)
    assert math.isclose(km, 343.6, abs_tol=0.5)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_random_cases_run_and_repeat_themselves(level: int) -> None:
    found_any = 0
    for seed in range(40):
        case, again = random_case(seed, level), random_case(seed, level)
        assert case == again
        for key_events in case.events.values():
            found_any += len(find_matches(case.pattern, key_events).matches)
    assert found_any > 40
