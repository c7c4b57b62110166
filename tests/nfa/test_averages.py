"""Comparisons with averages, sums and extremes, nulls included, agree with exact fractions and with DuckDB.

DuckDB rounds averages, so it compares the amount times the count with the sum, in integers of 128 bits.
"""

from decimal import Decimal
from random import Random

import duckdb
import pyarrow as pa
import pytest

import cep
from tests.nfa.averages import wrong_answers
from tests.seeds import seeds

_OPERATORS = ("<", "<=", ">", ">=", "==", "!=")
_START_MS = 1_772_359_200_000
# Text in a pattern → the same in SQL, over units of the column.
_FORMS = {
    "t.a {op} avg(tx.a over {size} s)": "units::hugeint * counted {op} total",
    "t.a {op} 3 * avg(tx.a over {size} s)": "units::hugeint * counted {op} 3 * total",
    "t.a * 2 {op} avg(tx.a over {size} s)": "2 * units::hugeint * counted {op} total",
    "t.a {op} sum(tx.a over {size} s)": "units {op} total",
    "t.a {op} min(tx.a over {size} s)": "units {op} least",
    "max(tx.a over {size} s) {op} avg(tx.a over {size} s)": "most::hugeint * counted {op} total",
    "count(tx over {size} s) {op} 4": "events {op} 4",
}


@pytest.mark.parametrize("seed", seeds(60, 4))
def test_comparisons_are_those_of_sql(seed: int) -> None:
    random = Random(seed)
    scale, size, count = random.randint(0, 18), random.randint(2, 9), 40
    top = 10 ** random.randint(1, 17)
    few = [random.randint(-top, top) for _ in range(3)] + [None] * random.randint(0, 1)
    units = [random.choice(few) for _ in range(count)]
    questions = [(form, random.choice(_OPERATORS)) for form in _FORMS]
    emits = ", ".join(f"c{number} = {form.format(op=op, size=size)}" for number, (form, op) in enumerate(questions))
    type_ = f"decimal({scale})?" if scale else "int?"
    text = (
        f"event tx {{ tx_id id  event_time time  card string  a {type_} }}\n"
        f"pattern p by card {{ seq t where t: tx emit row = t.tx_id, {emits} }}"
    )
    amounts = [None if value is None else Decimal(value).scaleb(-scale) for value in units]
    events = pa.table(
        {
            "tx_id": [f"{number:03}" for number in range(count)],
            "event_time": pa.array([_START_MS + 1_000 * number for number in range(count)], pa.timestamp("ms", "UTC")),
            "card": ["c"] * count,
            "a": pa.array(amounts, pa.decimal128(18, scale)) if scale else pa.array(units, pa.int64()),
        }
    )
    alerts = sorted(cep.parse(text).match(events).measures("p").to_pylist(), key=lambda alert: alert["row"])
    sql = ", ".join(_FORMS[form].format(op=op) for form, op in questions)
    rows = pa.table({"n": range(count), "units": pa.array(units, pa.int64())})  # noqa: F841 DuckDB finds it by its name
    window = f"over (order by n rows between {size - 1} preceding and current row)"
    relation = duckdb.sql(
        f"select {sql} from (select n, units, count(units) {window} as counted, count(*) {window} as events, "
        f"coalesce(sum(units::hugeint) {window}, 0) as total, min(units) {window} as least, "
        f"max(units) {window} as most from rows) order by n"
    )
    assert relation is not None, "a query has rows"
    for alert, answers in zip(alerts, relation.fetchall(), strict=True):
        assert tuple(alert[f"c{number}"] for number in range(len(questions))) == answers, (alert["row"], text)


@pytest.mark.parametrize("seed", seeds(60, 3))
def test_comparisons_are_those_of_fractions(seed: int) -> None:
    answers_count, wrong = wrong_answers(1_000 + seed, 12)
    assert answers_count > 0
    assert not wrong, "\n".join(wrong[:5])
