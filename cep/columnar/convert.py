"""One column from any source → the Arrow type of its field, with bad values marked.

Bytes are texts in UTF-8. A float is a decimal if it rounds to a whole number of units in binary arithmetic, up to 2**53
units. `Written` overrides the usual forms of values.
Tested by: tests/columnar/test_convert.py, tests/columnar/test_number_texts.py.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cep.base.limits import EVENT_TIME_MS_MAX, EVENT_TIME_MS_MIN
from cep.base.schema import Kind, Type
from cep.columnar.batch import TEXT, arrow_type, slot_values, text_buffers
from cep.columnar.shown import shown_value
from cep.columnar.times import moments_since, times_us
from cep.kernels.layout import Int64

# The value of each character of base64; -1 for others, `=` among them.
_SIX_BITS = np.full(256, -1, np.int64)
_SIX_BITS[list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")] = np.arange(64)
_CHARACTERS_MAX = 11  # of the 8 bytes of a whole number
_BYTES = {pa.binary().id, pa.large_binary().id, pa.binary(1).id, pa.binary_view().id}


def is_bytes(type_: pa.DataType) -> bool:
    """Return True for a column of bytes of any layout."""
    return type_.id in _BYTES


def whole_numbers(source: pa.Array) -> pa.Array:
    """Read whole numbers from big-endian bytes in two's complement, or from base64 of them: "BBo=" means 1050.

    Debezium sends such decimals (`decimal.handling.mode=precise`). Returns int64, null for others. Cost: O(bytes).
    """
    if is_bytes(source.type):
        return _of_bytes(source.cast(pa.large_binary()))
    offsets, data = text_buffers(source.cast(TEXT))
    lengths = np.diff(offsets)
    data = np.append(data, np.uint8(0))  # an empty last text begins at this byte, not behind the end
    last = np.maximum(offsets[1:] - 1, 0)  # the last character of each text; `=` there is padding
    pads = (data[last] == ord("=")).astype(np.int64) + (data[np.maximum(last - 1, 0)] == ord("=")) * (lengths > 1)
    counts = lengths - pads  # characters of six bits each
    fits = (lengths % 4 == 0) & (counts >= 2) & (counts <= _CHARACTERS_MAX) & (pads <= 2)
    bits, spare = np.zeros(len(lengths), np.uint64), 6 * counts % 8  # spare: last bits, which fill no byte
    for position in range(_CHARACTERS_MAX):
        value = _SIX_BITS[data[np.minimum(offsets[:-1] + position, len(data) - 1)]]
        is_used = position < counts
        fits &= ~is_used | (value >= 0)
        step = np.where(position == counts - 1, 6 - spare, 6)  # the bits that this character adds
        shifted = (bits << step.astype(np.uint64)) | (np.maximum(value, 0) >> (6 - step)).astype(np.uint64)
        bits = np.where(is_used & fits, shifted, bits)
    unused = (64 - 8 * (6 * counts // 8)).clip(0, 63)
    # Shifted left by the unused bits and back, so that the sign bit of a shorter number fills them.
    numbers: Int64 = (bits << unused.astype(np.uint64)).view(np.int64) >> unused
    is_valid = fits & np.asarray(pc.is_valid(source))
    return pa.array(np.where(is_valid, numbers, 0), mask=~is_valid)


def _of_bytes(source: pa.Array) -> pa.Array:
    offsets, data = text_buffers(source.view(TEXT))
    lengths = np.diff(offsets)
    data = np.append(data, np.uint8(0)).astype(np.int64)
    first = data[np.minimum(offsets[:-1], len(data) - 1)]
    numbers = np.where(first >= 128, np.int64(-1), np.int64(0))
    for position in range(8):
        byte = data[np.minimum(offsets[:-1] + position, len(data) - 1)]
        numbers = np.where(position < lengths, (numbers << 8) | byte, numbers)
    fits = (lengths >= 1) & (lengths <= 8) & np.asarray(pc.is_valid(source))
    return pa.array(np.where(fits, numbers, 0), mask=~fits)


_CURRENCY = "[$€£¥₹₽₺₩]"
_BLANKS = "[ \u00a0\u202f]*"
_AROUND = f"^{_BLANKS}([-+]?){_BLANKS}{_CURRENCY}?{_BLANKS}([-+]?)(.*?){_BLANKS}{_CURRENCY}?{_BLANKS}$"
_DIGIT = re.compile(r"\d")
_THOUSANDS = {",": (".", " ", "\u00a0", "\u202f", "'", "’"), ".": (",", "'", "’", " ", "\u00a0", "\u202f")}


@dataclass(frozen=True, slots=True)
class NumberForm:
    """How a file writes numbers: the decimal sign, and the sign between groups of three digits, "" for none."""

    decimal: str
    thousands: str = ""

    @property
    def body(self) -> str:
        """The expression that numbers of this form match, without their currency."""
        decimal, thousands = re.escape(self.decimal), re.escape(self.thousands)
        groups = rf"\d{{1,3}}(?:{thousands}\d{{3}})+|" if thousands else ""
        return rf"[-+]?(?:(?:{groups}\d+)(?:{decimal}\d*)?|{decimal}\d+)(?:[eE][-+]?\d+)?"


_PLAIN = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_GROUPS = re.compile(r"[-+]?[1-9]\d{0,2}(?:\.\d{3})+")
FORMS = tuple(NumberForm(decimal, sign) for decimal in ",." for sign in ("", *_THOUSANDS[decimal]))


class AmbiguousError(ValueError):
    """Numbers that mean one value or another; the text of the error says which."""


def plain_numbers(source: pa.Array, form: NumberForm) -> pa.Array:
    """Return texts of this form, such as `$1.234,50`, in the plain form; null for a text of another form."""
    bare = pc.replace_substring_regex(source, _AROUND, r"\1\2\3")
    fits = pc.match_substring_regex(bare, f"^(?:{form.body})$")
    if form.thousands:
        bare = pc.replace_substring(bare, form.thousands, "")
    if form.decimal != ".":
        bare = pc.replace_substring(bare, form.decimal, ".")
    return pc.if_else(fits, bare, pa.scalar(None, source.type))


def guess_number_form(
    texts: Sequence[str], *, decimal: str = "", thousands: str = "", is_european: bool = False
) -> NumberForm | None:
    """Guess the separators of numbers that are texts. None: the plain form, such as 1200.50.

    `decimal` and `thousands` are separators that are certain. `is_european`: the rest of the file suggests a decimal
    comma, so that `1.200` alone may mean 1200. Raises: AmbiguousError if the texts mean one value with a decimal comma
    and another one with a decimal point, or if numbers of different forms are among them.
    """
    numbers = [text.strip() for text in texts if _DIGIT.search(text)]
    if not (decimal or thousands) and all(map(_PLAIN.fullmatch, numbers)):
        with_point = [text for text in numbers if "." in text]
        if not is_european or not with_point or not all(map(_GROUPS.fullmatch, with_point)):
            return None  # no doubt: only `1.200` in a European file may be 1.2 or 1200
    forms = [form for form in FORMS if form.decimal == (decimal or form.decimal)]
    forms = [form for form in forms if form.thousands == thousands] if thousands else forms
    counts = {form: sum(_matcher(form)(text) is not None for text in numbers) for form in forms}  # texts that fit
    most = max(counts.values(), default=0)
    if not most:  # none of the texts is a number
        return NumberForm(decimal or ".", thousands) if decimal or thousands else None
    best = [form for form, count in counts.items() if count == most]
    if len({form.decimal for form in best}) > 1:  # with a comma or a point, equally many are numbers
        with_separator = [text for text in numbers if re.search(r"\d[.,]\d", text)]
        if with_separator:
            raise AmbiguousError(
                f"{with_separator[0]} is one number with a decimal comma and another one with a decimal point"
            )
        best = [form for form in best if form.decimal == "."]
    misfits = [text for text in numbers if not (decimal or thousands) and not _matcher(best[0])(text)]
    misfits = [text for text in misfits if any(_matcher(form)(text) for form in FORMS)]  # numbers, of another form
    if misfits and not any(all(_matcher(form)(text) for text in misfits) for form in best):
        fitting = next(text for text in numbers if _matcher(best[0])(text))
        raise AmbiguousError(f"{misfits[0]} and {fitting} have different signs")
    # The best forms differ only in the separator of thousands; the usual one accepts most later values.
    return next((form for form in best if form.thousands), best[0])


@cache
def _matcher(form: NumberForm) -> Callable[[str], Any]:
    around = _AROUND.replace("(.*?)", f"(?:{form.body})")
    return re.compile(around).match


US_PER_MS = 1_000
_US_MIN, _US_MAX = EVENT_TIME_MS_MIN * US_PER_MS, EVENT_TIME_MS_MAX * US_PER_MS + US_PER_MS - 1
_FLOAT_UNITS_MAX = 2.0**53
_SHOWN_CHARACTERS = 40
# Possible error of sums of floats, in units; for large sums some of their last bits, never a visible part of a unit.
_NOISE_UNITS = 1e-6
_NOISE_SPACINGS = 8
_NOISE_UNITS_MAX = 0.01
_SINGLE_UNITS_MAX = 1.0  # between two float32: beyond, several numbers of units are the same float32
# Numbers as text (JSON, CSV) with more digits than the field has: the 17 significant ones of a double fit from 0.001
# on. One digit less than 38 in all, because Arrow's subtraction wants one more than its arguments have.
WIDE_DECIMAL = pa.decimal128(37, 19)
_ROUNDED_MAX = 10**18 - 1  # a smaller number has at most 18 digits before the point when rounded
_ISO_TIME = r"^\s*\d{4}-\d\d-\d\d"
_ZONED_TIME = _ISO_TIME + r"[T ]\d\d:\d\d.*([Zz]|UTC|[+-]\d\d(:?\d\d)?)\s*$"
_CLOCK_FORM = re.compile(r"[T\s]*%[HITR].*", re.DOTALL)
_WHOLE_DECIMAL = pa.decimal128(38, 18)  # whole numbers that are written with a point


@dataclass(frozen=True, slots=True)
class Written:
    """How a source writes values, where that differs from the usual forms."""

    unit: str = ""  # of times that are numbers (TIME_UNITS), also with a fraction
    form: str = ""  # of times that are texts, as `strptime` has it
    zone: str = ""  # of times that name none; if an hour comes twice, the first is meant.
    minor: bool = False  # decimals are whole numbers of their smallest unit, such as cents.
    has_bytes: bool = False  # these whole numbers are written as big-endian bytes, or base64 of them.
    base: str = ""  # the moment since which times count units.
    numbers: NumberForm | None = None  # the separators in numbers that are texts
    words: tuple[tuple[str, str], ...] = ()  # each value of a text, symbol or truth value, with the word that it means


AS_IT_IS = Written()
_TRUTHS = {
    "true": True, "t": True, "yes": True, "y": True, "1": True, "1.0": True,
    "false": False, "f": False, "no": False, "n": False, "0": False, "0.0": False,
}  # fmt: skip


class Converted(NamedTuple):
    """Values in the field's Arrow type, null if the source is null or the value is bad.

    The masks are bool[N], None if empty. `reason(row)` describes the bad value of a row.
    """

    values: pa.Array
    nulls: NDArray[np.bool_] | None
    bad: NDArray[np.bool_] | None = None
    reason: Callable[[int], str] = str


def convert(source: pa.Array, type_: Type, written: Written | None = None, *, in_us: bool = False) -> Converted:
    """Convert a column to values of a type. `written` describes the source's unusual forms; None: the forms are usual.

    With `in_us`, times become microseconds instead of ms. Cost: a pass, and another one if there are bad values.
    """
    if source.type == _UNCHANGED_TYPES.get(type_.kind) and not source.null_count:
        return Converted(source, None)
    if pa.types.is_dictionary(source.type):
        if pa.types.is_string(source.dictionary.type):  # TEXT, because the decoded texts may exceed 2 GB
            source = pa.DictionaryArray.from_arrays(source.indices, source.dictionary.cast(TEXT))
        source = source.dictionary_decode()
    if pa.types.is_string_view(source.type):  # texts of polars
        source = source.cast(TEXT)
    nulls = np.asarray(pc.is_null(source)) if source.null_count else None
    if pa.types.is_null(source.type):
        return Converted(pa.nulls(len(source), arrow_type(type_)), nulls)
    if is_bytes(source.type) and not (written and written.has_bytes):
        texts = _cast(source.cast(pa.large_binary()), TEXT)
    else:
        texts = source  # any type but bytes
    if in_us:
        values = _time_us(texts, written or AS_IT_IS)
    elif written is None:
        values = _CONVERSIONS[type_.kind](texts, type_)
    else:
        values = _convert_written(texts, type_, written)
    if values.null_count == source.null_count:
        return Converted(values, nulls)
    bad = np.asarray(pc.is_null(values))
    bad = bad if nulls is None else bad & ~nulls
    shown_type = type_.as_nullable(False)

    def reason(row: int) -> str:
        return f"{str(shown_value(source, row))[:_SHOWN_CHARACTERS]!r} is not a value of type {shown_type}"

    return Converted(values, nulls, bad, reason)


def convert_us(source: pa.Array, written: Written | None = None) -> Converted:
    """Convert a column of times as `convert` does, but to whole microseconds, int64."""
    return convert(source, Type(Kind.TIME), written, in_us=True)


def _convert_written(source: pa.Array, type_: Type, written: Written) -> pa.Array:
    """Convert values that the source writes in an unusual form: times, words that stand for values, numbers such as
    1.200,50, or whole numbers of cents (`minor`), which stay cents. With `has_bytes` cents are big-endian bytes."""
    if type_.kind is Kind.TIME:
        return _time(source, type_, written)
    if written.words:
        source = _with_words(source, type_, written.words)
    if written.numbers is not None and (pa.types.is_string(source.type) or pa.types.is_large_string(source.type)):
        source = plain_numbers(source, written.numbers)
    if written.has_bytes:
        is_readable = _is_text(source.type) or is_bytes(source.type)
        return whole_numbers(source) if is_readable else pa.nulls(len(source), pa.int64())
    if not written.minor:
        return _CONVERSIONS[type_.kind](source, type_)
    if pa.types.is_decimal(source.type):
        source = _cast(source, pa.decimal128(38, 0))  # a fraction of a cent becomes null
    return _integer(source, Type(Kind.INT))  # the field is a decimal, but cents are whole numbers


def _with_words(source: pa.Array, type_: Type, words: tuple[tuple[str, str], ...]) -> pa.Array:
    """Return texts in which each of these values is replaced by its word."""
    texts = source if _is_text(source.type) else _text(source, type_)
    values, meanings = (pa.array(side, texts.type) for side in zip(*words, strict=True))
    return pc.coalesce(meanings.take(pc.index_in(texts, value_set=values)), texts)


def _cast(source: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast with a check: a value that does not fit becomes null instead of spoiling the column."""
    if source.type == target:
        return source
    try:
        return source.cast(target)
    except pa.ArrowNotImplementedError:
        return pa.nulls(len(source), target)
    except pa.ArrowInvalid:
        return _one_by_one(source, target)


