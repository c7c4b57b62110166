"""A seed → card payments with frauds, as the Fraud Detection Handbook simulates them, and the times of fraud reports.

Written down from chapter 3 of the Handbook (Le Borgne, Siblini, Lebichot, Bontempi 2022). Customers and terminals lie
in a square of 100 by 100. A customer pays at terminals within 5, up to four times a day, around noon, with amounts
around the customer's own mean. Kind 1: each payment above 220 is fraud. Kind 2: every day two terminals are
compromised, and all their payments of 28 days are fraud. Kind 3: every day three customers are compromised; a third of
their payments in 14 days has five times the amount and is fraud. A customer draws all days at once here, so a seed
gives other payments than the Handbook's.
"""

from __future__ import annotations

from datetime import UTC, datetime

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
