"""`--to-the-end` closes the open windows at the end of a history, in each verb that replays it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import cep
from cep.cli.main import main
from tests.cli.test_links import RULE

ABSENCE = """event tx { i id  event_time time  card string  amount decimal(2) }
pattern p(least: decimal = 1.00) by card { seq a -> !b within 1 d  where a: tx amount > least  b: tx amount > 2.00 }
"""
ROWS = [
    {"i": f"{card}{n}", "event_time": f"2026-01-0{1 + n // 10}T00:{n % 60:02}:00Z", "card": f"c{card}", "amount": 1.5}
    for card in range(3)
    for n in range(20)
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, text in (("patterns/p.cep", ABSENCE), ("rules/p.toml", RULE), ("labels.csv", "i,fraud\n00,true\n")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


def shown(place: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main([word.replace("@", f"{place}/") for word in words])
    return capsys.readouterr().out


@pytest.mark.parametrize("verb", ["backtest", "diff", "report"])
def test_more_windows_close_at_the_end(verb: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "empty").mkdir()
    words = {
        "backtest": ["--rules", "@rules", "--labels", "@labels.csv", "--json", "@f.json"],
        "diff": ["@rules", "@rules"],
        "report": ["--rules", "@rules", "--labels", "@labels.csv", "--out", "@f.html", "--thresholds", "none"],
    }[verb]
    counts = []
    for more in ([], ["--to-the-end"]):
        printed = shown(place, capsys, verb, *words, "--events", "@events.jsonl", *more)
        if verb == "diff":
            counts.append(int(printed.split("kept ")[1].split(",")[0]))
        else:
            written: dict[str, Any] = json.loads((place / "f.json").read_text())
            counts.append((written.get("figures") or written)["together"]["alerts"])
    assert counts[0] < counts[1]


def test_python_does_the_same() -> None:
    rules, table = cep.parse(ABSENCE), pa.Table.from_pylist([{**row, "fraud": False} for row in ROWS])
    by_match = [len(rules.match(table, to_the_end=to_the_end)) for to_the_end in (False, True)]
    assert by_match[0] < by_match[1]
    for count, to_the_end in zip(by_match, (False, True), strict=True):
        assert rules.diff(rules, table, to_the_end=to_the_end).kept_count == count
        assert rules.backtest(table, "fraud", to_the_end=to_the_end).figures.together.alerts == count
