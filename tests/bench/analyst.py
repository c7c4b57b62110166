"""The analyst's bench over a million labelled events: size and time of a report, its numbers next to DuckDB's, tuning.

    python -m tests.bench.analyst [--keep FOLDER]

**Card payments** of the Fraud Detection Handbook: the first million, with a report of each fraud a week later, and the
patterns of `patterns/payments.cep`. **Transfers** of a generator of laundering: five copies make a million, each copy
has its own accounts, and the patterns are those in `typologies.py`. For each data set the bench makes a report twice
and compares the two. DuckDB computes every figure by rule, and the days, weeks, budget, sets, kinds and fields of the
written JSON, again from the same alerts and labels; for the cards it also computes the curve and the near line of a
rule. It also tries 10 500 settings of three thresholds over the million payments, and suggests patterns from the
payments by each of their keys, both with wall-clock times; and it prunes a hundred rules of three patterns over the
payments. With `--keep` both pages are photographed too, if Chromium is installed: without scripts, on a telephone and
on a screen.
"""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial
from itertools import product
from math import isclose
from pathlib import Path

import duckdb
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from cep.analysis.axes import axes_of
from cep.analysis.backtest import ALL
from cep.analysis.labels import labels_of_table
from cep.analysis.measure import Measured, Terms, measure
from cep.analysis.one_rule import one_rule_of
from cep.analysis.prune import prune
from cep.analysis.report import report
from cep.analysis.show import with_interval
from cep.analysis.split import parts_of_time
from cep.analysis.suggest import Wanted, fields_of, suggest
from cep.analysis.sweep import Bench
from cep.analysis.thresholds import Replays, drawn
from cep.analysis.tune import Aim, tune
from cep.lang.load import bundle_source, load_text
from cep.lists.store import ListStore
from cep.model.rule import UpsertRecord
from cep.rulebook.deploy import deploy
from cep.sources.pieces import read_pieces
from tests.analysis import oracle
from tests.analysis.report_oracle import differences
from tests.bench import typologies
from tests.bench.detection import ROOT, payments
from tests.bench.detection import rule as rule_of
from tests.bench.peer_data import ULB, show, stop, upsert
from tests.docs.pictures import photograph

DAYS = 105  # days of card payments that make a million
COPIES = 5
WIDTHS, HEIGHT = (380, 1_400), 6_000  # in pixels
SILENT = Console(quiet=True)
TUNED = """
event payment {
  tx_id        id
  event_time   time
  customer_id  string
  terminal_id  string
  amount       decimal(2)
}
pattern leaked(times: float = 3.0, least: decimal = 40.00, known: int = 5) by customer_id {
  seq    hit
  where  hit: payment  amount > times * avg(payment.amount over previous 30 d) and amount > least
                       and count(payment over previous 30 d) >= known
}
"""
SINGLE = """
pattern over(large: decimal = 220.00) by customer_id {
  seq    hit
  where  hit: payment  amount > large
}
"""
TRIES = {"times": "2..8/25", "least": "10..250/21", "known": "1..39/20"}
# A hundred rules: all combinations of these settings of each pattern.
VARIED: dict[str, dict[str, tuple[float | str, ...]]] = {
    "leaked_customer": {"times": (2.0, 2.5, 3.0, 4.0, 5.0, 7.0), "back": ("14d", "30d", "60d"), "known": (3, 5, 10)},
    "compromised_terminal": {"reports": (1, 2, 3), "back": tuple(f"{n}d" for n in (1, 2, 3, 4, 5, 7, 10, 14, 21, 28))},
    "over": {"large": tuple(range(205, 285, 5))},
}
TOLERANCES = (0.0, 0.01, 0.05)
Row = tuple[str, ...]


def transfers() -> tuple[pa.Table, pa.Table]:
    """Return (events, labels) of the transfers, five times over."""
    with duckdb.connect() as connection:
        connection.sql(f"""create table t as select c * 10000000 + tx_id as tx_id, event_time,
            c * 1000000 + orig_account_id as orig_account_id, c * 1000000 + dest_account_id as dest_account_id,
            round(amount, 2) as amount, is_sar, typology, c || '-' || alert_id as episode
            from '{typologies.DATA}', range({COPIES}) copies(c) order by event_time""")
        events = connection.sql("select * exclude (is_sar, typology, episode) from t").to_arrow_table()
        labels = connection.sql("""select tx_id::varchar as event_id, true as label, typology as kind, episode,
            0::bigint as reported_at from t where is_sar""").to_arrow_table()
        return events, labels


def cards() -> tuple[pa.Table, pa.Table]:
    """Return (events, labels) of the card payments."""
    events, labels = payments(DAYS)
    with duckdb.connect() as connection:
        connection.register("l", labels)
        query = """select tx_id as event_id, true as label, 'kind ' || kind as kind, null::varchar as episode,
            0::bigint as reported_at from l where kind > 0"""
        return events, connection.sql(query).to_arrow_table()


