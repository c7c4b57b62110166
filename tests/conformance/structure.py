"""A scenario's stages → the text of a pattern file: the event type, and one pattern over it.

A builder call means the same as in the library, so two habits of the library are written out. The first stage of a
group repeats with the contiguity of the group. The library ignores a window between two stages on a first stage, on a
group and on an absence with a stage after it. Windows of 0 do not count. Where the library ignores or drops a requested
part (a window or an absence inside a group), the text contains it.
Tested by: tests/conformance/test_conformance.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cep.base.schema import Kind
from tests.conformance.conditions import ConditionWriter
from tests.conformance.names import (
    EVENT_TYPE,
    ID,
    KEY,
    STAMP,
    TIME,
    Names,
    UntranslatableError,
    names_of,
    stage_names,
)
from tests.conformance.scenario import SKIP_NONE, Json, Scenario
from tests.conformance.stages import is_loop, is_negated, may_be_empty

PATTERN = "scenario"
_LINKS = {"next": ",", "followedBy": " ->", "followedByAny": " ->>", "notNext": ",", "notFollowedBy": " ->"}
_INNER = {"consecutive": " strict", "combinations": " any"}
_SKIPS = ("to_next", "past_last", "to_first", "to_last")


@dataclass(frozen=True, slots=True)
class PatternText:
    """The text of a scenario's pattern and the names in it."""

    text: str
    names: Names


def pattern_text(scenario: Scenario) -> PatternText:
    """Write a scenario's pattern. Raises: UntranslatableError."""
    names = names_of(scenario.stages, scenario.events)
    writer = _Writer(names)
    structure = writer.structure(scenario.stages, scenario.within)
    lines = [
        _event_type(names),
        f"pattern {PATTERN} by {KEY} {{",
        f"  seq    {structure}",
        *_where(writer.conditions),
        f"  skip   {_skip(scenario.skip, names)}",
        # An alert needs a value, a time-out too; the comparison ignores them.
        "  emit   matched = 1",
        *(["  on timeout emit unfinished = 1"] if writer.has_window else []),
        "}",
    ]
    return PatternText("\n".join(lines) + "\n", names)


def _event_type(names: Names) -> str:
    types = {Kind.FLOAT: "float", Kind.STRING: "string", Kind.BOOL: "bool"}
    fields = [(ID, "id"), (TIME, "time"), (KEY, "string"), (STAMP, "float")]
    fields += [
        (written, types[names.kinds[name]] + ("?" if name in names.missing else ""))
        for name, written in names.fields.items()
        if name != "@ts"
    ]
    width = max(len(name) for name, _ in fields)
    body = "\n".join(f"  {name:<{width}}  {type_}" for name, type_ in fields)
    return f"event {EVENT_TYPE} {{\n{body}\n}}\n"


def _where(conditions: Iterable[tuple[str, str]]) -> list[str]:
    """Return one entry per variable; a variable that occurs twice has two, which the check refuses."""
    entries = list(conditions)
    width = max((len(name) for name, _ in entries), default=0) + 1
    return [
        f"  {'where' if number == 0 else '     '}  {name + ':':<{width}} {EVENT_TYPE}  {condition}".rstrip()
        for number, (name, condition) in enumerate(entries)
    ]


def _skip(skip: Mapping[str, Json], names: Names) -> str:
    kind = skip.get("type", SKIP_NONE)
    if kind == SKIP_NONE:
        return "none"
    if kind not in _SKIPS:
        raise UntranslatableError(f"the skip strategy {kind!r}")
    stage = skip.get("stage")
    words = kind.replace("_", " ")
    return f"{words} {names.variables.get(stage, stage)} in order" if stage is not None else f"{words} in order"


