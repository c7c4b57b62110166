"""Values that no column of their field can hold → null in the column, with the value as text for the dead letter.

    JSON     an object where a number belongs, a text that is not UTF-8, NaN, a number of more than 64 bits, two values
    tables   a text that is not UTF-8

Tested by: tests/columnar/test_letters.py
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from cep.base.schema import Kind, Schema, Type
from cep.columnar.batch import TEXT
from cep.columnar.convert import WIDE_DECIMAL
from cep.columnar.mapping import FieldMapping, Path

# By field: the row of each stray value, and the value as a readable text.
Strays = Mapping[str, Mapping[int, str]]
NO_STRAYS: Strays = {}
TIME_NUMBER = pa.decimal128(38, 17)  # times that are numbers with a fraction; a double has 17 digits
_SHOWN_CHARACTERS = 40
_INT64 = range(-(2**63), 2**63)
_INT64_CHARACTERS = 20


@dataclass(frozen=True, slots=True)
class Mended:
    """A JSON record without its stray values as `text`, the `record` itself, its `row`, and the strays by field."""

    text: bytes
    record: bytes
    row: int
    strays: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Number:
    """A number as the record writes it: a double would lose its last digits."""

    text: str


class _Twice:
    """The value of a name that an object has twice: readers differ in which one they take."""


def mended(record: bytes, row: int, schema: Schema, mapping: FieldMapping) -> Mended | None:
    """Read a JSON record that the block parser refused, in Python: slow, but few need it. Take out its stray values,
    which do not fit the type of their field, so that the rest can be parsed. None if it is not one JSON object."""
    try:
        # A byte that is not UTF-8 becomes half of a surrogate pair, which no valid text has.
        text = record.decode("utf-8", "surrogateescape")
        read = json.loads(text, parse_float=_Number, parse_int=_whole, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        return None
    if not isinstance(read, dict):
        return None
    fields: dict[str, Any] = {}
    strays: dict[str, str] = {}
    types = schema.columns()
    for name, path in mapping.paths(schema).items():
        value = _value_at(read, path)
        if value is None:
            continue
        type_ = types.get(name)
        if isinstance(value, str) and type_ is not None and type_.kind is Kind.DECIMAL:
            value = value.strip()  # Arrow's parser of blocks refuses blanks around a number
        if not _fits(value, type_):
            strays[name] = _shown(value)
            continue
        inner = fields
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        # A number keeps the digits that it was written with.
        inner[path[-1]] = orjson.Fragment(value.text) if isinstance(value, _Number) else value
    return Mended(orjson.dumps(fields), record, row, strays)


def strays_by_field(records: list[Mended]) -> Strays:
    """Return the strays of records, by field and by place in the list."""
    by_field: dict[str, dict[int, str]] = {}
    for place, record in enumerate(records):
        for name, text in record.strays.items():
            by_field.setdefault(name, {})[place] = text
    return by_field


def without_broken_texts(columns: Mapping[str, pa.Array]) -> tuple[Mapping[str, pa.Array], Strays] | None:
    """Replace texts that are not UTF-8 by null, and return them as strays. None if a column has another fault."""
    repaired, strays = dict(columns), dict[str, Mapping[int, str]]()
    for name, column in columns.items():
        if is_valid(column):
            continue
        texts = column
        if pa.types.is_dictionary(column.type) and is_valid(column.indices):  # indices of distinct texts
            try:
                texts = pc.take(_as_bytes(column.dictionary), column.indices)
            except pa.ArrowIndexError:
                return None
        texts = _as_bytes(texts)
        if not pa.types.is_large_binary(texts.type) or not is_valid(texts):  # the fault is not in a text
            return None
        is_text = np.array([_succeeds((value or b"").decode) for value in texts.to_pylist()], bool)
        strays[name] = {row: _shown(texts[row].as_py()) for row in np.flatnonzero(~is_text).tolist()}
        repaired[name] = pc.if_else(pa.array(is_text), texts, pa.scalar(None, texts.type)).cast(TEXT)
    return repaired, strays


def _as_bytes(texts: pa.Array) -> pa.Array:
    if pa.types.is_string(texts.type):
        return texts.view(pa.binary()).cast(pa.large_binary())
    return texts.view(pa.large_binary()) if pa.types.is_large_string(texts.type) else texts


def is_valid(column: pa.Array) -> bool:
    """Return True for an array without a fault, such as a text that is not UTF-8."""
    return _succeeds(partial(column.validate, full=True))


def _succeeds(call: Callable[[], object]) -> bool:
    try:
        call()
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return False
    return True


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        read |= dict.fromkeys((name for name, count in counts.items() if count > 1), _Twice())
    return read


def _whole(text: str) -> int | _Number:
    return int(text) if len(text) <= _INT64_CHARACTERS and int(text) in _INT64 else _Number(text)


def _value_at(record: Any, path: Path) -> Any:
    for name in path:
        if isinstance(record, _Twice):
            return record
        if not isinstance(record, dict):
            return None
        record = record.get(name)
    return record


def _fits(value: Any, type_: Type | None) -> bool:
    """Return True if the parser of blocks can read the value, even a bad one. A name has no type."""
    if isinstance(value, str):
        is_text = value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)
        return is_text and (type_ is None or type_.kind is not Kind.DECIMAL or _is_decimal(value, WIDE_DECIMAL))
    if type_ is None:
        return False
    if isinstance(value, _Number):
        return _is_readable(value.text, type_.kind)
    return isinstance(value, int)


def _is_readable(number: str, kind: Kind) -> bool:
    if kind is Kind.DECIMAL:
        return _is_decimal(number, WIDE_DECIMAL)
    if kind is not Kind.FLOAT and number.removeprefix("-").isdigit():
        return False  # it has more than 64 bits
    return _is_decimal(number, TIME_NUMBER) if kind is Kind.TIME else abs(float(number)) < float("inf")


def _is_decimal(number: str, type_: pa.Decimal128Type) -> bool:
    return _succeeds(partial(pa.array([number], TEXT).cast, type_))


def _shown(value: Any) -> str:
    """Show a stray value (one that does not fit its field) in a message: its text, or its kind if it is a container."""
    if isinstance(value, _Number):
        return repr(value.text[:_SHOWN_CHARACTERS])
    if isinstance(value, str):
        value = value.encode("utf-8", "backslashreplace")  # half of a surrogate pair becomes an escape
    if isinstance(value, bytes):  # a byte that is not UTF-8 becomes an escape
        return f"'{value.decode('utf-8', 'backslashreplace')[:_SHOWN_CHARACTERS]}'"
    if isinstance(value, float):
        return "NaN or an infinite number"
    if isinstance(value, _Twice):  # the record has the field twice
        return "one of two values"
    return "an array" if isinstance(value, list) else "an object" if isinstance(value, dict) else repr(value)
