"""Numbers as people write them in texts, `1.234,50` or `$1,234.50` → the plain form, `1234.50`.

A number has one decimal sign, and between groups of three digits a sign for thousands or none. A sign of a currency
before or after it is left out. A text of another form is null.
Tested by: tests/columnar/test_number_texts.py
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

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
    """Return texts of this form in the plain form; null for a text of another form."""
    bare = pc.replace_substring_regex(source, _AROUND, r"\1\2\3")
    fits = pc.match_substring_regex(bare, f"^(?:{form.body})$")
    if form.thousands:
        bare = pc.replace_substring(bare, form.thousands, "")
    if form.decimal != ".":
        bare = pc.replace_substring(bare, form.decimal, ".")
    return pc.if_else(fits, bare, pa.scalar(None, source.type))


def form_of(
    texts: Sequence[str], *, decimal: str = "", thousands: str = "", is_european: bool = False
) -> NumberForm | None:
    """Guess the decimal sign of numbers that are texts. None: the plain form, such as 1200.50.

    `decimal` and `thousands` are signs that are certain. `is_european`: other signs of the file suggest a decimal
    comma, so that `1.200` alone may mean 1200. Raises: AmbiguousError if the texts mean one value with a decimal comma
    and another one with a decimal point, or if numbers of different forms are among them.
    """
    numbers = [text.strip() for text in texts if _DIGIT.search(text)]
    if not (decimal or thousands) and all(map(_PLAIN.fullmatch, numbers)):
        groups = [text for text in numbers if "." in text]
        if not is_european or not groups or not all(map(_GROUPS.fullmatch, groups)):
            return None
    forms = [form for form in FORMS if form.decimal == (decimal or form.decimal)]
    forms = [form for form in forms if form.thousands == thousands] if thousands else forms
    counts = {form: sum(_matcher(form)(text) is not None for text in numbers) for form in forms}
    most = max(counts.values(), default=0)
    if not most:
        return NumberForm(decimal or ".", thousands) if decimal or thousands else None
    best = [form for form, count in counts.items() if count == most]
    if len({form.decimal for form in best}) > 1:
        with_sign = [text for text in numbers if re.search(r"\d[.,]\d", text)]
        if with_sign:
            raise AmbiguousError(
                f"{with_sign[0]} is one number with a decimal comma and another one with a decimal point"
            )
        best = [form for form in best if form.decimal == "."]
    others = [text for text in numbers if not (decimal or thousands) and not _matcher(best[0])(text)]
    others = [text for text in others if any(_matcher(form)(text) for form in FORMS)]
    if others and not any(all(_matcher(form)(text) for text in others) for form in best):
        fitting = next(text for text in numbers if _matcher(best[0])(text))
        raise AmbiguousError(f"{others[0]} and {fitting} have different signs")
    # Among forms that differ only in the sign of thousands, the usual one accepts most later values.
    return next((form for form in best if form.thousands), best[0])


@cache
def _matcher(form: NumberForm) -> Callable[[str], Any]:
    around = _AROUND.replace("(.*?)", f"(?:{form.body})")
    return re.compile(around).match
