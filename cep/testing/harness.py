"""Pattern files → the outcome of their tests, by running the real engine; outcomes → text and JUnit XML.

The events of a test go through `advance` twice: all at once, and one by one with a watermark after each. Both must give
the same matches, otherwise the outcome is an error: a rule whose alerts depend on the delivery of events cannot be
tested. Text shows the expected and the actual matches, and the progress of each run:

    expected  match on c1 at 5 min { probes: 3 }
    got       match on c1 at 5 min { probes: 4, amount: 900.00 }
    c1        probe 0 s, 20 s, 40 s, 1 min → hit 5 min · match at 5 min

JUnit XML has one `testsuite` per pattern; a failure's text is the output of `cep test`. Known gaps count as skipped.
Tested by: tests/testing/test_harness.py, tests/cli/test_authoring.py
"""

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import numpy as np

from cep.base.errors import LimitError, UsageError
from cep.base.limits import TIME_MS_MAX
from cep.base.schema import Kind, Schema, Type
from cep.columnar.batch import EventBatch, empty_batch
from cep.columnar.order import rows_in_order
from cep.engine.advance import Matches, advance
from cep.engine.keyed_state import KeyedState
from cep.lang.diagnostics import Span, did_you_mean
from cep.lang.explain.render import lines_of
from cep.lang.ir import Expected, PatternTest, RefusedTest, Slot
from cep.lang.load import Checked, load_files
from cep.lang.show import END_OF_EVENTS, show_duration, show_value
from cep.lists.store import NO_LISTS, Lists
from cep.nfa.compile import compile_rules, problems
from cep.nfa.deployed import DeployedRule
from cep.nfa.lists import given_lists
from cep.nfa.program import Program
from cep.testing.events import batch_of, traced_events
from cep.testing.explain import Explainer
from cep.testing.journal import Coverage, Trace, TracedEvent, coverage_of
from cep.testing.trace import trace_key
from cep.testing.values import UnexplainedError


@dataclass(frozen=True, slots=True)
class ObservedMatch:
    """A match or a time-out: its key's text, the time when it was certain, its measures, and its events."""

    key: str
    at_ms: int
    is_timeout: bool
    values: tuple[tuple[str, Slot, Type], ...]
    bound: tuple[tuple[str, str], ...]  # variable and event id, in binding order


def observed_matches(program: Program, matches: Matches) -> set[ObservedMatch]:
    """Convert the matches and time-outs of a program with one rule to a set that tests can compare."""
    (rule,) = program.rules
    observed: set[ObservedMatch] = set()
    for row in range(len(matches)):
        span = range(int(matches.offsets[row]), int(matches.offsets[row + 1]))  # the events of the match
        bound = tuple(
            (rule.variables[int(matches.variable[number])], str(matches.event_id[number].as_py())) for number in span
        )
        key, at_ms = str(matches.keys[int(matches.key[row])].as_py()), int(matches.detected_ms[row])
        if matches.completed[row]:
            values = tuple((n, _value(matches, row, number, t), t) for number, (n, t) in enumerate(rule.measures))
            observed.add(ObservedMatch(key, at_ms, False, values, bound))
        if matches.timed_out[row]:
            timeout_measures = enumerate(rule.timeout_measures, start=len(rule.measures))  # after the measures
            values = tuple((n, _value(matches, row, number, t), t) for number, (n, t) in timeout_measures)
            observed.add(ObservedMatch(key, at_ms, True, values, bound))
    return observed


def _value(matches: Matches, row: int, number: int, type_: Type) -> Slot:
    if matches.measures_null[row, number]:
        return None
    slot: np.int64 = matches.measures[row, number]
    if type_.is_text:
        return str(matches.texts[int(slot)].as_py())
    if type_.is_float:
        value = float(slot.view(np.float64))
        return value if math.isfinite(value) else None  # as in an alert
    return bool(slot) if type_.kind is Kind.BOOL else int(slot)


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
    """An expectation without a match, and the match that comes `nearest` to it; or a match without an expectation."""

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
    """Run one test of a pattern, all events at once and one by one. Both must give the same matches, which are compared
    with the expected ones. Raises: nothing that the pattern or the test can cause."""
    started = time.perf_counter()
    reasons = problems(test.pattern, schema)
    if reasons:
        return Verdict(test, Outcome.BROKEN, (), (), {}, {}, "; ".join(reasons), time.perf_counter() - started)
    rule = DeployedRule("test", 1, 1, "test", test.pattern)
    program = replace(compile_rules(schema, test.pattern.key, (rule,)), lists=lists)
    batch = batch_of(schema, test.events, test.pattern.key, START_MS) if test.events else empty_batch(schema)
    at_once = _matches_of(program, [(batch, _END_MS)])
    singly = _matches_of(program, _one_by_one(schema, batch))
    labels = dict(zip(batch.key.to_pylist(), (event.key for event in test.events), strict=True))  # the test's names
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


