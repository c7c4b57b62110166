"""The first bytes of a CSV file → its encoding, delimiters and quotes, its names, and its number signs.

    bytes ──▶ encoding ──▶ text ──▶ delimiter, quote ──▶ names and first records ──▶ decimal sign, sign of thousands

A byte order mark or the zeros of UTF-16 decide the encoding; otherwise it is UTF-8 if the bytes are valid, or cp1252.
The delimiter is the sign that gives the most fields in the same number on every line. Signs in the mapping take
precedence.
Tested by: tests/sources/test_csv_form.py
"""

import codecs
import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv

from cep.base.errors import InputError, UnreadableError
from cep.columnar.convert import AmbiguousError, guess_number_form
from cep.columnar.mapping import FileForm
from cep.kernels.text.csv_records import EMPTY, FIELDS, OPEN_STATES, WHOLE, ZERO_BYTE
from cep.sources.csv_records import CsvBlock, CsvCutter, Utf8Text, cut, lines_count, plain_records
from cep.sources.inputs import UnpackedFile
from cep.sources.json_lines import Readable

LOOK_BYTES = 1 << 18
_DELIMITERS = ",;\t|"
_RECORDS = 200
_LINES_BEFORE_MAX = 100  # the names, as a title and notes
_HEADER_BYTES_MAX = 100_000  # of a record that is looked at
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?', re.IGNORECASE)  # Excel writes it before the names
_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_NAMES = {"\t": "tab", " ": "blank", "\u00a0": "blank", "\u202f": "blank"}
# Signs of a file of a country in which the comma is the decimal sign.
_EUROPEAN = ";\t"


@dataclass(frozen=True, slots=True)
class CsvFile:
    """A CSV file and the results of its inspection.

    `form` has its delimiter, quote and encoding; the decimal and thousands signs come from `with_numbers`. `names` are
    the unique names of its columns, after `lines_before` lines such as a title. `records` are the first records. The
    records begin after `begin_bytes` of the file in UTF-8.
    """

    path: Path
    form: FileForm
    names: tuple[str, ...]
    begin_bytes: int
    records: tuple[Sequence[str], ...]
    lines_before: int = 0

    def with_numbers(self, names: Iterable[str]) -> FileForm:
        """Return the form (delimiter, quote, …) with the decimal and thousands signs that the numbers of these columns
        have in the first records. Raises: InputError if `1,234` may be two numbers."""
        columns = [self.names.index(name) for name in names if name in self.names]
        texts = [record[column] for record in self.records for column in columns if column < len(record)]
        form = self.form
        try:
            numbers = guess_number_form(
                texts, decimal=form.decimal, thousands=form.thousands, is_european=form.delimiter in _EUROPEAN
            )
        except AmbiguousError as error:
            raise InputError(
                f"{self.path}: {error}; write the file with one decimal sign, and say which with --decimal , or "
                "--decimal ."
            ) from None
        return form if numbers is None else replace(form, decimal=numbers.decimal, thousands=numbers.thousands)


def open_csv(path: Path, form: FileForm, root: Path | None = None) -> CsvFile:
    """Inspect the beginning of a CSV file: encoding, delimiter, quote, names and first records. An empty file has no
    columns. Raises: OSError, InputError, UnreadableError."""
    with UnpackedFile(path, root) as file:
        begin = file.read(LOOK_BYTES)
    encoding = form.encoding or _encoding(begin)
    try:
        text = codecs.getincrementaldecoder("utf-8-sig" if encoding == "utf-8" else encoding)().decode(begin)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} cannot be read as {encoding}: {error.reason}; say --encoding") from error
    content, is_whole = text.encode("utf-8", "surrogatepass"), len(begin) < LOOK_BYTES
    if is_whole and not content.endswith((b"\n", b"\r")):
        content += b"\n"  # nothing comes after the beginning, so its last line is a record
    separator_line = _SEPARATOR_LINE.fullmatch(text.partition("\n")[0].strip())  # such as `sep=;`, before the names
    quote = form.quote or _quote(text)
    delimiter = form.delimiter or (separator_line[1] if separator_line else _delimiter(content, quote))
    complete_form = replace(form, delimiter=delimiter, quote=quote, encoding=encoding)
    if not form.quote:
        complete_form = _with_escape(content, complete_form)
    try:
        rows = _first_rows(content, complete_form)
    except InputError as error:
        raise InputError(f"{path} cannot be read as CSV: {error}") from None
    rows = rows[1:] if separator_line else rows
    if not rows:
        return CsvFile(path, complete_form, (), 0, ())
    header = header_row([len(row.fields) for row in rows], [row.fields for row in rows])
    names = rows[header]
    faults = {row.fault for row in rows[header + 1 :]}
    if names.fault == ZERO_BYTE or (ZERO_BYTE in faults and WHOLE not in faults):
        raise InputError(f"{path} cannot be read as CSV: it holds zero bytes, so it is not a text")
    if names.fault not in (WHOLE, FIELDS):
        raise InputError(
            f"{path} cannot be read as CSV: the line with the names of its columns has quotes that do not fit "
            "together; correct it, or say --delimiter, --quote or --encoding"
        )
    records = [row.fields for row in rows[header + 1 :] if row.fault == WHOLE and len(row.fields) == len(names.fields)]
    mark_bytes = len(codecs.BOM_UTF8) if encoding == "utf-8" and begin.startswith(codecs.BOM_UTF8) else 0
    return CsvFile(
        path, complete_form, unique_names(names.fields), names.end + mark_bytes, tuple(records[:_RECORDS]),
        lines_before=lines_count(content[: names.begin]) if header else 0,
    )  # fmt: skip


