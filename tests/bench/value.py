"""The detection of the library, with default and with tuned parameters, next to plain models, on labelled data.

    python -m tests.bench.value [--days N] [--customers N] [--seed N] [SETS]

The time of each set is cut 3 : 1 : 1. A gap of 7 days follows each part, as a fraud becomes known only later; the gap
is one day in the month of chargebacks and where frauds are planted. `cep rules tune` sees the first two parts and
proposes a setting, or keeps the present one. Models are trained on the first part, and their limits are chosen on the
second. The printed figures come from the third part, which did not influence any choice. Rules, default and tuned, are
added one by one, the best first; a rule stays if it raises F1 on the second part, and if it alone and all together have
a precision of 0.5 there. *As sent* are the alerts that a team gets if each rule suppresses further alerts of a key for
a day; the other rows of rules show all matches. A model that reads *raw columns* has the fields of the event, one that
reads *cep features* also has columns of its past from `cep.features`.

**simulated**: card payments of the Fraud Detection Handbook's simulator, written down in `simulated_data.py`; it needs
no data. **laundering**: transfers after IBM's AMLSim, written down in `simulated_data.py`, over three times the days.
**payments**: the Handbook's own. **transfers**: AMLSim's own. **chargebacks**: one month of a payments company.
**logins**: the log of a SSH server. These four lie next to the repository; missing ones are left out. A set without an
event or a fraud in one part of its time is left out too, with a line.

**takeover**, **insiders**, **lending**, **money**, **wallets**, **sessions**, **guesses**: honest months of simulated
banks, with planted frauds that are written from the descriptions of the typologies (`planted.py`); `planted` is all
seven.

Without SETS all are run, and two tables of all sets end the print: the figures of each set, and recall by typology.
"""

import argparse
import tempfile
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier

import cep
from cep.analysis.backtest import TimePart, parts_of_time
from cep.analysis.measure import Measured
from tests.bench import baselines
from tests.bench.baselines import measured_on, tuned
from tests.bench.labelled import NAMES, Given, given
from tests.bench.peer_data import show
from tests.bench.planted import FIELDS
from tests.testing.library import rules_for

_DAY_MS = 86_400_000
# For the alerts of a rule that is switched on: an analyst refuses a rule if most of its alerts are wrong.
PRECISION_LEAST = 0.5
Row = tuple[str, ...]
_QUIET = {"suppress": "1 d"}  # what a team gets of the same rules
_LIBRARY, _TUNED = "library, its own parameters", "library, tuned"
_LIBRARY_SENT, _TUNED_SENT = f"{_LIBRARY}, as sent", f"{_TUNED}, as sent"
_AMOUNT, _RAW, _PAST = "amount above a limit", "boosting on raw columns", "boosting on cep features"
_WHOLE = (_LIBRARY_SENT, _LIBRARY, _TUNED_SENT, _TUNED, _AMOUNT, _RAW, _PAST)
# The last two: alerts a day at a million events a day; days from the first alert of a spell of fraud to its last event.
_HEAD = ("", "alerts", "precision", "recall", "f1", "a million", "ahead")


def chosen(measured: Measured, names: list[str], part: TimePart, spell: NDArray[np.int64]) -> list[str]:
    """Return the rules that raise F1 together on a part, the best first. Each one and all have the least precision."""
    times = measured.history.events.time_ms

    def value(rules: list[str]) -> baselines.Value:
        return baselines.figures(baselines.of_rules(measured.judged, rules), measured.labelled, part, spell, times)

    best, stay = 0.0, list[str]()
    for name in sorted(names, key=lambda each: (-value([each]).f1, each)):
        more = value([*stay, name])
        if more.f1 > best and min(more.precision, value([name]).precision) >= PRECISION_LEAST:
            best = more.f1
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


def spells(data: Given, measured: Measured) -> NDArray[np.int64]:
    """Return int64[N]: the spell of fraud of each event, or -1."""
    rows = measured.history.events.rows_of(data.labels["event_id"].combine_chunks())
    spell = np.full(len(measured.history.events), -1)
    names = data.labels["spell"].combine_chunks().dictionary_encode()
    spell[rows[rows >= 0]] = np.asarray(names.indices)[rows >= 0]
    return spell


def models(
    data: Given, measured: Measured, parts: tuple[TimePart, ...], spell: NDArray[np.int64], seed: int
) -> list[Row]:
    with_past = cep.features(data.events, dict(data.features), declare=data.declared)
    with duckdb.connect() as connection:
        connection.register("e", with_past)
        scored = connection.sql(data.scored).to_arrow_table()
    events, labelled = measured.history.events, measured.labelled
    rows = events.rows_of(scored.column(0).combine_chunks())
    is_fraud, train = labelled.fraud[rows] >= 0, parts[0].has(events.time_ms[rows])
    plain, past = (
        baselines.matrix(some) for some in (scored.columns[1 : 1 + data.raw], scored.columns[1 + data.raw :])
    )
    full = np.concatenate([plain, past], axis=1)
    scores = {_RAW: boosted(plain, is_fraud, train, seed), _PAST: boosted(full, is_fraud, train, seed)}
    if "amount" in scored.column_names:
        amount = scored["amount"].combine_chunks().cast(pa.float64()).fill_null(0.0)
        scores = {_AMOUNT: amount.to_numpy(zero_copy_only=False)} | scores
    results = []
    for name, score in scores.items():
        limit = baselines.best_limit(score, rows, labelled, parts[1], events.time_ms)
        alerts = baselines.of_events(rows[score >= limit], events.time_ms, labelled)
        results.append(_row(name, alerts, measured, parts[2], spell))
    return results


