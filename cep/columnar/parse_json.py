"""JSON records → columns of their own names; records that are not JSON objects are set aside.

Plain records (kernels/text/json_records.py defines them) are read at the cost of a call, with the result of Arrow's
JSON reader, which reads others. That one passes its input to another thread: for a few records this costs more than
reading them, and on a busy machine it waits for a core.

A block of records is parsed as a whole. If that fails it is halved until the record that spoils it stands alone, or the
first record that is not plain is looked at alone: a poison record costs a few more passes, and nothing else is lost. A
JSON object that spoils a block has a value that no column holds. strays.py takes the value out, and the rest of the
record is parsed together with other such records.
Tested by: tests/columnar/test_decode.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from numpy.typing import NDArray

from cep.base.limits import RECORD_BYTES_MAX
from cep.base.schema import Kind, Schema, Type
from cep.columnar.batch import TEXT, are_short, arrow_type, text_buffers, text_offsets
from cep.columnar.convert import WIDE_DECIMAL
from cep.columnar.mapping import PLAIN, TYPE_FIELD, FieldMapping
from cep.columnar.strays import NO_STRAYS, TIME_NUMBER, Mended, Strays, is_valid, mended, strays_by_field
from cep.kernels.records import JsonColumns
from cep.kernels.text.json_records import AUTO, DECIMAL, FLOAT, TRUTH, UNITS_DIGITS_MAX, WHOLE, join_lines, read_records
from cep.kernels.text.json_records import TEXT as TEXT_CODE
from cep.kernels.text.texts import copy_texts


@dataclass(frozen=True)
class PlainShape:
    """The columns to read: `names` in one UTF-8 buffer, int64 `name_ends`, `kinds` as in the kernel."""

    columns: tuple[tuple[str, pa.DataType], ...]
    names: NDArray[np.uint8]
    name_ends: NDArray[np.int64]
    kinds: NDArray[np.int64]
    scales: NDArray[np.int64]


def plain_shape(schema: pa.Schema, may_be_numbers: Collection[str]) -> PlainShape:
    """Describe columns for the JSON kernel. `may_be_numbers` become int64 if the first record has a whole number."""
    names = [name.encode() for name in schema.names]
    kinds = [AUTO if column.name in may_be_numbers else _kind(column.type) for column in schema]
    scales = [column.type.scale if pa.types.is_decimal(column.type) else 0 for column in schema]
    # The kernel reads decimals as 64-bit numbers of units, which Arrow has a type for.
    types = [pa.decimal64(UNITS_DIGITS_MAX, scale) if kind == DECIMAL else column.type
             for column, kind, scale in zip(schema, kinds, scales, strict=True)]  # fmt: skip
    columns = tuple(zip(schema.names, types, strict=True))
    name_ends = np.cumsum([len(name) for name in names])
    return PlainShape(columns, np.frombuffer(b"".join(names), np.uint8), name_ends, np.array(kinds), np.array(scales))


def _kind(type_: pa.DataType) -> int:
    if pa.types.is_decimal(type_):
        return DECIMAL
    return {pa.int64(): WHOLE, pa.float64(): FLOAT, pa.bool_(): TRUTH}.get(type_, TEXT_CODE)


def read_plain(shape: PlainShape, records: pa.Array) -> dict[str, pa.Array] | None:
    """Read columns from records with the fast JSON kernel, None if a record is not plain, or a text is not UTF-8.

    A plain record is an object of numbers, truth values, nulls and texts without escapes. Shapes: `records` are
    large_binary without nulls; `kinds` are codes of the kinds of values, such as WHOLE or TRUTH (true, false). A column
    is null in records without a value, and left out if no record has one.
    """
    count = len(records)
    _, data = content = text_buffers(records)
    kinds = shape.kinds.copy()  # `read_records` fills in the kinds that the first record decides
    wanted_columns = JsonColumns(shape.names, shape.name_ends, kinds, shape.scales)
    plain_count, (values, text_ends, has_value), counts = read_records(*content, wanted_columns)
    if plain_count < count:
        return None
    arrays: dict[str, pa.Array] = {}
    read = zip(shape.columns, kinds.tolist(), counts.tolist(), strict=True)
    for column, ((name, value_type), kind, values_count) in enumerate(read):
        if not values_count:
            continue
        type_, is_ascii = pa.int64() if kind == WHOLE else value_type, True
        buffers = [pa.py_buffer(_as_bitmap(has_value[column])) if values_count < count else None]  # None: no null
        if kind == TEXT_CODE:  # the column has where each text begins and ends in `data`
            bounds, texts, is_ascii = copy_texts(data, values[column], text_ends[column])
            offsets = bounds if type_ == pa.large_string() else bounds.astype(np.int32)
            buffers += [pa.py_buffer(offsets), pa.py_buffer(texts)]
        else:
            buffers.append(pa.py_buffer(_as_bitmap(values[column]) if kind == TRUTH else values[column]))
        array = pa.Array.from_buffers(type_, count, buffers, count - values_count)
        if not is_ascii and not is_valid(array):  # a text is not UTF-8
            return None
        arrays[name] = array
    return arrays


def plain_rows(shape: PlainShape, records: pa.Array) -> int:
    """Return the number of records before the first that is not plain; texts may be invalid UTF-8."""
    wanted_columns = JsonColumns(shape.names, shape.name_ends, shape.kinds.copy(), shape.scales)
    return int(read_records(*text_buffers(records), wanted_columns)[0])


def _as_bitmap(flags: NDArray[Any]) -> NDArray[np.uint8]:
    return np.packbits(flags.astype(np.uint8, copy=False), bitorder="little")


_BLOCK_BYTES = 1 << 16  # at least; the reader takes a while to begin with larger ones
_TOO_LONG = f"the record has more than {RECORD_BYTES_MAX} bytes"
_SHOWN_BYTES = 2_000
_VALUE_TYPES = {str: TEXT, bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
# The values of JSON that a field is read from without a look at the kind of each value.
_USUAL_VALUES: Mapping[Kind, tuple[type, ...]] = {
    **dict.fromkeys((Kind.ID, Kind.STRING, Kind.ENUM, Kind.TIME), (str,)),
    **dict.fromkeys((Kind.INT, Kind.DURATION), (int,)),
    Kind.DECIMAL: (str, int, float), Kind.FLOAT: (int, float), Kind.BOOL: (bool,),
}  # fmt: skip
# Reading numbers in another way would not help.
_NO_CONVERSION = "JSON parse error"
_PEELED_ROWS_MAX = 4_096  # of a block that is peeled record by record
_SHAPES_CACHED = 64  # ways of reading JSON that are kept: of a few schemas, by which fields are written as numbers


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record that is not a JSON object: the reason, the record as text, and its row."""

    reason: str
    record: str
    row: int


