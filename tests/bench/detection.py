"""How well patterns that look at past events detect fraud in labelled data: precision and recall by kind of fraud.

    python -m tests.bench.detection [DAYS]

**Card payments** with known frauds, simulated (the data set of the Fraud Detection Handbook): kind 1 is any payment
above 220, kind 2 a terminal whose payments are all copied for 28 days, kind 3 a customer for whom a third of the
payments is five times as large for 14 days. Each fraud is reported once, DELAY_DAYS after the payment; the pattern for
terminals sees only the reports. Parameters are chosen on the first two thirds of the days: for each pattern, the choice
with the largest harmonic mean of precision and recall of its kind. The result is the detection in the last third, which
did not influence the choice.

**Logins**: real logs of SSH servers, without labels of break-ins. The bench therefore plants break-ins: each address
that has only failures in the logs gets a success ten seconds after the last failure, with the user name of that
failure. The kind of the failures does not matter. Successes in the original logs count as legitimate; the bench lists
those with an alert, for a person to judge. (Two addresses look staged: dozens of users, after failures.)

The patterns are the files in `patterns/`, unchanged.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from cep.lang.load import bundle_source
from cep.model.rule import ParamValue, UpsertRecord
from cep.rulebook.deploy import deploy
from cep.runners.embedded.replay import replay
from cep.sources.pieces import read_pieces
from cep.step.job import Job
from tests.bench.peer_data import ULB, show, upsert

ROOT = Path(__file__).parents[2]
SSH = ULB.with_name("ssh_login_events.parquet")
DELAY_DAYS = 7
KINDS = {1: "above 220", 2: "compromised terminal", 3: "leaked customer"}
# By pattern: its kind of fraud, and the parameter values to choose from; each first value is the pattern's default.
CHOICES: Mapping[str, tuple[int, Mapping[str, tuple[ParamValue, ...]]]] = {
    "leaked_customer": (3, {"times": (3.0, 2.5, 4.0), "back": ("30 d", "14 d")}),
    "compromised_terminal": (2, {"reports": (2, 1, 3), "back": ("4 d", "7 d", "2 d")}),
}
TRIES = (10, 5, 3)  # failures of one user in an hour: the pattern's default, and lower numbers


def rule(file: str, pattern: str, name: str, params: Mapping[str, ParamValue]) -> UpsertRecord:
    """Return a rule for a pattern of `patterns/`."""
    record = upsert(bundle_source(ROOT / "patterns" / file), pattern)
    return record.model_copy(update={"id": name, "params": dict(params)})


def choices() -> dict[str, tuple[str, dict[str, ParamValue]]]:
    """Return the pattern and parameters of each rule, by rule name."""
    return {
        f"{pattern}_{number}": (pattern, dict(zip(offered, values, strict=True)))
        for pattern, (_, offered) in CHOICES.items()
        for number, values in enumerate(product(*offered.values()))
    }


def found(records: Iterable[UpsertRecord], events: pa.Table) -> pa.Table:
    """Return the alerts on a table of events."""
    deployment = deploy(list(records))
    assert deployment.set_aside == (), deployment.set_aside
    job = Job(deployment.schema, deployment.key_domains)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.parquet"
        pq.write_table(events, path)
        replayed = replay(job, deployment.rulebook, read_pieces(path, job.schema), 2)
    assert replayed.dead_letters == (), replayed.dead_letters[:2]
    return replayed.alerts


# ----------------------------------------------------------------------------------------------------- payments


def payments(days: int) -> tuple[pa.Table, pa.Table]:
    """Return (events of payments and reports, labels) of the first days; labels mark the days for the choice."""
    with duckdb.connect() as connection:
        connection.sql(f"""create table p as from '{ULB}'
            where event_time < timestamptz '2018-04-01 00:00:00+00' + interval {days} day""")
        labels = connection.sql(f"""
            select tx_id::varchar as tx_id, fraud_scenario as kind,
                   event_time < timestamptz '2018-04-01 00:00:00+00' + interval {days * 2 // 3} day as is_chosen_on
            from p""")
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


def judged(alerts: pa.Table, labels: pa.Table) -> dict[tuple[str, bool], tuple[int, int, list[float]]]:
    """Judge each rule on each part: payments alerted, frauds among them, recall by kind.

    The key is (rule, whether parameters were chosen on the part).
    """
    recalls = ", ".join(f"count(h.tx_id) filter (kind = {k}) / count(*) filter (kind = {k})" for k in KINDS)
    with duckdb.connect() as connection:
        connection.register("alerts", alerts.select(["rule_id", "events"]))
        connection.register("labels", labels)
        query = connection.sql(f"""
            with hit as (select distinct rule_id, unnest(events).event_id as tx_id from alerts),
                 rules as (select distinct rule_id from hit)
            select r.rule_id, l.is_chosen_on, count(h.tx_id), count(h.tx_id) filter (kind > 0), {recalls}
            from rules r cross join labels l left join hit h on h.rule_id = r.rule_id and h.tx_id = l.tx_id
            group by 1, 2""")
        assert query is not None
        rows = query.fetchall()
    return {
        (rule, part): (alerted, frauds, [s or 0.0 for s in shares]) for rule, part, alerted, frauds, *shares in rows
    }


def detect_payments(days: int) -> None:
    """Choose on the first part, report on both."""
    events, labels = payments(days)
    offered = choices()
    rules = (rule("payments.cep", pattern, name, params) for name, (pattern, params) in offered.items())
    figures = judged(found(rules, events), labels)
    nothing = (0, 0, [0.0] * len(KINDS))
    rows = []
    for pattern, (kind, _) in CHOICES.items():

        def quality(name: str, kind: int = kind) -> float:
            alerted, frauds, recalls = figures.get((name, True), nothing)
            precision, recall = frauds / max(alerted, 1), recalls[kind - 1]
            return 2 * precision * recall / max(precision + recall, 1e-9)

        names = [name for name, (candidate, _) in offered.items() if candidate == pattern]
        best = max(names, key=quality)
        for name in dict.fromkeys((best, names[0])):
            settings = " ".join(f"{key}={value}" for key, value in offered[name][1].items())
            for part, title in ((True, "chosen on"), (False, "held out")):
                alerted, frauds, recalls = figures.get((name, part), nothing)
                shares = (f"{frauds / max(alerted, 1):.1%}", *(f"{share:.1%}" for share in recalls))
                choice = "chosen" if name == best else "as written"
                rows.append((f"{pattern} {settings} ({choice})".replace(" d", "d"), title, f"{alerted:,}", *shares))
    print(
        f"{labels.num_rows:,} card payments, a fraud is reported after {DELAY_DAYS} days. Parameters are chosen on the"
    )
    print(f"first {days * 2 // 3} of {days} days. Recall by kind: {', '.join(f'{k} {n}' for k, n in KINDS.items())}.")
    show("", ("rule", "part", "alerted", "precision", *(f"recall {kind}" for kind in KINDS)), rows)


# ------------------------------------------------------------------------------------------------------- logins


def logins() -> tuple[pa.Table, int]:
    """Return the logins of all servers with planted successes, and the number of these."""
    with duckdb.connect() as connection:
        connection.sql(f"""create table logins as
            select source || '-' || seq as login_id, event_time, source || ' ' || source_ip as source_ip, user_name,
                   event_type = 'login_success' as ok
            from '{SSH}' where event_type in ('login_failed', 'login_success') and source_ip is not null""")
        connection.sql("""create table planted as
            select 'planted-' || row_number() over (order by source_ip), max(event_time) + interval 10 second,
                   source_ip, arg_max(user_name, event_time), true
            from logins group by source_ip having not bool_or(ok)""")
        events = connection.sql("from logins union all from planted")
        assert events is not None
        return events.to_arrow_table(), connection.execute("select count(*) from planted").fetchall()[0][0]


def detect_logins() -> None:
    """Count the planted break-ins that are detected, and list the other alerts."""
    events, planted = logins()
    rules = [rule("logins.cep", "guessed_password", f"tries_{tries}", {"tries": tries}) for tries in TRIES]
    alerts = found(rules, events).to_pylist()
    rows = []
    for tries in TRIES:
        is_planted = [
            a["events"][-1]["event_id"].startswith("planted-") for a in alerts if a["rule_id"] == f"tries_{tries}"
        ]
        precision = f"{sum(is_planted) / len(is_planted):.1%}" if is_planted else "-"
        rows.append(
            (f"tries = {tries}", str(planted), str(len(is_planted)), precision, f"{sum(is_planted) / planted:.1%}")
        )
    title = f"SSH: {events.num_rows:,} attempts to log in, a break-in after the failures of each of {planted} addresses"
    show(title, ("guessed_password", "break-ins", "alerts", "precision", "recall"), rows)
    others = [
        (a["key"], a["detected_at"].isoformat(" "), a["measures"])
        for a in alerts
        if a["rule_id"] == f"tries_{TRIES[0]}" and not a["events"][-1]["event_id"].startswith("planted-")
    ]
    show(
        f"successes of the logs themselves that are alerted, tries = {TRIES[0]}",
        ("server, address", "time", "who"),
        others,
    )


def main() -> None:
    """Match and print."""
    if not ULB.exists():
        print(f"the public card transactions are not at {ULB}")
        return
    detect_payments(int(sys.argv[1]) if len(sys.argv) > 1 else 183)
    detect_logins()


if __name__ == "__main__":
    main()
