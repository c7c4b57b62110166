"""Scenario → outcome with the known differences taken into account, and outcomes → a report.

Tested by: tests/conformance/test_conformance.py, tests/conformance/test_conformance.py
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tests.conformance.compare import Outcome, Verdict, is_bound, is_tie, run_scenario
from tests.conformance.differences import REASONS, known_differences
from tests.conformance.scenario import Bindings, Scenario
from tests.conformance.stages import flatten, groups_in

# Mistakes for which the language refuses a pattern that the peer accepts, by the number of the difference.
_REFUSALS = {"CEP401": 3, "CEP403": 7}
# How many bindings of one kind a diff shows; the rest of a long list adds no information.
_SHOWN_MAX = 8


def judge(scenario: Scenario) -> Outcome:
    """Run a scenario; a known disagreement or refusal is DIFFERS, with its numbers."""
    outcome = run_scenario(scenario)
    numbers: tuple[int, ...] = ()
    if outcome.verdict is Verdict.FAIL:
        numbers = known_differences(scenario, outcome.disagreement)
        if not numbers and is_tie(outcome):
            return replace(outcome, verdict=Verdict.PASS, reason="a skip tie: another choice of what starts alike")
        if not numbers and is_bound(outcome):
            return replace(outcome, verdict=Verdict.BOUND, reason="the engine limits the matches of one event")
    elif outcome.verdict is Verdict.UNSUPPORTED and outcome.code in _REFUSALS:
        numbers = (_REFUSALS[outcome.code],)
    elif outcome.verdict is Verdict.UNSUPPORTED and _is_greedy_and_any(scenario, outcome.code):
        numbers = (18,)
    elif outcome.verdict is Verdict.NO_ANSWER and scenario.skip.get("throw_on_miss"):
        numbers = (14,)
    return replace(outcome, verdict=Verdict.DIFFERS, numbers=numbers) if numbers else outcome


def _is_greedy_and_any(scenario: Scenario, code: str) -> bool:
    """Whether the language refuses the pattern because a loop would be greedy and of every combination."""
    heads = ((group, group["group"][0]) for group in groups_in(scenario.stages))
    by_group = any(group.get("inner") == "combinations" and head.get("greedy") for group, head in heads)
    stages = flatten(scenario.stages, scenario.within)
    return code == "CEP404" and (
        by_group or any(s.given.get("inner") == "combinations" and s.given.get("greedy") for s in stages)
    )


def is_clean(outcomes: Iterable[Outcome]) -> bool:
    """Whether every scenario passes, has known differences only, or cannot be compared."""
    return all(o.verdict in (Verdict.PASS, Verdict.DIFFERS, Verdict.BOUND, Verdict.NO_ANSWER) for o in outcomes)


def headline(outcome: Outcome) -> str:
    """Return one line: the verdict, the numbers of known differences, the name, the reason."""
    numbers = " " + ", ".join(f"#{n}" for n in outcome.numbers) if outcome.numbers else ""
    verdict = f"{outcome.verdict}{f' ({numbers.strip()})' if numbers else ''}"
    return f"{verdict:<14} {outcome.scenario.name}" + (f"  [{outcome.reason}]" if outcome.reason else "")


def difference_lines(outcome: Outcome) -> list[str]:
    """Return the answers that only one side has: `-` the peer alone, `+` we alone."""
    difference = outcome.disagreement
    lines = _some(f"- match     {_shown(m)}" for m in sorted(difference.missing))
    lines += _some(f"+ match     {_shown(m)}" for m in sorted(difference.extra))
    lines += _some(f"- time-out  {_shown(m)}  at {ms}" for m, ms in sorted(difference.missing_timeouts))
    lines += _some(f"+ time-out  {_shown(m)}  at {ms}" for m, ms in sorted(difference.extra_timeouts))
    lines += _some(f"~ match     {_shown(m)}  at {theirs} with the peer, {ours} here"
                   for m, theirs, ours in sorted(difference.times))  # fmt: skip
    return lines


def _some(lines: Iterable[str]) -> list[str]:
    shown = list(lines)
    more = len(shown) - _SHOWN_MAX
    return [*shown[:_SHOWN_MAX], f"  … and {more} more"] if more > 1 else shown


def _shown(bindings: Bindings) -> str:
    return "  ".join(f"{stage} {','.join(str(i) for i in ids)}" for stage, ids in bindings)


def event_line(scenario: Scenario) -> str:
    """Return the events in the order of arrival: `id@time key {values}`."""
    parts = []
    for event in scenario.events:
        values = " ".join(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
                          for name, value in event.values.items())  # fmt: skip
        parts.append(f"{event.id}@{event.time_ms} {event.key} {{{values}}}")
    return "; ".join(parts)


def summary(outcomes: Sequence[Outcome]) -> list[tuple[str, int]]:
    """Count the scenarios of each verdict, and the differing ones by number."""
    counts = Counter(o.verdict for o in outcomes)
    rows = [(verdict.value, counts[verdict]) for verdict in Verdict if counts[verdict]]
    by_number = Counter(o.numbers for o in outcomes if o.verdict is Verdict.DIFFERS)
    place = next((number for number, (name, _) in enumerate(rows, start=1) if name == Verdict.DIFFERS), 0)
    details = [
        ("  " + ", ".join(f"#{n} {REASONS[n]}" for n in numbers), count) for numbers, count in sorted(by_number.items())
    ]
    return [*rows[:place], *details, *rows[place:], ("scenarios", len(outcomes))]
