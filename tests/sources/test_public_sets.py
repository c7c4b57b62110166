"""Public data sets and payments in many forms of files: the draft of `cep describe` is accepted, with right values."""

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
from cep.api.describe import describe
from cep.cli import main as cli
from cep.columnar.decode import concat_decoded
from cep.columnar.mapping import mapping_of
from cep.columnar.times import times_us
from cep.lang.load import load_text
from cep.sources.pieces import read_pieces
from tests.cli.test_main import RULE

BASE = datetime(2000, 1, 1, tzinfo=UTC)
ULB = '"Time","V1","V2","Amount","Class"\n0,-1.35,0.07,149.62,"0"\n0,1.19,-0.26,2.69,"0"\n1.5,-1.3,1.77,378.66,"1"\n'
PAYSIM = (
    "step,type,amount,nameOrig,oldbalanceOrg,nameDest,isFraud\n1,PAYMENT,9839.64,C1231006815,170136.0,M1979787155,0\n"
    "1,TRANSFER,181.0,C1305486145,181.0,C553264065,1\n744,CASH_OUT,181.0,C1231006815,181.0,C38997010,1\n"
)
IEEE = (
    "TransactionID,isFraud,TransactionDT,TransactionAmt,ProductCD,card1,P_emaildomain\n2987000,0,86400,68.5,W,13926,\n"
    "2987001,0,86401,29.0,W,2755,gmail.com\n2987002,1,15811131,59.0,C,13926,outlook.com\n"
)
CARDS = (
    "User,Card,Year,Month,Day,Time,Amount,Use Chip,Merchant Name,Merchant City,Zip,MCC,Errors?,Is Fraud?\n"
    "0,0,2002,9,1,06:21,$134.09,Swipe Transaction,3527213246127876953,La Verne,91750.0,5300,,No\n"
    "0,0,2002,9,1,06:42,$-38.48,Swipe Transaction,-727612092139916043,Monterey Park,91754.0,5411,,No\n"
    '0,1,2002,12,31,17:45,"$1,120.34",Online Transaction,-727612092139916043,Monterey Park,,5411,Bad PIN,Yes\n'
)
AML = (
    "Timestamp,From Bank,Account,To Bank,Account,Amount Received,Receiving Currency,Amount Paid,Payment Format,"
    "Is Laundering\n2022/09/01 00:20,010,8000EBD30,010,8000EBD31,3697.34,US Dollar,3697.34,Reinvestment,0\n"
    "2022/09/01 00:20,03208,8000F4580,001,8000F5340,0.01,US Dollar,0.01,Cheque,0\n"
    "2022/09/13 23:59,03208,8000F4580,010,8000EBD30,14675.57,Euro,14675.57,ACH,1\n"
)
SPARKOV = (
    ",trans_date_trans_time,cc_num,merchant,category,amt,first,city_pop,dob,trans_num,unix_time,is_fraud\n"
    '0,2019-01-01 00:00:18,2703186189652095,"f_Rippin, Kub",misc_net,4.97,Jen,3495,1988-03-09,0b242abb,1325376018,0\n'
    "1,2019-01-01 00:00:44,630423337322,f_Heller,grocery_pos,107.23,Steph,149,1978-06-21,1f76529f,1325376044,0\n"
    "2,2020-06-21 12:13:37,630423337322,f_Lind,gas_transport,220.11,Steph,149,1978-06-21,a1a22d70,1371816817,1\n"
)


def seconds(*numbers: float) -> list[datetime]:
    return [BASE + timedelta(seconds=number) for number in numbers]


def moments(*texts: str) -> list[datetime]:
    return [datetime.fromisoformat(f"{text}+00:00") for text in texts]


SETS = {
    "creditcard": (ULB, seconds(0, 0, 1.5), None, {"Amount": "Amount", "V1": "V1"}),
    "paysim": (PAYSIM, seconds(3600, 3600, 744 * 3600), None, {"nameOrig": "nameOrig", "amount": "amount"}),
    "ieee": (IEEE, seconds(86400, 86401, 15811131), "TransactionID", {"P_emaildomain": "P_emaildomain"}),
    "cards": (CARDS, moments("2002-09-01T06:21", "2002-09-01T06:42", "2002-12-31T17:45"), None,
              {"Use_Chip": "Use Chip", "Merchant_Name": "Merchant Name"}),
    "aml": (AML, moments("2022-09-01T00:20", "2022-09-01T00:20", "2022-09-13T23:59"), None,
            {"Account": "Account", "Account_2": "Account.1", "From_Bank": "From Bank"}),
    "sparkov": (SPARKOV, moments("2019-01-01T00:00:18", "2019-01-01T00:00:44", "2020-06-21T12:13:37"), "trans_num",
                {"merchant": "merchant", "amt": "amt", "cc_num": "cc_num"}),
}  # fmt: skip
# Two equal rows, so that the number of the row is the only id.
for _name in ("creditcard", "paysim", "cards", "aml"):
    _text, _times, _id, _fields = SETS[_name]
    SETS[_name] = (_text + _text.splitlines(keepends=True)[-1], [*_times, _times[-1]], _id, _fields)


