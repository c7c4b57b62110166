"""What the library detects, with its own parameters and with tuned ones, beside plain models, on labelled data.

    python -m tests.bench.value [--days N] [--customers N] [--seed N] [simulated] [payments] [transfers] [chargebacks]

The time of each set is cut 3 : 1 : 1, with a gap of 7 days behind each part, 1 day in the one month of chargebacks:
nobody knows a fraud sooner. Rules are tuned by `cep tune` on the first part and confirmed on the second. Models are
trained on the first, and their limits are chosen on the second. The third had no say; it is what is printed. Of the
tuned rules those stay that raise F1 on the second part, the best first. A model that reads *raw columns* has the
fields of the event, one that reads *cep features* also what `cep.features` says of its past.

**simulated**: card payments of the Fraud Detection Handbook's simulator, written down in `handbook_data.py`; it needs
no data. **payments**: the Handbook's own. **transfers**: laundering of IBM's AMLSim. **chargebacks**: one month of a
payments company. These three lie beside the repository; what is not there is left out.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from rich.console import Console
from sklearn.ensemble import HistGradientBoostingClassifier

import cep
from cep.analysis.axes import axes_of
from cep.analysis.labels import labels_of_table
from cep.analysis.measure import Measured, Terms, measure
from cep.analysis.split import Part, parts_of_time
from cep.analysis.sweep import Bench
from cep.analysis.tune import Aim, tune
from cep.base.schema import Kind
from cep.lang.ir import ParamDecl
from cep.lang.load import load_text
from cep.lang.show import show_duration
from cep.lists.store import ListStore
from cep.model.rule import ParamValue, UpsertRecord
from cep.rulebook.deploy import deploy
from cep.sources.pieces import read_pieces
from tests.bench import baselines
from tests.bench.handbook_data import simulated
from tests.bench.library import chargebacks, transfers
from tests.bench.peer_data import SHARED, ULB, show
from tests.testing.library import PATTERNS, rules_for

DELAY_DAYS = 7
_DAY_MS = 86_400_000
_SILENT = Console(quiet=True)
_AMLSIM = SHARED / "data" / "amlsim_typologies_12k_accounts.parquet"
_CHARGEBACKS = SHARED / "data" / "cloudwalk_card_transactions.parquet"
Tries = Mapping[str, Mapping[str, str]]
Row = tuple[str, ...]
# What `cep tune --try` is given, by pattern: an analyst knows the size of amounts and the pace of the business.
_TRIES: dict[str, Tries] = {
    "payments": {
        "leaked_customer": {"times": "1.5..6/19", "known": "1,3,5,10", "back": "7d,14d,30d,60d"},
        "compromised_terminal": {"reports": "1,2,3,4", "back": "1d,2d,3d,4d,7d,14d"},
    },
    "transfers": {
        "pass_through": {"least": "300,1000", "share": "0.5,0.9", "window": "3d,14d"},
        "fan_in_then_out": {"payers": "3,5", "least": "300,1000", "share": "0.5,0.8", "window": "20d"},
        "fan_out": {"payees": "5", "least": "300", "part": "50,100", "window": "7d,20d"},
        "there_and_back": {"least": "100,300", "share": "0.95,1.0"},
        "split_transfer": {"limit": "200,500,1000", "parts": "2,3"},
        "small_sums_to_one": {"times": "2,5", "small": "1000", "large": "200,1000", "window": "7d,30d"},
        "passed_on": {"least": "50,100", "window": "3d,7d,14d,20d,30d"},
        "gather_scatter": {"payers": "3,4", "payees": "3,4", "known": "0,2,5"},
    },
    "chargebacks": {},
}
# The last two: alerts a day at a million events a day; from the first alert of a run of frauds to its last event.
_HEAD = ("", "alerts", "precision", "recall", "f1", "a million", "ahead")
_PAST = {
    "n{w}": "count({e} over previous {w} d by {k})",
    "sum{w}": "sum({e}.{a} over previous {w} d by {k})",
    "max{w}": "max({e}.{a} over previous {w} d by {k})",
    "avg{w}": "avg({e}.{a} over previous {w} d by {k})",
}


@dataclass(frozen=True, slots=True)
class Given:
    """A set of data: events and labels, the event types of its rules, what models read, and what is tuned.

    `labels` has a column `spell` besides those of labels: the run of frauds that an event is of. `scored` is a query
    of the events `e` that a model scores: the id, then `raw` columns of the event, then those that `features` makes.
    """

    name: str
    events: pa.Table
    labels: pa.Table
    types: frozenset[str]
    scored: str
    raw: int
    features: Mapping[str, str]
    declared: str
    tries: Tries
    gap_days: int = DELAY_DAYS


# --------------------------------------------------------------------------------------------------------- data


def _past(event: str, amount: str, keys: tuple[str, ...], days: tuple[int, ...]) -> dict[str, str]:
    return {
        f"{key}_{name.format(w=w)}": text.format(w=w, e=event, a=amount, k=key)
        for key in keys for w in days for name, text in _PAST.items()
    }  # fmt: skip


def cards(name: str, payments: pa.Table) -> Given:
    """Return card payments, and a report of each fraud days later."""
    with duckdb.connect() as connection:
        connection.register("p", payments)
        events = connection.sql(f"""
            select 'payment' as event_type, tx_id::varchar as tx_id, null::varchar as report_id, event_time,
                   customer_id::varchar as customer_id, terminal_id::varchar as terminal_id, round(amount, 2) as amount
            from p union all
            select 'fraud_report', null, 'r' || tx_id, event_time + interval {DELAY_DAYS} day,
                   customer_id::varchar, terminal_id::varchar, null from p
            where is_fraud and event_time + interval {DELAY_DAYS} day <= (select max(event_time) from p)
            order by event_time, report_id nulls first, tx_id""").to_arrow_table()
        labels = connection.sql("""
            with f as (select *, case fraud_scenario when 2 then 't' || terminal_id when 3 then 'c' || customer_id
                                 else 'x' || tx_id end as of from p where is_fraud),
            g as (select *, coalesce(event_time - lag(event_time) over (partition by of order by event_time)
                                     > interval 7 day, true) as begins from f)
            select tx_id::varchar as event_id, true as label, 'kind ' || fraud_scenario as kind,
                   null::varchar as episode, 0::bigint as reported_at,
                   of || '-' || sum(begins::int) over (partition by of order by event_time, tx_id) as spell from g
        """).to_arrow_table()
    features = _past("payment", "amount", ("customer_id",), (1, 7, 30)) | {
        f"terminal_{w}": f"count(fraud_report over {w} d by terminal_id)" for w in (1, 4, 7, 14, 30)
    } | {f"terminal_n{w}": f"count(payment over {w} d by terminal_id)" for w in (1, 7, 30)}  # fmt: skip
    scored = f"""select tx_id, event_time, customer_id::int, terminal_id::int, amount, {", ".join(features)}
        from e where event_type = 'payment'"""
    declared = (PATTERNS / "payments.cep").read_text(encoding="utf-8").split("## A payment far above")[0]
    return Given(
        name, events, labels, frozenset({"payment", "fraud_report"}), scored, 4, features, declared, _TRIES["payments"]
    )  # fmt: skip


def laundering() -> Given:
    """Return transfers as money that leaves an account and money that comes into another; a model scores the first."""
    events, labels = transfers()
    with duckdb.connect() as connection:
        connection.register("l", labels)
        labels = connection.sql(f"""
            select l.event_id, true as label, l.kind, t.alert_id::varchar as episode, 0::bigint as reported_at,
                   t.alert_id::varchar as spell
            from l join '{_AMLSIM}' t on t.tx_id::varchar = substr(l.event_id, 2)""").to_arrow_table()
    of = {"n": "count(money", "sum": "sum(money.sum_of_money", "who": "distinct(money.counterparty"}
    features = {"known": "count(money over previous 400 d by account_id)"}
    for way in ("incoming", "outgoing"):
        for what, text in of.items():
            for days in (3, 10, 20):
                features[f"{way}_{what}{days}"] = f"{text} over {days} d by account_id where direction == {way})"
    both = ", ".join(f"{side}.{name} as {side}_{name}" for side in "ab" for name in features)
    scored = f"""select a.money_id, a.event_time, a.account_id::int, a.counterparty::int,
        a.sum_of_money as amount, {both}
        from e a join e b on b.money_id = 'b' || substr(a.money_id, 2) where a.direction = 'outgoing'"""
    declared = (PATTERNS / "money.cep").read_text(encoding="utf-8")
    return Given(
        "transfers", events, labels, frozenset({"money"}), scored, 4, features, declared, _TRIES["transfers"]
    )  # fmt: skip


def charged_back() -> Given:
    """Return card payments online, some of which were charged back."""
    events, labels = chargebacks()
    labels = labels.append_column("spell", labels["event_id"])
    declared = (PATTERNS / "events.cep").read_text(encoding="utf-8")
    features = _past("transaction", "amount", ("card_id", "device_id", "merchant_id"), (1, 7, 30))
    scored = f"""select tx_id, event_time, device_id::int, merchant_id::int, hash(card_id) % 1000003, amount,
        {", ".join(features)} from e"""
    types = frozenset({"transaction"})
    return Given("chargebacks", events, labels, types, scored, 5, features, declared, _TRIES["chargebacks"], 1)


def given(options: argparse.Namespace) -> list[Given]:
    """Return the sets that are asked for, those that are there."""
    made = []
    if "simulated" in options.sets:
        made.append(cards("simulated", simulated(options.seed, options.customers, options.customers * 2, options.days)))
    if "payments" in options.sets and ULB.exists():
        until = f"timestamptz '2018-04-01 00:00:00+00' + interval {options.days} day"
        with duckdb.connect() as connection:
            made.append(cards("payments", connection.sql(f"from '{ULB}' where event_time < {until}").to_arrow_table()))
    if "transfers" in options.sets and _AMLSIM.exists():
        made.append(laundering())
    if "chargebacks" in options.sets and _CHARGEBACKS.exists():
        made.append(charged_back())
    return made


# -------------------------------------------------------------------------------------------------------- rules


def measured_on(of: Given, rules: list[UpsertRecord], path: Path) -> Measured:
    """Replay some rules over the set."""
    deployment = deploy(rules)
    assert deployment.set_aside == (), deployment.set_aside
    labels = labels_of_table(of.labels.drop(["spell"]), deployment.schema, of.name)
    return measure(deployment, partial(read_pieces, path), labels, Terms(), _SILENT)


def tuned(of: Given, record: UpsertRecord, path: Path) -> UpsertRecord:
    """Return the rule with the parameters that `cep tune` proposes."""
    measured = measured_on(of, [record], path)
    parts = parts_of_time(measured.history.events, measured.marks, of.gap_days * _DAY_MS)
    bench = Bench(record, ((), ListStore()), partial(read_pieces, path), measured.marks, parts, 2, _SILENT)
    pattern = load_text(record.source, record.pattern).patterns[record.pattern]
    (rule,) = measured.history.deployment.rulebook.deployed()
    present = {param.name: _written(param) for param in pattern.params if param.name in of.tries[record.id]}
    open_record = record.model_copy(update={"params": present})
    bench = Bench(open_record, bench.lists, bench.pieces_of, bench.marks, parts, 2, _SILENT)
    axes = axes_of(pattern, open_record.params, of.tries[record.id])
    best = tune(bench, pattern, rule.pattern, axes, Aim("f1"))
    return record.model_copy(update={"params": {**dict(best.proposed)}})


def _written(param: ParamDecl) -> ParamValue:
    """Return the default of a parameter that is a number, as a rule's file would have it."""
    value = param.default
    assert isinstance(value, int | float), param.name
    match param.type.kind:
        case Kind.DURATION:
            return show_duration(int(value))
        case Kind.DECIMAL:
            return float(value / 10**param.type.scale)
        case _:
            return value


