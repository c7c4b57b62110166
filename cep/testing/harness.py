"""A checked test → its outcome, by running the real engine on its events.

The events go through `advance` twice: all at once, and one by one with a watermark after each. Both must give the same
matches, otherwise the outcome is an error: a rule whose alerts depend on the delivery of events cannot be tested.
Tested by: tests/testing/test_harness.py
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from cep.base.errors import LimitError
from cep.base.limits import TIME_MS_MAX
from cep.base.schema import Schema
from cep.columnar.batch import EventBatch, empty_batch
from cep.columnar.order import rows_in_order
from cep.engine.advance import advance
from cep.engine.keyed_state import KeyedState
from cep.lang.ir_tests import Expected, PatternTest
from cep.lists.timeline import NO_LISTS, Lists
from cep.nfa.compile import compile_rules, problems
from cep.nfa.deployed import DeployedRule
from cep.nfa.program import Program
from cep.testing.events import batch_of, traced_events
from cep.testing.journal import Trace, TracedEvent
from cep.testing.matches import ObservedMatch, observed_matches
from cep.testing.trace import trace_key
from cep.testing.values import UnexplainedError

# 2024-01-01T00:00:00Z, a Monday: the time 0 of every test.
START_MS = 1_704_067_200_000
_END_MS = TIME_MS_MAX
# Calls of the engine for one test; each costs about a millisecond.
_DELIVERIES_MAX = 500


class Outcome(StrEnum):
    """The result of a test. GAP: it is marked `todo`, so a mismatch is reported but is not a failure."""

    PASSED = "pass"
    FAILED = "fail"
    BROKEN = "error"
    GAP = "todo"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as expected: an expectation without a match, or a match without an expectation.

    `nearest` is the match that comes closest to an expectation that was not met.
    """

    expected: Expected | None
    got: ObservedMatch | None
    nearest: ObservedMatch | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A test that has been carried out. `traces` has one per label of a key, in the order of the test."""

    test: PatternTest
    outcome: Outcome
    matches: tuple[ObservedMatch, ...]
    differences: tuple[Difference, ...]
    labels: dict[str, str]
    traces: dict[str, Trace]
    error: str
    seconds: float


def run_test(schema: Schema, test: PatternTest, lists: Lists = NO_LISTS) -> Verdict:
    """Run one test of a pattern, all events at once and one by one, and compare the matches with the expected ones.

    Raises: nothing that the pattern or the test can cause.
    """
    started = time.perf_counter()
    reasons = problems(test.pattern, schema)
    if reasons:
        return Verdict(test, Outcome.BROKEN, (), (), {}, {}, "; ".join(reasons), time.perf_counter() - started)
    rule = DeployedRule("test", 1, 1, "test", test.pattern)
    program = replace(compile_rules(schema, test.pattern.key, (rule,)), lists=lists)
    batch = batch_of(schema, test.events, test.pattern.key, START_MS) if test.events else empty_batch(schema)
    at_once = _matches_of(program, [(batch, _END_MS)])
    singly = _matches_of(program, _one_by_one(schema, batch))
    labels = dict(zip(batch.key.to_pylist(), (event.key for event in test.events), strict=True))
    traces, error = _traces(test, traced_events(schema, test.pattern, batch, lists=lists), labels)
    ordered = tuple(sorted(at_once, key=lambda f: (f.at_ms, f.key, f.bound)))
    if at_once != singly:
        error = f"the engine finds {len(at_once)} at once and {len(singly)} event by event; please report this pattern"
        return Verdict(test, Outcome.BROKEN, ordered, (), labels, traces, error, time.perf_counter() - started)
    differences = tuple(_differences(test, ordered, labels))
    outcome = Outcome.GAP if test.todo is not None else Outcome.FAILED if differences else Outcome.PASSED
    return Verdict(test, outcome, ordered, differences, labels, traces, error, time.perf_counter() - started)


def _one_by_one(schema: Schema, batch: EventBatch) -> list[tuple[EventBatch, int]]:
    """Each event alone (of very many, a few together), in the engine's order."""
    order = rows_in_order(batch).tolist()
    size = 1 + len(batch) // _DELIVERIES_MAX
    parts = [order[first : first + size] for first in range(0, len(order), size)]
    singles = [(batch.take(np.array(rows)), int(batch.time_ms[rows[-1]])) for rows in parts]
    return [*singles, (empty_batch(schema), _END_MS)]


