"""A rule that comes to a running job: its alerts without a `history_from` equal the replay's alerts.

Alerts of the replay whose windows reach back further are missing. The epoch on alerts, letters and status depends on
the control records, not on their cuts.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.base.text import utc_text
from cep.columnar.batch import TEXT, EventBatch
from cep.engine.keyed_state import KeyedState
from cep.engine.migrate import migrate_state
from cep.engine.reach import history_from_ms
from cep.lang.load import load_text
from cep.lang.walk import histories
from cep.model.rule import PauseRecord, ResumeRecord, RetireRecord, SnoozeRecord, UpsertRecord
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.run import Pace
from cep.state.memory import MemoryStore
from cep.step.job import Job
from cep.step.match import MatchOutput, match_events
from cep.step.rules import Programs, rule_status
from tests.engine.bridge import through_bytes
from tests.runners.embedded.outside import run_once
from tests.runners.spark.live_cases import END, LiveRun, make_job, time_ms, write_file

DOMAIN = ("card_id",)
EVENTS = """
event payment { tx_id id  event_time time  card_id string  shop_id string?  amount decimal(2)  retain_it }
"""
CONDITIONS = [
    "count(payment over 40 s) >= 3",
    "sum(payment.amount over previous 25 s) > 3.00",
    "max(payment.amount over 30 s where amount < 5.00) < 4.00",
    "count(payment over 60 s by shop_id) >= 2",
    "distinct(payment.shop_id over 50 s) == 1",
    "stddev(payment.amount over 45 s) < 1.5",
    "median(payment.amount over 35 s) > 2.00",
    "not exists(payment over previous 20 s)",
    "exists(payment where amount > 6.00)",
    "last(payment).amount > 4.00",
    "first_seen(shop_id) < 30 s",
    "approx_distinct(payment.shop_id over 64 s) >= 2",
    "approx_percentile(payment.amount over 30 s, 80) > 5.0",
    'count(payment over hour in "Europe/Paris") < 9',
]
START_MS = 1_700_000_000_000


CHAIN = """
event burst { burst_id id  event_time time  shop string? }
pattern early by card_id {
  seq a where a: payment amount > 5.00 emit shop = a.shop_id produce burst
}
pattern late by card_id {
  seq a where a: payment count(payment over 90 s) >= 2 emit shop = a.shop_id produce burst
}
pattern heard by shop { seq b, c where b: burst c: burst }
pattern silent by shop { seq b -> !c within 60 s where b: burst c: burst skip none }
"""


def record(number: int, condition: str, retain: str, effective: str | None = None) -> UpsertRecord:
    source = f"{EVENTS.replace('retain_it', retain)}\npattern p by card_id {{ seq a where a: payment {condition} }}"
    return written(f"r{number}", source, "p", effective)


def written(rule_id: str, source: str, pattern: str, effective: str | None = None) -> UpsertRecord:
    fields = {"id": rule_id, "version": 1, "pattern": pattern, "status": "live", "severity": "low", "owner": "o"}
    return UpsertRecord.model_validate({**fields, "message": "m", "source": source, "effective_at": effective})


def payments(random: Random, count: int) -> EventBatch:
    times = np.cumsum([random.choice((0, 500, 3_000, 9_000, 40_000)) for _ in range(count)]) + START_MS
    columns = {
        "card_id": pa.array([random.choice("xyz") for _ in range(count)], TEXT),
        "shop_id": pa.array([random.choice(("s1", "s2", None)) for _ in range(count)], TEXT),
        "amount": pa.array([random.randint(0, 800) for _ in range(count)], pa.int64()),
    }
    ids = pa.array([f"{number:05}" for number in range(count)], TEXT)
    return EventBatch(columns["card_id"], ids, np.zeros(count, np.int16), times.astype(np.int64), columns)


def lived(
    book: Rulebook, batch: EventBatch, cuts: list[int], later: Mapping[int, Sequence[UpsertRecord | ResumeRecord]]
) -> pa.Table:
    """Return the alerts of micro-batches that end at the cuts, with records after them; state goes through bytes."""
    programs, keyed_state, output = Programs(), None, MatchOutput()
    for first, end in zip([0, *cuts], [*cuts, len(batch)], strict=True):
        book = rulebook_from_bytes(rulebook_bytes(book), book.schema, (DOMAIN,))
        for change in later.get(first, []):
            assert book.apply(change, int(batch.time_ms[first - 1])).kind == "applied"
        program = programs.of(book, book.schema)[DOMAIN]
        fitted: KeyedState | None = None if keyed_state is None else migrate_state(keyed_state, program)[0]
        part = batch.take(np.arange(first, end))
        watermark_ms = int(batch.time_ms[end - 1])
        keyed_state = through_bytes(program, match_events(program, fitted, part, watermark_ms, output), watermark_ms)
    return output.alert_table()


@pytest.mark.parametrize("seed", range(8))
def test_live_and_replay_differ_only_where_an_alert_says_so(seed: int) -> None:
    random = Random(seed)
    retain = random.choice(("", "retain 45 s"))
    schema = load_text(EVENTS.replace("retain_it", retain)).schema
    batch = payments(random, 300)
    cuts = sorted(random.sample(range(20, 280), 6))
    there, *coming = random.sample(range(len(CONDITIONS)), 8)
    initial = record(there, CONDITIONS[there], retain)
    later: dict[int, list[UpsertRecord]] = {}
    for number in coming:
        cut = random.choice(cuts[:3])
        starts = utc_text(int(batch.time_ms[cut - 1]) + random.choice((1, 5_000)))
        later.setdefault(cut, []).append(record(number, CONDITIONS[number], retain, starts))
    book, every = Rulebook(schema, (DOMAIN,)), Rulebook(schema, (DOMAIN,))
    for target in (book, every):
        assert target.apply(initial, None).kind == "applied"
    for changes in later.values():
        for change in changes:
            outcome = every.apply(change, None)
            assert outcome.kind == "applied", outcome.full_reason
    live_alerts = lived(book, batch, cuts, later).to_pylist()
    output = MatchOutput()
    match_events(Programs().of(every, schema)[DOMAIN], None, batch, TIME_MS_MAX, output)
    replayed = output.alert_table().to_pylist()
    assert all(alert["history_from"] is None for alert in replayed), "a replay has seen all"
    # The live job's rules, whose epochs are in the order of their arrival.
    rulebook = Rulebook(schema, (DOMAIN,))
    rulebook.apply(initial, None)
    for cut in sorted(later):
        for change in later[cut]:
            rulebook.apply(change, int(batch.time_ms[cut - 1]))
    pauses = {
        rule.rule_id: [(h.window, ms) for h, ms in zip(histories(rule.pattern), rule.complete_ms[1:], strict=False)]
        for rule in rulebook.deployed()
    }

    def lacks(alert: dict[str, object]) -> bool:
        start = np.array([int(alert["match_start"].timestamp() * 1_000)])  # type: ignore[attr-defined]
        return bool(history_from_ms([], start, START_MS, pauses[str(alert["rule_id"])])[0] > TIME_MS_MIN)

    def same(alerts: list[dict[str, object]]) -> list[str]:
        return sorted(repr({k: v for k, v in alert.items() if k != "epoch"}) for alert in alerts)

    assert same([a for a in live_alerts if a["history_from"] is None]) == same([a for a in replayed if not lacks(a)])
    assert all(lacks(alert) == (alert["history_from"] is not None) for alert in live_alerts)
    assert {a["rule_id"] for a in live_alerts} - {initial.id}, "rules that came later have alerts"
    assert pauses[initial.id] == []


@pytest.mark.parametrize("is_planned", [False, True])
def test_a_rule_that_is_paused_before_its_start_knows_its_past(is_planned: bool) -> None:
    batch, schema = payments(Random("paused"), 200), load_text(EVENTS.replace("retain_it", "")).schema
    starts, pauses, resumes = (utc_text(int(batch.time_ms[row]) + 1) for row in (49, 40, 99))
    first: list[UpsertRecord | PauseRecord] = [
        record(0, CONDITIONS[0], "", starts if is_planned else None),
        record(1, "amount > 7.90", ""),
        PauseRecord(id="r0", version=1, effective_at=pauses if is_planned else None),
    ]
    resumption = ResumeRecord(id="r0", version=2, effective_at=resumes)
    book, every = Rulebook(schema, (DOMAIN,)), Rulebook(schema, (DOMAIN,))
    for target in (book, every):
        assert [target.apply(change, None).kind for change in first] == ["applied"] * 3
    assert every.apply(resumption, None).kind == "applied"
    live_alerts = lived(book, batch, [30, 100], {100: [resumption]}).drop_columns(["epoch"])
    output = MatchOutput()
    match_events(Programs().of(every, schema)[DOMAIN], None, batch, TIME_MS_MAX, output)
    assert live_alerts.equals(output.alert_table().drop_columns(["epoch"]))
    assert live_alerts["history_from"].null_count == len(live_alerts) > 0
    assert set(live_alerts["rule_id"].to_pylist()) == {"r0", "r1"}


@pytest.mark.parametrize("seed", range(6))
def test_a_rule_that_comes_to_busy_keys_says_both(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds before the rule came do not suit the rule: only an alert that says so may differ from the replay's."""
    monkeypatch.setattr("cep.nfa.histories.HISTORY_EVENTS_MAX", 7)
    random = Random(f"busy {seed}")
    batch = payments(random, 260)
    times = np.cumsum([random.choice((0, 300, 900, 2_500, 6_000)) for _ in range(len(batch))]) + START_MS
    batch = EventBatch(batch.key, batch.event_id, batch.event_type, times.astype(np.int64), batch.columns)
    schema = load_text(EVENTS.replace("retain_it", "")).schema
    initial = record(0, "sum(payment.amount over 90 s) > 0.00", "")
    texts = (
        "avg(payment.amount over 80 s) < 99.00",
        "sum(payment.amount over 60 s) < 30.00",
        "min(payment.amount over 70 s) > 0.50",
    )
    cuts = sorted(random.sample(range(60, 240), 6))
    from_ms = int(batch.time_ms[cuts[1] - 1]) + 1
    coming = [record(number, text, "", utc_text(from_ms)) for number, text in enumerate(texts, 1)]
    coming.append(record(4, "sum(payment.amount over 90 s) > 9.00", "", utc_text(from_ms)))  # stored already
    book, every = Rulebook(schema, (DOMAIN,)), Rulebook(schema, (DOMAIN,))
    assert [target.apply(initial, None).kind for target in (book, every)] == ["applied"] * 2
    assert {every.apply(change, None).kind for change in coming} == {"applied"}
    live_alerts = {alert["alert_id"]: alert for alert in lived(book, batch, cuts, {cuts[1]: coming}).to_pylist()}
    output = MatchOutput()
    match_events(Programs().of(every, schema)[DOMAIN], None, batch, TIME_MS_MAX, output)
    replayed = {alert["alert_id"]: alert for alert in output.alert_table().to_pylist()}
    whole = {name for name, alert in live_alerts.items() if alert["history_from"] is None}
    assert {repr(live_alerts[name]) for name in whole} <= {repr(alert) for alert in replayed.values()}
    marked = [alert for name, alert in live_alerts.items() if name not in whole]
    assert all(alert["history_folded"] and alert["rule_id"] in ("r1", "r2", "r3") for alert in marked)
    assert {int(alert["history_from"].timestamp() * 1_000) for alert in marked} == {from_ms}
    assert any(alert["history_folded"] for name, alert in live_alerts.items() if name in whole), "later on all is known"


