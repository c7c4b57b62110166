"""Flags of incomplete values → one text per event that names them (columns.INCOMPLETE).

A value is *folded* if its window has more events than are retained one by one (numbers/folds.py). It may be *cut* if a
key has more sub-keys than it remembers (remembered.py, known_sub_keys.py) and the requested one was forgotten at some
time within its window.
Tested by: tests/histories/test_folds.py, tests/histories/test_known_sub_keys.py, tests/histories/test_remembered.py
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from cep.columnar.batch import TEXT
from cep.kernels.layout import UInt8


def incomplete_texts(flags: Mapping[str, UInt8], count: int) -> pa.Array:
    """text[Q], null where nothing is incomplete: identities of histories with a flag, given uint8[Q] by identity."""
    if not flags:
        return pa.nulls(count, TEXT)
    names = sorted(flags)
    rows = np.stack([flags[name] for name in names], axis=1)
    different, which = np.unique(rows, axis=0, return_inverse=True)
    texts = [" ".join(name for name, has in zip(names, row, strict=True) if has) for row in different.tolist()]
    return pa.array([text or None for text in texts], TEXT).take(pa.array(which.reshape(-1)))
