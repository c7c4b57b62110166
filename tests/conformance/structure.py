"""A scenario's stages → the text of a pattern file: the event type, and one pattern over it, with its names.

A builder call means the same as in the library, so two habits of the library are written out. The first stage of a
group repeats with the contiguity of the group. The library ignores a window between two stages on a first stage, on a
group and on an absence with a stage after it. Windows of 0 do not count. Where the library ignores or drops a requested
part (a window or an absence inside a group), the text contains it.

In a scenario a comparison with an undefined value is false, and its opposite true; in the language it is unknown. The
two differ only below `not`, where the condition is made definite. Numbers are floats.
Tested by: tests/conformance/test_conformance.py
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cep.base.schema import Kind
from cep.lang.functions import FUNCTIONS
from cep.lang.parse.lexer import RESERVED
from tests.conformance.scenario import SKIP_NONE, Json, Scenario, ScenarioEvent
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


EVENT_TYPE = "record"
ID, TIME, KEY = "event_id", "event_time", "event_key"
# The time stamp as the number that conditions of scenarios compute with; the language cannot compute with times.
STAMP = "at_ms"
# Words that are not reserved but have a meaning in place of a variable.
_WORDS = frozenset("greedy strict any until events over on none to past order".split())  # noqa: SIM905
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class UntranslatableError(Exception):
    """The language cannot express the scenario; the message names the obstacle."""


@dataclass(frozen=True, slots=True)
class Names:
    """The variable of each stage, the field of each of an event's values, the kind of each field.

    `missing` holds the fields that some event lacks: they may be null.
    """

    variables: Mapping[str, str]
    fields: Mapping[str, str]
    kinds: Mapping[str, Kind]
    missing: frozenset[str]

    def stage_of(self) -> dict[str, str]:
        return {variable: stage for stage, variable in self.variables.items()}


def names_of(stages: Sequence[Json], events: Sequence[ScenarioEvent]) -> Names:
    """Choose the names. Raises: UntranslatableError for a field that is sometimes text and sometimes a number."""
    kinds: dict[str, Kind] = {}
    missing: set[str] = set()
    named = list(dict.fromkeys(name for event in events for name in event.values))
    for name in named:
        values = [event.values.get(name) for event in events]
        value_kinds = {_kind(value) for value in values if value is not None}
        if len(value_kinds) > 1:
            raise UntranslatableError(f"the field {name!r} holds values of different types")
        kinds[name] = value_kinds.pop() if value_kinds else Kind.FLOAT
        if None in values:
            missing.add(name)
    for name in _fields_in(stages):
        if name not in kinds and name != "@ts":
            kinds[name] = Kind.FLOAT
            missing.add(name)
    used = {ID, TIME, KEY, STAMP, EVENT_TYPE}
    fields = {name: _fresh(name, used) for name in kinds}
    fields["@ts"] = STAMP
    kinds["@ts"] = Kind.FLOAT
    variables = {name: _fresh(name, used) for name in dict.fromkeys(stage_names(stages))}
    return Names(variables, fields, kinds, frozenset(missing))


def stage_names(stages: Iterable[Json]) -> list[str]:
    """Return the names of the stages, including the ones in groups, in the order of the text."""
    names: list[str] = []
    for stage in stages:
        names += stage_names(stage["group"]) if "group" in stage else [str(stage["name"])]
    return names


def _kind(value: float | str | bool) -> Kind:
    if isinstance(value, bool):
        return Kind.BOOL
    return Kind.STRING if isinstance(value, str) else Kind.FLOAT


def _fields_in(raw: Json) -> list[str]:
    """Return the fields that conditions use."""
    if isinstance(raw, dict):
        fields = [raw["f"]] if isinstance(raw.get("f"), str) else []
        return fields + [name for part in raw.values() for name in _fields_in(part)]
    return [name for part in raw for name in _fields_in(part)] if isinstance(raw, list) else []


def _fresh(name: str, used: set[str]) -> str:
    """Return a name of the language as close to the given one as possible, and add it to `used`."""
    candidate = re.sub(r"\W", "_", name, flags=re.ASCII)
    if not _NAME.fullmatch(candidate):
        candidate = f"v{candidate}"
    while candidate in used or candidate in RESERVED or candidate in _WORDS or candidate in FUNCTIONS:
        candidate += "_"
    used.add(candidate)
    return candidate


_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_TEXT_TESTS = {"contains": "contains", "startswith": "starts_with"}
_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
# The precedence of a text; a part with a lower precedence than its whole goes into parentheses.
_OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _ATOM = range(1, 8)
_LEVEL = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT}


@dataclass(frozen=True, slots=True)
class _Text:
    """A piece of the expression: its text, its precedence, its type, and whether it may be null."""

    text: str
    level: int
    kind: Kind
    nullable: bool = False

    def inside(self, level: int) -> str:
        return self.text if self.level >= level else f"({self.text})"


_TRUE, _FALSE = _Text("true", _ATOM, Kind.BOOL), _Text("false", _ATOM, Kind.BOOL)
_NULL = _Text("null", _ATOM, Kind.NULL, nullable=True)


@dataclass(frozen=True, slots=True)
class ConditionWriter:
    """Writes conditions. `bound` are the stages with events when the condition is tested; other stages are empty."""

    names: Names
    bound: frozenset[str]

    def text(self, raw: Json) -> str:
        """Return the condition, "" if it is always true. Raises: UntranslatableError."""
        written = self._condition(raw).text
        return "" if written == _TRUE.text else written

    def _condition(self, raw: Json) -> _Text:
        if isinstance(raw, bool):
            return _TRUE if raw else _FALSE
        if "and" in raw:
            return self._joined("and", _AND, [self._condition(one) for one in raw["and"]], _TRUE)
        if "or" in raw:
            return self._joined("or", _OR, [self._condition(one) for one in raw["or"]], _FALSE)
        if "not" in raw:
            test = self._condition(raw["not"])
            definite = f"(if {test.text} then true else false)" if test.nullable else test.inside(_NOT)
            return _Text(f"not {definite}", _NOT, Kind.BOOL)
        left = self._value(raw["l"])
        if raw["op"] == "in":
            return self._membership(left, raw["r"])
        right = self._value(raw["r"])
        if raw["op"] in _TEXT_TESTS:
            return self._text_test(raw["op"], left, raw["r"])
        if raw["op"] not in _COMPARISONS:
            raise UntranslatableError(f"the operator {raw['op']!r}")
        return self._comparison(raw["op"], left, right)

    @staticmethod
    def _joined(word: str, level: int, parts: Sequence[_Text], empty: _Text) -> _Text:
        if len(parts) < 2:
            return parts[0] if parts else empty
        nullable = any(part.nullable for part in parts)
        return _Text(f" {word} ".join(part.inside(level) for part in parts), level, Kind.BOOL, nullable)

    def _comparison(self, op: str, left: _Text, right: _Text) -> _Text:
        if Kind.NULL in (left.kind, right.kind):
            return _FALSE
        if left.kind is not right.kind:
            # Values of different types are defined and unequal.
            there = [f"{part.inside(_SUM)} is not null" for part in (left, right) if part.nullable]
            if op != "!=":
                return _FALSE
            return _Text(" and ".join(there), _AND, Kind.BOOL) if there else _TRUE
        if left.kind is not Kind.FLOAT and op not in ("==", "!="):
            raise UntranslatableError(f"order among values of type {left.kind.value}")
        text = f"{left.inside(_SUM)} {op} {right.inside(_SUM)}"
        return _Text(text, _COMPARE, Kind.BOOL, left.nullable or right.nullable)

    def _membership(self, left: _Text, raw: Sequence[Json]) -> _Text:
        items = [item for item in (self._value(one) for one in raw) if item.kind is left.kind]
        if not items or left.kind is Kind.NULL:
            return _FALSE
        listed = ", ".join(item.text for item in items)
        return _Text(f"{left.inside(_SUM)} in [{listed}]", _COMPARE, Kind.BOOL, left.nullable)

    @staticmethod
    def _text_test(op: str, left: _Text, raw: Json) -> _Text:
        if left.kind is Kind.NULL or raw is None:
            return _FALSE
        if left.kind is not Kind.STRING or not isinstance(raw, str):
            raise UntranslatableError(f"{op!r} of anything but a text field and a constant")
        return _Text(f"{_TEXT_TESTS[op]}({left.text}, {_quoted(raw)})", _ATOM, Kind.BOOL, left.nullable)

    # ------------------------------------------------------------------------------------------------------ values

    def _value(self, raw: Json) -> _Text:
        if raw is None:
            return _NULL
        if isinstance(raw, bool):
            return _TRUE if raw else _FALSE
        if isinstance(raw, str):
            return _Text(_quoted(raw), _ATOM, Kind.STRING)
        if isinstance(raw, int | float):
            return _number(float(raw))
        if "agg" in raw:
            return self._aggregate(raw)
        if "f" in raw:
            field = raw["f"]
            return _Text(self.names.fields[field], _ATOM, self.names.kinds[field], field in self.names.missing)
        if "abs" in raw:
            inner = self._value(raw["abs"])
            return _Text(f"abs({inner.text})", _ATOM, Kind.FLOAT, inner.nullable)
        for word, op in _ARITHMETIC.items():
            if word in raw:
                return self._computed(op, [self._value(one) for one in raw[word]])
        raise UntranslatableError(f"the expression {raw}")

    def _computed(self, op: str, parts: Sequence[_Text]) -> _Text:
        if any(part.kind is not Kind.FLOAT for part in parts):
            return _NULL
        level = _LEVEL[op]
        first, *others = parts
        text = first.inside(level)
        for part in others:
            text += f" {op} {part.inside(level + 1)}"
        nullable = op == "/" or any(part.nullable for part in parts)
        return _Text(text, level if others else first.level, Kind.FLOAT, nullable)

    def _aggregate(self, raw: Json) -> _Text:
        fn, stage = raw["agg"], raw["stage"]
        if stage not in self.bound:
            return _number(0.0) if fn in ("count", "sum") else _NULL
        variable = self.names.variables[stage]
        if fn == "count":
            return _Text(f"count({variable})", _ATOM, Kind.FLOAT)
        field, kind = self.names.fields[raw["f"]], self.names.kinds[raw["f"]]
        if fn in ("first", "last"):
            return _Text(f"{fn}({variable}).{field}", _ATOM, kind, nullable=True)
        if fn not in ("sum", "avg", "min", "max"):
            raise UntranslatableError(f"the aggregate {fn!r}")
        return _Text(f"{fn}({variable}.{field})", _ATOM, Kind.FLOAT, nullable=fn != "sum")


def _number(value: float) -> _Text:
    text = str(int(value)) if value.is_integer() else repr(value)
    return _Text(text, _ATOM if value >= 0 else _PRODUCT, Kind.FLOAT)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