def payment_lines() -> list[bytes]:
    """Return the same payments as JSON lines of a source."""
    batch = payments(Random("lines"), 400)
    columns = {name: column.to_pylist() for name, column in batch.columns.items()}
    return [
        orjson.dumps(
            {"event_type": "payment", "tx_id": batch.event_id[row].as_py(), "event_time": utc_text(int(time_ms)),
             "card_id": columns["card_id"][row], "shop_id": columns["shop_id"][row],
             "amount": columns["amount"][row] / 100}
        )
        for row, time_ms in enumerate(batch.time_ms.tolist())
    ]  # fmt: skip


def ran(
    folder: Path, job: Job, initial: tuple[bytes, ...], phases: list[tuple[list[bytes], list[bytes]]]
) -> list[bytes]:
    """Run the phases as `cep run` does: a start for each phase, records before events."""
    for name in ("events", "control"):
        (folder / name).mkdir(parents=True)
    for number, (lines, records) in enumerate(phases):
        for name, content in (("events", lines), ("control", records)):
            if content:
                write_file(folder / name / f"{number}.jsonl", content, number)
        run_once(folder, job, initial, Workers(2), Pace(interval_ms=1, records_max=90))
    return sorted(line for path in (folder / "alerts").iterdir() for line in path.read_bytes().splitlines())


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.always
def test_both_live_runners_say_the_same_of_rules_that_come_later(spark: SparkSession, tmp_path: Path) -> None:
    lines = payment_lines()
    there, *coming = (record(number, condition, "") for number, condition in enumerate(CONDITIONS[:8]))
    chain = EVENTS.replace("retain_it", "") + CHAIN
    there_too = [written(name, chain, name) for name in ("early", "heard", "silent")]
    coming.append(written("r8", chain, "late"))
    parts = [lines[:150], lines[150:250], lines[250:]]
    first_ms = [time_ms(part[0]) for part in parts[1:]]
    later = [
        [r.model_copy(update={"effective_at": utc_text(start_ms)}).to_json() for r in coming[number::2]]
        for number, start_ms in enumerate(first_ms)
    ]
    job = replace(make_job([there, *there_too]), levels_count=2)
    initial = tuple(r.to_json() for r in (there, *there_too))
    live = LiveRun(spark, tmp_path / "spark", job, initial)
    phases = [(parts[0], []), ([], later[0]), (parts[1], []), ([], later[1]), (parts[2], []), ([], [END])]
    for events, records in phases:
        live.phase([events] if events else [], records)
    live_alerts = live.alerts()
    assert live_alerts == ran(tmp_path / "embedded", job, initial, phases)
    rules_and_times = {
        (alert["rule_id"], alert["history_from"]) for alert in map(orjson.loads, live_alerts) if "history_from" in alert
    }
    starts = {utc_text(start_ms) for start_ms in first_ms}
    # The histories of the other rules were already stored: the payments by the first rule, their fields by the rules
    # that came before.
    assert {name for name, moment in rules_and_times if moment in starts} == {"r1", "r3", "r5", "heard", "silent"}
    for name in ("heard", "silent"):  # events of the rule that came later, and their absence
        times = [alert.get("history_from") for alert in map(orjson.loads, live_alerts) if alert["rule_id"] == name]
        assert set(times) == {None, utc_text(first_ms[1])}, name
    assert {"r2", "r4", "r6"} <= {orjson.loads(line)["rule_id"] for line in live_alerts}


