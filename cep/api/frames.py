"""Any frame → the columns that rules read, as Arrow; and a table of Arrow → a frame of the input's kind.

narwhals provides one interface to pandas, polars, DuckDB and others; Arrow's columns are passed on without a copy.
Faults that would reject every record are refused here before anything runs: a missing column, a time in seconds, a time
without a zone.

A column of pandas may have values of several kinds, for which Arrow lacks a type. It becomes texts, and a field of any
type reads a value from its text. A value that no field can have is a bad value alone, even in a field of texts.

    24.15, "x", {"a": 1}   →   "24.15", "x", and a text that no field can have

A column of any type of Arrow becomes a type that decoding knows, with the same values.

    views, run ends, half floats            the usual layout of the same values
    dictionaries of other than texts        their values
    decimals that are no decimal128         texts of the same digits
    JSON texts, bool8                       their texts and numbers
    nested values, unions, intervals, …     refused with the name of the column

Tested by: tests/api/test_match.py, tests/columnar/test_convert.py, tests/api/test_odd_frames.py
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, TypedDict

import narwhals.stable.v2 as nw
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from cep.base.errors import CepError, UsageError
from cep.base.schema import EventType, Kind, Schema
from cep.columnar.batch import TEXT
from cep.columnar.convert import Written
from cep.columnar.mapping import (
    JOIN,
    ROW_NUMBER,
    TYPE_FIELD,
    FieldMapping,
    FileForm,
    check_fields,
    form_of_flags,
    joined_columns,
    mapping_of,
    path_of_text,
    view_of,
)
from cep.columnar.texts import different_texts
from cep.columnar.times import form_has_zone, has_zone, times_us
from cep.lang.diagnostics import did_you_mean
from cep.sources.csv_form import unique_names
from cep.sources.tables import joined


class Forms(TypedDict, total=False):
    """How values are written: arguments with the names of the command line's flags (`--time-unit` is `time_unit`)."""

    fixed: Mapping[str, str]  # a field: its value in every row
    minor: Sequence[str]  # decimals in whole cents
    values: Mapping[str, str]  # FIELD.VALUE of the data: the value for rules, as {"status.D": "declined"}
    time_unit: str  # of numbers: "s", "ms", …
    time_form: str  # of texts, as in strptime
    time_base: str  # the moment from which numbers count, if not 1970
    delimiter: str  # from here on: of CSV files
    quote: str
    encoding: str
    decimal: str
    thousands: str


@dataclass(frozen=True, slots=True)
class Naming:
    """The form of a frame's columns: `columns` from a field to its column or to a path inside a nested one, the zone of
    times that name none, and how values are written."""

    columns: Mapping[str, str] | None = None
    tz: str | None = None
    forms: Forms = field(default_factory=Forms)

    def __post_init__(self) -> None:
        for name in self.forms:
            if name not in Forms.__annotations__:
                raise UsageError(f"there is no {name}=; {did_you_mean(name, list(Forms.__annotations__), 'forms')}")

    @property
    def fixed(self) -> Mapping[str, str]:
        """The fields that have one value in every row."""
        return self.forms.get("fixed", {})

    @property
    def has_time_form(self) -> bool:
        return any(self.forms.get(name) for name in ("time_unit", "time_form", "time_base"))

    @property
    def file_form(self) -> FileForm:
        return form_of_flags(**{name: str(self.forms.get(name, "")) for name in FileForm.__dataclass_fields__})

    def values(self, schema: Schema) -> FieldMapping:
        """Return how the values of columns that have the names of their fields are written. Raises: UsageError."""
        mapping = self._mapping(tuple(f'{name}="{name}"' for name in self.of_views))
        check_fields(mapping, schema)
        return mapping

    @property
    def of_views(self) -> list[str]:
        """The fields that are a view's own, with its name in front."""
        return [name for name in self.columns or {} if view_of(name)[0]]

    def fields_of(self, names: Collection[str]) -> list[tuple[set[str], dict[str, str]]]:
        """Return for each view its fields among the given ones; and the fixed ones."""
        views = dict.fromkeys(view_of(name)[0] for name in (*(self.columns or {}), *self.fixed))
        views.pop("", None)
        fields = []
        for view in views or ("",):
            fixed = {view_of(n)[1]: value for n, value in self.fixed.items() if view_of(n)[0] in ("", view)}
            fields.append(({*(view_of(n)[1] for n in names if view_of(n)[0] in ("", view)), *fixed}, fixed))
        return fields

    def of_records(self) -> FieldMapping:
        """Return where and how fields are in the records of files. Raises: UsageError."""
        columns = tuple(f"{name}={column}" for name, column in (self.columns or {}).items())
        return self._mapping(columns, always_zoned=True)

    def _mapping(self, columns: Sequence[str], *, always_zoned: bool = False) -> FieldMapping:
        forms = self.forms
        zone = self.tz or "" if always_zoned or self.has_time_form else ""
        base = forms.get("time_base", "")
        time = Written(forms.get("time_unit", ""), forms.get("time_form", ""), zone, base=base)
        fixed = tuple(f"{name}={value}" for name, value in self.fixed.items())
        values = tuple(f"{name}={word}" for name, word in forms.get("values", {}).items())
        return mapping_of(columns, fixed, tuple(forms.get("minor", ())), time, self.file_form, values)


