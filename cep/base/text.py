r"""Texts that people and programs exchange: times, hidden characters, values out of JSON documents.

A time has one spelling, ISO 8601 in UTC with milliseconds. A value can hold escape sequences that move the cursor or
recolour a line, and characters without a width that make two different texts look equal. `visible` writes each of them
as an escape, such as `\u001b` or `\u202e`, as in JSON. Everything that a verb prints passes through it; terminal.py
does so for tables and styled text.
Tested by: tests/model/test_rule.py, tests/base/test_visible.py, tests/base/test_schema.py, tests/lists/test_lists.py
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from difflib import get_close_matches
from types import UnionType
from typing import Any

_TIME_MS_LAST = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z, the last that datetime can write

_NUMBER_CHARS_MAX = 40  # a longer text of a number is refused: its conversion costs time
_EXACT = Context(prec=_NUMBER_CHARS_MAX)  # it rounds no such number


def utc_ms(text: str) -> int:
    """Convert an ISO 8601 time with an offset to milliseconds UTC. Raises: ValueError with a sentence."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError(f"{text!r} is not a time with an offset such as 2026-01-31T00:00:00Z")
    # Integer arithmetic: a float of seconds would be off by a millisecond for some times.
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    time_ms = (delta.days * 86_400 + delta.seconds) * 1_000 + delta.microseconds // 1_000
    if not 0 <= time_ms <= _TIME_MS_LAST:
        raise ValueError(f"{text!r} is outside the years 1970 to 9999 (UTC)")
    return time_ms


def utc_text(time_ms: int) -> str:
    """Write a time in its one spelling: 2026-01-31T00:00:00.000Z. Inverse of `utc_ms`."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def decimal_units(text: str, scale: int) -> int | None:
    """Convert the text of a number to whole units of 10^-scale; None for another text, for more decimals, and for a
    number over 64 bits."""
    try:
        number = Decimal(text) if len(text) <= _NUMBER_CHARS_MAX else None
    except InvalidOperation:
        return None
    if number is None or not number.is_finite() or (number and abs(number.adjusted()) > _NUMBER_CHARS_MAX):
        return None  # `scaleb` would overflow, or make 0 of a tiny number
    scaled = number.scaleb(scale, _EXACT)
    return int(scaled) if abs(scaled) < 2**63 and scaled == scaled.to_integral_value() else None


# Control characters but for tab and line feed, characters without a width or without ink, marks that change the
# direction of a text, the separators of lines and paragraphs, surrogates, formats of shorthand, music and hieroglyphs,
# and tags.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U00013430-\U0001345f\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def visible(text: str) -> str:
    """Return the text with each hidden character written as an escape. Tabs and line feeds stay."""
    return HIDDEN.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD800 + (code - 0x10000 >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the name that a mistyped one is most like; None if it is like none."""
    return next(iter(get_close_matches(name, names, n=1)), None)


def hint_at_nearest(name: str, names: Iterable[str], form: str = "; did you mean `{}`?") -> str:
    """Return a hint at the name that a mistyped one is most like; "" if it is like none."""
    nearest = nearest_name(name, names)
    return "" if nearest is None else form.format(nearest)


def of_type(name: str, value: Any, type_: type | UnionType) -> Any:
    """Return the value if it is of the type. Raises: TypeError with the name and the value."""
    if not isinstance(value, type_):
        raise TypeError(f"{name} is {value!r}, not {getattr(type_, '__name__', type_)}")
    return value


def texts(name: str, value: Any) -> tuple[str, ...]:
    """Return the texts of a JSON list. Raises: TypeError for another value, or for items that are not texts."""
    return tuple(of_type(name, text, str) for text in of_type(name, value, list))
