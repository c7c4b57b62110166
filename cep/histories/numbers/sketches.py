"""Values ↔ their codes in panes, and the value of a window computed from its codes.

    approx_percentile   a bucket: 50 of equal width between two powers of two, so that its middle is at most 1 % off
                        any value in it; zero and negative values have their own. Each whole number or decimal below
                        64 units has a bucket of its own. After DDSketch (Masson, Rim, Lee, "DDSketch: a fast and
                        fully-mergeable quantile sketch with relative-error guarantees", 2019). Buckets are computed
                        with integers only, so that they do not depend on a machine's logarithm.
    approx_distinct     63 bits of a hash. The count of a window follows from its least 1 024 distinct hashes: exact up
                        to that number, otherwise estimated from their density, with a standard error of 3.1 %
                        (Bar-Yossef and others, "Counting distinct elements in a data stream", 2002: the k minimum
                        values).

Neither depends on how the values were split into panes or batches.
Tested by: tests/histories/test_sketches.py
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.base.limits import DISTINCT_HASHES_MAX
from cep.base.schema import Type
from cep.columnar.batch import text_buffers
from cep.kernels.arrange import hash_texts
from cep.kernels.layout import Int64

UInt64 = NDArray[np.uint64]
_CUTS = 50  # per octave
_MANTISSA_BITS = 52
_MANTISSA = np.int64((1 << _MANTISSA_BITS) - 1)
_MAGNITUDE = np.int64(0x7FFFFFFFFFFFFFFF)
_BIAS, _INFINITE = 1023, 2047
_HASH_BITS = 63
_SEED = 1  # differs from the seed of keys, because hashes of the keys of one key group are similar


def buckets(values: Int64, type_: Type) -> Int64:
    """Return the number of the bucket of each value, for percentiles that are approximate. Bucket 0 contains zero.

    `values` are slots: integers, or the bits of floats. A greater value never has a smaller bucket. Floats nearer to
    zero than 2.3e-308 count as zero; infinities and NaN have their own buckets.
    """
    floats = values.view(np.float64) if type_.is_float else values.astype(np.float64)
    bits = np.ascontiguousarray(floats).view(np.int64)
    magnitude = bits & _MAGNITUDE
    exponent = magnitude >> _MANTISSA_BITS
    code = exponent * _CUTS + (((magnitude & _MANTISSA) * _CUTS) >> _MANTISSA_BITS) + 1
    code[exponent == 0] = 0
    codes: Int64 = np.where(bits < 0, -code, code)
    return codes


def middles(codes: Int64, type_: Type) -> np.ndarray:
    """Return a representative value of each bucket, float64[N]: the middle of the values that it can contain."""
    bucket = np.maximum(np.abs(codes) - 1, 0)
    exponent, cut = (bucket // _CUTS).astype(np.int32), bucket % _CUTS
    power = np.where(exponent == _INFINITE, 0, exponent - _BIAS).astype(np.int32)
    if type_.is_float:
        values = np.ldexp((_CUTS + cut + 0.5) / _CUTS, power)
        values[exponent == _INFINITE] = np.where(cut[exponent == _INFINITE] == 0, np.inf, np.nan)
    else:
        lowest, next_bucket = (np.ceil(np.ldexp((_CUTS + cut + more) / _CUTS, power)) for more in (0, 1))
        values = (lowest + next_bucket - 1) / 2 / 10**type_.scale
    values = np.where(codes < 0, -values, values)
    return np.where(codes == 0, 0.0, values)


def hashes(values: Int64, type_: Type, texts: pa.Array) -> Int64:
    """63 bits of a hash of each value, given by its slot; `texts` is the dictionary of texts."""
    hashed = text_hashes(texts)[values] if type_.is_text else mixed(values)
    return (hashed >> np.uint64(1)).view(np.int64)


def text_hashes(texts: pa.Array) -> UInt64:
    """64 bits of a hash of each text."""
    offsets, data = text_buffers(texts)
    hashed = np.empty(len(texts), np.uint64)
    hash_texts(offsets, data, _SEED, hashed)
    return hashed


def mixed(values: Int64) -> UInt64:
    """64 bits for each number, distinct for distinct numbers.

    The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
    """
    bits = values.view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    out: UInt64 = bits ^ (bits >> np.uint64(31))
    return out


def estimated(counts: Int64, hash_at: Int64) -> Int64:
    """Return the estimated number of distinct values in each window.

    Shapes: counts int64[Q] of retained hashes; hash_at int64[Q], the `DISTINCT_HASHES_MAX`th least of them, where there
    are more.
    """
    estimates, are_more = counts.copy(), counts > DISTINCT_HASHES_MAX
    share = (hash_at[are_more] + 1) / 2.0**_HASH_BITS
    estimates[are_more] = np.rint((DISTINCT_HASHES_MAX - 1) / share).astype(np.int64)
    return estimates