def reported(
    name: str, rules: list[UpsertRecord], events: pa.Table, labels: pa.Table, folder: Path, single: str = ""
) -> Row:
    """Report on a million events, with the thresholds of the rule `single`. Return a row of figures."""
    path = folder / f"{name}.parquet"
    pq.write_table(events, path)
    deployment = deploy(rules)
    assert deployment.set_aside == (), deployment.set_aside
    fraud_labels = labels_of_table(labels, deployment.schema, name)
    records = {each.id: each for each in rules}
    replays = Replays(
        lambda rule_id: one_rule_of(records[rule_id], ([], ListStore())), partial(read_pieces, path),
        lambda schema: labels_of_table(labels, schema, name), Terms(), SILENT,
    )  # fmt: skip
    seconds, pages = [], []
    for _ in range(2):
        began = time.monotonic()
        measured = measure(deployment, partial(read_pieces, path), fraud_labels, Terms(), SILENT)
        matched = time.monotonic() - began
        curves = drawn(replays, measured.figures, [single] if single else [])
        result = report(measured, partial(read_pieces, path), thresholds=curves)
        seconds.append((matched, time.monotonic() - began))
        pages.append(result)
    (folder / f"{name}.html").write_text(pages[0].html, encoding="utf-8")
    (folder / f"{name}.json").write_bytes(pages[0].numbers)
    matched, whole = min(seconds, key=lambda pair: pair[1])
    size = len(pages[0].html.encode())
    same = "yes" if pages[0] == pages[1] else "NO"
    return (
        name, f"{measured.figures.about['events']:,}", f"{measured.figures.together.alerts:,}", f"{size / 1e3:,.0f} kB",
        same, f"{matched:.1f} s", f"{whole:.1f} s",
        compared(measured, events, labels, (folder / f"{name}.json", single)),
    )  # fmt: skip


def compared(measured: Measured, events: pa.Table, labels: pa.Table, written: tuple[Path, str]) -> str:
    """Compute the figures of each rule with DuckDB, then the numbers of the file; return whether all are equal.

    `written` holds the file, and the rule whose curves and lines are compared.
    """
    if "tx_id" in events.column_names and events["tx_id"].type != pa.string():
        events = events.set_column(events.column_names.index("tx_id"), "tx_id", events["tx_id"].cast(pa.string()))
    if "event_type" in events.column_names:  # reports have their own ids
        ids = pa.compute.coalesce(events["tx_id"], events["report_id"])
        events = events.set_column(events.column_names.index("tx_id"), "tx_id", ids)
    history = measured.history
    views = oracle.views(history.replayed.alerts, events, labels, measured.marks.as_of_ms, 0, history.made)
    count = 0
    for each in (*measured.figures.rules, measured.figures.together):
        expected = oracle.figures(views, None if each.rule == ALL else each.rule)
        mine = {
            "alerts": each.alerts, "keys": each.keys, "right": each.right, "immature": each.immature,
            "found_events": each.event_recall.part, "bad_events": each.event_recall.whole,
            "found_frauds": each.fraud_recall.part, "frauds": each.fraud_recall.whole,
            "money_found": each.money_found, "money_missed": each.money_missed,
            "seconds_to_alert": each.seconds_to_alert, "seconds_ahead": each.seconds_ahead,
            "adds": each.adds, "share": each.share, "events": measured.figures.about["events"],
        }  # fmt: skip
        for figure, value in expected.items():
            other = mine[figure]
            count += 1
            if value != other and not isclose(value or 0.0, other or 0.0, rel_tol=1e-9):
                return f"{each.rule}: {figure} {other} is {value}"
    path, single = written
    more, wrong = differences(views, orjson.loads(path.read_bytes()), measured.marks.maturity_ms, single)
    return wrong[0] if wrong else f"{count + more:,} equal"


def photographed(folder: Path) -> None:
    """Take pictures of the beginning of both pages."""
    for name in ("cards", "transfers"):
        for width in WIDTHS:
            try:
                photograph(folder / f"{name}.html", folder / f"{name}-{width}.png", width, HEIGHT)
            except FileNotFoundError as error:
                print(f"no pictures: {error}", file=sys.stderr)
                return
            print(f"wrote {folder / name}-{width}.png")


