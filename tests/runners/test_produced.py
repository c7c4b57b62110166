"""Patterns that feed patterns: both replays find the same circles of money as brute force."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import cep
from cep.cli import main as cli
from cep.columnar.decode import KEY_SEPARATOR
from cep.rulebook.deploy import deploy
from cep.runners.embedded import replay as embedded
from cep.runners.output import Replayed
from cep.runners.spark import replay as on_spark
from cep.sinks.json_form import json_lines
from cep.step.job import Job
from cep.step.rules import programs_by_level
from tests.output_of import OutputOf
from tests.rule_files import rule_text
from tests.runners.embedded.cases import replayed_at
from tests.runners.laundering import NAMES, SOURCE, circles, records, transfers
from tests.runners.test_later_rules import written


def run(path: Path, *names: str) -> Replayed:
    return replayed_at(path, records(*names))


def found_in(replayed: Replayed) -> set[tuple[str, str, str, int]]:
    matches = set()
    for alert in replayed.alerts.to_pylist():
        origin, target = alert["key"].split(KEY_SEPARATOR)
        at_ms = round(alert["detected_at"].timestamp() * 1_000)
        matches.add((origin, json.loads(alert["measures"])["via"], target, at_ms))
    return matches


def saved(folder: Path, table: pa.Table) -> Path:
    pq.write_table(table, folder / "transfers.parquet", row_group_size=50)
    return folder / "transfers.parquet"


@pytest.mark.parametrize("seed", range(4))
def test_circles_are_found_over_three_keys(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_EVENTS_AT_ONCE", 40)
    table = transfers(seed, 120)
    expected = circles(table)
    assert expected
    replayed = run(saved(tmp_path, table))
    assert found_in(replayed) == expected
    assert replayed.counters["events"] == 120, "what is produced is not read from the source"
    assert set(replayed.alerts.column("rule_id").to_pylist()) == {"circle"}, "a pattern that produces gives no alerts"


@pytest.mark.spark
def test_spark_finds_the_same_byte_for_byte(spark: SparkSession, tmp_path: Path) -> None:
    table = transfers(9, 150)
    path = saved(tmp_path, table)
    deployment = deploy(records())
    job = Job(deployment.schema, deployment.key_domains)
    theirs = on_spark.replay(job, deployment.rulebook, on_spark.read_events(spark, path), 2)
    ours = run(path)
    assert found_in(ours) == circles(table)
    assert list(json_lines(ours.alerts)) == list(json_lines(theirs.alerts))
    counted = ("events", "events_produced", "runs_started", "alerts[circle@1]")
    assert [ours.counters[name] for name in counted] == [theirs.counters[name] for name in counted]


def test_without_its_source_a_pattern_waits(tmp_path: Path) -> None:
    replayed = run(saved(tmp_path, transfers(1, 60)), "passed_on", "circle")
    assert replayed.alerts.num_rows == 0
    assert replayed.counters["events_produced"] == 0


def test_a_shadow_rule_produces_nothing(tmp_path: Path) -> None:
    shadow_rules = [r.model_copy(update={"status": "shadow"}) if r.id == "passed_on" else r for r in records()]
    assert replayed_at(saved(tmp_path, transfers(1, 60)), shadow_rules).alerts.num_rows == 0


def test_levels_follow_what_is_read() -> None:
    deployment = deploy(records())
    levels = programs_by_level(deployment.rulebook, deployment.schema)
    by_level = [sorted(r.deployed.rule_id for p in programs.values() for r in p.rules) for programs in levels]
    assert by_level == [["closing", "incoming", "outgoing"], ["passed_on"], ["circle"]]
    assert sorted(name for names in by_level for name in names) == sorted(NAMES)


@pytest.mark.parametrize(("order", "count"), [("abc", 1), ("acb", 0), ("cba", 0)])
def test_what_events_of_one_time_become_keeps_their_order(order: str, count: int, tmp_path: Path) -> None:
    """A circle within one millisecond exists only in the order of the transfers' ids."""
    accounts = {"a": ("x", "y"), "b": ("y", "z"), "c": ("z", "x")}
    rows = [(f"t{number}", *accounts[step], 5.0) for number, step in enumerate(order)]
    names = ("tx_id", "payer", "payee", "amount")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    times = pa.array([1_700_000_000_000] * len(rows), pa.timestamp("ms", "UTC"))
    replayed = run(saved(tmp_path, pa.table({**columns, "event_time": times})))
    assert replayed.alerts.num_rows == count


FACTORS = """
event tx { tx_id id  event_time time  card string  rate float  factor float }
event scaled { scaled_id id  event_time time  card string  rate float }
pattern scale by card {
  seq      a
  where    a: tx
  skip     none
  emit     card = a.card, rate = a.rate * a.factor
  produce  scaled
}
pattern unknown by card {
  seq      a
  where    a: scaled  rate is null
}
pattern zeros by card {
  seq      a{2}
  where    a: scaled  rate is not null
  emit     different = distinct(a.rate)
}
"""


