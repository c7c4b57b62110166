"""Flags of values that are less than they say → one text an event that names them (columns.INCOMPLETE).

A value is *folded* where its window has more events than are retained one by one (numbers/folds.py). It may be *cut*
where a key has more sub-keys than it knows (remembered.py, known_sub_keys.py). Then the one that is asked for is not
known, or was not at a time that its window reaches back to.
Tested by: tests/histories/test_folds.py, tests/histories/test_known_sub_keys.py, tests/histories/test_remembered.py
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from cep.columnar.batch import TEXT
from cep.kernels.layout import UInt8


def incomplete_texts(flags: Mapping[str, UInt8], count: int) -> pa.Array:
    """text[Q], null for nothing: the identities of histories, each with flags uint8[Q], of which `count` is Q."""
    if not flags:
        return pa.nulls(count, TEXT)
    names = sorted(flags)
    rows = np.stack([flags[name] for name in names], axis=1)
    different, which = np.unique(rows, axis=0, return_inverse=True)
    texts = [" ".join(name for name, has in zip(names, row, strict=True) if has) for row in different.tolist()]
    return pa.array([text or None for text in texts], TEXT).take(pa.array(which.reshape(-1)))
