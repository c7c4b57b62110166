"""A comparison with an average → instructions that compute with twice the digits of a float.

An average of decimals is rarely a float, so a comparison of rounded numbers would hold for equal payments. Here a
number is a *twofold*: a high float and the rest. A third register has the number's error scale, to which the error is
proportional. Two sides whose difference is within the error are equal.

    amount > 1.2 * avg(tx.amount over previous 30 d)
    └ twofold    └ twofold                         difference ─ settled ─ compared with 0

A constant is the decimal as it is written. Numbers that are only known as a float (stddev, sqrt, median) have a larger
error: the last digits of a float.
Tested by: tests/nfa/test_averages.py
"""

from fractions import Fraction
from typing import NamedTuple, Protocol

from cep.kernels.expressions import opcodes as o
from cep.lang.ir import Aggregate, Binary, Cast, Const, CurrentField, Expr, History, Unary, VarField
from cep.nfa.simplify import children

FLOAT_ERROR = 2.0**50  # the error of a number only known as a float, in a twofold's errors: 2^-48 of the number
LEVEL = 2.0**-98  # a difference of at most this share of the error scales counts as 0 (kernels/expressions/twofold.py)
_COMPARE = {"<": o.FLT, ">": o.FLT, "<=": o.FLE, ">=": o.FLE, "==": o.FEQ, "!=": o.FNE}
_EXACT_FLOATS = ("sum", "min", "max", "first", "last")


class Twofold(NamedTuple):
    """The registers of a number high + low with twice the digits of a float, and of its `error_scale`.

    The rounding error is at most LEVEL times the error scale, which is as large as the numbers that were added.
    """

    high: int
    low: int
    error_scale: int


class Code(Protocol):
    """The methods of code.Lowering, which imports this module, that emit code and return the register of the value.

    a, b and c are operands: registers, or numbers of constants or columns."""

    def emit(self, op: int, a: int = 0, b: int = 0, c: int = 0) -> int: ...

    def lower(self, expr: Expr) -> int: ...

    def constant(self, value: float | bool | str | None, is_float: bool = False) -> int: ...

    def unit(self, expr: Expr) -> int: ...  # the number of the constant 10^digits: 100 for a decimal with two digits

    def average(self, expr: Expr) -> Twofold: ...  # a float and its rounding error


def is_average(expr: Expr) -> bool:
    """Return True for an average of bound or of past events."""
    return isinstance(expr, Aggregate | History) and expr.fn == "avg"


def has_average(expr: Expr) -> bool:
    """Return True if an average is part of the expression."""
    return is_average(expr) or any(has_average(child) for child in children(expr))


def is_exact_float(expr: Expr) -> bool:
    """Return True for a float that an event has: the number itself, not an approximation."""
    if isinstance(expr, Aggregate | History):
        return expr.fn in _EXACT_FLOATS and isinstance(expr.argument, CurrentField)
    return isinstance(expr, CurrentField | VarField)


def written_rest(value: float) -> float:
    """Return the difference between the decimal as it is written for a float, and the float."""
    return float(Fraction(repr(value)) - Fraction(value))


def compare_twofold(code: Code, expr: Binary) -> int:
    """Emit a comparison in which an average occurs. A difference within the errors of both sides counts as 0."""
    left, right = (_lower_twofold(code, side) for side in (expr.left, expr.right))
    error_scale = code.emit(o.FADD, left.error_scale, right.error_scale)
    # If the sides are close to each other, the difference of the high parts is exact.
    highs = code.emit(o.FSUB, left.high, right.high)
    difference = code.emit(o.FADD, highs, code.emit(o.FSUB, left.low, right.low))
    settled = code.emit(o.FSETTLE, difference, error_scale)
    zero = code.constant(0.0, is_float=True)
    sides = (zero, settled) if expr.op in (">", ">=") else (settled, zero)
    return code.emit(_COMPARE[expr.op], *sides)


def exact(code: Code, high: int, low: int | None = None) -> Twofold:
    """Return a number with the error of a twofold, or without error."""
    rest = code.constant(0.0, is_float=True) if low is None else low
    return Twofold(high, rest, code.emit(o.FABS, high))


def sum_of(code: Code, one: int, other: int) -> Twofold:
    """Return the sum of two floats, without error."""
    return exact(code, code.emit(o.FADD, one, other), code.emit(o.FADD_REST, one, other))


