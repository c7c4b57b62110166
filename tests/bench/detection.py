"""What patterns that look at past events find in labelled data: precision and recall by kind of fraud.

    python -m tests.bench.detection [DAYS]

Simulated card payments with known frauds (the data set of the Fraud Detection Handbook): kind 1 is any payment above
220, kind 2 a terminal whose payments are all copied for 28 days, kind 3 a customer of whose payments a third is five
times as large for 14 days. A fraud is reported DELAY_DAYS after the payment, once for each; the pattern for terminals
knows the reports alone. Real logs of SSH servers have no labels: what is found there is listed.
The patterns are those of `patterns/`, as they are.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from cep.model.rule import UpsertRecord
from cep.rulebook.deploy import deploy
from cep.runners.embedded.replay import replay
from cep.runners.job import Job
from cep.sources.pieces import read_pieces
from tests.bench.peer_data import ULB, show, upsert

ROOT = Path(__file__).parents[2]
SSH = ULB.with_name("ssh_login_events.parquet")
DELAY_DAYS = 7
KINDS = {1: "above 220", 2: "compromised terminal", 3: "leaked customer"}


def rule(file: str, pattern: str) -> UpsertRecord:
    """A rule for a pattern of `patterns/`, with its own parameters."""
    return upsert((ROOT / "patterns" / file).read_text(encoding="utf-8"), pattern)


def found(given: list[UpsertRecord], events: pa.Table) -> pa.Table:
    """The alerts on a table of events."""
    deployment = deploy(given)
    assert deployment.set_aside == (), deployment.set_aside
    job = Job(deployment.schema, deployment.key_domains)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.parquet"
        pq.write_table(events, path)
        replayed = replay(job, deployment.rulebook, read_pieces(path, job.schema), 2)
    assert replayed.dead_letters == (), replayed.dead_letters[:2]
    return replayed.alerts


def payments(days: int) -> tuple[pa.Table, pa.Table]:
    """(events of payments and reports, labels) of the first days."""
    with duckdb.connect() as connection:
        connection.sql(f"""create table p as from '{ULB}'
            where event_time < timestamptz '2018-04-01 00:00:00+00' + interval {days} day""")
        labels = connection.sql("select tx_id::varchar as tx_id, fraud_scenario as kind from p")
        events = connection.sql(f"""
            select 'payment' as event_type, tx_id::varchar as tx_id, null::varchar as report_id, event_time,
                   customer_id::varchar as customer_id, terminal_id::varchar as terminal_id, round(amount, 2) as amount
            from p union all
            select 'fraud_report', null, 'r' || tx_id, event_time + interval {DELAY_DAYS} day,
                   customer_id::varchar, terminal_id::varchar, null
            from p where is_fraud""")
        assert labels is not None
        assert events is not None
        return events.to_arrow_table(), labels.to_arrow_table()


def judged(alerts: pa.Table, labels: pa.Table) -> list[tuple[str, ...]]:
    """For each rule: payments alerted, how many of them are frauds, precision, and recall by kind."""
    recalls = ", ".join(f"count(h.tx_id) filter (kind = {k}) / count(*) filter (kind = {k})" for k in KINDS)
    with duckdb.connect() as connection:
        connection.register("alerts", alerts.select(["rule_id", "events"]))
        connection.register("labels", labels)
        query = connection.sql(f"""
            with hit as (select distinct rule_id, unnest(events).event_id as tx_id from alerts),
                 rules as (select distinct rule_id from hit)
            select r.rule_id, count(h.tx_id), count(h.tx_id) filter (kind > 0), {recalls}
            from rules r cross join labels l left join hit h on h.rule_id = r.rule_id and h.tx_id = l.tx_id
            group by 1 order by 1""")
        assert query is not None
        rows = query.fetchall()
    return [
        (rule, f"{alerted:,}", f"{frauds:,}", f"{frauds / alerted:.1%}", *(f"{share:.1%}" for share in shares))
        for rule, alerted, frauds, *shares in rows
    ]


def logins() -> pa.Table:
    """The attempts to log in of all servers."""
    with duckdb.connect() as connection:
        query = connection.sql(f"""
            select source || '-' || seq as login_id, event_time, source || ' ' || source_ip as source_ip, user_name,
                   event_type = 'login_success' as ok
            from '{SSH}' where event_type in ('login_failed', 'login_success') and source_ip is not null""")
        assert query is not None
        return query.to_arrow_table()


def main() -> None:
    """Match and print."""
    if not ULB.exists():
        print(f"the public card transactions are not at {ULB}")
        return
    events, labels = payments(int(sys.argv[1]) if len(sys.argv) > 1 else 183)
    given = [rule("payments.cep", name) for name in ("leaked_customer", "compromised_terminal")]
    head = ("rule", "payments alerted", "frauds", "precision", *(f"recall: {name}" for name in KINDS.values()))
    title = f"{labels.num_rows:,} card payments, a fraud is reported after {DELAY_DAYS} days"
    show(title, head, judged(found(given, events), labels))
    alerts = found([rule("logins.cep", "guessed_password")], logins()).to_pylist()
    shown = [(a["key"], a["detected_at"].isoformat(" "), a["measures"]) for a in alerts]
    show("SSH: many failures, then a success", ("server, address", "time", "who"), shown)


if __name__ == "__main__":
    main()
