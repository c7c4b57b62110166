"""A key with an unreadable value is marked in its alerts, alike in a job, in a replay and on Spark."""

from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyspark.sql import SparkSession

from cep.base.text import utc_text
from cep.model.rule import UpsertRecord
from cep.rulebook.deploy import deploy
from cep.runners.embedded import replay as embedded
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.output import Replayed
from cep.runners.spark import replay as on_spark
from cep.sinks.json_form import json_lines
from cep.sources.pieces import read_pieces
from cep.state.memory import MemoryStore
from cep.step.job import Job
from cep.step.rules import rule_status
from tests.columnar.common import GOOD
from tests.hostile.doors import _RECORD
from tests.runners.embedded.cases import decoded, latest_ms, save
from tests.runners.spark.live_cases import LiveRun

MINUTE_MS, DAY_MS = 60_000, 86_400_000
START_MS = 1_772_323_200_000
RULE: UpsertRecord = _RECORD


def event(card_id: str, at_ms: int, amount: float, **changes: Any) -> bytes:
    values = {**GOOD, "status": "approved", "tx_id": f"{card_id}-{at_ms}", "card_id": card_id, "amount": amount}
    return orjson.dumps({**values, "event_time": utc_text(START_MS + at_ms), **changes})


def fraud(card_id: str, at_ms: int) -> list[bytes]:
    """A small and a large payment, which give an alert."""
    return [event(card_id, at_ms, 0.5), event(card_id, at_ms + 1_000, 9.5)]


def history() -> list[bytes]:
    """Alerts of keys with an unreadable value before, inside and after the match, and longer ago; in order of time."""
    bad = {"lat": "x"}
    lines = [
        event("old", 0, 3, **bad), event("before", 8 * DAY_MS, 3, retries="many"), *fraud("old", 8 * DAY_MS),
        *fraud("before", 9 * DAY_MS), *fraud("after", 9 * DAY_MS), event("after", 9 * DAY_MS + 9_000, 3, **bad),
        event("inside", 9 * DAY_MS, 0.5), event("inside", 9 * DAY_MS + 1_000, 9.5, **bad), *fraud("clean", 9 * DAY_MS),
        *fraud("after", 10 * DAY_MS), event("end", 20 * DAY_MS, 3),
    ]  # fmt: skip
    return sorted(lines, key=lambda line: (orjson.loads(line)["event_time"], orjson.loads(line)["tx_id"]))


EXPECTED = {("after", 10), ("before", 9), ("inside", 9)}


def marked(lines: list[bytes]) -> set[tuple[str, int]]:
    """The keys of the marked alerts, each with the day of its alert."""
    flawed = set()
    for alert in map(orjson.loads, lines):
        if alert.get("flawed"):
            flawed.add((alert["key"], int(alert["detected_at"][8:10]) - 1))
    return flawed


def make_job() -> Job:
    deployed = deploy([RULE])
    return Job(deployed.schema, deployed.key_domains, 4)


def replayed(folder: Path) -> Replayed:
    path = folder / "history.jsonl"
    path.write_bytes(b"\n".join(history()))
    job = make_job()
    return embedded.replay(job, deploy([RULE]).rulebook, read_pieces(path, job.schema), 1)


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_job_marks_the_alerts_of_a_replay(size: int, tmp_path: Path) -> None:
    expected = replayed(tmp_path)
    expected_lines = sorted(json_lines(expected.alerts))
    assert marked(expected_lines) == EXPECTED
    assert len(expected_lines) == 6
    job, store, lines, alert_lines = make_job(), MemoryStore(), history(), list[bytes]()
    letters = list[bytes]()
    for number, first in enumerate(range(0, len(lines), size)):
        engine = Engine(job, (RULE.to_json(),), store, Workers(1))
        if number:
            engine.restore()
        piece = lines[first : first + size]
        stepped = engine.step(decoded(job, piece), (), {"p": (latest_ms(piece), False)})
        alert_lines += json_lines(stepped.alerts)
        letters += stepped.dead_letters
        save(engine, number)
        engine.close()
    assert sorted(alert_lines) == expected_lines
    shown, theirs = ([orjson.loads(each) for each in some] for some in (letters, expected.dead_letters))
    keys = [*(letter["keys"] for letter in shown), *(letter["keys"] for letter in theirs)]
    assert Counter(map(str, keys)) == {str({"card_id": [key]}): 2 for key in ("old", "before", "inside", "after")}


@pytest.mark.spark
def test_spark_marks_the_alerts_of_a_replay(spark: SparkSession, tmp_path: Path) -> None:
    expected_lines = sorted(json_lines(replayed(tmp_path).alerts))
    job = make_job()
    theirs = on_spark.replay(job, deploy([RULE]).rulebook, on_spark.read_events(spark, tmp_path / "history.jsonl"), 2)
    assert sorted(json_lines(theirs.alerts)) == expected_lines
    status = rule_status(deploy([RULE]).rulebook)
    live, lines = LiveRun(spark, tmp_path / "live", job, (RULE.to_json(),), status=status), history()
    live.phase([lines[:9]])
    live.phase([lines[9:]])  # this start reads the marks of the first
    assert marked(live.alerts()) == EXPECTED
    assert live.alerts() == expected_lines
