"""A job continues from a savepoint as if it had not stopped; a damaged savepoint is refused and leaves no file.

A job that is rescaled in the middle, 2 → 4 → 1, equals a replay. `cep job state` reads from Spark's checkpoint the same
as the job has matched. A job moves between `cep run` and `cep live` at a random point and keeps all: runs, histories,
events that wait for the watermark, ids of events that may come again, a future change of a rule, the last alerts of
keys. The number of tasks and processes changes on the way.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import orjson
import pytest
from pyspark.sql import SparkSession

from cep.base.errors import SinkError, StateCorruptError, StateFormatError, UsageError
from cep.base.text import utc_text
from cep.cli import state
from cep.cli.main import main
from cep.cli.verbs import Parser
from cep.model.rule import UpsertRecord
from cep.report.keyed_state import count_runs
from cep.rulebook.deploy import deploy
from cep.runners import live_checkpoint
from cep.runners.embedded.opening import is_embedded
from cep.runners.handover.beginning import Beginning
from cep.runners.handover.to_spark import load_for_spark
from cep.runners.live_checkpoint import lock_checkpoint, open_checkpoint, read_job, read_progress
from cep.runners.live_checkpoint import lock_checkpoint as locked
from cep.runners.spark.group_parts import VARIABLE, prepare_query
from cep.runners.spark.group_ports import GroupProgress
from cep.runners.spark.live_output import LiveOutput
from cep.runners.spark.savepoint import KIND, read_positions, restore, save, save_for_both, savepoints
from cep.runners.spark.state import CAN_REPARTITION, PARTITIONS, last_batch, partitions_of, rescale, stored_pages
from cep.sources.offsets import Position
from cep.state.manifest import Manifest
from cep.state.target import Target
from cep.step.job import Job
from tests.real_kafka import KafkaCluster
from tests.runners.embedded.cases import expected as sent_alerts
from tests.runners.spark import live_cases
from tests.runners.spark.live_kafka import TopicRun, send


@pytest.mark.spark
def test_a_job_goes_on_from_a_savepoint(spark: SparkSession, tmp_path: Path) -> None:
    rules_by_id = live_cases.rules("card_testing", "small_then_large", "impossible_travel")
    initial = tuple(record.to_json() for record in rules_by_id.values())
    live = live_cases.LiveRun(spark, tmp_path / "job", live_cases.make_job(rules_by_id.values()), initial)
    checkpoint = live.checkpoint.parent
    open_checkpoint(checkpoint, live.job, initial)
    parts = live_cases.split(live_cases.payments(43), 2)
    live.phase(parts[:1])
    target = Target(str(tmp_path / "saved"))
    first = save(checkpoint, target)
    assert first.copied <= first.size
    assert save(checkpoint, target).copied == 0, "all of it is there already"
    before = len(live.reports)
    live.phase(parts[1:])  # is lost with the folder
    shutil.rmtree(checkpoint)
    del live.reports[before:]
    live.job_folder = "elsewhere"
    checkpoint = live.checkpoint.parent
    restored = restore(target, checkpoint)
    assert (restored.batch_id, restored.size) == (first.batch_id, first.size)
    assert read_progress(checkpoint)[0] == first.batch_id
    live.phase([], [live_cases.END])
    replay_result = live_cases.replayed(spark, tmp_path / "job" / "events", live.job, rules_by_id.values())
    assert live.alerts() == live_cases.rows(replay_result.alerts)

    with lock_checkpoint(checkpoint), pytest.raises(UsageError, match="is in use by process"):
        save(checkpoint, target)
    with pytest.raises(UsageError, match="is not empty"):
        restore(target, checkpoint)
    with pytest.raises(UsageError, match="has no savepoint nonsense"):
        restore(target, tmp_path / "new", "nonsense")
    assert main(["job", "restore", "--from", str(tmp_path / "saved"), "--list"]) == 0
    assert len(savepoints(target)) == 2


@pytest.mark.spark
def test_a_damaged_savepoint_is_refused(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def lock_of_a_job_that_ends(checkpoint: Path) -> Iterator[None]:
        (checkpoint / "query" / "commits" / "7").touch()
        with lock_checkpoint(checkpoint):
            yield

    rules_by_id = live_cases.rules("small_then_large")
    initial = tuple(record.to_json() for record in rules_by_id.values())
    live = live_cases.LiveRun(spark, tmp_path / "job", live_cases.make_job(rules_by_id.values()), initial)
    open_checkpoint(live.checkpoint.parent, live.job, initial)
    live.phase([live_cases.payments(44)[:100]])
    target = Target(str(tmp_path / "saved"))
    monkeypatch.setattr(live_checkpoint, "lock_checkpoint", lock_of_a_job_that_ends)
    assert save(live.checkpoint.parent, target).batch_id == 7, "the last micro-batch of the job, not the one before"
    monkeypatch.undo()
    largest = max((tmp_path / "saved" / "files").iterdir(), key=lambda path: path.stat().st_size)
    whole = largest.read_bytes()
    for damaged in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
        largest.write_bytes(damaged)
        with pytest.raises(StateCorruptError):
            restore(target, tmp_path / "new")
        assert [path.name for path in tmp_path.iterdir() if "new" in path.name] == []
    largest.unlink()
    with pytest.raises(StateCorruptError):
        restore(target, tmp_path / "new")
    with pytest.raises(UsageError, match="has no savepoints"):
        restore(Target(str(tmp_path / "empty")), tmp_path / "new")


@pytest.mark.spark
def test_an_old_savepoint_under_a_later_name_is_refused(tmp_path: Path) -> None:
    target = Target(str(tmp_path / "saved"))
    target.create("savepoint-000000009-5.manifest", Manifest(KIND, 3, 5, (), ()).to_bytes())
    with pytest.raises(StateCorruptError, match="3 under another number"):
        restore(target, tmp_path / "new")


def logged(query: Path, *offsets: str) -> Path:
    (query / "offsets").mkdir(parents=True)
    (query / "offsets" / "7").write_text("\n".join(["v1", "{}", *offsets]))
    return query


def test_a_topic(tmp_path: Path) -> None:
    read = Position({"pay-ments": {0: 17, 11: 4}}, {"pay-ments": [0]}, {"pay-ments": "an id"})
    query = logged(tmp_path, json.dumps(read.to_json()), "-")
    positions = read_positions(query, 0, 7)
    assert positions == {"pay-ments[0]": 17, "pay-ments[11]": 4}
    assert read_positions(query, 1, 7) == {}, "nothing was read of it so far"
    assert read_positions(query, 2, 7) == {}, "the job has no such source"
    starting = Beginning("", 0, {}, {"events": positions}).starting_offsets("events", "pay-ments")
    assert json.loads(starting or "") == {"pay-ments": {"0": 17, "11": 4}}


def test_a_folder(tmp_path: Path) -> None:
    query = logged(tmp_path, '{"logOffset":11}')
    log = query / "sources" / "0"
    log.mkdir(parents=True)

    def entry(name: str) -> str:
        return json.dumps({"path": f"file:///data/{name}", "timestamp": 1, "batchId": 0})

    (log / "9.compact").write_text("\n".join(["v1", entry("a.jsonl"), entry("b%20c;%25.jsonl")]))
    for number, name in ((10, "d.jsonl"), (11, "e.jsonl"), (12, "planned.jsonl")):
        (log / str(number)).write_text(f"v1\n{entry(name)}")
    (log / ".10.crc").write_bytes(b"x")
    positions = read_positions(query, 0, 7)
    assert positions == dict.fromkeys(["a.jsonl", "b c;%.jsonl", "d.jsonl", "e.jsonl"], -1)
    assert Beginning("", 0, {}, {"events": positions}).files_read("events") == tuple(sorted(positions))


def test_a_log_that_says_nothing(tmp_path: Path) -> None:
    with pytest.raises(StateCorruptError, match="does not say how far"):
        read_positions(tmp_path, 0, 7)
    with pytest.raises(StateCorruptError, match="does not say how far"):
        read_positions(logged(tmp_path, "nonsense"), 0, 7)


on_this_spark = pytest.mark.skipif(not CAN_REPARTITION, reason="Spark 4.1 cannot repartition a checkpoint")
LATENESS_MS = 90_000


def started(spark: SparkSession, folder: Path, lateness_ms: int = 0) -> live_cases.LiveRun:
    """Start a job with the rules of this repository that has not seen an event."""
    rules_by_id = live_cases.rules()
    initial = tuple(record.to_json() for record in rules_by_id.values())
    live = live_cases.LiveRun(spark, folder, live_cases.make_job(rules_by_id.values(), lateness_ms, 2), initial)
    open_checkpoint(live.checkpoint.parent, live.job, initial)
    return live


@pytest.mark.spark
@on_this_spark
def test_rescaled_in_the_middle(spark: SparkSession, tmp_path: Path) -> None:
    live = started(spark, tmp_path, LATENESS_MS)
    checkpoint = live.checkpoint.parent
    parts = live_cases.split(live_cases.disordered(live_cases.payments(41), LATENESS_MS, 5), 3)
    live.phase(parts[:1])
    for number, (before, after) in enumerate([(2, 4), (4, 1)], start=1):
        assert partitions_of(checkpoint) == before
        run_counts = count_runs(stored_pages(spark, checkpoint, live.job))
        assert run_counts.runs == live.totals["runs"] > 0, "there is something to move"
        assert rescale(spark, checkpoint, after) == before
        assert count_runs(stored_pages(spark, checkpoint, live.job)) == run_counts, "key groups move whole"
        live.phase(parts[number : number + 1])
        assert partitions_of(checkpoint) == after
    live.phase([], [live_cases.END])
    replay_result = live_cases.replayed(spark, tmp_path / "events", live.job, live_cases.rules().values())
    assert live.alerts() == live_cases.rows(replay_result.alerts)
    assert live.totals["late_events"] == 0
    run_counts = count_runs(stored_pages(spark, checkpoint, live.job))
    assert run_counts.runs == live.totals["runs"]
    assert {share.rule_id for share in run_counts.rules} == {"dormant_then_large"}, (
        "its window is 1000 days, no other's is"
    )


@pytest.mark.spark
@pytest.mark.slow
@on_this_spark
def test_one_task_that_reads_and_matches_becomes_two(
    spark: SparkSession, kafka_broker: KafkaCluster, tmp_path: Path
) -> None:
    """With one partition the matching task also reads the topic; with two, other tasks read it."""
    rules_by_id, lines = live_cases.rules(), live_cases.payments(43)
    job = live_cases.make_job(rules_by_id.values(), LATENESS_MS, 2)
    initial = tuple(record.to_json() for record in rules_by_id.values())
    live = TopicRun(spark, kafka_broker, tmp_path / "job", job, initial, 4, 300)
    checkpoint = tmp_path / "job" / "checkpoint"
    open_checkpoint(checkpoint, job, initial)
    records = [(number % 3, line) for number, line in enumerate(live_cases.disordered(lines, LATENESS_MS, 6))]
    third = len(records) // 3
    sessions = spark.conf.get(PARTITIONS) or "2"
    spark.conf.set(PARTITIONS, 1)
    try:
        live.phase(records[:third])
    finally:
        spark.conf.set(PARTITIONS, sessions)
    assert rescale(spark, checkpoint, 2) == 1
    live.phase(records[third : 2 * third])
    assert rescale(spark, checkpoint, 1) == 2
    live.phase(records[2 * third :])
    assert partitions_of(checkpoint) == 1
    live.phase([], [live_cases.END])
    clean = tmp_path / "clean"
    clean.mkdir()
    live_cases.write_file(clean / "events.jsonl", lines, 0)
    assert live.alerts() == live_cases.rows(live_cases.replayed(spark, clean, job, rules_by_id.values()).alerts)
    assert live.totals["late_events"] == 0


@pytest.mark.spark
@on_this_spark
def test_a_rescale_that_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    live = started(spark, tmp_path)
    checkpoint = live.checkpoint.parent
    with pytest.raises(UsageError, match="no finished micro-batch"):
        rescale(spark, checkpoint, 4)
    live.phase(live_cases.split(live_cases.payments(42)[:50], 2))
    with pytest.raises(UsageError, match="laid out for 2 partitions already"):
        rescale(spark, checkpoint, 2)
    for count in (0, live.job.groups_count + 1):
        with pytest.raises(UsageError, match="give 1 to 8"):
            rescale(spark, checkpoint, count)
    with locked(checkpoint), pytest.raises(UsageError, match="is in use by process"):
        rescale(spark, checkpoint, 4)
    commits = live.checkpoint / "commits"
    (commits / str(last_batch(checkpoint))).unlink()
    with pytest.raises(UsageError, match=r"micro-batch 1 of .* has begun and not ended"):
        rescale(spark, checkpoint, 4)


@pytest.mark.spark
def test_a_spark_that_cannot_is_named(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.runners.spark.state.CAN_REPARTITION", False)
    with pytest.raises(UsageError, match=r"cannot lay out a checkpoint anew; run this with Spark 4\.3"):
        rescale(spark, tmp_path, 2)


BUSY = """
pattern busy by card_id {
  seq    a
  where  a: transaction  count(transaction over 1 d) > 5 and amount > max(transaction.amount over previous 2 d)
  emit   amount = a.amount
}
"""


def payment(number: int, card: str, second: int, amount: float) -> bytes:
    event = {"tx_id": f"t{number}", "event_time": f"2026-03-01T10:00:{second:02}Z", "card_id": card}
    rest = {"account_id": "a1", "amount": amount, "status": "approved", "channel": "ecom", "country": "FR"}
    return orjson.dumps({**event, **rest})


@pytest.mark.spark
def test_state_of_an_older_build_is_refused_by_name(tmp_path: Path) -> None:
    """Spark would silently drop state that is no longer declared."""
    folder = tmp_path / "query" / "state" / "0" / "_metadata" / "v2"
    folder.mkdir(parents=True)

    def written(*names: str) -> None:
        properties = {"stateVariables": [{"stateName": name, "stateVariableType": "MapState"} for name in names]}
        (folder / "0").write_text(f"v2\n{json.dumps({'operatorPropertiesJson': json.dumps(properties)})}")

    written("progress", "pages", "past")
    with pytest.raises(UsageError, match="progress, pages, past apart, as an older build did"):
        prepare_query(tmp_path / "query")
    written(VARIABLE)
    prepare_query(tmp_path / "query")
    (folder / "0").write_text("v2\nnonsense")
    with pytest.raises(StateCorruptError, match="does not say what the job keeps"):
        prepare_query(tmp_path / "query")
    prepare_query(tmp_path / "none")
    values = json.loads(GroupProgress().to_bytes())
    earlier = "a build before had no gap", "one before that counted no ties", "one before that had no waiting heartbeat"
    for count, reason in enumerate(earlier, start=1):
        assert GroupProgress.from_bytes(json.dumps(values[:-count]).encode()) == GroupProgress(), reason
    with pytest.raises(StateFormatError, match="of a build that kept other things of a key group"):
        GroupProgress.from_bytes(json.dumps(values[:-4]).encode())


@pytest.mark.spark
def test_runs_of_a_job(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = live_cases.rules("small_then_large")["small_then_large"]
    events = (live_cases.ROOT / "patterns" / "events.cep").read_text()
    looking_back = {"id": "busy", "pattern": "busy", "source": events + BUSY, "params": {}, "message": "busy"}
    rules_of_test = [small, small.model_copy(update=looking_back)]
    initial = tuple(record.to_json() for record in rules_of_test)
    live = live_cases.LiveRun(spark, tmp_path, live_cases.make_job(rules_of_test), initial)
    checkpoint = live.checkpoint.parent
    open_checkpoint(checkpoint, live.job, initial)
    live.phase([[payment(1, "c1", 0, 0.5), payment(2, "c2", 10, 0.6), payment(3, "c2", 20, 700.0)]])
    # The verb starts and stops its own session; here it gets the session of the tests.
    monkeypatch.setattr(spark, "stop", lambda: None)

    def told(*words: str) -> tuple[int, object]:
        parser = Parser()
        state.add_arguments(parser)
        code = state.run(parser.parse_args(["--checkpoint", str(checkpoint), "--json", *words]))
        return code, json.loads(capsys.readouterr().out)

    # Spark's report of a real job is read correctly.
    prepare_query(live.checkpoint)
    code, whole = told()
    assert code == 0
    assert isinstance(whole, dict)
    assert (whole["runs"], whole["pages"]) == (1, 1)
    assert [(r["rule_id"], r["version"], r["runs"], r["keys"]) for r in whole["rules"]] == [
        ("small_then_large", 1, 1, 1)
    ]
    (past,) = whole["histories"]
    assert {part["kind"]: part["rows"] for part in past["parts"]} == {
        "kept events": 3, "pinned events": 2, "carried": 2,
    }  # fmt: skip
    assert [part["rules"] for part in past["parts"]] == [["busy v1"]] * 3
    code, key_runs = told("--key", "c2")
    assert code == 0
    assert isinstance(key_runs, list)
    (run,) = key_runs
    assert [event["amount"] for event in run["events"]] == [0.6, 700.0]
    assert run["tallies"] == [["count(transaction over 1 d)", 2]]
    code, key_runs = told("--key", "c1")
    assert code == 0
    assert isinstance(key_runs, list)
    runs = key_runs[:1]
    assert [[(e["event_id"], e["time"]) for e in r["bound"]] for r in runs] == [[("t1", "2026-03-01T10:00:00.000Z")]]
    assert runs[0]["expires"] == "2026-03-01T10:01:00.000Z"
    assert told("--key", "nobody") == (1, [])


RULES = Path(__file__).parents[3] / "rules"
MOVED_LATENESS_MS, DEDUP_MS, GROUPS = 60_000, 600_000, 8
SEEDS = [pytest.param(1), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))]


@dataclass(frozen=True)
class Case:
    """A stream in order of arrival, with repeated records, its cut, and a change of a rule before the cut."""

    lines: list[bytes]
    cut: int
    change: UpsertRecord | None

    @property
    def job(self) -> Job:
        return replace(live_cases.make_job(live_cases.rules().values(), MOVED_LATENESS_MS), dedup_ms=DEDUP_MS)

    @property
    def initial(self) -> tuple[bytes, ...]:
        return tuple(record.to_json() for record in live_cases.rules().values())

    def expected(self, folder: Path) -> list[bytes]:
        """Return the sent alerts of a replay of every event once, with the change in its place."""
        deployed = deploy(live_cases.rules().values())
        if self.change is not None:
            assert deployed.rulebook.apply(self.change, None).kind == "applied"
        return sorted(sent_alerts(list(dict.fromkeys(self.lines)), deployed, folder))


def case(seed: int) -> Case:
    random = np.random.default_rng(seed)
    lines = live_cases.disordered(live_cases.payments(seed), MOVED_LATENESS_MS, seed)
    for position in sorted(random.integers(50, len(lines), 300).tolist(), reverse=True):
        lines.insert(
            position, lines[position - int(random.integers(1, 40))]
        )  # within the window, before and after the cut
    cut = int(random.integers(len(lines) // 3, len(lines) * 2 // 3))
    at_ms = live_cases.time_ms(lines[cut]) + 1_800_000  # the job knows it before the cut, and it starts after the cut
    old = live_cases.rules()["card_testing"]
    change = old.model_copy(update={"version": 2, "params": {"tries": 2}, "effective_at": utc_text(at_ms)})
    return Case(lines, cut, change)


def changes_of(given: Case) -> list[bytes]:
    return [] if given.change is None else [given.change.to_json()]


def run(folder: Path, checkpoint: Path, *more: str) -> int:
    """Run one process of `cep run`, to the end of the events."""
    times = ["--lateness", f"{MOVED_LATENESS_MS} ms", "--dedup", f"{DEDUP_MS} ms", "--key-groups", str(GROUPS)]
    sources = ["--events", str(folder / "events"), "--control", str(folder / "control")]
    out = ["--alerts", str(folder / "alerts" / checkpoint.name), "--checkpoint", str(checkpoint)]
    return main(["run", "--rules", str(RULES), *sources, *times, *out, "--available-now", *more])


def written(folder: Path) -> list[bytes]:
    return [line for path in sorted(folder.rglob("*.jsonl")) for line in path.read_bytes().splitlines()]


def place(folder: Path, files: Sequence[Sequence[bytes]], first: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, lines in enumerate(files, first):
        live_cases.write_file(folder / f"{number:03} %20[].jsonl", lines, number)


@pytest.mark.spark
@pytest.mark.parametrize("seed", SEEDS)
def test_from_one_process_to_spark(
    seed: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved_case = case(seed)
    folder = tmp_path / "job"
    live = live_cases.LiveRun(spark, folder, moved_case.job, moved_case.initial, partitions=3)
    (folder / "alerts").mkdir()
    place(folder / "events", live_cases.split(moved_case.lines[: moved_case.cut], 2), 0)
    assert run(folder, tmp_path / "one") == 0
    place(folder / "control", [changes_of(moved_case)], 2)
    live.files_count = 3
    assert run(folder, tmp_path / "one") == 0
    assert main(["job", "savepoint", "--checkpoint", str(tmp_path / "one"), "--to", str(tmp_path / "saved")]) == 0
    restore = ["job", "restore", "--from", str(tmp_path / "saved"), "--checkpoint", str(folder / "checkpoint")]
    assert main([*restore, "--engine", "spark"]) == 0
    # Like a second `cep live`, it continues with the same rules and must be the same job.
    assert open_checkpoint(folder / "checkpoint", moved_case.job, ()) == (moved_case.initial, True)
    stored = read_job(folder / "checkpoint")
    assert stored is not None
    assert stored.digest_key
    live.job = replace(live.job, digest_key=stored.digest_key)
    with pytest.raises(UsageError, match="other lateness"):
        open_checkpoint(folder / "checkpoint", replace(moved_case.job, lateness_ms=1), ())

    rest = live_cases.split(moved_case.lines[moved_case.cut :], 3)
    with monkeypatch.context() as patched:
        patched.setattr(LiveOutput, "take_table", _refuse)
        with pytest.raises(SinkError, match="between two steps"):
            live.phase(rest[:1])  # keyed state is written, and the micro-batch is repeated
    live.phase(rest[1:])
    live.phase([], [live_cases.END])
    expected = moved_case.expected(tmp_path)
    first = written(folder / "alerts")
    assert 0 < len(first) < len(expected)
    assert sorted([*first, *live.alerts()]) == expected
    assert live.reports[0].batch_id > 1, "numbers go on, so that no file of alerts is written over"
    assert live.totals["events"] == len(moved_case.lines)
    assert live.totals["duplicates"] == len(moved_case.lines) - len(set(moved_case.lines))


def _refuse(*_: object) -> None:
    raise SinkError("killed between two steps")


@pytest.mark.spark
@pytest.mark.parametrize("seed", SEEDS)
def test_from_spark_to_two_processes(seed: int, spark: SparkSession, tmp_path: Path) -> None:
    moved_case = case(seed)
    folder = tmp_path / "job"
    live = live_cases.LiveRun(spark, folder, moved_case.job, moved_case.initial, partitions=3)
    checkpoint = folder / "checkpoint"
    open_checkpoint(checkpoint, moved_case.job, moved_case.initial)
    live.phase(live_cases.split(moved_case.lines[: moved_case.cut // 2], 2), changes_of(moved_case))
    live.phase([moved_case.lines[moved_case.cut // 2 : moved_case.cut]])
    saved = tmp_path / "saved"
    assert len(save_for_both(spark, checkpoint, Target(str(saved))).groups) == GROUPS
    (folder / "alerts").mkdir()
    place(folder / "events", live_cases.split(moved_case.lines[moved_case.cut :], 2), live.files_count)
    for name, groups in (("left", "0-4"), ("right", "5-7")):
        assert (
            main(["job", "restore", "--from", str(saved), "--checkpoint", str(tmp_path / name), "--groups", groups])
            == 0
        )
        assert run(folder, tmp_path / name, "--groups", groups) == 0
    place(folder / "control", [[live_cases.END]], 90)
    for name, groups in (("left", "0-4"), ("right", "5-7")):
        assert run(folder, tmp_path / name, "--groups", groups) == 0
    expected = moved_case.expected(tmp_path)
    assert 0 < len(live.alerts()) < len(expected)
    assert sorted([*live.alerts(), *written(folder / "alerts")]) == expected


@pytest.mark.spark
def test_a_topic_is_read_on_where_the_other_has_stopped(
    spark: SparkSession, kafka_broker: KafkaCluster, tmp_path: Path
) -> None:
    """One process, then Spark, then one process again, each with a third of the topic's records."""
    moved_case = case(9)
    folder = tmp_path / "job"
    live = TopicRun(spark, kafka_broker, folder, moved_case.job, moved_case.initial, 4, 500)
    (folder / "alerts").mkdir()
    records = [(number % 3, line) for number, line in enumerate(moved_case.lines)]
    first, second, third = (records[len(records) * n // 3 : len(records) * (n + 1) // 3] for n in range(3))

    def run_topic(checkpoint: Path) -> None:
        times = ["--lateness", f"{MOVED_LATENESS_MS} ms", "--dedup", f"{DEDUP_MS} ms", "--key-groups", str(GROUPS)]
        sources = ["--bootstrap-servers", kafka_broker.address, "--topic", live.topic]
        sources += ["--control", str(folder / "control")]
        out = ["--alerts", str(folder / "alerts" / checkpoint.name), "--checkpoint", str(checkpoint)]
        assert main(["run", "--rules", str(RULES), *sources, *times, *out, "--available-now"]) == 0

    send(kafka_broker, live.topic, first)
    run_topic(tmp_path / "one")
    assert main(["job", "savepoint", "--checkpoint", str(tmp_path / "one"), "--to", str(tmp_path / "s1")]) == 0
    load_for_spark(Target(str(tmp_path / "s1")), folder / "checkpoint")
    live.phase(second)
    save_for_both(spark, folder / "checkpoint", Target(str(tmp_path / "s2")))
    assert main(["job", "restore", "--from", str(tmp_path / "s2"), "--checkpoint", str(tmp_path / "two")]) == 0
    send(kafka_broker, live.topic, third)
    run_topic(tmp_path / "two")
    live_cases.write_file(folder / "control" / "end.jsonl", [live_cases.END], 90)
    run_topic(tmp_path / "two")
    alerts = sorted([*written(folder / "alerts"), *live.alerts()])
    assert alerts == replace(moved_case, change=None).expected(tmp_path)
    assert json.loads((folder / "checkpoint" / "progress.json").read_bytes())["totals"]["events"] == len(first + second)


@pytest.mark.spark
def test_there_and_back_is_the_same(spark: SparkSession, tmp_path: Path) -> None:
    """A savepoint of Spark, loaded into Spark and saved once more without an event in between, has equal entries."""
    moved_case = case(7)
    live = live_cases.LiveRun(spark, tmp_path / "job", moved_case.job, moved_case.initial)
    checkpoint = tmp_path / "job" / "checkpoint"
    open_checkpoint(checkpoint, moved_case.job, moved_case.initial)
    live.phase([moved_case.lines[: moved_case.cut]])
    first = save_for_both(spark, checkpoint, Target(str(tmp_path / "first")))
    loaded = load_for_spark(Target(str(tmp_path / "first")), tmp_path / "again")
    assert loaded.entries > GROUPS
    assert first.groups == loaded.groups
    assert not is_embedded(tmp_path / "again")
    with pytest.raises(UsageError, match="no finished micro-batch yet"):
        save_for_both(spark, tmp_path / "again", Target(str(tmp_path / "second")))
    with pytest.raises(UsageError, match="is not empty"):
        load_for_spark(Target(str(tmp_path / "first")), tmp_path / "again")
