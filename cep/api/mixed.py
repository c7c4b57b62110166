"""A column of pandas whose values are of several kinds → a column of texts, which a field reads value by value.

    24.15, "x", {"a": 1}   →   "24.15", "x", and a text that no field can have

Arrow has no type for such a column. A value that is a text, bytes, a truth value, a whole number or a time is the text
that a field of any type reads as the same value. Another value is no text of a field of texts, where it would be a bad
value alone.
Tested by: tests/columnar/test_convert.py, tests/api/test_odd_frames.py
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.base.schema import Kind
from cep.columnar.batch import TEXT

_TEXT, _OTHER = "\x00text", "\x00other"  # no column of a user can have such names
_SHOWN_CHARACTERS = 36
_EXACT_MAX = 2**53
_NOT_UTF_8 = b"\xff"  # decoding makes such a text a bad value


def mixed_column(values: Sequence[Any]) -> pa.StructArray | None:
    """Return values of several kinds as texts in two columns; None if no value can be of a field, or Arrow has a type.

    None is null.
    """
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    try:
        pa.array(plain)
    except (pa.ArrowException, OverflowError):
        texts = [None if value is None else _text(value) for value in plain]
        if any(text is not None for text in texts):
            others = [
                None if value is None or text is not None else _shown(value)
                for value, text in zip(plain, texts, strict=True)
            ]
            return pa.StructArray.from_arrays([pa.array(texts, TEXT), pa.array(others, TEXT)], names=[_TEXT, _OTHER])
    return None


def is_mixed(type_: pa.DataType) -> bool:
    """Return True for a column that `mixed_column` has made."""
    return bool(pa.types.is_struct(type_) and type_.get_field_index(_OTHER) >= 0)


def texts_for(column: pa.ChunkedArray, kind: Kind | None) -> pa.ChunkedArray:
    """Return the texts of a mixed column, as a field of this kind reads them."""
    texts, others = (pc.struct_field(column, [name]) for name in (_TEXT, _OTHER))
    if kind in (Kind.ID, Kind.STRING):
        marked = [None if other is None else other.encode() + _NOT_UTF_8 for other in others.to_pylist()]
        others = pa.chunked_array([pa.array(marked, pa.large_binary()).view(TEXT)])
        texts = pa.chunked_array([texts.combine_chunks()])
    return pc.coalesce(texts, others)


def _text(value: Any) -> str | None:
    """Return the text that means the same; None for a fraction and for a value that no field can have."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float | Decimal):
        return str(int(value)) if -_EXACT_MAX <= value <= _EXACT_MAX and value == int(value) else None
    if isinstance(value, datetime):
        zone = "" if value.tzinfo is None else "Z"
        return f"{value.astimezone(UTC) if zone else value:%Y-%m-%d %H:%M:%S.%f}{zone}"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode() if _is_utf8(value) else None
    return value if isinstance(value, str) and _is_utf8(value) else None


def _is_utf8(text: str | bytes) -> bool:
    try:
        text.encode() if isinstance(text, str) else text.decode()
    except UnicodeError:
        return False
    return True


def _shown(value: Any) -> str:
    if isinstance(value, timedelta):
        return f"{value / timedelta(seconds=1):.6f}s"
    text = str(value) if isinstance(value, float | Decimal) else repr(value)[:_SHOWN_CHARACTERS]
    return text.encode("utf-8", "backslashreplace").decode()