def tuned(events: pa.Table, labels: pa.Table, folder: Path) -> None:
    """Tune three thresholds and print the results."""
    path = folder / "tuned.parquet"
    pq.write_table(events.filter(pa.compute.equal(events["event_type"], "payment")).drop(["event_type"]), path)
    record = upsert(TUNED, "leaked").model_copy(update={"params": {"times": 3.0, "least": 40.0, "known": 5}})
    deployment = deploy([record])
    pieces_of = partial(read_pieces, path)
    fraud_labels = labels_of_table(labels, deployment.schema, "labels")
    began = time.monotonic()
    measured = measure(deployment, pieces_of, fraud_labels, Terms(), SILENT)
    parts = parts_of_time(measured.history.events, measured.marks, 86_400_000, measured.marks_at)
    bench = Bench(record, ((), ListStore()), pieces_of, measured.marks, parts, 2, SILENT)
    pattern = load_text(TUNED, "leaked").patterns["leaked"]
    (rule,) = deployment.rulebook.deployed()
    best = tune(bench, pattern, rule.pattern, axes_of(pattern, record.params, TRIES), Aim("f1"))
    seconds = time.monotonic() - began
    rows = [
        (f"{name}, {row.part}", f"{row.alerts_per_day:.3f}", *map(with_interval, (row.precision, row.recall)),
         f"{row.f1:.3f}")
        for name, part_rows in (("present", best.present_rows), ("candidate", best.candidate_rows)) for row in part_rows
    ]  # fmt: skip
    title = f"{best.settings_count:,} settings over {len(measured.history.events):,} payments in {seconds:.1f} s"
    show(f"{title}, {best.replayed_count} of them replayed; proposed: {dict(best.proposed)}",
         ("setting, part of the time", "alerts a day", "precision", "recall", "f1"), rows)  # fmt: skip


def suggested(rules: list[UpsertRecord], events: pa.Table, labels: pa.Table, folder: Path) -> None:
    """Suggest patterns by each key, including the reading of the file, and print the seconds by the clock."""
    path = folder / "mined.parquet"
    pq.write_table(events, path)
    deployment = deploy(rules)
    pieces_of = partial(read_pieces, path)
    fraud_labels = labels_of_table(labels, deployment.schema, "labels")
    rows = []
    for key in ("customer_id", "terminal_id"):
        began = time.monotonic()
        measured = measure(deployment, pieces_of, fraud_labels, Terms(), SILENT, fields_of(deployment.schema))
        answer = suggest(measured.history.events, measured.marks, pieces_of, key, Wanted(3, 5, 0.5))
        rows.append((key, f"{answer.tried:,}", str(len(answer.suggestions)), f"{time.monotonic() - began:.0f} s"))
    title = f"Suggestions from {len(measured.history.events):,} events, by the clock"
    show(title, ("key", "sequences mined", "proposed", "took"), rows)


def pruned(rules: list[UpsertRecord], events: pa.Table, labels: pa.Table, folder: Path) -> None:
    """Make a hundred variants of the rules, and print how few of them detect as much, or nearly as much."""
    path = folder / "pruned.parquet"
    pq.write_table(events, path)
    hundred = [
        rule.model_copy(update={"id": f"{rule.id}_{number}", "params": dict(zip(VARIED[rule.id], values, strict=True))})
        for rule in rules for number, values in enumerate(product(*VARIED[rule.id].values()))
    ]  # fmt: skip
    deployment = deploy(hundred)
    assert deployment.set_aside == (), deployment.set_aside
    began = time.monotonic()
    fraud_labels = labels_of_table(labels, deployment.schema, "labels")
    measured = measure(deployment, partial(read_pieces, path), fraud_labels, Terms(), SILENT)
    rows = []
    for tolerance in TOLERANCES:
        few = prune(measured.judged, measured.marks, tolerance)
        numbers = (few.frauds_before, few.frauds_after, few.alerts_before, few.alerts_after)
        rows.append((f"{tolerance:.0%}", str(len(few.stay)), *(f"{each:,}" for each in numbers)))
    title = f"{len(hundred)} rules over {len(measured.history.events):,} events, {time.monotonic() - began:.0f} s"
    show(title, ("recall that may be lost", "rules that stay", "frauds", "then", "alerts", "then"), rows)


def main() -> None:
    """Measure and print."""
    if not ULB.exists() or not typologies.DATA.exists():
        stop(f"the labelled events are not at {ULB.parent}; nothing to measure")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[2]) if sys.argv[1:2] == ["--keep"] else Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        card_events, card_labels = cards()
        rules = [rule_of("payments.cep", name, name, {}) for name in ("leaked_customer", "compromised_terminal")]
        source = bundle_source(ROOT / "patterns" / "payments.cep") + SINGLE
        rules.append(upsert(source, "over").model_copy(update={"params": {"large": 220.0}}))
        text = typologies.source()
        names = [line.split()[1] for line in text.splitlines() if line.startswith("pattern ")]
        chains = [upsert(text, n).model_copy(update={"effective_at": typologies.KNOWN_FROM.get(n)}) for n in names]
        rows = [
            reported("cards", rules, card_events, card_labels, folder, "over"),
            reported("transfers", chains, *transfers(), folder),
        ]
        heads = ("data", "events", "alerts", "size", "same bytes", "matched in", "report in", "beside DuckDB")
        show("A report of a million events", heads, rows)
        tuned(card_events, card_labels, folder)
        suggested(rules, card_events, card_labels, folder)
        pruned(rules, card_events, card_labels, folder)
        if sys.argv[1:2] == ["--keep"]:
            photographed(folder)


if __name__ == "__main__":
    main()