_TEXT, _OTHER = "\x00text", "\x00other"  # no column of a user can have such names
_SHOWN_CHARACTERS = 36
_EXACT_FLOAT_MAX = 2**53  # a larger float may stand for another whole number
_NOT_UTF_8 = b"\xff"  # decoding makes such a text a bad value


def mixed_column(values: Sequence[Any]) -> pa.StructArray | None:
    """Return values of several kinds, for which Arrow has no type, as two columns of texts: one of the values that a
    field can have, one of the rest, such as lists, for messages. Return None if Arrow has a type, or no value fits."""
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    try:
        pa.array(plain)  # Arrow has a type: the column is not mixed
    except (pa.ArrowException, OverflowError):
        texts = [None if value is None else _field_text(value) for value in plain]
        if any(text is not None for text in texts):
            misfits = [
                None if value is None or text is not None else _shown(value)
                for value, text in zip(plain, texts, strict=True)
            ]
            return pa.StructArray.from_arrays([pa.array(texts, TEXT), pa.array(misfits, TEXT)], names=[_TEXT, _OTHER])
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


def texts_for_mixed(table: pa.Table) -> pa.Table:
    """Return the table with texts in place of the columns that have texts and other values."""
    for number, column in enumerate(table.columns):
        if is_mixed(column.type):
            table = table.set_column(number, table.column_names[number], texts_for(column, None))
    return table