def chosen(measured: Measured, names: list[str], part: Part, spell: NDArray[np.int64]) -> list[str]:
    """Return the rules that raise F1 together on a part, the best first."""
    times = measured.history.events.time_ms

    def f1(of: list[str]) -> float:
        return baselines.figures(baselines.of_rules(measured.judged, of), measured.marks, part, spell, times).f1

    stay: list[str] = []
    for name in sorted(names, key=lambda each: -f1([each])):
        if f1([*stay, name]) > (f1(stay) if stay else 0.0):
            stay.append(name)
    return stay


# -------------------------------------------------------------------------------------------------------- models


def boosted(
    features: NDArray[np.float64], is_fraud: NDArray[np.bool_], train: NDArray[np.bool_], seed: int
) -> NDArray[np.float64]:
    """Train on some rows and score all: gradient boosting with its usual parameters."""
    model = HistGradientBoostingClassifier(max_iter=200, learning_rate=0.05, early_stopping=False, random_state=seed)
    model.fit(features[train], is_fraud[train])
    scores: NDArray[np.float64] = model.predict_proba(features)[:, 1]
    return scores


def spells(of: Given, measured: Measured) -> NDArray[np.int64]:
    """int64[N]: the spell of fraud of each event, -1 for none."""
    rows = measured.history.events.rows_of(of.labels["event_id"].combine_chunks())
    spell = np.full(len(measured.history.events), -1)
    names = of.labels["spell"].combine_chunks().dictionary_encode()
    spell[rows[rows >= 0]] = np.asarray(names.indices)[rows >= 0]
    return spell


