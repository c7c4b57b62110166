"""Columns of events → one digest an event: 64 bits, the sum of a hash of each value with the salt of its column.

A value that is null adds nothing, so a column that is null everywhere need not be looked at.
Tested by: tests/columnar/test_digests.py
"""

from __future__ import annotations

import numpy as np

from cep.kernels.arrange import HASH_PRIME, finished
from cep.kernels.jit import bare
from cep.kernels.layout import Int64, UInt8, UInt64
from cep.kernels.siphash import keyed_hash

_U = np.uint64


@bare
def add_numbers(values: Int64, validity: UInt8, first: int, salt: UInt64, out: UInt64) -> None:
    """Add the hash of each number of int64[N] to out uint64[N].

    Shapes: validity is a bitmap whose bit first + i says that number i has a value; empty if all have one; salt
    uint64[3]. With a secret salt there are two rounds, because differences of two numbers may survive one.
    """
    is_secret = salt[2] != 0
    for i in range(out.shape[0]):
        bit = first + i
        if validity.shape[0] == 0 or validity[bit >> 3] >> (bit & 7) & 1:
            h = finished(_U(values[i]) * HASH_PRIME ^ salt[0])
            out[i] += finished(h ^ salt[2]) if is_secret else h


@bare
def add_texts(offsets: Int64, data: UInt8, validity: UInt8, first: int, salt: UInt64, out: UInt64) -> None:
    """Add the hash of each text data[offsets[i]:offsets[i + 1]] to out uint64[N]. Shapes: salt uint64[3]; validity as
    of `add_numbers`."""
    for i in range(out.shape[0]):
        bit = first + i
        if validity.shape[0] == 0 or validity[bit >> 3] >> (bit & 7) & 1:
            out[i] += keyed_hash(data, offsets[i], offsets[i + 1], salt)
