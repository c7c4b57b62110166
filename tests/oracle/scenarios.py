"""A conformance scenario (JSON) → pattern, events by key → does the oracle answer as the scenario expects?

The scenarios speak of stages, builder calls and doubles; here they become a PatternIR over one event type, a FLOAT or
STRING field per name, and the language's own links and quantifiers. Late events are left out and the others sorted, as
in a job before matching. A builder call without a counterpart in the language raises `UntranslatableError`.
Tested by: tests/oracle/test_oracle.py
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cep.base.schema import Kind, Type
from cep.lang import ir
from tests.oracle.expressions import Value
from tests.oracle.matcher import Event, find_matches

EVENT_TYPE = "record"
# The scenarios lie next to the repository, shared with other projects; a checkout without them runs none.
CONFORMANCE = Path(__file__).resolve().parents[2].parent / "shared" / "conformance"

_FLOAT = Type(Kind.FLOAT, nullable=True)
_TEXT = Type(Kind.STRING, nullable=True)
_BOOL = Type(Kind.BOOL, nullable=True)

Json = Any
Answered = frozenset[tuple[tuple[str, tuple[int, ...]], ...]]


class UntranslatableError(Exception):
    """The language cannot express the scenario."""


@dataclass(frozen=True)
class Outcome:
    """The comparison with the oracle's answer. `missing` are only in the scenario, `extra` only in the oracle."""

    passed: bool
    missing: frozenset[object] = frozenset()
    extra: frozenset[object] = frozenset()


def load_scenarios(folder: Path = CONFORMANCE) -> list[Json]:
    """Return every scenario of every file in the folder; none if the folder is missing."""
    return [s for path in sorted(folder.glob("*.json")) for s in json.loads(path.read_text())["scenarios"]]


def is_comparable(scenario: Json) -> bool:
    """Whether there is an answer to compare with: the library gives none for a pattern that it refuses."""
    return "error" not in scenario["expected"]


def compare(scenario: Json) -> Outcome:
    """Run the oracle on a scenario. Matches and time-outs are compared as sets; on a skip tie any rival will do."""
    pattern, expected = translate(scenario), scenario["expected"]
    matches, timeouts = _answers(pattern, scenario)
    expected_matches = frozenset(_key(match) for match in expected["matches"])
    expected_timeouts = frozenset((_key(timeout["m"]), timeout["ts"]) for timeout in expected["timeouts"])
    if "skip-tie" in scenario["tags"]:
        free = _answers(replace(pattern, skip=ir.Skip(ir.SkipKind.NONE)), scenario)[0]
        spans_agree = _spans(matches, scenario) == _spans(expected_matches, scenario)
        if spans_agree and matches <= free and timeouts == expected_timeouts:
            return Outcome(passed=True)
    missing = (expected_matches - matches) | (expected_timeouts - timeouts)
    extra = (matches - expected_matches) | (timeouts - expected_timeouts)
    return Outcome(not missing and not extra, frozenset(missing), frozenset(extra))


def _answers(pattern: ir.PatternIR, scenario: Json) -> tuple[frozenset[Any], frozenset[Any]]:
    matches, timeouts = set(), set()
    for events in events_by_key(scenario).values():
        answer = find_matches(pattern, events)
        matches |= {_key(match.by_variable()) for match in answer.matches}
        timeouts |= {(_key(timeout.by_variable()), timeout.detected_ms) for timeout in answer.timeouts}
    return frozenset(matches), frozenset(timeouts)


def _key(by_stage: Mapping[str, Sequence[int | str]]) -> tuple[tuple[str, tuple[int | str, ...]], ...]:
    return tuple(sorted((stage, tuple(ids)) for stage, ids in by_stage.items() if ids))


def _spans(matches: frozenset[Any], scenario: Json) -> frozenset[tuple[int, int]]:
    """Return the first and last event of every match: rivals of a tie share them."""
    rank = {event["id"]: (event["ts"], number) for number, event in enumerate(scenario["events"])}
    spans = set()
    for match in matches:
        ids = sorted((i for _, stage_ids in match for i in stage_ids), key=rank.__getitem__)
        spans.add((ids[0], ids[-1]))
    return frozenset(spans)


# ------------------------------------------------------------------------------------------------------- events