def _differences(test: PatternTest, observed: tuple[ObservedMatch, ...], labels: dict[str, str]) -> list[Difference]:
    """List the differences between the observed and the expected matches. `labels`: the test's names of keys."""
    differences: list[Difference] = []
    for is_timeout in (False, True):
        expected = [e for e in test.expected if e.is_timeout == is_timeout]
        found_matches = [f for f in observed if f.is_timeout == is_timeout]
        pairs = _assigned(expected, found_matches, labels)  # numbers: from an expectation to its match
        unpaired = [f for number, f in enumerate(found_matches) if number not in pairs.values()]
        for number, expectation in enumerate(expected):
            if number not in pairs:
                nearest = min(unpaired, key=partial(misfit_count, expectation, labels=labels), default=None)
                differences.append(Difference(expectation, None, nearest))
        differences += _unexpected(test, unpaired, labels, is_timeout=is_timeout)
    for count in test.counts:
        matches = [f for f in observed if not f.is_timeout and count.key in (None, labels[f.key])]
        if len(matches) != count.count:
            on_key = "" if count.key is None else f" on {count.key}"
            note = f"expected {count.count} match{'' if count.count == 1 else 'es'}{on_key}, got {len(matches)}"
            differences.append(Difference(None, None, None, note))
    return differences


def _unexpected(
    test: PatternTest, unpaired: list[ObservedMatch], labels: dict[str, str], *, is_timeout: bool
) -> list[Difference]:
    """List matches that the test does not allow: any match of a key for which it expects none, a time-out if it expects
    others, and another match unless it counts the matches of the key. A key of None stands for all keys."""
    differences: list[Difference] = []
    wants_timeouts = any(e.is_timeout for e in test.expected)
    for match in unpaired:
        label = labels[match.key]
        forbidden = any(key in (None, label) for key in test.nothing)
        counted = any(count.key in (None, label) for count in test.counts)
        if forbidden or (wants_timeouts if is_timeout else not counted):
            differences.append(Difference(None, match))
    return differences


def _assigned(expected: list[Expected], observed: list[ObservedMatch], labels: dict[str, str]) -> dict[int, int]:
    """Assign to each expectation its own match, for as many as possible: augmenting paths (Kuhn, 1955)."""
    fits = [[n for n, match in enumerate(observed) if misfit_count(e, match, labels) == 0] for e in expected]
    owners: dict[int, int] = {}  # by the number of a match: the number of its expectation

    def assign(index: int, tried: set[int]) -> bool:
        for match_number in fits[index]:
            if match_number not in tried:
                tried.add(match_number)
                if match_number not in owners or assign(owners[match_number], tried):
                    owners[match_number] = index
                    return True
        return False

    for index in range(len(expected)):
        assign(index, set())
    return {index: n for n, index in owners.items()}


def misfit_count(expected: Expected, observed: ObservedMatch, labels: dict[str, str]) -> int:
    """Count the properties of a match that differ from the expectation. `labels`: the test's names of keys."""
    wrong = 2 * (expected.key not in (None, labels[observed.key]))  # twice: a match on the right key is nearer
    wrong += expected.at_ms is not None and START_MS + expected.at_ms != observed.at_ms
    values = {name: (value, type_) for name, value, type_ in observed.values}
    for expected_value in expected.values:
        value, type_ = values[expected_value.name]
        target = expected_value.value
        if type_.kind.value == "time" and isinstance(target, int):
            target += START_MS  # a test counts its times from its start
        if isinstance(value, float) and isinstance(target, float):
            # half a unit of the last digit, and the rounding error of the float
            wrong += abs(value - target) > expected_value.tolerance + 1e-12 * abs(target)
        else:
            wrong += value != target
    return wrong