def _field_text(value: Any) -> str | None:
    """Return the text from which any field reads this value; None if no text is sure, as for 0.5 or a list."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Decimal) and not value.is_finite():
        return None
    if isinstance(value, float | Decimal):  # 0.5 might have been written 0.50
        return str(int(value)) if -_EXACT_FLOAT_MAX <= value <= _EXACT_FLOAT_MAX and value == int(value) else None
    if isinstance(value, datetime):
        zone = "" if value.tzinfo is None else "Z"
        with suppress(OverflowError):  # in UTC it may be before the year 1
            return f"{value.astimezone(UTC) if zone else value:%Y-%m-%d %H:%M:%S.%f}{zone}"
        return None
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
    """Convert a column of a field to a type that decoding knows. With `keeps_views` texts of string_view stay so.

    Raises: UsageError for a type that no field can be read from.
    """
    if keeps_views and pa.types.is_string_view(column.type):
        return column
    column = usual_layout(column)  # without views, run ends and half floats
    type_ = column.type
    if isinstance(type_, pa.BaseExtensionType):
        if type_.extension_name not in _STORED:  # its stored values mean something else
            raise _refused(name, type_)
        chunks = [chunk.storage for chunk in column.chunks]
        return known_column(pa.chunked_array(chunks, type_.storage_type), name)
    if pa.types.is_dictionary(type_) and not pa.types.is_string(type_.value_type):
        chunks = [chunk.dictionary_decode() for chunk in column.chunks]
        return known_column(pa.chunked_array(chunks, type_.value_type), name)
    if pa.types.is_decimal(type_) and (not pa.types.is_decimal128(type_) or type_.scale < 0):
        return column.cast(TEXT)  # decoding knows only decimal128, and reads any other from its digits
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


_SECONDS = (500_000_000, 10_000_000_000)  # of the years 1985 to 2286; as milliseconds they would be in early 1970
_TEXTS_TRIED = 1_000  # of a column of times that are texts
ToFrame = Callable[[pa.Table], Any]


@dataclass(frozen=True, slots=True)
class Frame:
    """A caller's data frame of pandas, Polars or another package. Only columns that rules read are converted."""

    names: tuple[str, ...]
    columns: Callable[[Sequence[str]], pa.Table]  # by their names
    to_frame: ToFrame  # converts a table to a frame of the caller's package
    row: Callable[[int], dict[str, Any]] | None = None  # a row with all columns, to show a refused record

    def whole(self) -> pa.Table:
        """Return all columns, in types that all of Arrow's functions know."""
        table = self.columns(self.names)
        return pa.table({name: usual_layout(table[name]) for name in self.names})


def open_frame(events: Any) -> Frame:
    """View a data frame as a Frame. A second column of a name becomes NAME#2. Raises: UsageError for other objects."""
    if isinstance(events, pa.RecordBatch):
        events = pa.Table.from_batches([events])
    elif isinstance(events, pa.RecordBatchReader):
        events = events.read_all()
    elif isinstance(events, pads.Dataset):
        return Frame(tuple(events.schema.names), partial(_of_dataset, events), lambda table: table)  # Arrow
    with _errors_of_frames("the frame cannot be read"):
        frame = nw.from_native(_with_unique_names(events), pass_through=True)  # one interface for all packages
        if isinstance(frame, nw.DataFrame):
            return _eager(frame)
        if isinstance(frame, nw.LazyFrame):
            return _lazy(frame)
        if hasattr(events, "__arrow_c_stream__"):
            return open_frame(pa.table(events))
    raise UsageError(
        f"events are a {type(events).__name__}; give a frame of pandas, polars, Arrow, DuckDB or Spark, or a path"
    )


def _with_unique_names(events: Any) -> Any:
    """Return a frame of pandas or Arrow whose names are texts, each once."""
    if isinstance(events, pa.Table):
        return events.rename_columns(list(unique_names(events.column_names)))
    if nw.dependencies.is_pandas_dataframe(events):
        names = list(events.columns)
        if len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
            return events.set_axis(list(unique_names([str(name) for name in names])), axis=1)
    return events


@contextmanager
def _errors_of_frames(action: str) -> Iterator[None]:
    """Give each error of a library of frames as one of ours."""
    try:
        yield
    except CepError:
        raise
    except Exception as error:  # each library has classes of its own, and a query may raise any
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UsageError(f"{action}: {reason}; convert the column or leave it out") from error