Phase = tuple[list[bytes], list[list[bytes]]]  # events, and files of control records that come with them
COMING = 7


def job_and_phases() -> tuple[Job, tuple[bytes, ...], list[Phase]]:
    """Return a job, its first rules, and its phases: each control record in its own file, of very different sizes."""
    there, *rules = (record(number, "amount > 1.00", "") for number in range(COMING + 1))
    lines = payment_lines()[:240]
    padded = [
        rule.model_copy(update={"source": f"{rule.source}\n#{'.' * 1_000 * (number * 5 % COMING)}\n"})
        for number, rule in enumerate(rules)
    ]
    files = [[rule.model_copy(update={"effective_at": utc_text(time_ms(lines[120]))}).to_json()] for rule in padded]
    broken = padded[0].model_copy(update={"version": 2, "source": EVENTS + "pattern p by card_id {"})
    files.insert(2, [broken.to_json()])
    files.insert(4, [b"{nothing" + b" " * 9_000])
    files.append([RetireRecord(id="unheard_of", version=1).to_json(), broken.to_json(), padded[2].to_json()])
    files.append([SnoozeRecord(id=rules[1].id, version=1, until="2026-01-01T00:00:00Z", by="a").to_json()])
    lines.insert(130, b"{no event")
    phases: list[Phase] = [(lines[:120], []), (lines[120:], files), ([], [[END]])]
    return make_job([there]), (there.to_json(),), phases