@dataclass(slots=True)
class _Writer:
    """Writes the structure and collects the condition of each variable on the way."""

    names: Names
    conditions: list[tuple[str, str]] = field(default_factory=list)
    windows: list[int] = field(default_factory=list)
    has_window: bool = False  # a run can time out

    def structure(self, stages: Sequence[Json], within: Mapping[str, Json] | None) -> str:
        """Return the text after `seq`, with the smallest window that holds for the whole."""
        if within and stages[-1].get("within", {}).get("type") == within["type"]:
            # The window of the whole is a call on the last stage: it replaces the stage's own of that kind.
            stages = [*stages[:-1], {name: value for name, value in stages[-1].items() if name != "within"}]
        stages = _without_greed_at_end(stages)
        gap_ms = 0
        if within and within["type"] == "prev_curr":
            gap_ms = within["ms"]
        elif within:
            self.windows.append(within["ms"])
        text = self._sequence(stages, frozenset(), self.windows, gap_ms)
        return text + self._window(self.windows)

    def _sequence(
        self, stages: Sequence[Json], bound: frozenset[str], windows: list[int], last_gap_ms: int = -1
    ) -> str:
        """Write stages one after the other; `bound` are the stages that may have events before the first one.

        `last_gap_ms` is -1 in a group.
        """
        text, in_group = "", last_gap_ms < 0
        for number, stage in enumerate(stages):
            negated = is_negated(stage)
            element = self._element(stage, bound)
            if number:
                link = stage.get("link", "followedBy")
                if link not in _LINKS:
                    raise UntranslatableError(f"the link {link!r}")
                is_last = number == len(stages) - 1 and not in_group
                # The library ignores a step time on a group or on a last stage that repeats.
                is_free = "group" in stage or (negated and not is_last) or (is_last and is_loop(stage))
                step = "" if is_free else self._gap(stage, [last_gap_ms] if is_last else [])
                text += f"{_LINKS[link]}{step} {'!' * negated}{element}"
            else:
                text = "!" * negated + element
            within = stage.get("within")
            if within and within["type"] == "first_last":
                windows.append(within["ms"])
            if not negated:
                bound |= frozenset(stage_names([stage]))
        return text

    def _gap(self, stage: Json, gaps: list[int]) -> str:
        """Write the longest time since the previous stage."""
        within = stage.get("within")
        if within and within["type"] == "prev_curr":
            gaps = [*gaps, within["ms"]]
        gaps = [gap_ms for gap_ms in gaps if gap_ms]
        if not gaps:
            return ""
        self.has_window = True
        return f"[{min(gaps)} ms]"

    def _window(self, windows: Sequence[int]) -> str:
        positive = [window_ms for window_ms in windows if window_ms > 0]
        self.has_window = self.has_window or bool(positive)
        return f"  within {min(positive)} ms" if positive else ""

    def _element(self, stage: Json, bound: frozenset[str]) -> str:
        own_names = frozenset(stage_names([stage])) if is_loop(stage) else frozenset()
        if "group" in stage:
            windows: list[int] = []
            text = f"({self._sequence(_members(stage), bound | own_names, windows)}{self._window(windows)})"
        else:
            text = self.names.variables[stage["name"]]
            condition = ConditionWriter(self.names, bound | own_names).text(stage.get("where", True))
            self.conditions.append((text, condition))
        return self._repeated(stage, text, bound)

    def _repeated(self, stage: Json, text: str, bound: frozenset[str]) -> str:
        low, high = stage.get("times", (1, 1))
        optional = bool(stage.get("optional"))
        if "times" in stage or optional:
            text += _counted(0 if optional and low == 1 else low, high)
        # These words change nothing on one repetition at most, and greed changes nothing on a fixed number. A stage
        # without `times` keeps them: it is refused, as the library refuses it.
        if stage.get("inner") and (is_loop(stage) or "times" not in stage):
            text += _INNER[stage["inner"]]
        if stage.get("greedy") and (low != high or "times" not in stage):
            text += " greedy"
        if "until" in stage:
            visible = bound | frozenset(stage_names([stage]))
            text += f" until ({ConditionWriter(self.names, visible).text(stage['until']) or 'true'})"
        if stage.get("gap_ms") and is_loop(stage):
            self.has_window = True
            text += f" [{stage['gap_ms']} ms]"
        if optional and low > 1:
            # One repetition cannot express all or none; a greedy loop is also greedy about taking it at all.
            text = f"({text})?" + (" greedy" if stage.get("greedy") and low != high else "")
        return text


def _without_greed_at_end(stages: Sequence[Json]) -> list[Json]:
    """Return the stages without the greed of loops that may complete the match.

    The library ignores such greed, and the language refuses it.
    """
    result = list(stages)
    for number in reversed(range(len(result))):
        stage = result[number]
        if is_negated(stage):
            break
        if "group" in stage:
            result[number] = {**stage, "group": _without_greed_at_end(stage["group"])}
        elif "times" in stage and stage.get("inner") != "combinations":
            result[number] = {name: value for name, value in stage.items() if name != "greedy"}
        if not may_be_empty(stage):
            break
    return result


def _members(stage: Json) -> Sequence[Json]:
    """Return the stages of a group, the first with the contiguity of the group."""
    head, *others = stage["group"]
    if "group" not in head:
        head = {name: value for name, value in head.items() if name != "inner"}
        if "inner" in stage and is_loop(head):
            head["inner"] = stage["inner"]
    return [head, *others]


def _counted(low: int, high: int | None) -> str:
    if (low, high) in ((0, 1), (0, None), (1, None)):
        return {(0, 1): "?", (0, None): "*", (1, None): "+"}[low, high]
    if high is None:
        return f"{{{low},}}"
    return "" if low == high == 1 else f"{{{low}}}" if low == high else f"{{{low},{high}}}"
