"""Card precision at 100 a day on the Fraud Detection Handbook's payments, by the book's own protocol.

    python -m tests.bench.handbook [--folds N] [--seeds N]

The protocol of chapters 3 and 4: train on 7 days from 2018-07-25, let 7 days pass in which frauds are not yet reported,
test on the next 7. Cards with a fraud that is known by then are left out. Each day the 100 cards with the highest score
of a payment are examined; the ones with a fraud are right, and are left out afterwards. The figure is the mean of the
days. The book has .287 for a random forest and .273 for XGBoost. A further fold does the same a week earlier. Figures
of a forest are the mean over the given number of seeds, with the lowest and the highest card precision of a seed.

**book**: the book's 15 columns, computed by `cep.features`. **ours**: the same columns, further columns from histories
of cep, and whether `leaked_customer` and `compromised_terminal` of `patterns/` alert. Both use the same models.
"""

import argparse
from collections.abc import Mapping
from datetime import date

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.metrics import average_precision_score, roc_auc_score

import cep
from tests.bench import baselines
from tests.bench.labelled import found, rule
from tests.bench.peer_data import ULB, show, stop
from tests.testing.library import PATTERNS

FIRST = date(2018, 4, 1)
TRAINED_FROM = date(2018, 7, 25)
WEEK = 7  # days of training, of delay, and of test
PAST_DAYS = 68  # days before the training that histories may see
LOOKED_AT = 100
WINDOWS = (1, 7, 30)
_ASKED = {
    **{f"c_n{w}": f"count(payment over {w} d by customer_id)" for w in WINDOWS},
    **{f"c_avg{w}": f"avg(payment.amount over {w} d by customer_id)" for w in WINDOWS},
    **{f"t_n{w}": f"count(payment over {WEEK + w} d by terminal_id)" for w in WINDOWS},
    "t_n": f"count(payment over {WEEK} d by terminal_id)",
    **{f"t_r{w}": f"count(fraud_report over {w} d by terminal_id)" for w in (1, 2, 3, 4, 7, 14, 21, 28, 30)},
    "p_avg30": "avg(payment.amount over previous 30 d by customer_id)",
    "p_avg60": "avg(payment.amount over previous 60 d by customer_id)",
    "p_std60": "stddev(payment.amount over previous 60 d by customer_id)",
    "p_med60": "median(payment.amount over previous 60 d by customer_id)",
    "p_max60": "max(payment.amount over previous 60 d by customer_id)",
    "p_n30": "count(payment over previous 30 d by customer_id)",
}
# The book's terminal windows end before the delay: subtract the n payments of the last 7 days from the n of 7 + w days.
_BOOK = [
    "amount", "(dayofweek(event_time) in (0, 6))::int", "(hour(event_time) <= 6)::int",
    *(f"c_n{w}" for w in WINDOWS), *(f"c_avg{w}" for w in WINDOWS), *(f"t_n{w} - t_n" for w in WINDOWS),
    *(f"coalesce(t_r{w} / nullif(t_n{w} - t_n, 0), 0)" for w in WINDOWS),
]  # fmt: skip
_OURS = [
    *_BOOK, "amount / p_avg30", "amount / p_avg60", "amount / p_med60", "amount / p_max60",
    "(amount - p_avg60) / (p_std60 + 1)", "p_n30", *(f"t_r{w}" for w in (2, 3, 4, 7, 14, 21, 28)),
    "leaked_customer::int", "compromised_terminal::int",
]  # fmt: skip
Table = Mapping[str, NDArray[np.float64]]


def events(from_day: int, until_day: int) -> pa.Table:
    """Return payments and reports of these days; days count from the first day of the data."""
    with duckdb.connect() as connection:
        connection.sql(f"""create table p as from '{ULB}' where
            event_time >= timestamptz '{FIRST} 00:00:00+00' + interval {from_day} day and
            event_time < timestamptz '{FIRST} 00:00:00+00' + interval {until_day} day""")
        return connection.sql(f"""
            select 'payment' as event_type, tx_id::varchar as tx_id, null::varchar as report_id, event_time,
                   customer_id::varchar as customer_id, terminal_id::varchar as terminal_id, round(amount, 2) as amount,
                   is_fraud from p
            union all select 'fraud_report', null, 'r' || tx_id, event_time + interval {WEEK} day,
                   customer_id::varchar, terminal_id::varchar, null, false from p where is_fraud
            order by event_time, report_id nulls first, tx_id""").to_arrow_table()


