"""Functions of one event's text or time → columns of the event table.

    lower(country) == "fr"      once for each different text that the batch has in the field
    hour(event_time, zone)      over the times (calendar.py)
    card_id in blocked          once for each different text, in the version of the list that the event's time sees

Tested by: tests/nfa/test_functions.py, tests/histories/test_classes.py, tests/histories/test_tally.py
"""

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cep.base.schema import list_kind
from cep.columnar.batch import TEXT, read_only, slot_values, slots, text_buffers
from cep.columnar.texts import encoded, table_key
from cep.functions.calendar import of_times
from cep.kernels import layout as y
from cep.kernels.histories.reach import fill_places, number_texts
from cep.kernels.histories.records import ValueBytes
from cep.kernels.layout import Int32, Int64, UInt8
from cep.kernels.siphash import keyed_text_hashes
from cep.lang.functions import IN_LIST
from cep.lang.ir import Call, Const, CurrentField, Expr
from cep.lists.store import Lists, spans, timeline_of
from cep.nfa.columns import Column


def fill_computed(
    kinds: Sequence[Column], lists: Lists, texts: pa.Array, first_row: int, columns: Int64, nulls: UInt8
) -> pa.Array:
    """Fill the columns that are functions of another one, from `first_row` on. A text is an index into `texts`.

    Return `texts` with the results that are new texts added.
    Cost: O(N) for each such column, and its function once for each distinct text of its source.
    """
    columns, nulls = columns[:, first_row:], nulls[:, first_row:]
    used_texts: dict[int, Int64] = {}
    computed: list[tuple[int, Int64, pa.Array]] = []
    for number, column in enumerate(kinds):
        call, source = column.computed, column.source
        if call is None:
            continue
        nulls[number] = nulls[source]
        if call.fn == IN_LIST:
            _fill_listed(call, lists, texts, columns[y.COLUMN_TIME], columns[source], columns[number], nulls[number])
            continue
        if not kinds[source].type.is_text:
            columns[number] = of_times(call.fn, str(_constant(call.arguments[1])), columns[source])
            continue
        if source not in used_texts:
            used_texts[source] = _used_texts(columns[source], nulls[source], len(texts))
        values = of_texts(call, texts.take(pa.array(used_texts[source])))
        if column.type.is_text:
            computed.append((number, used_texts[source], values))
        else:
            _write_by_text(used_texts[source], *slots(values), columns[source], columns[number], nulls[number])
    if not computed:
        return texts
    # The old texts come first and differ from each other, so they keep their indexes.
    joined = encoded(pa.concat_arrays([texts, *(values for _, _, values in computed)]))
    codes, position = np.asarray(joined.indices).astype(np.int64), len(texts)
    for number, texts_used, values in computed:
        value_codes = codes[position : position + len(values)]
        source = kinds[number].source
        no_nulls = np.zeros(len(value_codes), np.uint8)
        _write_by_text(texts_used, value_codes, no_nulls, columns[source], columns[number], nulls[number])
        position += len(values)
    return joined.dictionary


def _used_texts(codes: Int64, nulls: UInt8, texts_count: int) -> Int64:
    is_used = np.zeros(texts_count, bool)
    is_used[codes[nulls == 0]] = True
    return np.flatnonzero(is_used)


def _write_by_text(used_texts: Int64, values: Int64, flags: UInt8, codes: Int64, column: Int64, nulls: UInt8) -> None:
    """Write the value of each used text to the rows that have the text; null where `flags` is set."""
    table = np.zeros(int(used_texts[-1]) + 1 if len(used_texts) else 1, np.int64)
    # A row without text has number 0 whether that text is present or not.
    table[used_texts] = values
    column[:] = table[codes]
    if flags.any():
        missing = np.zeros(len(table), np.uint8)
        missing[used_texts] = flags
        nulls |= missing[codes]


def _fill_listed(
    call: Call, lists: Lists, texts: pa.Array, times_ms: Int64, source: Int64, is_member: Int64, nulls: UInt8
) -> None:
    """Fill a column of list membership. A row's time chooses the version of the list; null before the first version.

    `source` is the looked-up column: numbers, or indexes into `texts`.
    """
    list_name = call.arguments[1]
    timeline = timeline_of(lists, str(_constant(list_name)), list_kind(list_name.type))
    for content, rows in spans(timeline, times_ms):
        if content is None:
            nulls[rows] = 1
        elif not call.arguments[0].type.is_text:
            is_member[rows] = content.numbers_within(source[rows])
        else:
            used_texts = _used_texts(source[rows], nulls[rows], len(texts))
            is_listed, is_invalid = content.texts_within(of_texts(call.arguments[0], texts.take(pa.array(used_texts))))
            by_text = np.zeros((2, len(texts) + 1), np.uint8)  # + 1: a null row has index 0, even if no text exists
            by_text[:, used_texts] = is_listed, is_invalid
            is_member[rows] = by_text[0, source[rows]]
            nulls[rows] |= by_text[1, source[rows]]  # an invalid address makes the row null


