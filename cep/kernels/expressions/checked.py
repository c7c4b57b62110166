"""Two int64 → True if their sum, difference or product leaves int64, and the bound that then stands for it.

What is too great counts as the greatest number and what is too small as the least, so that a condition `> limit` stays
true: one absurd payment must not hide those beside it. The remainder never leaves int64.

The compiler assumes that signed arithmetic does not overflow, so the question comes before the arithmetic.
Tested by: tests/kernels/test_machine.py
"""

from __future__ import annotations

from cep.kernels.jit import inlined
from cep.kernels.layout import int64

INT64_MAX = int64(2**63 - 1)
INT64_MIN = int64(-(2**63))


@inlined
def add_overflows(a: int, b: int) -> bool:
    """Return True if a + b leaves int64."""
    return (b > 0 and a > INT64_MAX - b) or (b < 0 and a < INT64_MIN - b)


@inlined
def subtract_overflows(a: int, b: int) -> bool:
    """Return True if a - b leaves int64."""
    return (b < 0 and a > INT64_MAX + b) or (b > 0 and a < INT64_MIN + b)


@inlined
def multiply_overflows(a: int, b: int) -> bool:
    """Return True if a * b leaves int64; a product of exactly -2**63 counts as leaving it."""
    over = False
    if a == INT64_MIN or b == INT64_MIN:
        over = a != 0 and b != 0 and a != 1 and b != 1
    elif a != 0:
        over = abs(b) > INT64_MAX // abs(a)
    return over


@inlined
def added(a: int, b: int) -> int:
    """Return a + b, or the bound of int64 that it leaves."""
    total = INT64_MIN if b < 0 else INT64_MAX
    if not add_overflows(a, b):
        total = a + b
    return total


@inlined
def subtracted(a: int, b: int) -> int:
    """Return a - b, or the bound of int64 that it leaves."""
    rest = INT64_MAX if b < 0 else INT64_MIN
    if not subtract_overflows(a, b):
        rest = a - b
    return rest


@inlined
def multiplied(a: int, b: int) -> int:
    """Return a * b, or the bound of int64 that it leaves."""
    product = INT64_MIN if (a < 0) != (b < 0) else INT64_MAX
    if not multiply_overflows(a, b):
        product = a * b
    return product


@inlined
def remainder(a: int, b: int) -> int:
    """Return the remainder of a divided by b, with the sign of a, as in SQL; b is not 0.

    abs() would not do, as int64 has no 2**63. In Python and numba the remainder has the sign of b.
    """
    left = int64(0)
    if b != -1:  # the one divisor with which the quotient of -2**63 leaves int64
        left = a % b
        if left != 0 and (a < 0) != (b < 0):
            left -= b
    return left
