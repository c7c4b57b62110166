"""Numbers in thresholds: averages and spreads of equal payments, and arithmetic at its edges."""

import re
import warnings
from decimal import Decimal
from functools import cache, partial

import pyarrow as pa

import cep
from tests.answers import Row

_EVENT = "event tx { tx_id id  event_time time  card string  amount decimal(2)  km float  n int }\n"
_START_MS = 1_772_359_200_000
_FORMS = {
    "more than the average": "seq t where t: tx amount > avg(tx.amount over previous 30 d)",
    "less than the average": "seq t where t: tx amount < avg(tx.amount over previous 30 d)",
    "a float": "seq t where t: tx km > avg(tx.km over previous 30 d)",
    "an int near 2^60": "seq t where t: tx n != avg(tx.n over 30 d)",
    "three deviations": "seq t where t: tx amount - avg(tx.amount over 30 d) > 3 * stddev(tx.amount over 30 d)",
    "in a loop": "seq a{2,} -> b where a: tx  b: tx amount > avg(a.amount) or km > avg(a.km) or n > avg(a.n)",
    "deviations of a loop": "seq a{2,} -> b where a: tx  b: tx abs(km - avg(a.km)) > 3 * stddev(a.km)",
}


@cache
def alerts(form: str, cents: tuple[int, ...]) -> int:
    """Return the number of alerts of a pattern over payments of these amounts, one a second."""
    count = len(cents)
    events = pa.table(
        {
            "tx_id": [str(number) for number in range(count)],
            "event_time": pa.array([_START_MS + 1000 * number for number in range(count)], pa.timestamp("ms", "UTC")),
            "card": ["c"] * count,
            "amount": pa.array([Decimal(amount).scaleb(-2) for amount in cents], pa.decimal128(18, 2)),
            "km": [amount / 100 for amount in cents],
            "n": [2**60 + amount for amount in cents],
        }
    )
    pattern = f"{_EVENT}pattern p by card {{ {form} }}"
    return len(cep.parse(pattern).match(events))


def reason(condition: str, *amounts: str) -> str:
    """Return the values that `why_not` prints for the last of these payments, one a second."""
    times = pa.array([_START_MS + 1000 * number for number in range(len(amounts))], pa.timestamp("ms", "UTC"))
    names = [str(number) for number in range(len(amounts))]
    events = pa.table({"tx_id": names, "event_time": times, "card": ["c"] * len(names), "amount": list(amounts)})
    events = events.append_column("km", pa.array([0.0] * len(names))).append_column("n", pa.array([1] * len(names)))
    rules = cep.parse(f"{_EVENT}pattern p by card {{ seq a{{2}} -> b where a: tx  b: tx {condition} }}")
    return "".join(re.findall(r"\((amount = .*)\)$", str(rules.why_not("p", "c", events)), re.MULTILINE)[-1:])


def _equal(cents: int) -> list[Row]:
    return [
        Row("C", f"40 payments of {cents / 100:.2f}: {name}", 0, partial(alerts, form, (cents,) * 40))
        for name, form in _FORMS.items()
    ]


_TIMES = "seq t where t: tx amount {op} {factor} * avg(tx.amount over previous 30 d)"


def _factor(op: str, factor: str, cents: tuple[int, ...], expected: int) -> Row:
    form = _TIMES.format(op=op, factor=factor)
    return Row("C", f"amount {op} {factor} * avg over {cents}", expected, lambda: alerts(form, cents))


_MONEY = "event tx { tx_id id  event_time time  card string  amount decimal(2)  currency string }\n"