def _one_by_one(source: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast a column whose values cannot all be cast: halve it until each bad value stands alone and becomes null."""
    parts: list[pa.Array] = []
    blocks = [source]
    while blocks:
        block = blocks.pop()
        try:
            parts.append(block.cast(target))
        except pa.ArrowInvalid:
            if len(block) <= 1:
                parts.append(pa.nulls(len(block), target))
            else:
                half = len(block) // 2
                blocks += [block.slice(half), block.slice(0, half)]
    return pa.concat_arrays(parts)


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _text(source: pa.Array, _type: Type) -> pa.Array:
    """Convert values to text: whole numbers to digits, dates to ISO 8601, timestamps to ISO 8601 with microseconds."""
    type_ = source.type
    if pa.types.is_floating(type_):  # ids that went through a data frame: 17.0 is 17
        return _cast(_exact_doubles(_cast(source, pa.float64())), TEXT)
    if pa.types.is_decimal(type_):
        return _cast(_cast(source, pa.decimal128(38, 0)), TEXT)  # null if it has a fraction
    if pa.types.is_timestamp(type_):
        zone = "" if type_.tz is None else "UTC"
        return _cast(times_us(source).cast(pa.timestamp("us", zone or None)), TEXT)
    if pa.types.is_temporal(type_) and not pa.types.is_date(type_):  # times of day and durations
        return pa.nulls(len(source), TEXT)
    return _cast(source, TEXT)


def _exact_doubles(source: pa.Array) -> pa.Array:
    """Return the integers among floats; beyond 2**53 the digits of a float are not the intended ones."""
    is_exact = pc.less_equal(pc.abs(source), _FLOAT_UNITS_MAX)
    return _cast(pc.if_else(is_exact.fill_null(False), source, pa.scalar(None, source.type)), pa.int64())


def _time(source: pa.Array, _type: Type, written: Written = AS_IT_IS) -> pa.Array:
    """Return milliseconds: the microseconds of the reader, cut towards the past."""
    return _milliseconds(_time_us(source, written)) if whole_ms(source, written) is None else source


def whole_ms(source: pa.Array, written: Written | None = None) -> Int64 | None:
    """Return the values of a column that is written in whole ms: int64[N], all in the range of event times. None for a
    column that must be converted, because it has another form, nulls or times outside the range."""
    is_ms = written is None or not (written.unit not in ("", "ms") or written.base or written.form)
    if not is_ms or source.type != pa.int64() or source.null_count or not len(source):
        return None
    ms = slot_values(source)
    is_inside = np.minimum.reduce(ms) >= EVENT_TIME_MS_MIN and np.maximum.reduce(ms) <= EVENT_TIME_MS_MAX
    return ms if is_inside else None


def _time_us(source: pa.Array, written: Written) -> pa.Array:
    """Convert times to microseconds since 1970, null outside the range of event times."""
    numbers = moments_since(source, written.base, written.unit) if written.base else source
    times = times_us(numbers, written.unit, written.form, written.zone)
    if (written.form or written.base) and _is_text(source.type) and times.null_count > source.null_count:
        times = pc.coalesce(times, _times_in_other_forms(source, written))
    values = slot_values(times)
    outside = (values < _US_MIN) | (values > _US_MAX)
    return pc.if_else(pa.array(outside), pa.scalar(None, pa.int64()), times) if outside.any() else times


def _times_in_other_forms(source: pa.Array, written: Written) -> pa.Array:
    """Read texts in ISO 8601, with a zone unless one is named, or with the day of the form alone."""
    is_iso = pc.match_substring_regex(source, _ISO_TIME if written.zone else _ZONED_TIME)
    others = times_us(pc.if_else(is_iso, source, pa.scalar(None, source.type)), zone=written.zone)
    day_form = _CLOCK_FORM.sub("", written.form)
    if day_form in ("", written.form):
        return others
    return pc.coalesce(others, times_us(source, form=day_form, zone=written.zone))


def _integer(source: pa.Array, _type: Type) -> pa.Array:
    type_ = source.type
    # The number of a date, a time or a duration depends on the unit of its column.
    if pa.types.is_temporal(type_) or pa.types.is_boolean(type_):
        return pa.nulls(len(source), pa.int64())
    if pa.types.is_floating(type_):
        return _exact_doubles(_cast(source, pa.float64()))
    return _whole_text(source) if _is_text(type_) else _cast(source, pa.int64())


def _whole_text(source: pa.Array) -> pa.Array:
    """Read whole numbers that are written as text: 42, 042, 42.0, 4.2e1."""
    nothing = pa.scalar(None, source.type)
    is_short = pc.match_substring_regex(source, r"^[+-]?\d{1,18}$")
    plain = pc.if_else(is_short, pc.replace_substring_regex(source, r"^\+", "", max_replacements=1), nothing)
    numbers = plain.cast(pa.int64())
    if numbers.null_count == source.null_count:
        return numbers
    others = _cast(pc.if_else(is_short, nothing, _number_texts(source)), _WHOLE_DECIMAL)
    return pc.coalesce(numbers, _cast(_cast(others, pa.decimal128(38, 0)), pa.int64()))


def _number_texts(source: pa.Array) -> pa.Array:
    """Return the texts that are numbers, without blanks around them; null for the others, such as 1,200.50 and 0x1F."""
    trimmed = pc.utf8_trim_whitespace(source)
    is_number = pc.match_substring_regex(trimmed, r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?$")
    return pc.if_else(is_number, trimmed, pa.scalar(None, source.type))


def _duration(source: pa.Array, type_: Type) -> pa.Array:
    """Return milliseconds: of whole numbers, of durations of any unit, of seconds as Protobuf writes them (`3.5s`)."""
    if pa.types.is_duration(source.type):
        return _milliseconds(times_us(source.cast(pa.int64()), source.type.unit))
    numbers = _integer(source, type_)
    if numbers.null_count == source.null_count or not _is_text(source.type):
        return numbers
    is_seconds = pc.match_substring_regex(source, r"^-?\d+(\.\d{1,9})?s$")
    seconds = pc.if_else(is_seconds, pc.replace_substring(source, "s", ""), pa.scalar(None, source.type))
    return pc.coalesce(numbers, _milliseconds(times_us(seconds, "s")))


def _milliseconds(us: pa.Array) -> pa.Array:
    return pa.array(slot_values(us) // US_PER_MS, mask=np.asarray(pc.is_null(us)) if us.null_count else None)


def _float(source: pa.Array, _type: Type) -> pa.Array:
    if pa.types.is_temporal(source.type) or pa.types.is_boolean(source.type):
        return pa.nulls(len(source), pa.float64())
    numbers = _cast(_number_texts(source) if _is_text(source.type) else source, pa.float64())
    return finite(numbers)


def finite(floats: pa.Array) -> pa.Array:
    """Return floats as a field has them: null for NaN and infinite numbers."""
    values = pc.add(floats, 0.0)  # -0.0 becomes 0.0, because some comparisons use the bits
    is_finite = pc.is_finite(values)
    return pc.if_else(is_finite.fill_null(False), values, pa.scalar(None, pa.float64()))


def _bool(source: pa.Array, type_: Type) -> pa.Array:
    if pa.types.is_boolean(source.type):
        return source
    if _is_text(source.type):
        texts = pc.utf8_lower(pc.utf8_trim_whitespace(source))
        places = pc.index_in(texts, value_set=pa.array(list(_TRUTHS), texts.type))
        return pa.array(list(_TRUTHS.values())).take(places)
    numbers = _integer(source, type_)
    is_truth = pc.is_in(numbers, value_set=pa.array([0, 1]))
    return pc.if_else(is_truth, numbers, pa.scalar(None, pa.int64())).cast(pa.bool_())


def _decimal(source: pa.Array, type_: Type) -> pa.Array:
    """Convert numbers and texts to whole units of a decimal's scale (cents for two digits). A value with more digits
    becomes null, unless the rest is the noise of a double, as in 24.150000000000002. Noise is rounded away in columns
    of floats, of WIDE_DECIMAL (JSON numbers) or of texts."""
    if pa.types.is_decimal64(source.type) and source.type.scale == type_.scale:
        return source.view(pa.int64())  # a decimal64 is stored as its number of units
    if pa.types.is_temporal(source.type):
        return pa.nulls(len(source), pa.int64())
    if pa.types.is_floating(source.type):
        return _decimal_from_float(source, type_.scale)
    if pa.types.is_decimal128(source.type) and source.type.scale == type_.scale:
        return _units(source)
    target = pa.decimal128(min(19 + type_.scale, 38), type_.scale)  # an int64 has up to 19 digits
    is_text = _is_text(source.type)
    if source.type == WIDE_DECIMAL:
        return _units(_cast(_nearest_units(source, type_.scale), target))
    try:
        return _units(source.cast(target))
    except pa.ArrowInvalid:
        source = _number_texts(source) if is_text else source
        exact = _cast(source, target)
        if is_text:  # texts with more digits, which may be noise
            other_texts = pc.if_else(pc.is_null(exact), source, pa.scalar(None, source.type))
            exact = pc.coalesce(exact, _cast(_nearest_units(_cast(other_texts, WIDE_DECIMAL), type_.scale), target))
        return _units(exact)
    except pa.ArrowNotImplementedError:
        return pa.nulls(len(source), pa.int64())


def _units(exact: pa.Array) -> pa.Array:
    """Return the unscaled values of a decimal128 column that fit 64 bits: the low halves of its 16-byte integers."""
    valid = np.asarray(pc.is_valid(exact)) if exact.null_count else True
    halves = np.frombuffer(exact.buffers()[1], np.int64, 2 * len(exact), exact.offset * 16).reshape(-1, 2)
    low, high = halves[:, 0].copy(), halves[:, 1]
    fits = valid & (high == low >> 63)
    return pa.array(low) if fits.all() else pa.array(low, mask=~fits)


def as_decimals(units: pa.Array, scale: int) -> pa.Array:
    """Return whole numbers of units, int64, as a decimal128 column: the inverse of `_units`."""
    type_, low = pa.decimal128(min(19 + scale, 38), scale), slot_values(units)
    halves = np.column_stack([low, low >> 63])
    decimals = pa.Array.from_buffers(type_, len(units), [None, pa.py_buffer(halves)])
    return pc.if_else(pc.is_valid(units), decimals, pa.scalar(None, type_)) if units.null_count else decimals


def _nearest_units(source: pa.Array, scale: int) -> pa.Array:
    """Round decimals that a producer has computed as doubles, such as 24.150000000000002, to `scale` digits. The result
    is null where rounding removes more than noise (the error of such a computation). A unit is 10^-scale.

    A double cannot hold each whole number above 2**53 units, so a number there must need no rounding.
    """
    fits = pc.less(pc.abs(source), pa.scalar(_ROUNDED_MAX, pa.decimal128(19, 0)))  # the result must fit the type
    source = pc.if_else(fits, source, pa.scalar(None, source.type))
    rounded = pc.round(source, scale)
    lost = np.asarray(pc.subtract(source, rounded).cast(pa.float64()).fill_null(0.0)) * 10.0**scale
    units = np.asarray(rounded.cast(pa.float64()).fill_null(0.0)) * 10.0**scale
    is_noise = (np.abs(lost) <= _noise_max(units)) & (np.abs(units) < _FLOAT_UNITS_MAX)
    return pc.if_else(pa.array(is_noise | (lost == 0.0)), rounded, pa.scalar(None, source.type))


def _decimal_from_float(source: pa.Array, scale: int) -> pa.Array:
    """Read the whole number of units that a float is next to, by the precision that the value was written in."""
    filled = np.asarray(source.cast(pa.float64()).fill_null(np.nan))
    with np.errstate(invalid="ignore", over="ignore"):
        units = filled * 10.0**scale
        whole = np.rint(units)
        fits = (np.abs(units - whole) <= _noise_max(units)) & (np.abs(whole) <= _FLOAT_UNITS_MAX)
        if not fits.all():
            fits |= _is_float32(filled, whole, scale, is_float32_column=source.type != pa.float64())
    return pa.array(np.where(fits, whole, 0).astype(np.int64), mask=~fits)


def _is_float32(
    values: NDArray[np.float64], whole: NDArray[np.float64], scale: int, *, is_float32_column: bool
) -> NDArray[np.bool_]:
    """Mark the values that are the float32 nearest to a whole number of units, such as 0.1 read as 0.10000000149.

    A unit is 10^-scale. Avro and others give a float32 as a double, so a column of doubles may hold float32 values.
    There a value is marked only if it is so small that the next float32 is at most a unit away.
    """
    singles = values.astype(np.float32)
    nearest: NDArray[np.bool_] = (whole / 10.0**scale).astype(np.float32) == singles
    if is_float32_column:
        nearest &= np.abs(whole) <= _FLOAT_UNITS_MAX  # 2^53: above, `whole` is not exact
    else:  # a column of doubles: the value must be a float32
        nearest &= (singles == values) & (np.spacing(np.abs(singles)) * 10.0**scale <= _SINGLE_UNITS_MAX)
    return nearest


def _noise_max(units: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far from a whole number of units a double may be by the noise of binary arithmetic."""
    noise: NDArray[np.float64] = _NOISE_SPACINGS * np.spacing(np.abs(units))
    return np.clip(noise, _NOISE_UNITS, _NOISE_UNITS_MAX)


def _enum(source: pa.Array, type_: Type) -> pa.Array:
    """Return the codes of symbols: by exact spelling, otherwise by the only symbol that differs in case alone."""
    texts = _text(source, type_) if not _is_text(source.type) else source
    codes = pc.index_in(texts, value_set=pa.array(type_.symbols, texts.type)).cast(pa.int64())
    if codes.null_count == texts.null_count:
        return codes
    folded = [symbol.lower() for symbol in type_.symbols]
    alone = [symbol if folded.count(symbol) == 1 else None for symbol in folded]
    others = pc.index_in(pc.utf8_lower(texts), value_set=pa.array(alone, texts.type), skip_nulls=True)
    return pc.coalesce(codes, others.cast(pa.int64()))


# Kinds whose values need no conversion if they have this type.
_UNCHANGED_TYPES = {kind: arrow_type(Type(kind)) for kind in (Kind.ID, Kind.STRING, Kind.DURATION, Kind.INT, Kind.BOOL)}
_CONVERSIONS: dict[Kind, Callable[[pa.Array, Type], pa.Array]] = {
    Kind.ID: _text,
    Kind.STRING: _text,
    Kind.TIME: _time,
    Kind.DURATION: _duration,
    Kind.INT: _integer,
    Kind.DECIMAL: _decimal,
    Kind.FLOAT: _float,
    Kind.BOOL: _bool,
    Kind.ENUM: _enum,
}


_BY_DIGITS = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    2: "AED AFN ALL AMD ANG AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE "
    "CHF CHW CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HRK "
    "HTG HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR "
    "MWK MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP "
    "SLE SLL SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST XCD XCG YER "
    "ZAR ZMW ZWG ZWL",
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}
_CODES = [code for codes in _BY_DIGITS.values() for code in codes.split()]
_DIGITS = np.array([digits for digits, codes in _BY_DIGITS.items() for _ in codes.split()] + [0], np.int64)