@dataclass(frozen=True, slots=True)
class Suite:
    """The outcomes of the tests of some files. `refused` tests could not run: their text or pattern has mistakes."""

    checked: Checked
    tested: tuple[Verdict, ...]
    refused: tuple[RefusedTest, ...]

    def count(self, outcome: Outcome) -> int:
        """Count the tests with this outcome; refused tests are errors."""
        refused_count = len(self.refused) if outcome is Outcome.BROKEN else 0
        return refused_count + sum(t.outcome is outcome for t in self.tested)

    @property
    def total(self) -> int:
        return len(self.tested) + len(self.refused)

    @property
    def ok(self) -> bool:
        """True if the files have no mistake, no test failed or could not run, and there is at least one test."""
        bad = self.count(Outcome.FAILED) + self.count(Outcome.BROKEN)
        return self.checked.ok and bad == 0 and self.total > 0

    def coverage(self) -> list[Coverage]:
        """Return the coverage of each pattern, also of those without tests, by name."""
        traces = [(one.test.pattern.name, trace) for one in self.tested for trace in one.traces.values()]
        patterns = sorted(self.checked.patterns.items())
        return [coverage_of(pattern, (each for of, each in traces if of == name)) for name, pattern in patterns]


def run_suite(paths: Iterable[str | Path], only: str | None = None) -> Suite:
    """Check files together, with their imports, and run their tests. Raises: UsageError if no test is called `only`."""
    return run_checked(load_files(paths), only)


def run_checked(checked: Checked, only: str | None = None) -> Suite:
    """Run the tests of checked files. `only` is a test's name, a pattern's, or both (`card_testing: three declines`):
    without an exact match, every test with this text in its name. Raises: UsageError if no test matches."""
    tests, refused = checked.tests, checked.refused_tests
    if only is not None:
        every_test: list[PatternTest | RefusedTest] = [*tests, *refused]
        names = {_names(test)[0]: _names(test) for test in every_test}  # by the full name
        chosen = {full_name for full_name, aliases in names.items() if only in aliases}
        chosen = chosen or {full_name for full_name in names if only.casefold() in full_name.casefold()}
        if not chosen:
            every = [name for aliases in names.values() for name in aliases]
            raise UsageError(f"no test has `{only}` in its name; {did_you_mean(only, every) or 'there are no tests'}")
        tests = tuple(test for test in tests if _names(test)[0] in chosen)
        refused = tuple(test for test in refused if _names(test)[0] in chosen)
    lists = given_lists(checked).timelines()
    return Suite(checked, tuple(run_test(checked.schema, test, lists) for test in tests), refused)


def _names(test: PatternTest | RefusedTest) -> tuple[str, str, str]:
    """Return the names of a test: both, its own, its pattern's."""
    pattern = test.pattern.name if isinstance(test, PatternTest) else test.pattern
    return f"{pattern}: {test.name}", test.name, pattern


_MATCHES_SHOWN_MAX = 5


def clock(ms: int) -> str:
    """Show an event time as the time since the start of the test."""
    return END_OF_EVENTS if ms >= TIME_MS_MAX else show_duration(ms - START_MS)


def difference_lines(tested: Verdict) -> list[tuple[str, str]]:
    """List the differences as pairs of a title and a line."""
    return [line for difference in tested.differences for line in _difference(difference, tested)]


def story_lines(tested: Verdict) -> list[tuple[str, str]]:
    """Return the progress of each key's runs and the reasons for their end: pairs of the key's label and a line."""
    return [
        ("" if number else label, line)
        for label, trace in tested.traces.items()
        for number, line in enumerate(Explainer(trace, clock).lines())
    ]


def verdict_lines(tested: Verdict) -> list[str]:
    """Describe the result of a test; for a failure, the actual matches and the progress of runs."""
    lines = [f"{tested.outcome.value.upper():<5} {tested.test.name}"]
    if tested.outcome is Outcome.FAILED:
        lines += [
            f"      {title:<10}{line}".rstrip() for title, line in (*difference_lines(tested), *story_lines(tested))
        ]
    if tested.error and tested.outcome in (Outcome.BROKEN, Outcome.FAILED):
        lines.append(f"      {tested.error}")
    return lines


def _difference(difference: Difference, tested: Verdict) -> Iterable[tuple[str, str]]:
    """Yield (label, text) lines that show a difference: what was expected, and what came."""
    if difference.note:  # the number of matches is wrong, so show some; time-outs do not count
        yield "", difference.note
        for one in [f for f in tested.matches if not f.is_timeout][:_MATCHES_SHOWN_MAX]:
            yield "got", shown_matches(one, tested)
    elif difference.expected is not None:
        yield "expected", shown_expected(difference.expected)
        nearest = difference.nearest
        yield "got", "nothing" if nearest is None else shown_matches(nearest, tested)
    elif difference.got is not None:
        if any(other.nearest == difference.got for other in tested.differences):
            return  # it is shown next to the most similar expectation
        yield "expected", "nothing more" if tested.test.expected else "nothing"
        yield "got", shown_matches(difference.got, tested)


