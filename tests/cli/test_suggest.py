"""`cep suggest` on files: a pattern file whose tests pass, and what it refuses."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cep.cli.main import main
from tests.analysis.test_suggest import BASE, planted
from tests.cli.test_backtest import RULE


def suggest(folder: Path, *more: str, key: str = "card_id") -> int:
    given = ["--rules", str(folder / "rules"), "--events", str(folder / "events.parquet"), "--labels", "is_fraud"]
    return main(["suggest", *given, "--key", key, *more])


OTHER = "event other { other_id id  event_time time  card_id string  note string  sum decimal(2) }\npattern any"


def test_a_pattern_file_that_stands_its_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rules' file has an event type besides, of which the history has no event and no column."""
    for part in ("rules", "patterns", "new"):
        (tmp_path / part).mkdir()
    (tmp_path / "patterns" / "pays.cep").write_text(BASE.replace("pattern any", OTHER))
    (tmp_path / "rules" / "any.toml").write_text(RULE.format(name="any"))
    table = planted(4, frauds=40, count=1_500)
    table = table.append_column("event_type", pa.array(["pay"] * table.num_rows))
    pq.write_table(table, tmp_path / "events.parquet")
    out = tmp_path / "new" / "suggested.cep"
    assert suggest(tmp_path, "--out", str(out), "--max-steps", "2") == 0
    assert "not yet found" in capsys.readouterr().out
    assert main(["test", str(out)]) == 0
    assert main(["check", str(out.parent)]) == 0
    rules = [tomllib.loads(path.read_text()) for path in out.parent.glob("*.toml")]
    assert rules
    assert {rule["status"] for rule in rules} == {"shadow"}
    assert suggest(tmp_path, key="nobody") == 2
    assert "--key nobody is no field" in capsys.readouterr().err
    assert suggest(tmp_path, "--max-steps", "9") == 2
