"""The bytes of a CSV file → blocks of whole records, and the records that are damaged, each with its line.

    text after a closing quote, quotes that do not fit together, zero bytes      the record is rejected
    too many or too few fields                                                   the record is rejected
    a quote that never closes, a record of more bytes than the limit             the lines that it covers are rejected

A reader of CSV that joins such lines to one record would lose them in silence. Blocks depend on the file alone: each
reading gives the same ones.
Tested by: tests/sources/test_csv_damage.py
"""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cep.base.errors import InputError
from cep.base.limits import RECORD_BYTES_MAX
from cep.columnar.decode import Poison
from cep.columnar.mapping import FileForm
from cep.kernels.text.csv_records import (
    BEGIN,
    EMPTY,
    FIELDS,
    OPEN_STATES,
    STRAY_QUOTE,
    TEXT_AFTER_QUOTE,
    WHOLE,
    ZERO_BYTE,
    cut_records,
    without_escapes,
)
from cep.sources.json_lines import Readable

UNREADABLE = "unreadable"
_BLOCK_BYTES = 1 << 20
_SHOWN_BYTES = 2_000
_REASONS = {
    TEXT_AFTER_QUOTE: "has text after a closing quote; double a quote inside of a text, or say --quote '\"\\' if a "
    "backslash stands before it",
    STRAY_QUOTE: "has quotes that do not fit together; double a quote inside of a text",
    ZERO_BYTE: "has a zero byte",
}


@dataclass(frozen=True, slots=True)
class CsvBlock:
    """Whole records as bytes, without escapes; their number; and the rejected ones, each with the number of whole
    records of this block before it. `has_lines`: a text may have line ends."""

    content: bytes
    count: int
    rejected: tuple[tuple[int, Poison], ...]
    has_lines: bool = True


@dataclass(frozen=True, slots=True)
class Cut:
    """The records of some bytes: the end of each, what it is, and its number of fields. `place`: where in a record the
    bytes end."""

    ends: np.ndarray
    faults: np.ndarray
    fields: np.ndarray
    place: int


def cut(content: bytes, form: FileForm, columns: int = 0, place: int = BEGIN) -> Cut:
    """Find the records of bytes in UTF-8. Raises: InputError for a sign that takes several bytes."""
    for sign in (form.delimiter, *form.quote):
        if not sign.isascii():
            raise InputError(f"the sign {sign!r} of a CSV file is not ASCII; write the file with another one")
    escape = ord(form.quote[1]) if len(form.quote) > 1 else -1
    data = np.frombuffer(content, np.uint8)
    return Cut(*cut_records(data, ord(form.delimiter), ord(form.quote[0]), escape, columns, place))


def plain_records(content: bytes, form: FileForm) -> bytes:
    """Return whole records with doubled quotes in place of quotes after a backslash."""
    if len(form.quote) < 2:
        return content
    data = np.frombuffer(content, np.uint8)
    return without_escapes(data, ord(form.delimiter), ord(form.quote[0])).tobytes()


def lines_count(content: bytes) -> int:
    """Count the ends of lines."""
    returns = content.count(b"\r")
    return content.count(b"\n") + (returns - content.count(b"\r\n") if returns else 0)


class Utf8Text:
    """A file of text in another encoding, read as UTF-8."""

    def __init__(self, file: Readable, encoding: str) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder(encoding)()

    def read(self, size: int, /) -> bytes:
        """Return the next bytes. Raises: UnicodeDecodeError."""
        while block := self._file.read(size):
            if text := self._decoder.decode(block):
                return text.encode()
        return self._decoder.decode(b"", final=True).encode()