def minor(how: str, amount: object, currency: str) -> str:
    """Return the amount that `minor=` reads, or nothing if it is a bad value."""
    time = pa.array([_START_MS], pa.timestamp("ms", "UTC"))
    events = pa.table({"tx_id": ["1"], "event_time": time, "card": ["c"], "amount": [amount], "currency": [currency]})
    rules = cep.parse(f"{_MONEY}pattern p by card {{ seq t where t: tx amount > 0 emit amount = t.amount }}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cep.RejectedRecordsWarning)
        matches = rules.match(events, minor=[how])
    return " ".join(str(row["amount"]) for row in matches.measures("p").to_pylist())


def finest(amounts: tuple[str, ...]) -> str:
    """Return the sum of decimals of 18 digits after the point."""
    times = pa.array([_START_MS + number for number in range(len(amounts))], pa.timestamp("ms", "UTC"))
    names = [str(number) for number in range(len(amounts))]
    events = pa.table({"tx_id": names, "event_time": times, "card": ["c"] * len(amounts), "amount": list(amounts)})
    text = (
        "event tx { tx_id id  event_time time  card string  amount decimal(18) }\n"
        "pattern p by card { seq t where t: tx amount > avg(tx.amount over previous 1 d) "
        "emit total = sum(tx.amount over 1 d) }"
    )
    return " ".join(str(row["total"]) for row in cep.parse(text).match(events).measures("p").to_pylist())


_EDGES: dict[str, object] = {
    "greatest(t.n, t.none)": None,
    "least(t.n, t.none)": None,
    "t.n / t.zero": None,
    "t.n % t.zero": None,
    "t.most + 1": 2**63 - 1,
    "t.most * 2": 2**63 - 1,
    "-t.most - 2": -(2**63),
    "sum(t.none)": 0,
    "count(t.none)": 0,
    "distinct(t.none)": 0,
    "avg(t.none)": None,
    "min(t.none)": None,
    "stddev(t.none)": None,
    "stddev(t.n)": 0.0,
}


@cache
def edges() -> dict[str, object]:
    """Return the values at the edges that reference/language/expressions.md lists, for one event."""
    names = {f"v{number}": text for number, text in enumerate(_EDGES)}
    emits = ", ".join(f"{name} = {text}" for name, text in names.items())
    text = (
        "event tx { tx_id id  event_time time  card string  n int  zero int  most int  none int? }\n"
        f"pattern p by card {{ seq t where t: tx emit {emits} }}"
    )
    fields = {"n": [5], "zero": [0], "most": [2**63 - 1], "none": pa.array([None], pa.int64())}
    time = pa.array([_START_MS], pa.timestamp("ms", "UTC"))
    events = pa.table({"tx_id": ["1"], "event_time": time, "card": ["c"], **fields})
    (values,) = cep.parse(text).match(events).measures("p").to_pylist()
    return {text: values[name] for name, text in names.items()}


def _edge(text: str) -> object:
    return edges()[text]


ROWS = [
    *(Row("C", f"at the edge: {text}", value, partial(_edge, text)) for text, value in _EDGES.items()),
    *(row for cents in (10, 110, 4999) for row in _equal(cents)),
    Row("F", "1050 minor units of JPY", "1050.00", lambda: minor("amount:currency", 1050, "JPY")),
    Row("F", "1050 minor units of EUR, as text", "10.50", lambda: minor("amount:currency", "1050", "EUR")),
    Row("F", "1230 minor units of KWD", "1.23", lambda: minor("amount:currency", 1230, "KWD")),
    Row("F", "5 minor units of EURO", "", lambda: minor("amount:currency", 5, "EURO")),
    Row("F", "Debezium's BBo=", "10.50", lambda: minor("amount:base64", "BBo=", "EUR")),
    Row("F", "decimal(18)", "1.000000000000000003", lambda: finest(("0.000000000000000001", "1.000000000000000002"))),
    Row(
        "C",
        "why not: an equal average",
        "amount = 1.10, avg(a.amount) = 1.1",
        lambda: reason("amount > avg(a.amount)", "1.10", "1.10", "1.10"),
    ),
    Row(
        "C",
        "why not: an equal product",
        "amount = 0.12, 1.2 * avg(a.amount) = 0.12",
        lambda: reason("amount != 1.2 * avg(a.amount)", "0.10", "0.10", "0.12"),
    ),
    _factor(">=", "3", (110, 110, 110, 330), 1),
    _factor(">", "3", (110, 110, 110, 330), 0),
    _factor(">=", "1.2", (1000, 1000, 1000, 1200), 1),
    _factor(">", "1.2", (1000, 1000, 1000, 1200), 0),
    _factor(">=", "1.1", (7, 7, 7, 7, 7, 7), 0),
]
