"""Rules that read past events: replay and live give the same alerts, and a restart forgets nothing."""

from __future__ import annotations

from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cep.model.rule import UpsertRecord
from tests.runners.spark import transactions
from tests.runners.spark.live_cases import END, LiveRun, make_job, replayed, rows, split

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SOURCE = """
event payment {
  tx_id        id
  event_time   time
  customer_id  string
  terminal_id  string
  amount       decimal(2)
}
pattern unusual by customer_id {
  seq    a
  where  a: payment  amount > 4 * avg(payment.amount over previous 30 d) and count(payment over previous 30 d) > 10
  emit   amount = a.amount
}
pattern many_terminals by customer_id {
  seq    a
  where  a: payment  distinct(payment.terminal_id over day in "Europe/Paris") >= 5 and first_seen(terminal_id) < 1 min
  emit   amount = a.amount
}
pattern wakes_up by terminal_id {
  seq    a
  where  a: payment  exists(payment) and not exists(payment over previous 12 d) and last(payment).amount < amount
  emit   amount = a.amount
}
pattern beyond_most by customer_id {
  seq    a
  where  a: payment  amount > 1.5 * approx_percentile(payment.amount over previous 40 d, 95)
                     and approx_distinct(payment.terminal_id over 25 d) > 8
  emit   amount = a.amount
}
pattern comes_back by customer_id {
  seq    a
  where  a: payment  count(payment over 20 d by terminal_id) == 4
  emit   amount = a.amount
}
pattern rises by customer_id {
  seq    a
  where  a: payment  amount > 4 * last(payment by terminal_id).amount and exists(payment over 40 d by terminal_id)
  emit   amount = a.amount
}
"""
NAMES = ("unusual", "many_terminals", "wakes_up", "beyond_most", "comes_back", "rises")


def records() -> list[UpsertRecord]:
    """Return rules that read past events."""
    return [r.model_copy(update={"source": SOURCE}) for r in transactions.records(*NAMES)]


def history_lines() -> list[bytes]:
    """Return payments in the order of their times."""
    table = transactions.transactions().sort_by([("event_time", "ascending"), ("tx_id", "ascending")])
    return [orjson.dumps(row | {"event_type": "payment"}) for row in _rows(table)]


@pytest.mark.parametrize(("files", "pages"), [(3, 2)])
def test_replay_and_live_agree(spark: SparkSession, tmp_path: Path, files: int, pages: int) -> None:
    rules_of_test, lines = records(), history_lines()
    job = make_job(rules_of_test, 0, pages)
    live = LiveRun(spark, tmp_path, job, tuple(record.to_json() for record in rules_of_test))
    parts = split(lines, files)
    live.phase(parts[:1])
    live.phase(parts[1:])
    live.phase([], [END])
    replay_result = replayed(spark, tmp_path / "events", job, rules_of_test)
    assert set(replay_result.alerts["rule_id"].to_pylist()) == set(NAMES)
    assert live.alerts() == rows(replay_result.alerts)


def _rows(table: pa.Table) -> list[dict[str, object]]:
    columns = table.to_pydict()
    columns["event_time"] = [t.isoformat().replace("+00:00", "Z") for t in columns["event_time"]]
    for name in ("tx_id", "customer_id", "terminal_id"):
        columns[name] = [str(v) for v in columns[name]]
    columns["amount"] = [round(v, 2) for v in columns["amount"]]
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
