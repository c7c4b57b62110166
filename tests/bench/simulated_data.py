"""A seed → simulated payments with frauds, or transfers of which some launder money.

Payments are written down from chapter 3 of the Fraud Detection Handbook (Le Borgne, Siblini, Lebichot, Bontempi 2022),
with the times of fraud reports. Customers and terminals lie in a square of 100 by 100. A customer pays at terminals
within 5, up to four times a day, around noon, with amounts around the customer's own mean. Kind 1: each payment above
220 is fraud. Kind 2: every day two terminals are compromised, and all their payments of 28 days are fraud. Kind 3:
every day three customers are compromised; a third of their payments in 14 days has five times the amount and is fraud.
A customer draws all days at once here, so a seed gives other payments than the Handbook's.

Transfers are after IBM's AMLSim. Counts, periods and amounts come from its parameter files; the margin is the one that
its transfers show. Ordinary accounts pay others once or at a regular pace; the number of payees follows a power law.
Money is laundered by accounts that also make ordinary payments, in 5 to 20 days, with 5 to 10 accounts and amounts of
100 to 200. The forms are *fan-in*, *fan-out*, a *cycle*, a path (*random*), *scatter-gather* over accounts that pass on
the money they got, and *gather-scatter* over one account that keeps a tenth. Times are any of a day, where AMLSim has
whole days.
Tested by: tests/bench/test_baselines.py
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

START_MS = int(datetime(2018, 4, 1, tzinfo=UTC).timestamp() * 1_000)
_DAY_S = 86_400
_RADIUS = 5.0
_LARGE = 220.0
_TERMINALS_A_DAY, _TERMINAL_DAYS = 2, 28
_CUSTOMERS_A_DAY, _CUSTOMER_DAYS, _TIMES = 3, 14, 5.0


def simulated(seed: int, customers: int, terminals: int, days: int) -> pa.Table:
    """Return the payments by time: tx_id, event_time, customer_id, terminal_id, amount, is_fraud, fraud_scenario."""
    draw = np.random.default_rng(seed)
    places, near = draw.uniform(0, 100, (customers, 2)), draw.uniform(0, 100, (terminals, 2))
    mean, rate = draw.uniform(5, 100, customers), draw.uniform(0, 4, customers)
    columns: list[list[NDArray[np.float64]]] = [[], [], [], []]
    for customer in range(customers):
        reachable = np.flatnonzero(((near - places[customer]) ** 2).sum(axis=1) < _RADIUS**2)
        counts = draw.poisson(rate[customer], days)
        seconds = draw.normal(_DAY_S / 2, 20_000, counts.sum())
        amount = draw.normal(mean[customer], mean[customer] / 2, len(seconds))
        amount = np.where(amount < 0, draw.uniform(0, mean[customer] * 2, len(seconds)), amount)
        inside = (seconds > 0) & (seconds < _DAY_S) & (len(reachable) > 0)
        day = np.repeat(np.arange(days), counts)[inside]
        terminal = draw.choice(reachable, len(day)) if len(day) else np.empty(0, np.int64)
        block = (
            np.full(len(day), customer),
            terminal,
            day * _DAY_S + np.floor(seconds[inside]),
            amount[inside].round(2),
        )
        for column, values in zip(columns, block, strict=True):
            column.append(values.astype(np.float64))
    order = np.argsort(np.concatenate(columns[2]), kind="stable")
    amount = np.concatenate(columns[3])[order]
    customer_id, terminal_id, second = (np.concatenate(column)[order].astype(np.int64) for column in columns[:3])
    scenario = _frauds(draw, (customer_id, terminal_id, second // _DAY_S), amount, (customers, terminals, days))
    return pa.table({
        "tx_id": np.arange(len(second)), "event_time": pa.array(START_MS + second * 1_000, pa.timestamp("ms", "UTC")),
        "customer_id": customer_id, "terminal_id": terminal_id, "amount": amount, "is_fraud": scenario > 0,
        "fraud_scenario": scenario,
    })  # fmt: skip


def _frauds(
    draw: np.random.Generator, columns: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    amount: NDArray[np.float64], sizes: tuple[int, int, int],
) -> NDArray[np.int64]:  # fmt: skip
    """Return the kind of fraud of each payment, or 0; change the amounts of kind 3."""
    customer_id, terminal_id, day = columns
    customers, terminals, days = sizes
    scenario = (amount > _LARGE).astype(np.int64)
    for first in range(days):
        compromised = draw.choice(terminals, _TERMINALS_A_DAY, replace=False)
        scenario[np.isin(terminal_id, compromised) & (day >= first) & (day < first + _TERMINAL_DAYS)] = 2
    for first in range(days):
        compromised = draw.choice(customers, _CUSTOMERS_A_DAY, replace=False)
        rows = np.flatnonzero(np.isin(customer_id, compromised) & (day >= first) & (day < first + _CUSTOMER_DAYS))
        chosen = draw.choice(rows, len(rows) // 3, replace=False)
        amount[chosen] = (amount[chosen] * _TIMES).round(2)
        scenario[chosen] = 3
    return scenario


TRANSFERS_START_MS = int(datetime(2017, 1, 1, tzinfo=UTC).timestamp() * 1_000)
TYPOLOGIES = ("fan_in", "fan_out", "cycle", "random", "scatter_gather", "gather_scatter")
_DAY_MS = 86_400_000
_PACES = (0, 7, 14, 30)  # days between payments, 0 for a single one
_MARGIN = 0.1
Transfer = tuple[float, int, int, float]  # day, from, to, amount


def simulated_transfers(seed: int, accounts: int, days: int, of_each: int) -> pa.Table:
    """Return transfers by time, in the columns of AMLSim's output; `of_each` typology are planted."""
    draw = np.random.default_rng(seed)
    rows = [(*each, -1, "") for each in _ordinary(draw, accounts, days)]
    for number in range(of_each * len(TYPOLOGIES)):
        kind = TYPOLOGIES[number % len(TYPOLOGIES)]
        rows += [(*each, number, kind) for each in _laundered(draw, kind, accounts, days)]
    rows.sort(key=lambda row: row[0])
    times = pa.array([TRANSFERS_START_MS + int(row[0] * _DAY_MS) for row in rows], pa.timestamp("ms", "UTC"))
    return pa.table({
        "tx_id": list(range(len(rows))), "event_time": times, "orig_account_id": [row[1] for row in rows],
        "dest_account_id": [row[2] for row in rows], "amount": [round(row[3], 2) for row in rows],
        "is_sar": [row[4] >= 0 for row in rows], "alert_id": [row[4] for row in rows],
        "typology": [row[5] for row in rows],
    })  # fmt: skip


