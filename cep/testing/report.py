"""Outcomes of tests → text: the expected and the actual matches, and the progress of each run.

    expected  match on c1 at 5 min { probes: 3 }
    got       match on c1 at 5 min { probes: 4, amount: 900.00 }
    c1        probe 0 s, 20 s, 40 s, 1 min → hit 5 min · match at 5 min

Tested by: tests/cli/test_authoring.py, tests/testing/test_harness.py
"""

from __future__ import annotations

from collections.abc import Iterable

from cep.base.limits import TIME_MS_MAX
from cep.base.schema import Kind, Type
from cep.lang.ir_tests import Expected, Slot
from cep.lang.show import END_OF_EVENTS, show_duration, show_value
from cep.testing.explain import Explainer
from cep.testing.harness import START_MS, Difference, Outcome, Verdict
from cep.testing.matches import ObservedMatch

_MATCHES_SHOWN_MAX = 5


def clock(ms: int) -> str:
    """Show an event time as the time since the start of the test."""
    return END_OF_EVENTS if ms >= TIME_MS_MAX else show_duration(ms - START_MS)


def difference_lines(tested: Verdict) -> list[tuple[str, str]]:
    """List the differences as pairs of a title and a line."""
    lines: list[tuple[str, str]] = []
    for difference in tested.differences:
        lines += _difference(difference, tested)
    return lines


def story_lines(tested: Verdict) -> list[tuple[str, str]]:
    """Return the progress of each key's runs and the reasons for their end: pairs of the key's label and a line."""
    lines: list[tuple[str, str]] = []
    for label, trace in tested.traces.items():
        for number, line in enumerate(Explainer(trace, clock).lines()):
            lines.append(("" if number else label, line))
    return lines


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
    if difference.note:
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
