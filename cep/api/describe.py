"""A frame → the event declaration that describes it, as a draft to edit.

    | column of Arrow                    | field                                                    |
    | ---------------------------------- | -------------------------------------------------------- |
    | a time, a date                     | `time`; the first one with a clock is `event_time`       |
    | year, month, day and time; a date  | the same, with a form; numbers of seconds, hours or days |
    | and a time; texts and numbers of   | since a moment get a base                                |
    | days; numbers named as times       |                                                          |
    | values inside others               | a field each: `after.amount` is `amount`                 |
    | none with another value in each row | `row_id id`: the number of the row of a file              |
    | texts or numbers, each of them once | `… id`: the first column that is so in every row          |
    | up to six different words          | `enum(…)`                                                |
    | money, as floats or texts          | `decimal(2)` to `decimal(4)`                             |
    | few values, named as a label       | none: a comment says how to use it                       |
    | text, bool, integer, float         | `string`, `bool`, `int`, `float`                         |
    | decimal of scale s                 | `decimal(s)`                                             |

A field may be null (`?`) where the frame has a null. A column that no field can have is named in a comment.
Tested by: tests/api/test_forms.py
"""

import re
import shlex
import unicodedata
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.api.events import open_any
from cep.api.frames import texts_for_mixed
from cep.base.errors import UsageError
from cep.base.limits import DECIMAL_SCALE_MAX
from cep.base.schema import Kind, Type, shown_symbol
from cep.columnar.convert import Written, convert, convert_us
from cep.columnar.mapping import AS_WRITTEN, JOIN, ROW_NUMBER, FileForm, path_of_text
from cep.columnar.texts import different_count, different_texts
from cep.columnar.times import times_us
from cep.lang.field_names import Role, role_of
from cep.lang.format.file import format_text
from cep.lang.parse.lexer import RESERVED

