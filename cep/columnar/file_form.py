"""The form of a file of texts: which signs divide and quote fields, which numbers have, and its encoding.

Tested by: tests/sources/test_csv_form.py
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from cep.base.errors import UsageError

_SIGNS = {"tab": "\t", "space": " ", "\\t": "\t", "none": ""}


@dataclass(frozen=True, slots=True)
class FileForm:
    """The signs and the encoding of a CSV file; "" means that the content of the file decides.

    `decimal` and `thousands` are the signs in numbers, including numbers that are texts in JSON.
    """

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
    for name, sign in signs.items():
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
