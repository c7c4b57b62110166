"""The bytes of a JSON file, in the form that its writer chose → JSON lines → their values.

    JSON lines                               as they are, without a byte order mark
    an array, over one line or many          each object becomes a line
    objects with a comma after each          each object becomes a line
    objects over several lines, or in a row  each object becomes a line
    UTF-16                                   UTF-8

The first bytes of the file decide. Objects are found by their braces outside of texts. A file that ends inside an
object is refused. All of it works block by block, without a Python object a record. A line without an end takes no
memory: the part beyond the size limit is dropped, and decoding refuses the rest.
Tested by: tests/sources/test_files.py, tests/sources/test_live.py, tests/sources/test_csv_form.py.
"""

import codecs
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cep.base.errors import InputError
from cep.base.limits import RECORD_BYTES_MAX

READ_BYTES = 16 << 20
_LINE_END, _BRACE = ord("\n"), ord("{")


class Readable(Protocol):
    """A file, or an object that reads like one."""

    def read(self, size: int, /) -> bytes: ...


class LineCutter:
    """Cuts blocks of bytes into whole lines. `position` is the place in the file after the last returned line."""

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self._read = position  # the place after the last block
        self._begun: list[bytes] = []  # the parts of a line without its end yet; joined once, as each join is a copy
        self._begun_bytes = 0

    def take(self, block: bytes) -> bytes:
        """Return the lines that end in this block, with the beginning of the first one from earlier blocks; b"" if no
        line ends here. A first line that is longer than a record may be is cut there."""
        first, lines_end = block.find(b"\n"), block.rfind(b"\n") + 1  # the first line end; the place after the last
        self._read += len(block)
        room_bytes = max(RECORD_BYTES_MAX + 1 - self._begun_bytes, 0)  # how much of the begun line is still kept
        if lines_end == 0:
            self._keep_begun(block[:room_bytes])
            return b""
        self.position = self._read - len(block) + lines_end  # in the file, after the last whole line
        begun = self._take_begun()
        self._keep_begun(block[lines_end:])
        return begun + (block[:lines_end] if first <= room_bytes else block[:room_bytes] + block[first:lines_end])

    def last(self) -> bytes:
        """Return the last line, which has no end."""
        self.position = self._read
        return self._take_begun()

    def _keep_begun(self, part: bytes) -> None:
        if part:
            self._begun.append(part)
            self._begun_bytes += len(part)

    def _take_begun(self) -> bytes:
        begun, self._begun, self._begun_bytes = b"".join(self._begun), [], 0
        return begun


def whole_lines(file: Readable, cutter: LineCutter, block_bytes: int = READ_BYTES) -> Iterator[bytes]:
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
    ends = np.flatnonzero(data == _LINE_END)
    if len(data) and (not len(ends) or ends[-1] != len(data) - 1):
        ends = np.append(ends, len(data))  # the last line has no end
    offsets = np.zeros(len(ends) + 1, np.int64)
    offsets[1:] = ends - np.arange(len(ends))  # in `content`, which lacks the line ends
    content = np.delete(data, ends[ends < len(data)])
    values = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    )
    if not len(content):
        return values.slice(0, 0)
    # Nearly all lines begin with a brace, so they are not blank. Only the few others are checked.
    is_brace = content[np.minimum(offsets[:-1], len(content) - 1)] == _BRACE
    braceless_rows = np.flatnonzero((np.diff(offsets) == 0) | ~is_brace)
    texts = values.take(pa.array(braceless_rows)).view(pa.large_string())
    is_blank = np.asarray(pc.equal(pc.binary_length(pc.ascii_trim_whitespace(texts)), 0))
    if not is_blank.any():
        return values
    has_text = np.ones(len(values), bool)
    has_text[braceless_rows[is_blank]] = False
    return values.filter(pa.array(has_text))


LOOK_BYTES = 1 << 16
_MARK = codecs.BOM_UTF8
_WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_QUOTE, _ESCAPE, _OPEN, _CLOSE = (ord(sign) for sign in '"\\{}')
_BLANK, _NEWLINE, _RETURN = (ord(sign) for sign in " \n\r")
_UNFINISHED_ENDS = (b"{", b"[", b",", b":")
_ADJACENT_OBJECTS = re.compile(rb"\}\s*,?\s*\{")
_BLOCK_BYTES = 1 << 20


def as_json_lines(file: Readable, name: str) -> Readable:
    """Convert a JSON file to JSON lines while it is read, if it is UTF-16, an array of objects, or objects in a row.
    `name` stands in the messages. Raises: InputError while the file is read."""
    begin = file.read(LOOK_BYTES)
    if begin.startswith(_WIDE_MARKS):
        file = _Decoded(_Resumed(begin, file))
        begin = file.read(LOOK_BYTES)
    else:
        begin = begin.removeprefix(_MARK)
    opened = _Resumed(begin, file)
    return opened if _are_lines(begin) else _ObjectLines(opened, name)


def has_json_lines(file: BinaryIO) -> bool:
    """Return True if the file has a record a line, in UTF-8; the file is at its start again."""
    begin = file.read(LOOK_BYTES)
    file.seek(0)
    return not begin.startswith(_WIDE_MARKS) and _are_lines(begin.removeprefix(_MARK))


