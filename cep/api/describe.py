"""A frame → the event declaration that describes it, as a draft to edit.

    | column of Arrow                    | field                                                    |
    | ---------------------------------- | -------------------------------------------------------- |
    | a time                             | `event_time time`: the first one, whatever its name       |
    | texts or numbers, each of them once | `… id`: the first column that is so in every row          |
    | up to six different words          | `enum(…)`                                                |
    | text, bool, integer, float         | `string`, `bool`, `int`, `float`                         |
    | decimal of scale s                 | `decimal(s)`                                             |

A field may be null (`?`) where the frame has a null. A column that no field can have is named in a comment.
Tested by: tests/api/test_describe.py
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cep.api.events import open_any
from cep.base.errors import UsageError
from cep.columnar.numbers import different_count
from cep.columnar.texts import different_texts
from cep.lang.parse.cursor import RESERVED

TIME = "event_time"
_WORDS_MAX = 6  # more different values than that are no enum
_WORD = re.compile(r"[a-z][a-z_]*", re.IGNORECASE)
_SCALE_MAX = 9
_COLUMN_CHARS = 14


@dataclass(frozen=True, slots=True)
class Draft:
    """A declaration, and the names of columns where they differ from the fields, as `columns=` takes them."""

    text: str
    columns: dict[str, str]

    def __str__(self) -> str:
        renamed = f"# columns={self.columns}\n" if self.columns else ""
        return renamed + self.text

    __repr__ = __str__


def describe(events: Any, name: str = "event_of_frame") -> Draft:
    """Draft the declaration of an event type that fits a frame; `name` is that of the type.

    Raises: UsageError if the frame has no column of times, or none whose values are all different.

    >>> import pyarrow as pa
    >>> times = pa.array([0, 1], pa.timestamp("ms", "UTC"))
    >>> cep.describe(pa.table({"id": ["a", "b"], "ts": times, "n": [1, None]}), "login")
    # columns={'event_time': 'ts'}
    event login {
      id             id
      event_time     time
      n              int?
    }
    """
    frame = open_any(events)
    return draft(frame.whole(), name)


def draft(table: pa.Table, name: str) -> Draft:
    """Draft the declaration of a table. Raises: UsageError."""
    time = _time_column(table)
    id_ = _id_column(table, time)
    lines, columns, taken = [f"event {name} {{"], dict[str, str](), {TIME}
    for column in table.column_names:
        values = table[column]
        if column == id_:
            kind: str | None = "id"
        elif column == time:
            kind = "time"
        else:
            kind = _kind(values)
        if kind is None:
            lines.append(f"  # {column}: {values.type}, which no field can have")
            continue
        field = TIME if column == time else _field(column, taken)
        taken.add(field)
        if field != column:
            columns[field] = column
        nullable = "?" if values.null_count and kind not in ("id", "time") else ""
        lines.append(f"  {field.ljust(_COLUMN_CHARS)} {kind}{nullable}")
    return Draft("\n".join([*lines, "}"]), columns)


def _time_column(table: pa.Table) -> str:
    if TIME in table.column_names:
        return TIME
    times: list[str] = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
    if not times:
        raise UsageError(f"no column is of times; make one a time, or name it `{TIME}`. Columns: {table.column_names}")
    return times[0]


def _id_column(table: pa.Table, time: str) -> str:
    """Return the first column whose values are all there and all different. Columns named `…id` go before."""
    possible: list[str] = [
        field.name
        for field in table.schema
        if field.name != time and (_is_text(field.type) or pa.types.is_integer(field.type))
    ]
    for column in sorted(possible, key=lambda name: not name.lower().endswith("id")):
        values = table[column]
        if not values.null_count and _different_count(values) == table.num_rows:
            return column
    raise UsageError("no column has another value in every row, and each event needs an id; add a column of numbers")


def _different_count(values: pa.ChunkedArray) -> int:
    """Count the different texts or numbers. Senders choose them, so no hash without a key is taken."""
    return len(different_texts(values)) if _is_text(values.type) else different_count(np.asarray(values))


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def _kind(values: pa.ChunkedArray) -> str | None:
    type_ = values.type
    if pa.types.is_dictionary(type_):
        values, type_ = values.cast(type_.value_type), type_.value_type
    if _is_text(type_):
        words = different_texts(values).slice(0, _WORDS_MAX + 1).to_pylist()
        is_enum = 0 < len(words) <= _WORDS_MAX < len(values) and all(map(_WORD.fullmatch, words))
        return f"enum({', '.join(sorted(words))})" if is_enum else "string"
    if pa.types.is_decimal(type_) and 0 <= type_.scale <= _SCALE_MAX:
        return f"decimal({type_.scale})"
    if pa.types.is_boolean(type_):
        return "bool"
    if pa.types.is_integer(type_):
        return "int"
    return "float" if pa.types.is_floating(type_) else None


def _field(column: str, taken: Collection[str]) -> str:
    """Return the name of a column's field: its own, as far as the language has such names and nothing else has it."""
    name = re.sub(r"\W", "_", column, flags=re.ASCII)
    name = f"_{name}" if not name or name[0].isdigit() else name
    while name in RESERVED or name in taken:
        name += "_"
    return name