def _matches_of(program: Program, deliveries: Iterable[tuple[EventBatch, int]]) -> set[ObservedMatch]:
    keyed_state: KeyedState | None = None
    matches: set[ObservedMatch] = set()
    for batch, watermark_ms in deliveries:
        advanced = advance(program, keyed_state, batch, watermark_ms)
        keyed_state = advanced.keyed_state
        matches |= observed_matches(program, advanced.matches)
    return matches


def _traces(
    test: PatternTest, events_of_key: Mapping[str, tuple[TracedEvent, ...]], labels: dict[str, str]
) -> tuple[dict[str, Trace], str]:
    """Trace each key. Return the traces, and why one is left out because it is too long to read."""
    traces: dict[str, Trace] = {}
    for key, events in events_of_key.items():
        try:
            traces[labels[key]] = trace_key(test.pattern, events)
        except (LimitError, UnexplainedError) as error:
            return traces, f"{labels[key]} is not explained: {error}"
    return {label: traces[label] for label in dict.fromkeys(labels.values())}, ""


# -------------------------------------------------------------------------------------------------- comparison


def _differences(test: PatternTest, observed: tuple[ObservedMatch, ...], labels: dict[str, str]) -> list[Difference]:
    """Compare the matches with the expectations of a test: missing, unexpected and miscounted ones."""
    differences: list[Difference] = []
    for is_timeout in (False, True):
        expected = [e for e in test.expected if e.is_timeout == is_timeout]
        found_matches = [f for f in observed if f.is_timeout == is_timeout]
        pairs = _assigned(expected, found_matches, labels)
        unpaired = [f for n, f in enumerate(found_matches) if n not in pairs.values()]
        for n, one in enumerate(expected):
            if n not in pairs:
                differences.append(Difference(one, None, _nearest(one, unpaired, labels)))
        differences += _unexpected(test, unpaired, labels, is_timeout=is_timeout)
    for count in test.counts:
        matches = [f for f in observed if not f.is_timeout and count.key in (None, labels[f.key])]
        if len(matches) != count.count:
            on = "" if count.key is None else f" on {count.key}"
            note = f"expected {count.count} match{'' if count.count == 1 else 'es'}{on}, got {len(matches)}"
            differences.append(Difference(None, None, None, note))
    return differences


def _unexpected(
    test: PatternTest, unpaired: list[ObservedMatch], labels: dict[str, str], *, is_timeout: bool
) -> list[Difference]:
    """List the matches that no expectation of the test allows."""
    differences: list[Difference] = []
    wants_timeouts = any(e.is_timeout for e in test.expected)
    for one in unpaired:
        label = labels[one.key]
        forbidden = any(key in (None, label) for key in test.nothing)
        counted = any(count.key in (None, label) for count in test.counts)
        if forbidden or (wants_timeouts if is_timeout else not counted):
            differences.append(Difference(None, one))
    return differences


def _assigned(expected: list[Expected], observed: list[ObservedMatch], labels: dict[str, str]) -> dict[int, int]:
    """Assign to each expectation its own match, for as many as possible: augmenting paths (Kuhn, 1955)."""
    fits = [[n for n, one in enumerate(observed) if fitting(e, one, labels) == 0] for e in expected]
    owner: dict[int, int] = {}

    def place(index: int, tried: set[int]) -> bool:
        for position in fits[index]:
            if position not in tried:
                tried.add(position)
                if position not in owner or place(owner[position], tried):
                    owner[position] = index
                    return True
        return False

    for index in range(len(expected)):
        place(index, set())
    return {index: n for n, index in owner.items()}


def fitting(expected: Expected, observed: ObservedMatch, labels: dict[str, str]) -> int:
    """Count the properties of a match that differ from an expectation; 0 is a fit."""
    wrong = 2 * (expected.key not in (None, labels[observed.key]))
    wrong += expected.at_ms is not None and START_MS + expected.at_ms != observed.at_ms
    values = {name: (value, type_) for name, value, type_ in observed.values}
    for expected_value in expected.values:
        value, type_ = values[expected_value.name]
        target = expected_value.value
        if type_.kind.value == "time" and isinstance(target, int):
            target += START_MS
        if isinstance(value, float) and isinstance(target, float):
            # half a unit of the last digit, and the rounding error of the float
            wrong += abs(value - target) > expected_value.tolerance + 1e-12 * abs(target)
        else:
            wrong += value != target
    return wrong


def _nearest(expected: Expected, candidates: list[ObservedMatch], labels: dict[str, str]) -> ObservedMatch | None:
    return min(candidates, key=lambda one: fitting(expected, one, labels), default=None)
