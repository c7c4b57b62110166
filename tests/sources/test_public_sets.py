"""Public data sets as they are: `cep describe` drafts a mapping, and a replay accepts it verbatim with right values.

The files look like the public sets and have their names, types and forms. All values are made up here.
"""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
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
