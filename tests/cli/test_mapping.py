"""Verbs and jobs over records of other names and forms: the alerts equal the alerts of plain records."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cep.cli import main as cli
from tests.cli.test_why import PATTERNS, RULE

PAYMENTS = [
    {"id": f"{card}-{n}", "event_time": f"2026-03-01T10:{n:02d}:00Z", "card": card, "shop": "s1", "amount": a,
     "status": s}
    for card, events in {
        "c1": [("1.00", "declined"), ("1.50", "declined"), ("900.00", "approved")],
        "c2": [("1.00", "declined"), ("900.00", "approved")],
    }.items()
    for n, (a, s) in enumerate(events)
]  # fmt: skip
MAPPING = [
    "--columns", "*=payload.after", "--columns", "id=payload.after.pk", "--columns", "card=payload.after.card.no",
    "--columns", "event_time=payload.after.ts", "--columns", "amount=payload.after.cents",
    "--minor", "amount", "--time-unit", "s", "--fixed", "shop=s1",
]  # fmt: skip

VIEWS = {"sent": "from", "received": "to"}


def envelope(payment: dict[str, Any]) -> dict[str, Any]:
    minute = int(payment["event_time"][14:16])
    after = {
        "pk": payment["id"], "card": {"no": payment["card"]}, "ts": 1_772_359_200 + 60 * minute,
        "cents": int(payment["amount"].replace(".", "")), "status": payment["status"],
    }  # fmt: skip
    return {"payload": {"op": "c", "after": after}}


def lines(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(r).encode() + b"\n" for r in records)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return make_place(tmp_path)


def make_place(tmp_path: Path) -> Path:
    """Write a rule, plain payments and the same payments in envelopes."""
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "p.cep").write_text(PATTERNS, encoding="utf-8")
    (rules / "testing.toml").write_text(RULE.format(id="testing", pattern="testing", status="live"), encoding="utf-8")
    (tmp_path / "plain.jsonl").write_bytes(lines(PAYMENTS))
    (tmp_path / "raw.jsonl").write_bytes(lines([envelope(p) for p in PAYMENTS]))
    return tmp_path


def replay(place: Path, *words: str, code: int = 0) -> bytes:
    out = place / "alerts.jsonl"
    assert cli.main(["replay", "--rules", str(place / "rules"), "--out", str(out), *words]) == code
    return out.read_bytes()


def test_replay_run_and_why_read_one_mapping(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = replay(place, "--events", str(place / "plain.jsonl"))
    assert plain.count(b"\n") == 1
    raw = str(place / "raw.jsonl")
    assert replay(place, "--events", raw, *MAPPING) == plain
    capsys.readouterr()
    flags = ["--rules", str(place / "rules"), "--events", raw, "--alerts", str(place / "out"), "--available-now"]
    assert cli.main(["run", *flags, *MAPPING]) == 0
    (file,) = (place / "out").glob("*.jsonl")
    ids = [json.loads(line)["alert_id"] for line in (plain.strip(), file.read_bytes().strip())]
    assert ids[0] == ids[1]
    why = ["why", "--alerts", str(place / "alerts.jsonl"), "--alert", ids[0], "--rules", str(place / "rules")]
    assert cli.main([*why, "--events", raw, *MAPPING]) == 0
    command = ["why-not", "--rule", "testing", "--key", "c2", "--rules", str(place / "rules"), "--events", raw]
    assert cli.main([*command, *MAPPING]) == 0
    assert "there were 1" in capsys.readouterr().out


def test_a_record_seen_from_both_sides(place: Path) -> None:
    """A record that is an event of two cards gives the alerts of two records, in replay and live."""
    both = [{**p, "from": p["card"], "to": f"to-{p['card']}"} for p in PAYMENTS]
    (place / "both.jsonl").write_bytes(lines(both))
    apart = [{**p, "id": f"{p['id']}#{view}", "card": p[field]} for p in both for view, field in VIEWS.items()]
    (place / "apart.jsonl").write_bytes(lines(apart))
    expected = replay(place, "--events", str(place / "apart.jsonl"))
    assert expected.count(b"\n") == 2
    columns = [word for view, field in VIEWS.items() for word in ("--columns", f"{view}/card={field}")]
    assert replay(place, "--events", str(place / "both.jsonl"), *columns) == expected
    pq.write_table(pa.Table.from_pylist(both), place / "both.parquet")
    assert replay(place, "--events", str(place / "both.parquet"), *columns) == expected
    for name in ("both.jsonl", "both.parquet"):
        flags = ["--rules", str(place / "rules"), "--events", str(place / name), "--alerts", str(place / name[5:])]
        assert cli.main(["run", *flags, "--available-now", *columns]) == 0
        (file,) = (place / name[5:]).glob("*.jsonl")
        assert alert_ids(file.read_bytes()) == alert_ids(expected)
    command = ["why-not", "--rule", "testing", "--key", "to-c2", "--rules", str(place / "rules")]
    assert cli.main([*command, "--events", str(place / "both.parquet"), *columns]) == 0


def alert_ids(written: bytes) -> list[str]:
    return sorted(json.loads(line)["alert_id"] for line in written.splitlines())


def test_a_settings_file_says_the_same(place: Path) -> None:
    plain = json.loads(replay(place, "--events", str(place / "plain.jsonl")))
    (place / "cep.toml").write_text(
        f"""[job]