def events_table(frame: Frame, schema: Schema, naming: Naming, *, keeps_string_views: bool = False) -> pa.Table:
    """Return the columns that the schema names, under its names or VIEW/NAME, with zoned times. Raises: UsageError.

    A view is one of the events that a row becomes. Fields in `naming.fixed` have one value in all rows. With
    `keeps_string_views` texts of Arrow's type string_view stay so: decoding converts them on all threads.
    """
    frame = _with_added_columns(frame, naming)
    field_names = [name for name in (TYPE_FIELD, *schema.columns()) if name not in naming.fixed]
    sources = sources_of(frame.names, field_names, naming.columns or {})
    table = frame.columns(list(dict.fromkeys(path_of(source, frame.names)[0] for source in sources.values())))
    columns = {name: _column(table, path_of(path, frame.names), path) for name, path in sources.items()}
    for name, column in columns.items():
        if is_mixed(column.type):  # values of several kinds, such as 5 and "x"
            type_ = schema.columns().get(view_of(name)[1])
            columns[name] = texts_for(column, None if type_ is None else type_.kind)
    table = pa.table(
        {name: known_column(column, sources[name], keeps_views=keeps_string_views) for name, column in columns.items()}
    )
    fields = naming.fields_of(sources)  # for each view: the names of its fields, and the fixed values of some
    present = [present_types(schema, table, fixed) for _, fixed in fields]  # the event types of its events
    for (fields_given, _), types in zip(fields, present, strict=True):
        check_columns(types, fields_given, frame.names)
    times = {name for types in present for event_type in types for name in event_type.times}  # fields that are times
    for name in sources:
        if view_of(name)[1] in times:
            index = table.column_names.index(name)
            column = known_column(table.column(name), sources[name])
            table = table.set_column(index, name, _utc_times(column, sources[name], naming))
    return table


def _with_added_columns(frame: Frame, naming: Naming) -> Frame:
    """Add the columns that `naming` asks for and the frame lacks: `#row`, the number of the row, and joined texts of
    columns, as in `Year + Month`. Raises: UsageError for `#row` of a query, whose rows have no order."""
    missing = dict.fromkeys(column for column in (naming.columns or {}).values() if column not in frame.names)
    sources = {
        column: () if column == ROW_NUMBER else joined_columns(column)
        for column in missing
        if column == ROW_NUMBER or (JOIN in column and set(joined_columns(column)) <= set(frame.names))
    }
    if not sources:
        return frame
    if ROW_NUMBER in sources and frame.row is None:
        raise UsageError(
            f"{ROW_NUMBER} is the number of a row, and the rows of a query have no order; collect it first"
        )

    def columns(names: Sequence[str]) -> pa.Table:
        """Return columns by name. An added one joins the texts of its `sources` ("2026 3"), or has the row numbers."""
        read_names = dict.fromkeys(part for name in names for part in sources.get(name, (name,)))  # and parts of joins
        table = frame.columns(list(read_names) or frame.names[:1])  # at least one, for the number of rows
        columns: dict[str, pa.ChunkedArray] = {}
        for name in names:
            if name not in sources:
                columns[name] = table[name]
            elif sources[name]:
                columns[name] = joined(known_column(table[part], part) for part in sources[name])
            else:
                columns[name] = pa.chunked_array([pa.array(range(1, table.num_rows + 1))])
        return pa.table(columns)

    return replace(frame, names=(*frame.names, *sources), columns=columns)


def _eager(frame: nw.DataFrame[Any]) -> Frame:
    """Make a Frame of a data frame in memory. `frame` gives every package's data frames one interface (narwhals)."""

    def columns(names: Sequence[str]) -> pa.Table:
        if not names:
            return pa.table({})
        try:
            return _arrow_of(frame.select(*names))
        except Exception:  # noqa: BLE001 each library has classes of its own; one by one, to name the column
            return pa.table({name: _single_column(frame, name) for name in names})

    def to_frame(table: pa.Table) -> Any:
        return nw.from_arrow(table, backend=frame.implementation).to_native()

    def row(number: int) -> dict[str, Any]:
        return next(iter(frame[number : number + 1].iter_rows(named=True)))

    return Frame(tuple(frame.columns), columns, to_frame, row)


def _single_column(frame: nw.DataFrame[Any], name: str) -> pa.ChunkedArray:
    """Return one column of a frame that cannot be converted as a whole. Raises: UsageError with the column's name."""
    type_ = frame.schema[name]
    fault = f"of type {type_} cannot be read"
    if type_ == nw.Object:
        fault = "has values of several types, or of one that no field can have"
        if frame.implementation.is_pandas():
            column = frame[name].to_native()  # of Python objects, such as numbers and texts
            mixed = mixed_column(column.where(column.notna(), None).to_list())
            if mixed is not None:
                return pa.chunked_array([mixed])
    with _errors_of_frames(f"the column `{name}` {fault}"):
        return _arrow_of(frame.select(name)).column(0)


