"""Replay and live give the same alerts for every cut of the stream; bad records are set aside and reported.

The same holds for rules that read past events, for patterns that feed patterns, for all faults in a topic, for event
types that change, and for every form of files.
"""

import json
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cep.base.errors import UsageError
from cep.base.schema import Kind, Schema, Type
from cep.base.text import utc_text
from cep.model.rule import RetireRecord, UpsertRecord
from cep.rulebook.deploy import deploy
from cep.rulebook.files import read_rules
from cep.runners.live_checkpoint import open_checkpoint, read_job
from cep.runners.output import BatchReport
from cep.runners.spark.group_parts import PAGES
from cep.runners.spark.live import LiveSettings
from cep.runners.spark.live_output import LiveOutput
from cep.runners.spark.sources import FolderSource
from cep.runners.spark.state import partitions_of, stored_part
from cep.sinks.files import DeadLetterFiles
from cep.sources.live.base import decode_chunks
from cep.sources.live.files import FilesSource
from cep.step.job import ARRIVAL, Job
from cep.step.validate import validate_events
from tests.cli.test_rules import RULE
from tests.real_kafka import KafkaCluster
from tests.runners.laundering import circles, transfers
from tests.runners.laundering import records as laundering
from tests.runners.spark import transactions
from tests.runners.spark.live_cases import (
    END,
    LiveRun,
    changed_schema,
    disordered,
    make_job,
    payments,
    replayed,
    rows,
    rules,
    run_live,
    split,
    time_ms,
    write_file,
)
from tests.runners.spark.live_kafka import TopicRun, mix
from tests.seeds import RELEASE
from tests.sources.test_live_forms import BROKEN_FORMS, GOOD_FORMS, write
from tests.sources.test_live_forms import rows as form_rows

pytestmark = pytest.mark.spark


LATENESS_MS = 90_000


def as_records(*records: UpsertRecord) -> tuple[bytes, ...]:
    return tuple(record.to_json() for record in records)


@pytest.mark.parametrize(
    ("files", "partitions", "pages", "lateness_ms"),
    [(1, 1, 4, 0), (4, 4, 1, 0), (3, 4, 4, LATENESS_MS), (6, 1, 1, LATENESS_MS)],
)
def test_replay_and_live_agree(
    spark: SparkSession, tmp_path: Path, files: int, partitions: int, pages: int, lateness_ms: int
) -> None:
    rules_by_id = rules()
    lines = payments(21)
    arriving = disordered(lines, lateness_ms, 4) if lateness_ms else lines
    job = make_job(rules_by_id.values(), lateness_ms, pages)
    live = LiveRun(spark, tmp_path, job, as_records(*rules_by_id.values()), partitions)
    live.phase(split(arriving, files))
    live.phase([], [END])
    replay_result = replayed(spark, tmp_path / "events", job, rules_by_id.values())
    assert replay_result.alerts.num_rows == 44, "what the stream has planted"
    assert live.alerts() == rows(replay_result.alerts)
    assert live.totals["events"] == len(lines)
    assert live.totals["late_events"] == 0
    assert live.letters == []


@pytest.mark.parametrize("lateness_ms", [pytest.param(0, marks=RELEASE), LATENESS_MS])
def test_rules_that_are_added_changed_and_retired_midway(spark: SparkSession, tmp_path: Path, lateness_ms: int) -> None:
    rules_by_id = rules()
    initial = [rule for name, rule in rules_by_id.items() if name != "small_then_large"]
    lines = payments(22)
    parts = split(lines, 6)
    job = make_job(rules_by_id.values(), lateness_ms, 2)
    added = rules_by_id["small_then_large"].model_copy(update={"effective_at": utc_text(time_ms(parts[3][0]))})
    stricter = rules_by_id["card_testing"].model_copy(
        update={"version": 2, "params": {"tries": 4}, "effective_at": utc_text(time_ms(parts[4][0]))}
    )
    retired = RetireRecord(id="rising_amounts", version=2, effective_at=utc_text(time_ms(parts[4][300])))
    live = LiveRun(spark, tmp_path, job, as_records(*initial))
    live.phase([disordered(part, lateness_ms, 1) for part in parts[:2]])
    live.phase([], [added.to_json(), retired.to_json()])
    live.phase(parts[2:3], [stricter.to_json()])
    live.phase(parts[3:])
    live.phase([], [END])
    replay_result = replayed(spark, tmp_path / "events", job, [*initial, added, retired, stricter])
    assert live.alerts() == rows(replay_result.alerts)
    by_rule = {(a["rule_id"], a["version"]) for a in replay_result.alerts.to_pylist()}
    assert {("small_then_large", 1), ("card_testing", 1), ("card_testing", 2), ("rising_amounts", 1)} <= by_rule
    assert (live.totals["control_applied"], live.totals["control_heartbeat"]) == (3, 1)
    assert live.totals["rule_late_ms"] == 0


