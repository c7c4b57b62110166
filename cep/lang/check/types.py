"""Type rules: the meaning of a written type, and lossless conversions between types.

Constants are converted at once; other expressions get a `Cast` node.
Tested by: tests/lang/test_expressions.py
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from cep.base.limits import DECIMAL_SCALE_MAX
from cep.base.schema import Kind, Type, is_word, list_type
from cep.base.secrets import PAN, SENSITIVE, token_key
from cep.lang.diagnostics import Collector, did_you_mean
from cep.lang.ir import Binary, Cast, Const, Expr, If
from cep.lang.parse.lexer import RESERVED
from cep.lang.syntax import DurationLiteral, ExprSyntax, Literal, TypeSyntax, UnarySyntax

INT = Type(Kind.INT)
FLOAT = Type(Kind.FLOAT)
BOOL = Type(Kind.BOOL)
STRING = Type(Kind.STRING)
DURATION = Type(Kind.DURATION)
TIME = Type(Kind.TIME)
NULL = Type(Kind.NULL, nullable=True)
INT64_MAX = 2**63 - 1

_NAMED = {k.value: k for k in Kind if k not in (Kind.NULL, Kind.LIST)}
LIST_KINDS = ("string", "int", "prefix", "cidr")
_ORDERED = (Kind.INT, Kind.DECIMAL, Kind.FLOAT, Kind.TIME, Kind.DURATION)
_WIDER = ((Kind.INT, Kind.DECIMAL), (Kind.INT, Kind.FLOAT), (Kind.DECIMAL, Kind.FLOAT))


def resolve_type(syntax: TypeSyntax, collector: Collector) -> Type | None:
    """Return the written type, None after a report. A decimal without a number of digits gets scale -1."""
    kind = Kind.STRING if syntax.name == PAN else _NAMED.get(syntax.name)  # `pan`: a text that is a card number
    if kind is None:
        help_line = did_you_mean(syntax.name, (*_NAMED, PAN), "types")
        collector.add("CEP212", f"`{syntax.name}` is not a type", syntax.span, help_line)
        return None
    if kind is not Kind.ENUM and syntax.symbols:
        collector.add("CEP212", f"`{syntax.name}` takes nothing in parentheses", syntax.span)
        return None
    if kind is Kind.DECIMAL:
        if syntax.scale is not None and syntax.scale > DECIMAL_SCALE_MAX:
            message = f"a decimal has at most {DECIMAL_SCALE_MAX} digits after the point"
            collector.add("CEP308", message, syntax.span)
            return None
        return Type(kind, syntax.nullable, -1 if syntax.scale is None else syntax.scale)
    if kind is Kind.ENUM:
        names = tuple(s.name for s in syntax.symbols)
        twice = [s for i, s in enumerate(syntax.symbols) if s.name in names[:i]]
        for symbol in twice:
            collector.add("CEP207", f"the symbol `{symbol.name}` is given twice", symbol.span)
        if not names:
            collector.add("CEP212", "an enum names its symbols", syntax.span, "write `enum(approved, declined)`")
        return None if twice or not names else Type(kind, syntax.nullable, 0, names)
    return Type(kind, syntax.nullable, protected=PAN if syntax.name == PAN else "")


def resolve_field_type(syntax: TypeSyntax, collector: Collector) -> Type | None:
    """Return the type of a field that was written, None after a report. Only here may a value be protected."""
    value_type = resolve_type(syntax, collector)
    if value_type is None or not syntax.sensitive or value_type.protected:
        return value_type
    if value_type.is_text:
        return replace(value_type, protected=SENSITIVE)
    message = f"a value that is `{SENSITIVE}` becomes a token, which is a text, and not {value_type}"
    collector.add("CEP212", message, syntax.span, "declare it `string sensitive`: a whole number becomes its digits")
    return None


def resolve_list_type(item_type: TypeSyntax, collector: Collector) -> Type | None:
    """Return the list type whose entries have this type, None after a report."""
    name, scale = item_type.name, item_type.scale
    if not item_type.nullable and name in LIST_KINDS and scale is None and not item_type.symbols:
        return list_type(name)
    if not item_type.nullable and name == "decimal" and scale is not None and scale <= DECIMAL_SCALE_MAX:
        return list_type(f"decimal({scale})")
    help_line = did_you_mean(name, LIST_KINDS) or f"{', '.join(LIST_KINDS)} or decimal(2)"
    collector.add("CEP212", "a list cannot hold values of this type", item_type.span, help_line)
    return None


def symbol_const(value: object, enum: Type) -> Const | None:
    """Return the symbol that a text in quotes means, None if it is another text or can be written without quotes."""
    if enum.kind is not Kind.ENUM or not isinstance(value, str) or value not in enum.symbols:
        return None
    if is_word(value) and value not in RESERVED:
        return None
    return Const(enum.symbols.index(value), enum.as_nullable(nullable=False))


def as_symbol(value: Expr, enum: Type) -> Expr:
    """Return a constant text as a symbol of this enum, other values unchanged."""
    symbol = symbol_const(value.value, enum) if isinstance(value, Const) else None
    return value if symbol is None else symbol


def is_raw(value: Const, other: Type) -> bool:
    """Return True for a constant that is compared with a protected value and is not a token."""
    return bool(other.protected) and isinstance(value.value, str) and token_key(value.value) is None


def branches(value: Expr) -> Iterator[Expr]:
    """Yield the values of which an expression is one: the branches of `if … then … else`, or the expression itself."""
    parts = (value.then, value.otherwise) if isinstance(value, If) else ()
    for part in parts:
        yield from branches(part)
    if not parts:
        yield value


def is_ordered(value_type: Type) -> bool:
    """May values of this type be compared with `<`?"""
    return value_type.kind in _ORDERED


def same(left: Type, right: Type) -> bool:
    """Do the two hold the same values, null aside? Text is text."""
    if left.is_text and right.is_text:
        return True
    return (left.kind, left.scale, left.symbols) == (right.kind, right.scale, right.symbols)


def common_number(left: Type, right: Type) -> Type:
    """Return the common number type: FLOAT if one is, otherwise the finer decimal, otherwise INT. Never nullable."""
    if Kind.FLOAT in (left.kind, right.kind):
        return FLOAT
    if Kind.DECIMAL in (left.kind, right.kind):
        return Type(Kind.DECIMAL, scale=max(left.scale, right.scale))
    return INT


def decimal_const(value: Decimal) -> Const | None:
    """Return a decimal literal with the digits it was written with; None if it does not fit."""
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    scale = max(0, -exponent)
    if scale > DECIMAL_SCALE_MAX:
        return None
    scaled = int(value.scaleb(scale))
    return Const(scaled, Type(Kind.DECIMAL, scale=scale)) if abs(scaled) <= INT64_MAX else None


def shortened(const: Const) -> Const:
    """Return a decimal constant without zeros at its end."""
    if const.type.kind is not Kind.DECIMAL or not isinstance(const.value, int):
        return const
    value, scale = const.value, const.type.scale
    while scale > 0 and value % 10 == 0:
        value, scale = value // 10, scale - 1
    return Const(value, Type(Kind.DECIMAL, const.type.nullable, scale))


def convert_const(const: Const, target: Type) -> Const | None:
    """Convert a constant to the target type; None if that would lose digits, or if it does not fit."""
    value, source = const.value, const.type
    if value is None:
        return Const(None, target.as_nullable())
    if source.is_text and target.is_text:
        return Const(value, target.as_nullable(nullable=False))
    if source.kind is target.kind and source.scale == target.scale:
        return const
    if not isinstance(value, int | float) or not (source.is_number and target.is_number):
        return None
    if target.kind is Kind.FLOAT:
        # The division of two exact integers rounds once, so the result is the nearest double.
        return Const(float(value) if isinstance(value, float) else value / 10**source.scale, FLOAT)
    if target.kind is Kind.DECIMAL and isinstance(value, int):
        short = shortened(const)  # 1.50 fits into one decimal, as 1.5
        if short.type.scale > target.scale:
            return None
        assert isinstance(short.value, int)
        scaled = short.value * 10 ** (target.scale - short.type.scale)
        return Const(scaled, target.as_nullable(nullable=False)) if abs(scaled) <= INT64_MAX else None
    return None


def cast(value: Expr, target: Type) -> Expr | None:
    """Convert a value to the target type, nullable if it was; None if the conversion would lose information."""
    if isinstance(value, Const):
        return convert_const(value, target)
    source = value.type
    if same(source, target):
        return value
    is_finer = source.kind is target.kind is Kind.DECIMAL and source.scale < target.scale
    is_wider = (source.kind, target.kind) in _WIDER
    return Cast(value, target.as_nullable(source.nullable)) if is_finer or is_wider else None


def widened(value: Expr, target: Type) -> Expr:
    """Convert a value to a type that is known to hold it."""
    result = cast(value, target)
    assert result is not None, "nothing is lost"
    return result


def literal_const(literal: Literal) -> Const | None:
    """Return the constant of a literal, None if a decimal has too many digits."""
    value = literal.value
    if value is None:
        return Const(None, NULL)
    if isinstance(value, bool):
        return Const(value, BOOL)
    if isinstance(value, int):
        return Const(value, INT)
    if isinstance(value, Decimal):
        return decimal_const(value)
    if isinstance(value, float):
        return Const(value if math.isfinite(value) else 0.0, FLOAT)  # a number that is too large was reported
    return Const(value, STRING)


def balanced(op: str, operands: list[Expr]) -> Expr:
    """Join many operands by `and` or `or` to a tree of logarithmic depth, in the written order."""
    assert op in ("and", "or")
    if len(operands) == 1:
        return operands[0]
    middle = (len(operands) + 1) // 2
    left, right = balanced(op, operands[:middle]), balanced(op, operands[middle:])
    result = BOOL.as_nullable(left.type.nullable or right.type.nullable)
    return Binary("and" if op == "and" else "or", left, right, result)


def written_constant(node: ExprSyntax) -> Const | None:
    """Return the constant that is written as a literal, a duration, or one of them with a sign; None for others."""
    if isinstance(node, Literal):
        return literal_const(node)
    if isinstance(node, DurationLiteral):
        return Const(node.ms, DURATION)
    if isinstance(node, UnarySyntax):
        inner = written_constant(node.argument)
        if inner is not None and isinstance(inner.value, int | float) and not isinstance(inner.value, bool):
            return Const(-inner.value, inner.type)
    return None