@dataclass(frozen=True, slots=True)
class Parsed:
    """Columns by name, their records, the records' rows int64[N], and values that are null as no column holds them."""

    columns: Mapping[str, pa.Array]
    records: pa.Array
    rows: NDArray[np.int64]
    strays: Strays


@dataclass(frozen=True, slots=True)
class _Block:
    """JSON records with their rows. `is_uniform`: each field is known to have one kind of value, as Arrow needs it."""

    records: pa.Array
    rows: NDArray[np.int64]
    is_uniform: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, start: int, stop: int | None = None) -> _Block:
        return _Block(self.records[start:stop], self.rows[start:stop], self.is_uniform)

    def take(self, places: NDArray[np.int64], *, is_uniform: bool) -> _Block:
        return _Block(self.records.take(pa.array(places)), self.rows[places], is_uniform)


def parse_json(schema: Schema, values: pa.Array, mapping: FieldMapping) -> tuple[list[Parsed], list[Unreadable]]:
    """Return columns with the records they came from, and the records that are not JSON objects."""
    records: list[Mended] = []
    good, broken = _parse(schema, values, mapping, records)
    if records:
        texts = pa.array([each.text for each in records], pa.large_binary())
        parts, still_broken = _parse(schema, texts, mapping, strays=None)
        broken += [replace(each, record=text_of(records[each.row].record)) for each in still_broken]
        good += [_of_mended(part, [records[row] for row in part.rows.tolist()]) for part in parts]
    return good, broken


