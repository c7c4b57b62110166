"""`cep rules prune` on files: the rules that could go, and the frauds that each of them adds."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from cep.cli.main import main
from tests.cli.test_backtest import write_folder


def prune(folder: Path, *more: str) -> int:
    command = ["--rules", str(folder / "rules"), "--events", str(folder / "events.parquet"), "--labels", "is_fraud"]
    return main(["rules", "prune", *command, *more])


def test_rules_that_could_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path, "large", "small_large", "never")
    path = tmp_path / "pruned.json"
    assert prune(folder, "--json", str(path)) == 1
    printed = capsys.readouterr().out
    pruned = orjson.loads(path.read_bytes())
    assert pruned["frauds_after"] == pruned["frauds_before"] > 0
    removed = {each["rule"]: each for each in pruned["removed"]}
    assert removed["never"]["adds"] == 0
    assert f"{len(pruned['stay'])} of 3 rules find {pruned['frauds_after']}" in printed
    assert prune(folder, "--tolerance", "0.05") == 1
    assert "they stay: large" in capsys.readouterr().out
    assert prune(folder, "--tolerance", "2") == 2
    assert prune(folder, "--budget", "often") == 2
    capsys.readouterr()
    assert prune(folder, "--budget", "0.1/day", "--json", str(path)) == 1
    few = orjson.loads(path.read_bytes())
    assert few["alerts_after"] <= 2, "twenty days"
    assert few["frauds_after"] < few["frauds_before"]