def shown_expected(expected: Expected) -> str:
    """Show an expectation as it could have been written."""
    parts = ["timeout" if expected.is_timeout else "match"]
    if expected.key is not None:
        parts.append(f"on {expected.key}")
    if expected.at_ms is not None:
        parts.append(f"at {show_duration(expected.at_ms)}")
    values = [f"{v.name}: {_shown(v.value, v.type, since=0)}" for v in expected.values]
    return " ".join(parts) + _braces(values)


def shown_matches(match: ObservedMatch, tested: Verdict) -> str:
    """Show a match as its expectation would be written."""
    kind = "timeout" if match.is_timeout else "match"
    values = [f"{name}: {_shown(value, type_, since=START_MS)}" for name, value, type_ in match.values]
    return f"{kind} on {tested.labels[match.key]} at {clock(match.at_ms)}{_braces(values)}"


def _braces(values: list[str]) -> str:
    return f" {{ {', '.join(values)} }}" if values else ""


def _shown(value: Slot, type_: Type, since: int) -> str:
    if type_.kind is Kind.TIME and isinstance(value, int):
        return show_duration(value - since)
    return show_value(value, type_)


def junit_xml(suite: Suite) -> bytes:
    """Write the outcomes of tests as a JUnit XML document, UTF-8."""
    root = Element("testsuites", {"name": "cep test", **_counts(suite.tested, len(suite.refused))})
    names = dict.fromkeys([*(t.test.pattern.name for t in suite.tested), *(r.pattern for r in suite.refused)])
    for name in names:
        tested = [t for t in suite.tested if t.test.pattern.name == name]
        refused = [r for r in suite.refused if r.pattern == name]
        group = SubElement(root, "testsuite", {"name": _clean(name), **_counts(tested, len(refused))})
        pattern = suite.checked.resolved.patterns.get(name)
        if pattern is not None and pattern.doc:
            about = {"name": "description", "value": _clean(" ".join(pattern.doc.split()))}
            SubElement(SubElement(group, "properties"), "property", about)
        for one in tested:
            _outcome(_case(group, suite, one.test.name, name, one.test.span, one.seconds), one)
        for test in refused:
            case = _case(group, suite, test.name, name, test.span, 0.0)
            SubElement(case, "error", message="the test or its pattern has mistakes; see `cep check`")
    indent(root)
    return bytes(tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _case(group: Element, suite: Suite, name: str, pattern: str, span: Span, seconds: float) -> Element:
    line, _ = lines_of(suite.checked.sources.get(span.file, "")).position(span.start)
    names = {"name": _clean(name), "classname": _clean(pattern), "file": _clean(span.file)}
    return SubElement(group, "testcase", {**names, "line": str(line), "time": f"{seconds:.3f}"})


def _outcome(case: Element, tested: Verdict) -> None:
    if tested.outcome is Outcome.BROKEN:
        SubElement(case, "error", message=_clean(tested.error))
    elif tested.outcome is Outcome.GAP:
        SubElement(case, "skipped", message=_clean(tested.test.todo or "a known gap"))
    elif tested.outcome is Outcome.FAILED:
        lines = difference_lines(tested)
        message = "; ".join(f"{title} {line}".strip() for title, line in lines)
        failure = SubElement(case, "failure", message=_clean(message))
        failure.text = _clean("\n".join(f"{title:<10}{line}" for title, line in (*lines, *story_lines(tested))))


def _counts(tested: Sequence[Verdict], refused_count: int) -> dict[str, str]:
    """Return the attributes of a test suite that count outcomes."""
    outcomes = Counter(one.outcome for one in tested)
    return {
        "tests": str(len(tested) + refused_count),
        "failures": str(outcomes[Outcome.FAILED]),
        "errors": str(outcomes[Outcome.BROKEN] + refused_count),
        "skipped": str(outcomes[Outcome.GAP]),
        "time": f"{sum(one.seconds for one in tested):.3f}",
    }


def _clean(text: str) -> str:
    """Text without the characters that XML cannot hold."""
    return "".join(c if c in "\t\n" or c.isprintable() else "?" for c in text)
