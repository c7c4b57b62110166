"""The cost of past events: 20 rules with windows from 1 min to 90 d on 1.75 million card payments.

    python -m tests.bench.history [EVENTS] [--live | --replay] [--only FUNCTIONS] [--repeats N]

1. `engine.advance` on one core, one window for all rules at a time: the cost must not depend on its length.
2. The 20 rules together, and the same aggregates by Spark SQL window functions on one core, in the same run. Spark
   computes its aggregates and throws them away; ours are also compared with a bound, and matching events are matched.
3. As in a live job (alone with --live), function by function (--only selects some): micro-batches of 10 000 events in
   order of time, with keyed state in pages that are bytes in between. It prints µs of processor time per event, the
   least of --repeats runs of each window in turn, and bytes written and read per event; a cache holds the segments of a
   page that were read last, as in the runners.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from cep.base.limits import TIME_MS_MAX
from cep.columnar.batch import TEXT, EventBatch
from cep.columnar.route import key_groups
from cep.engine.advance import advance
from cep.engine.keyed_state import empty_state
from cep.histories.rows import Block
from cep.histories.store import Histories, StoredSegment
from cep.histories.values import compact_page
from cep.lang.check.bind import bind
from cep.lang.load import load_text
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule
from cep.nfa.program import Program
from cep.runners.spark.session import create_session
from cep.state.past import Load, SegmentCache, decode_head, decode_segment, digests_of, encode_head, store_segments
from tests.bench.peer_data import ULB, median_seconds, show

EVENTS = """
event payment { tx_id id  event_time time  customer_id string  terminal_id string  region string  amount decimal(2)
                weight float }
