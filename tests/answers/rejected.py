"""Records that are rejected: Python names the top reason, and `strict` makes it an error.

Tested by: tests/answers/test_answers.py
"""

import tempfile
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

import cep
from cep.lang.load import load_text
from cep.sources.live.base import decode_chunks
from cep.sources.live.files import FilesSource
from tests.answers import Row

_RULES = """
event n { i id  event_time time  h string  k enum(created, recovered) }
pattern p by h { seq c where c: n k == created }
"""
_SCHEMA = load_text("event n { i id  event_time time  h string }").schema
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


def _job(name: str, text: str) -> object:
    """Return the ids that a job takes from a file, and the codes of rejected records."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_text(text)
        source = FilesSource(Path(folder), follow=False)
        parts = [part for _ in range(9) for part in decode_chunks(_SCHEMA, source.poll(9, 0.0)).parts]
    ids = [i for part in parts for i in part.event_id.to_pylist()]
    return ids, [poison.code for part in parts for poison in part.poison]


def _odd_frame(name: str, column: Any) -> object:
    """Return the keys of the alerts of a frame, or the beginning of the error."""
    rows = [{**_ROWS[number], "i": str(number), "k": "created"} for number in range(2)]
    added = column if isinstance(column, pd.DataFrame) else pd.DataFrame({name: column})
    frame = pd.concat([pd.DataFrame(rows).drop(columns=[name]), added], axis=1)
    try:
        return cep.parse(_RULES).match(frame).table["key"].to_pylist()
    except cep.CepError as error:
        return type(error).__name__, str(error)[:30]


ROWS = [
    Row("E1", "a job reads CSV", (["a", "b"], []),
        lambda: _job("a.csv", "i,event_time,h\na,2026-03-27T05:17:04Z,x\nb,2026-03-27T05:17:04Z,x\n")),
    Row("E1", "a job goes on after a file that ends inside an object", (["a"], ["unreadable_file"]),
        lambda: _job("a.json", '[{"i":"a","event_time":"2026-03-27T05:17:04Z","h":"x"},\n{"i":"b", ')),
    Row("H", "a sparse column", ["x", "y"], lambda: _odd_frame("h", pd.arrays.SparseArray(["x", "y"], fill_value="x"))),
    Row("H", "a column of complex numbers", ("UsageError", "the column `h` of type Unknown"),
        lambda: _odd_frame("h", [1j, 2j])),
    Row("H", "two columns of one name", ["x", "x"],
        lambda: _odd_frame("h", pd.DataFrame([["x", "y"]] * 2, columns=["h", "h"]))),
    Row("E2", "unknown symbols, in Python", [("RejectedRecordsWarning", "12 of 12 records (10")],
        lambda: _said(_ROWS)),
    Row("E2", "the same with strict", ("RejectedRecordsError", "12 of 12 records (10"),
        lambda: _said(_ROWS, strict=True)),
    Row("E1", "all events ahead of the clock", [("RejectedRecordsWarning", "12 of 12 records (10")],
        lambda: _said(_AHEAD)),
]  # fmt: skip
