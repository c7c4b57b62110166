"""One column of times in any form → int64 microseconds since 1970, UTC; null for an invalid time.

    timestamps and dates of Arrow   of any unit; without a zone they are times of `zone`
    texts                           the forms of TIME_FORMS, or the user's own form; a number as text
    numbers                         whole or with a fraction, since 1970; in `unit`, by default milliseconds

A time is cut to whole microseconds towards the past; a float is rounded to the nearest microsecond. A local time that
occurs twice in its zone is the first of the two. A local time that clocks skip is read with the offset before the skip,
like `zoneinfo`, so that the order of such times stays.
Tested by: tests/columnar/test_times.py.
"""

import re
import zoneinfo
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cep.base.errors import UsageError
from cep.base.limits import EVENT_TIME_MS_MAX, EVENT_TIME_MS_MIN
from cep.base.text import utc_ms

TIME_UNITS = ("s", "ms", "us", "ns")
INT96_UNIT = "us"  # of times of old Parquet files: in nanoseconds, 9999-12-31 would be a day of 1816
# Numbers as text that may be times without a unit: from the second day of 1970 on, in milliseconds.
_TEXT_MS_MIN = 100_000_000
UNITS_US = {"us": 1, "ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_US_MIN, _US_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999  # the years 1 to 9999
_INT64_MAX = 2**63 - 1
_DAY_US, _QUARTER_US = 86_400_000_000, 900_000_000
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 of local times
_TABLE_END_US = 2_114_380_800_000_000  # 2037-01-01; the tables of zones end within this year

_SKIPPED_COUNTS: ContextVar[list[int] | None] = ContextVar("skipped_times", default=None)

_UTC_TYPE, _LOCAL_TYPE = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
_ONE_TIME = pa.nulls(1, _LOCAL_TYPE)  # `pa.array` would load pandas, and planning of Kafka does not need it
_TIME = r"(?P<H>[01]\d|2[0-3])(?::(?P<M>[0-5]\d)(?::(?P<S>[0-5]\d)(?:[.,](?P<f>\d+))?)?)?"
_BASIC_TIME = r"(?P<H>[01]\d|2[0-3])(?P<M>[0-5]\d)(?:(?P<S>[0-5]\d)(?:[.,](?P<f>\d+))?)?"
_OFFSET = r"(?: ?(?P<z>[Zz]|UTC|GMT|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d(?::?[0-5]\d)?)?))?"
_PLACE = (
    r"(?:(?:\[!?(?P<zone>[A-Za-z][\w+/-]*|[+-]\d\d:\d\d)\]| (?P<place>[A-Za-z_]+(?:/[\w+-]+)+))"
    r"(?:\[[a-z][\w-]*=[\w-]+\])*)?"
)
# The forms of times that are texts: the form, its pattern, and an example. The first form that fits counts.
TIME_FORMS = (
    (
        "ISO 8601, RFC 3339, RFC 9557",
        r"(?P<Y>\d{4})-(?P<m>0[1-9]|1[0-2])-(?P<d>\d\d)(?:[Tt ]" + _TIME + _OFFSET + _PLACE + ")?",
        "2026-03-01T11:00:00.123456+01:00[Europe/Berlin]",
    ),
    (
        "ISO 8601, basic form",
        r"(?P<Y>\d{4})(?P<m>0[1-9]|1[0-2])(?P<d>\d\d)[Tt]" + _BASIC_TIME + _OFFSET + _PLACE,
        "20260301T100000Z",
    ),
)
# The form of most times, 2026-03-01T10:00:00Z or with an offset: Arrow reads these at once.
_WITH_OFFSET = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:?\d\d)$"
_NUMBER = r"^(?P<sign>[+-]?)(?P<whole>\d{1,19})(?:\.(?P<part>\d*))?$"
_POWER = r"^[+-]?\d+(\.\d*)?[eE][+-]?\d{1,3}$"
_MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october",
           "november", "december")  # fmt: skip