def _row(name: str, alerts: baselines.Alerts, measured: Measured, part: TimePart, spell: NDArray[np.int64]) -> Row:
    """Return the name, the figures, and the recall of each kind."""
    times = measured.history.events.time_ms
    value = baselines.figures(alerts, measured.labelled, part, spell, times)
    millions = int(part.has(times).sum()) / 1e6
    ahead = "–" if value.days_ahead is None else f"{value.days_ahead:.1f} d"
    shares = (f"{each:.3f}" for each in (value.precision, value.recall, value.f1))
    kinds = (f"{share:.3f}" for share in value.by_kind.values())
    return (name, f"{value.alerts:,}", *shares, f"{value.alerts / millions:,.0f}", ahead, *kinds)


def run(data: Given, seed: int, folder: Path) -> tuple[list[Row], list[Row]]:
    """Measure one set and print it. Return its rows for the tables of all sets; empty if a part has no events."""
    path = folder / f"{data.name}.parquet"
    pq.write_table(data.events, path)
    rules = rules_for(set(data.types))
    default = measured_on(data, rules, path)
    parts = parts_of_time(default.history.events, default.labelled, data.gap_days * _DAY_MS)
    if lacks := baselines.lacking(parts, default.history.events.time_ms):
        print(f"{data.name}: left out, as there is no event or no fraud in its part for {', '.join(lacks)}")
        return [], []
    spell = spells(data, default)
    by_tune = [tuned(data, rule, path, parts[1].until_ms) for rule in rules if rule.id in data.tries]
    proposals = [rule for rule in by_tune if rule is not None]
    by_id = {rule.id: rule for rule in (*rules, *proposals)}
    best = measured_on(data, list(by_id.values()), path)
    stay = chosen(best, sorted(by_id), parts[1], spell)
    names = list(default.judged.names)
    default_sent = measured_on(data, [rule.model_copy(update=_QUIET) for rule in rules], path)
    sent = measured_on(data, [by_id[name].model_copy(update=_QUIET) for name in stay], path) if stay else best
    rows = [
        _row(_LIBRARY_SENT, baselines.of_rules(default_sent.judged, names), default_sent, parts[2], spell),
        _row(_LIBRARY, baselines.of_rules(default.judged, names), default, parts[2], spell),
        _row(_TUNED_SENT, baselines.of_rules(sent.judged, stay), sent, parts[2], spell),
        _row(_TUNED, baselines.of_rules(best.judged, stay), best, parts[2], spell),
        *(_row(f"  {name}", baselines.of_rules(best.judged, [name]), best, parts[2], spell) for name in stay),
        *models(data, default, parts, spell, seed),
    ]
    test, times = parts[2], default.history.events.time_ms
    inside, frauds = int(test.has(times).sum()), int(test.frauds.sum())
    title = (
        f"{data.name}: {data.events.num_rows:,} events; the last {test.days:.0f} days: {inside:,}, {frauds:,} frauds"
    )
    kinds = np.array(default.labelled.kind, dtype=object)[test.frauds]
    by_kind = sorted({*kinds.tolist()})
    print(f"{data.name}: cep rules tune proposes another setting for {len(proposals)} of {len(by_tune)} rules")
    show(title, _HEAD, [row[: len(_HEAD)] for row in rows])
    whole = {row[0]: row for row in rows if not row[0].startswith("  ")}
    shares = [
        (f"{kind} ({int((kinds == kind).sum()):,})", {name: row[len(_HEAD) + number] for name, row in whole.items()})
        for number, kind in enumerate(by_kind)
    ]
    show("", ("recall by kind", *whole), [(kind, *of_kind.values()) for kind, of_kind in shares])
    for name in stay:
        print(
            f"  {name}: {', '.join(f'{param} = {value}' for param, value in by_id[name].params.items()) or 'as it is'}"
        )
    by_set = [(data.name, *row[: len(_HEAD)]) for row in whole.values()]
    return by_set, [(data.name, kind, *(of_kind.get(name, "–") for name in _WHOLE)) for kind, of_kind in shares]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sets", nargs="*", default=[*NAMES])
    parser.add_argument("--days", type=int, default=120)
    parser.add_argument("--customers", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if "planted" in options.sets:
        options.sets = [name for name in options.sets if name != "planted"] + [*FIELDS]
    print(f"python -m tests.bench.value --days {options.days} --customers {options.customers} --seed {options.seed}")
    rows, kinds = list[Row](), list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        for each in given(options.sets, options.days, options.customers, options.seed):
            of_set, of_kinds = run(each, options.seed, Path(folder))
            rows += of_set
            kinds += of_kinds
    if len(options.sets) > 1:
        show("all sets, the last part of the time of each", ("set", *_HEAD), rows)
        show("recall by typology", ("set", "typology", *_WHOLE), kinds)


if __name__ == "__main__":
    main()
