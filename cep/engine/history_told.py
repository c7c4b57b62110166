"""Which values of histories are less than they say → what the events that have them tell of it (columns.TOLD).

A value is *folded* where its window has more events than are kept one by one (folds.py). It may be *cut* where a key
has more values of a sub-key than are known (remembered.py, known_values.py), and the one that is asked for is not among
them, or was not at a time that its window reaches back to.
Tested by: tests/engine/test_folds.py, tests/engine/test_known_values.py, tests/engine/test_remembered.py
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from cep.columnar.batch import TEXT
from cep.kernels.layout import UInt8


def told_texts(flags: Mapping[str, UInt8], count: int) -> pa.Array:
    """text[Q], null for nothing: the identities of histories, each with flags uint8[Q], of which `count` is Q."""
    if not flags:
        return pa.nulls(count, TEXT)
    names = sorted(flags)
    rows = np.stack([flags[name] for name in names], axis=1)
    different, which = np.unique(rows, axis=0, return_inverse=True)
    texts = [" ".join(name for name, has in zip(names, row, strict=True) if has) for row in different.tolist()]
    return pa.array([text or None for text in texts], TEXT).take(pa.array(which.reshape(-1)))