def _ordinary(draw: np.random.Generator, accounts: int, days: int) -> Iterator[Transfer]:
    for account in range(accounts):
        for _ in range(min(20, int(draw.pareto(1.2)) + 1)):
            other = int(draw.integers(accounts))
            usual, pace = float(draw.uniform(50, 1_000)), _PACES[int(draw.integers(len(_PACES)))]
            first = float(draw.uniform(0, days if pace == 0 else pace))
            for day in np.arange(first, days, pace or days):
                if other != account:
                    yield float(day), account, other, usual * float(draw.uniform(0.9, 1.1))


def _laundered(draw: np.random.Generator, kind: str, accounts: int, days: int) -> list[Transfer]:
    """Return one instance. It draws new accounts; its transfers come in the order that the money needs."""
    count, period = int(draw.integers(5, 11)), float(draw.uniform(5, 20))
    who = [int(each) for each in draw.choice(accounts, count + 2, replace=False)]
    begin, amount = float(draw.uniform(0, days - period)), float(draw.uniform(100, 200))
    main, last, others = who[0], who[1], who[2:]
    times = begin + np.sort(draw.uniform(0, period, 2 * count))
    match kind:
        case "fan_in":
            pairs = [(other, main, float(draw.uniform(100, 200))) for other in others]
        case "fan_out":
            pairs = [(main, other, float(draw.uniform(100, 200))) for other in others]
        case "cycle" | "random":
            way = [main, *others, main] if kind == "cycle" else [main, *others]
            pairs = [(one, other, amount * (1 - _MARGIN) ** n) for n, (one, other) in enumerate(pairwise(way))]
        case "scatter_gather":
            sums = [float(draw.uniform(100, 200)) for _ in others]
            pairs = [(main, other, each) for other, each in zip(others, sums, strict=True)]
            pairs += [(other, last, each) for other, each in zip(others, sums, strict=True)]
        case _:
            payers, payees = others[: count // 2], others[count // 2 :]
            sums = [float(draw.uniform(100, 200)) for _ in payers]
            pairs = [(payer, main, each) for payer, each in zip(payers, sums, strict=True)]
            pairs += [(main, payee, sum(sums) * (1 - _MARGIN) / len(payees)) for payee in payees]
    return _at(times, pairs)


def _at(days: NDArray[np.float64], pairs: Sequence[tuple[int, int, float]]) -> list[Transfer]:
    """Give each transfer a day, in order and evenly over the period."""
    step = len(days) / len(pairs)
    return [(float(days[int(number * step)]), *pair) for number, pair in enumerate(pairs)]