def _of_mended(part: Parsed, records: list[Mended]) -> Parsed:
    """Put the records and their rows in place of the mended texts."""
    originals = pa.array([each.record for each in records], pa.large_binary())
    return Parsed(part.columns, originals, np.array([each.row for each in records]), strays_by_field(records))


def _parse(
    schema: Schema, values: pa.Array, mapping: FieldMapping, strays: list[Mended] | None
) -> tuple[list[Parsed], list[Unreadable]]:
    """Parse records. Records that can be repaired are added to `strays`, unless it is None."""
    good: list[Parsed] = []
    broken: list[Unreadable] = []

    def reject(block: _Block, place: int, error: Exception) -> None:
        record, row = block.records[place].as_py(), int(block.rows[place])
        repaired = None if strays is None or record is None else mended(record, row, schema, mapping)
        if strays is None or repaired is None:
            broken.append(Unreadable(str(error).split("\n")[0], text_of(record), row))
        else:
            strays.append(repaired)

    blocks = [_Block(values, np.arange(len(values)))] if len(values) else []
    while blocks:
        block = blocks.pop()
        too_long = _too_long(block.records)
        if too_long is not None:
            if len(block) == 1:
                shown = text_of(block.records[0].as_py()[:_SHOWN_BYTES])
                broken.append(Unreadable(_TOO_LONG, shown, int(block.rows[0])))
            else:
                parts = (block.part(too_long + 1), block.part(too_long, too_long + 1), block.part(0, too_long))
                blocks += [part for part in parts if len(part)]
            continue
        if broken or strays:
            rest = _without_first_poison(schema, block, mapping, reject)
            if rest is not None:
                blocks += rest
                continue
        try:
            read = _parse_block(schema, block.records, mapping)
            columns = read if mapping.is_plain else mapping.arrays(schema, read, len(block))
            good.append(Parsed(columns, block.records, block.rows, NO_STRAYS))
        except (pa.ArrowInvalid, orjson.JSONDecodeError) as error:
            if len(block) == 1:
                reject(block, 0, error)
                continue
            groups = [block] if block.is_uniform else _of_one_kind(schema, block, mapping)
            if len(groups) == 1:
                half = len(block) // 2
                groups = [replace(p, is_uniform=True) for p in (block.part(half), block.part(0, half))]
            blocks += groups
    return good, broken


def _of_one_kind(schema: Schema, block: _Block, mapping: FieldMapping) -> list[_Block]:
    """Divide records so that a field is written in one way in each part: as a number, as text or as a boolean."""
    places: dict[AbstractSet[tuple[str, pa.DataType]], list[int]] = {}
    for place, record in enumerate(block.records.to_pylist()):
        places.setdefault(_unusual_types(schema, record or b"", mapping), []).append(place)
    return [block.take(np.array(alike), is_uniform=True) for alike in reversed(places.values())]


def _too_long(block: pa.Array) -> int | None:
    """Return the index of the first record above the size limit; None if all are below."""
    if are_short(block, RECORD_BYTES_MAX):
        return None
    offsets = text_offsets(block)
    if offsets[-1] - offsets[0] <= RECORD_BYTES_MAX:
        return None
    places = np.flatnonzero(np.diff(offsets) > RECORD_BYTES_MAX)
    return int(places[0]) if len(places) else None


def _without_first_poison(
    schema: Schema, block: _Block, mapping: FieldMapping, reject: Callable[[_Block, int, Exception], None]
) -> list[_Block] | None:
    """Reject the first records of a block while most of them are poison (records that cannot be parsed). Return the
    remaining blocks; None if all records stay.

    A sender of many poison records makes a job work for each of them, and parsing each alone is the cheapest way.
    """
    position, good_count = 0, 0
    poison: list[int] = []
    while mapping.is_flat and 1 < len(block) <= _PEELED_ROWS_MAX:  # is_flat: no field is inside another value
        # Skip the next records that the fast kernel can read: these are good.
        position += plain_rows(_plain_shape(schema, mapping), block.records.slice(position))
        if position == len(block) or good_count > len(poison):  # the end, or most are good
            break
        try:
            read = _parse_block(schema, block.records.slice(position, 1), mapping)
            if not mapping.is_plain:  # this may raise, too
                mapping.arrays(schema, read, 1)
            good_count += 1
        except (pa.ArrowInvalid, orjson.JSONDecodeError) as error:
            reject(block, position, error)
            poison.append(position)
        position += 1  # each record before this position is rejected or good
    if not poison:
        return None
    good = np.delete(np.arange(position), poison)
    rest = (block.part(position), block.take(good, is_uniform=block.is_uniform))  # in any order: they know their rows
    return [part for part in rest if len(part)]


