"""The first bytes of a CSV file → its encoding, delimiters and quotes, its names, and its number signs.

    bytes ──▶ encoding ──▶ text ──▶ delimiter, quote ──▶ names and first records ──▶ decimal sign, sign of thousands

A byte order mark or the zeros of UTF-16 decide the encoding; otherwise it is UTF-8 if the bytes are valid, or cp1252.
The delimiter is the sign that gives the most fields in the same number on every line. Signs in the mapping take
precedence.
Tested by: tests/sources/test_csv_form.py
"""

import codecs
import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from cep.base.errors import InputError
from cep.columnar.convert import AmbiguousError, guess_number_form
from cep.columnar.mapping import FileForm
from cep.sources.inputs import UnpackedFile

LOOK_BYTES = 1 << 18
_DELIMITERS = ",;\t|"
_RECORDS = 200
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?', re.IGNORECASE)  # Excel writes it before the names
_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_NAMES = {"\t": "tab", " ": "blank", "\u00a0": "blank", "\u202f": "blank"}
# Signs of a file of a country in which the comma is the decimal sign.
_EUROPEAN = ";\t"


@dataclass(frozen=True, slots=True)
class CsvFile:
    """A CSV file and the results of its inspection.

    `form` has its delimiter, quote and encoding; the decimal and thousands signs come from `with_numbers`. `names` are
    the unique names of its columns. `records` are the first records, after `lines_before` lines of the file.
    """

    path: Path
    form: FileForm
    names: tuple[str, ...]
    lines_before: int
    records: tuple[Sequence[str], ...]
    is_empty: bool

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
    encoding = form.encoding or _encoding(path, begin)
    try:
        text = codecs.getincrementaldecoder("utf-8-sig" if encoding == "utf-8" else encoding)().decode(begin)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} cannot be read as {encoding}: {error.reason}; say --encoding") from error
    is_whole = len(begin) < LOOK_BYTES  # there is nothing after the beginning
    separator_line = _SEPARATOR_LINE.fullmatch(text.partition("\n")[0].strip())  # such as `sep=;`, before the names
    quote = form.quote or _quote(text)
    delimiter = form.delimiter or (separator_line[1] if separator_line else _delimiter(text, quote))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quotechar=quote)
    names: tuple[str, ...] = ()
    lines_before, records = 0, list[Sequence[str]]()
    try:
        for row in reader:
            if not names and row and not (separator_line and reader.line_num == 1):
                names, lines_before = unique_names(row), reader.line_num
            elif names and row and len(records) < _RECORDS:
                records.append(row)
    except csv.Error as error:
        raise InputError(f"{path} cannot be read as CSV: {error}; say --delimiter, --quote or --encoding") from error
    is_empty = is_whole and not records
    if records and not is_whole and len(records) < _RECORDS:
        records.pop()  # the beginning may end inside of it
    complete_form = replace(form, delimiter=delimiter, quote=quote, encoding=encoding)
    return CsvFile(path, complete_form, names, lines_before, tuple(records), is_empty)


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of columns, each once: a second one of a name is NAME#2, one without a name is #N."""
    counts = Counter[str]()
    unique = []
    for number, written in enumerate(names, 1):
        name = written.strip() or f"#{number}"
        counts[name] += 1
        unique.append(name if counts[name] == 1 else f"{name}#{counts[name]}")
    return tuple(unique)


def shown_form(form: FileForm) -> str:
    """Describe the unusual delimiters, quotes, number signs and encoding of a CSV file; "" if all are usual."""
    parts = []
    if form.delimiter != ",":
        parts.append(f"{_shown(form.delimiter)} between fields")
    if form.quote != '"':
        parts.append(f"{_shown(form.quote)} around texts")
    if form.decimal:
        thousands = f" and {_shown(form.thousands)} for thousands" if form.thousands else ""
        parts.append(f"{_shown(form.decimal)} as decimal sign{thousands}")
    if form.encoding != "utf-8":
        parts.append(f"encoding {form.encoding}")
    return ", ".join(parts)


def _shown(sign: str) -> str:
    return _NAMES.get(sign, f"`{sign}`")


def _encoding(path: Path, begin: bytes) -> str:
    """Guess the encoding of a file from its first bytes: a byte order mark, zero bytes, or bytes that are not UTF-8."""
    for mark, name in _MARKS.items():
        if begin.startswith(mark):
            return name
    if b"\0" in begin:
        even, odd = begin[0::2].count(0), begin[1::2].count(0)  # zero bytes at even and at odd places
        if max(even, odd) * 4 < len(begin):  # in UTF-16, nearly every other byte of a Latin text is zero
            raise InputError(f"{path} cannot be read as CSV: it holds zero bytes, so it is not a text")
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


def _delimiter(text: str, quote: str) -> str:
    """Choose the delimiter that gives the most fields per line, with the same number on nearly every line."""
    best, best_score = ",", (0.0, 1)  # a score: the share of rows with as many fields as the first row; their number
    for sign in _DELIMITERS:
        rows = csv.reader(io.StringIO(text, newline=""), delimiter=sign, quotechar=quote)
        try:
            lengths = [len(row) for row in islice(filter(None, rows), _RECORDS + 1)]
        except csv.Error:
            continue
        if 2 < len(lengths) <= _RECORDS:
            lengths.pop()  # the last row of the text, which is the beginning of a file and may end inside of a row
        if not lengths or lengths[0] < 2:
            continue
        score = (round(lengths.count(lengths[0]) / len(lengths), 1), lengths[0])
        if score > best_score:
            best, best_score = sign, score
    return best
