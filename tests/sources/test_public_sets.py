"""Public data sets as they are: `cep describe` drafts a mapping, and a replay accepts it verbatim with right values.

The files are look-alikes: names, types and forms are those of the public sets, all values are made up here.
"""

from __future__ import annotations

import io
import json
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from cep.api.describe import describe
from cep.cli import main as cli
from cep.columnar.decode import concat_decoded
from cep.columnar.mapping import mapping_of
from cep.columnar.times import times_us
from cep.lang.load import load_text
from cep.sources.pieces import read_pieces

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
    "creditcard": (ULB, seconds(0, 0, 1.5), None, {"Amount": "Amount", "Class": "Class"}),
    "paysim": (PAYSIM, seconds(3600, 3600, 744 * 3600), None, {"nameOrig": "nameOrig", "amount": "amount"}),
    "ieee": (IEEE, seconds(86400, 86401, 15811131), "TransactionID", {"P_emaildomain": "P_emaildomain"}),
    "cards": (CARDS, moments("2002-09-01T06:21", "2002-09-01T06:42", "2002-12-31T17:45"), None,
              {"Use_Chip": "Use Chip", "Merchant_Name": "Merchant Name"}),
    "aml": (AML, moments("2022-09-01T00:20", "2022-09-01T00:20", "2022-09-13T23:59"), None,
            {"Account": "Account", "Account_2": "Account.1", "From_Bank": "From Bank"}),
    "sparkov": (SPARKOV, moments("2019-01-01T00:00:18", "2019-01-01T00:00:44", "2020-06-21T12:13:37"), "trans_num",
                {"merchant": "merchant", "amt": "amt", "cc_num": "cc_num"}),
}  # fmt: skip
# Two rows that are equal, so that the number of the row is the only id.
for _name in ("creditcard", "paysim", "cards", "aml"):
    _text, _times, _id, _fields = SETS[_name]
    SETS[_name] = (_text + _text.splitlines(keepends=True)[-1], [*_times, _times[-1]], _id, _fields)
RULE = """id = "p"
pattern = "p"
file = "p.cep"
version = 1
status = "live"
severity = "low"
owner = "me"
message = "m"
"""


@pytest.mark.parametrize("name", SETS)
def test_the_draft_is_accepted_verbatim(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, times, id_, _ = SETS[name]
    path = tmp_path / f"{name}.csv"
    path.write_text(text)
    assert cli.main(["describe", str(path)]) == 0
    said = capsys.readouterr().out
    flags = shlex.split(said.splitlines()[0].removeprefix("# read it with: "))
    rules = tmp_path / "rules"
    rules.mkdir()
    key = id_ or "row_id"
    (rules / "p.cep").write_text(f"{said}pattern p by {key} {{ seq a where a: {name} event_time is not null }}\n")
    (rules / "p.toml").write_text(RULE)
    out = tmp_path / "alerts.jsonl"
    asked = ["replay", "--rules", str(rules), "--events", str(path), "--out", str(out)]
    assert cli.main([*asked, *flags]) == 0
    alerts = [json.loads(line) for line in out.read_text().splitlines()]
    found = sorted((datetime.fromisoformat(alert["detected_at"]), alert["key"]) for alert in alerts)
    frame = pd.read_csv(io.StringIO(text), dtype=str)
    ids = list(frame[id_]) if id_ else [f"{name}.csv:{row}" for row in (1, 2, 3, 4)]
    assert found == sorted(zip(times, ids, strict=True))


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
        if isinstance(values[-1], int | float):
            assert values == [float(text) for text in expected]
        else:
            assert [value or "" for value in values] == expected
    if name == "cards":
        assert decoded.columns["Amount"].to_pylist() == [134.09, -38.48, 1120.34, 1120.34]
