"""Files of alerts: whole or absent, replaced by their own batch only."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pyarrow.parquet as pq
import pytest

from cep.base.errors import SinkError
from cep.sinks.files import FileSink, Form, read_alerts
from tests.sinks.alerts import alert_table


def test_batches_are_read_in_their_order(tmp_path: Path) -> None:
    sink = FileSink(tmp_path / "alerts")
    for batch_id in (10, 9, 100):
        sink.write(alert_table(batch_id, 1), batch_id)
    assert [alert["alert_id"] for alert in read_alerts(tmp_path / "alerts")] == ["a9", "a10", "a100"]


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
    with pytest.raises(SinkError, match="not a Parquet file"):
        FileSink(tmp_path, "parquet").write(alert_table(0, 3), 0)


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
