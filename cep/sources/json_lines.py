"""Blocks of bytes → whole lines; a block of JSON lines → its values, without a Python object per line.

A line without an end takes no memory: the part beyond the size limit is dropped, and decoding refuses the rest.

Tested by: tests/sources/test_pieces.py, tests/sources/test_live.py
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import BinaryIO, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.base.limits import RECORD_BYTES_MAX

READ_BYTES = 16 << 20
_NEWLINE, _BRACE = ord("\n"), ord("{")


class _Bytes(Protocol):
    def read(self, size: int, /) -> bytes: ...


class LineCutter:
    """Cuts blocks of bytes into whole lines. `position` is the place in the file after the last returned line."""

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self._read = position
        self._begun: list[bytes] = []  # in parts: to join them at each block takes time that grows with the square
        self._begun_bytes = 0

    def take(self, block: bytes) -> bytes:
        """Return the lines that end in this block, including a beginning from earlier blocks; b"" if no line ends here.

        A line that is longer than a record may be is cut.
        """
        first, lines_end = block.find(b"\n"), block.rfind(b"\n") + 1
        self._read += len(block)
        room = max(RECORD_BYTES_MAX + 1 - self._begun_bytes, 0)
        if lines_end == 0:
            self._begin(block[:room])
            return b""
        self.position = self._read - len(block) + lines_end
        beginning = self._taken()
        self._begin(block[lines_end:])
        return beginning + (block[:lines_end] if first <= room else block[:room] + block[first:lines_end])

    def last(self) -> bytes:
        """Return the last line, which has no end."""
        self.position = self._read
        return self._taken()

    def _begin(self, part: bytes) -> None:
        if part:
            self._begun.append(part)
            self._begun_bytes += len(part)

    def _taken(self) -> bytes:
        begun, self._begun, self._begun_bytes = b"".join(self._begun), [], 0
        return begun


def whole_lines(file: _Bytes, cutter: LineCutter, block_bytes: int = READ_BYTES) -> Iterator[bytes]:
    """Yield the lines of a file, many at a time."""
    while block := file.read(block_bytes):
        if lines := cutter.take(block):
            yield lines
    if line := cutter.last():
        yield line


def lines_between(file: BinaryIO, start: int, stop: int) -> bytes:
    """Return the whole lines of a file that begin in these bytes, [start, stop)."""
    file.seek(max(start - 1, 0))
    block = file.read(stop - file.tell())
    if start:  # the reader of the line's beginning reads it
        block = block[block.find(b"\n") + 1 :] if b"\n" in block else b""
    if block and not block.endswith(b"\n"):
        block += file.readline(RECORD_BYTES_MAX + 1)
    return block if start else block.removeprefix(codecs.BOM_UTF8)


def json_values(block: bytes) -> pa.Array:
    """Split a block into lines. Return them as large_binary values, without blank lines."""
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
    is_braceless = (
        (lengths == 0) | (content[np.minimum(offsets[:-1], max(len(content) - 1, 0))] != _BRACE)
        if len(content)
        else None
    )
    if is_braceless is None:
        return values.slice(0, 0)
    braceless_rows = np.flatnonzero(is_braceless)
    texts = values.take(pa.array(braceless_rows)).view(pa.large_string())
    is_blank = np.asarray(pc.equal(pc.binary_length(pc.ascii_trim_whitespace(texts)), 0))
    if not is_blank.any():
        return values
    has_text = np.ones(len(values), bool)
    has_text[braceless_rows[is_blank]] = False
    return values.filter(pa.array(has_text))
