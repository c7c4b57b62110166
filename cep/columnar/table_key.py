"""The key of the hashes of this process's tables, drawn when the process begins (kernels/siphash.py).

No output of the process depends on it: tables number their content by first occurrence.
Tested by: tests/columnar/test_texts.py
"""

from __future__ import annotations

import secrets

import numpy as np

from cep.columnar.batch import read_only
from cep.kernels.layout import UInt64

_key = read_only(np.frombuffer(secrets.token_bytes(16), np.uint64).copy())


def table_key() -> UInt64:
    """Return the key: uint64[2], read-only."""
    return _key
