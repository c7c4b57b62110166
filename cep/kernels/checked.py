"""Whether int64 arithmetic leaves int64, asked before it is done; and the remainder, which never does.

The compiler takes for granted that signed arithmetic does not overflow, so a result cannot be asked afterwards.
Tested by: tests/kernels/test_machine.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cep.kernels.jit import inlined

INT64_MAX = np.int64(2**63 - 1)
INT64_MIN = np.int64(-(2**63))


@inlined
def add_overflows(a: Any, b: Any) -> Any:
    """Whether a + b leaves int64."""
    return (b > 0 and a > INT64_MAX - b) or (b < 0 and a < INT64_MIN - b)


@inlined
def subtract_overflows(a: Any, b: Any) -> Any:
    """Whether a - b leaves int64."""
    return (b < 0 and a > INT64_MAX + b) or (b > 0 and a < INT64_MIN + b)


@inlined
def multiply_overflows(a: Any, b: Any) -> Any:
    """Whether a * b leaves int64; a product of exactly -2**63 counts as leaving it."""
    over = False
    if a == INT64_MIN or b == INT64_MIN:
        over = a != 0 and b != 0 and a != 1 and b != 1
    elif a != 0:
        over = abs(b) > INT64_MAX // abs(a)
    return over


@inlined
def remainder(a: Any, b: Any) -> Any:
    """What is left of a when it is divided by b, with the sign of a, as in SQL; b is not 0.

    Not by way of abs(): -2**63 has none in int64. The remainder of Python and numba has the sign of b.
    """
    left = np.int64(0)
    if b != -1:  # the one divisor with which the quotient of -2**63 leaves int64
        left = a % b
        if left != 0 and (a < 0) != (b < 0):
            left -= b
    return left
