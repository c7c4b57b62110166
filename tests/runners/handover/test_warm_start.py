"""Replay up to a cut, then live from its state: together they give the alerts of a replay of everything.

Both are also on Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cep.base.errors import StateCorruptError, UsageError
from cep.base.exits import Exit
from cep.base.text import utc_text
from cep.cli.main import main
from cep.histories.store import Block, StoredSegment
from cep.model.rule import UpsertRecord
from cep.rulebook.deploy import Deployment, deploy
from cep.rulebook.rulebook import by_level
from cep.runners.embedded import replay as embedded
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.replay import begin_warm
from cep.runners.handover.beginning import group_beginning, read_beginning
from cep.runners.handover.warm_start import NAME, About, Ending, finish, job_until, open_warm_start
from cep.runners.spark.replay import read_events, replay
from cep.sinks.json_form import json_lines
from cep.sources.pieces import read_pieces
from cep.state.memory import MemoryStore
from cep.state.past import decode_head, digests_of
from cep.step.job import Job
from tests.runners.embedded.cases import cut, day, expected
from tests.runners.embedded.test_engine import feed
from tests.runners.embedded.test_engine import finish as end_of_time
from tests.runners.laundering import records as laundering
from tests.runners.laundering import transfers
from tests.runners.spark.live_cases import END, LiveRun, rows, rules, split, time_ms
from tests.runners.spark.test_live import history_lines
from tests.runners.spark.test_live import records as histories
from tests.seeds import LATER

OVERLAP = 30
RULES = str(Path(__file__).parents[3] / "rules")


def lines_of(table: pa.Table) -> list[bytes]:
    """Return a table of transfers as JSON lines."""
    rows = table.to_pylist()
    times = [row.pop("event_time").isoformat().replace("+00:00", "Z") for row in rows]
    return [
        orjson.dumps({"event_type": "transfer", "event_time": time, **row})
        for time, row in zip(times, rows, strict=True)
    ]


def job_for(deployment: Deployment, groups_count: int = 16, pages: int = 1) -> Job:
    levels = len(by_level(deployment.rulebook.deployed(), deployment.schema))
    return Job(deployment.schema, deployment.key_domains, groups_count, pages, levels_count=levels)


def warm_start(
    lines: Sequence[bytes], records: Sequence[UpsertRecord], folder: Path, until_ms: int | None
) -> list[bytes]:
    """Replay these lines up to the cut and leave the state in the folder; return the alerts."""
    deployed = deploy(records)
    path = folder.with_suffix(".jsonl")
    path.write_bytes(b"\n".join(lines))
    ending = Ending(folder, until_ms)
    job = job_until(job_for(deployed), ending)
    replayed = embedded.replay(job, deployed.rulebook, read_pieces(path, job.schema), 2, ending=ending)
    assert replayed.until_ms is not None
    initial = tuple(record.to_json() for record in records)
    finish(folder, replayed.state_files, About(job, initial, replayed.since_ms, replayed.until_ms))
    return list(json_lines(replayed.alerts))


CASES: dict[str, tuple[Callable[[], list[bytes]], Callable[[], list[UpsertRecord]]]] = {
    "runs": (lambda: list(day()), lambda: list(rules().values())),
    "histories": (lambda: history_lines()[:5_000], histories),
    "levels": (lambda: lines_of(transfers(3, 150)), laundering),
}


@pytest.mark.parametrize("share", [0.3, pytest.param(0.7, marks=LATER)])
@pytest.mark.parametrize("name", CASES)
def test_replay_and_then_live_are_a_replay_of_everything(name: str, share: float, tmp_path: Path) -> None:
    lines, records = CASES[name][0](), CASES[name][1]()
    cut_line = int(len(lines) * share)
    until_ms = time_ms(lines[cut_line])
    before = sum(time_ms(line) < until_ms for line in lines)
    # Both sources contain more than their part.
    alerts = warm_start(lines[: cut_line + OVERLAP], records, tmp_path / "warm", until_ms)
    warm = open_warm_start(str(tmp_path / "warm"))
    deployed = deploy(records)
    # The live job has other key groups and pages, and several workers.
    job = replace(job_for(deployed, 24, 3), begins_ms=warm.about.until_ms)
    counters: Counter[str] = Counter()
    engine = Engine(job, warm.about.rules, MemoryStore(), Workers(3))
    engine.begin(warm)
    rest = feed(engine, cut(lines[cut_line - OVERLAP :], 6, seed=cut_line), counters) + end_of_time(engine, counters)
    assert sorted(alerts + rest) == sorted(expected(lines, deployed, tmp_path))
    assert alerts
    assert rest
    assert counters["events_before_start"] == before - (cut_line - OVERLAP)
    assert counters["late_events"] == 0


def test_the_cut_is_behind_the_last_event_if_none_is_given(tmp_path: Path) -> None:
    lines = list(day())[:400]
    warm_start(lines, list(rules().values()), tmp_path / "warm", None)
    warm = open_warm_start(str(tmp_path / "warm"))
    assert warm.about.until_ms == max(map(time_ms, lines)) + 1


def test_the_number_of_runs_is_that_of_a_job_that_saw_everything(tmp_path: Path) -> None:
    lines, records = list(day())[:3_000], list(rules().values())
    warm_start(lines[:2_000], records, tmp_path / "warm", None)
    warm = open_warm_start(str(tmp_path / "warm"))
    totals: list[int] = []
    for part in (lines, lines[2_000:]):
        counters: Counter[str] = Counter()
        engine = Engine(job_for(deploy(records)), warm.about.rules, MemoryStore(), Workers(1))
        begun = 0 if part is lines else engine.begin(warm)["runs"]
        feed(engine, [part], counters)
        engine.close()
        totals.append(begun + counters["runs"])
    assert totals[0] == totals[1] > 0


def unread(stored: StoredSegment) -> Block:
    raise AssertionError(f"segment {stored.number} is only counted")


def test_what_spark_begins_with_is_whole(tmp_path: Path) -> None:
    """Every page of histories that still counts has its head, and every segment that a head names exists."""
    rules_of_test = histories()
    warm_start(history_lines()[:2_000], rules_of_test, tmp_path / "warm", None)
    warm = open_warm_start(str(tmp_path / "warm"))
    deployment, checkpoint = deploy(rules_of_test), tmp_path / "checkpoint"
    job = replace(job_for(deployment, 8, 2), begins_ms=warm.about.until_ms)
    begin_warm(warm, job, deployment.rulebook, checkpoint)
    begins = read_beginning(checkpoint)
    assert begins is not None
    segments = 0
    for group in range(8):
        group_state = group_beginning(checkpoint, begins, job, 0, group)
        assert group_state.heads.keys() == group_state.over.keys()
        for page, head in group_state.heads.items():
            named = digests_of(decode_head(head, unread))
            assert {(page, number) for number in named} <= group_state.segments.keys()
            segments += len(named)
    assert segments > 8


def test_a_damaged_file_is_not_taken(tmp_path: Path) -> None:
    records = list(rules().values())
    warm_start(list(day())[:400], records, tmp_path / "warm", None)
    warm = open_warm_start(str(tmp_path / "warm"))
    file = next(iter(warm.files.values()))
    (tmp_path / "warm" / "files" / file.sha256).write_bytes(b"x" * file.size)
    engine = Engine(job_for(deploy(records)), warm.about.rules, MemoryStore(), Workers(1))
    with pytest.raises(StateCorruptError, match="checksum"):
        engine.begin(warm)


def test_a_job_without_the_keys_of_the_state_is_refused(tmp_path: Path) -> None:
    records = list(rules().values())
    warm_start(list(day())[:400], records, tmp_path / "warm", None)
    warm = open_warm_start(str(tmp_path / "warm"))
    deployed = deploy(records)
    engine = Engine(Job(deployed.schema, deployed.key_domains[:1], 16), warm.about.rules, MemoryStore(), Workers(1))
    with pytest.raises(UsageError, match="is missing"):
        engine.begin(warm)


# ------------------------------------------------------------------------------------------------- the command line


def place(folder: Path, lines: Sequence[bytes]) -> Path:
    folder.mkdir()
    (folder / "0.jsonl").write_bytes(b"\n".join(lines))
    return folder


def test_a_job_with_other_levels_than_the_state_is_refused(tmp_path: Path) -> None:
    lines = lines_of(transfers(3, 60))
    warm_start(lines, laundering(), tmp_path / "warm", None)
    warm = open_warm_start(str(tmp_path / "warm"))
    job = replace(job_for(deploy(laundering())), levels_count=4)
    engine = Engine(job, warm.about.rules, MemoryStore(), Workers(1))
    with pytest.raises(UsageError, match="`--levels 4`"):
        engine.begin(warm)
    engine.close()


def test_the_verbs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`cep replay --savepoint` and `cep run --from`, stopped and started again in the middle."""
    lines = list(day())
    cut = len(lines) // 2
    until = utc_text(time_ms(lines[cut]))
    history, events = (
        place(tmp_path / "history", lines[: cut + OVERLAP]),
        place(tmp_path / "events", lines[cut - OVERLAP :]),
    )
    control = place(tmp_path / "control", [END])
    (tmp_path / "alerts").mkdir()
    replay = ["replay", "--rules", RULES, "--engine", "embedded", "--key-groups", "16"]
    # Without a savepoint, `--until` only ends the history.
    earlier = place(tmp_path / "earlier", [line for line in lines if time_ms(line) < time_ms(lines[cut])])
    assert main([*replay, "--events", str(history), "--out", str(tmp_path / "cut.jsonl"), "--until", until]) == 0
    assert main([*replay, "--events", str(earlier), "--out", str(tmp_path / "earlier.jsonl")]) == 0
    assert (tmp_path / "cut.jsonl").read_bytes() == (tmp_path / "earlier.jsonl").read_bytes() != b""
    first = [*replay, "--events", str(history), "--out", str(tmp_path / "alerts" / "past.jsonl")]
    assert main([*first, "--savepoint", str(tmp_path / "warm"), "--until", until]) == 0
    assert main([*first, "--savepoint", str(tmp_path / "warm"), "--until", until]) == Exit.USAGE, "there is one already"
    live = ["run", "--events", str(events), "--alerts", str(tmp_path / "alerts" / "live"), "--available-now"]
    live += ["--checkpoint", str(tmp_path / "job"), "--key-groups", "8"]
    (tmp_path / "alerts" / "live").mkdir()
    assert main([*live, "--from", str(tmp_path / "warm")]) == 0
    capsys.readouterr()
    # A job that continues needs no warm start, and knows its rules and its beginning.
    assert main([*live, "--from", str(tmp_path / "warm"), "--control", str(control)]) == 0
    assert main([*live, "--rules", RULES, "--control", str(control)]) == 0
    assert main(["run", "--rules", RULES, "--events", str(events), "--available-now"]) == 0
    everything = place(tmp_path / "everything", lines)
    assert main([*replay, "--events", str(everything), "--out", str(tmp_path / "all.jsonl")]) == 0
    alerts = [
        line
        for path in (tmp_path / "alerts").rglob("*.jsonl")
        if ".held" not in path.name
        for line in path.read_bytes().splitlines()
    ]
    assert sorted(alerts) == sorted((tmp_path / "all.jsonl").read_bytes().splitlines())


