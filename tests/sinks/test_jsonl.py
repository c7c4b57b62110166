"""Files of alerts: whole or absent, replaced by their own batch only."""

from __future__ import annotations

from pathlib import Path

import pytest

from cep.base.errors import SinkError
from cep.sinks.jsonl import JsonLinesSink, read_alerts
from tests.sinks.alerts import alert_table


def test_batches_are_read_in_their_order(tmp_path: Path) -> None:
    sink = JsonLinesSink(tmp_path / "alerts")
    for batch_id in (10, 9, 100):
        sink.write(alert_table(batch_id, 1), batch_id)
    assert [alert["alert_id"] for alert in read_alerts(tmp_path / "alerts")] == ["a9", "a10", "a100"]


def test_no_alerts_no_file(tmp_path: Path) -> None:
    JsonLinesSink(tmp_path).write(alert_table(0, 0), 1)
    assert list(tmp_path.iterdir()) == []


def test_a_crash_before_the_rename_leaves_nothing_to_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = JsonLinesSink(tmp_path)

    def crash(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", crash)
    with pytest.raises(SinkError, match="no space left"):
        sink.write(alert_table(0, 3), 0)
    assert list(read_alerts(tmp_path)) == []
    monkeypatch.undo()
    sink.write(alert_table(0, 3), 0)
    assert len(list(read_alerts(tmp_path))) == 3


def test_the_alerts_of_another_job_are_not_overwritten(tmp_path: Path) -> None:
    JsonLinesSink(tmp_path).write(alert_table(0, 3), 0)
    with pytest.raises(SinkError, match="another job"):
        JsonLinesSink(tmp_path).write(alert_table(2, 3), 0)
    assert [alert["alert_id"] for alert in read_alerts(tmp_path)] == ["a0", "a1", "a2"]


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    JsonLinesSink(tmp_path).write(alert_table(0, 1), 0)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes() + b"{\n")
    with pytest.raises(SinkError, match=r"\.jsonl:2 is not JSON"):
        list(read_alerts(tmp_path))


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SinkError, match="give another"):
        JsonLinesSink(tmp_path / "file" / "alerts")
