"""Names and forms of the fields of events in records → the columns of these fields, as decode.py takes them.

    columns   card_id = payload.after.card ─┐
    fixed     channel = web                 ├─▶ FieldMapping ─▶ a column a field, with how it is written
    values    direction.credit = incoming   │
    time      s, UTC                        │
    minor     amount, fee:currency         ─┘

A column is a path into nested values, and `*` is where all other fields are. The name of an event's type is mapped like
a field, as `event_type`. A view in front of a field, as in `sent/account_id`, makes each record an event of that view:
a transfer is one of both accounts.
Tested by: tests/columnar/test_mapping.py, tests/sources/test_csv_form.py.
"""

from __future__ import annotations

import codecs
import json
import re
import zoneinfo
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from cep.base.errors import UsageError
from cep.base.schema import Kind, Schema, field_values
from cep.base.text import hint_at_nearest, utc_ms
from cep.columnar.batch import TEXT
from cep.columnar.convert import NumberForm, Written
from cep.columnar.times import TIME_UNITS, UNITS_US, check_form

_SIGNS = {"tab": "\t", "space": " ", "\\t": "\t", "none": ""}


@dataclass(frozen=True, slots=True)
class FileForm:
    """The signs and encoding of a CSV file, "" if its content decides. Numbers in JSON texts have such signs, too.

    `quote` has a backslash as its second sign if a quote of a text is written after a backslash, not doubled."""

    delimiter: str = ""
    quote: str = ""
    encoding: str = ""
    decimal: str = ""
    thousands: str = ""


AS_WRITTEN = FileForm()


def form_of_flags(delimiter: str, quote: str, encoding: str, decimal: str, thousands: str) -> FileForm:
    """Check the signs and the encoding of CSV files, as flags and settings give them. Raises: UsageError."""
    signs = {"delimiter": delimiter, "quote": quote, "decimal": decimal, "thousands": thousands}
    signs = {name: _SIGNS.get(sign, sign) for name, sign in signs.items()}
    for name, written in signs.items():
        sign = written[0] if name == "quote" and written[1:] == "\\" else written
        if len(sign) > 1 or sign.isdigit() or sign in ("\n", "\r"):
            raise UsageError(f"--{name} is one sign such as `;`, or tab, not {sign!r}")
    if signs["decimal"] not in ("", ".", ","):
        raise UsageError(f"--decimal is `.` or `,`, not {signs['decimal']!r}")
    if signs["decimal"] and signs["decimal"] == signs["thousands"]:
        raise UsageError(f"--decimal and --thousands are both {signs['decimal']!r}; numbers have two different signs")
    try:
        name = codecs.lookup(encoding).name if encoding else ""
    except LookupError as error:
        raise UsageError(f"--encoding {encoding} is not known; write utf-8, utf-16, cp1252 or latin-1") from error
    if signs["thousands"] and not signs["decimal"]:
        signs["decimal"] = "," if signs["thousands"] == "." else "."
    return FileForm(signs["delimiter"], signs["quote"], name, signs["decimal"], signs["thousands"])


if TYPE_CHECKING:
    from cep.model.settings import MappingSettings

TYPE_FIELD = "event_type"
BYTES = "base64"  # in place of the field of a currency: minor units as bytes
ROW_NUMBER = "#row"  # the name of a column that each file has: the number of the row
_ALL_OTHERS = "*"
JOIN = " + "
NUMBER_KINDS = (Kind.INT, Kind.FLOAT, Kind.DECIMAL)
_OF_VIEW = "/"
_VALUES_FORM = "FIELD.VALUE=WORD, such as direction.credit=incoming"
_VIEW = re.compile(r"\w{1,32}", re.ASCII)
_PART = re.compile(r'"((?:[^"])*)"|([^."]+)')

Path = tuple[str, ...]