def _are_lines(begin: bytes) -> bool:
    """Return True if the beginning of a file shows that each line is a record of its own, valid or broken; False for
    one JSON text of many lines: an array of objects, or objects in a row."""
    lines = [line.strip() for line in begin.split(b"\n")]
    if len(lines) > 1 and len(begin) >= LOOK_BYTES:
        lines.pop()  # the last line may continue after the beginning
    first, second = ([line for line in lines if line] + [b"", b""])[:2]
    if not first.startswith((b"{", b"[")):
        return True  # not the beginning of JSON objects: each line is a broken record
    value = json_value(first)
    if isinstance(value, list):
        return not value or not all(isinstance(each, dict) for each in value)  # an array of objects is a whole file
    if isinstance(value, dict):
        return True
    if first.startswith(b"[") or _ADJACENT_OBJECTS.search(first):
        return False  # the first line is a part of an array, or has several objects
    # The first line is not a whole value. It is a broken record, unless its end asks for more, which the second line
    # brings. A second line that is a whole record brings no more, except after a comma: both are then in one text.
    return not first.endswith(_UNFINISHED_ENDS) or (isinstance(json_value(second), dict) and not first.endswith(b","))


def json_value(line: bytes) -> Any:
    """Return the value of a line; None if it is not JSON."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


class _Resumed:
    """A file whose first bytes have been read already: they are returned first."""

    def __init__(self, begin: bytes, file: Readable) -> None:
        self._begin = begin
        self._file = file

    def read(self, size: int) -> bytes:
        if not self._begin:
            return self._file.read(size)
        block, self._begin = self._begin[:size], self._begin[size:]
        return block


class _Decoded:
    """A file in UTF-16 with a byte order mark, read as UTF-8."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-16")()

    def read(self, size: int) -> bytes:
        while block := self._file.read(size):
            if text := self._decoder.decode(block):
                return text.encode()
        return self._decoder.decode(b"", final=True).encode()


class _ObjectLines:
    """The outermost objects of a text, a line each. Signs between the objects become blanks."""

    def __init__(self, file: Readable, name: str) -> None:
        self._file = file
        self._name = name
        self._depth = 0
        self._is_in_text = False
        self._is_escaped = False
        self._is_broken = False

    def read(self, size: int) -> bytes:
        """Return the next block, each outermost object on its own line. Raises: InputError for unbalanced braces."""
        if self._is_broken:
            raise InputError(
                f"{self._name} cannot be read: it has a closing brace without an opening one; write an object a line"
            )
        block = self._file.read(min(size, _BLOCK_BYTES))
        if not block and (self._depth or self._is_in_text):
            raise InputError(
                f"{self._name} cannot be read: it is not JSON lines but one text of objects, and it ends inside an "
                "object; write the file again, or write an object a line"
            )
        return self._lines(np.frombuffer(block, np.uint8)) if block else b""

    def _lines(self, data: NDArray[np.uint8]) -> bytes:
        """Insert a line end after each outermost object of a block. Other line ends and signs between become blanks."""
        is_in_text = self._texts(data)
        steps = (((data == _OPEN).astype(np.int8) - (data == _CLOSE)) * ~is_in_text).astype(np.int64)  # 1, -1, 0
        depth = np.cumsum(steps) + self._depth  # how many braces are open after each byte
        if len(depth) and depth.min() < 0:  # a closing brace without an opening one: keep the bytes before it
            self._is_broken = True
            end = int(np.argmax(depth < 0))
            data, depth, steps = data[:end], depth[:end], steps[:end]
            if not end:
                return b" "  # nothing would be the end of the file
        ends = np.flatnonzero((depth == 0) & (steps < 0))
        is_between = (depth == 0) & (steps == 0)
        blank = is_between | (data == _NEWLINE) | (data == _RETURN)
        self._depth = int(depth[-1]) if len(depth) else self._depth
        return np.insert(np.where(blank, np.uint8(_BLANK), data), ends + 1, np.uint8(_NEWLINE)).tobytes()

    def _texts(self, data: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return which bytes lie inside of a text, the quote that opens it among them."""
        is_quote = data == _QUOTE
        if self._is_escaped or (data == _ESCAPE).any():
            is_quote &= ~self._escaped(data)
        is_in_text = (np.cumsum(is_quote) + self._is_in_text) % 2 == 1
        self._is_in_text = bool(is_in_text[-1]) if len(is_in_text) else self._is_in_text
        return np.asarray(is_in_text, bool)

    def _escaped(self, data: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return which bytes follow an odd number of backslashes."""
        places = np.arange(1, len(data) + 1)
        is_escape = data == _ESCAPE
        # The length of the run of backslashes that ends at each byte; one more in the first run if one waits.
        last_other = np.maximum.accumulate(np.where(is_escape, 0, places))
        runs = places - last_other + np.where(last_other == 0, int(self._is_escaped), 0)
        is_odd = is_escape & (runs % 2 == 1)
        escaped = np.concatenate(([self._is_escaped], is_odd[:-1]))
        self._is_escaped = bool(is_odd[-1])
        return escaped
