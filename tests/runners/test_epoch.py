"""The epoch on alerts, letters and status: it depends on the control records, not on their cuts."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest
from pyspark.sql import SparkSession

from cep.base.utc import utc_text
from cep.model.rule import RetireRecord, SnoozeRecord
from cep.rulebook.saved import rulebook_bytes
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.run import Pace, Runner
from cep.sinks.dead_letters import DeadLetterFiles
from cep.sinks.files import FileSink
from cep.sources.live.files import FilesSource
from cep.state.memory import MemoryStore
from cep.step.job import Job
from cep.step.rule_status import rule_status
from tests.runners.spark.live_cases import END, LiveRun, make_job, time_ms, write_file
from tests.runners.test_later_rules import EVENTS, payment_lines, record

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


def ran(
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
        commits = Commits(StoreSettings(folder / "job", "memory"))
        engine = Engine(job, initial, commits.store, Workers(1))
        sources = Sources(FilesSource(folder / "events", follow=True), FilesSource(folder / "control", follow=True))
        outlets = Outlets([FileSink(folder / "alerts")], DeadLetterFiles(folder / "letters"))
        Runner(engine, sources, outlets, commits, Pace(interval_ms=1)).run(threading.Event(), until_end=True)
        status = rule_status(engine.rulebook.rulebook)
        for opened in (sources, outlets, engine, commits):
            opened.close()
    alerts, letters = (
        sorted(line for path in (folder / name).iterdir() for line in path.read_bytes().splitlines())
        for name in ("alerts", "letters")
    )
    return alerts, letters, status


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
    alerts, letters, status = ran(tmp_path / "embedded", job, initial, phases)
    assert live.alerts() == alerts
    epochs = {alert["rule_id"]: alert["epoch"] for alert in map(orjson.loads, alerts)}
    assert epochs == {f"r{number}": number + 1 for number in range(COMING + 1) if number != 2}, "in their order"
    # A held alert is a letter of `cep run`, and in a folder of its own on Spark.
    assert sorted(map(repr, live.letters)) == sorted(
        repr(letter) for letter in map(orjson.loads, letters) if "held" not in letter
    )
    job_status = orjson.loads((live.checkpoint.parent / "rule_status.json").read_bytes())
    assert (job_status["epoch"], job_status["content_hash"]) == (status["epoch"], status["content_hash"])