_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
# The zones that `%Z` reads, in minutes east of UTC: names that have one meaning in RFC 5322 and in Europe.
ZONE_NAMES = {
    "UTC": 0, "GMT": 0, "UT": 0, "Z": 0, "EST": -300, "EDT": -240, "CST": -360, "CDT": -300, "MST": -420, "MDT": -360,
    "PST": -480, "PDT": -420, "WET": 0, "WEST": 60, "CET": 60, "CEST": 120, "EET": 120, "EEST": 180,
}  # fmt: skip
_DIRECTIVES = {
    "Y": r"(?P<Y>\d{4})",
    "y": r"(?P<y>\d\d)",
    "m": r"(?P<m>1[0-2]|0[1-9]|[1-9])",
    "B": f"(?P<B>{'|'.join(_MONTHS)})",
    "b": f"(?P<b>{'|'.join(name[:3] for name in _MONTHS)})",
    "d": r"(?P<d>3[01]|[12]\d|0[1-9]|[1-9]| [1-9])",
    "j": r"(?P<j>36[0-6]|3[0-5]\d|[12]\d\d|0[1-9]\d|00[1-9]|[1-9]\d|0[1-9]|[1-9])",
    "H": r"(?P<H>2[0-3]|[01]\d|\d)",
    "I": r"(?P<I>1[0-2]|0[1-9]|[1-9])",
    "p": r"(?P<p>am|pm)",
    "M": r"(?P<M>[0-5]\d|\d)",
    "S": r"(?P<S>[0-5]\d|\d)",
    "f": r"(?P<f>\d{1,6})",
    "z": r"(?P<z>Z|[+-]\d\d:?[0-5]\d(?::?[0-5]\d)?)",
    "Z": f"(?P<name>{'|'.join(sorted(ZONE_NAMES, key=len, reverse=True))})",
    "A": f"(?:{'|'.join(_DAYS)})",
    "a": f"(?:{'|'.join(name[:3] for name in _DAYS)})",
    "%": "%",
}
_DIGITS_FORM = re.compile("(%[YmdjHMSf])+")  # of times that may be numbers: 20260301100000
_SHORT_FORMS = {"F": "%Y-%m-%d", "T": "%H:%M:%S", "R": "%H:%M", "D": "%m/%d/%y"}


@contextmanager
def counting_skipped() -> Iterator[list[int]]:
    """Collect counts of local times that clocks skip and that this thread reads inside the block."""
    counts: list[int] = []
    token = _SKIPPED_COUNTS.set(counts)
    try:
        yield counts
    finally:
        _SKIPPED_COUNTS.reset(token)


def times_us(source: pa.Array, unit: str = "", form: str = "", zone: str = "") -> pa.Array:
    """Convert a column of times to microseconds since 1970, int64, null for an invalid time.

    Numbers count `unit` (one of TIME_UNITS; empty: ms). Texts have the `strptime` form `form` (empty: the usual
    TIME_FORMS). A time that names no zone is local time of `zone` (empty: UTC). Most columns cost one cast.
    """
    type_ = source.type
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        times = _read_form(source, form, zone) if form else _read_texts(source, unit, zone)
    elif pa.types.is_timestamp(type_):
        moments = _scaled(source.cast(pa.int64()), type_.unit)
        times = moments if type_.tz is not None else _local(moments.cast(_LOCAL_TYPE), zone)
    elif pa.types.is_date(type_):
        moments = _scaled(source.cast(pa.timestamp("ms")).cast(pa.int64()), "ms")
        times = _local(moments.cast(_LOCAL_TYPE), zone)
    elif pa.types.is_integer(type_) and _DIGITS_FORM.fullmatch(form):  # such as 20260301 for %Y%m%d
        times = _read_form(source.cast(pa.string()), form, zone)
    elif pa.types.is_integer(type_):
        times = _scaled(_whole_numbers(source), unit or "ms")
    elif pa.types.is_floating(type_):
        times = _read_doubles(source.cast(pa.float64()), unit or "ms")
    elif pa.types.is_decimal(type_):
        times = _read_numbers(source.cast(pa.large_string()), unit or "ms", 0)  # 0: no number is too small
    else:
        return pa.nulls(len(source), pa.int64())
    return _within(times)  # only the years 1 to 9999


def has_zone(text: str) -> bool | None:
    """Return whether a time that is a text names its zone or offset; None for a text of no form of TIME_FORMS."""
    for _, pattern, _ in TIME_FORMS:
        match = re.fullmatch(pattern, text.strip(), re.ASCII)
        if match:
            return bool(match["z"] or match["zone"] or match["place"])
    return None