def test_bad_records_are_set_aside_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    rules_by_id = rules("card_testing", "small_then_large")
    lines = payments(23)
    job = make_job(rules_by_id.values())
    good = orjson.loads(lines[len(lines) // 2])
    bad = [
        b"{broken",
        orjson.dumps({**good, "event_type": "refund"}),
        orjson.dumps({name: value for name, value in good.items() if name != "amount"}),
        orjson.dumps({**good, "event_time": "soon"}),
    ]
    flawed = orjson.dumps({**good, "tx_id": "FLAWED", "card_id": "other", "amount": "much"})
    middle = len(lines) // 2
    broken_rule = rules_by_id["card_testing"].model_copy(update={"version": 2, "source": "pattern card_testing {"})
    live = LiveRun(spark, tmp_path, job, as_records(*rules_by_id.values()))
    live.phase(
        split([*lines[:middle], *bad, flawed, *lines[middle:]], 3), [b'{"kind": "nonsense"}', broken_rule.to_json()]
    )
    early = orjson.dumps({**good, "tx_id": "EARLY"})
    live.phase([[early]])
    clean = tmp_path / "clean"
    clean.mkdir()
    (clean / "events.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    assert live.alerts() == rows(replayed(spark, clean, job, rules_by_id.values()).alerts)
    assert live.totals["events"] == len(lines) + 2
    assert live.totals["records"] == len(lines) + 2 + len(bad)
    assert (live.totals["flawed_events"], live.totals["bad_values[wrong_value@amount]"]) == (1, 1)
    assert [letter["null_fields"] for letter in live.letters if "null_fields" in letter] == [["amount"]]
    assert sum(count for name, count in live.totals.items() if name.startswith("poison[")) == len(bad)
    assert live.totals["late_events"] == 1
    assert (live.totals["control_unreadable"], live.totals["control_refused"]) == (1, 1)
    reasons = {str(letter["code"]): str(letter.get("reason", letter.get("event_id"))) for letter in live.letters}
    assert len(live.letters) == len(bad) + 4
    assert "amount" in reasons["missing_field"]
    assert "CEP" in reasons["control_refused"]
    assert reasons["late"] == "EARLY"
    assert {"control_unreadable", "unreadable"} <= reasons.keys()


def test_a_key_that_loses_partial_matches_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules_by_id = rules("card_testing")
    one = orjson.loads(payments(23)[0])
    dust = {**one, "status": "declined", "amount": "0.50", "card_id": "hot"}
    lines = [
        orjson.dumps({**dust, "tx_id": f"t{n}", "event_time": f"2026-03-01T10:00:00.{n // 1_000:03}{n % 1_000:03}Z"})
        for n in range(1_100)
    ]
    live = LiveRun(spark, tmp_path, make_job(rules_by_id.values()), as_records(*rules_by_id.values()))
    live.phase([lines])
    (letter,) = live.letters
    assert (letter["code"], letter["rule_id"], letter["key"]) == ("runs_evicted", "card_testing", "hot")
    assert letter["runs"] == live.totals["runs_evicted"] > 0


def test_partial_matches_expire_when_their_key_never_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    rules_by_id = rules("card_testing", "small_then_large", "impossible_travel")
    live = LiveRun(spark, tmp_path, make_job(rules_by_id.values()), as_records(*rules_by_id.values()))
    live.phase([payments(24)])

    def pages() -> int:
        return stored_part(spark, live.checkpoint.parent, PAGES, 0).count()

    assert pages() == 8, "one for each key group"
    live.phase([], [END])
    assert pages() == 0


def test_runs_are_dropped_when_a_key_loses_its_last_rule(spark: SparkSession, tmp_path: Path) -> None:
    rules_by_id = rules("card_testing", "dormant_then_large")
    live = LiveRun(spark, tmp_path, make_job(rules_by_id.values()), as_records(*rules_by_id.values()))
    account = live.job.domains.index(("account_id",))

    def account_pages() -> int:
        return stored_part(spark, live.checkpoint.parent, PAGES, 0).where(f"at >> 16 = {account}").count()

    lines = split(payments(25), 2)
    live.phase(lines[:1])
    assert account_pages() == 8
    gone = RetireRecord(id="dormant_then_large", version=2, effective_at=None)
    live.phase([], [gone.to_json()])
    live.phase(split(lines[1], 4))
    assert live.totals["alerts[card_testing@1]"] == 12
    assert live.totals["events_without_rule"] > 0
    assert account_pages() == 0


SOURCE = (
    transactions.EVENT
    + """\
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
)
NAMES = ("unusual", "many_terminals", "wakes_up", "beyond_most", "comes_back", "rises")


def records() -> list[UpsertRecord]:
    """Return rules that read past events."""
    return [r.model_copy(update={"source": SOURCE}) for r in transactions.records(*NAMES)]


def history_lines() -> list[bytes]:
    """Return payments in the order of their times."""
    table = transactions.transactions().sort_by([("event_time", "ascending"), ("tx_id", "ascending")])
    return [orjson.dumps(row | {"event_type": "payment"}) for row in _rows(table)]


@pytest.mark.slow
@pytest.mark.parametrize(("files", "pages"), [(3, 2)])
def test_replay_and_live_agree_on_past_events(spark: SparkSession, tmp_path: Path, files: int, pages: int) -> None:
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


def _job(lateness_ms: int) -> Job:
    deployment = deploy(laundering())
    assert deployment.set_aside == ()
    return Job(deployment.schema, deployment.key_domains, 8, 1, lateness_ms, levels_count=3)


def _lines(seed: int, count: int) -> list[bytes]:
    lines = []
    for row in transfers(seed, count).to_pylist():
        stamp = row["event_time"].strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        lines.append(orjson.dumps({**row, "event_time": stamp, "event_type": "transfer"}))
    return lines


@pytest.mark.parametrize(
    ("files", "partitions", "lateness_ms"), [pytest.param(3, 2, 0, marks=RELEASE), (4, 1, 200_000)]
)
def test_live_finds_what_replay_finds(
    spark: SparkSession, tmp_path: Path, files: int, partitions: int, lateness_ms: int
) -> None:
    job, lines = _job(lateness_ms), _lines(5, 150)
    arriving = disordered(lines, lateness_ms, 3) if lateness_ms else lines
    live = LiveRun(spark, tmp_path, job, tuple(r.to_json() for r in laundering()), partitions)
    live.phase(split(arriving, files))
    live.phase([], [END])
    replay_result = replayed(spark, tmp_path / "events", job, laundering())
    assert replay_result.alerts.num_rows == len(circles(transfers(5, 150))) > 0
    assert live.alerts() == rows(replay_result.alerts)
    counted = ("events", "events_produced", "alerts[circle@1]")
    assert [live.totals[name] for name in counted] == [replay_result.counters[name] for name in counted]
    assert live.totals["late_events"] == 0
    assert live.letters == []


def test_a_rule_that_needs_another_stage_is_told(spark: SparkSession, tmp_path: Path) -> None:
    job = replace(_job(0), levels_count=2)
    first = [r for r in laundering() if r.id != "circle"]
    live = LiveRun(spark, tmp_path, job, tuple(r.to_json() for r in first), 1)
    live.phase([_lines(5, 30)], [laundering("circle")[0].to_json()])
    live.phase([], [END])
    (letter,) = live.letters
    assert (letter["code"], letter["rule_id"]) == ("control_refused", "circle")
    assert live.totals["control_refused"] == 1


DEDUP_MS = 86_400_000  # neighbouring records may be hours apart in event time


def partitions_in_topic(kafka: KafkaCluster, count: int) -> int:
    """The mock's topics always have four partitions."""
    return count if kafka.is_real else 4


@pytest.mark.parametrize(
    ("seed", "partitions", "records", "lateness_ms"),
    [
        (1, 4, 400, LATENESS_MS),
        pytest.param(2, 4, 300, 0, marks=pytest.mark.slow),
        pytest.param(3, 1, 500, LATENESS_MS, marks=pytest.mark.slow),
        pytest.param(4, 1, 250, 0, marks=pytest.mark.slow),
        pytest.param(5, 4, None, 0, marks=pytest.mark.slow),
        pytest.param(6, 4, 200, LATENESS_MS, marks=pytest.mark.slow),
        pytest.param(7, 4, 150, 0, marks=pytest.mark.slow),
    ],
)
def test_a_mix_of_everything_gives_what_replay_finds(
    spark: SparkSession, kafka_broker: KafkaCluster, tmp_path: Path, seed: int, partitions: int, records: int | None,
    lateness_ms: int,
) -> None:  # fmt: skip
    rules_by_id = rules()
    lines = payments(40 + seed)
    partitions = partitions_in_topic(kafka_broker, partitions)
    stream = mix(lines, seed, partitions, lateness_ms)
    job = replace(make_job(rules_by_id.values(), lateness_ms), dedup_ms=DEDUP_MS)
    initial = tuple(record.to_json() for record in rules_by_id.values())
    live = TopicRun(spark, kafka_broker, tmp_path / "job", job, initial, partitions, records)
    live.phase(stream.first)
    live.phase(stream.second)
    live.phase([], [END])
    clean = tmp_path / "clean"
    clean.mkdir()
    write_file(clean / "events.jsonl", stream.clean, 0)
    assert live.alerts() == rows(replayed(spark, clean, job, rules_by_id.values()).alerts)
    assert live.totals["duplicates"] == stream.wrong["duplicates"]
    assert live.totals["late_events"] == stream.wrong["late_events"]
    assert sum(n for name, n in live.totals.items() if name.startswith("poison[")) == stream.wrong["poison"]
    bad = sum(stream.wrong[name] for name in ("duplicates", "late_events", "reused_ids"))
    assert live.totals["events"] == len(stream.clean) + bad
    assert live.totals["reused_ids"] == stream.wrong["reused_ids"]
    late = {letter["event_id"] for letter in live.letters if letter["code"] == "late"}
    assert len(late) == stream.wrong["late_ids"]
    watermarks_ms = [report.watermark_ms for report in live.reports if report.watermark_ms is not None]
    assert watermarks_ms == sorted(watermarks_ms)


def forking_processes(spark: SparkSession) -> set[str]:
    """Return the processes from which Java has forked workers, one for each kind of worker."""
    java = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]
    command = ["ps", "-o", "pid=,args=", "--ppid", str(java)]  # it exits with 1 without a worker
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return {line.split()[0] for line in listed.splitlines() if "cep.runners.spark.daemon pyspark.worker" in line}


def test_in_order_of_arrival_nothing_waits(spark: SparkSession, kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    rules_by_id = rules("card_testing", "small_then_large")
    lines = payments(51)
    job = replace(make_job(rules_by_id.values()), order=ARRIVAL)
    initial = tuple(record.to_json() for record in rules_by_id.values())
    live = TopicRun(spark, kafka_broker, tmp_path / "job", job, initial, partitions_in_topic(kafka_broker, 2))
    before = forking_processes(spark)
    live.phase([(hash(line) % 2, line) for line in lines])
    assert len(forking_processes(spark) - before) <= 1, "tasks that read and tasks that match share their workers"
    clean = tmp_path / "clean"
    clean.mkdir()
    write_file(clean / "events.jsonl", lines, 0)
    # Both rules end in an event, so all is found without a heartbeat, and one micro-batch sorts it.
    assert live.alerts() == rows(replayed(spark, clean, job, rules_by_id.values()).alerts)
    assert live.totals["late_events"] == 0


def test_state_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    rules_by_id = rules("card_testing", "small_then_large", "rising_amounts")
    initial = tuple(record.to_json() for record in rules_by_id.values())
    live = LiveRun(spark, tmp_path, make_job(rules_by_id.values(), LATENESS_MS), initial, file_step_s=-8 * 86_400)
    checkpoint = live.checkpoint.parent  # each file is eight days older than the file before
    before = live.job
    open_checkpoint(checkpoint, before, initial)
    parts = split(disordered(payments(51), LATENESS_MS, 6), 2)
    live.phase(parts[:1])
    assert live.totals["runs"] > 0, "there is something to keep"
    live.job = replace(before, schema=changed_schema(before.schema))
    assert open_checkpoint(checkpoint, live.job, initial) == (initial, True)
    assert read_job(checkpoint) == live.job
    late = [
        orjson.dumps({**orjson.loads(line), "amount": None}) if number % 9 == 0 else line
        for number, line in enumerate(parts[1])
    ]
    live.phase([late])
    live.phase([], [END])
    assert not any(name.startswith("poison[") for name in live.totals)
    replay_result = replayed(spark, tmp_path / "events", live.job, rules_by_id.values())
    assert live.alerts() == rows(replay_result.alerts)
    assert live.totals["runs_orphaned"] == 0
    assert partitions_of(checkpoint) == live.partitions
    (transaction,) = before.schema.event_types
    other = replace(transaction, fields=tuple(replace(f, type=Type(Kind.INT)) for f in transaction.fields))
    with pytest.raises(UsageError, match="other event types: `transaction"):
        open_checkpoint(checkpoint, replace(before, schema=Schema((other,))), initial)


PATTERN = """event payment { tx_id id  event_time time  card_id string  amount decimal(2)  note string? }
pattern p by card_id { seq a  where a: payment amount > 0.00 }
"""


def test_spark_and_one_process_read_the_same(spark: SparkSession, tmp_path: Path) -> None:
    events, control = tmp_path / "events with a +", tmp_path / "control"
    for name, text in (("patterns/p.cep", PATTERN), ("rules/p.toml", RULE)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    events.mkdir()
    control.mkdir()
    forms = {**GOOD_FORMS, **{name: make for name, (make, _) in BROKEN_FORMS.items()}}
    for number, (name, make) in enumerate(forms.items()):
        write(events, name, make(form_rows(100 * number)))
    records, _ = read_rules(tmp_path / "rules")
    retire = {"kind": "retire", "id": "q", "version": 2}
    write(control, "a[b].json", json.dumps([retire, retire], indent=1).encode("utf-16"))
    write(control, "cut.json", json.dumps([retire], indent=1).encode()[:-9])
    deployment = deploy(records)
    job = Job(deployment.schema, deployment.key_domains, 2)
    letters, reports = tmp_path / "letters", list[BatchReport]()
    output = LiveOutput(tmp_path / "job", DeadLetterFiles(letters), [], reports.append)
    initial, sources = tuple(record.to_json() for record in records), (FolderSource(events), FolderSource(control))
    run_live(spark, LiveSettings(job, initial, *sources, tmp_path / "job" / "query"), output)

    source, expected, reasons = FilesSource(events, follow=False), Counter[str](), list[bytes]()
    while not source.ended:
        for part in decode_chunks(job.schema, source.poll(50_000, 0.0)).parts:
            valid = validate_events(job, part)
            expected.update(valid.counters)
            reasons += valid.dead_letters
    assert {name: reports[-1].totals[name] for name in expected} == expected
    row_faults = ("cut.jsonl", "zero.csv")  # these cost a row, the others the rest of a file
    assert expected["poison[unreadable_file]"] == len(BROKEN_FORMS) - len(row_faults)
    assert expected["events"] == sum(report.alerts.num_rows for report in reports)
    written = [orjson.loads(line) for path in letters.glob("*.jsonl") for line in path.read_bytes().splitlines()]
    assert sorted(letter["reason"] for letter in written if not letter["code"].startswith("control")) == sorted(
        orjson.loads(letter)["reason"] for letter in reasons
    )
    totals = reports[-1].totals
    assert totals["control_unreadable"] == 1, "the file that ends inside of a record"
    assert totals["control_refused"] + totals["control_ignored"] + totals["control_applied"] == 2