@dataclass(frozen=True)
class FieldMapping:
    """The place and the form of each field of events in a record. Without anything: by its name, as it is.

    `view`: the name of the view that its events are of. `position`: its place among all views, which orders the events
    of one record. `needs`: fields of which an event of it must have one. `minor_by`: for fields of `minor` the field of
    their currency, or BYTES. `values`: a field, a value in records, and the word that it stands for.
    """

    columns: tuple[tuple[str, Path], ...] = ()
    fixed: tuple[tuple[str, str], ...] = ()
    minor: tuple[str, ...] = ()
    time: Written = field(default_factory=Written)
    view: str = ""
    needs: tuple[str, ...] = ()
    position: int = 0
    file: FileForm = AS_WRITTEN
    minor_by: tuple[tuple[str, str], ...] = ()
    values: tuple[tuple[str, str, str], ...] = ()

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[FieldMapping], tuple[Any, ...]]:
        return FieldMapping, field_values(self)

    @cached_property
    def _hash(self) -> int:
        return hash(field_values(self))

    @cached_property
    def is_plain(self) -> bool:
        """True if each field is read by its name, as it is."""
        settings = self.columns, self.fixed, self.minor, self.values, self.view, self.file.decimal
        return not any(settings) and self.time == Written()

    @cached_property
    def has_views(self) -> bool:
        """True if a record is an event of each of several views."""
        return any(_OF_VIEW in name for name, _ in (*self.columns, *self.fixed))

    @property
    def view_names(self) -> tuple[str, ...]:
        """The names of the views that make several events of a record; empty if a record is one event."""
        return tuple(view.view for view in self.views) if self.has_views else ()

    @cached_property
    def views(self) -> tuple[FieldMapping, ...]:
        """The mapping of each view: its own fields, and the common fields for all others."""
        names = dict.fromkeys(view_of(name)[0] for name, _ in (*self.columns, *self.fixed))
        names.pop("", None)
        return tuple(self._of_view(name, position) for position, name in enumerate(names)) or (self,)

    def _of_view(self, view: str, position: int) -> FieldMapping:
        columns, fixed = _said_of(self.columns, view), _said_of(self.fixed, view)
        shared_columns, shared_fixed = _said_of(self.columns, ""), _said_of(self.fixed, "")
        return FieldMapping(
            tuple({**{n: p for n, p in shared_columns.items() if n not in fixed}, **columns}.items()),
            tuple({**{n: v for n, v in shared_fixed.items() if n not in columns}, **fixed}.items()),
            self.minor, self.time, view, tuple(columns), position, self.file, self.minor_by, self.values,
        )  # fmt: skip

    def with_folders(self, schema: Schema, values: Mapping[str, str]) -> FieldMapping:
        """Return the mapping with the values of folders, such as `part=01001`, as fixed texts of their fields."""
        if not values:
            return self
        fixed = {name: values[path[0]] for name, path in self.columns if len(path) == 1 and path[0] in values}
        named = {name for name, _ in (*self.columns, *self.fixed)}
        if _ALL_OTHERS not in named:
            names = (TYPE_FIELD, *schema.columns())
            fixed |= {name: values[name] for name in names if name in values and name not in named}
        columns = tuple((name, path) for name, path in self.columns if name not in fixed)
        return replace(self, columns=columns, fixed=(*self.fixed, *fixed.items()))

    @cached_property
    def _paths(self) -> dict[str, Path]:
        return dict(self.columns)

    @cached_property
    def constants(self) -> dict[str, str]:
        return dict(self.fixed)

    @cached_property
    def currencies(self) -> dict[str, str]:
        """The field of the currency of each amount in minor units that has one."""
        return {name: by for name, by in self.minor_by if by != BYTES}

    def has_bytes(self, name: str) -> bool:
        """Return True for amounts that are the bytes of whole numbers, as base64."""
        return (name, BYTES) in self.minor_by

    @cached_property
    def is_flat(self) -> bool:
        """True if no field lies inside another value."""
        return all(len(path) == 1 and name != _ALL_OTHERS for name, path in self.columns)

    def path(self, name: str) -> Path:
        named = self._paths.get(name)
        return (*self._paths.get(_ALL_OTHERS, ()), name) if named is None else named

    def is_named(self, name: str) -> bool:
        return name in self._paths

    def paths(self, schema: Schema) -> dict[str, Path]:
        """Return where each field is that records have, and the name of their type."""
        return {name: self.path(name) for name in (TYPE_FIELD, *schema.columns()) if name not in self.constants}

    def roots(self, schema: Schema) -> tuple[str, ...]:
        """Return the outermost names that are read."""
        return tuple(dict.fromkeys(path[0] for each in self.views for path in each.paths(schema).values()))

    def written(self, name: str, kind: Kind) -> Written | None:
        """Return how the source writes the values of a field, None for the usual forms. Others: times as `time` says,
        words in place of values, numbers such as 1.200,50 (`file`), amounts in cents or their bytes (`minor`)."""
        if kind is Kind.TIME and self.time != Written():
            return self.time
        words = tuple((value, word) for field_name, value, word in self.values if field_name == name)
        if words:
            return Written(words=words)
        has_separators = self.file.decimal and kind in NUMBER_KINDS
        numbers = NumberForm(self.file.decimal, self.file.thousands) if has_separators else None
        if not numbers and name not in self.minor:
            return None
        return Written(minor=name in self.minor, numbers=numbers, has_bytes=self.has_bytes(name))

    def value(self, record: Mapping[str, Any], name: str) -> Any:
        return value_at(record, self.path(name))

    def arrays(self, schema: Schema, columns: Mapping[str, pa.Array], rows: int) -> dict[str, pa.Array]:
        """Return the columns of the fields from the columns of the records; a field that no record has is left out."""
        fields = {}
        for name, path in self.paths(schema).items():
            array = array_at(columns, path)
            if array is not None:
                fields[name] = array
        for name, text in self.constants.items():
            fields[name] = pa.repeat(pa.scalar(text, pa.string() if name == TYPE_FIELD else TEXT), rows)
        return fields

    def event_ids(self, ids: pa.Array) -> pa.Array:
        """Return the ids of events for the ids of records: followed by the view, if records have several."""
        if not self.view:
            return ids
        return pc.binary_join_element_wise(ids, pa.scalar(self.view, ids.type), pa.scalar("#", ids.type))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> FieldMapping:
        values = _in_tuples(json.loads(text))
        return FieldMapping(**values | {"time": Written(**values["time"]), "file": FileForm(**values["file"])})


