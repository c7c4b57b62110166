"""Files of alerts and letters are whole or absent, and replaced by their own batch only; no spreadsheet runs a text."""

import csv
import io
import re
from decimal import Decimal
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import SinkError
from cep.sinks.base import Recalled
from cep.sinks.csv_cells import write_csv
from cep.sinks.durable import write_durably
from cep.sinks.files import DeadLetterFiles, FileSink, Form, read_alerts
from tests.sinks.alerts import alert_table


def test_batches_are_read_in_their_order(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "alerts")
    for batch_id in (10, 9, 100):
        sink.write(alert_table(batch_id, 1), batch_id)
    assert [alert["alert_id"] for alert in read_alerts(tmp_path / "alerts")] == ["a9", "a10", "a100"]


def test_a_copy_under_another_name_is_not_recalled(tmp_path: Path) -> None:
    sink = FileSink(tmp_path)
    sink.write(alert_table(0, 2), 1)
    (tmp_path / "batch-0000000000000000002 (copy).jsonl").write_text("")
    recalled = sink.recall(0, 0)
    assert (recalled.number, len(recalled.alert_ids)) == (1, 2)


def test_no_alerts_no_file(tmp_path: Path) -> None:
    FileSink(tmp_path).write(alert_table(0, 0), 1)
    assert list(tmp_path.iterdir()) == []


def test_a_crash_before_the_rename_leaves_nothing_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = FileSink(tmp_path)

    def crash(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", crash)
    with pytest.raises(SinkError, match="no space left"):
        sink.write(alert_table(0, 3), 0)
    assert list(read_alerts(tmp_path)) == []
    monkeypatch.undo()
    sink.write(alert_table(0, 3), 0)
    assert len(list(read_alerts(tmp_path))) == 3


def names(folder: Path, form: Form) -> list[str]:
    if form == "jsonl":
        return [alert["alert_id"] for alert in read_alerts(folder)]
    return [str(name) for name in pq.read_table(folder).column("alert_id").to_pylist()]


@pytest.mark.parametrize("form", get_args(Form))
def test_the_alerts_of_another_job_are_not_overwritten(tmp_path: Path, form: Form) -> None:
    FileSink(tmp_path, form).write(alert_table(0, 3), 0)
    FileSink(tmp_path, form).write(alert_table(0, 3), 0)  # its own are
    with pytest.raises(SinkError, match="another job"):
        FileSink(tmp_path, form).write(alert_table(2, 3), 0)
    assert names(tmp_path, form) == ["a0", "a1", "a2"]


def test_parquet_holds_the_table_and_no_half_file(tmp_path: Path) -> None:
    FileSink(tmp_path, "parquet").write(alert_table(0, 3), 0)
    (path,) = tmp_path.iterdir()
    assert pq.read_table(path).equals(alert_table(0, 3))
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(SinkError, match="not a file of alerts"):
        FileSink(tmp_path, "parquet").write(alert_table(0, 3), 0)


@pytest.mark.parametrize("form", get_args(Form))
def test_files_that_are_none_of_the_sink(tmp_path: Path, form: Form) -> None:
    sink = FileSink(tmp_path, form)
    sink.write(alert_table(0, 3), 7)
    (file,) = tmp_path.iterdir()
    (tmp_path / f"batch-copy.{form}").write_bytes(file.read_bytes())
    assert sink.recall(6, 0) == Recalled(frozenset({"a0", "a1", "a2"}), 7)
    if form == "jsonl":
        file.write_bytes(b'{"code": "unreadable"}\n')
    else:
        pq.write_table(pa.table({"code": ["unreadable"]}), file)
    for use in (lambda: sink.recall(6, 0), lambda: sink.write(alert_table(0, 3), 7)):
        with pytest.raises(SinkError, match="not a file of alerts"):
            use()


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    FileSink(tmp_path).write(alert_table(0, 1), 0)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes() + b"{\n")
    with pytest.raises(SinkError, match=r"\.jsonl:2 is not JSON"):
        list(read_alerts(tmp_path))


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match="give another"):
        FileSink(tmp_path / "file" / "alerts")


def test_a_micro_batch_that_comes_again_replaces_its_file(tmp_path: Path) -> None:
    sink = DeadLetterFiles(tmp_path / "letters")
    sink.write([], 0)
    assert not (tmp_path / "letters").exists()
    for _ in range(2):
        sink.write([b'{"code": "a"}', b'{"code": "b"}'], 1)
    sink.close()
    (file,) = (tmp_path / "letters").iterdir()
    assert file.read_bytes() == b'{"code": "a"}\n{"code": "b"}\n'


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match="cannot be written"):
        write_durably(tmp_path / "file" / "letters.jsonl", b"")


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