def _parse_block(schema: Schema, block: pa.Array, mapping: FieldMapping) -> dict[str, pa.Array]:
    """Parse all records of a block into columns. Raises: ArrowInvalid if one of them cannot be parsed.

    The parser takes objects one after the other, wherever they end. As each record begins and ends with a brace, and
    there are as many objects as records, each record is one object.
    """
    if block.null_count:
        raise pa.ArrowInvalid("the record is empty")
    if mapping.is_flat:  # no field is inside another value
        plain = read_plain(_plain_shape(schema, mapping), block)
        if plain is not None:  # the fast kernel could read all records
            return plain
    records = block
    lines, in_braces, breaks = join_lines(*text_buffers(records))
    if not in_braces:  # there may be blanks around records
        records = pc.ascii_trim_whitespace(block.cast(TEXT)).cast(pa.large_binary())
        lines, in_braces, breaks = join_lines(*text_buffers(records))
    if not in_braces:
        is_empty = len(records[0].as_py()) == 0
        raise pa.ArrowInvalid("the record is empty" if is_empty else "the record is not a JSON object")
    if breaks:  # a record with line breaks of its own; none can be inside a JSON text
        for value in records.to_pylist():
            orjson.loads(value)
        records = pc.replace_substring(records, b"\n", b" ")
        lines, _, _ = join_lines(*text_buffers(records))
    unusual_types = _unusual_types(schema, records[0].as_py(), mapping)
    try:
        table = _read(lines, _parse_options(schema, unusual_types, mapping, exact=True))
    except pa.ArrowInvalid as error:
        if str(error).startswith(_NO_CONVERSION):  # invalid JSON, which no other type of a field mends
            raise
        # Producers that compute with doubles send 24.150000000000002 for 24.15; convert.py decides on those.
        table = _read(lines, _parse_options(schema, unusual_types, mapping, exact=False))
    if table.num_rows != len(records):
        raise pa.ArrowInvalid("the record is more than one JSON object")
    return columns_of(table)


def _read(lines: NDArray[np.uint8], parse_options: pj.ParseOptions) -> pa.RecordBatch:
    # As a stream of one block: without threads but the one that reads it.
    options = pj.ReadOptions(use_threads=False, block_size=max(len(lines) + 1, _BLOCK_BYTES))
    table = pj.open_json(pa.py_buffer(lines), read_options=options, parse_options=parse_options).read_next_batch()
    table.validate(full=True)  # text that is not UTF-8
    return table


def _unusual_types(schema: Schema, record: bytes, mapping: FieldMapping) -> frozenset[tuple[str, pa.DataType]]:
    """Find the fields that a record writes in an unusual kind, such as a number in place of a text, with the type that
    reads them. Arrow needs one type for a field in all records of a block, and the first record decides."""
    try:
        sample = orjson.loads(record)
    except orjson.JSONDecodeError:
        # Arrow accepts some records that orjson refuses, such as invalid UTF-8 in an unused field. The result must not
        # depend on whether a record is the first of its block, so its bytes are searched for whole numbers.
        paths, names = mapping.paths(schema), _may_be_numbers(schema)
        return frozenset(
            [(name, pa.int64()) for name in names if name in paths and _is_whole_number(record, paths[name])]
        )
    types = {}
    for name, type_ in schema.columns().items():
        value = mapping.value(sample, name)
        if isinstance(value, str | int | float) and type(value) not in _USUAL_VALUES[type_.kind]:
            is_time_number = type_.kind is Kind.TIME and not isinstance(value, str | bool)
            may_have_fraction = is_time_number and (mapping.time.unit or isinstance(value, float))  # as in seconds
            types[name] = TIME_NUMBER if may_have_fraction else _VALUE_TYPES[type(value)]
    return frozenset(types.items())