def test_what_cannot_be_begun_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = place(tmp_path / "events", list(day())[:50])
    live = ["run", "--events", str(events), "--alerts", str(tmp_path), "--available-now"]
    assert main([*live, "--from", str(tmp_path)]) == Exit.USAGE
    assert "has no warm start" in capsys.readouterr().err
    warm_start(list(day())[:400], list(rules().values()), tmp_path / "warm", None)
    job = ["--checkpoint", str(tmp_path / "job"), "--key-groups", "16"]
    assert main([*live, *job, "--rules", RULES]) == 0
    capsys.readouterr()
    assert main([*live, *job, "--from", str(tmp_path / "warm")]) == Exit.USAGE
    assert "did not begin from" in capsys.readouterr().err
    assert (tmp_path / "warm" / NAME).exists()


SPARK_CASES = {
    "runs": lambda: (list(day()), list(rules().values())),
    "histories": lambda: (history_lines()[:6_000], histories()),
    "levels": lambda: (lines_of(transfers(3, 150)), laundering()),
}


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("name", SPARK_CASES)
def test_replay_and_then_live_on_spark(spark: SparkSession, name: str, tmp_path: Path) -> None:
    lines, records = SPARK_CASES[name]()
    cut = len(lines) * 2 // 3
    deployed = deploy(records)
    past = tmp_path / "past.jsonl"
    past.write_bytes(b"\n".join(lines[: cut + OVERLAP]))
    ending = Ending(tmp_path / "state", time_ms(lines[cut]))
    events = read_events(spark, past)
    replayed = replay(job_until(job_for(deployed), ending), deployed.rulebook, events, 2, ending)
    assert replayed.until_ms == time_ms(lines[cut])
    initial = tuple(record.to_json() for record in records)
    finish(ending.folder, replayed.state_files, About(job_for(deployed), initial, replayed.since_ms, replayed.until_ms))
    warm = open_warm_start(str(ending.folder))
    # The live job has its own number of pages and, except in one case, its own number of key groups.
    job = replace(job_for(deployed, 16 if name == "levels" else 8, 2), begins_ms=warm.about.until_ms)
    live = LiveRun(spark, tmp_path / "live", job, initial)
    begin_warm(warm, job, deployed.rulebook, tmp_path / "live" / "checkpoint")
    parts = split(lines[cut - OVERLAP :], 2)
    live.phase(parts[:1])
    live.phase(parts[1:])
    live.phase([], [END])
    assert sorted(rows(replayed.alerts) + live.alerts()) == sorted(expected(lines, deployed, tmp_path))
    assert replayed.alerts.num_rows
    assert live.totals["events_before_start"] > 0
    assert live.totals["late_events"] == 0
    assert live.totals["runs"] >= 0


@pytest.mark.spark
@pytest.mark.slow
def test_the_cut_on_spark_is_behind_the_last_event(spark: SparkSession, tmp_path: Path) -> None:
    records: list[UpsertRecord] = list(rules().values())
    lines, deployed = list(day())[:300], deploy(records)
    (tmp_path / "past.jsonl").write_bytes(b"\n".join(lines))
    events = read_events(spark, tmp_path / "past.jsonl")
    replayed = replay(job_for(deployed), deployed.rulebook, events, 2, Ending(tmp_path / "state"))
    times = list(map(time_ms, lines))
    assert (replayed.since_ms, replayed.until_ms) == (min(times), max(times) + 1)
    assert pa.types.is_timestamp(replayed.alerts.schema.field("history_from").type)