"""
WINDOWS = {"1 min": 60, "1 h": 3_600, "1 d": 86_400, "7 d": 604_800, "90 d": 7_776_000}
_OURS = ("count(payment over {})", "sum(payment.amount over {})", "avg(payment.amount over {})",
         "max(payment.amount over {})")  # fmt: skip
_THEIRS = ("count(*)", "sum(amount)", "avg(amount)", "max(amount)")
# A customer has a third as many terminals as payments in 90 days.
_LIVE = {
    "count, sum, avg": _OURS[:3],
    "min, max": ("min(payment.amount over {})", "max(payment.amount over {})"),
    "stddev": ("stddev(payment.amount over {})",),
    "sum, avg of floats": ("sum(payment.weight over {})", "avg(payment.weight over {})"),
    "stddev of floats": ("stddev(payment.weight over {})",),
    "distinct of 10": ("distinct(payment.region over {})",),
    "count, sum by 10": ("count(payment over {} by region)", "sum(payment.amount over {} by region)"),
    "distinct of many": ("distinct(payment.terminal_id over {})",),
    "count, sum by many": ("count(payment over {} by terminal_id)", "sum(payment.amount over {} by terminal_id)"),
    "median": ("median(payment.amount over {})",),
    "first": ("first(payment over {}).amount",),
}
_AT_ONCE = 65_536  # events of one call, as in replay
_OF_MICRO_BATCH, _GROUPS, _BYTES_HELD = 10_000, 8, 64 << 20


def program_of(windows: Sequence[str] | None, written: Sequence[str] = _OURS) -> Program:
    """Return rules for each window that never match; None: a rule without past events."""
    looked_at = ["amount < 0"] if windows is None else [w.format(n) + " < 0" for n in windows for w in written]
    rules = []
    for number, condition in enumerate(looked_at):
        checked = load_text(f"{EVENTS}pattern p by customer_id {{ seq a where a: payment {condition} }}")
        bound, _ = bind(checked.patterns["p"], {})
        assert bound is not None
        rules.append(DeployedRule(f"r{number}", 1, 1, condition, bound))
    return compile_rules(checked.schema, ("customer_id",), rules)


def read(count: int) -> EventBatch:
    """Return the first events, in their order, by customer.

    The region, one of ten, is the last digit of the terminal; the weight is a float.
    """
    table = pq.read_table(ULB, columns=["tx_id", "event_time", "customer_id", "terminal_id", "amount"]).slice(0, count)
    ids, customers = (table[name].cast(TEXT).combine_chunks() for name in ("tx_id", "customer_id"))
    amounts = pc.round(pc.multiply(table["amount"], 100.0)).cast(pa.int64()).combine_chunks()
    times = np.asarray(table["event_time"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()))
    region = pc.binary_join_element_wise("r", pc.utf8_slice_codeunits(table["terminal_id"].cast(pa.string()), -1), "")
    fields = {"tx_id": ids, "customer_id": customers, "amount": amounts, "region": region.cast(TEXT).combine_chunks(),
              "terminal_id": table["terminal_id"].cast(TEXT).combine_chunks(),
              "weight": pc.divide(amounts.cast(pa.float64()), 7.0)}  # fmt: skip
    return EventBatch(customers, ids, np.zeros(len(ids), np.int16), times, fields)


def in_shares(batch: EventBatch) -> list[EventBatch]:
    """Return the events in shares of keys."""
    count = max(1, len(batch) // _AT_ONCE)
    share = key_groups(batch.key, count)
    return [batch.take(np.flatnonzero(share == number)) for number in range(count)]


def seconds_of(program: Program, shares: Sequence[EventBatch]) -> float:
    """Return the median seconds for all shares."""

    def work() -> None:
        for share in shares:
            advance(program, None, share, TIME_MS_MAX)

    return median_seconds(work)


def spark_seconds(spark: SparkSession, count: int) -> float:
    """Return the seconds of the same aggregates by window functions, each row computed and none stored."""
    spark.read.parquet(str(ULB)).orderBy("event_time", "tx_id").limit(count).cache().createOrReplaceTempView("payments")
    spark.sql("select count(*) from payments").collect()
    columns = [
        f"{fn} over (partition by customer_id order by cast(event_time as long) "
        f"range between {seconds - 1} preceding and current row) as c{seconds}_{number}"
        for seconds in WINDOWS.values()
        for number, fn in enumerate(_THEIRS)
    ]
    query = spark.sql(f"select tx_id, {', '.join(columns)} from payments")
    return median_seconds(lambda: query.write.format("noop").mode("overwrite").save())


class BytesKept:
    """Pages of histories as bytes, and how many bytes were written and read."""

    def __init__(self) -> None:
        self.heads: dict[int, bytes] = {}
        self.segments: dict[tuple[int, int], bytes] = {}
        self.held = SegmentCache(_BYTES_HELD)
        self.written = self.read = 0

    def load(self, page: int) -> Load:
        """Return a function that reads a segment of a page."""

        def load(stored: StoredSegment) -> Block:
            block = self.held.get(stored.digest)
            if block is None:
                data = self.segments[page, stored.number]
                self.read += len(data)
                block = decode_segment(data)
                self.held.put(stored.digest, block)
            return block

        return load

    def of(self, page: int) -> Histories:
        """Return the histories of a page."""
        if page not in self.heads:
            return Histories()
        self.read += len(self.heads[page])
        return decode_head(self.heads[page], self.load(page))

    def put(self, page: int, histories: Histories) -> None:
        """Write the new parts of a page."""

        def put(number: int, data: bytes) -> None:
            self.segments[page, number] = data
            self.written += len(data)

        now = store_segments(histories, put, self.load(page), self.held)
        there = digests_of(now)
        for gone in [place for place in self.segments if place[0] == page and place[1] not in there]:
            del self.segments[gone]
        self.heads[page] = encode_head(now)
        self.written += len(self.heads[page])


def live(program: Program, batch: EventBatch) -> tuple[float, BytesKept]:
    """Return the processor seconds for all events in micro-batches, and the bytes written and read.

    Each key group has one page.
    """
    pages, plan = BytesKept(), program.histories
    assert plan is not None
    state = empty_state(program)
    group = key_groups(batch.key, _GROUPS)
    started = time.process_time()
    for start in range(0, len(batch), _OF_MICRO_BATCH):
        rows = np.arange(start, min(start + _OF_MICRO_BATCH, len(batch)))
        watermark_ms = int(batch.time_ms[rows[-1]])
        for page in range(_GROUPS):
            part = batch.take(rows[group[rows] == page])
            if len(part):
                before = replace(state, histories=pages.of(page))
                after = advance(program, before, part, watermark_ms).keyed_state.histories
                pages.put(page, compact_page(plan, after, watermark_ms))
    return time.process_time() - started, pages


def live_of(name: str, batch: EventBatch, repeats: int) -> list[tuple[str, ...]]:
    """Measure the windows of a live job in turn; the least processor time is the one that others disturb least."""
    windows = tuple(WINDOWS) if name == "count, sum, avg" else ("1 min", "90 d")
    programs = {window: program_of([window], _LIVE[name]) for window in windows}
    for program in programs.values():
        live(program, batch.take(np.arange(min(len(batch), 3 * _OF_MICRO_BATCH))))
    runs: dict[str, list[tuple[float, BytesKept]]] = {window: [] for window in windows}
    for _ in range(repeats):
        for window, program in programs.items():
            runs[window].append(live(program, batch))
    least = {window: min(seconds for seconds, _ in results) for window, results in runs.items()}
    rows: list[tuple[str, ...]] = []
    for window in windows:
        stored = runs[window][0][1]
        figures = (stored.written / len(batch), stored.read / len(batch), sum(map(len, stored.heads.values())))
        costs = (f"{1e6 * least[window] / len(batch):.2f}", f"{least[window] / least['1 min']:.2f}")
        rows.append((name, window, *costs, *(f"{figure:,.0f}" for figure in figures)))
    return rows


def show_live(batch: EventBatch, names: Sequence[str], repeats: int) -> None:
    """Measure all functions of a live job."""
    rows = [row for name in names for row in live_of(name, batch, repeats)]
    head = ("functions", "window", "µs an event", "÷ 1 min", "bytes written", "bytes read", "heads at the end")
    show(f"live: micro-batches of {_OF_MICRO_BATCH:,} events, {_GROUPS} pages; bytes an event", head, rows)


def main() -> None:
    """Measure and print."""
    if not ULB.exists():
        print(f"the public card transactions are not at {ULB}")
        return
    parser = ArgumentParser()
    parser.add_argument("events", nargs="?", type=int, default=1_754_155)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--live", action="store_true", help="the functions of a live job alone")
    which.add_argument("--replay", action="store_true", help="the windows of a replay alone")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", action="append", choices=list(_LIVE), help="functions of a live job")
    options = parser.parse_args()
    batch = read(options.events)
    if not options.replay:
        show_live(batch, options.only or list(_LIVE), options.repeats)
    if options.live:
        return
    count, shares = len(batch), in_shares(batch)
    nothing = seconds_of(program_of(None), shares)
    each = {name: seconds_of(program_of([name]), shares) for name in WINDOWS}
    least = each["1 min"]
    rows = [("none, one rule on a field", f"{1e6 * nothing / count:.2f}", "")]
    rows += [(name, f"{1e6 * s / count:.2f}", f"{s / least:.2f}") for name, s in each.items()]
    show(f"four rules, one window, {count:,} events", ("window", "µs an event", "÷ 1 min"), rows)
    ours = seconds_of(program_of(list(WINDOWS)), shares)
    spark = create_session("bench", 1)
    theirs = spark_seconds(spark, count)
    spark.stop()
    rows = [("cep, 20 rules", f"{ours:.2f}", f"{count / ours:,.0f}"),
            ("Spark SQL, 20 columns", f"{theirs:.2f}", f"{count / theirs:,.0f}")]  # fmt: skip
    show("all windows together, one core", ("what", "seconds", "events/s"), rows)
    print(f"Spark SQL ÷ ours: {theirs / ours:.1f}")


if __name__ == "__main__":
    main()