@contextmanager
def opened_csv(file: CsvFile, root: Path | None) -> Iterator[CsvCutter]:
    """Open the records of a file. Raises: OSError, UnreadableError, UnicodeDecodeError."""
    with UnpackedFile(file.path, root) as unpacked:
        is_utf8 = file.form.encoding == "utf-8"
        text: Readable = unpacked if is_utf8 else Utf8Text(unpacked, file.form.encoding)
        yield CsvCutter(text, file.form, len(file.names), file.begin_bytes)


def texts_of(file: CsvFile, block: CsvBlock, columns: Sequence[str]) -> pa.RecordBatch:
    """Return columns of a block of records, as texts; null for an empty text. Raises: UnreadableError if Arrow reads
    another number of records."""
    parse = pcsv.ParseOptions(
        delimiter=file.form.delimiter, quote_char=file.form.quote[0], newlines_in_values=block.has_lines
    )
    # Texts are checked where they are decoded, so that a bad one costs its record alone.
    convert = pcsv.ConvertOptions(
        column_types=dict.fromkeys(file.names, pa.string()), strings_can_be_null=True, null_values=[""],
        include_columns=list(columns), check_utf8=False,
    )  # fmt: skip
    read = pcsv.ReadOptions(use_threads=False, column_names=file.names, block_size=len(block.content) + 1)
    table = pcsv.read_csv(pa.BufferReader(block.content), read, parse, convert)
    if table.num_rows != block.count:
        raise UnreadableError(
            f"{file.path}: {block.count} records were found and {table.num_rows} were read; say --quote and --delimiter"
        )
    batches: list[pa.RecordBatch] = table.combine_chunks().to_batches()
    return batches[0]


@dataclass(frozen=True, slots=True)
class _Row:
    """A record of the beginning of a file: its place, what it is, and its fields."""

    begin: int
    end: int
    fault: int
    fields: list[str]


def _first_rows(content: bytes, form: FileForm) -> list[_Row]:
    """Return the first records of a file without empty lines. Raises: InputError."""
    parts = cut(content, form)
    rows, begin = list[_Row](), 0
    for end, fault in zip(parts.ends.tolist(), parts.faults.tolist(), strict=True):
        if fault != EMPTY and end - begin < _HEADER_BYTES_MAX:
            text = plain_records(content[begin:end], form).decode("utf-8", "replace")
            fields = next(csv.reader([text], delimiter=form.delimiter, quotechar=form.quote[0]), [])
            rows.append(_Row(begin, end, fault, fields))
        begin = end
        if len(rows) > _RECORDS + _LINES_BEFORE_MAX:
            break
    return rows


def header_row(lengths: Sequence[int], rows: Sequence[Sequence[str]]) -> int:
    """Return which row has the names: the first one, or, after a title and notes of fewer fields, the first row of as
    many fields as most rows after it have, if each of its fields can be a name."""
    first = sum(1 for field in rows[0] if field.strip())
    usual = Counter(lengths[1:]).most_common(1)[0][0] if len(lengths) > 2 else 0
    has_names = first * 2 > usual if lengths[0] == usual else lengths[0] > 1 and usual - lengths[0] < 2
    if usual < 2 or lengths[0] > usual or has_names:
        return 0
    for number, row in enumerate(rows[: _LINES_BEFORE_MAX + 1]):
        if number and lengths[number] == usual and _are_names(row):
            after = lengths[number + 1 :]
            return number if after and after.count(usual) * 2 >= len(after) else 0
    return 0


