"""`cep rules suggest` on files: a pattern file whose tests pass, and its errors."""

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
    command = ["--rules", str(folder / "rules"), "--events", str(folder / "events.parquet"), "--labels", "is_fraud"]
    return main(["rules", "suggest", *command, "--key", key, *more])


OTHER = "event other { other_id id  event_time time  card_id string  note string  sum decimal(2) }\npattern any"


def test_a_pattern_file_that_stands_its_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rules' file has one more event type, which does not occur in the history."""
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


def bench(folder: Path, pattern: str = "", **columns: pa.Array) -> None:
    """Write an event declaration and labelled events of 40 frauds, with other columns if given."""
    table = planted(4, frauds=40, count=1_500)
    for name, values in columns.items():
        index = table.column_names.index(name) if name in table.column_names else table.num_columns
        table = table.remove_column(index) if index < table.num_columns else table
        table = table.add_column(index, name, values)
    pq.write_table(table, folder / "events.parquet")
    kinds = {"int64": "int", "bool": "bool", "double": "float", "string": "string"}
    fields = "".join(
        f"  {name} {kinds[str(values.type)]}\n" for name, values in columns.items() if f"  {name} " not in BASE
    )
    base = BASE[: BASE.index("pattern")].replace("  country", f"{fields}  country")
    if "card_id" in columns:
        base = base.replace("card_id     string", f"card_id     {kinds[str(columns['card_id'].type)]}")
    (folder / "pays.cep").write_text(base + pattern)


def mined(folder: Path, *more: str) -> int:
    command = [str(folder / "pays.cep"), "--events", str(folder / "events.parquet"), "--labels", "is_fraud"]
    return main(["rules", "suggest", *command, "--key", "card_id", "--max-steps", "2", *more])


def test_a_key_of_whole_numbers_and_event_types_without_a_pattern(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = planted(4, frauds=40, count=1_500)
    bench(tmp_path, card_id=pa.array([int(card[1:]) for card in table["card_id"].to_pylist()]))
    out = tmp_path / "found.cep"
    assert mined(tmp_path, "--out", str(out)) == 0
    printed = capsys.readouterr().out
    assert "events of 150 card_id with " in printed
    assert "fields: amount, status, channel, country" in printed
    assert "  1: 0 s  pay " in out.read_text()
    assert main(["test", str(out)]) == 0
    before = out.read_bytes()
    assert mined(tmp_path, "--out", str(out)) == 2
    assert "is there already" in capsys.readouterr().err
    assert out.read_bytes() == before
    first = sorted(path.name for path in tmp_path.glob("*.toml"))
    assert mined(tmp_path, "--out", str(tmp_path / "more.cep")) == 0
    assert first == ["suggested_1.toml", "suggested_2.toml"][: len(first)]
    assert len(list(tmp_path.glob("*.toml"))) == 2 * len(first)
    assert f"pattern suggested_{len(first) + 1}" in (tmp_path / "more.cep").read_text()


def test_no_suggestion_reads_the_label_or_a_trait_of_a_person(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = planted(4, frauds=40, count=1_500)
    frauds = table["is_fraud"].combine_chunks()
    gender = pa.array(["x" if fraud else "y" for fraud in frauds.to_pylist()])
    lat = pa.array([float(number % 90) for number in range(table.num_rows)])
    bench(tmp_path, is_fraud=frauds, gender=gender, home_lat=lat)
    assert mined(tmp_path, "--exclude", "country") == 0
    printed = capsys.readouterr().out
    assert (
        "left out: is_fraud (the column of the labels), gender (a personal trait), home_lat (a coordinate), "
        "country (excluded)" in printed
    )
    patterns = printed[printed.index("pattern ") :]
    assert not any(name in patterns for name in ("is_fraud", "gender", "home_lat", "country"))
    assert mined(tmp_path, "--use", "gender") == 0
    captured = capsys.readouterr()
    assert "gender == " in captured.out[captured.out.index("pattern ") :]
    assert 'warning: `gender == "x"` alone separates nearly all frauds' in captured.err
    assert mined(tmp_path, "--exclude", "nothing") == 2


def test_the_best_rejected_sequences_are_shown_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = planted(4, frauds=40, count=1_500)
    labels = table["is_fraud"].to_pylist()
    bench(tmp_path, is_fraud=pa.array(labels[7:] + labels[:7]))
    assert mined(tmp_path) == 1
    printed = capsys.readouterr().out
    assert "0 have a precision of 0.8 or more" in printed
    assert "not proposed: " in printed
    assert "pattern suggested_1" in printed
