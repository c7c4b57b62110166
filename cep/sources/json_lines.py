"""A block of JSON lines → its values, without a Python object a line.

Tested by: tests/sources/test_pieces.py, tests/sources/test_live.py
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

_NEWLINE, _BRACE = ord("\n"), ord("{")


def json_values(block: bytes) -> pa.Array:
    """The lines of a block as large_binary values, those left out that hold nothing."""
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == _NEWLINE)
    if len(data) and (not len(ends) or ends[-1] != len(data) - 1):
        ends = np.append(ends, len(data))  # the last line has no end
    offsets = np.zeros(len(ends) + 1, np.int64)
    offsets[1:] = ends - np.arange(len(ends))
    kept = np.delete(data, ends[ends < len(data)])
    values = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(kept)]
    )
    # A record begins with a brace; of the few lines that do not, the blank ones are nobody's record.
    lengths = np.diff(offsets)
    odd = (lengths == 0) | (kept[np.minimum(offsets[:-1], max(len(kept) - 1, 0))] != _BRACE) if len(kept) else None
    if odd is None:
        return values.slice(0, 0)
    blank = [row for row in np.flatnonzero(odd).tolist() if not values[row].as_py().strip()]
    if not blank:
        return values
    wanted = np.ones(len(values), bool)
    wanted[blank] = False
    return values.filter(pa.array(wanted))