def _are_names(fields: Sequence[str]) -> bool:
    names = [field.strip() for field in fields]
    return len(set(names)) == len(names) and all(name and (name[0].isalpha() or name[0] == "_") for name in names)


def _with_escape(content: bytes, form: FileForm) -> FileForm:
    """Return the form in which a backslash stands before a quote of a text, if fewer records are damaged by it."""
    if f"\\{form.quote}".encode() not in content:
        return form
    escaped = replace(form, quote=form.quote + "\\")
    return escaped if _damage(content, escaped) < _damage(content, form) else form


def _damage(content: bytes, form: FileForm) -> int:
    """Return the number of records that are damaged, or of another number of fields than most."""
    parts = cut(content, form)
    lengths = parts.fields[parts.faults == WHOLE]
    columns = int(np.bincount(lengths).argmax()) if len(lengths) else 0
    is_right = (parts.faults == WHOLE) & (parts.fields == columns)
    is_open = parts.place in OPEN_STATES
    return int(np.count_nonzero(~is_right & (parts.faults != EMPTY))) + is_open


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of columns, each once: a second one of a name is NAME#2, one without a name is #N."""
    counts = Counter[str]()
    unique = []
    for number, written in enumerate(names, 1):
        name = written.strip() or f"#{number}"
        counts[name] += 1
        unique.append(name if counts[name] == 1 else f"{name}#{counts[name]}")
    return tuple(unique)


def shown_form(form: FileForm, lines_before: int = 0) -> str:
    """Describe the unusual delimiters, quotes, number signs and encoding of a CSV file, and the lines before the names
    of its columns; "" if all are usual."""
    parts = [f"{lines_before} lines before the names are left out"] if lines_before else []
    if form.delimiter != ",":
        parts.append(f"{_shown(form.delimiter)} between fields")
    if form.quote[0] != '"':
        parts.append(f"{_shown(form.quote[0])} around texts")
    if len(form.quote) > 1:
        parts.append("a backslash before quotes")
    if form.decimal:
        thousands = f" and {_shown(form.thousands)} for thousands" if form.thousands else ""
        parts.append(f"{_shown(form.decimal)} as decimal sign{thousands}")
    if form.encoding != "utf-8":
        parts.append(f"encoding {form.encoding}")
    return ", ".join(parts)


def _shown(sign: str) -> str:
    return _NAMES.get(sign, f"`{sign}`")


def _encoding(begin: bytes) -> str:
    """Guess the encoding of a file from its first bytes: a byte order mark, zero bytes, or bytes that are not UTF-8."""
    for mark, name in _MARKS.items():
        if begin.startswith(mark):
            return name
    if b"\0" in begin:
        even, odd = begin[0::2].count(0), begin[1::2].count(0)  # zero bytes at even and at odd places
        if max(even, odd) * 4 >= len(begin):  # in UTF-16, nearly every other byte of a Latin text is zero
            return "utf-16-le" if odd > even else "utf-16-be"
    for name in ("utf-8", "cp1252"):
        with suppress(UnicodeDecodeError):
            codecs.getincrementaldecoder(name)().decode(begin)
            return name
    return "latin-1"


def _quote(text: str) -> str:
    """Return the sign around texts: the single quote if fields stand in such, and none in double ones."""
    if '"' in text:
        return '"'
    fields = re.findall(r"(?:^|[,;\t|])'[^'\n]*'(?=[,;\t|\r\n]|$)", text, re.MULTILINE)
    return "'" if len(fields) > text.count("\n") // 2 and fields else '"'


def _delimiter(content: bytes, quote: str) -> str:
    """Choose the delimiter that gives the most fields per line, with the same number on nearly every line."""
    best, best_score = ",", (0.0, 1)  # a score: the share of rows with as many fields as the names; their number
    for sign in _DELIMITERS:
        rows = _first_rows(content, FileForm(delimiter=sign, quote=quote))
        lengths = [len(row.fields) for row in rows]
        lengths = lengths[header_row(lengths, [row.fields for row in rows]) :] if rows else []
        if not lengths or lengths[0] < 2:
            continue
        lengths = lengths[: _RECORDS + 1]
        score = (round(lengths.count(lengths[0]) / len(lengths), 1), lengths[0])
        if score > best_score:
            best, best_score = sign, score
    return best