def models(of: Given, measured: Measured, parts: tuple[Part, ...], spell: NDArray[np.int64], seed: int) -> list[Row]:
    """Return the rows of the baselines."""
    with_past = cep.features(of.events, dict(of.features), declare=of.declared)
    with duckdb.connect() as connection:
        connection.register("e", with_past)
        scored = connection.sql(of.scored).to_arrow_table()
    events, marks = measured.history.events, measured.marks
    rows = events.rows_of(scored.column(0).combine_chunks())
    is_fraud, train = marks.fraud[rows] >= 0, parts[0].has(events.time_ms[rows])
    plain, past = (baselines.matrix(some) for some in (scored.columns[1 : 1 + of.raw], scored.columns[1 + of.raw :]))
    full = np.concatenate([plain, past], axis=1)
    amount = np.asarray(scored["amount"].combine_chunks().cast(pa.float64()))
    scores = {
        "amount above a limit": amount,
        "boosting on raw columns": boosted(plain, is_fraud, train, seed),
        "boosting on cep features": boosted(full, is_fraud, train, seed),
    }
    made = []
    for name, score in scores.items():
        limit = baselines.best_limit(score, rows, marks, parts[1], events.time_ms)
        alerts = baselines.of_events(rows[score >= limit], events.time_ms, marks)
        made.append(_row(name, alerts, measured, parts[2], spell))
    return made


