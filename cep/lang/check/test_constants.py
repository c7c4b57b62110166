"""Constants as written in tests → slot contents, and back to arguments of `bind`.

Tested by: tests/lang/test_check_tests.py
"""

from __future__ import annotations

from decimal import Decimal

from cep.base.limits import PAN_DIGITS_MIN
from cep.base.schema import Kind, Type
from cep.lang.check.types import convert_const, symbol_const, written_constant
from cep.lang.diagnostics import Collector, did_you_mean
from cep.lang.ir import Const
from cep.lang.ir_tests import Slot
from cep.lang.syntax import ExprSyntax, Literal, NameRef, UnarySyntax


def slot_of(node: ExprSyntax, value_type: Type, noun: str, collector: Collector) -> Const | None:
    """Return the constant that a test writes for a value of this type, None after a report.

    `noun` names the place in the report. A TIME is written as the time since the start of the test, like the times of
    events.
    """
    if isinstance(node, NameRef):
        if value_type.kind is Kind.LIST:
            return Const(node.name, value_type)
        if node.name in value_type.symbols:
            return Const(value_type.symbols.index(node.name), value_type)
        if value_type.kind is Kind.ENUM:
            help_line = did_you_mean(node.name, value_type.symbols, "its symbols")
        else:
            help_line = f'write it in quotes: "{node.name}"' if value_type.is_text else ""
        collector.add("CEP604", f"`{node.name}` is not a value of {noun}, {_a(value_type)}", node.span, help_line)
        return None
    const = written_constant(node)
    symbol = None if const is None else symbol_const(const.value, value_type)
    if symbol is not None:
        return symbol
    if const is not None and const.value is None and not value_type.nullable:
        collector.add("CEP604", f"{noun} is never null", node.span)
        return None
    if const is not None and const.value is None:
        return Const(None, value_type)
    if const is not None and const.type.kind is Kind.DURATION and value_type.kind is Kind.TIME:
        return Const(const.value, value_type)
    if value_type.protected and const is not None and may_be_card_number(str(const.value)):
        help_line = 'write a name, like "card-1"'
        collector.add("CEP320", f"{noun} is a token in a rule; a test needs no number", node.span, help_line)
        return None
    converted = convert_const(const, value_type) if const is not None else None
    if converted is None:
        collector.add("CEP604", f"this is not a value of {noun}, {_a(value_type)}", node.span, _help(node, value_type))
        return None
    return converted


def may_be_card_number(text: str) -> bool:
    """Return True for a text with as many digits as a card number has."""
    return sum(character.isdigit() for character in text) >= PAN_DIGITS_MIN


def _a(value_type: Type) -> str:
    return f"which is {value_type.as_nullable(False)}"


def _help(node: ExprSyntax, value_type: Type) -> str:
    if isinstance(node, Literal) and isinstance(node.value, str) and node.value in value_type.symbols:
        return f"write the symbol without quotes: `{node.value}`"
    if value_type.kind is Kind.DECIMAL:
        return f"write a number with at most {value_type.scale} digits after the point"
    if value_type.kind in (Kind.DURATION, Kind.TIME):
        since = ", the time since the start of the test" if value_type.kind is Kind.TIME else ""
        return f"write a duration like `10 min`{since}"
    return 'write it in quotes, like `"abc"`' if value_type.is_text else ""


def tolerance_of(node: ExprSyntax, value_type: Type) -> float:
    """Return how far a float may be from the number written for it: it has to round to the written digits."""
    if value_type.kind is not Kind.FLOAT:
        return 0.0
    if isinstance(node, UnarySyntax):
        return tolerance_of(node.argument, value_type)
    if isinstance(node, Literal) and isinstance(node.value, int | Decimal) and not isinstance(node.value, bool):
        exponent = node.value.as_tuple().exponent if isinstance(node.value, Decimal) else 0
        assert isinstance(exponent, int)
        return 0.5 * 10.0**exponent
    return 0.0


def argument_of(const: Const) -> object:
    """Return the constant as `bind` takes it."""
    value, value_type = const.value, const.type
    if value_type.kind is Kind.DECIMAL and isinstance(value, int):
        return Decimal(value).scaleb(-value_type.scale)
    if value_type.kind is Kind.ENUM and isinstance(value, int):
        return value_type.symbols[value]
    return f"{value} ms" if value_type.kind is Kind.DURATION else value


def neutral(value_type: Type) -> Slot:
    """Return the value of a field that a test does not name: null if allowed, otherwise "", 0, false or the first
    symbol.
    """
    if value_type.nullable:
        return None
    if value_type.is_text:
        return ""
    if value_type.kind is Kind.BOOL:
        return False
    return 0.0 if value_type.kind is Kind.FLOAT else 0
