"""The bench of analysts: tuning keeps what is not shown to be worse, and rule files change in every valid form.

Tested by: tests/answers/test_answers.py
"""

import tomllib
import warnings

import numpy as np
import pyarrow as pa

import cep
from cep.analysis.backtest import distinct_days
from cep.base.toml import with_value
from tests.answers import Row

_DAY_MS = 86_400_000
_RULES = """
event pay { i id  event_time time  card string  amount decimal(2) }
pattern large(limit: decimal = 100.00) by card { seq hit where hit: pay amount > limit }
"""
_SHAPES = {
    "a note after the table": "[params]  # note\nlimit = 1\n",
    "blanks in the table's brackets": "[ params ]\nlimit = 1\n",
    "a quoted table": '["params"]\nlimit = 1\n',
    "dotted keys": "params.limit = 1\n",
    "an inline table": "params = { limit = 1, other = 2 }\n",
    "a table in a text": 'note = """\n[params]\nlimit = 1\n"""\n[params]\nlimit = 1\n',
    "no table": 'id = "a"\n',
}


def _frame(fraud_days: range) -> pa.Table:
    """Ten payments of 90 or 500 a day on 20 days; the large ones of these days are fraud."""
    rows = [(day, number) for day in range(20) for number in range(10)]
    return pa.table({
        "i": [f"t{day}-{number}" for day, number in rows],
        "event_time": pa.array([day * _DAY_MS + number * _DAY_MS // 10 for day, number in rows]).cast(pa.int64())
        .cast(pa.timestamp("ms")).cast(pa.timestamp("ms", "UTC")),
        "card": [f"c{number}" for _, number in rows],
        "amount": [500.0 if number < 3 else 90.0 for _, number in rows],
        "is_fraud": [number < 3 and day in fraud_days for day, number in rows],
    })  # fmt: skip


def _tuned(tries: str, fraud_days: range = range(20)) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the amount gives the label away
            best = cep.parse(_RULES).tune(
                "large", _frame(fraud_days), "is_fraud", tries={"limit": tries}, gap="1 h", episodes="0s"
            )
    except cep.CepError as error:
        return str(error).partition(":")[0]
    return best.outcome, best.proposed["limit"]


def _changed(text: str) -> object:
    return tomllib.loads(with_value(text, ("params", "limit"), 7))["params"]["limit"]


ROWS = [
    Row("bench", "a tie keeps the present setting", ("the present setting is the best", 100.0),
        lambda: _tuned("91,100,499")),
    Row("bench", "a worse setting is not proposed", ("the present setting is the best", 100.0),
        lambda: _tuned("10,100,900")),
    Row("bench", "a part without fraud is refused", "no fraud was known in validation when it ended",
        lambda: _tuned("91,100", range(10))),
    Row("bench", "an old event does not lengthen the days", 2,
        lambda: distinct_days(np.array([-296 * _DAY_MS, 5, 6], np.int64))),
    *(Row("bench", f"a parameter changes: {name}", 7, lambda text=text: _changed(text))  # type: ignore[misc]
      for name, text in _SHAPES.items()),
]  # fmt: skip