def _in_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _in_tuples(inner) for name, inner in value.items()}
    return tuple(map(_in_tuples, value)) if isinstance(value, list) else value


PLAIN = FieldMapping()


def joined_columns(name: str) -> tuple[str, ...]:
    """Return the columns whose texts make one column, as `Year + Month + Day` says; a column alone is itself."""
    return tuple(part.strip() for part in name.split(JOIN))


def view_of(name: str) -> tuple[str, str]:
    """Return the view that stands in front of the name of a field, empty for all views; and the field."""
    view, _, field_name = name.rpartition(_OF_VIEW)
    return view, field_name


def _said_of(pairs: Sequence[tuple[str, Any]], view: str) -> dict[str, Any]:
    return {view_of(name)[1]: value for name, value in pairs if view_of(name)[0] == view}


def value_at(record: Any, path: Path) -> Any:
    """Return the value at a path of a nested record; None if it is missing."""
    for name in path:
        if not isinstance(record, Mapping):
            return None
        record = record.get(name)
    return record


def array_at(columns: Mapping[str, pa.Array], path: Path) -> pa.Array | None:
    """Return the values at a path of nested columns; None if they are missing."""
    array = columns.get(path[0])
    for name in path[1:]:
        if array is None or not pa.types.is_struct(array.type) or array.type.get_field_index(name) < 0:
            return None
        array = pc.struct_field(array, [name])
    return array


# --------------------------------------------------------------------------------------------------------- reading