def events_by_key(scenario: Json) -> dict[str, list[Event]]:
    """Return the events of each key in arrival order, without late events."""
    keys: dict[str, list[Event]] = {}
    schedule = _watermarks(scenario)
    watermark_ms: float = float("-inf")
    for order, raw in enumerate(scenario["events"]):
        watermark_ms = max([watermark_ms, *(ms for sent, ms in schedule if sent <= order)])
        if raw["ts"] > watermark_ms:
            fields: dict[str, Value] = {"@ts": float(raw["ts"])}
            fields |= {name: float(v) if isinstance(v, int | float) else v for name, v in raw.get("f", {}).items()}
            keys.setdefault(raw["key"], []).append(Event(raw["id"], EVENT_TYPE, raw["ts"], order, fields))
    return keys


def _watermarks(scenario: Json) -> list[tuple[int, int]]:
    """Return the watermarks, each with the number of events sent before it."""
    watermarks = scenario.get("watermarks", [])
    if watermarks == "per_event":
        times = [event["ts"] for event in scenario["events"]]
        return [(i + 1, max(times[: i + 1]) - 1) for i in range(len(times))]
    return [(sent, watermark_ms) for sent, watermark_ms in watermarks]


# ------------------------------------------------------------------------------------------------------ pattern


def translate(scenario: Json) -> ir.PatternIR:
    """Return the pattern of a scenario. Raises UntranslatableError."""
    variables: list[ir.Variable] = []
    windows: list[int] = []
    within, stages = scenario.get("within"), scenario["pattern"]
    if within and stages[-1].get("within", {}).get("type") == within["type"]:
        # The window of the whole is a call on the last stage: it replaces the stage's own of that kind.
        stages = [*stages[:-1], {name: value for name, value in stages[-1].items() if name != "within"}]
    steps = _steps(stages, variables, windows, top=True)
    if within and within["type"] == "first_last":
        windows.append(within["ms"])
    elif within:
        steps = (*steps[:-1], _bounded(steps[-1], within["ms"], first=len(steps) == 1))
    if isinstance(steps[-1].node, ir.VarNode) and steps[-1].node.quantifier.max_count != 1:
        steps = (*steps[:-1], replace(steps[-1], gap_max_ms=None))  # the library ignores it there
    windows = [ms for ms in windows if ms > 0]
    return ir.PatternIR(
        name="scenario",
        params=(),
        key=("key",),
        structure=ir.SequenceNode(steps),
        variables=tuple(variables),
        measures=(),
        event_types=(EVENT_TYPE,),
        skip=_skip(scenario.get("skip")),
        within_ms=min(windows, default=None),
        timeout_measures=(),
    )


def _skip(skip: Json) -> ir.Skip:
    if not skip or skip["type"] == "no_skip":
        return ir.Skip(ir.SkipKind.NONE)
    return ir.Skip(ir.SkipKind(skip["type"].replace("_", " ")), skip.get("stage"), in_order=True)


_LINKS = {
    "next": (ir.Link.NEXT, False),
    "followedBy": (ir.Link.FOLLOWED_BY, False),
    "followedByAny": (ir.Link.FOLLOWED_BY_ANY, False),
    "notNext": (ir.Link.NEXT, True),
    "notFollowedBy": (ir.Link.FOLLOWED_BY, True),
}


def _steps(stages: Json, variables: list[ir.Variable], windows: list[int], top: bool) -> tuple[ir.Step, ...]:
    return tuple(_step(stage, variables, windows, top, first=i == 0) for i, stage in enumerate(stages))


def _step(stage: Json, variables: list[ir.Variable], windows: list[int], top: bool, first: bool) -> ir.Step:
    link, negated = _LINKS[stage.get("link", "followedBy")]
    quantifier = _quantifier(stage)
    node: ir.Node
    if "group" in stage:
        # The library repeats the head of a group with the contiguity of the group and ignores the head's own.
        head = {name: value for name, value in stage["group"][0].items() if name != "inner"}
        head |= {name: value for name, value in stage.items() if name == "inner"}
        members = [head if "group" not in head else stage["group"][0], *stage["group"][1:]]
        node = ir.SequenceNode(_steps(members, variables, windows, top=False), quantifier)
    else:
        where = condition(stage["where"]) if "where" in stage else None
        variables.append(ir.Variable(stage["name"], EVENT_TYPE, where))
        node = ir.VarNode(stage["name"], quantifier)
    if stage.get("optional") and quantifier.min_count:
        # `a{2}?` is all or none, which one quantifier cannot express.
        node = ir.SequenceNode((ir.Step(ir.Link.FOLLOWED_BY, node),), ir.Quantifier(0, 1, greedy=quantifier.greedy))
    step = ir.Step(link, node, negated)
    within = stage.get("within")
    if within and within["type"] == "prev_curr":
        return _bounded(step, within["ms"], first)
    if within and top:
        windows.append(within["ms"])
    elif within and within["ms"]:
        return replace(step, node=_windowed(node, within["ms"]))
    return step