def with_features(payments: pa.Table) -> Table:
    """Return the payments with all columns that models read, as float64[N]: `book 3` is the fourth of the book's."""
    names = ("leaked_customer", "compromised_terminal")
    alerts = found([rule("payments.cep", name, name, {}) for name in names], payments.drop(["is_fraud"]))
    declared = (PATTERNS / "payments.cep").read_text(encoding="utf-8").split("## A payment far above")[0]
    table = cep.features(payments, _ASKED, declare=declared)
    with duckdb.connect() as connection:
        connection.register("e", table)
        connection.register("a", alerts.select(["rule_id", "events"]))
        connection.sql("create table hit as select distinct rule_id, unnest(events).event_id as tx_id from a")
        flags = ", ".join(f"tx_id in (select tx_id from hit where rule_id = '{name}') as {name}" for name in names)
        columns = [
            f'{text} as "{name} {number}"'
            for name, texts in (("book", _BOOK), ("ours", _OURS))
            for number, text in enumerate(texts)
        ]
        relation = connection.sql(f"""
            select date_diff('day', date '{FIRST}', event_time::date) as day, customer_id::int as customer,
                   is_fraud::int as is_fraud, {", ".join(columns)}
            from (select *, {flags} from (select * replace (amount::double as amount, p_avg30::double as p_avg30,
                  p_avg60::double as p_avg60, p_med60::double as p_med60) from e) where event_type = 'payment')
            order by event_time, tx_id""").to_arrow_table()
    numbers = baselines.matrix(relation.columns)
    return {name: numbers[:, number] for number, name in enumerate(relation.column_names)}


def split(table: Table, from_day: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return bool[N] each: the payments to train on, and the ones to test on, of cards without a known fraud."""
    day, customer, bad = table["day"], table["customer"], table["is_fraud"] > 0
    train = (day >= from_day) & (day < from_day + WEEK)
    test = np.zeros(len(day), np.bool_)
    compromised = set(customer[train & bad].tolist())
    for number in range(WEEK):
        compromised |= set(customer[(day == from_day + WEEK + number - 1) & bad].tolist())
        test |= (day == from_day + 2 * WEEK + number) & ~np.isin(customer, [*compromised])
    return train, test


def judged(
    model: RandomForestClassifier | HistGradientBoostingClassifier, features: NDArray[np.float64], table: Table,
    train: NDArray[np.bool_], test: NDArray[np.bool_],
) -> tuple[float, float, float, float]:  # fmt: skip
    """Train and score. Return the AUC, the average precision, the card precision, and its highest possible value."""
    bad = table["is_fraud"] > 0
    model.fit(features[train], bad[train])
    score = model.predict_proba(features[test])[:, 1]
    share, possible = baselines.card_precision(table["day"][test], table["customer"][test], bad[test], score)
    return roc_auc_score(bad[test], score), average_precision_score(bad[test], score), share, possible


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folds", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    folds = options.folds
    if not ULB.exists():
        stop(f"the Handbook's payments are not at {ULB}")
    first = (TRAINED_FROM - FIRST).days
    table = with_features(events(max(0, first - WEEK * (folds - 1) - PAST_DAYS), first + 3 * WEEK))
    rows = []
    for fold in range(folds):
        train, test = split(table, first - WEEK * fold)
        for columns in ("book", "ours"):
            features = np.stack([table[name] for name in table if name.startswith(columns)], axis=1)
            features = np.nan_to_num(features, nan=-1.0, posinf=-1.0)
            for title, models in (
                ("forest", [RandomForestClassifier(random_state=seed) for seed in range(options.seeds)]),
                ("boosting", [HistGradientBoostingClassifier(random_state=0, early_stopping=False)]),
            ):
                quality = np.array([judged(model, features, table, train, test) for model in models])
                share = quality[:, 2]
                rows.append((
                    f"fold {fold + 1}, {columns}, {title}", *(f"{each:.3f}" for each in quality.mean(axis=0)),
                    f"{share.min():.3f} to {share.max():.3f}",
                ))  # fmt: skip
    title = f"{int(train.sum()):,} payments to train on, {int(test.sum()):,} to test on, in the last fold"
    show(title, ("", "AUC", "AP", f"CP@{LOOKED_AT}", "possible", f"CP@{LOOKED_AT} by seed"), rows)


if __name__ == "__main__":
    main()
