"""A bad value in a field that a rule does not read changes nothing for the rule, in each form of records.

Tested by: tests/answers/test_answers.py
"""

import json
import tempfile
import warnings
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

import cep
from cep.base.limits import FIELD_BYTES_MAX
from tests.answers import Row

_RULES = """
event n {
  i id  event_time time  card string  amount decimal(2)
  k enum(web, shop)  device string  lat float  tries int  on bool  took duration
}
pattern blind by card { seq a -> b within 1 h  where a: n amount < 1.00  b: n amount > 600.00 }
pattern reads by card { seq a -> b within 1 h  where a: n amount < 1.00  b: n amount > 600.00 and k != shop }
pattern none by card { seq a -> !b within 1 h  where a: n amount < 1.00  b: n amount > 600.00 and k == web }
pattern keyed by device { seq a -> b within 1 h  where a: n amount < 1.00  b: n amount > 600.00 }
"""
_GOOD = {"card": "c", "amount": 0.5, "k": "web", "device": "d", "lat": 1.5, "tries": 1, "on": True, "took": 5}
_BAD = {"k": "pos", "device": "x" * (FIELD_BYTES_MAX + 1), "lat": "x", "tries": 2**70, "on": "maybe", "took": "soon"}


@cache
def _rules() -> cep.Rules:
    return cep.parse(_RULES)


def _rows(name: str = "", value: object = None, amount: object = 640) -> list[dict[str, Any]]:
    last = {
        "i": "2",
        "event_time": "2026-03-01T10:01:00Z",
        **_GOOD,
        "amount": amount,
        **({name: value} if name else {}),
    }
    after = {"i": "3", "event_time": "2026-03-01T12:00:00Z", **_GOOD, "card": "d", "amount": 2, "device": "e"}
    return [{"i": "1", "event_time": "2026-03-01T10:00:00Z", **_GOOD}, last, after]


def _json(name: str, value: object, amount: object, folder: Path) -> object:
    written = "BYTES" if isinstance(value, bytes) else value
    lines = [json.dumps(row).encode() for row in _rows(name, written, amount)]
    if isinstance(value, bytes):
        lines[1] = lines[1].replace(b"BYTES", value)
    (folder / "a.jsonl").write_bytes(b"\n".join(lines))
    return folder / "a.jsonl"


def _table(name: str, value: object, amount: object) -> pa.Table:
    texts = [{n: "true" if v is True else str(v) for n, v in row.items()} for row in _rows(name, value, amount)]
    return pa.Table.from_pylist(texts)


def _csv(name: str, value: object, amount: object, folder: Path) -> object:
    pa_csv.write_csv(_table(name, value, amount), folder / "a.csv")
    return folder / "a.csv"


def _parquet(name: str, value: object, amount: object, folder: Path) -> object:
    pq.write_table(_table(name, value, amount), folder / "a.parquet")
    return folder / "a.parquet"


def _frame(name: str, value: object, amount: object, _folder: Path) -> object:
    return _table(name, value, amount)


def _pandas(name: str, value: object, amount: object, _folder: Path) -> object:
    return pd.DataFrame(_table(name, value, amount).to_pylist())


def _polars(name: str, value: object, amount: object, _folder: Path) -> object:
    return pl.from_arrow(_table(name, value, amount))


def _found(form: Any, name: str = "", value: object = None, amount: object = 640) -> tuple[list[str], list[list[str]]]:
    """Return the rules that have an alert, and the `null_fields` of the dead letters."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", cep.RejectedRecordsWarning)
        alerts = _rules().match(form(name, value, amount, Path(folder)))
        letters = [letter.get("null_fields", []) for letter in alerts.set_aside]
    return sorted(set(alerts.table["rule_id"].to_pylist())), letters


def _forms(*forms: Any) -> Sequence[tuple[str, Any]]:
    return [(form.__name__.removeprefix("_"), form) for form in forms]


_ALL = _forms(_json, _csv, _parquet, _frame, _pandas, _polars)
_EXPECTED = {"k": ["blind", "keyed", "none"], "device": ["blind", "reads"]}
_OTHERS = ["blind", "keyed", "reads"]
ROWS = [
    Row("E3", "no bad value", (_OTHERS, []), partial(_found, _json)),
    *(
        Row("E3", f"bad {name} in {shown}", (_EXPECTED.get(name, _OTHERS), [[name]]),
            partial(_found, form, name, value))
        for name, value in _BAD.items() for shown, form in (_ALL if name == "k" else _ALL[:3])
    ),
    *(
        Row("E3", f"640.001 for a decimal(2) in {shown}", (["none"], [["amount"]]),
            partial(_found, form, amount="640.001"))
        for shown, form in _ALL
    ),
    *(
        Row("E3", f"{shown} for a string in JSON", (["blind", "reads"], [["device"]]),
            partial(_found, _json, "device", value))
        for shown, value in (("an object", {"a": 1}), ("an array", [1]), ("bad UTF-8", b"d\xff"))
    ),
    *(
        Row("E3", f"a bad {name} in JSON sets the record aside", (["none"], [[]]),
            partial(_found, _json, name, value))
        for name, value in (("i", {"a": 1}), ("event_time", "soon"), ("event_type", "other"))
    ),
]  # fmt: skip
