"""What a look back costs: 20 rules with windows from 1 min to 90 d on 1.75 million card payments.

    python -m tests.bench.history [EVENTS]

1. `engine.advance` on one core, one window for all rules at a time: the cost must not depend on how long it is.
2. The 20 rules together, and the same aggregates by Spark SQL window functions on one core, in the same run. Spark's
   are computed and thrown away; ours are compared with a bound as well, and events that are due are matched.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from cep.base.limits import TIME_MS_MAX
from cep.columnar.batch import TEXT, EventBatch
from cep.columnar.route import key_groups
from cep.engine.advance import advance
from cep.lang.bind import bind
from cep.lang.load import load_text
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule
from cep.nfa.program import Program
from cep.runners.spark.session import create_session
from tests.bench.peer_data import ULB, median_seconds, show

EVENTS = """
event payment { tx_id id  event_time time  customer_id string  terminal_id string  amount decimal(2) }
"""
WINDOWS = {"1 min": 60, "1 h": 3_600, "1 d": 86_400, "7 d": 604_800, "90 d": 7_776_000}
_OURS = ("count(payment over {})", "sum(payment.amount over {})", "avg(payment.amount over {})",
         "max(payment.amount over {})")  # fmt: skip
_THEIRS = ("count(*)", "sum(amount)", "avg(amount)", "max(amount)")
_AT_ONCE = 65_536  # events of one call, as in replay


def program_of(windows: Sequence[str] | None) -> Program:
    """Four rules for each window, of which none ever matches; None: a rule that does not look back."""
    looked_at = ["amount < 0"] if windows is None else [w.format(n) + " < 0" for n in windows for w in _OURS]
    rules = []
    for number, condition in enumerate(looked_at):
        checked = load_text(f"{EVENTS}pattern p by customer_id {{ seq a where a: payment {condition} }}")
        bound, _ = bind(checked.patterns["p"], {})
        assert bound is not None
        rules.append(DeployedRule(f"r{number}", 1, 1, condition, bound))
    return compile_rules(checked.schema, ("customer_id",), rules)


def read(count: int) -> EventBatch:
    """The first events, in their order, by customer."""
    table = pq.read_table(ULB, columns=["tx_id", "event_time", "customer_id", "terminal_id", "amount"]).slice(0, count)
    ids, customers = (table[name].cast(TEXT).combine_chunks() for name in ("tx_id", "customer_id"))
    amounts = pc.round(pc.multiply(table["amount"], 100.0)).cast(pa.int64()).combine_chunks()
    times = np.asarray(table["event_time"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()))
    fields = {"tx_id": ids, "customer_id": customers, "amount": amounts,
              "terminal_id": table["terminal_id"].cast(TEXT).combine_chunks()}  # fmt: skip
    return EventBatch(customers, ids, np.zeros(len(ids), np.int16), times, fields)


def in_shares(batch: EventBatch) -> list[EventBatch]:
    """The events in shares of keys."""
    count = max(1, len(batch) // _AT_ONCE)
    share = key_groups(batch.key, count)
    return [batch.take(np.flatnonzero(share == number)) for number in range(count)]


def seconds_of(program: Program, shares: Sequence[EventBatch]) -> float:
    """Median seconds for all shares."""

    def work() -> None:
        for share in shares:
            advance(program, None, share, TIME_MS_MAX)

    return median_seconds(work)


def spark_seconds(spark: SparkSession, count: int) -> float:
    """The same aggregates by window functions, each row computed and none kept."""
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


def main() -> None:
    """Measure and print."""
    if not ULB.exists():
        print(f"the public card transactions are not at {ULB}")
        return
    batch = read(int(sys.argv[1]) if len(sys.argv) > 1 else 1_754_155)
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
