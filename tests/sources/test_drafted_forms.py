"""One set of payments in many real forms of files: each verb reads each form with the draft of `cep describe` alone.

The alerts are those of the clean payments in every form: times, money, symbols and a second time of the event.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import shlex
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cep
from cep.cli import main as cli
from tests.cli.test_main import RULE

FIRST = datetime(2026, 3, 1, 10, tzinfo=UTC)
HEAD = ["Ref ID", "Booked At", "Opened", "Card", "Amount", "Status", "Name"]
PAYMENTS: list[dict[str, Any]] = [
    {
        "id": f"p{n:03}", "booked": FIRST + timedelta(minutes=77 * n), "card": f"c{n % 3}",
        "opened": date(2026, 2, 28) - timedelta(days=9 * n), "amount": Decimal(n * 100_000 + 50) / 100,
        "status": ("approved", "declined", "3DS")[n % 3], "name": ("Müller", "Lefèvre", 'Bob "B" Hall')[n % 3],
    }
    for n in range(24)
]  # fmt: skip
CONDITION = '{amount} > 5000.00 and {status} != "3DS" and event_time - {opened} < 150 d'
EXPECTED = sorted(
    (each["booked"], each["card"])
    for each in PAYMENTS
    if each["amount"] > 5000
    and each["status"] != "3DS"
    and each["booked"] - datetime.combine(each["opened"], time(), UTC) < timedelta(days=150)
)


def rows(
    moment: str | Callable[[datetime], object] = "%Y-%m-%dT%H:%M:%SZ", day: str = "%Y-%m-%d",
    money: Callable[[Decimal], str] = str,
) -> list[list[object]]:  # fmt: skip
    """Return the values of the payments in the order of the columns, as a file has them."""
    shown = (lambda booked: booked.strftime(moment)) if isinstance(moment, str) else moment
    return [
        [p["id"], shown(p["booked"]), p["opened"].strftime(day), p["card"], money(p["amount"]), p["status"], p["name"]]
        for p in PAYMENTS
    ]


def text_of(values: list[list[object]], delimiter: str = ",") -> str:
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter)
    writer.writerows([HEAD, *values])
    return file.getvalue()


def money_of(decimal: str, thousands: str, around: str = "{}") -> Callable[[Decimal], str]:
    signs = str.maketrans({",": thousands, ".": decimal})
    return lambda amount: around.format(f"{amount:,.2f}".translate(signs))


def epoch(unit: int) -> Callable[[datetime], int]:
    return lambda moment: int(moment.timestamp()) * unit


GERMAN = rows("%d.%m.%Y %H:%M:%S", "%d.%m.%Y", money_of(",", "."))
RECORDS = [dict(zip(PAYMENTS[0], [r[0], r[1], r[3], r[2], *r[4:]], strict=True)) for r in rows()]
TABLE = pa.Table.from_pylist(PAYMENTS)


def parquet(table: pa.Table, **how: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **how)
    return bytes(sink.getvalue().to_pybytes())


def lines(records: list[Any], encoding: str = "utf-8") -> bytes:
    return "\n".join(map(json.dumps, records)).encode(encoding)


def naive() -> pa.Table:
    return TABLE.set_column(1, "booked", TABLE["booked"].cast(pa.timestamp("us")))


FORMS: dict[str, Callable[[], bytes]] = {
    "plain.csv": lambda: text_of(rows()).encode(),
    "cents_ms.csv": lambda: text_of(rows(epoch(1_000))).encode(),
    "seconds.csv": lambda: text_of(rows(epoch(1))).encode(),
    "micros.csv": lambda: text_of(rows(epoch(1_000_000))).encode(),
    "local.csv": lambda: text_of(rows("%Y-%m-%d %H:%M:%S")).encode(),
    "digits.csv": lambda: text_of(rows("%Y%m%d%H%M%S")).encode(),
    "months.csv": lambda: text_of(rows("%d-%b-%Y %H:%M:%S", "%d-%b-%Y")).encode(),
    "german.csv": lambda: text_of(GERMAN, ";").encode("cp1252"),
    "german_mark.csv": lambda: text_of(GERMAN, ";").encode("utf-8-sig"),
    "german_wide.csv": lambda: text_of(GERMAN, ";").encode("utf-16"),
    "mixed_days.csv": lambda: text_of(rows("%d.%m.%Y %H:%M"), ";").encode(),
    "french.csv": lambda: text_of(rows("%d/%m/%Y %H:%M", "%d/%m/%Y", money_of(",", "\u202f")), ";").encode(),
    "swiss.tsv": lambda: text_of(rows("%d.%m.%Y %H:%M", "%d.%m.%Y", money_of(".", "'")), "\t").encode(),
    "american.csv": lambda: text_of(
        rows("%m/%d/%Y %I:%M:%S %p", "%m/%d/%Y", money_of(".", ",", "${}"))
    ).encode(),
    "pipes.csv": lambda: text_of(rows(money=money_of(".", ",")), "|").encode(),
    "packed.csv.gz": lambda: gzip.compress(text_of(GERMAN, ";").encode("cp1252")),
    "lines.jsonl": lambda: lines(RECORDS),
    "mark.jsonl": lambda: lines(RECORDS, "utf-8-sig"),
    "array.json": lambda: json.dumps(RECORDS, indent=1).encode(),
    "commas.json": lambda: ",\n".join(map(json.dumps, RECORDS)).encode() + b",\n",
    "envelope.jsonl": lambda: lines(
        [
            {"payload": {"op": "c", "after": {**record, "booked": epoch(1_000)(payment["booked"])}}}
            for record, payment in zip(RECORDS, PAYMENTS, strict=True)
        ]
    ),
    "dotted.jsonl": lambda: lines([{f"a.{name}": value for name, value in record.items()} for record in RECORDS]),
    "typed.parquet": lambda: parquet(TABLE),
    "local.parquet": lambda: parquet(naive()),
    "int96.parquet": lambda: parquet(naive(), use_deprecated_int96_timestamps=True),
}  # fmt: skip
SHORT = ("cents_ms.csv", "german.csv", "american.csv", "envelope.jsonl", "local.parquet")


def condition_of(declared: str) -> tuple[str, str]:
    """Return the pattern's text for the fields that a draft declares."""
    names = {name.lower().rpartition("a_")[2]: name for name in re.findall(r"^  (\w+) ", declared, re.MULTILINE)}
    (event,) = re.findall(r"^event (\w+) \{", declared, re.MULTILINE)
    return event, f"pattern p by {names['card']} {{ seq a where a: {event} {CONDITION.format(**names)} }}"


