"""A column of a frame in any type of Arrow → a type that decoding knows, with the same values.

    views, run ends, half floats            the usual layout of the same values
    dictionaries of other than texts        their values
    decimals that are no decimal128         texts of the same digits
    JSON texts, bool8                       their texts and numbers
    nested values, unions, intervals, …     refused with the name of the column

Tested by: tests/api/test_odd_frames.py
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from cep.base.errors import UsageError
from cep.columnar.batch import TEXT

_VIEWS = ((pa.string_view(), TEXT), (pa.binary_view(), pa.large_binary()), (pa.float16(), pa.float32()))
_STORED = ("arrow.json", "arrow.bool8")  # extension types whose stored values mean the same


def usual_layout(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of a column in a layout that all of Arrow's functions know."""
    type_ = column.type
    if pa.types.is_run_end_encoded(type_):
        chunks = [_without_run_ends(chunk) for chunk in column.chunks]
        return usual_layout(pa.chunked_array(chunks, type_.value_type))
    for view, usual in _VIEWS:
        if type_ == view:
            return column.cast(usual)
    return column


def known_column(column: pa.ChunkedArray, name: str, *, keeps_views: bool = False) -> pa.ChunkedArray:
    """Return a column that a field is read from in a type that decoding knows; texts may stay views.

    Raises: UsageError for a type that no field can be read from.
    """
    if keeps_views and pa.types.is_string_view(column.type):
        return column
    column = usual_layout(column)
    type_ = column.type
    if isinstance(type_, pa.BaseExtensionType):
        if type_.extension_name not in _STORED:
            raise _refused(name, type_)
        chunks = [chunk.storage for chunk in column.chunks]
        return known_column(pa.chunked_array(chunks, type_.storage_type), name)
    if pa.types.is_dictionary(type_) and not pa.types.is_string(type_.value_type):
        chunks = [chunk.dictionary_decode() for chunk in column.chunks]
        return known_column(pa.chunked_array(chunks, type_.value_type), name)
    if pa.types.is_decimal(type_) and (not pa.types.is_decimal128(type_) or type_.scale < 0):
        return column.cast(TEXT)
    if pa.types.is_nested(type_) or pa.types.is_interval(type_):
        raise _refused(name, type_)
    return column


def _without_run_ends(chunk: pa.Array) -> pa.Array:
    try:
        return pc.run_end_decode(chunk)
    except pa.ArrowNotImplementedError:  # of the types of values that Arrow cannot repeat itself
        places = pa.RunEndEncodedArray.from_arrays(chunk.run_ends, pa.array(range(len(chunk.values))))
        return chunk.values.take(pc.run_end_decode(places.slice(chunk.offset, len(chunk))))


def _refused(name: str, type_: pa.DataType) -> UsageError:
    inside = (
        ", or name the value inside it, as in columns={…: " + f'"{name}.…"' + "}" if pa.types.is_struct(type_) else ""
    )
    return UsageError(
        f"the column `{name}` is {type_}, and a field is a number, a text, a time, a duration or a boolean; convert "
        f"the column{inside}, or leave it out"
    )