def divided(code: Code, number: Twofold, divisor: Twofold) -> Twofold:
    """Emit a division of two numbers, each a high float plus a low one. The quotient is null when the divisor is 0.

    The float `first` lacks the last digits of the quotient. They are (number - first · divisor) / divisor. FMUL_REST is
    the rounding error of a product. A number's error is at most LEVEL (2^-98) times its `error_scale`."""
    first = code.emit(o.FDIV, number.high, divisor.high)
    remainder = code.emit(o.FSUB, number.high, code.emit(o.FMUL, first, divisor.high))
    remainder = code.emit(o.FSUB, remainder, code.emit(o.FMUL_REST, first, divisor.high))
    remainder = code.emit(o.FADD, remainder, number.low)
    remainder = code.emit(o.FSUB, remainder, code.emit(o.FMUL, first, divisor.low))
    divisor_size = code.emit(o.FABS, divisor.high)
    error_scale = code.emit(o.FDIV, number.error_scale, divisor_size)
    if divisor.error_scale != divisor_size:  # not the same register: the divisor's own error counts, too
        error_scale = code.emit(o.FMUL, error_scale, code.emit(o.FDIV, divisor.error_scale, divisor_size))
    return _normalized(code, first, code.emit(o.FDIV, remainder, divisor.high), error_scale)


def _normalized(code: Code, high: int, low: int, error_scale: int) -> Twofold:
    return Twofold(code.emit(o.FADD, high, low), code.emit(o.FADD_REST, high, low), error_scale)


def _lower_twofold(code: Code, expr: Expr) -> Twofold:
    """Emit an expression as a twofold: the registers (high, low, error_scale) of a number high + low.

    Its error is at most LEVEL (2^-98) times error_scale. Two numbers are equal if they differ by less than that."""
    if is_average(expr):
        return code.average(expr)
    if not expr.type.is_float:
        return _lower_decimal(code, expr)
    match expr:
        case Const() if isinstance(expr.value, float):
            # The nearest float is not exactly 0.1, as written in a rule: the low part is the difference.
            return exact(code, code.lower(expr), code.constant(written_rest(expr.value), is_float=True))
        case Cast() if not expr.argument.type.is_float:
            return _lower_decimal(code, expr.argument)
        case Cast():  # of a float to a float
            return _lower_twofold(code, expr.argument)
        case Unary(op="neg" | "abs"):
            return _lower_signed(code, expr)
        case Binary(op="+" | "-" | "*" | "/"):
            return _lower_arithmetic(code, expr)
        case _:
            high = code.lower(expr)
            single_float = exact(code, high)
            if is_exact_float(expr):
                return single_float
            # a rounded float, such as a square root, has a larger error
            float_error = code.constant(FLOAT_ERROR, is_float=True)
            return single_float._replace(error_scale=code.emit(o.FMUL, single_float.error_scale, float_error))


def _lower_decimal(code: Code, expr: Expr) -> Twofold:
    register, unit = code.lower(expr), code.unit(expr)
    return exact(code, code.emit(o.TO_FLOAT, register, unit), code.emit(o.TO_FLOAT_REST, register, unit))


def _lower_signed(code: Code, expr: Unary) -> Twofold:
    number = _lower_twofold(code, expr.argument)
    minus = Twofold(code.emit(o.FNEG, number.high), code.emit(o.FNEG, number.low), number.error_scale)
    if expr.op == "neg":
        return minus
    is_negative = code.emit(o.FLT, number.high, code.constant(0.0, is_float=True))
    high, low = (code.emit(o.SELECT, is_negative, minus[part], number[part]) for part in (0, 1))
    return Twofold(high, low, number.error_scale)


def _lower_arithmetic(code: Code, expr: Binary) -> Twofold:
    """Emit + - * / of numbers high + low, which have twice the digits of a float.

    The error of a number is at most LEVEL (2^-98) times its `error_scale`. An instruction *_REST gives the rounding
    error of the instruction without _REST, which becomes a part of `low`. low · low is too small to count."""
    left, right = _lower_twofold(code, expr.left), _lower_twofold(code, expr.right)
    if expr.op == "/":
        return divided(code, left, right)
    if expr.op == "*":
        low = code.emit(o.FADD, code.emit(o.FMUL, left.high, right.low), code.emit(o.FMUL, left.low, right.high))
        low = code.emit(o.FADD, code.emit(o.FMUL_REST, left.high, right.high), low)
        error_scale = code.emit(o.FMUL, left.error_scale, right.error_scale)
        return _normalized(code, code.emit(o.FMUL, left.high, right.high), low, error_scale)
    error_scale = code.emit(o.FADD, left.error_scale, right.error_scale)
    if expr.op == "-":
        right = Twofold(code.emit(o.FNEG, right.high), code.emit(o.FNEG, right.low), right.error_scale)
    low = code.emit(o.FADD, left.low, right.low)
    low = code.emit(o.FADD, code.emit(o.FADD_REST, left.high, right.high), low)
    return _normalized(code, code.emit(o.FADD, left.high, right.high), low, error_scale)
