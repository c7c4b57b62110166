"""The parameters of a pattern: their types, defaults and bounds.

Tested by: tests/lang/test_check.py, tests/lang/golden/diagnostics/
"""

from __future__ import annotations

from collections.abc import Mapping

from cep.base.limits import PARAMS_MAX
from cep.base.schema import Kind, Type, list_kind
from cep.lang.check.draft import Draft
from cep.lang.check.resolve import duplicate
from cep.lang.check.types import (
    convert_const,
    literal_const,
    resolve_list_type,
    resolve_type,
    symbol_const,
    written_constant,
)
from cep.lang.diagnostics import Collector, Span, did_you_mean
from cep.lang.ir import ParamDecl
from cep.lang.syntax import ExprSyntax, Literal, NameRef, ParamSyntax, UnarySyntax

_BOUNDED = (Kind.INT, Kind.DECIMAL, Kind.FLOAT, Kind.DURATION)
_ALLOWED = (*_BOUNDED, Kind.BOOL, Kind.STRING, Kind.ENUM)
# A decimal parameter without scale takes the digits of its default, but never fewer than money has.
_SCALE_LEAST = 2

Slot = int | float | bool | str


def check_params(draft: Draft) -> None:
    """Check the type, default and bounds of each parameter."""
    pattern, collector = draft.pattern, draft.collector
    lists = draft.definitions.list_types
    params: list[ParamDecl] = []
    spans: dict[str, Span] = {}
    if len(pattern.params) > PARAMS_MAX:
        message = f"this pattern has {len(pattern.params)} parameters, more than {PARAMS_MAX}"
        collector.add("CEP507", message, pattern.params[PARAMS_MAX].span)
    for param in pattern.params:
        if param.name in spans:
            duplicate("parameter", param.name, param.span, spans[param.name], collector)
            continue
        spans[param.name] = param.span
        value_type = _type(param, collector)
        if value_type is not None:
            if value_type.kind is Kind.LIST:
                params.append(_declare_list(param, value_type, lists, collector))
            else:
                params.append(_declare(param, value_type, collector))
    draft.params = tuple(params)


def _type(param: ParamSyntax, collector: Collector) -> Type | None:
    """Return the type of a parameter, None after a report. A decimal without scale gets the scale of its bounds."""
    if param.type.of is not None:
        return resolve_list_type(param.type.of, collector)
    value_type = resolve_type(param.type, collector)
    if value_type is None:
        return None
    if value_type.nullable or value_type.kind not in _ALLOWED:
        message = f"a parameter cannot be of type {value_type}"
        allowed = ", ".join(kind.value for kind in _ALLOWED)
        collector.add("CEP506", message, param.type.span, f"it can be one of: {allowed}")
        return None
    if value_type.scale < 0:
        scales = [_written_scale(node) for node in (param.default, param.low, param.high) if node is not None]
        return Type(value_type.kind, scale=max([_SCALE_LEAST, *scales]))
    return value_type


def _written_scale(node: ExprSyntax) -> int:
    if isinstance(node, UnarySyntax):
        return _written_scale(node.argument)
    const = literal_const(node) if isinstance(node, Literal) else None
    return const.type.scale if const is not None else 0


def _declare_list(param: ParamSyntax, value_type: Type, lists: Mapping[str, Type], collector: Collector) -> ParamDecl:
    """Check a parameter whose value is a list. Its default must be the name of a list that may change."""
    default = param.default
    if param.low is not None:
        collector.add("CEP505", f"values of type {value_type} have no bounds", param.low.span)
    if default is None:
        return ParamDecl(param.name, value_type)
    if not isinstance(default, NameRef) or default.name not in lists:
        help_line = did_you_mean(default.name, lists, "lists") if isinstance(default, NameRef) else ""
        declares = f"declare one with `list name: {list_kind(value_type)}`"
        collector.add("CEP505", "this is not the name of a list that may change", default.span, help_line or declares)
        return ParamDecl(param.name, value_type)
    if lists[default.name] != value_type:
        message = f"`{default.name}` is a {lists[default.name]}, the parameter a {value_type}"
        collector.add("CEP505", message, default.span)
    return ParamDecl(param.name, value_type, default.name)


def _declare(param: ParamSyntax, value_type: Type, collector: Collector) -> ParamDecl:
    """Check the default and the bounds of a parameter."""
    default = _slot(param.default, value_type, collector)
    low = _slot(param.low, value_type, collector)
    high = _slot(param.high, value_type, collector)
    if param.low is not None and value_type.kind not in _BOUNDED:
        collector.add("CEP505", f"values of type {value_type} have no bounds", param.low.span)
        low = high = None
    minimum = low if isinstance(low, int | float) else None
    maximum = high if isinstance(high, int | float) else None
    if minimum is not None and maximum is not None and param.low is not None and minimum > maximum:
        collector.add("CEP505", "the lower bound is above the upper one", param.low.span)
    elif isinstance(default, int | float) and param.default is not None:
        below = minimum is not None and default < minimum
        if below or (maximum is not None and default > maximum):
            collector.add("CEP505", "the default is outside of the bounds", param.default.span)
    return ParamDecl(param.name, value_type, default, minimum, maximum)


def _slot(node: ExprSyntax | None, value_type: Type, collector: Collector) -> Slot | None:
    """Return the value of a default or a bound, None after a report or if there is none."""
    if node is None:
        return None
    if isinstance(node, NameRef):
        if node.name in value_type.symbols:
            return value_type.symbols.index(node.name)
        help_line = did_you_mean(node.name, value_type.symbols, "its symbols")
        collector.add("CEP505", f"`{node.name}` is not a constant of type {value_type}", node.span, help_line)
        return None
    const = written_constant(node)
    converted = None if const is None else symbol_const(const.value, value_type) or convert_const(const, value_type)
    if converted is None or converted.value is None:
        collector.add("CEP505", f"this is not a constant of type {value_type}", node.span)
        return None
    return converted.value