def _row(name: str, alerts: baselines.Alerts, measured: Measured, part: Part, spell: NDArray[np.int64]) -> Row:
    """Return the name, the figures, and the recall of each kind."""
    times = measured.history.events.time_ms
    value = baselines.figures(alerts, measured.marks, part, spell, times)
    millions = int(part.has(times).sum()) / 1e6
    ahead = "–" if value.days_ahead is None else f"{value.days_ahead:.1f} d"
    shares = (f"{each:.3f}" for each in (value.precision, value.recall, value.f1))
    kinds = (f"{share:.3f}" for share in value.by_kind.values())
    return (name, f"{value.alerts:,}", *shares, f"{value.alerts / millions:,.0f}", ahead, *kinds)


def run(of: Given, seed: int, folder: Path) -> None:
    """Measure one set and print it."""
    path = folder / f"{of.name}.parquet"
    pq.write_table(of.events, path)
    rules = rules_for(set(of.types))
    default = measured_on(of, rules, path)
    parts = parts_of_time(default.history.events, default.marks, of.gap_days * _DAY_MS)
    spell = spells(of, default)
    by_id = {rule.id: tuned(of, rule, path) if rule.id in of.tries else rule for rule in rules}
    best = measured_on(of, list(by_id.values()), path)
    stay = chosen(best, sorted(by_id), parts[1], spell)
    names = list(default.judged.names)
    rows = [
        _row("library, its own parameters", baselines.of_rules(default.judged, names), default, parts[2], spell),
        _row("library, tuned", baselines.of_rules(best.judged, stay), best, parts[2], spell),
        *(_row(f"  {name}", baselines.of_rules(best.judged, [name]), best, parts[2], spell) for name in stay),
        *models(of, default, parts, spell, seed),
    ]
    test, times = parts[2], default.history.events.time_ms
    inside, frauds = int(test.has(times).sum()), int(test.frauds.sum())
    title = f"{of.name}: {of.events.num_rows:,} events; the last {test.days:.0f} days: {inside:,}, {frauds:,} frauds"
    kinds = np.array(default.marks.kind, dtype=object)[test.frauds]
    by_kind = sorted({*kinds.tolist()})
    show(title, _HEAD, [row[: len(_HEAD)] for row in rows])
    heads = ("recall by kind", *(f"{kind} ({int((kinds == kind).sum()):,})" for kind in by_kind))
    show("", heads, [(row[0], *row[len(_HEAD) :]) for row in rows])
    for name in stay:
        print(
            f"  {name}: {', '.join(f'{param} = {value}' for param, value in by_id[name].params.items()) or 'as it is'}"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sets", nargs="*", default=["simulated", "payments", "transfers", "chargebacks"])
    parser.add_argument("--days", type=int, default=120)
    parser.add_argument("--customers", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"python -m tests.bench.value --days {options.days} --customers {options.customers} --seed {options.seed}")
    with tempfile.TemporaryDirectory() as folder:
        for each in given(options):
            run(each, options.seed, Path(folder))


if __name__ == "__main__":
    main()