TIME = "event_time"
_WORDS_MAX = 6  # a field with more different values is a string
_ROW_FIELD = "row_id"
_ID_NAME = re.compile(r"num|key|uuid|ref|hash|^trans", re.IGNORECASE)
_PARTS = ("year", "month", "day")
_NAMES_OF_ANYTHING = {"id", "value", "name", "type", "code", "number"}
# Names of columns whose numbers may be times.
_TIME_NAME = re.compile(
    r"time|step|date|dt$|(^|[_ .])ts$|hour|second|stamp|(^|[_ .])at$|(?-i:[a-z]At$)|created|booked|posted",
    re.IGNORECASE,
)
_UNIT_NAMES = {"h": "step|hour", "d": "day", "min": "minute", "ms": "milli|_ms$"}
# A moment without a meaning, for times whose first moment is not known.
_GUESSED_BASE = "2000-01-01T00:00:00Z"
_EPOCHS = {"ns": 10**17, "us": 10**14, "ms": 10**11, "s": 10**8}  # numbers since 1970 that are in 1973 or later
_TEXTS_TRIED = 1_000
_DAYS = ("%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y-%m-%d", "%d.%m.%y", "%d %b %Y", "%d-%b-%Y")
_CLOCKS = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p")
_DAY_FIRST, _MONTH_FIRST = "%d/%m/%Y", "%m/%d/%Y"
_DIGIT_FORMS = ("%Y%m%d%H%M%S", "%Y%m%d%H%M", "%Y%m%d")
_TIME_FORMS = (*(f"{day} {clock}" for day in _DAYS for clock in _CLOCKS), *_DAYS, *_DIGIT_FORMS)
_DIGITS = re.compile(r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(\d{4}(\d\d)?)?")
_CLOCK = re.compile(r"\d\d?:\d\d(:\d\d)?( [AP]M)?", re.IGNORECASE)
_FORM_CLOCK = re.compile("%[HI]")
_DAYS_ONLY_RANK = 2  # of columns of times without a clock
_DAY_US = 86_400_000_000
_SYMBOL = re.compile(r"\d*[a-z][a-z_-]*", re.IGNORECASE)  # c17 is rather an id
_COLUMN_CHARS = 14
_MONEY_SCALES = (2, 3, 4)
_MONEY_MAX = 1e10  # such amounts and all below have exact cents in a double
_INT_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Draft:
    """A drafted declaration of an event type.

    `columns`: the names of columns where they differ from the fields, as `columns=` takes them. `forms`: how values are
    written, as arguments like `{"time_unit": "s"}`. `is_day_unclear`: 03/04 may be a day in March or in April.
    """

    text: str
    columns: dict[str, str]
    forms: dict[str, str] = field(default_factory=dict)
    is_day_unclear: bool = False

    def __str__(self) -> str:
        arguments = ([f"columns={self.columns}"] if self.columns else []) + [
            f"{n}={v!r}" for n, v in self.forms.items()
        ]
        return (f"# {', '.join(arguments)}\n" if arguments else "") + self.text

    __repr__ = __str__


def describe(events: Any, name: str = "event_of_frame", form: FileForm = AS_WRITTEN) -> Draft:
    """Draft the declaration of an event type `name` that fits a frame or files. `form` tells how CSV files are written.

    If times are numbers that count from an unknown moment, the draft's `time_base` is a guess of that moment.

    Raises: UsageError if the frame has no column of times, or no column of ids (a different value in every row).

    >>> import pyarrow as pa
    >>> times = pa.array([0, 1], pa.timestamp("ms", "UTC"))
    >>> cep.describe(pa.table({"id": ["a", "b"], "ts": times, "n": [1, None]}), "login")
    # columns={'event_time': 'ts'}
    event login {
      id          id
      event_time  time
      n           int?
    }
    """
    frame = open_any(events, form)
    table, paths = _flat(texts_for_mixed(frame.whole()))
    drafted = draft(table, name, has_rows=frame.row is not None, paths=paths)
    csv_signs = {name: sign for name, sign in asdict(form).items() if sign}  # separators, quotes: to read the files
    return replace(drafted, forms={**drafted.forms, **csv_signs})


def draft(
    table: pa.Table, name: str, *, has_rows: bool = False, keeps_labels: bool = False,
    paths: Mapping[str, str] | None = None,
) -> Draft:  # fmt: skip
    """Draft the declaration of a table; `has_rows`: the number of a row can be its id.

    A label is a field only with `keeps_labels`. `paths` has the columns that are inside other values.
    """
    if format_text(f"event {name} {{\n}}", name)[0] is None:
        raise UsageError(f"`{name}` cannot name an event type; give another name, such as `payment`")
    paths = paths or {}
    table = texts_for_mixed(table)
    _check_texts(table)
    time, forms = _time_of(table)
    id_ = _id_column(table, time)
    if id_ is None and not has_rows:
        raise UsageError(
            "no column has another value in every row, and each event needs an id; add a column of numbers"
        )
    lines, columns, names = [f"event {name} {{"], dict[str, str](), {TIME}
    if id_ is None:
        columns[_ROW_FIELD], names = ROW_NUMBER, {*names, _ROW_FIELD}
        lines.append(f"  {_ROW_FIELD.ljust(_COLUMN_CHARS)} id")
    if time not in table.column_names:
        columns[TIME] = paths.get(time, time)
        lines.append(f"  {TIME.ljust(_COLUMN_CHARS)} time")
    for column in table.column_names:
        values = table[column]
        if column == id_:
            kind: str | None = "id"
        elif column == time:
            kind = "time"
        else:
            kind = "time" if _is_read(values, forms) else _kind(values, column)
            if not keeps_labels and _is_label(column, values):
                flag = f"--labels {shlex.quote(column)}"
                lines.append(f"  # {column}: a label, which is known only after the event; use it as {flag}")
                continue
        if kind is None:
            lines.append(f"  # {column}: {values.type}, which no field can have")
            continue
        if kind == "time" and (
            pa.types.is_date(values.type) or (pa.types.is_timestamp(values.type) and values.type.tz is None)
        ):
            forms.setdefault("tz", "UTC")
        named = TIME if column == time else _field(_last_name(column) if column in paths else column, names)
        names.add(named)
        if named != column:
            columns[named] = paths.get(column) or _quoted(column)
        nullable = "?" if values.null_count and column not in (id_, time) else ""
        lines.append(f"  {named.ljust(_COLUMN_CHARS)} {kind}{nullable}")
    text, mistakes = format_text("\n".join([*lines, "}"]), name)
    assert text is not None, mistakes
    return Draft(text.rstrip(), columns, forms, _is_month_first(table, forms.get("time_form", "")) is None)


def _is_label(column: str, values: pa.ChunkedArray) -> bool:
    if role_of(column) is not Role.LABEL:
        return False
    is_counted = _is_text(values.type) or pa.types.is_integer(values.type)
    return pa.types.is_boolean(values.type) or (is_counted and _different_count(values.drop_null()) <= _WORDS_MAX)


def _check_texts(table: pa.Table) -> None:
    """Refuse texts that are not UTF-8. Raises: UsageError."""
    for name in table.column_names:
        try:
            table[name].validate(full=True)
        except pa.ArrowInvalid as error:
            raise UsageError(f"the column `{name}` cannot be read: {error}; mend it or leave it out") from error


def _flat(table: pa.Table) -> tuple[pa.Table, dict[str, str]]:
    """Give each value inside a struct a column, named by its path. Return the table, and the paths of these columns."""
    paths = dict.fromkeys(table.column_names, "")
    while any(map(pa.types.is_struct, table.schema.types)):
        flat: dict[str, pa.ChunkedArray] = {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            if not pa.types.is_struct(column.type):
                flat[name] = column
                continue
            path = paths.pop(name) or _quoted(name)
            for field_, values in zip(column.type, column.flatten(), strict=True):
                full_path = f"{path}.{_quoted(field_.name)}"
                flat[full_path], paths[full_path] = values, full_path
        table = pa.table(flat)
    return table, {name: path for name, path in paths.items() if path}


def _quoted(name: str) -> str:
    return f'"{name}"' if "." in name else name


def _last_name(path: str) -> str:
    """Return the name of a value in others, such as `amount`; with the name before it where it says little alone."""
    names = path_of_text(path) or (path,)
    return "_".join(names[-2:] if names[-1].lower() in _NAMES_OF_ANYTHING else names[-1:])


def _time_of(table: pa.Table) -> tuple[str, dict[str, str]]:
    """Return the column of times, or the columns that make one, and how its times are written. Raises: UsageError.

    The best is a timestamp with a time of day, then another time of day, then days, and numbers from an unknown moment.
    """
    types = dict(zip(table.column_names, table.schema.types, strict=True))
    if TIME in types:
        return TIME, _form_of_column(table, TIME) or {}
    forms: dict[str, dict[str, str]] = {}
    for name, type_ in types.items():
        is_likely = pa.types.is_timestamp(type_) or pa.types.is_date(type_) or _is_text(type_)
        form = _form_of_column(table, name) if is_likely or _TIME_NAME.search(name) else None
        if form is not None:
            forms[name] = form
    ranks = {name: _rank(table[name], form) for name, form in forms.items()}  # the lowest is the best
    if min(ranks.values(), default=_DAYS_ONLY_RANK) >= _DAYS_ONLY_RANK and (joined := _joined_time(table)) is not None:
        return joined
    if not forms:
        raise UsageError(f"no column is of times; make one a time, or name it `{TIME}`. Columns: {table.column_names}")
    name = min(ranks, key=ranks.__getitem__)
    return name, forms[name]


def _rank(values: pa.ChunkedArray, form: Mapping[str, str]) -> int:
    """Return how surely a column has the times of events: the lowest rank is best."""
    if pa.types.is_timestamp(values.type):
        return 0 if _has_clock(values) else _DAYS_ONLY_RANK
    if pa.types.is_date(values.type):
        return _DAYS_ONLY_RANK + 1
    return _DAYS_ONLY_RANK if "time_base" in form or not _FORM_CLOCK.search(form.get("time_form", "%H")) else 1


def _has_clock(times: pa.ChunkedArray) -> bool:
    us = times_us(times.drop_null().slice(0, _TEXTS_TRIED).combine_chunks())
    return bool((np.asarray(us) % _DAY_US).any())


def _joined_time(table: pa.Table) -> tuple[str, dict[str, str]] | None:
    """Return columns that are a time together (year, month, day and time; or date and time), and the form of the joined
    texts: ("pay_date + pay_time", {"time_form": "%Y-%m-%d %H:%M", "tz": "UTC"}). Return None without such columns."""
    lower_names = {name.lower(): name for name in table.column_names}  # in lower case: as written
    if all(name in lower_names for name in _PARTS):
        names = [lower_names[name] for name in (*_PARTS, "time") if name in lower_names]
        clock_form = f" {_clock_form(table[lower_names['time']])}" if "time" in lower_names else ""
        return JOIN.join(names), {"time_form": f"%Y %m %d{clock_form}", "tz": "UTC"}
    clocks = [name for name in table.column_names if _are_clocks(table[name])]  # columns of times of a day
    days = {name: day for name in table.column_names if clocks and (day := _day_form(table, name))}  # column: form
    named_alike = ((day, lower_names.get(day.lower().replace("date", "time"))) for day in days)  # pay_date and pay_time
    pairs = [(day, clock) for day, clock in named_alike if clock is not None and clock in clocks]
    if not pairs and len(days) == len(clocks) == 1:
        pairs = [(next(iter(days)), clocks[0])]
    if not pairs:
        return None
    day, clock = pairs[0]
    return JOIN.join((day, clock)), {"time_form": f"{days[day]} {_clock_form(table[clock])}", "tz": "UTC"}


def _are_clocks(values: pa.ChunkedArray) -> bool:
    texts = values.drop_null().slice(0, _TEXTS_TRIED).to_pylist() if _is_text(values.type) else []
    return bool(texts) and all(map(_CLOCK.fullmatch, texts))


def _day_form(table: pa.Table, name: str) -> str | None:
    """Return how the days of a column are written; None for a column of other values."""
    if pa.types.is_date32(table[name].type):
        return "%Y-%m-%d"
    form = (_form_of_column(table, name) or {}).get("time_form") if _is_text(table[name].type) else None
    return None if form is None or _FORM_CLOCK.search(form) else form


def _clock_form(times: pa.ChunkedArray) -> str:
    """Return the form of the times of a day, from the first one."""
    first = str(next((value.as_py() for value in times if value.is_valid), ""))
    form = "%H:%M:%S" if first.count(":") == 2 else "%H:%M"
    return f"{form.replace('%H', '%I')} %p" if first.upper().endswith("M") else form


def _form_of_column(table: pa.Table, name: str) -> dict[str, str] | None:
    """Return how a column's times are written, as arguments of `match`: {} if it needs none, None without times."""
    values = table[name].drop_null()
    type_ = values.type
    if pa.types.is_timestamp(type_):
        return {} if type_.tz is not None else {"tz": "UTC"}
    if pa.types.is_date(type_):
        return {"tz": "UTC"}
    if _is_text(type_):
        texts = values.slice(0, _TEXTS_TRIED).cast(pa.string()).combine_chunks()
        form = _form_of_texts(texts, _TIME_FORMS)
        if form is None or not _is_month_first(table, form["time_form"]):
            return form
        return {**form, "time_form": form["time_form"].replace(_DAY_FIRST, _MONTH_FIRST)}
    if not len(values) or not (pa.types.is_integer(type_) or pa.types.is_floating(type_)):
        return None
    span = pc.min_max(values).as_py()
    if span["min"] < 0:
        return None
    if pa.types.is_integer(type_) and all(_DIGITS.fullmatch(str(number)) for number in span.values()):
        texts = values.slice(0, _TEXTS_TRIED).cast(pa.string()).combine_chunks()
        form = _form_of_texts(texts, _DIGIT_FORMS)
        if form is not None:
            return form
    for unit, least in _EPOCHS.items():  # numbers of this size count this unit since 1970
        if span["min"] >= least:
            return {} if unit == "ms" else {"time_unit": unit}
    units = [unit for unit, words in _UNIT_NAMES.items() if re.search(words, name, re.IGNORECASE)]
    return {"time_base": _GUESSED_BASE, "time_unit": units[0] if units else "s"}  # smaller: counted from a guess


def _is_month_first(table: pa.Table, form: str) -> bool | None:
    """Return True if the month comes first in dates such as 03/04/2026, None if they can be read in both ways.

    `form` is the guessed form of times, as in strptime. The first column of texts that fit only one order decides.
    Otherwise times with AM or PM (%p) are read in the order of the US.
    """
    if _DAY_FIRST not in form and _MONTH_FIRST not in form:
        return False
    day_first_form = form.replace(_MONTH_FIRST, _DAY_FIRST)
    for name, type_ in zip(table.column_names, table.schema.types, strict=True):
        texts = table[name].drop_null().slice(0, _TEXTS_TRIED)
        for tried in (day_first_form, _DAY_FIRST) if _is_text(type_) and len(texts) else ():
            forms = (tried, tried.replace(_DAY_FIRST, _MONTH_FIRST))  # the same texts, in both orders
            day_fits, month_fits = (not times_us(texts.combine_chunks(), form=order).null_count for order in forms)
            if day_fits != month_fits:
                return month_fits
    return True if "%p" in form else None


def _form_of_texts(texts: pa.Array, forms: Collection[str]) -> dict[str, str] | None:
    """Return the first form that all the texts have."""
    for form in forms if len(texts) else ():
        if times_us(texts[:1], form=form).null_count == 0 and not times_us(texts, form=form).null_count:
            return {"time_form": form, "tz": "UTC"}
    return None


def _is_read(values: pa.ChunkedArray, forms: Mapping[str, str]) -> bool:
    """Return True for texts that are all times in the form of the event's time."""
    texts = values.drop_null().slice(0, _TEXTS_TRIED)
    if "time_form" not in forms or not _is_text(values.type) or not len(texts):
        return False
    return not convert_us(texts.combine_chunks(), Written(form=forms["time_form"], zone=forms["tz"])).values.null_count


def _id_column(table: pa.Table, time: str) -> str | None:
    """Return the first column whose values are all present and distinct. Columns named like `…id` are tried first."""
    possible: list[str] = [
        field.name
        for field in table.schema
        if field.name != time and (_is_text(field.type) or pa.types.is_integer(field.type))
    ]
    for column in sorted(possible, key=_likely_id):
        values = table[column]
        if not values.null_count and _different_count(values) == table.num_rows:
            return column
    return None


def _likely_id(name: str) -> tuple[bool, bool, bool]:
    return (not name.lower().endswith("id"), name.startswith("#"), _ID_NAME.search(name) is None)


def _different_count(values: pa.ChunkedArray) -> int:
    """Count the different texts or numbers. Senders choose them, so no hash without a key is used."""
    return len(different_texts(values)) if _is_text(values.type) else different_count(np.asarray(values))


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def _symbol(word: str) -> str:
    return f'"{word}"' if word in RESERVED else shown_symbol(word)


def _kind(values: pa.ChunkedArray, column: str) -> str | None:
    """Guess the type of a field from its values and its name; None if no type fits."""
    type_, is_money = values.type, role_of(_last_name(column)) in (Role.MONEY, Role.BALANCE)  # by the name
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
        values = pa.chunked_array([chunk.dictionary_decode() for chunk in values.chunks], type_)
    if _is_text(type_):
        scale = _text_scale(values) if is_money else None
        if scale is not None:
            return f"decimal({scale})"
        words = different_texts(values).slice(0, _WORDS_MAX + 1).to_pylist()
        is_enum = 0 < len(words) <= _WORDS_MAX < len(values) and all(map(_SYMBOL.fullmatch, words))  # few words
        return f"enum({', '.join(map(_symbol, sorted(words)))})" if is_enum else "string"
    if pa.types.is_decimal128(type_) and type_.scale >= 0:  # with fewer digits if the values would exceed 64 bits
        scales = (type_.scale, *_MONEY_SCALES, *range(DECIMAL_SCALE_MAX + 1))
        scale = next((scale for scale in scales if scale <= DECIMAL_SCALE_MAX and _are_decimals(values, scale)), None)
        return None if scale is None else f"decimal({scale})"
    if pa.types.is_decimal(type_) and 0 <= type_.scale <= DECIMAL_SCALE_MAX:
        return f"decimal({type_.scale})"
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
        return "time"
    if pa.types.is_boolean(type_):
        return "bool"
    if pa.types.is_uint64(type_) and (pc.max(values).as_py() or 0) > _INT_MAX:  # such as a hash
        return "string"
    if pa.types.is_integer(type_):
        return "int"
    if not pa.types.is_floating(type_):
        return None
    scale = _money_scale(values) if is_money else None
    return "float" if scale is None else f"decimal({scale})"


def _money_scale(values: pa.ChunkedArray) -> int | None:
    """Return the digits after the point that all values have at most; None for other numbers."""
    numbers = np.asarray(values.drop_null().cast(pa.float64()))
    if not len(numbers) or not np.isfinite(numbers).all() or np.abs(numbers).max() >= _MONEY_MAX:
        return None
    return next((scale for scale in _MONEY_SCALES if _are_decimals(values.drop_null(), scale)), None)


def _are_decimals(values: pa.ChunkedArray, scale: int) -> bool:
    """Return True if a field of decimals with so many digits can have all of the values."""
    return all(convert(chunk, Type(Kind.DECIMAL, scale=scale)).bad is None for chunk in values.chunks)


def _text_scale(values: pa.ChunkedArray) -> int | None:
    texts = values.drop_null()
    if not len(texts) or not pc.all(pc.match_substring_regex(texts, r"^-?\d+(\.\d+)?$")).as_py():
        return None
    return _money_scale(texts.cast(pa.float64()))


def _field(column: str, names: Collection[str]) -> str:
    """Return the name of a column's field: its own, as far as the language has such names and nothing else has it."""
    plain = "".join(sign for sign in unicodedata.normalize("NFKD", column) if not unicodedata.combining(sign))
    name = re.sub(r"\W", "_", plain, flags=re.ASCII)
    name = f"_{name}" if not name or name[0].isdigit() else name
    while name in RESERVED or name in names:
        name += "_"
    return name
