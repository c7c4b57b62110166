"""`cep replay`: the demo's day with the rules of this repository, and every mistake in the arguments."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cep.cli import main as cli
from cep.demo.stream import StreamSize, build, json_lines
from cep.rulebook.files import read_rules

ROOT = Path(__file__).parents[2]
RULES = ROOT / "rules"


def usage(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the message about wrong arguments."""
    assert cli.main(["replay", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def test_wrong_arguments(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    events, out = ("--events", tmp_path / "events.csv"), ("--out", tmp_path / "a.jsonl")
    assert "give --rules, --control, or both" in usage(capsys, *events, *out)
    assert "is not a folder" in usage(capsys, "--rules", tmp_path / "gone", *events, *out)
    assert "cannot be read" in usage(capsys, "--control", tmp_path / "gone", *events, *out)
    assert "cannot tell the format" in usage(capsys, "--rules", RULES, *events, "--out", tmp_path / "a.xml")
    assert "there is no folder" in usage(capsys, "--rules", RULES, *events, "--out", tmp_path / "gone" / "a.jsonl")
    assert "--cores is 1 or more, not 0" in usage(capsys, "--rules", RULES, *events, *out, "--cores", 0)
    assert "key groups are 1 to" in usage(capsys, "--rules", RULES, *events, *out, "--key-groups", 0)


def test_a_time_that_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "alerts.jsonl"
    message = usage(capsys, "--rules", RULES, "--events", tmp_path, "--out", out, "--dedup", "soon")
    assert "--dedup: 'soon' is no time" in message


def test_events_that_are_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    events, out = ("--events", str(tmp_path / "gone")), ("--out", str(tmp_path / "a.jsonl"))
    assert cli.main(["replay", "--rules", str(RULES), *events, *out]) == 2
    assert "there are no events at" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_no_rule_in_force_is_a_finding(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "bad.toml").write_text("id = 1")
    arguments = ["--rules", str(tmp_path / "rules"), "--events", "x", "--out", str(tmp_path / "a.jsonl")]
    assert cli.main(["replay", *arguments]) == 1
    printed = capsys.readouterr().err
    assert "bad.toml: $.id" in printed
    assert "no rule is in force" in printed


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_demo_day(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    stream = build(11, StreamSize(cards_count=150, payments_per_card=12))
    events, out, control = tmp_path / "events.jsonl", tmp_path / "alerts.jsonl", tmp_path / "control.jsonl"
    events.write_bytes(b"\n".join(json_lines(stream.payments)) + b"\nnot a payment\n")
    assert cli.main(["replay", "--rules", str(RULES), "--events", str(events), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    counts = Counter(json.loads(line)["rule_id"] for line in out.read_bytes().splitlines())
    assert counts == Counter(case.rule_id for case in stream.planted if case.fires)
    assert json.loads((tmp_path / "alerts.jsonl.dead.jsonl").read_text())["record"] == "not a payment"
    assert "poison[unreadable]" in printed
    for rule_id in counts:
        assert rule_id in printed
    # The same as the history of a control topic, with one broken record, to Parquet.
    records, _ = read_rules(RULES)
    control.write_bytes(b"\n".join(record.to_json() for record in records) + b"\n\n{}\n")
    arguments = ["--control", str(control), "--events", str(events), "--out", str(tmp_path / "alerts.parquet")]
    assert cli.main(["replay", *arguments]) == 1
    assert "control.jsonl:7: $" in capsys.readouterr().err
    assert Counter(pq.read_table(tmp_path / "alerts.parquet")["rule_id"].to_pylist()) == counts


@pytest.mark.parametrize("engine", ["embedded", pytest.param("spark", marks=pytest.mark.spark)])
def test_events_that_were_sent_twice(
    engine: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if engine == "spark":
        request.getfixturevalue("spark")
    lines = list(json_lines(build(12, StreamSize(cards_count=60, payments_per_card=8)).payments))
    once, twice = tmp_path / "once.jsonl", tmp_path / "twice.jsonl"
    once.write_bytes(b"\n".join(lines))
    twice.write_bytes(b"\n".join([*lines, *reversed(lines)]))

    def replayed(events: Path, *more: str) -> tuple[bytes, str]:
        out = tmp_path / "alerts.jsonl"
        arguments = ["--rules", str(RULES), "--events", str(events), "--out", str(out), "--engine", engine]
        assert cli.main(["replay", *arguments, *more]) == 0
        return out.read_bytes(), capsys.readouterr().out

    expected, _ = replayed(once)
    alerts, printed = replayed(twice, "--dedup", "1 d")
    assert alerts == expected == replayed(twice)[0] != replayed(twice, "--dedup", "0 s")[0]
    assert f"duplicates {len(lines):>}" in " ".join(printed.split()).replace(",", "")