def ran_with_letters(
    folder: Path, job: Job, initial: tuple[bytes, ...], phases: list[Phase]
) -> tuple[list[bytes], list[bytes], dict[str, Any]]:
    """Return alerts, letters and status of `cep run` with these phases, a start each."""
    for name in ("events", "control"):
        (folder / name).mkdir(parents=True)
    number = 0
    for lines, files in phases:
        for name, content in [("events", lines), *(("control", file) for file in files)]:
            if content:
                write_file(folder / name / f"{number:03}.jsonl", content, number)
                number += 1
        _, rulebook = run_once(folder, job, initial, Workers(1), Pace(interval_ms=1))
    alerts, letters = (
        sorted(line for path in (folder / name).iterdir() for line in path.read_bytes().splitlines())
        for name in ("alerts", "letters")
    )
    return alerts, letters, rule_status(rulebook)


@pytest.mark.parametrize("seed", range(4))
def test_no_cut_of_the_control_records_changes_an_epoch(seed: int) -> None:
    job, initial, phases = job_and_phases()
    controls = [line for _, files in phases for file in files for line in file]
    random = Random(seed)
    cuts = sorted(random.sample(range(1, len(controls)), random.randint(1, len(controls) - 1)))
    whole = letters_of(job, initial, [controls])
    parts = [controls[first:end] for first, end in itertools.pairwise([0, *cuts, len(controls)])]
    assert letters_of(job, initial, parts) == whole
    assert [letter["epoch"] for letter in map(orjson.loads, whole[0])] == [3, 4, 9]