class CsvCutter:
    """The records after the first `skip_bytes` of a file (in UTF-8), which have the names of its columns."""

    def __init__(self, file: Readable, form: FileForm, columns: int, skip_bytes: int) -> None:
        self._file = file
        self._form = form
        self._columns = columns
        self._begun = b""  # a record without its end yet
        self._line = 1  # of the next record
        self._skip(skip_bytes)

    def blocks(self) -> Iterator[CsvBlock]:
        """Yield the blocks of the file."""
        while block := self._file.read(_BLOCK_BYTES):
            if block.endswith(b"\r"):
                block += self._file.read(1)  # one line end may be of two bytes
            content, self._begun = self._begun + block, b""
            parts = cut(content, self._form, self._columns)
            end = int(parts.ends[-1]) if len(parts.ends) else 0
            yield self._block(content[:end], parts)
            self._begun = content[end:]
            if len(self._begun) > RECORD_BYTES_MAX:
                yield self._too_long(parts.place)
        if self._begun:
            yield self._last()

    def _skip(self, size: int) -> None:
        """Pass over the beginning of the file, which is small."""
        while len(self._begun) < size and (block := self._file.read(size - len(self._begun))):
            self._begun += block
        self._line += lines_count(self._begun[:size])
        self._begun = self._begun[size:]

    def _block(self, content: bytes, parts: Cut) -> CsvBlock:
        """Separate whole records from rejected ones."""
        faults, ends = parts.faults, parts.ends
        bad_rows = np.flatnonzero((faults != WHOLE) & (faults != EMPTY))
        whole_before = np.cumsum(faults == WHOLE)
        rejected, pieces, begin = list[tuple[int, Poison]](), list[bytes](), 0
        lines, counted = self._line, 0
        for row in bad_rows.tolist():
            start, end = int(ends[row - 1]) if row else 0, int(ends[row])
            lines, counted = lines + lines_count(content[counted:start]), start
            reason = self._reason(int(faults[row]), int(parts.fields[row]))
            record = content[start:end]
            place = _place(lines, lines_count(record))
            rejected.append((int(whole_before[row]), _poison(f"{place} {reason}", record)))
            pieces.append(content[begin:start])
            begin = end
        first_line, self._line = self._line, lines + lines_count(content[counted:] if counted else content)
        whole = b"".join((*pieces, content[begin:])) if pieces else content
        count = int(whole_before[-1]) if len(whole_before) else 0
        has_lines = self._line - first_line != len(ends)
        return CsvBlock(plain_records(whole, self._form), count, tuple(rejected), has_lines)

    def _reason(self, fault: int, fields: int) -> str:
        if fault == FIELDS:
            return f"has {fields} fields, and the file has {self._columns} columns"
        return _REASONS[fault]

    def _last(self) -> CsvBlock:
        """Return the last record, which has no line end, or a quote that never closes."""
        parts = cut(self._begun, self._form, self._columns)
        if parts.place in OPEN_STATES:
            return self._open_quote(self._begun, lines_count(self._begun), self._begun)
        content = self._begun + b"\n"
        return self._block(content, cut(content, self._form, self._columns))

    def _too_long(self, place: int) -> CsvBlock:
        """Pass over a record that is longer than the limit, up to its end."""
        begun = last = self._begun
        lines, self._begun = lines_count(begun), b""
        while block := self._file.read(_BLOCK_BYTES):
            parts = cut(block, self._form, 0, place)
            if len(parts.ends):
                end = int(parts.ends[0])
                self._begun = block[end:]
                lines += lines_count(block[:end])
                reason = f"{_place(self._line, lines)} is longer than {RECORD_BYTES_MAX} bytes"
                self._line += lines
                return CsvBlock(b"", 0, ((0, _poison(reason, begun)),))
            lines, place, last = lines + lines_count(block), parts.place, block
        if place in OPEN_STATES:
            return self._open_quote(begun, lines, last)
        reason = f"line {self._line} is longer than {RECORD_BYTES_MAX} bytes"
        return CsvBlock(b"", 0, ((0, _poison(reason, begun)),))

    def _open_quote(self, content: bytes, lines: int, last: bytes) -> CsvBlock:
        """Reject all lines from a record on. `last` are the last bytes of the file."""
        lines += not last.endswith((b"\n", b"\r"))
        reason = (
            f"the record of line {self._line} has a quote that never closes: it covers {lines} lines, up to the end of "
            "the file, which are not read; close the quote, or double it inside of a text"
        )
        return CsvBlock(b"", 0, ((0, _poison(reason, content)),))


def _place(line: int, lines: int) -> str:
    return f"line {line}" if lines < 2 else f"the record of lines {line} to {line + lines - 1}"


def _poison(reason: str, record: bytes) -> Poison:
    return Poison(UNREADABLE, reason, record[:_SHOWN_BYTES].decode("utf-8", "replace").rstrip("\r\n"))