def _is_whole_number(record: bytes, path: tuple[str, ...]) -> bool:
    try:
        options = _reading({path: pa.int64()})
        column = pj.open_json(pa.py_buffer(record), parse_options=options).read_next_batch().column(0)
    except pa.ArrowInvalid:
        return False
    for name in path[1:]:
        column = pc.struct_field(column, [name])
    return not column.null_count


@lru_cache(maxsize=_SHAPES_CACHED)
def _plain_shape(schema: Schema, mapping: FieldMapping = PLAIN) -> PlainShape:
    explicit = _parse_options(schema, frozenset(), mapping, exact=True).explicit_schema
    return plain_shape(explicit, [mapping.path(name)[0] for name in _may_be_numbers(schema)])


@lru_cache(maxsize=_SHAPES_CACHED)
def _may_be_numbers(schema: Schema) -> tuple[str, ...]:
    """Find the fields that one producer writes as a number and another one as text."""
    return tuple(name for name, type_ in schema.columns().items() if type_.is_text or type_.kind is Kind.TIME)


@lru_cache(maxsize=_SHAPES_CACHED)
def _parse_options(
    schema: Schema, numbers: AbstractSet[tuple[str, pa.DataType]], mapping: FieldMapping, *, exact: bool
) -> pj.ParseOptions:
    """Return the parser's options: a type for each field. `numbers` gives the type of fields that records write in
    another kind, such as a number in place of a text. With `exact`, decimals have the digits of their type. If that
    reading fails, a second one allows the many digits of a double (WIDE_DECIMAL)."""
    types: dict[str, pa.DataType] = {TYPE_FIELD: pa.string()}
    read_as = dict(numbers)
    for name, type_ in schema.columns().items():
        if name in read_as:
            types[name] = read_as[name]
        elif type_.kind is Kind.DECIMAL and not mapping.has_bytes(name):
            scale = 0 if name in mapping.minor else type_.scale  # minor units (cents) are whole numbers
            types[name] = pa.decimal128(18 + type_.scale, scale) if exact else WIDE_DECIMAL
        else:
            types[name] = _JSON_TYPES.get(type_.kind, TEXT)
    # Several fields may have one path. Reversed and back: the first one decides the type, and fields keep their order.
    shape = {path: types[name] for name, path in reversed(mapping.paths(schema).items())}
    return _reading(dict(reversed(shape.items())))


def _reading(shape: Mapping[tuple[str, ...], pa.DataType]) -> pj.ParseOptions:
    return pj.ParseOptions(explicit_schema=_tree(shape), unexpected_field_behavior="ignore")


def _tree(shape: Mapping[tuple[str, ...], pa.DataType]) -> pa.Schema:
    """Return the columns for values at these paths: values of one outermost name are one column of objects."""
    inner: dict[str, dict[tuple[str, ...], pa.DataType]] = {}
    fields: dict[str, pa.DataType] = {}
    for path, type_ in shape.items():
        fields.setdefault(path[0], type_)
        if len(path) > 1:
            inner.setdefault(path[0], {})[path[1:]] = type_
    return pa.schema([(name, pa.struct(_tree(inner[name])) if name in inner else fields[name]) for name in fields])


_JSON_TYPES = {kind: arrow_type(Type(kind)) for kind in (Kind.DURATION, Kind.INT, Kind.FLOAT, Kind.BOOL)}


def columns_of(table: pa.Table | pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns by name. Raises: ArrowInvalid if two have one name, because both are ambiguous."""
    columns = table.columns if isinstance(table, pa.RecordBatch) else [_whole(column) for column in table.columns]
    by_name = dict(zip(table.schema.names, columns, strict=True))
    if len(by_name) < len(columns):
        twice = sorted({name for name in by_name if table.schema.names.count(name) > 1})
        raise pa.ArrowInvalid(f"there are two columns called {', '.join(twice)}")
    return by_name


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def text_of(record: bytes | None) -> str:
    """Return a record as text, for any bytes."""
    return "" if record is None else record.decode("utf-8", "backslashreplace")
