"""Bind a pattern's parameters: replace them by a rule's arguments.

Checks the arguments (names, types, declared bounds) and that the resulting amounts form a valid structure.
Tested by: tests/lang/test_check.py
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from itertools import chain

from cep.base.limits import LIST_PARAM_ENTRIES_MAX, REPETITIONS_MAX, TIME_MS_MAX
from cep.base.schema import Kind
from cep.base.text import decimal_units
from cep.lang import ir
from cep.lang.check.text import constant_problem
from cep.lang.check.types import INT64_MAX, branches, convert_const, is_raw
from cep.lang.diagnostics import Collector, Diagnostic, Span, did_you_mean
from cep.lang.parse.lexer import UNITS_MS
from cep.lang.show import show_duration

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_DURATION = re.compile(r"\s*(\d{1,20}(?:\.\d{1,9})?)\s*([a-z]+)\s*")


def bind(pattern: ir.PatternIR, arguments: Mapping[str, object]) -> tuple[ir.PatternIR | None, list[Diagnostic]]:
    """Replace every parameter by its argument or default.

    Arguments: int; decimal as str, int, float or Decimal; float; bool; string; an enum's symbol as str; a duration as
    text with a unit. Returns the pattern without parameters, or None and the mistakes.
    """
    collector = Collector()
    names = [p.name for p in pattern.params]
    for name in arguments:
        if name not in names:
            message = f"`{name}` is not a parameter of the pattern `{pattern.name}`"
            collector.add("CEP501", message, help_line=did_you_mean(str(name), names, "parameters"))
    values: dict[str, ir.Const] = {}
    for param in pattern.params:
        slot = _slot_or_report(param, arguments, collector)
        if slot is not None:
            values[param.name] = ir.Const(slot, param.type)
    if collector.error_count:
        return None, collector.diagnostics
    bound = _Binder(values, collector).pattern(pattern)
    return (None if collector.error_count else bound), collector.diagnostics


def _slot_or_report(param: ir.ParamDecl, arguments: Mapping[str, object], collector: Collector) -> ir.Slot:
    """Return the stored form of a parameter's value: a rule's argument or the default. Return None after a report."""
    if param.name not in arguments:
        if param.default is None:
            collector.add("CEP502", f"the parameter `{param.name}` has no default and is not given")
        return param.default
    value = arguments[param.name]
    slot = _slot(value, param)
    if slot is None:
        try:
            shown = repr(value)[:60]
        except ValueError:
            shown = "this number"  # Python writes no int of more than 4300 digits
        help_line = {
            Kind.DURATION: _duration_help(value),
            Kind.LIST: f"write the name of a list, or at most {LIST_PARAM_ENTRIES_MAX} entries: [1, 2]",
            Kind.ENUM: f"symbols: {', '.join(param.type.symbols)}",
            Kind.DECIMAL: f"write a number with at most {param.type.scale} decimals",
        }.get(param.type.kind, "")
        message = f"the parameter `{param.name}` is of type {param.type}, {shown} does not fit"
        collector.add("CEP503", message, help_line=help_line)
        return None
    if isinstance(slot, int | float) and not isinstance(slot, bool):
        below = param.minimum is not None and slot < param.minimum
        if below or (param.maximum is not None and slot > param.maximum):
            low, high = shown_slot(param.minimum, param), shown_slot(param.maximum, param)
            message = f"the parameter `{param.name}` must be in {low} .. {high}, it is {shown_slot(slot, param)}"
            collector.add("CEP504", message)
            return None
    return slot


def _duration_help(value: object) -> str:
    """Say how a duration is written; a bare number is a duration in as many units as there are."""
    bare = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= INT64_MAX
    return f'a duration has a unit: write "{value} s" or "{value} min"' if bare else 'write a duration like "10 min"'


def shown_slot(slot: float | None, param: ir.ParamDecl) -> str:
    """Return a slot content as its author would write it."""
    if slot is None:
        return "…"
    if param.type.kind is Kind.DECIMAL:
        return str(Decimal(slot).scaleb(-param.type.scale))
    return show_duration(int(slot)) if param.type.kind is Kind.DURATION else str(slot)


def _slot(value: object, param: ir.ParamDecl) -> ir.Slot:
    """Convert a rule's argument to the form in which values of the parameter's type are stored; None if it is wrong."""
    kind = param.type.kind
    if kind is Kind.LIST:
        return _list(value)
    if kind is Kind.BOOL:
        return value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return None  # Python counts True as the int 1
    if kind is Kind.INT:
        return value if isinstance(value, int) and abs(value) <= INT64_MAX else None
    if kind is Kind.FLOAT:
        return _float(value)
    if kind is Kind.DECIMAL:
        return _decimal(value, param.type.scale)
    if kind is Kind.DURATION:
        return _duration(value)
    if kind is Kind.ENUM:
        return param.type.symbols.index(value) if isinstance(value, str) and value in param.type.symbols else None
    return value if isinstance(value, str) else None


def _float(value: object) -> float | None:
    if not isinstance(value, int | float | Decimal):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError):  # Decimal("sNaN") has no float
        return None
    return number if math.isfinite(number) else None


def _decimal(value: object, scale: int) -> int | None:
    """Convert an argument to an integer of 10^-scale units; None if it is not a number, or would lose digits."""
    is_number = isinstance(value, str | float | Decimal) or (isinstance(value, int) and abs(value) <= INT64_MAX)
    text = str(value) if is_number else ""  # the text of a float is the number as it was written
    return None if "_" in text else decimal_units(text, scale)  # Python reads 1_0 as 10


def _list(value: object) -> str | None:
    """Return the name of a list. Entries given in place are a name of their own: the JSON of their texts."""
    if isinstance(value, str):
        return value if _NAME.fullmatch(value) else None
    if not isinstance(value, list | tuple) or len(value) > LIST_PARAM_ENTRIES_MAX:
        return None
    if not all(isinstance(entry, str | int | float) and not isinstance(entry, bool) for entry in value):
        return None
    try:
        return json.dumps(sorted({str(entry) for entry in value}), ensure_ascii=False)
    except ValueError:
        return None  # Python writes no int of more than 4300 digits


def _duration(value: object) -> int | None:
    written = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if written is None or written[2] not in UNITS_MS:
        return None
    scaled = Decimal(written[1]) * UNITS_MS[written[2]]
    return int(scaled) if scaled == scaled.to_integral_value() and scaled < TIME_MS_MAX else None


def bind_at(
    pattern: ir.PatternIR, arguments: Mapping[str, object], spans: Mapping[str, Span], place: Span, collector: Collector
) -> ir.PatternIR | None:
    """Bind as `bind`, and report each mistake at the span of the parameter that it names, otherwise at `place`."""
    bound, mistakes = bind(pattern, arguments)
    for mistake in mistakes:
        span = next((span for name, span in spans.items() if f"`{name}`" in mistake.message), place)
        collector.add(mistake.code, mistake.message, span, mistake.help)
    return bound


class _Binder:
    def __init__(self, values: Mapping[str, ir.Const], collector: Collector) -> None:
        self.values = values
        self.collector = collector

    def pattern(self, pattern: ir.PatternIR) -> ir.PatternIR:
        """Replace the parameters of a pattern by their values, and check the values."""
        structure = self.node(pattern.structure)
        assert isinstance(structure, ir.SequenceNode)
        timeout = pattern.timeout_measures
        return replace(
            pattern,
            params=(),
            structure=structure,
            variables=tuple(ir.Variable(v.name, v.event_type, self._maybe(v.where)) for v in pattern.variables),
            measures=self._measures(pattern.measures),
            within_ms=self.amount(pattern.within_ms, 1, TIME_MS_MAX),
            within_events=self.amount(pattern.within_events, 1, REPETITIONS_MAX),
            timeout_measures=None if timeout is None else self._measures(timeout),
        )

    def _measures(self, measures: tuple[ir.Measure, ...]) -> tuple[ir.Measure, ...]:
        return tuple(ir.Measure(m.name, self.expr(m.value)) for m in measures)

    def amount(self, value: int | ir.Param | None, least: int, most: int) -> int | None:
        """Return a count or a length in ms. Report a parameter's value that is below `least` or above `most`."""
        if not isinstance(value, ir.Param):
            return value
        slot = self.values[value.name].value  # as it is stored: a count, or milliseconds
        assert isinstance(slot, int)
        if not least <= slot <= most:
            message = f"the parameter `{value.name}` is {slot} where the pattern needs at least {least}"
            if slot > most:
                message = f"the parameter `{value.name}` is {slot} where the pattern allows at most {most}"
            self.collector.add("CEP504", message)
        return slot

    def node(self, node: ir.Node) -> ir.Node:
        """Replace the parameters in counts and windows of a part of the structure."""
        match node:
            case ir.VarNode():
                return ir.VarNode(node.variable, self.quantifier(node.quantifier))
            case ir.SequenceNode():
                within = self.amount(node.within_ms, 1, TIME_MS_MAX)
                steps = tuple(self.step(step) for step in node.steps)
                return ir.SequenceNode(steps, self.quantifier(node.quantifier), within)
            case ir.AlternativeNode():
                return ir.AlternativeNode(tuple(self.node(option) for option in node.options))
            case ir.AnyOrderNode():
                return ir.AnyOrderNode(tuple(self.node(item) for item in node.items))

    def step(self, step: ir.Step) -> ir.Step:
        gap_min = self.amount(step.gap_min_ms, 0, TIME_MS_MAX)
        gap_max = self.amount(step.gap_max_ms, 1, TIME_MS_MAX)
        if gap_min is not None and gap_max is not None and gap_min >= gap_max:
            names = _names(step.gap_min_ms, step.gap_max_ms)
            self.collector.add("CEP504", f"the first time of this step is not below the second ({names})")
        return ir.Step(step.link, self.node(step.node), step.negated, gap_min, gap_max)

    def quantifier(self, quantifier: ir.Quantifier) -> ir.Quantifier:
        low = self.amount(quantifier.min_count, 1, REPETITIONS_MAX)
        high = self.amount(quantifier.max_count, 1, REPETITIONS_MAX)
        assert low is not None
        if high is not None and high < low:
            names = _names(quantifier.min_count, quantifier.max_count)
            self.collector.add("CEP504", f"the most of a repetition is below its least ({names})")
        until, gap_ms = self._maybe(quantifier.until), self.amount(quantifier.gap_ms, 1, TIME_MS_MAX)
        return replace(quantifier, min_count=low, max_count=high, until=until, gap_ms=gap_ms)

    def _maybe(self, expr: ir.Expr | None) -> ir.Expr | None:
        return None if expr is None else self.expr(expr)

    def expr(self, expr: ir.Expr) -> ir.Expr:
        """Replace the parameters of an expression by their values, and carry out casts of constants."""
        match expr:
            case ir.Const() | ir.CurrentField() | ir.VarField():
                return expr
            case ir.Param():
                return self.values[expr.name]
            case ir.Aggregate():
                return ir.Aggregate(expr.fn, expr.variable, self._maybe(expr.argument), expr.type)
            case ir.Unary():
                return ir.Unary(expr.op, self.expr(expr.argument), expr.type)
            case ir.Binary():
                self._refuse_raw_values(expr.left, (expr.right,))  # a protected field has tokens (keyed hashes)
                self._refuse_raw_values(expr.right, (expr.left,))
                return ir.Binary(expr.op, self.expr(expr.left), self.expr(expr.right), expr.type)
            case ir.Cast():
                return self._cast(expr)
            case ir.In():
                self._refuse_raw_values(expr.argument, expr.items)
                return ir.In(self.expr(expr.argument), tuple(self.expr(item) for item in expr.items), expr.type)
            case ir.If():
                parts = (self.expr(expr.condition), self.expr(expr.then), self.expr(expr.otherwise))
                return ir.If(*parts, expr.type)
            case ir.Call():
                return self._call(expr)
            case ir.History():
                return self._history(expr)

    def _refuse_raw_values(self, value: ir.Expr, others: Iterable[ir.Expr]) -> None:
        """Report parameters that are compared with a protected value and are not tokens."""
        for other in chain.from_iterable(map(branches, others)):
            if isinstance(other, ir.Param) and is_raw(self.values[other.name], value.type):
                message = f"the parameter `{other.name}` is compared with a value of type {value.type}, and is no token"
                self.collector.add("CEP320", message, help_line="give the token, as alerts show it")

    def _call(self, expr: ir.Call) -> ir.Expr:
        arguments = tuple(self.expr(argument) for argument in expr.arguments)
        for argument, before in zip(arguments, expr.arguments, strict=True):
            if isinstance(before, ir.Param) and isinstance(argument, ir.Const):
                problem = constant_problem(expr.fn, argument.value)
                if problem is not None:
                    self.collector.add("CEP503", f"the parameter `{before.name}`: {problem}")
        return ir.Call(expr.fn, arguments, expr.type)

    def _history(self, expr: ir.History) -> ir.Expr:
        window = expr.window
        if window is not None:
            window = replace(window, ms=self.amount(window.ms, 1, TIME_MS_MAX))
        percent = None if expr.percent is None else self.expr(expr.percent)
        assert percent is None or isinstance(percent, ir.Const)
        if percent is not None and isinstance(percent.value, int) and not 0 < percent.value <= 100:
            self.collector.add("CEP504", f"a percentage is from 1 to 100, it is {percent.value}")
        argument, where = self._maybe(expr.argument), self._maybe(expr.where)
        return replace(expr, argument=argument, where=where, window=window, percent=percent)

    def _cast(self, expr: ir.Cast) -> ir.Expr:
        argument = self.expr(expr.argument)
        if not isinstance(argument, ir.Const):
            return ir.Cast(argument, expr.type)
        converted = convert_const(argument, expr.type)
        if converted is None:
            names = ", ".join(f"`{name}`" for name in self.values)
            message = f"a parameter does not fit into {expr.type}, with which it is compared ({names})"
            self.collector.add("CEP503", message)
            return ir.Cast(argument, expr.type)
        return converted


def _names(*amounts: int | ir.Param | None) -> str:
    return ", ".join(f"`{a.name}`" if isinstance(a, ir.Param) else str(a) for a in amounts)