def _windowed(node: ir.Node, window_ms: int) -> ir.SequenceNode:
    """Return a window on a stage inside a group as one round of a separate group."""
    if isinstance(node, ir.SequenceNode):
        return replace(node, within_ms=window_ms)
    return ir.SequenceNode((ir.Step(ir.Link.FOLLOWED_BY, node),), within_ms=window_ms)


def _bounded(step: ir.Step, gap_ms: int, first: bool) -> ir.Step:
    """Return the step with the gap to the previous stage; the library ignores it for a first stage and for a group."""
    if first or not gap_ms or isinstance(step.node, ir.SequenceNode):
        return step
    return replace(step, gap_max_ms=gap_ms)


def _quantifier(stage: Json) -> ir.Quantifier:
    low, high = stage.get("times", [1, 1])
    inner = {"consecutive": ir.Inner.STRICT, "combinations": ir.Inner.ANY}.get(stage.get("inner", ""), ir.Inner.RELAXED)
    until = condition(stage["until"]) if "until" in stage else None
    if until is not None and high is not None:
        raise UntranslatableError("until on a bounded loop")
    if high == 0 or (high is None and low == 0):
        raise UntranslatableError("a loop of no repetitions")
    # Greedy changes nothing in a loop of a fixed length, not even whether it is left out.
    greedy = bool(stage.get("greedy")) and low != high
    low = 0 if stage.get("optional") and low == 1 else low
    return ir.Quantifier(low, high, inner, greedy, until, stage.get("gap_ms"))


# --------------------------------------------------------------------------------------------------- conditions

_COMPARISONS: dict[str, ir.BinaryOp] = {o: o for o in ("==", "!=", "<", "<=", ">", ">=")}
_ARITHMETIC: dict[str, ir.BinaryOp] = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


def condition(raw: Json) -> ir.Expr:
    """Return a condition that is never unknown: a comparison with an undefined value is false, like its opposite."""
    if isinstance(raw, bool):
        return ir.Const(value=raw, type=_BOOL)
    for word in ("and", "or"):
        if word in raw:
            joined = condition(raw[word][0])
            for other in raw[word][1:]:
                joined = ir.Binary(word, joined, condition(other), _BOOL)
            return joined
    if "not" in raw:
        return ir.Unary("not", condition(raw["not"]), _BOOL)
    left = expression(raw["l"])
    if raw["op"] == "in":
        return _defined(ir.In(left, tuple(expression(item) for item in raw["r"]), _BOOL))
    right = expression(raw["r"])
    if raw["op"] in _COMPARISONS:
        return _defined(ir.Binary(_COMPARISONS[raw["op"]], left, right, _BOOL))
    return _defined(ir.Call({"startswith": "starts_with"}.get(raw["op"], raw["op"]), (left, right), _BOOL))


def _defined(test: ir.Expr) -> ir.Expr:
    """Return the test, made false where it is unknown."""
    return ir.Binary("and", test, ir.Unary("not", ir.Unary("is_null", test, _BOOL), _BOOL), _BOOL)


def expression(raw: Json) -> ir.Expr:
    """Return a value. Numbers are doubles; a field that is compared with text is text."""
    if raw is None:
        return ir.Const(None, Type(Kind.NULL, nullable=True))
    if isinstance(raw, bool):
        return ir.Const(value=raw, type=_BOOL)
    if isinstance(raw, int | float):
        return ir.Const(float(raw), _FLOAT)
    if isinstance(raw, str):
        return ir.Const(raw, _TEXT)
    if "agg" in raw:
        return _aggregate(raw)
    if "f" in raw:
        return ir.CurrentField(raw["f"], _FLOAT)
    if "abs" in raw:
        return ir.Unary("abs", expression(raw["abs"]), _FLOAT)
    for word, op in _ARITHMETIC.items():
        if word in raw:
            joined = expression(raw[word][0])
            for other in raw[word][1:]:
                joined = ir.Binary(op, joined, expression(other), _FLOAT)
            return joined
    raise UntranslatableError(f"expression {raw}")


def _aggregate(raw: Json) -> ir.Expr:
    fn, stage = raw["agg"], raw["stage"]
    if fn in ("first", "last"):
        return ir.VarField(stage, fn, raw.get("f", ""), _FLOAT)
    if fn == "count":
        return ir.Aggregate("count", stage, None, Type(Kind.INT))
    return ir.Aggregate(fn, stage, ir.CurrentField(raw["f"], _FLOAT), _FLOAT)