def letters_of(job: Job, initial: tuple[bytes, ...], steps: list[list[bytes]]) -> tuple[list[bytes], bytes]:
    """Return the letters of micro-batches with only control records, and the rulebook after them."""
    engine = Engine(job, initial, MemoryStore(), Workers(1))
    letters = [letter for step in steps for letter in engine.step([], tuple(step), {}).dead_letters]
    return letters, rulebook_bytes(engine.rulebook.rulebook)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.always
def test_both_live_runners_say_the_same_of_records_that_come_together(spark: SparkSession, tmp_path: Path) -> None:
    job, initial, phases = job_and_phases()
    live = LiveRun(spark, tmp_path / "spark", job, initial)
    for lines, files in phases:
        for number, content in enumerate([lines, *files]):
            if content and number:
                write_file(live.folder / "control" / f"{live.files_count:03}.jsonl", content, live.files_count)
                live.files_count += 1
            elif content:
                live._add("events", content)
        live.phase([])
    alerts, letters, status = ran_with_letters(tmp_path / "embedded", job, initial, phases)
    assert live.alerts() == alerts
    epochs = {alert["rule_id"]: alert["epoch"] for alert in map(orjson.loads, alerts)}
    assert epochs == {f"r{number}": number + 1 for number in range(COMING + 1) if number != 2}, "in their order"
    # A held alert is a letter of `cep run`, and in a folder of its own on Spark.
    assert sorted(map(repr, live.letters)) == sorted(
        repr(letter) for letter in map(orjson.loads, letters) if "held" not in letter
    )
    job_status = orjson.loads((live.checkpoint.parent / "rule_status.json").read_bytes())
    assert (job_status["epoch"], job_status["content_hash"]) == (status["epoch"], status["content_hash"])
