"""`cep rules tune` on files: its output, its proposal, and that it writes only on request."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest

from cep.cli.main import main
from tests.analysis.test_tune import PATTERNS, planted
from tests.cli.test_backtest import RULE


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in ("rules", "patterns"):
        (tmp_path / part).mkdir()
    (tmp_path / "patterns" / "pays.cep").write_text(PATTERNS)
    (tmp_path / "rules" / "planted.toml").write_text(
        RULE.format(name="planted") + "\n[params]\nlarge = 100.0 # of 2025\n"
    )
    pq.write_table(planted(1), tmp_path / "events.parquet")
    return tmp_path


def tune(folder: Path, *more: str, rule: str = "planted") -> int:
    command = ["--rules", str(folder / "rules"), "--events", str(folder / "events.parquet"), "--labels", "is_fraud"]
    return main(["rules", "tune", rule, *command, *more])


def test_a_change_is_proposed_and_written_if_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, before = folder / "rules" / "planted.toml", (folder / "rules" / "planted.toml").read_text()
    ranges = ("--try", "large=50..900/18", "--try", "least=1..6/6")
    assert tune(folder, *ranges, "--json", str(folder / "tuned.json")) == 0
    printed = capsys.readouterr().out
    assert "108 settings compared, all of them exactly" in printed
    assert "…" not in printed, "a narrow terminal gets long lines, not cut figures"
    assert "-large = 100.0 # of 2025\n+least = 3\n+large = 450.0 # of 2025" in printed
    assert path.read_text() == before
    tuned = orjson.loads((folder / "tuned.json").read_bytes())
    assert (tuned["outcome"], len(tuned["tried"]["large"])) == ("better", tuned["settings_count"])
    assert tuned["difference"]["low"] > 0
    assert tuned["proposed"] == {"large": 450.0, "least": 3}
    assert tune(folder, *ranges, "--write") == 0
    assert "cep rules bump planted" in capsys.readouterr().out
    assert path.read_text() == before.replace("large = 100.0 #", "least = 3\nlarge = 450.0 #")
    assert tune(folder, *ranges) == 0
    printed = capsys.readouterr().out
    assert "the present setting is the best one" in printed
    assert "known at its end" in printed
    assert tune(folder, "--try", "large=450..900/7") == 0
    assert "least was not tried: --try names others" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (("--budget", "many"), "like 50/day"),
        (("--try", "large"), "like large=100,200,500"),
        (("--gap", "long"), "--gap"),
        (("--budget", "0/day"), "no setting keeps to the budget"),
    ],
)
def test_what_is_refused(folder: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], reason: str) -> None:
    assert tune(folder, *more) == 2
    assert reason in capsys.readouterr().err
    assert tune(folder, rule="nobody") == 2
