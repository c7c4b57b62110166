"""Entries of a list as written (in a file, a record, a pattern) → keys, and the mistakes in other entries.

    string, prefix   the text as UTF-8             C-104, 411111
    int, decimal(n)  eight bytes of the scaled number
    cidr             family, length, masked address   10.0.0.0/8, 2001:db8::/32, a single address

A text file has an entry per line; empty lines and lines that begin with `#` are left out. A `.csv` file has a header;
its entries are in the column with the list's name, or in the first column.
Tested by: tests/lists/test_lists.py
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from cep.base.errors import SourceError, UnreadableError
from cep.base.files import read_file
from cep.base.limits import DECIMAL_SCALE_MAX, LIST_ENTRIES_MAX, LIST_ENTRY_BYTES_MAX, LIST_FILE_BYTES_MAX
from cep.base.text import decimal_units
from cep.kernels.layout import Int64, UInt8
from cep.kernels.text.members import NETWORK_BYTES, read_networks

TEXT = pa.large_string()
TEXT_KINDS = ("string", "prefix", "cidr")
_DECIMAL = re.compile(r"decimal\((\d{1,2})\)")
_PROBLEMS_MAX = 10  # of one list; who has more has given the wrong file


@dataclass(frozen=True, slots=True)
class Keys:
    """Key i is data[offsets[i]:offsets[i + 1]]. Shapes: offsets int64[N + 1], data uint8[bytes]."""

    offsets: Int64
    data: UInt8

    def __len__(self) -> int:
        return len(self.offsets) - 1


@dataclass(frozen=True, slots=True)
class WrongEntry:
    """An entry that cannot be taken. `code` is CEP802 for the wrong type, CEP803 for one that is too long."""

    number: int
    code: str
    message: str


def is_kind(text: str) -> bool:
    """Return True if a list may be of this kind: string, int, decimal(n), prefix or cidr."""
    return text in (*TEXT_KINDS, "int") or scale_of(text) is not None


def scale_of(kind: str) -> int | None:
    """Return the decimals of `decimal(2)`; None for another kind, or more decimals than there can be."""
    decimals = _DECIMAL.fullmatch(kind)
    return int(decimals[1]) if decimals is not None and int(decimals[1]) <= DECIMAL_SCALE_MAX else None


def keys_of(entries: pa.Array | Sequence[str], kind: str) -> tuple[Keys, list[WrongEntry]]:
    """Convert entries to keys: the valid ones in their order, and the first wrong ones; null is wrong.

    Cost: O(N). Entries become Python objects for decimals, and for ints if one of them is not a few plain digits.
    """
    assert is_kind(kind), kind
    texts = entries if isinstance(entries, pa.Array) else pa.array(entries, TEXT)
    texts = texts.cast(TEXT)
    if kind == "cidr":
        return _networks(texts)
    if kind in TEXT_KINDS:
        return _texts(texts)
    return _numbers(texts, kind)


def read_entries(path: Path, column: str, root: Path | None = None) -> pa.Array:
    """Read the entries of a file, large_string; a path that a pattern names, only below `root`. Raises: SourceError."""
    try:
        data = read_file(path, LIST_FILE_BYTES_MAX, root)
        if path.suffix.lower() == ".csv":
            return _csv_entries(data, path, column)
        lines = (line.strip() for line in data.decode("utf-8-sig").splitlines())
        entries = pa.array([line for line in lines if line and not line.startswith("#")], TEXT)
    except (UnreadableError, UnicodeDecodeError, pa.ArrowException) as error:
        raise SourceError(f"{path} cannot be read as a list: {error}") from error
    return _few_enough(entries, path)


def _csv_entries(data: bytes, path: Path, column: str) -> pa.Array:
    header = data[: data.find(b"\n") + 1 or len(data)].decode("utf-8-sig")
    names = [name.strip().strip('"') for name in header.rstrip("\r\n").split(",")]
    chosen = column if column in names else names[0]
    table = pa_csv.read_csv(
        pa.BufferReader(data),
        convert_options=pa_csv.ConvertOptions(
            include_columns=[chosen], column_types={chosen: TEXT}, strings_can_be_null=False
        ),
    )
    return _few_enough(pc.utf8_trim_whitespace(table.column(0).combine_chunks()).cast(TEXT), path)


def _few_enough(entries: pa.Array, path: Path) -> pa.Array:
    if len(entries) > LIST_ENTRIES_MAX:
        raise SourceError(f"{path} has {len(entries)} entries, a list has at most {LIST_ENTRIES_MAX}; divide the list")
    return entries


# ------------------------------------------------------------------------------------------------------ by kind


def _texts(texts: pa.Array) -> tuple[Keys, list[WrongEntry]]:
    lengths = np.asarray(pc.binary_length(texts).fill_null(0))
    bad = (lengths == 0) | (lengths > LIST_ENTRY_BYTES_MAX)
    return text_keys(texts.filter(pa.array(~bad)) if bad.any() else texts), _wrong(texts, bad, "a text")


def _networks(texts: pa.Array) -> tuple[Keys, list[WrongEntry]]:
    written = text_keys(texts.fill_null(""))
    data = np.empty(len(texts) * NETWORK_BYTES, np.uint8)
    ends = np.empty(len(texts) + 1, np.int64)
    read_networks(written.offsets, written.data, data, ends)
    bad = ends[1:] == ends[:-1]
    offsets = np.concatenate([ends[:1], ends[1:][~bad]])
    return Keys(offsets, data[: ends[-1]]), _wrong(texts, bad, "a network such as 10.0.0.0/8 without bits behind it")


def _numbers(texts: pa.Array, kind: str) -> tuple[Keys, list[WrongEntry]]:
    scale = scale_of(kind) or 0
    plain = pc.match_substring_regex(texts.fill_null(""), r"^-?[0-9]{1,18}$")
    if scale == 0 and pc.all(plain).as_py() is not False:
        values, bad = np.asarray(texts.cast(pa.int64())), np.zeros(len(texts), bool)
    else:
        scaled = [None if text is None else decimal_units(text, scale) for text in texts.to_pylist()]
        bad = np.array([value is None for value in scaled], bool)
        values = np.array([value for value in scaled if value is not None], np.int64)
    data = np.ascontiguousarray(values.astype("<i8")).view(np.uint8)
    return Keys(np.arange(len(values) + 1, dtype=np.int64) * 8, data), _wrong(texts, bad, f"of type {kind}")


def text_keys(texts: pa.Array) -> Keys:
    """Return texts as keys, without a copy; a null is an empty key."""
    _, offsets, data = texts.buffers()
    bounds = np.frombuffer(offsets, np.int64, len(texts) + 1, texts.offset * 8) if offsets else np.zeros(1, np.int64)
    return Keys(bounds, np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8))


def _wrong(texts: pa.Array, bad: np.ndarray, noun: str) -> list[WrongEntry]:
    """Describe the first wrong entries, and count the others."""
    problems = []
    for number in np.flatnonzero(bad)[:_PROBLEMS_MAX].tolist():
        text = texts[number].as_py()
        size = 0 if text is None else len(text.encode())
        if size > LIST_ENTRY_BYTES_MAX:
            message = f"entry {number + 1} has {size} bytes, an entry has at most {LIST_ENTRY_BYTES_MAX}"
            problems.append(WrongEntry(number, "CEP803", message))
        else:
            shown = "nothing" if not text else f"`{text}`"
            problems.append(WrongEntry(number, "CEP802", f"entry {number + 1} is {shown}, which is not {noun}"))
    others_count = int(bad.sum()) - len(problems)
    if others_count:
        first_other = int(np.flatnonzero(bad)[_PROBLEMS_MAX])
        problems.append(WrongEntry(first_other, "CEP802", f"and {others_count} entries more"))
    return problems