def _arrow_of(chosen: nw.DataFrame[Any]) -> pa.Table:
    if chosen.implementation.is_polars():
        table = pa.table(chosen.to_native())  # without a copy; a categorical column is to be had with one only
        if not any(map(pa.types.is_dictionary, table.schema.types)):
            return table
    if chosen.implementation.is_pandas():
        chosen = nw.from_native(_for_arrow(chosen.to_native()), eager_only=True)
    return chosen.to_arrow()


def _for_arrow(frame: Any) -> Any:
    """Convert columns of pandas that Arrow would misread.

    Sparse columns become dense. Times become texts if only some of them have a zone: Arrow would give it to all.
    """
    changed = {}
    for name in frame.columns:
        column = frame[name]
        if hasattr(column, "sparse"):
            changed[name] = column.sparse.to_dense()
        times = column.dropna().to_list() if column.dtype == object else []
        if not times or not isinstance(times[0], datetime):
            continue
        lack_zone = {value.tzinfo is None if isinstance(value, datetime) else None for value in times}
        if lack_zone == {True, False}:  # only times, with and without a zone
            changed[name] = column.map(lambda value: value.isoformat(), na_action="ignore")
    return frame.assign(**changed) if changed else frame


def _lazy(frame: nw.LazyFrame[Any]) -> Frame:
    """Make a Frame of a query (a lazy frame of any package), which is run for the columns that are read."""
    names = tuple(frame.collect_schema().names())

    def columns(names: Sequence[str]) -> pa.Table:
        if not names:
            return pa.table({})
        with _errors_of_frames("the query of the frame fails"):
            return frame.select(*names).collect("pyarrow").to_native()

    def to_frame(table: pa.Table) -> Any:
        return nw.from_native(table).lazy(frame.implementation).to_native()

    return Frame(names, columns, to_frame)


def _of_dataset(dataset: pads.Dataset, names: Sequence[str]) -> pa.Table:
    with _errors_of_frames("the data set cannot be read"):
        return dataset.to_table(columns=list(names))


def sources_of(names: Sequence[str], field_names: Sequence[str], columns: Mapping[str, str]) -> dict[str, str]:
    """Return the column, or the path into a nested column, of each field that a frame with columns `names` has.

    A field's name may follow a view: `sent/account`. Raises: UsageError for a field or a column that is not there.
    """
    for name, column in columns.items():
        if view_of(name)[1] not in field_names:
            hint = did_you_mean(name, field_names, "fields")
            raise UsageError(f"columns={{{name!r}: …}}: the rules have no field `{view_of(name)[1]}`; {hint}")
        if path_of(column, names)[0] not in names:
            hint = did_you_mean(column, names, "columns")
            raise UsageError(f"columns={{{name!r}: {column!r}}}: the events have no column `{column}`; {hint}")
    fields = dict.fromkeys((*field_names, *columns))
    return {name: columns.get(name, name) for name in fields if name in columns or name in names}


def path_of(column: str, names: Sequence[str]) -> Sequence[str]:
    """Return the path of a column: its name, or names with dots between them, inside nested values."""
    return (column,) if column in names else path_of_text(column) or (column,)


def _column(table: pa.Table, path: Sequence[str], shown: str) -> pa.ChunkedArray:
    column = table.column(path[0])
    for name in path[1:]:
        if not pa.types.is_struct(column.type) or column.type.get_field_index(name) < 0:
            raise UsageError(f"the events have nothing at `{shown}`: there is no `{name}` in {column.type}")
        column = pc.struct_field(column, [name])
    return column