rules = "rules"
[events]
folder = "{place / "raw.jsonl"}"
fixed = {{ shop = "s1" }}
minor = ["amount"]
time_unit = "s"
[events.columns]
"*" = "payload.after"
id = "payload.after.pk"
card = "payload.after.card.no"
event_time = "payload.after.ts"
amount = "payload.after.cents"
""",
        encoding="utf-8",
    )
    assert cli.main(["run", "--conf", str(place / "cep.toml"), "--alerts", str(place / "out"), "--available-now"]) == 0
    (file,) = (place / "out").glob("*.jsonl")
    assert json.loads(file.read_bytes())["alert_id"] == plain["alert_id"]


def test_several_inputs_packed_and_by_wildcard_are_read_once(place: Path) -> None:
    plain = replay(place, "--events", str(place / "plain.jsonl"))
    parts = place / "parts"
    parts.mkdir()
    (parts / "a.jsonl").write_bytes(lines(PAYMENTS[:2]))
    (parts / "b.jsonl.gz").write_bytes(gzip.compress(lines(PAYMENTS[2:])))
    assert replay(place, "--events", str(parts / "a.jsonl"), "--events", str(parts / "b.jsonl.gz")) == plain
    assert replay(place, "--events", str(parts / "*.jsonl*"), "--events", str(parts / "a.jsonl")) == plain
    assert replay(place, "--events", str(place / "plain.jsonl"), "--since", "2026-03-01T10:01:00Z") == b""
    assert replay(place, "--events", str(place / "plain.jsonl"), "--until", "2026-03-01T10:02:00Z") == b""
    command = ["why-not", "--rule", "testing", "--key", "c2", "--rules", str(place / "rules")]
    assert cli.main([*command, "--events", str(parts / "a.jsonl"), "--events", str(parts / "b.jsonl.gz")]) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"card": ...}, "no record has card, which the field `card` is read from; they have id, event_time, shop"),
        ({"card": ..., "crd": "c1"}, "did you mean crd?"),
        ({"event_time": 1_772_359_200}, "which is in 1970 if it is in ms; say what it is in with --time-unit s"),
        ({"event_time": "2026-03-01T10:00:00"}, "a time without a zone; say which one with --time-zone UTC"),
    ],
)
def test_what_goes_in_wrongly_is_refused_before_anything_runs(
    place: Path, changes: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [{n: v for n, v in {**p, **changes}.items() if v is not ...} for p in PAYMENTS]
    (place / "bad.jsonl").write_bytes(lines(records))
    flags = ["--rules", str(place / "rules"), "--events", str(place / "bad.jsonl"), "--out", str(place / "a.jsonl")]
    assert cli.main(["replay", *flags]) == 2
    assert message in capsys.readouterr().err
    assert not (place / "a.jsonl").exists()


def test_a_field_that_nobody_has_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--rules", str(place / "rules"), "--out", str(place / "a.jsonl"), "--events", str(place / "plain.jsonl")]
    assert cli.main(["replay", *flags, "--columns", "amnt=x"]) == 2
    assert "no field `amnt`; did you mean `amount`?" in capsys.readouterr().err
    assert cli.main(["run", "--rules", str(place / "rules"), "--events", str(place), "--columns", "amnt=x"]) == 2


def test_a_replay_that_sets_too_much_aside_ends_with_1(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "odd.jsonl").write_bytes(lines([{**PAYMENTS[0], "amount": "much"}, *PAYMENTS[1:]]))
    odd = ["--events", str(place / "odd.jsonl")]
    replay(place, *odd, code=1)
    replay(place, *odd, "--rejected-max", "0.2")
    capsys.readouterr()
    replay(place, *odd, "--rejected-max", "0.19", code=1)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "1 of 5 records (20.00%) were rejected, more than --rejected-max 0.19 allows"
    (place / "none.jsonl").write_bytes(lines([{**p, "amount": "much"} for p in PAYMENTS]))
    replay(place, "--events", str(place / "none.jsonl"), "--rejected-max", "1", code=1)
    assert "5 of 5 records (100.00%) were rejected" in capsys.readouterr().err


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_spark_reads_the_same_mapping(place: Path) -> None:
    plain = replay(place, "--events", str(place / "plain.jsonl"))
    raw = [envelope(p) for p in PAYMENTS]
    pq.write_table(pa.Table.from_pylist(raw), place / "raw.parquet")
    assert replay(place, "--events", str(place / "raw.parquet"), *MAPPING) == plain
    assert replay(place, "--events", str(place / "raw.parquet"), "--engine", "spark", *MAPPING) == plain
    both = [{**p, "from": p["card"], "to": f"to-{p['card']}"} for p in PAYMENTS]
    pq.write_table(pa.Table.from_pylist(both), place / "both.parquet")
    columns = [word for view, field in VIEWS.items() for word in ("--columns", f"{view}/card={field}")]
    one_process = replay(place, "--events", str(place / "both.parquet"), *columns)
    assert one_process.count(b"\n") == 2
    assert replay(place, "--events", str(place / "both.parquet"), "--engine", "spark", *columns) == one_process
