"""Exact sums of float64 values, independent of their order and of values that were added and subtracted again.

    acc int64[CHUNKS]    the sum is Σ acc[c] · 2^(32 c − 1074), each chunk with room for 2^31 additions

Reading rounds once, to the nearest float. After Neal, "Fast exact summation using small and large superaccumulators"
(2015), the small one.
Tested by: tests/kernels/test_machine.py
"""

import math

import numpy as np

from cep.kernels.jit import bare
from cep.kernels.layout import Float64, Int64, int64

CHUNKS = 70  # 2046 binary places and the carries of 2^31 additions
_MASK = np.int64(0xFFFFFFFF)
_SPLIT = 134217729.0  # 2^27 + 1
_LEVEL = 3.944304526105059e-31  # 2^-101


@bare
def accumulate(acc: Int64, bits: int, sign: int) -> None:
    """Add a float64, given by its bits, to the exact sum Σ acc[c] · 2^(32 c − 1074), `sign` (1 or -1) times."""
    exponent = (bits >> int64(52)) & int64(0x7FF)
    mantissa = bits & int64(0xFFFFFFFFFFFFF)
    if exponent != 0:  # a normal number: its highest bit is not stored
        mantissa |= int64(1) << int64(52)
        exponent -= int64(1)
    if bits < 0:  # the sign bit is set
        sign = -sign
    chunk, shift = exponent >> int64(5), exponent & int64(31)  # the lowest bit is bit `shift` of acc[chunk]
    low = (mantissa & _MASK) << shift  # below 2^63
    high = ((mantissa >> int64(32)) << shift) + (low >> int64(32))  # below 2^53
    acc[chunk] += sign * (low & _MASK)
    acc[chunk + 1] += sign * (high & _MASK)
    acc[chunk + 2] += sign * (high >> int64(32))


@bare
def _carry(acc: Int64) -> int:
    """Bring every chunk into [0, 2^32) and return the final carry: 0, or -1 for a negative sum."""
    carry = int64(0)
    for c in range(acc.shape[0]):
        whole = acc[c] + carry
        carry = whole >> int64(32)
        acc[c] = whole & _MASK
    return carry


@bare
def rounded(acc: Int64) -> float:
    """Return the float64 nearest to the sum Σ acc[c] · 2^(32 c − 1074), ties to even. Carries may change chunks."""
    negative = _carry(acc) < 0
    if negative:  # make the sum positive
        for c in range(acc.shape[0]):
            acc[c] = -acc[c]
        _carry(acc)
    top = acc.shape[0] - 1
    while top >= 0 and acc[top] == 0:
        top -= 1
    value = 0.0
    if top >= 0:
        value = _nearest(acc, top)
    if negative:  # make the sum negative again
        for c in range(acc.shape[0]):
            acc[c] = -acc[c]
        value = -value
    return value


@bare
def _nearest(acc: Int64, top: int) -> float:
    """Round an exact sum, whose highest non-zero chunk is `top`, to the nearest float64.

    Shapes and units: acc int64[*], each in [0, 2^32); chunk acc[c] counts units of 2^(32 c − 1074).
    """
    second = acc[top - 1] if top >= 1 else int64(0)
    third = acc[top - 2] if top >= 2 else int64(0)
    length = int64(0)  # length of the highest chunk, in bits
    while acc[top] >> length != 0:
        length += int64(1)
    # `head` has the 62 highest bits: all bits of chunk `top`, 32 or fewer, and the highest bits of the next two chunks.
    # `has_more` is true if any bit after these is set.
    head = (acc[top] << int64(30)) | (second >> int64(2))
    has_more = (second & int64(3)) != 0
    if length < 32:
        missing = int64(32) - length
        rest = ((second & int64(3)) << int64(32)) | third  # the 34 bits after the first 30
        head = (head << missing) | (rest >> (int64(34) - missing))
        has_more = (rest & ((int64(1) << (int64(34) - missing)) - int64(1))) != 0
    else:
        has_more = has_more or third != 0
    for c in range(top - 2):
        has_more = has_more or acc[c] != 0
    fraction = head & int64(511)  # of the 62 bits, a float64 has 53: nine are dropped, and 256 is half of a unit
    whole = head >> int64(9)
    if fraction > 256 or (fraction == 256 and (has_more or (whole & int64(1)) != 0)):  # half goes to an even number
        whole += int64(1)
    exponent = 32 * top + length - 53 - 1074  # of the lowest of the 53 bits; the highest is bit `length` of `top`
    return math.ldexp(np.float64(whole), int(exponent))


@bare
def _error_of_product(x: float, z: float, product: float) -> float:
    """Return x · z − product, exactly (Dekker, see expressions/twofold.py)."""
    wide = _SPLIT * x
    x_head = wide - (wide - x)
    wide = _SPLIT * z
    z_head = wide - (wide - z)
    x_tail, z_tail = x - x_head, z - z_head
    return ((x_head * z_head - product) + x_head * z_tail + x_tail * z_head) + x_tail * z_tail


@bare
def accumulate_square(acc: Int64, value: float, float_scratch: Float64, float_bits: Int64, sign: int) -> None:
    """Add `sign` times the square of a finite float64, exactly; see as_two for the scratch."""
    float_scratch[0] = value * value
    square = float_scratch[0]
    accumulate(acc, float_bits[0], sign)
    float_scratch[0] = _error_of_product(value, value, square)
    accumulate(acc, float_bits[0], sign)


@bare
def as_two(acc: Int64, pair: Float64, float_scratch: Float64, float_bits: Int64) -> None:
    """Write the sum as pair[0] + pair[1]. float_scratch float64[1] and float_bits int64[1] are the same memory."""
    pair[0] = rounded(acc)
    float_scratch[0] = pair[0]
    accumulate(acc, float_bits[0], -1)
    pair[1] = rounded(acc)
    accumulate(acc, float_bits[0], 1)


@bare
def spread_of(count: float, sums: Float64, squares: Float64) -> float:
    """Return n · Σx² − (Σx)², which is n² · variance. Each sum is given as two floats: the nearest one, and the rest.

    A result that may be a rounding error, up to 2^-101 · n · Σx², is 0: equal values have the standard deviation 0.
    """
    n = np.float64(count)
    scaled_squares = n * squares[0]
    left_rest = _error_of_product(n, squares[0], scaled_squares) + n * squares[1]
    right = sums[0] * sums[0]  # (Σx)²; each rest has the digits that its float lacks
    right_rest = _error_of_product(sums[0], sums[0], right) + 2.0 * sums[0] * sums[1]
    difference: float = (scaled_squares - right) + (left_rest - right_rest)
    return difference if difference > scaled_squares * _LEVEL else 0.0
