"""Whether int64 arithmetic leaves int64, asked before it is done.

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
    """Whether a * b leaves int64."""
    over = False
    if a > 0:
        over = b > INT64_MAX // a if b > 0 else b < INT64_MIN // a
    elif a < 0 and b > 0:
        over = a < INT64_MIN // b
    elif a < 0 and b < 0:
        over = a == INT64_MIN or b == INT64_MIN or -a > INT64_MAX // -b
    return over