def form_has_zone(form: str) -> bool:
    """Return True if each time of the form names its offset or zone."""
    return "z" in _directives(form) or "Z" in _directives(form)


def check_form(form: str) -> None:
    """Refuse a form of times without a full date or with unknown directives. Raises: UsageError."""
    directives = _directives(form)
    unknown = [letter for letter in directives if letter not in _DIRECTIVES]
    if unknown:
        raise UsageError(f"%{unknown[0]} in the form {form!r} is not supported; there are %{' %'.join(_DIRECTIVES)}")
    repeated = [letter for letter in directives if directives.count(letter) > 1 and letter not in "aA%"]
    if repeated:
        raise UsageError(f"the form {form!r} has %{repeated[0]} twice")
    has_day = ("d" in directives and bool(set("mbB") & set(directives))) or "j" in directives
    if not set("Yy") & set(directives) or not has_day:
        raise UsageError(
            f"the form {form!r} does not name a year, a month and a day, so the times of different days would be the "
            "same; add %Y, %m and %d"
        )
    if "I" in directives and "p" not in directives:
        raise UsageError(
            f"the form {form!r} has %I without %p, which leaves morning and evening open; add %p or use %H"
        )


def _directives(form: str) -> list[str]:
    return re.findall(r"%(.?)", _long_form(form), re.DOTALL)


def _long_form(form: str) -> str:
    return re.sub(r"%(.)", lambda match: _SHORT_FORMS.get(match[1], match[0]), form)


# ------------------------------------------------------------------------------------------------------------ numbers