def mapping_of(
    columns: Sequence[str] = (), fixed: Sequence[str] = (), minor: Sequence[str] = (), time: Written | None = None,
    file: FileForm | None = None, values: Sequence[str] = (),
) -> FieldMapping:  # fmt: skip
    """Build a mapping from flags. `columns` are field=path, `fixed` are field=value, `values` are field.value=word.
    `minor` are fields in cents, perhaps as field:currency-field or field:base64 (BYTES). `time` says how times are
    written. A field VIEW/FIELD is of one view, one of several events that a record becomes. Raises: UsageError."""
    paths = tuple((name, _path(name, text)) for name, text in _pairs(columns, "--columns", "FIELD=PATH"))
    constants = tuple(_pairs(fixed, "--fixed", "FIELD=VALUE"))
    fixed_and_read = [name for name in dict(paths) if name in dict(constants)]
    if fixed_and_read:
        raise UsageError(f"`{fixed_and_read[0]}` is both fixed and read from a column; leave out one")
    written = time or Written()
    for name in (*dict(paths), *dict(constants)):
        view, field_name = view_of(name)
        if _OF_VIEW in name and (not field_name or not _VIEW.fullmatch(view)):
            raise UsageError(
                f"`{name}`: write VIEW/FIELD, the view as a name of letters, digits and _, such as sent/amount"
            )
    _check_base(written)
    if written.unit not in ("", *(UNITS_US if written.base else TIME_UNITS)):
        units = ", ".join(UNITS_US if written.base else TIME_UNITS)
        raise UsageError(f"a unit of time is {units}, not {written.unit!r}")
    if written.form:
        check_form(written.form)
    if written.zone:
        check_zone(written.zone)
    parts = [text.partition(":") for text in minor]
    for name, colon, currency_field in parts:
        if not name or (colon and not currency_field):
            raise UsageError(f"--minor {name}{colon}: write FIELD, FIELD:CURRENCY or FIELD:{BYTES}")
    minor_by = tuple((name, currency_field) for name, _, currency_field in parts if currency_field)
    names = tuple(name for name, _, _ in parts)
    words = tuple(_word(name, word) for name, word in _pairs(values, "--values", _VALUES_FORM))
    return FieldMapping(paths, constants, names, written, file=file or AS_WRITTEN, minor_by=minor_by, values=words)


def check_zone(zone: str) -> None:
    """Refuse a name that is no time zone. Raises: UsageError, with the nearest name."""
    if zone not in zoneinfo.available_timezones():
        hint = hint_at_nearest(zone, zoneinfo.available_timezones(), "; did you mean {}?")
        raise UsageError(f"{zone} is no time zone{hint or ', such as UTC or Europe/Berlin'}")


def mapping_of_settings(settings: MappingSettings) -> FieldMapping:
    """Read the mapping of a job or a verb. Raises: UsageError."""
    time = Written(settings.time_unit, settings.time_form, settings.time_zone, base=settings.time_base)
    signs = settings.delimiter, settings.quote, settings.encoding, settings.decimal, settings.thousands
    form = form_of_flags(*signs)
    return mapping_of(settings.columns, settings.fixed, settings.minor, time, form, settings.values)


def _word(text: str, word: str) -> tuple[str, str, str]:
    name, dot, value = text.partition(".")
    if not dot:
        raise UsageError(f"--values {text}={word}: write {_VALUES_FORM}")
    return name, value, word


def _check_base(written: Written) -> None:
    """Check `base`, the moment since which numbers count time; without one, check the unit. Raises: UsageError."""
    if not written.base:
        if written.unit in UNITS_US and written.unit not in TIME_UNITS:  # min, h and d
            raise UsageError(
                f"a unit of time is {', '.join(TIME_UNITS)}, not {written.unit!r}; times in {written.unit} count from "
                "a moment, which --time-base says"
            )
        return
    if written.form:
        raise UsageError("--time-base is for times that are numbers, and --time-form for texts; leave out one")
    try:
        utc_ms(written.base)
    except ValueError as error:
        raise UsageError(f"--time-base: {error}") from error


