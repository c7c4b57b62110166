"""Overflow of int64 sums, differences and products: detection, and the bound that replaces the result.

A result that is too great counts as the greatest integer and a result that is too small as the least, so that a
condition `> limit` stays true: one absurd payment must not hide the payments around it. The check precedes the
arithmetic, because the compiler assumes that signed arithmetic does not overflow.
Tested by: tests/kernels/test_machine.py
"""

from cep.kernels.jit import inlined
from cep.kernels.layout import int64

INT64_MAX = int64(2**63 - 1)
INT64_MIN = int64(-(2**63))


@inlined
def add_overflows(a: int, b: int) -> bool:
    """Return True if a + b overflows int64."""
    return (b > 0 and a > INT64_MAX - b) or (b < 0 and a < INT64_MIN - b)


@inlined
def subtract_overflows(a: int, b: int) -> bool:
    """Return True if a - b overflows int64."""
    return (b < 0 and a > INT64_MAX + b) or (b > 0 and a < INT64_MIN + b)


@inlined
def multiply_overflows(a: int, b: int) -> bool:
    """Return True if a * b overflows int64; a product of exactly -2**63 counts as an overflow."""
    over = False
    if a == INT64_MIN or b == INT64_MIN:
        over = a != 0 and b != 0 and a != 1 and b != 1
    elif a != 0:
        over = abs(b) > INT64_MAX // abs(a)
    return over


@inlined
def added(a: int, b: int) -> int:
    """Return a + b, or the bound of int64 that it exceeds."""
    total = INT64_MIN if b < 0 else INT64_MAX
    if not add_overflows(a, b):
        total = a + b
    return total


@inlined
def subtracted(a: int, b: int) -> int:
    """Return a - b, or the bound of int64 that it exceeds."""
    rest = INT64_MAX if b < 0 else INT64_MIN
    if not subtract_overflows(a, b):
        rest = a - b
    return rest


@inlined
def multiplied(a: int, b: int) -> int:
    """Return a * b, or the bound of int64 that it exceeds."""
    product = INT64_MIN if (a < 0) != (b < 0) else INT64_MAX
    if not multiply_overflows(a, b):
        product = a * b
    return product


@inlined
def remainder(a: int, b: int) -> int:
    """Return the remainder of a divided by b, with the sign of a, as in SQL; b is not 0.

    abs() is not suitable, because int64 has no 2**63. In Python and numba the remainder has the sign of b.
    """
    rest = int64(0)
    if b != -1:  # the only divisor for which the quotient of -2**63 overflows int64
        rest = a % b
        if rest != 0 and (a < 0) != (b < 0):
            rest -= b
    return rest
