"""A pattern and parameters to try → the values of each parameter, and whether settings can be evaluated one by one.

    amount > large and count(… over back) >= known
             └ threshold: larger is tighter  └ threshold: larger is tighter; `back` is not one, it changes the count

If a match binds one event, or if every combination of events is a separate match, a match exists under a setting if
each condition holds by itself. So the values of one threshold are replayed with the others at their loosest, and a
setting allows the matches that each of its values allows.
Tested by: tests/analysis/test_tune.py
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from cep.base.errors import UsageError
from cep.base.schema import Kind
from cep.lang.ir import Binary, Cast, Expr, Link, Param, ParamDecl, PatternIR, SkipKind, Unary
from cep.lang.show import show_duration
from cep.lang.walk import nodes
from cep.model.rule import ParamValue
from cep.model.setting_types import duration_ms
from cep.nfa.positions import build
from cep.testing.conditions import parts_of

_STEPS = 21  # values of a parameter for which none are given
_SPAN = 4.0  # values go from a quarter of the present one to four times as much
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1))
_RANGE = re.compile(r"(-?\d+(?:\.\d+)?)\.\.(-?\d+(?:\.\d+)?)(?:/(\d{1,4}))?")


@dataclass(frozen=True, slots=True)
class Axis:
    """The values of one parameter. The values of a threshold go from the loosest to the tightest."""

    name: str
    values: tuple[ParamValue, ...]
    is_threshold: bool


def axes_of(pattern: PatternIR, present: Mapping[str, ParamValue], tries: Mapping[str, str]) -> tuple[Axis, ...]:
    """Return the parameters to tune with the values to try: the ones in `tries`, or every threshold.

    `pattern` has its parameters open. Raises: UsageError for an unknown parameter, or invalid values.
    """
    declared = {param.name: param for param in pattern.params}
    unknown_names = [name for name in tries if name not in declared]
    if unknown_names:
        raise UsageError(f"--try {unknown_names[0]}: the pattern's parameters are {', '.join(declared) or 'none'}")
    directions = {name: _sense(pattern, name) for name in declared}
    names = tries or [name for name in declared if not _reason_against(declared[name], present, directions[name])]
    if not names:
        raise UsageError(f"{pattern.name} has no threshold that is a parameter; name what to try with --try")
    axes = []
    for name in names:
        values = _given(declared[name], tries[name]) if name in tries else _around(declared[name], present[name])
        axes.append(_axis(name, values, directions[name]))
    return tuple(axes)


def skipped_params(
    pattern: PatternIR, values: Mapping[str, ParamValue], axes: Sequence[Axis], tries: Mapping[str, str]
) -> dict[str, str]:
    """Return the parameters that are not tried, each with the reason."""
    tried = {axis.name for axis in axes}
    return {
        param.name: "--try names others" if tries else _reason_against(param, values, _sense(pattern, param.name))
        for param in pattern.params if param.name not in tried
    }  # fmt: skip


def _reason_against(param: ParamDecl, values: Mapping[str, ParamValue], sense: int) -> str:
    """Return why a parameter is not tried by default, "" for one that is."""
    value = values.get(param.name)
    if not param.type.is_number:
        return f"it is a {param.type.kind.value}: name its values with --try"
    if not sense:
        return "no comparison grows with it alone, so it is not a threshold: name its values with --try"
    if not isinstance(value, int | float) or value <= 0:
        return f"it is {value}, and values are tried around one above 0: name them with --try"
    return ""


def numeric_axes(pattern: PatternIR, present: Mapping[str, ParamValue]) -> tuple[Axis, ...]:
    """Return each positive parameter that is a number or a duration, with its present value and values around it."""
    axes = []
    for param in pattern.params:
        value = present.get(param.name)
        is_time = param.type.kind is Kind.DURATION
        if value is None or not (param.type.is_number or is_time) or number_of(value) <= 0:
            continue
        values_around = _times_around(param, number_of(value)) if is_time else _around(param, value)
        values: dict[float, ParamValue] = {number_of(each): each for each in values_around if number_of(each) > 0}
        values[number_of(value)] = value  # as the rule's file writes it
        axes.append(_axis(param.name, [values[number] for number in sorted(values)], _sense(pattern, param.name)))
    return tuple(axes)


def _axis(name: str, values: list[ParamValue], sense: int) -> Axis:
    if sense:
        values.sort(key=number_of, reverse=sense < 0)
    return Axis(name, tuple(values), sense != 0)


def loosest(axes: Iterable[Axis]) -> dict[str, ParamValue]:
    """Return the first value of each parameter."""
    return {axis.name: axis.values[0] for axis in axes}


def is_divisible(pattern: PatternIR, bound: PatternIR, axes: Sequence[Axis]) -> bool:
    """Return True if a match exists under a setting exactly if each threshold by itself lets it through.

    `bound` is the pattern with the constants in place.
    """
    thresholds = {axis.name for axis in axes if axis.is_threshold}
    together = [_names(part) & thresholds for variable in pattern.variables for part in parts_of(variable.where)]
    return all(len(names) <= 1 for names in together) and _binds_freely(bound)


def _binds_freely(pattern: PatternIR) -> bool:
    """Return True if no match of the pattern can prevent or replace another match."""
    if pattern.timeout_measures is not None or pattern.within_events is not None:
        return False
    positions = build(pattern.structure).positions
    waits = [wait for position in positions for wait in position.waits]
    if any(position.loops for position in positions):
        return False
    if any(wait.target is None or wait.guards or wait.untils for wait in waits):
        return False
    if len(positions) == 2:  # the start, and the one event
        return True
    later = [wait for position in positions[1:] for wait in position.waits]
    return pattern.skip.kind is SkipKind.NONE and all(wait.link is Link.FOLLOWED_BY_ANY for wait in later)


# ------------------------------------------------------------------------------------------------------ direction


def _names(tree: object) -> set[str]:
    return {node.name for node in nodes(tree) if isinstance(node, Param)}


def _sense(pattern: PatternIR, name: str) -> int:
    """Return 1 if a larger value allows fewer matches, -1 if it allows more, 0 if it is not a threshold."""
    parts = [part for variable in pattern.variables for part in parts_of(variable.where)]
    everywhere = sum(isinstance(node, Param) and node.name == name for node in nodes(pattern))
    senses, in_parts = set(), 0
    for part in parts:
        count = sum(isinstance(node, Param) and node.name == name for node in nodes(part))
        in_parts += count
        if count:
            senses.add(_sense_of(part, name) if count == 1 else 0)
    return senses.pop() if len(senses) == 1 and in_parts == everywhere else 0


def _sense_of(part: Expr, name: str) -> int:
    if not isinstance(part, Binary) or part.op not in ("<", "<=", ">", ">="):
        return 0
    sign = _grows(part.right, name) - _grows(part.left, name)
    return sign if part.op in (">", ">=") else -sign


def _grows(expr: Expr, name: str) -> int:
    """Return 1 if an expression grows with a parameter, -1 if it shrinks, 0 if neither is certain.

    Factors are assumed to be positive. The replays check this.
    """
    match expr:
        case Param():
            return int(expr.name == name)
        case Cast():
            return _grows(expr.argument, name)
        case Unary() if expr.op == "neg":
            return -_grows(expr.argument, name)
        case Binary() if expr.op in ("+", "*"):
            return _grows(expr.left, name) or _grows(expr.right, name)
        case Binary() if expr.op in ("-", "/"):
            return _grows(expr.left, name) or -_grows(expr.right, name)
        case _:
            return 0


# --------------------------------------------------------------------------------------------------------- values


def number_of(value: ParamValue) -> float:
    """Return a number for comparing values by size: of a duration its milliseconds, 0 for other non-numbers."""
    if isinstance(value, str):
        try:
            return float(duration_ms(value))
        except ValueError:
            return 0.0
    return float(value) if isinstance(value, int | float) else 0.0


def unit_of(value: ParamValue) -> tuple[str, int]:
    """Return the unit in which values of a parameter are drawn, with its size in ms; ("", 1) of a plain number."""
    if not isinstance(value, str):
        return "", 1
    return next(((name, size) for name, size in _UNITS if number_of(value) >= size), _UNITS[-1])


def _times_around(param: ParamDecl, present_ms: float) -> list[str]:
    """Return lengths of time from a quarter of the present one to four times that, with two digits each."""
    low, high = param.minimum, param.maximum
    times = set()
    for step in range(_STEPS):
        value = present_ms * _SPAN ** (2 * step / (_STEPS - 1) - 1)
        size = next((size for _, size in _UNITS if value >= size), 1)
        ms = round(float(f"{value / size:.2g}") * size)
        if ms > 0 and (low is None or ms >= low) and (high is None or ms <= high):
            times.add(ms)
    return [show_duration(ms) for ms in sorted(times)]


def _around(param: ParamDecl, present: ParamValue) -> list[ParamValue]:
    """Return values from a quarter of the present one to four times that, each the same share above the last."""
    if not isinstance(present, int | float) or present <= 0:
        raise UsageError(f"{param.name} is {present}: say what to try, like --try {param.name}=1,2,5")
    factors = (_SPAN ** (2 * step / (_STEPS - 1) - 1) for step in range(_STEPS))
    return _rounded(param, [present, *(present * factor for factor in factors)])


def _given(param: ParamDecl, text: str) -> list[ParamValue]:
    """Parse the values of `--try`: `1,2,5`, `100..500` or `100..500/9`. Raises: UsageError."""
    value_range = _RANGE.fullmatch(text.strip())
    if value_range is not None:
        low, high, count = float(value_range[1]), float(value_range[2]), int(value_range[3] or _STEPS)
        if count < 2 or high <= low:
            raise UsageError(f"--try {param.name}={text}: write a range like 100..500, or 100..500/9 for nine values")
        return _rounded(param, [low + (high - low) * step / (count - 1) for step in range(count)])
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UsageError(f"--try {param.name}: give values, like {param.name}=1,2,5 or {param.name}=100..500")
    if not param.type.is_number:
        return list(dict.fromkeys(parts))
    try:
        return _rounded(param, [float(part) for part in parts])
    except ValueError as error:
        raise UsageError(f"--try {param.name}={text}: {error}") from error


def _rounded(param: ParamDecl, values: Iterable[float]) -> list[ParamValue]:
    """Round values to numbers that the parameter accepts, each once, ascending."""
    kind, scale = param.type.kind, param.type.scale
    unit = 10**scale if kind is Kind.DECIMAL else 1
    low, high = (None if edge is None else edge / unit for edge in (param.minimum, param.maximum))
    rounded: set[int | float] = set()
    for value in values:
        if kind is Kind.INT:
            number: int | float = round(value)
        elif kind is Kind.DECIMAL:
            number = float(round(Decimal(repr(value)), scale))
        else:
            number = float(f"{value:.3g}")
        if (low is None or number >= low) and (high is None or number <= high):
            rounded.add(number)
    return sorted(rounded)
