"""On honest events the library is nearly silent: a simulated day of card payments, and two months of a small bank."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from cep.demo.stream import build
from cep.model.rule import UpsertRecord
from cep.rulebook.deploy import deploy
from cep.runners.embedded.replay import replay
from cep.sources.pieces import read_pieces
from cep.step.job import Job
from tests.testing.honest import honest_months
from tests.testing.honest_firms import honest_firms
from tests.testing.library import rules_for

SEED = 11
# Limits per million honest events: for one pattern, and for all of them together.
ALERTS_OF_ONE_MAX = 50
ALERTS_MAX = 150


def alerts_by_pattern(events: pa.Table, rules: list[UpsertRecord], folder: Path) -> Counter[str]:
    deployment = deploy(rules)
    assert deployment.set_aside == ()
    job = Job(deployment.schema, deployment.key_domains)
    pq.write_table(events, folder / "events.parquet")
    replayed = replay(job, deployment.rulebook, read_pieces(folder / "events.parquet", job.schema), 1)
    assert replayed.dead_letters == ()
    return Counter(replayed.alerts["rule_id"].to_pylist())


def check(events: pa.Table, rules: list[UpsertRecord], folder: Path) -> None:
    alerts, millions = alerts_by_pattern(events, rules, folder), events.num_rows / 1e6
    assert max(alerts.values(), default=0) <= max(1, ALERTS_OF_ONE_MAX * millions), alerts
    assert alerts.total() <= max(1, ALERTS_MAX * millions), alerts


def test_on_a_day_of_card_payments(tmp_path: Path) -> None:
    stream = build(SEED)
    planted = pa.array([tx_id for case in stream.planted for tx_id in case.tx_ids])
    honest = stream.payments.filter(pc.invert(pc.is_in(stream.payments["tx_id"], planted)))
    rules = rules_for({"transaction"})
    assert len(rules) >= 16
    check(honest.append_column("event_type", pa.array(["transaction"] * honest.num_rows)), rules, tmp_path)


@pytest.mark.parametrize("event_type", ["money", "account_event", "login"])
def test_in_two_months_of_a_bank(tmp_path: Path, event_type: str) -> None:
    months = honest_months(SEED)
    events = months.filter(pc.equal(months["event_type"], event_type))
    assert events.num_rows > 10_000
    rules = rules_for({event_type})
    assert len(rules) >= 5
    check(events, rules, tmp_path)


def test_around_a_bank(tmp_path: Path) -> None:
    """Sessions, staff, loans, wallets, merchants; each event type has thousands, except the changes of shops."""
    events = honest_firms(SEED)
    counts = Counter(events["event_type"].to_pylist())
    shops = counts.pop("merchant_event")
    assert shops >= 5
    assert min(counts.values()) > 2_000, counts
    rules = rules_for({*counts, "merchant_event"})
    assert len(rules) >= 30
    check(events, rules, tmp_path)
