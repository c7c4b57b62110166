"""`cep backtest` on files: the table, the JSON, and unusable labels."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow.parquet as pq
import pytest

from cep.analysis.show import time_text
from cep.cli.main import main
from tests.analysis.bench_data import SOURCE, payments

RULE = """\
id = "{name}"
pattern = "{name}"
file = "../patterns/pays.cep"
version = 1
status = "live"
severity = "low"
owner = "cards"
message = "{{key}}"
"""


def write_folder(folder: Path, *names: str) -> Path:
    """Write rules of the source as files, with labelled events next to them."""
    for part in ("rules", "patterns"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "patterns" / "pays.cep").write_text(SOURCE)
    for name in names:
        (folder / "rules" / f"{name}.toml").write_text(RULE.format(name=name))
    events, labels = payments(1)
    pq.write_table(events, folder / "events.parquet")
    pq.write_table(labels, folder / "labels.parquet")
    return folder


def backtest(folder: Path, labels: str, *more: str) -> int:
    command = ["--rules", str(folder / "rules"), "--events", str(folder / "events.parquet"), "--labels", labels]
    return main(["backtest", *command, *more])


def test_a_table_and_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path, "large", "small_large")
    path = tmp_path / "figures.json"
    assert backtest(folder, str(folder / "labels.parquet"), "--json", str(path), "--maturity", "5d") == 0
    printed = " ".join(capsys.readouterr().out.split())
    figures = orjson.loads(path.read_bytes())
    assert [each["rule"] for each in figures["rules"]] == ["large", "small_large"]
    precision = figures["together"]["precision"]
    assert f"{precision['value']:.3f} ({precision['low']:.3f}–{precision['high']:.3f})" in printed
    assert "as sent, which are all matches: rule alerts a day precision of cases of keys" in printed
    rows = ("large", "small_large", "all rules")
    assert all(
        f" {name} {each['alerts']} {each['alerts_per_day']:.1f} " in printed
        for name, each in zip(rows, (*figures["rules"], figures["together"]), strict=True)
    )
    assert figures["all_matches"]["rules"] == figures["rules"]
    assert figures["about"]["maturity_seconds"] == 5 * 86_400


def test_a_pattern_file_needs_no_folder_of_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path)
    file = folder / "patterns" / "pays.cep"
    terms = ["--events", str(folder / "events.parquet"), "--labels", str(folder / "labels.parquet")]
    assert main(["backtest", str(file), *terms]) == 0
    rows = capsys.readouterr().out.split("\nrule ")[1].splitlines()[1:6]
    assert [row.split()[0] for row in rows] == ["busy_shop", "large", "never", "small_large", "all"]
    assert main(["backtest", *terms]) == 2
    assert "name a pattern file (*.cep), or a folder" in capsys.readouterr().err
    file.write_text(SOURCE.replace("amount > large", "amount > lrge", 1))
    assert main(["backtest", str(file), *terms]) == 2
    assert "did you mean `large`" in capsys.readouterr().err
    file.write_text(SOURCE[: SOURCE.index("pattern")])
    assert main(["backtest", str(file), *terms]) == 2
    assert "has no pattern" in capsys.readouterr().err


def test_a_label_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path, "large")
    assert backtest(folder, "nobody") == 2
    assert "the events have no column nobody" in capsys.readouterr().err
    assert backtest(folder, "is_fraud", "--as-of", "yesterday") == 2
    assert backtest(folder, "is_fraud", "--cores", "0") == 2


def test_times_have_the_unit_that_suits() -> None:
    assert [time_text(seconds) for seconds in (None, 45, 750, 11_520, -700_000)] == [
        "–", "45 s", "12.5 min", "3.2 h", "-8.1 d",
    ]  # fmt: skip


def test_what_is_sent_comes_before_all_matches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path, "large", "small_large")
    rule = folder / "rules" / "large.toml"
    rule.write_text(rule.read_text() + 'suppress = "5 d"\n')
    shadow = folder / "rules" / "small_large.toml"
    shadow.write_text(shadow.read_text().replace('"live"', '"shadow"'))
    assert backtest(folder, "is_fraud", "--json", str(tmp_path / "figures.json")) == 0
    printed = capsys.readouterr().out
    figures = orjson.loads((tmp_path / "figures.json").read_bytes())
    reasons = figures["about"]["matches_not_sent"]
    assert list(reasons) == ["shadow", "suppressed"]
    assert f"as sent ({reasons['shadow']:,} shadow, {reasons['suppressed']:,} suppressed are not):" in printed
    assert 0 < printed.index("as sent") < printed.index("all matches:")
    sent, matches = figures["together"], figures["all_matches"]["together"]
    assert matches["alerts"] - sent["alerts"] == sum(reasons.values())
    assert {each["rule"]: each["alerts"] for each in figures["rules"]}["small_large"] == 0


def test_episodes_are_chosen_by_a_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path, "large")
    counts = []
    for more in ((), ("--episodes", "card_id:1d"), ("--episodes", "shop:1h"), ("--episodes", "0s")):
        assert backtest(folder, "is_fraud", "--json", str(tmp_path / "figures.json"), *more) == 0
        counts.append(orjson.loads((tmp_path / "figures.json").read_bytes())["about"]["frauds"])
    assert counts[0] == counts[1] < counts[2] < counts[3]
    capsys.readouterr()
    assert backtest(folder, "is_fraud", "--episodes", "nobody:1d") == 2
    assert "--episodes nobody: the rules' events have these fields" in capsys.readouterr().err
    assert backtest(folder, "is_fraud", "--episodes", "often") == 2
