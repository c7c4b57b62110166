"""Hostile files in the folder of a job are set aside with a letter; the honest files give the same alerts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from cep.cli.main import main
from tests.runners.spark.live_cases import ROOT, payments
from tests.seeds import LATER
from tests.sources.test_parquet import pad

pytestmark = list(LATER)

_FIELDS = ("tx_id", "card_id", "note")


def bomb(path: Path) -> None:
    """Write a file of 40 000 rows that refer to one long text: some kB, and 2.4 GB after expansion."""
    text = pa.DictionaryArray.from_arrays(pa.nulls(40_000, pa.int32()).fill_null(0), pa.array(["x" * 60_000]))
    pq.write_table(pa.table(dict.fromkeys(_FIELDS, text)), path, compression="zstd")
    pad(path, 10_000)


def alert_ids(folder: Path) -> list[str]:
    """Return the ids of the alerts that a job wrote."""
    lines = [line for path in sorted(folder.rglob("*.jsonl")) for line in path.read_bytes().splitlines()]
    return sorted(orjson.loads(line)["alert_id"] for line in lines)


def run(tmp_path: Path, name: str, events: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Run a job over a folder to its end; return its alerts and the letters about files."""
    job, alerts = tmp_path / f"{name}-job", tmp_path / f"{name}-alerts"
    arguments = ["run", "--rules", str(ROOT / "rules"), "--events", str(events), "--checkpoint", str(job)]
    arguments += ["--alerts", str(alerts), "--dead-letters", str(tmp_path / f"{name}-letters")]
    assert main([*arguments, "--key-groups", "4", "--available-now"]) in (0, 1)
    letters = [
        json.loads(line)
        for path in sorted((tmp_path / f"{name}-letters").rglob("*.jsonl"))
        for line in path.read_bytes().splitlines()
    ]
    return alert_ids(alerts), [letter for letter in letters if letter["code"] == "unreadable_file"]


def test_a_job_goes_on_behind_files_that_cannot_be_read(tmp_path: Path) -> None:
    honest, hostile = tmp_path / "honest", tmp_path / "hostile"
    for folder in (honest, hostile):
        folder.mkdir()
        half = len(payments(1)) // 2
        for number, lines in enumerate((payments(1)[:half], payments(1)[half:])):
            path = folder / f"{number}.jsonl"
            path.write_bytes(b"\n".join(lines) + b"\n")
            os.utime(path, (number * 10 + 5,) * 2)
    (tmp_path / "secret.jsonl").write_text("root:secret")
    (hostile / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    (hostile / "cut.parquet").write_bytes(b"PAR1 and no more")
    (hostile / "open.json").write_text('[{"tx_id": "')
    os.mkfifo(hostile / "pipe.jsonl")
    for name in ("link.jsonl", "cut.parquet", "open.json"):
        os.utime(hostile / name, (10, 10), follow_symlinks=False)
    expected, none = run(tmp_path, "honest", honest)
    alerts, letters = run(tmp_path, "hostile", hostile)
    assert expected
    assert none == []
    assert alerts == expected
    assert {letter["record"] for letter in letters} == {"link.jsonl", "cut.parquet", "open.json"}
    assert "secret" not in "".join(letter["reason"] for letter in letters)


def test_a_job_goes_on_behind_a_file_that_would_take_gigabytes(tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    bomb(events / "0.parquet")
    os.utime(events / "0.parquet", (5, 5))
    (events / "1.jsonl").write_bytes(b"\n".join(payments(1)) + b"\n")
    alerts, letters = run(tmp_path, "bomb", events)
    assert alerts
    assert letters == []