def in_currencies(amounts: Converted, type_: Type, source: pa.Array | None) -> Converted:
    """Convert amounts in minor units to units of the field, by the currency of each amount in `source`.

    1050 minor units are 1050 JPY, 10.50 EUR or 1.050 KWD. Another currency, or too many digits, is a bad value.
    """
    minor, is_valid = slot_values(amounts.values), np.asarray(pc.is_valid(amounts.values))
    codes = pa.nulls(len(minor), TEXT) if source is None else convert(source, Type(Kind.STRING)).values
    places = pc.index_in(pc.utf8_upper(pc.utf8_trim_whitespace(codes)), value_set=pa.array(_CODES, TEXT))
    # An unknown currency takes the last entry of _DIGITS, a 0; its amount is bad anyway.
    shift = type_.scale - _DIGITS[slot_values(places.cast(pa.int64()).fill_null(-1))]
    up, down = 10 ** np.maximum(shift, 0), 10 ** np.maximum(-shift, 0)  # factors, one of which is 1
    scaled = minor // down * up  # beyond 64 bits it is another number, which the division shows
    fits = np.asarray(pc.is_valid(places)) & (minor % down == 0) & (scaled // up == minor // down)
    bad = is_valid & ~fits
    units = pa.array(np.where(fits, scaled, 0), mask=~(is_valid & fits))
    if not bad.any():
        return amounts._replace(values=units)
    code_texts = codes.to_pylist()

    def reason(row: int) -> str:
        if not bad[row]:
            return amounts.reason(row)
        code = code_texts[row]
        if places[row].is_valid:
            return f"{minor[row]} minor units of {code} are not a value of type {type_.as_nullable(False)}"
        return f"{minor[row]} minor units need a currency of ISO 4217, not {code!r}"

    return Converted(units, amounts.nulls, bad if amounts.bad is None else bad | amounts.bad, reason)