def test_numbers_are_as_in_events_of_a_source(tmp_path: Path) -> None:
    """A number that is too large for a float is null, and zero has one sign."""
    (tmp_path / "p.cep").write_text(FACTORS)
    start = datetime(2026, 3, 1, tzinfo=UTC)
    rows = [
        {"tx_id": f"t{n}", "event_time": start + timedelta(seconds=n), "card": "c", "rate": rate, "factor": factor}
        for n, (rate, factor) in enumerate([(0.0, 1.0), (1e300, 1e300), (0.0, -1.0)])
    ]
    alerts = cep.load(tmp_path / "p.cep").match(pa.Table.from_pylist(rows)).table.sort_by("rule_id").to_pylist()
    assert [(a["rule_id"], a["measures"]) for a in alerts] == [("unknown", "{}"), ("zeros", '{"different":1}')]


BUSY = """
event transfer { tx_id id  event_time time  payer string  payee string  amount decimal(2) }
event burst { burst_id id  event_time time  account string  count int }
event echo { echo_id id  event_time time  account string }

pattern busy by payer {
  seq      t
  where    t: transfer  count(transfer over 30 min) >= 3
  skip     none
  emit     account = t.payee, count = 1
  produce  burst
}
pattern relay by account {
  seq      b, c
  where    b: burst
           c: burst  count(burst over 20 min) >= 1
  skip     none
  emit     account = c.account
  produce  echo
}
pattern heard by account {
  seq      e
  where    e: echo
}
pattern twice by account {
  seq      b -> !e -> c  within 2 h
  where    b: burst
           e: echo  account != "a"
           c: burst
  skip     none
}
"""


# The rule of an alert, its statement about the past, its beginning, and the alerts that match its derived events.
Told = tuple[str, datetime | None, bool, datetime, list[str]]


def told_by_alert(replayed: Replayed) -> dict[str, Told]:
    return {
        alert["alert_id"]: (
            alert["rule_id"],
            alert["history_from"],
            alert["history_folded"],
            alert["match_start"],
            [bound["event_id"].rpartition("~")[2] for bound in alert["events"]],
        )
        for alert in replayed.alerts.to_pylist()
    }


def test_what_is_made_of_events_says_what_those_say_of_the_past(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the past of each chain: the latest `history_from` of its parts, and whether a part was folded. For an alert
    because of a missing event, the time since which the job has seen the events that would make it.
    """
    monkeypatch.setattr("cep.nfa.histories.HISTORY_EVENTS_MAX", 7)
    table = transfers(4, 400)
    path = saved(tmp_path, table.append_column("event_type", pa.array(["transfer"] * len(table))))

    def alerts(source: str, *names: str) -> dict[str, Told]:
        return told_by_alert(replayed_at(path, [written(name, source, name) for name in names]))

    # Without `produce`, a pattern gives the alerts whose ids are in the ids of its derived events.
    derived = alerts(BUSY.replace("produce  burst", ""), "busy")
    derived |= alerts(BUSY.replace("produce  echo", ""), "busy", "relay")
    ends = alerts(BUSY, "busy", "relay", "heard", "twice")

    def deep(alert: Told) -> tuple[set[datetime], bool]:
        rule, since, is_folded, _, sources = alert
        below = [deep(derived[source]) for source in sources if source in derived]
        assert (rule == "busy") == (not below)
        times = {one for time_from, _ in below for one in time_from}
        if since is not None:
            times.add(since)
        return times, is_folded or any(folded for _, folded in below)

    first = pc.min(table["event_time"]).as_py()
    # A burst covers 30 minutes; an echo covers a burst and the bursts of 20 minutes.
    reach = timedelta(minutes=20) + timedelta(minutes=30) - timedelta(milliseconds=2)
    for rule, since, is_folded, start, sources in ends.values():
        below = [deep(derived[source]) for source in sources]
        assert below
        times = {one for time_from, _ in below for one in time_from}
        if rule == "twice" and start - reach < first:
            times.add(first)
        assert since == (max(times) if times else None), rule
        assert is_folded == any(folded for _, folded in below)
    for rule in ("heard", "twice"):
        marks = [(since is None, is_folded) for name, since, is_folded, *_ in ends.values() if name == rule]
        assert len(set(marks)) >= 2, "some say it, some do not"
        assert {is_folded for _, is_folded in marks} == {True, False}


def test_why_not_says_that_nobody_produces_what_a_rule_reads(tmp_path: Path, output_of: OutputOf) -> None:
    (tmp_path / "patterns.cep").write_text(SOURCE)
    (tmp_path / "circle.toml").write_text(rule_text("circle", "patterns.cep"))
    path = saved(tmp_path, transfers(1, 10))
    command = ["--rules", str(tmp_path), "--rule", "circle", "--key", "a", "--key", "b", "--events", str(path)]
    assert "hop, back: no rule in force produces them" in output_of(cli.main(["why-not", *command])).out