def check_fields(mapping: FieldMapping, schema: Schema) -> None:
    """Check that the mapping speaks of fields of the events. Raises: UsageError."""
    for view in mapping.views:
        _check_view(view, schema)


def _check_view(mapping: FieldMapping, schema: Schema) -> None:
    """Check the fields that a mapping of one view (one of a record's events) names: they exist and have a fitting type,
    such as decimal for `minor` (amounts in cents). Raises: UsageError."""
    types = schema.columns()
    names = [TYPE_FIELD, *types]
    for name in (
        *(n for n, _ in mapping.columns if n != _ALL_OTHERS),
        *mapping.constants,
        *mapping.minor,
        *mapping.currencies.values(),
        *(n for n, _, _ in mapping.values),
    ):
        if name not in names:
            hint = hint_at_nearest(name, names) or f"; they have {', '.join(names)}"
            raise UsageError(f"the events have no field `{name}`{hint}")
    fixed_type = mapping.constants.get(TYPE_FIELD)
    if fixed_type is not None and schema.event_type(fixed_type) is None:
        names = [event_type.name for event_type in schema.event_types]
        raise UsageError(f"there is no event type `{fixed_type}`; there are {', '.join(names)}")
    for name in mapping.minor:
        if types[name].kind is not Kind.DECIMAL:
            raise UsageError(f"`{name}` is of type {types[name]}; only a decimal has minor units")
    for name in mapping.currencies.values():
        if types[name].kind not in (Kind.STRING, Kind.ENUM):
            raise UsageError(f"`{name}` is of type {types[name]}; a currency is a string or an enum")
    for name, value, word in mapping.values:
        type_ = types.get(name)
        if type_ is None or type_.kind not in (Kind.STRING, Kind.ENUM, Kind.BOOL) or type_.protected:
            raise UsageError(f"--values {name}.{value}: only enums, plain strings and bools have words for values")
        if type_.kind is Kind.ENUM and word not in type_.symbols:
            hint = hint_at_nearest(word, type_.symbols, "; did you mean {}?") or f"; it has {', '.join(type_.symbols)}"
            raise UsageError(f"--values {name}.{value}={word}: `{name}` has no symbol {word}{hint}")
    _check_paths(mapping, schema)


def _check_paths(mapping: FieldMapping, schema: Schema) -> None:
    """Refuse a path that is read both as a value and as an object, or as two types. Raises: UsageError."""
    types = schema.columns()
    paths = mapping.paths(schema)
    for name, path in paths.items():
        for other, longer in paths.items():
            if len(longer) > len(path) and longer[: len(path)] == path:
                raise UsageError(
                    f"`{name}` is read from {shown_path(path)}, in which `{other}` lies; a value is no object, too"
                )
            is_same = longer == path and TYPE_FIELD not in (name, other)
            if is_same and types[name].as_nullable(False) != types[other].as_nullable(False):
                raise UsageError(
                    f"`{name}` and `{other}` are both read from {shown_path(path)}, as values of different types"
                )


def shown_path(path: Path) -> str:
    """Write a path as an author would."""
    return ".".join(f'"{name}"' if "." in name else name for name in path)


def _pairs(texts: Sequence[str], flag: str, form: str) -> list[tuple[str, str]]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, sign, value = (part.strip() for part in text.partition("="))
        if not sign or not name:
            raise UsageError(f"{flag} {text}: write {form}")
        if name in pairs:
            raise UsageError(f"{flag} names `{name}` twice")
        pairs[name] = value
    return list(pairs.items())


def path_of_text(text: str) -> Path:
    """Return the names of a path: `after.card.no`, or `"card.id"` for a name with a dot."""
    return tuple(quoted or plain for quoted, plain in _PART.findall(text))


def _path(name: str, text: str) -> Path:
    parts = path_of_text(text)
    if not parts or (shown_path(parts).replace(" ", "") != text.replace(" ", "") and '"' not in text):
        raise UsageError(f"--columns {name}={text}: a path is names with dots between them, as payload.after.amount")
    return parts