@pytest.mark.parametrize("name", SETS)
def test_the_draft_is_accepted_verbatim(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, times, id_, _ = SETS[name]
    path = tmp_path / f"{name}.csv"
    path.write_text(text)
    assert cli.main(["describe", str(path)]) == 0
    draft = capsys.readouterr().out
    flags = shlex.split(draft.splitlines()[0].removeprefix("# read it with: "))
    rules = tmp_path / "rules"
    rules.mkdir()
    key = id_ or "row_id"
    (rules / "p.cep").write_text(f"{draft}pattern p by {key} {{ seq a where a: {name} event_time is not null }}\n")
    (rules / "p.toml").write_text(RULE)
    out = tmp_path / "alerts.jsonl"
    command = ["replay", "--rules", str(rules), "--events", str(path), "--out", str(out)]
    assert cli.main([*command, *flags]) == 0
    alerts = [json.loads(line) for line in out.read_text().splitlines()]
    alert_keys = sorted((datetime.fromisoformat(alert["detected_at"]), alert["key"]) for alert in alerts)
    frame = pd.read_csv(io.StringIO(text), dtype=str)
    ids = list(frame[id_]) if id_ else [f"{name}.csv:{row}" for row in (1, 2, 3, 4)]
    assert alert_keys == sorted(zip(times, ids, strict=True))


LABELS = {
    "creditcard": "Class", "paysim": "isFraud", "ieee": "isFraud", "cards": "Is Fraud?", "aml": "Is Laundering",
    "sparkov": "is_fraud",
}  # fmt: skip


FIRST, ROWS = datetime(2022, 9, 1, tzinfo=UTC), 960
# The lines of larger sets by the number of the row; the field of the amount, and the key of a customer.
Line = Callable[[int, datetime, float, int], str]
LINES: dict[str, tuple[Line, str, str]] = {
    "creditcard": (
        lambda n, time, amount, fraud: f'{(time - FIRST).total_seconds():g},{n % 7},0.5,{amount},"{fraud}"',
        "Amount",
        "",
    ),
    "paysim": (
        lambda n, _, amount, fraud: f"{n + 1},PAYMENT,{amount},C{n % 90},170136.0,M{n % 50},{fraud}",
        "amount",
        "nameOrig",
    ),
    "ieee": (
        lambda n, _, amount, fraud: f"{2987000 + n},{fraud},{86400 + 3600 * n},{amount},W,{n % 90},gmail.com",
        "TransactionAmt",
        "card1",
    ),
    "cards": (
        lambda n, t, amount, fraud: (
            f"{n % 90},0,{t:%Y},{t.month},{t.day},{t:%H:%M},${amount},Swipe Transaction,{n % 50},La Verne,91750.0,"
            f"5300,,{'Yes' if fraud else 'No'}"
        ),
        "Amount",
        "User",
    ),
    "aml": (
        lambda n, time, amount, fraud: (
            f"{time:%Y/%m/%d %H:%M},0{n % 9},8000A{n % 90},010,8000B{n % 50},{amount},US Dollar,{amount},Cheque,{fraud}"
        ),
        "Amount_Received",
        "Account",
    ),
    "sparkov": (
        lambda n, time, amount, fraud: (
            f"{n},{time:%Y-%m-%d %H:%M:%S},{n % 90},f_Lind,misc_net,{amount},Jen,3495,1988-03-09,t{n},{n},{fraud}"
        ),
        "amt",
        "cc_num",
    ),
}


def larger(name: str) -> str:
    """Return a set of forty days, in which each twentieth payment is a fraud and large."""
    line = LINES[name][0]
    rows = [
        line(n, FIRST + timedelta(hours=n), 900.5 if n % 20 == 3 else 10.25 + n % 40, int(n % 20 == 3))
        for n in range(ROWS)
    ]
    return "\n".join([SETS[name][0].splitlines()[0], *rows]) + "\n"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("aml", "ieee") else pytest.mark.slow) for name in SETS]
)
def test_the_other_verbs_accept_it_too(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, id_ = larger(name), SETS[name][2]
    _, amount, customer = LINES[name]
    path = tmp_path / f"{name}.csv"
    path.write_text(text)
    draft = describe(str(path), name)
    assert cli.main(["describe", str(path)]) == 0
    read = ["--events", str(path)]
    read += shlex.split(capsys.readouterr().out.splitlines()[0].removeprefix("# read it with: "))
    rules, key = tmp_path / "rules", id_ or "row_id"
    rules.mkdir()
    pattern = f"pattern p(least: decimal = 1.00) by {key} {{ seq a where a: {name} {amount} > least }}"
    (rules / "p.cep").write_text(f"{draft.text}\n{pattern}\n")
    (rules / "e.cep").write_text(draft.text)
    (rules / "p.toml").write_text(RULE)
    alerts = str(tmp_path / "alerts.jsonl")
    labelled = ["--rules", str(rules), *read, "--labels", LABELS[name]]
    first = pd.read_csv(io.StringIO(text), dtype=str)[id_][0] if id_ else f"{name}.csv:1"
    count, features = f"n=count({name} over 1 h by {key})", ["--declare", str(rules / "e.cep"), "--out"]
    words_by_verb = {
        "replay": ["--rules", str(rules), *read, "--out", alerts],
        "backtest": [*labelled, "--json", str(tmp_path / "f.json")],
        "report": [*labelled, "--out", str(tmp_path / "r.html"), "--thresholds", "none"],
        "rules prune": labelled,
        "rules suggest": [*labelled, "--key", customer or key, "--max-steps", "1"],
        "rules tune": ["p", *labelled, "--try", "least=1,100"],
        "diff": [str(rules), str(rules), *read, "--label", LABELS[name]],
        "features": [count, *read, *features, str(tmp_path / "o.csv")],
        "why-not": ["--rules", str(rules), "--rule", "p", "--key", first, *read],
    }
    codes: dict[str, tuple[int, str]] = {}
    for verb, words in words_by_verb.items():
        code = cli.main([*verb.split(), *words])
        printed = capsys.readouterr()
        # There is an alert, so that `why-not` ends with 1. A set without customers lacks a key for sequences.
        expected = {"why-not": 1, "rules suggest": 0 if customer else 2}.get(verb, 0)
        if code != expected or "rejected" in printed.err:
            codes[verb] = (code, printed.err)
        if verb == "rules tune":
            assert "+least = 100" in printed.out
    assert codes == {}
    figures = json.loads((tmp_path / "f.json").read_text())
    assert figures["together"]["alerts"] == ROWS
    (alert_id, *_) = [json.loads(line)["alert_id"] for line in Path(alerts).read_text().splitlines()]
    assert cli.main(["why", "--rules", str(rules), "--alerts", alerts, "--alert", alert_id, *read]) == 0
    assert len((tmp_path / "o.csv").read_text().splitlines()) == ROWS + 1


@pytest.mark.parametrize("name", SETS)
def test_the_values_are_those_of_pandas(name: str, tmp_path: Path) -> None:
    text, times, _, fields = SETS[name]
    path = tmp_path / f"{name}.csv"
    path.write_text(text)
    draft = describe(str(path), name)
    schema = load_text(draft.text).schema
    columns = [f"{field}={column}" for field, column in draft.columns.items()]
    time = type(mapping_of().time)(
        draft.forms.get("time_unit", ""), draft.forms.get("time_form", ""), draft.forms.get("tz", ""),
        base=draft.forms.get("time_base", ""),
    )  # fmt: skip
    mapping = mapping_of(columns, time=time)
    decoded = concat_decoded(schema, [piece.decode() for piece in read_pieces(path, schema, mapping).pieces])
    assert decoded.poison == ()
    assert decoded.time_ms.tolist() == [value // 1_000 for value in times_us(pa.array(times)).to_pylist()]
    frame = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    types = schema.columns()
    for field, column in fields.items():
        values = decoded.columns[field].to_pylist()
        expected = list(frame[column])
        if types[field].symbols:
            values = [types[field].symbols[value] for value in values]
        if types[field].is_float:
            assert values == [float(text) for text in expected]
        elif types[field].scale:
            assert values == [Decimal(re.sub(r"[$,]", "", text)).scaleb(types[field].scale) for text in expected]
        elif isinstance(values[-1], int):
            assert values == [int(text) for text in expected]
        else:
            assert [value or "" for value in values] == expected
    if name == "cards":
        assert decoded.columns["Amount"].to_pylist() == [13409, -3848, 112034, 112034]


@pytest.mark.parametrize("kind", ["pandas", "polars", "Arrow"])
@pytest.mark.parametrize("name", SETS)
def test_a_frame_is_read_by_its_draft_as_the_file_is(name: str, kind: str, tmp_path: Path) -> None:
    text, times, id_, _ = SETS[name]
    (tmp_path / f"{name}.csv").write_text(text)
    frame: Any = pd.read_csv(io.StringIO(text), dtype=dict.fromkeys(("From Bank", "To Bank"), str))
    frame = frame if kind == "pandas" else pl.from_pandas(frame) if kind == "polars" else pa.Table.from_pandas(frame)
    draft = describe(frame, name)
    key = id_ or "row_id"
    rules = cep.parse(f"{draft.text}\npattern p by {key} {{ seq a where a: {name} event_time is not null }}\n")
    forms: Any = draft.forms
    alerts = rules.match(frame, columns=draft.columns, strict=True, **forms).table
    alert_keys = list(zip(alerts["detected_at"].to_pylist(), alerts["key"].to_pylist(), strict=True))
    ids = list(pd.read_csv(io.StringIO(text), dtype=str)[id_]) if id_ else ["1", "2", "3", "4"]
    assert sorted(alert_keys) == sorted(zip(times, ids, strict=True))


def test_the_rows_of_a_query_have_no_number() -> None:
    frame = pl.DataFrame({"event_time": [BASE, BASE], "c": ["x", "x"]}).lazy()
    rules = cep.parse('event e { i id  event_time time  c string } pattern p by c { seq a where a: e c == "x" }')
    with pytest.raises(cep.CepError, match="rows of a query have no order; collect it first"):
        rules.match(frame, columns={"i": "#row"})
    assert len(rules.match(frame.collect(), columns={"i": "#row"})) == 2


OPENED = 'event a { i id  event_time time  opened time?  c string } pattern p by c { seq x where x: a c == "c" '
BOOKED = datetime(2026, 3, 1, 9, tzinfo=UTC)
# Two times of a record in their written form, and the options for the form of the first one.
TWO_FORMS: dict[str, tuple[object, str, dict[str, str]]] = {
    "a form": ("01.03.2026 10:00", "2026-02-20T09:00:00+01:00", {"time_form": "%d.%m.%Y %H:%M", "tz": "Europe/Berlin"}),
    "a zone": ("2026-03-01 10:00:00", "2026-02-20T08:00:00Z", {"tz": "Europe/Berlin"}),
    "two offsets": ("2026-03-01T18:00:00+09:00", "2026-02-20 08:00:00 UTC", {}),
    "a unit": (1_772_355_600, "2026-02-20T08:00:00Z", {"time_unit": "s"}),
    "a base": (205.0, "2026-02-20T08:00:00Z", {"time_unit": "h", "time_base": "2026-02-20T20:00:00Z"}),
}


@pytest.mark.parametrize("form", ["jsonl", "csv", "pandas", "Arrow"])
@pytest.mark.parametrize("case", TWO_FORMS)
def test_times_of_one_record_in_two_forms(case: str, form: str, tmp_path: Path) -> None:
    time, opened, how = TWO_FORMS[case]
    row = {"i": "1", "event_time": time, "opened": opened, "c": "c"}
    events: Any = pa.Table.from_pylist([row])
    if form == "pandas":
        events = pd.DataFrame([row])
    elif form != "Arrow":
        path = tmp_path / f"e.{form}"
        path.write_text(json.dumps(row) + "\n" if form == "jsonl" else pd.DataFrame([row]).to_csv(index=False))
        events = path
    forms: Any = how
    alerts = cep.parse(f"{OPENED} emit opened = x.opened }}").match(events, strict=True, **forms)
    assert alerts.table["detected_at"].to_pylist() == [BOOKED]
    values: Any = alerts.measures("p")["opened"]
    assert pa.array(list(values)).to_pylist() == [datetime(2026, 2, 20, 8, tzinfo=UTC)]


FIRST_BOOKED = datetime(2026, 3, 1, 10, tzinfo=UTC)
HEAD = ["Ref ID", "Booked At", "Opened", "Card", "Amount", "Status", "Name"]
PAYMENTS: list[dict[str, Any]] = [
    {
        "id": f"p{n:03}", "booked": FIRST_BOOKED + timedelta(minutes=77 * n), "card": f"c{n % 3}",
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