def of_texts(expr: Expr, texts: pa.Array) -> pa.Array:
    """Return the function's value for each of the texts, none of which is null."""
    if isinstance(expr, CurrentField):
        return texts
    assert isinstance(expr, Call), "checked before"
    subject = of_texts(expr.arguments[0], texts)
    return _TEXT_FUNCTIONS[expr.fn](subject, *(_constant(argument) for argument in expr.arguments[1:]))


def _constant(expr: Expr) -> int | float | str:
    assert isinstance(expr, Const), "parameters are bound before compilation"
    assert expr.value is not None, "checked before"
    return expr.value


def _is_ascii(texts: pa.Array) -> bool:
    return pc.all(pc.string_is_ascii(texts)).as_py() is not False


# Unicode maps some characters to several, ß to SS. Arrow maps one character to one, so only ASCII goes to Arrow.
def _lower(texts: pa.Array) -> pa.Array:
    return pc.ascii_lower(texts) if _is_ascii(texts) else pa.array([t.lower() for t in texts.to_pylist()], TEXT)


def _upper(texts: pa.Array) -> pa.Array:
    return pc.ascii_upper(texts) if _is_ascii(texts) else pa.array([t.upper() for t in texts.to_pylist()], TEXT)


def _substring(texts: pa.Array, first: int, length: int | None = None) -> pa.Array:
    end = None if length is None else min(first - 1 + length, 2**63 - 1)  # Arrow takes 64 bits
    return pc.utf8_slice_codeunits(texts, first - 1, end)


def _in_network(texts: pa.Array, network: str) -> pa.Array:
    """Null for an invalid address."""
    whole = ipaddress.ip_network(network)

    def lies_within(text: str) -> bool | None:
        try:
            return ipaddress.ip_address(text) in whole
        except ValueError:
            return None

    return pa.array([lies_within(text) for text in texts.to_pylist()], pa.bool_())


# The texts, then the constants, to the value of each text. A function of text of the language is one row here.
_TEXT_FUNCTIONS: dict[str, Callable[..., pa.Array]] = {
    "lower": _lower,
    "upper": _upper,
    "substring": _substring,
    "length": pc.utf8_length,
    "starts_with": pc.starts_with,
    "ends_with": pc.ends_with,
    "contains": pc.match_substring,
    "in_cidr": _in_network,
    "like": pc.match_like,
    "matches": pc.match_substring_regex,
}


@dataclass(frozen=True, slots=True)
class HashedTexts:
    """Texts with their hashes, which mean something in this process alone. Shapes: hashes uint64[N], offsets
    int64[N + 1] into data uint8[B]; read-only."""

    hashes: NDArray[np.uint64]
    offsets: Int64
    data: UInt8


def value_bytes(column: pa.Array) -> ValueBytes:
    """Return the values of a column, to be compared byte by byte: a read-only view of texts, or the bytes of slots."""
    nulls = read_only(np.asarray(pc.is_null(column)).view(np.uint8) if column.null_count else np.zeros(0, np.uint8))
    if column.type == TEXT:
        return ValueBytes(*text_buffers(column), nulls)
    values = slot_values(column)
    offsets = np.arange(len(values) + 1, dtype=np.int64) * values.itemsize
    return ValueBytes(read_only(offsets), read_only(values.view(np.uint8)), nulls)


def hashed_texts(texts: pa.Array) -> HashedTexts:
    """Return a view of a text array without nulls."""
    offsets, data = text_buffers(texts)
    hashes = np.empty(len(texts), np.uint64)
    keyed_text_hashes(offsets, data, table_key(), hashes)
    return HashedTexts(read_only(hashes), offsets, data)


class TextNumbers:
    """Finds the index of a text among some distinct texts, in a hash table of their indexes."""

    def __init__(self, texts: pa.Array) -> None:
        self.hashed = hashed_texts(texts)
        self._places = np.full(2 << max(len(texts) - 1, 1).bit_length(), -1, np.int32)  # -1: free
        fill_places(self.hashed.hashes, self._places)

    def of(self, texts: pa.Array) -> Int32:
        """Return the number of each text, -1 for unknown texts: int32[N]."""
        return self.of_hashed(hashed_texts(texts))

    def of_hashed(self, texts: HashedTexts) -> Int32:
        mine, numbers = self.hashed, np.empty(len(texts.hashes), np.int32)
        number_texts(
            self._places, mine.hashes, mine.offsets, mine.data, texts.hashes, texts.offsets, texts.data, numbers
        )
        return numbers
