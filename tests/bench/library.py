"""The worth of the pattern library on labelled data, with its default parameters.

    python -m tests.bench.library [DAYS]

For each pattern that fits the data, and for all together, it prints precision of the alerts, recall of the labelled
events, F1, and alerts a day at a million events a day. Patterns without an alert are counted in the title.

**Payments** of the Fraud Detection Handbook, the first DAYS days (60 by default), as payments with reports a week
later, and a second time as card transactions. **Transfers** of a generator of laundering, as money that leaves one
account and comes into another. **Card payments** with chargebacks. **Logins** to servers with planted break-ins.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from cep.analysis.backtest import Figures
from cep.analysis.labels import labels_of_table
from cep.analysis.measure import Terms, measure
from cep.rulebook.deploy import deploy
from cep.sources.pieces import read_pieces
from tests.bench import detection
from tests.bench.peer_data import SHARED, ULB, show, stop
from tests.testing.library import rules_for

Row = tuple[str, ...]
_HEAD = ("pattern", "alerts", "precision", "recall", "f1", "alerts a day at a million events a day")
_CARD = """'transaction' as event_type, {id} as tx_id, event_time, {card}::varchar as card_id,
    {account}::varchar as account_id, round(amount, 2) as amount, 'approved' as status, '{channel}' as channel,
    '' as country, null::double as lat, null::double as lon, {device} as device_id,
    {merchant}::varchar as merchant_id"""
TRANSFERS = SHARED / "data" / "amlsim_typologies_12k_accounts.parquet"
_CHARGEBACKS = SHARED / "data" / "cloudwalk_card_transactions.parquet"


def _labels(event: str, kind: str) -> str:
    """Return the SQL of the label columns, in which the two data sets differ."""
    return f"{event} as event_id, true as label, {kind} as kind, null::varchar as episode, 0::bigint as reported_at"


def _asked(events: str, labels: str, **tables: pa.Table) -> tuple[pa.Table, pa.Table]:
    with duckdb.connect() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        return connection.sql(events).to_arrow_table(), connection.sql(labels).to_arrow_table()


def payments(days: int) -> tuple[pa.Table, pa.Table]:
    """Return (events, labels) of card payments and reports of frauds."""
    events, labels = detection.payments(days)
    with duckdb.connect() as connection:
        connection.register("labels", labels)
        columns = _labels("tx_id", "'kind ' || kind")
        return events, connection.sql(f"select {columns} from labels where kind > 0").to_arrow_table()


def transactions(days: int) -> tuple[pa.Table, pa.Table]:
    """Return (events, labels) of the same payments as card transactions: all approved, at a desk, in one country."""
    part = f"from '{ULB}' where event_time < timestamptz '2018-04-01 00:00:00+00' + interval {days} day"
    columns = _CARD.format(
        id="tx_id::varchar", card="customer_id", account="customer_id", channel="pos", device="null::varchar",
        merchant="terminal_id",
    )  # fmt: skip
    labels = _labels("tx_id::varchar", "'kind ' || fraud_scenario")
    return _asked(f"select {columns} {part}", f"select {labels} {part} and is_fraud")


def chargebacks() -> tuple[pa.Table, pa.Table]:
    """Return (events, labels) of card payments online, some of which were charged back."""
    columns = _CARD.format(
        id="tx_id::varchar", card="card_masked", account="user_id", channel="ecom", device="device_id::varchar",
        merchant="merchant_id",
    )  # fmt: skip
    labels = _labels("tx_id::varchar", "'chargeback'")
    return _asked(
        f"select {columns} from '{_CHARGEBACKS}'", f"select {labels} from '{_CHARGEBACKS}' where is_chargeback"
    )


def transfers(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return (events, labels) of transfers: each is money that leaves an account, and money that comes into another."""
    half = """select 'money' as event_type, '{way}' || tx_id as money_id, event_time, {own}::varchar as account_id,
        '{direction}' as direction, 'transfer' as means, {other}::varchar as counterparty,
        round(amount, 2) as sum_of_money, null::varchar as to_country from given"""
    halves = [
        half.format(way=way, own=account, other=other, direction=direction)
        for way, account, other, direction in (
            ("a", "orig_account_id", "dest_account_id", "outgoing"),
            ("b", "dest_account_id", "orig_account_id", "incoming"),
        )
    ]
    labels = [
        f"select {columns} from given where is_sar"
        for columns in (_labels(f"'{way}' || tx_id", "typology") for way in "ab")
    ]
    return _asked(" union all ".join(halves) + " order by event_time", " union all ".join(labels), given=table)


def logins() -> tuple[pa.Table, pa.Table]:
    """Return (events, labels) of logins to servers, with a break-in after the failures of each address."""
    events, _ = detection.logins()
    with duckdb.connect() as connection:
        connection.register("events", events)
        columns = _labels("login_id", "'break-in'")
        labels = f"select {columns} from events where login_id like 'planted-%'"
        table = connection.sql("select 'login' as event_type, * from events order by event_time").to_arrow_table()
        return table, connection.sql(labels).to_arrow_table()


def row(figures: Figures, millions: float) -> Row:
    """Return the row of a pattern."""
    precision, recall = figures.precision.value or 0.0, figures.event_recall.value or 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    each = (precision, recall, f1)
    rate = figures.alerts / millions
    return (figures.rule, f"{figures.alerts:,}", *(f"{value:.3f}" for value in each), f"{rate:,.1f}")


def run(name: str, data: tuple[pa.Table, pa.Table], event_types: set[str]) -> None:
    """Match, judge and print one set of data."""
    events, labels = data
    deployment = deploy(rules_for(event_types))
    assert deployment.set_aside == (), deployment.set_aside
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.parquet"
        pq.write_table(events, path)
        fraud_labels = labels_of_table(labels, deployment.schema, name)
        measured = measure(deployment, partial(read_pieces, path), fraud_labels, Terms(), Console(quiet=True))
    millions, rules = events.num_rows / 1e6, measured.figures.rules
    rows = [row(each, millions) for each in (*rules, measured.figures.together) if each.alerts]
    silent = sum(each.alerts == 0 for each in rules)
    show(f"{name}: {events.num_rows:,} events, {labels.num_rows:,} labelled; {silent} patterns are silent", _HEAD, rows)


def main() -> None:
    """Measure and print."""
    days = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    if not ULB.exists():
        stop(f"the labelled data is not at {ULB.parent}; nothing to measure on")
    run("payments", payments(days), {"payment", "fraud_report"})
    run("the same as transactions", transactions(days), {"transaction"})
    run("card payments with chargebacks", chargebacks(), {"transaction"})
    run("transfers", transfers(pq.read_table(TRANSFERS)), {"money"})
    run("logins", logins(), {"login"})


if __name__ == "__main__":
    main()
