"""Records that are rejected: Python names the top reason, and `strict` makes it an error.

Tested by: tests/answers/test_answers.py
"""

from __future__ import annotations

import warnings
from typing import Any

import pyarrow as pa

import cep
from tests.answers import Row

_RULES = """
event n { i id  event_time time  h string  k enum(created, recovered) }
pattern p by h { seq c where c: n k == created }
"""
_ROWS = [{"i": str(n), "event_time": "2026-03-27T05:17:04Z", "h": "h1", "k": "made"} for n in range(12)]
_AHEAD = [{**row, "k": "created", "event_time": "2226-03-27T05:17:04Z"} for row in _ROWS]


def _said(rows: list[dict[str, str]], **how: Any) -> object:
    """Return the beginning of the warning or the error that a match gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            cep.parse(_RULES).match(pa.Table.from_pylist(rows), **how)
        except cep.CepError as error:
            return type(error).__name__, str(error)[:20]
        return [(each.category.__name__, str(each.message)[:20]) for each in caught]


ROWS = [
    Row("E2", "unknown symbols, in Python", [("RejectedRecordsWarning", "12 of 12 records (10")],
        lambda: _said(_ROWS)),
    Row("E2", "the same with strict", ("RejectedRecordsError", "12 of 12 records (10"),
        lambda: _said(_ROWS, strict=True)),
    Row("E1", "all events ahead of the clock", [("RejectedRecordsWarning", "12 of 12 records (10")],
        lambda: _said(_AHEAD)),
]  # fmt: skip
