"""A block of JSON lines → its values, without a Python object a line.

Tested by: tests/sources/test_pieces.py, tests/sources/test_live.py
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

_NEWLINE, _BRACE = ord("\n"), ord("{")


def json_values(block: bytes) -> pa.Array:
    """Return the lines of a block as large_binary values, without blank lines."""
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == _NEWLINE)
    if len(data) and (not len(ends) or ends[-1] != len(data) - 1):
        ends = np.append(ends, len(data))  # the last line has no end
    offsets = np.zeros(len(ends) + 1, np.int64)
    offsets[1:] = ends - np.arange(len(ends))
    content = np.delete(data, ends[ends < len(data)])
    values = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    )
    # A record begins with a brace. Few lines do not, and the blank ones among them are left out.
    lengths = np.diff(offsets)
    odd = (
        (lengths == 0) | (content[np.minimum(offsets[:-1], max(len(content) - 1, 0))] != _BRACE)
        if len(content)
        else None
    )
    if odd is None:
        return values.slice(0, 0)
    blank = [row for row in np.flatnonzero(odd).tolist() if not values[row].as_py().strip()]
    if not blank:
        return values
    wanted = np.ones(len(values), bool)
    wanted[blank] = False
    return values.filter(pa.array(wanted))
