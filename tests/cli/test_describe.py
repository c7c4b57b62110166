"""`cep describe`: its draft passes the check, and reads the file that it was drafted from."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

from cep.base.visible import HIDDEN
from cep.cli import main as cli

RULE = """id = "p"
pattern = "p"
file = "p.cep"
version = 1
status = "live"
severity = "low"
owner = "me"
message = "m"
"""
ROWS: list[dict[str, Any]] = [
    {
        "payment_id": f"p{n}", "booked": datetime(2026, 3, 1, 10, n, tzinfo=UTC), "card": f"c{n % 3}",
        "amount": n + 0.25, "status": ("approved", "declined")[n % 2], "seq": n, "note": None if n % 4 else f"note {n}",
        "online": n % 2 == 0,
    }
    for n in range(12)
]  # fmt: skip


def written(folder: Path, kind: str) -> Path:
    path = folder / f"Card payments.{kind}"
    table = pa.Table.from_pylist(ROWS)
    if kind == "parquet":
        pq.write_table(table, path)
    elif kind == "csv":
        pcsv.write_csv(table, path)
    else:
        lines = [json.dumps({**row, "booked": row["booked"].isoformat().replace("+00:00", "Z")}) for row in ROWS]
        path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_a_draft_is_sound_and_reads_its_file(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, kind)
    assert cli.main(["describe", str(path)]) == 0
    draft = capsys.readouterr().out
    assert "event card_payments {" in draft
    for line in ("id", "time", "string", "decimal(2)", "enum(approved, declined)", "int", "string?", "bool"):
        assert f" {line}\n" in draft
    flags = shlex.split(draft.splitlines()[0].removeprefix("# read it with: "))
    assert "event_time=booked" in flags
    rules = tmp_path / "rules"
    rules.mkdir()
    pattern = "pattern p by card { seq a where a: card_payments status == declined }\n"
    (rules / "p.cep").write_text(draft + pattern, encoding="utf-8")
    (rules / "p.toml").write_text(RULE, encoding="utf-8")
    assert cli.main(["check", str(rules)]) == 0
    out = tmp_path / "alerts.jsonl"
    command = ["replay", "--rules", str(rules), "--events", str(path), "--out", str(out), "--rejected-max", "0"]
    assert cli.main([*command, *flags]) == 0
    alerts = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(alerts) == 6
    assert alerts[0]["detected_at"].startswith((ROWS[1]["booked"] + timedelta(0)).strftime("%Y-%m-%dT%H:%M"))


def test_a_file_without_times_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text("id,x\na,1\n", encoding="utf-8")
    assert cli.main(["describe", str(tmp_path / "a.csv")]) == 2
    assert "no column is of times" in capsys.readouterr().err


def test_a_name_with_an_escape_sequence_is_printed_as_an_escape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "e.jsonl"
    path.write_text("\n".join(json.dumps({"note\x1b[31m\u202e": n, "at": "2026-03-01T00:00:00Z"}) for n in range(9)))
    assert cli.main(["describe", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "note\\u001b[31m\\u202e" in printed
    assert HIDDEN.search(printed) is None
