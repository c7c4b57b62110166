"""Texts of events in CSV files: spreadsheets show them and do not run them."""

from __future__ import annotations

import csv
import io
import re
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.sinks.csv_cells import write_csv

SIGNS = "=+-@\uff1d\uff0b\uff0d\uff20\ufe66\ufe62\ufe63\ufe6b"
HIDDEN = "\t\r\n \x0b\x00\xa0\u200b\ufeff"
TEXTS = st.text(st.sampled_from([*SIGNS, *HIDDEN, *"a1.e,\"';"]), max_size=6)
ROOT = Path(__file__).parents[2]


def cells(table: pa.Table) -> list[list[str]]:
    file = io.BytesIO()
    write_csv(table, file)
    return list(csv.reader(io.StringIO(file.getvalue().decode(), newline="")))


@given(st.lists(TEXTS, max_size=20), TEXTS)
def test_no_cell_is_a_formula_and_no_text_is_lost(texts: list[str], name: str) -> None:
    rows = cells(pa.table({name: pa.array(texts, pa.string()), "n": pa.array(range(len(texts)))}))
    for cell, text in zip((row[0] for row in rows), [name, *texts], strict=True):
        assert cell in (text, f"'{text}")
        is_number = re.fullmatch(r"[+-]?[0-9]+([.,][0-9]+)*([eE][+-]?[0-9]+)?", text) is not None
        is_formula = text.lstrip(HIDDEN).startswith(tuple(SIGNS)) or text.startswith(("\t", "\r", "\n"))
        assert (cell != text) == (is_formula and not is_number), ascii(text)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_texts_of_every_kind_are_quoted_and_numbers_are_not(kind: pa.DataType) -> None:
    table = pa.table(
        {
            "text": pa.array(["=1+1", None, "-5"]).cast(kind),
            "amount": pa.array([Decimal("-1.50"), None, Decimal("2.00")], pa.decimal128(9, 2)),
            "share": pa.array([-0.5, 1e-9, None]),
        }
    )
    assert cells(table)[1:] == [["'=1+1", "-1.50", "-0.5"], ["", "", "1e-9"], ["-5", "2.00", ""]]


def test_every_csv_file_is_written_here() -> None:
    writers = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "cep").rglob("*.py"))
        if re.search(r"pcsv\.write_csv|csv\.writer|DictWriter|\.to_csv\(", path.read_text(encoding="utf-8"))
    ]
    assert writers == ["cep/sinks/csv_cells.py"]


ODD: dict[str, tuple[pa.Array, list[str]]] = {
    "an object": (pa.array([{"a": 1, "b": {"c": "x"}}, None]), ['{"a": 1, "b": {"c": "x"}}', ""]),
    "a list": (pa.array([["x"], []]), ['["x"]', "[]"]),
    "a long decimal": (pa.array([Decimal("1.50"), None], pa.decimal256(40, 2)), ["1.50", ""]),
}


@pytest.mark.parametrize("kind", ODD)
def test_a_value_that_csv_has_no_form_for_is_json(kind: str) -> None:
    column, shown = ODD[kind]
    assert cells(pa.table({"n": [1, 2], "v": column}))[1:] == [["1", shown[0]], ["2", shown[1]]]