def present_types(schema: Schema, table: pa.Table | None, fixed: Mapping[str, str]) -> list[EventType]:
    """Return the event types that the events are of, as far as they say it."""
    from_source = [event_type for event_type in schema.event_types if not event_type.derived]
    if TYPE_FIELD in fixed:
        return [event_type for event_type in from_source if event_type.name == fixed[TYPE_FIELD]]
    if table is None or TYPE_FIELD not in table.column_names:
        return from_source
    named = set(different_texts(table.column(TYPE_FIELD)).to_pylist())
    return [event_type for event_type in from_source if event_type.name in named or len(from_source) == 1]


def check_columns(present: Sequence[EventType], fields: Collection[str], names: Sequence[str]) -> None:
    """Refuse events that lack required fields of their types. `names` are all present columns. Raises: UsageError."""
    if TYPE_FIELD not in fields and len(present) > 1:
        which = ", ".join(event_type.name for event_type in present)
        raise UsageError(
            f"the rules speak of several event types ({which}), and the events have no column `{TYPE_FIELD}` that says "
            f'which; add it, or name the column that does with columns={{"{TYPE_FIELD}": …}}'
        )
    for event_type in present:
        missing = [field.name for field in event_type.fields if not field.type.nullable and field.name not in fields]
        if missing:
            hint = did_you_mean(missing[0], names, "columns")
            shown = ", ".join(f"`{name}`" for name in missing)
            raise UsageError(
                f"the events have no column {shown}, and each `{event_type.name}` must have a value there; name the "
                f'column that has it with columns={{"{missing[0]}": …}}; {hint}'
            )


def no_zone(column: str) -> str:
    """Return the next step for times without a zone."""
    return f'the column `{column}` has times without a zone; say which they are in with tz="UTC" or tz="Europe/Paris"'


def _first_texts(times: pa.ChunkedArray) -> list[str]:
    """Return the first texts of a column; none if one is not UTF-8, which decoding sets aside."""
    try:
        texts: list[str] = times.slice(0, _TEXTS_TRIED).drop_null().to_pylist()
    except UnicodeDecodeError:
        return []
    return texts


def _utc_times(times: pa.ChunkedArray, column: str, naming: Naming) -> pa.ChunkedArray:
    """Return times as moments in UTC. Leave numbers, and times that decoding reads in the form or zone that they have.

    Raises: UsageError for seconds without a unit, and for times without a zone if `naming` has none.
    """
    if pa.types.is_dictionary(times.type):
        times = times.cast(times.type.value_type)
    type_, form = times.type, naming.forms.get("time_form", "")
    if pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        span = pc.min_max(times).as_py()  # the least and the largest number
        low, high = span["min"], span["max"]  # None if all are null
        if not naming.has_time_form and low is not None and _SECONDS[0] <= low and high <= _SECONDS[1]:
            raise UsageError(
                f"the column `{column}` has numbers like {low}, which as milliseconds lie in 1970: it is in seconds; "
                'say so with time_unit="s", or make it a time with a zone'
            )
        return times
    is_text = pa.types.is_string(type_) or pa.types.is_large_string(type_)
    if naming.tz is None:  # the times themselves have to name their zone
        is_naive = pa.types.is_date(type_) or (pa.types.is_timestamp(type_) and type_.tz is None)
        tried = _first_texts(times) if is_text and not form else ()
        if is_naive or any(has_zone(text) is False for text in tried) or (is_text and form and not form_has_zone(form)):
            raise UsageError(no_zone(column))
        return times
    if is_text and naming.has_time_form:  # the caller has given the form: decoding reads the texts
        return times
    try:
        moments = [times_us(chunk, zone=naming.tz).cast(pa.timestamp("us", "UTC")) for chunk in times.chunks]
    except pa.ArrowInvalid as error:
        raise UsageError(f'the times of `{column}` cannot be read in tz="{naming.tz}": {error}') from error
    read = pa.chunked_array(moments, pa.timestamp("us", "UTC"))
    if is_text and read.null_count > times.null_count:  # keep texts that are no times: decoding rejects and shows them
        return pc.coalesce(read.cast(type_), times)
    return read
