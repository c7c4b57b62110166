"""From an unknown file to the first backtest, like a new user: on three forms of files."""

from __future__ import annotations

import json
import random
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cep.cli import main as cli

PATTERN = """
pattern large
  by card
{
  seq    hit
  where  hit: payment  amount > 200.00 and direction == incoming
}
"""


def rows() -> list[dict[str, object]]:
    """Return payments of 20 cards; large credits are fraud."""
    draw = random.Random(3)
    payments: list[dict[str, object]] = []
    for number in range(300):
        booked = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(hours=number)
        is_fraud = number % 15 == 0
        amount = round(draw.uniform(300, 900) if is_fraud else draw.uniform(1, 150), 2)
        direction = "credit" if is_fraud else draw.choice(("credit", "debit"))
        payments.append({
            "number": 5_000 + number, "booked": booked, "card": 70 + draw.randrange(20), "amount": amount,
            "direction": direction, "is_fraud": int(is_fraud),
        })  # fmt: skip
    return payments


def write(path: Path) -> None:
    """Write a German CSV, JSON lines with offsets, or a Parquet file with times without a zone."""
    records = rows()
    for row in records:
        booked: datetime = row["booked"]  # type: ignore[assignment]
        if path.suffix == ".csv":
            row |= {"booked": f"{booked:%d.%m.%Y %H:%M}", "amount": str(row["amount"]).replace(".", ",")}
        elif path.suffix == ".jsonl":
            row["booked"] = booked.isoformat()
        else:
            row["booked"] = booked.replace(tzinfo=None)
    if path.suffix == ".csv":
        lines = [";".join(records[0]), *(";".join(map(str, row.values())) for row in records)]
        path.write_text("\n".join(lines))
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, records)))
    else:
        pq.write_table(pa.Table.from_pylist(records), path)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_from_an_unknown_file_to_the_first_backtest(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events, file = tmp_path / f"day{suffix}", tmp_path / "payments.cep"
    write(events)
    assert cli.main(["describe", str(events), "--name", "payment"]) == 0
    draft = capsys.readouterr().out
    assert "amount      decimal(2)" in draft
    assert "# is_fraud: a label" in draft
    file.write_text(draft)
    assert cli.main(["check", str(file)]) == 0
    assert cli.main(["fmt", "--check", str(file)]) == 0
    flags = shlex.split(draft.splitlines()[0].removeprefix("# read it with: "))
    assert "--time-zone" in flags
    flags_of_events = ["--events", str(events), "--labels", "is_fraud", *flags]
    file.write_text(draft.replace("enum(credit, debit)", "enum(incoming, outgoing)") + PATTERN)
    flags_of_events += ["--values", "direction.credit=incoming", "--values", "direction.debit=outgoing"]
    assert cli.main(["backtest", str(file), *flags_of_events]) == 0
    figures = " ".join(capsys.readouterr().out.split())
    assert "300 events of 13 days; 20 frauds" in figures
    assert "large 20 1.5 1.000" in figures
    assert cli.main(["backtest", str(file), *flags_of_events, "--values", "direction.x=in"]) == 2
    assert "has no symbol in" in capsys.readouterr().err