def _scaled(numbers: pa.Array, unit: str) -> pa.Array:
    """Convert whole numbers of a unit to microseconds, null beyond the range."""
    if unit == "us":
        return numbers
    values = np.asarray(numbers.fill_null(0) if numbers.null_count else numbers)
    if unit == "ns":
        scaled, fits = values // 1_000, None
    else:
        ticks = UNITS_US[unit]
        fits = (values >= _US_MIN // ticks) & (values <= _US_MAX // ticks)
        scaled = np.where(fits, values, 0) * ticks
    return _masked(scaled, fits, numbers)


def _whole_numbers(source: pa.Array) -> pa.Array:
    if source.type != pa.uint64():
        return source.cast(pa.int64())
    return pc.if_else(pc.less_equal(source, pa.scalar(_INT64_MAX, pa.uint64())), source, None).cast(pa.int64())


def _read_doubles(source: pa.Array, unit: str) -> pa.Array:
    """Read floats as the nearest microsecond: 0.001 is not exact, and a cut would be one microsecond early."""
    values = np.asarray(source.fill_null(np.nan))
    ticks = UNITS_US.get(unit, 1)
    fits = np.isfinite(values) & (np.abs(values) <= (_US_MAX / ticks if unit != "ns" else 2.0**62))
    values = np.where(fits, values, 0.0)
    whole = np.floor(values)
    units = whole.astype(np.int64)
    if unit == "ns":
        return _masked((units + 500) // 1_000, fits, None)
    return _masked(units * ticks + np.rint((values - whole) * ticks).astype(np.int64), fits, None)


def _read_numbers(texts: pa.Array, unit: str, number_min: int) -> pa.Array:
    """Convert numbers in texts to exact microseconds; null for other texts and for numbers below `number_min`, which
    are hardly times. `part` is the fraction in billionths of a unit: -1.25 is the whole -2 and a part of 0.75."""
    parts = pc.extract_regex(texts, _NUMBER)
    is_number = np.asarray(pc.is_valid(parts))
    whole = _int_of(pc.struct_field(parts, ["whole"]), is_number, "0")
    fits = is_number & (whole >= number_min)
    part = _fraction(pc.struct_field(parts, ["part"]), is_number, 9)
    is_negative = _equal(pc.struct_field(parts, ["sign"]), "-")
    whole = np.where(is_negative, -whole - (part > 0), whole)
    part = np.where(is_negative & (part > 0), 1_000_000_000 - part, part)
    scaled = _scaled(pa.array(whole, mask=~fits), unit)
    part_us = part // {"s": 1_000, "ms": 1_000_000}.get(unit, 1_000_000_000)  # 0 in units of a microsecond or less
    numbers = pc.add(scaled, pa.array(part_us))
    has_power = pc.match_substring_regex(texts, _POWER)  # numbers such as 1.7e9, which are read as doubles
    if not pc.any(has_power).as_py():
        return numbers
    doubles = pc.if_else(has_power, texts, pa.scalar(None, texts.type)).cast(pa.float64())
    doubles = pc.if_else(pc.greater_equal(pc.abs(doubles), float(number_min)), doubles, pa.scalar(None, pa.float64()))
    return pc.coalesce(numbers, _read_doubles(doubles, unit))


# -------------------------------------------------------------------------------------------------------------- texts


def _read_texts(source: pa.Array, unit: str, zone: str) -> pa.Array:
    """Convert times in texts to microseconds. A column in one form of ISO 8601 is cast as a whole, others are read text
    by text. Numbers count `unit` since 1970. Without a unit they are ms, and small numbers are not times."""
    with suppress(pa.ArrowInvalid):
        return source.cast(_UTC_TYPE).cast(pa.int64())  # if each text has an offset
    with suppress(pa.ArrowInvalid):
        return _local(source.cast(_LOCAL_TYPE), zone)  # if no text has an offset
    nothing = pa.scalar(None, source.type)
    has_offset = pc.match_substring_regex(source, _WITH_OFFSET)
    try:
        times = pc.if_else(has_offset, source, nothing).cast(_UTC_TYPE).cast(pa.int64())
    except pa.ArrowInvalid:  # such as 30 February
        times = pa.nulls(len(source), pa.int64())
    rows = np.flatnonzero(np.asarray(pc.is_null(times)) & np.asarray(pc.is_valid(source)))
    texts = pc.utf8_trim_whitespace(source.take(pa.array(rows)))
    others = _read_numbers(texts, unit or "ms", 0 if unit else _TEXT_MS_MIN)
    for _, pattern, _ in TIME_FORMS:  # each is a name, a pattern and an example
        others = pc.coalesce(others, _read_pattern(texts, f"^(?:{pattern})$", zone))
    return pc.replace_with_mask(times, _mask(rows, len(source)), others)


def _read_form(source: pa.Array, form: str, zone: str) -> pa.Array:
    return _read_pattern(pc.utf8_trim_whitespace(source), _pattern(form), zone)


@lru_cache(maxsize=64)
def _pattern(form: str) -> str:
    """Return the pattern of texts that a form of `strptime` reads: a space stands for any white space."""
    check_form(form)
    parts = re.findall(r"%.|\s+|[^%\s]+", _long_form(form).strip(), re.DOTALL)
    read = [_DIRECTIVES[p[1]] if p[0] == "%" else r"\s+" if p.isspace() else re.escape(p) for p in parts]
    return f"^(?i:{''.join(read)})$"


def _read_pattern(texts: pa.Array, pattern: str, zone: str) -> pa.Array:
    """Convert the texts that match a pattern with the groups Y, m, d, H, … of `strptime` to microseconds."""
    parts = pc.extract_regex(texts, pattern)
    fits = np.asarray(pc.is_valid(parts))
    if not fits.any():
        return pa.nulls(len(texts), pa.int64())
    groups = {field.name: pc.struct_field(parts, [field.name]) for field in parts.type}
    days, is_day = _days(groups, fits)
    clock = _hours(groups, fits) * 60 + _number(groups, "M", fits)
    seconds = clock * 60 + _number(groups, "S", fits)
    local_us = days * _DAY_US + seconds * 1_000_000
    if "f" in groups:
        local_us += _fraction(groups["f"], fits, 6)
    local = pa.array(np.where(fits & is_day, local_us, 0), mask=~(fits & is_day))
    offset_us, has_offset = _offsets(groups, fits)
    times = pc.subtract(local, pa.array(offset_us))
    if has_offset.all():
        return times
    without_offset = pc.if_else(pa.array(has_offset), pa.scalar(None, pa.int64()), local)
    return pc.if_else(pa.array(has_offset), times, _in_named_zones(without_offset.cast(_LOCAL_TYPE), groups, zone))


def _number(groups: dict[str, pa.Array], name: str, fits: NDArray[np.bool_], default: str = "0") -> NDArray[np.int64]:
    if name not in groups:
        return np.full(len(fits), int(default), np.int64)
    return _int_of(groups[name], fits, default)


def _int_of(digits: pa.Array, fits: NDArray[np.bool_], default: str) -> NDArray[np.int64]:
    """Return digits as numbers; `default` without digits, and -1 for a number that int64 does not have."""
    some = pc.utf8_trim_whitespace(digits.fill_null(""))
    some = pc.if_else(pc.and_(pa.array(fits), pc.not_equal(some, "")), some, pa.scalar(default, some.type))
    try:
        return np.asarray(some.cast(pa.int64()))
    except pa.ArrowInvalid:  # a number of 19 digits, the most that there are, may be too large
        fits_int64 = pc.or_(pc.less(pc.binary_length(some), 19), pc.less_equal(some, str(_INT64_MAX)))
        return np.asarray(pc.if_else(fits_int64, some, pa.scalar("-1", some.type)).cast(pa.int64()))


def _fraction(digits: pa.Array, fits: NDArray[np.bool_], length: int) -> NDArray[np.int64]:
    """Return the first digits after a point as a whole number of so many digits."""
    padded = pc.utf8_rpad(digits.fill_null(""), length, "0")
    return _int_of(pc.utf8_slice_codeunits(padded, 0, length), fits, "0")


def _days(groups: dict[str, pa.Array], fits: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the days since 1970 of dates, and a mask of the dates that exist in the calendar. `groups` has the digits
    of each text by `strptime` directive (Y, y, j, m, d). `fits` marks the texts that fit the pattern."""
    year = _number(groups, "Y", fits)
    if "Y" not in groups:
        two_digits = _number(groups, "y", fits)
        year = two_digits + np.where(two_digits < 69, 2_000, 1_900)  # 69 to 99 are of the 1900s, as in POSIX
    years = (year - 1970).astype("datetime64[Y]")
    if "j" in groups:
        new_year, day = years.astype("datetime64[D]"), _number(groups, "j", fits, "1")
        dates = new_year + (day - 1)  # day 366 of a common year is in the next year, so it does not exist
        return dates.astype(np.int64), (dates.astype("datetime64[Y]") == years) & (year >= 1)
    months = years.astype("datetime64[M]") + (_month(groups, fits) - 1)
    day = _number(groups, "d", fits, "1")
    dates = months.astype("datetime64[D]") + (day - 1)  # 30 February is in March, so it does not exist
    return dates.astype(np.int64), (dates.astype("datetime64[M]") == months) & (year >= 1) & (day >= 1)


def _month(groups: dict[str, pa.Array], fits: NDArray[np.bool_]) -> NDArray[np.int64]:
    if "m" in groups:
        return _number(groups, "m", fits, "1")
    names = pc.utf8_slice_codeunits(pc.utf8_lower(groups.get("b", groups.get("B"))), 0, 3)
    months = pc.index_in(names, pa.array([name[:3] for name in _MONTHS], names.type))
    return np.asarray(months.fill_null(0)).astype(np.int64) + 1


def _hours(groups: dict[str, pa.Array], fits: NDArray[np.bool_]) -> NDArray[np.int64]:
    if "I" not in groups:
        return _number(groups, "H", fits)
    return _number(groups, "I", fits, "12") % 12 + 12 * _equal(pc.utf8_lower(groups["p"]), "pm")


def _offsets(groups: dict[str, pa.Array], fits: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the UTC offset of each text in microseconds, and a mask of the texts for which no zone must be looked up.
    They have an offset, or they do not fit the pattern (`fits` is False) and their time is null anyway."""
    if "name" in groups:  # the name of a zone such as CET, from %Z
        names = pa.array(list(ZONE_NAMES), groups["name"].type)
        zones = np.asarray(pc.index_in(pc.utf8_upper(groups["name"]), names).fill_null(0))  # 0: any, for a null time
        return np.array(list(ZONE_NAMES.values()))[zones] * 60_000_000, np.ones(len(fits), bool)
    if "z" not in groups:
        return np.zeros(len(fits), np.int64), ~fits
    texts = groups["z"].fill_null("")
    parts = pc.extract_regex(texts, r"^(?P<sign>[+-])(?P<h>\d\d):?(?P<m>\d\d)?:?(?P<s>\d\d)?$")
    has_parts = np.asarray(pc.is_valid(parts))  # Z, UTC and GMT have no parts, their offset is 0
    hours, minutes, seconds = (_int_of(pc.struct_field(parts, [name]), has_parts, "0") for name in "hms")
    sign = np.where(_equal(pc.struct_field(parts, ["sign"]), "-"), -1, 1)
    offset_us = sign * ((hours * 60 + minutes) * 60 + seconds) * 1_000_000
    return offset_us, np.asarray(pc.not_equal(texts, "")) | ~fits


def _in_named_zones(local: pa.Array, groups: dict[str, pa.Array], zone: str) -> pa.Array:
    """Convert local times to UTC in the zone that the text names, otherwise in `zone`. An unknown zone gives null. The
    group `zone` is a name in brackets, as in `[Europe/Zurich]`; the group `place` is a name without brackets."""
    if "zone" not in groups or not len(local):
        return _local(local, zone)
    named = pc.if_else(pc.equal(groups["zone"], ""), groups["place"], groups["zone"]).fill_null("")
    order = np.asarray(pc.array_sort_indices(named))  # no hash, thus names made to collide cost nothing more
    sorted_names = named.take(pa.array(order))
    starts = np.flatnonzero(np.asarray(pc.not_equal(sorted_names[1:], sorted_names[:-1]))) + 1
    parts = [_in_zone(local, rows, named[rows[0]].as_py() or zone) for rows in np.split(order.astype(np.int64), starts)]
    return pa.concat_arrays(parts).take(pa.array(np.argsort(order)))


def _in_zone(local: pa.Array, rows: NDArray[np.int64], name: str) -> pa.Array:
    name = "UTC" if name in ("", "Z", "z") else name
    try:
        pc.assume_timezone(_ONE_TIME, name)
    except pa.ArrowInvalid:  # unknown zone
        return pa.nulls(len(rows), pa.int64())
    return _local(local.take(pa.array(rows)), name)


# -------------------------------------------------------------------------------------------------------- local times


def _local(local: pa.Array, zone: str) -> pa.Array:
    """Return local times of a zone, empty: UTC, as microseconds of UTC."""
    if zone in ("", "UTC"):
        return local.cast(pa.int64())
    local = _within(local.cast(pa.int64())).cast(_LOCAL_TYPE)
    times = _by_table(local, zone)
    latest = pc.max(local.cast(pa.int64())).as_py()
    return times if latest is None or latest < _TABLE_END_US else _by_rule(local.cast(pa.int64()), times, zone)


def _by_table(local: pa.Array, zone: str) -> pa.Array:
    """Convert local times to UTC by Arrow's zone tables. A skipped time, which clocks jump over in spring, keeps the
    offset before it, and is counted for a warning. Times after the end of the tables are left to `_by_rule`."""
    try:
        return pc.assume_timezone(local, zone, ambiguous="earliest").cast(pa.int64())
    except pa.ArrowInvalid:
        before = pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="earliest")
    # For a skipped time these are the moments before and after the jump of clocks; for others they are equal.
    after = pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="latest")
    offset_us = pc.subtract(pc.local_timestamp(before).cast(pa.int64()), before.cast(pa.int64()))
    by_offset = pc.subtract(local.cast(pa.int64()), offset_us)
    counts = _SKIPPED_COUNTS.get()
    if counts is not None:
        has_table = pc.less(local.cast(pa.int64()), _TABLE_END_US)
        counts.append(pc.sum(pc.and_(has_table, pc.not_equal(before, after))).as_py() or 0)
    return pc.if_else(pc.equal(before, after), before.cast(pa.int64()), by_offset)


def _by_rule(local: pa.Array, times: pa.Array, zone: str) -> pa.Array:
    """Correct `times` from 2037 on, where Arrow's zone tables end: Arrow knows no summer time there, `zoneinfo` does.

    `local` has microseconds of local time, `times` has UTC. Clocks change only at the start of a quarter of an hour, so
    `zoneinfo` is asked once for each quarter. Local times that clocks skip in spring are counted for a warning.
    """
    try:
        zone_info = zoneinfo.ZoneInfo(zone)  # the zone with its rule of summer time
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):  # an offset, without summer time
        return times
    local_us = np.asarray(local.fill_null(0))
    rows = np.flatnonzero(local_us >= _TABLE_END_US)
    quarters, quarter_of_row = np.unique(local_us[rows] // _QUARTER_US, return_inverse=True)
    starts = [_EPOCH + timedelta(microseconds=q * _QUARTER_US) for q in quarters.tolist()]
    counts = _SKIPPED_COUNTS.get()  # None: the caller does not count them
    if counts is not None:
        is_skipped = np.array([_is_skipped(start.replace(tzinfo=zone_info)) for start in starts], bool)
        valid = np.asarray(pc.is_valid(times))[rows]
        counts.append(int(np.count_nonzero(is_skipped[quarter_of_row] & valid)))
    offsets = [zone_info.utcoffset(start) or timedelta() for start in starts]
    offset_us = np.array([offset // timedelta(microseconds=1) for offset in offsets], np.int64)
    corrected = pa.array(local_us[rows] - offset_us[quarter_of_row])
    return pc.replace_with_mask(times, _mask(rows, len(times)), corrected)


def _is_skipped(moment: datetime) -> bool:
    """Return True for a local time that the clocks of its zone skip: the offset after it is greater than before it."""
    return (moment.utcoffset() or timedelta()) < (moment.replace(fold=1).utcoffset() or timedelta())


# ------------------------------------------------------------------------------------------------------------- arrays


def _within(times: pa.Array) -> pa.Array:
    """Return the times of the years 1 to 9999, and null for the others."""
    if times.null_count == len(times):
        return times
    span = pc.min_max(times).as_py()
    if span["min"] >= _US_MIN and span["max"] <= _US_MAX:
        return times
    fits = pc.and_(pc.greater_equal(times, _US_MIN), pc.less_equal(times, _US_MAX))
    return pc.if_else(fits, times, pa.scalar(None, pa.int64()))


def _masked(values: NDArray[np.int64], fits: NDArray[np.bool_] | None, source: pa.Array | None) -> pa.Array:
    mask = None if fits is None else ~fits
    if source is not None and source.null_count:
        nulls = np.asarray(pc.is_null(source))
        mask = nulls if mask is None else mask | nulls
    return pa.array(values, mask=mask)


def _mask(rows: NDArray[np.int64], count: int) -> pa.Array:
    chosen = np.zeros(count, bool)
    chosen[rows] = True
    return pa.array(chosen)


def _equal(texts: pa.Array, text: str) -> NDArray[np.bool_]:
    return np.asarray(pc.equal(texts, text).fill_null(False))


def moments_since(source: pa.Array, base: str, unit: str) -> pa.Array:
    """Convert numbers that count units since a base, such as seconds since 1980, to moments: timestamp("us", "UTC").

    `base` is a time as ISO 8601 with a zone; `unit` is from UNITS_US, "" for seconds. Values are numbers, or their
    texts. Other values are null, and so are moments outside of the range of event times. Timestamps stay.
    """
    if pa.types.is_timestamp(source.type) or pa.types.is_date(source.type):
        return source
    if pa.types.is_string(source.type) or pa.types.is_large_string(source.type):
        bare = pc.utf8_trim_whitespace(source)
        is_number = pc.match_substring_regex(bare, r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")
        source = pc.if_else(is_number, bare, pa.scalar(None, bare.type)).cast(pa.float64())
    if not (pa.types.is_integer(source.type) or pa.types.is_floating(source.type) or pa.types.is_decimal(source.type)):
        return pa.nulls(len(source), _UTC_TYPE)
    numbers = np.asarray(source.cast(pa.float64(), safe=False).fill_null(np.nan))  # also beyond 2**53
    base_us = utc_ms(base) * 1_000
    with np.errstate(invalid="ignore", over="ignore"):
        moments = np.rint(numbers * UNITS_US[unit or "s"]) + base_us
        fits = (moments >= EVENT_TIME_MS_MIN * 1_000) & (moments <= EVENT_TIME_MS_MAX * 1_000)
    whole = np.where(fits, moments, 0).astype(np.int64)
    return pa.array(whole, mask=~fits).cast(_UTC_TYPE)
