"""A verb never hides rejected records: reasons in its last lines, and exit code 1 above the share."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from cep.cli.main import main
from tests.cli.test_links import RULE

PATTERN = """event tx { i id  event_time time  card string  amount decimal(2) }
pattern p by card { seq a -> b within 1 h  where a: tx amount > 1.00  b: tx amount > 2.00 }
"""


def history(folder: Path, form: str, bad_count: int) -> Path:
    """Write 100 records, `bad_count` of them with an amount that is not a number."""
    for name, text in (("patterns/p.cep", PATTERN), ("rules/p.toml", RULE)):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    rows = [
        {
            "i": str(n),
            "event_time": f"2026-01-01T00:{n % 60:02}:00Z",
            "card": "c",
            "amount": "x" if n < bad_count else "3.00",
        }
        for n in range(100)
    ]
    table, path = pa.Table.from_pylist(rows), folder / f"events.{form}"
    if form == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif form == "csv":
        pa_csv.write_csv(table, path)
    else:
        pq.write_table(table, path)
    return path


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize(
    ("bad_count", "share", "code"), [(0, "0.01", 0), (1, "0.01", 0), (2, "0.01", 1), (2, "0.05", 0)]
)
def test_a_replay_tells_of_rejected_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str, bad_count: int, share: str, code: int
) -> None:
    events = history(tmp_path, form, bad_count)
    out = ["--out", str(tmp_path / "alerts.jsonl")]
    command = ["replay", "--rules", str(tmp_path / "rules"), "--events", str(events), *out, "--rejected-max", share]
    assert main(command) == code
    lines = capsys.readouterr().err.splitlines()
    if bad_count:
        assert "field `amount`" in lines[-2]
        assert f"{bad_count} of 100 records" in lines[-1]
    assert any("more than --rejected-max" in line for line in lines) == bool(code)


@pytest.mark.parametrize("verb", ["backtest", "report", "diff"])
def test_other_verbs_end_with_1_too(tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    events = history(tmp_path, "jsonl", 100)
    rules = [str(tmp_path / "rules")] * 2 if verb == "diff" else ["--rules", str(tmp_path / "rules")]
    (tmp_path / "labels.csv").write_text("i,fraud\n1,true\n")
    labels = [] if verb == "diff" else ["--labels", str(tmp_path / "labels.csv")]
    out = ["--out", str(tmp_path / "page.html")] if verb == "report" else []
    assert main([verb, *rules, "--events", str(events), *labels, *out]) == 1
    assert "100 of 100 records" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(("bad_count", "code"), [(0, 0), (1, 0), (2, 1)])
def test_features_are_judged_too(tmp_path: Path, capsys: pytest.CaptureFixture[str], bad_count: int, code: int) -> None:
    events = history(tmp_path, "jsonl", 0)
    lines = events.read_text().splitlines()
    events.write_text("\n".join(["{", *lines[1:]] if bad_count else lines) + "\n{\n" * (bad_count > 1))
    (tmp_path / "e.cep").write_text(PATTERN.splitlines()[0])
    out = ["--out", str(tmp_path / "f.csv"), "--declare", str(tmp_path / "e.cep")]
    assert main(["features", "n=count(tx over 1 h by card)", "--events", str(events), *out]) == code
    error = capsys.readouterr().err
    assert (f"{bad_count} of 10" in error) == bool(bad_count)
    assert ("unreadable" in error) == bool(bad_count)


def test_why_not_judges_the_records_of_the_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = history(tmp_path, "jsonl", 0)
    lines = events.read_text().splitlines()
    command = ["why-not", "--rules", str(tmp_path / "rules"), "--rule", "p", "--key", "c", "--events", str(events)]
    command += ["--until", "2026-01-01T00:00:01Z"]
    for bad_count, code in ((0, 0), (5, 1)):
        bad = [line.replace('"i": "', '"j": "') for line in lines[:bad_count]]
        events.write_text("\n".join([lines[0], *bad]))
        assert main(command) == code
        assert ("more than --rejected-max" in capsys.readouterr().err) == bool(code)
    assert main([*command, "--rejected-max", "0.9"]) == 0
