"""Files of a replay are whole or absent."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest

from cep.base.errors import SinkError, UsageError
from cep.runners.output import check_writable, decode_alerts, encode_alerts, format_of, write_outputs
from tests.sinks.alerts import alert_table

LETTER = b'{"code":"unreadable","reason":"r","record":"x"}'


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_name_says_the_format() -> None:
    assert format_of(Path("a.b/x.JSONL")) == "jsonl"
    assert format_of(Path("x.parquet")) == "parquet"
    with pytest.raises(UsageError, match=r"cannot tell the format of x\.csv"):
        format_of(Path("x.csv"))


def test_both_formats_hold_the_same_alerts(tmp_path: Path) -> None:
    alerts = alert_table(1, 3)
    write_outputs(alerts, (), tmp_path / "a.parquet", "parquet")
    write_outputs(alerts, (), tmp_path / "a.jsonl", "jsonl")
    assert pq.read_table(tmp_path / "a.parquet").equals(alerts)
    lines = [orjson.loads(line) for line in (tmp_path / "a.jsonl").read_bytes().splitlines()]
    assert [line["alert_id"] for line in lines] == alerts["alert_id"].to_pylist()
    assert names(tmp_path) == ["a.jsonl", "a.parquet"]


def test_alerts_of_a_build_that_had_no_origins_are_read() -> None:
    alerts = alert_table(1, 2)
    assert decode_alerts(encode_alerts(alerts.drop_columns("origins"))).equals(alerts)


def test_dead_letters_are_written_beside_and_old_ones_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    written = write_outputs(alert_table(1, 3), [LETTER, LETTER], path, "jsonl")
    assert [p.name for p in written] == names(tmp_path) == ["a.jsonl", "a.jsonl.dead.jsonl"]
    assert written[1].read_bytes() == (LETTER + b"\n") * 2
    assert write_outputs(alert_table(1, 3), [], path, "jsonl") == [path]
    assert names(tmp_path) == ["a.jsonl"]


def test_what_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SinkError, match=r"alerts cannot be written to .*a\.jsonl: .*No space left"):
        write_outputs(alert_table(1, 3), [], path, "jsonl")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.jsonl"]


def test_a_place_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    check_writable(tmp_path / "a.jsonl")
    with pytest.raises(UsageError, match="is a folder"):
        check_writable(tmp_path)
    with pytest.raises(UsageError, match="there is no folder"):
        check_writable(tmp_path / "gone" / "a.jsonl")