def found_in(alerts: pa.Table) -> list[tuple[datetime, str]]:
    return sorted(zip(alerts["detected_at"].to_pylist(), alerts["key"].to_pylist(), strict=True))


@pytest.mark.parametrize("name", FORMS)
def test_python_reads_a_file_by_its_draft(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(FORMS[name]())
    draft = cep.describe(path, "payment")
    how: Any = draft.forms
    rules = cep.parse(f"{draft.text}\n{condition_of(draft.text)[1]}")
    assert found_in(rules.match(path, columns=draft.columns, strict=True, **how).table) == EXPECTED


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in SHORT else pytest.mark.slow) for n in FORMS])
def test_each_verb_reads_a_file_by_its_draft(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, rules = tmp_path / name, tmp_path / "rules"
    path.write_bytes(FORMS[name]())
    assert cli.main(["describe", str(path)]) == 0
    draft = capsys.readouterr().out
    first = draft.splitlines()[0]
    read = shlex.split(first.removeprefix("# read it with: ")) if first.startswith("# read") else []
    rules.mkdir()
    event, pattern = condition_of(draft)
    (rules / "p.cep").write_text(f"{draft}\n{pattern}\n")
    (rules / "e.cep").write_text(draft)
    (rules / "p.toml").write_text(RULE)
    out, sent = tmp_path / "o.jsonl", tmp_path / "sent"
    flags = ["--events", str(path), *read, "--rejected-max", "0"]
    words: dict[str, list[str]] = {
        "replay": ["--rules", str(rules), "--out", str(out)],
        "run": ["--rules", str(rules), "--alerts", str(sent), "--available-now"],
        "diff": [str(rules), str(rules)],
        "why-not": ["--rules", str(rules), "--rule", "p", "--key", "nobody"],
        "features": [f"n=count({event} over 1 h by {pattern.split()[3]})", "--declare", str(rules / "e.cep"), "--out",
                     str(tmp_path / "f.csv")],
    }  # fmt: skip
    codes = {verb: (cli.main([verb, *arguments, *flags]), capsys.readouterr().err) for verb, arguments in words.items()}
    assert {verb: result for verb, result in codes.items() if result[0]} == {}
    alerts = out.read_text().splitlines()
    matches = sorted((datetime.fromisoformat(a["detected_at"]), a["key"]) for a in map(json.loads, alerts))
    assert matches == EXPECTED
    assert sorted(line for file in sent.glob("*.jsonl") for line in file.read_text().splitlines()) == sorted(alerts)


FRAMES: dict[str, Callable[[], Any]] = {
    "Arrow": lambda: TABLE,
    "Arrow, nested": lambda: pa.table({"a": pa.Table.from_pylist(PAYMENTS).to_struct_array()}),
    "Arrow, dotted": lambda: TABLE.rename_columns([f"a.{name}" for name in TABLE.column_names]),
    "pandas": TABLE.to_pandas,
    "pandas, objects": lambda: pd.DataFrame(PAYMENTS, dtype=object),
    "pandas, digits": lambda: TABLE.to_pandas().assign(
        booked=[int(each["booked"].strftime("%Y%m%d%H%M%S")) for each in PAYMENTS]
    ),
    "pandas of CSV": lambda: pd.read_csv(io.StringIO(text_of(rows("%m/%d/%Y %I:%M %p", "%m/%d/%Y")))),
    "polars": lambda: pl.from_arrow(TABLE),
    "polars, lazy": lambda: pl.LazyFrame(
        pl.from_arrow(TABLE.set_column(4, "amount", TABLE["amount"].cast(pa.string())))
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", FRAMES)
def test_a_frame_is_read_by_its_draft(kind: str) -> None:
    frame = FRAMES[kind]()
    draft = cep.describe(frame, "payment")
    how: Any = draft.forms
    rules = cep.parse(f"{draft.text}\n{condition_of(draft.text)[1]}")
    alerts = rules.match(frame, columns=draft.columns, strict=True, **how)
    assert found_in(alerts.table) == EXPECTED


DAYS: dict[str, tuple[list[str], str]] = {
    "a day above twelve": (["03/01/2026 10:00", "28/02/2026 10:00"], "%d/%m/%Y %H:%M"),
    "a month first": (["03/01/2026 10:00", "02/28/2026 10:00"], "%m/%d/%Y %H:%M"),
    "twelve hours": (["03/01/2026 10:00 AM", "03/02/2026 10:00 PM"], "%m/%d/%Y %I:%M %p"),
    "nothing says which": (["03/01/2026 10:00", "03/02/2026 10:00"], "%d/%m/%Y %H:%M"),
}


@pytest.mark.parametrize("case", DAYS)
def test_the_day_or_the_month_first(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times, form = DAYS[case]
    path = tmp_path / "a.csv"
    pd.DataFrame({"id": ["a", "b"], "time": times}).to_csv(path, index=False)
    assert cep.describe(path).forms["time_form"] == form
    assert cli.main(["describe", str(path)]) == 0
    assert ("day and month may be the other way round" in capsys.readouterr().out) == ("which" in case)


CLOCKS: dict[str, tuple[str, str, str]] = {
    "ISO": ("%Y-%m-%d", "%H:%M:%S", "%Y-%m-%d %H:%M:%S"),
    "German": ("%d.%m.%Y", "%H:%M", "%d.%m.%Y %H:%M"),
    "American": ("%m/%d/%Y", "%I:%M %p", "%m/%d/%Y %I:%M %p"),
}


@pytest.mark.parametrize("case", CLOCKS)
def test_a_date_and_its_time_in_two_columns(case: str, tmp_path: Path) -> None:
    day, clock, form = CLOCKS[case]
    moments = [datetime(2026, 1, 20, 14, 5) + timedelta(days=n) for n in range(3)]  # noqa: DTZ001
    columns = {"Id": list("abc"), "Trans Date": [m.strftime(day) for m in moments]}
    path = tmp_path / "a.csv"
    pd.DataFrame({**columns, "Trans Time": [m.strftime(clock) for m in moments]}).to_csv(path, index=False)
    draft = cep.describe(path, "e")
    assert draft.forms["time_form"] == form
    rules, how = cep.parse(f"{draft.text} pattern p by Id {{ seq a where a: e }}"), dict[str, Any](draft.forms)
    alerts = rules.match(path, columns=draft.columns, strict=True, **how)
    assert [each for each, _ in found_in(alerts.table)] == [moment.replace(tzinfo=UTC) for moment in moments]


def test_words_of_the_language_are_symbols(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    frame = pd.DataFrame({"id": [str(n) for n in range(8)], "event_time": 1_772_359_200_000, "way": ["in", "out"] * 4})
    frame.to_csv(path, index=False)
    draft = cep.describe(path, "e")
    assert 'enum("in", out)' in draft.text
    rules = cep.parse(f'{draft.text} pattern p by way {{ seq a where a: e way == "in" }}')
    assert len(rules.match(path, strict=True)) == 4


def test_features_take_the_form_of_times_from_the_draft() -> None:
    frame = pd.DataFrame({"id": ["a", "b", "c"], "Time": [0, 1, 3], "card": ["c"] * 3})
    values = cep.features(frame, {"n": "count(e over 2 s by card)"})
    assert list(values["n"]) == [1, 2, 1]
