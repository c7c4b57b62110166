"""Records → the lines of one text, for a reader of lines.

Tested by: tests/kernels/test_alert_texts.py, tests/columnar/test_decode.py
"""

from __future__ import annotations

import numpy as np

from cep.kernels.jit import kernel
from cep.kernels.layout import Int64, UInt8

_LINE_BREAK, _OPENS, _CLOSES = 10, 123, 125


@kernel
def join_lines(offsets: Int64, data: UInt8) -> tuple[UInt8, bool, int]:
    """Join all records with line breaks.

    Shapes: N records, int64 offsets[N + 1] into data uint8.
    Returns: uint8[B]; True if each record begins and ends with its own brace; the number of line breaks within records.
    """
    count = offsets.shape[0] - 1
    lines = np.empty(offsets[count] - offsets[0] + max(0, count - 1), np.uint8)
    in_braces, breaks, position = True, 0, 0
    for record in range(count):
        start, end = offsets[record], offsets[record + 1]
        in_braces &= end - start >= 2 and data[start] == _OPENS and data[end - 1] == _CLOSES
        if record > 0:
            lines[position] = _LINE_BREAK
            position += 1
        for k in range(start, end):
            byte = data[k]
            breaks += byte == _LINE_BREAK
            lines[position] = byte
            position += 1
    return lines, in_braces, breaks
