"""Carried runs go on as if the new version had built them, otherwise they drain: random patterns and parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import orjson
import pytest

from cep.model.rule import UpsertRecord
from cep.rulebook.deploy import deploy
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.replay import replay
from cep.sinks.json_form import json_lines
from cep.sources.pieces import read_pieces
from cep.state.memory import MemoryStore
from cep.step.job import Job
from tests.rulebook.carry_cases import Case, drawn
from tests.runners.embedded.cases import cut
from tests.runners.embedded.test_engine import feed, finish
from tests.seeds import seeds


def replayed(records: Sequence[UpsertRecord], path: Path) -> list[bytes]:
    deployment = deploy(records)
    assert deployment.set_aside == (), deployment.set_aside
    job = Job(deployment.schema, deployment.key_domains, to_the_end=True)
    return list(json_lines(replay(job, deployment.rulebook, read_pieces(path, job.schema), 1).alerts))


def matches(alerts: Sequence[bytes]) -> list[tuple[object, ...]]:
    """Return the matches, without the version that reports them."""
    values = [orjson.loads(alert) for alert in alerts]
    return sorted(
        (str(a["key"]), tuple(event["event_id"] for event in a["events"]), a["measures"]["first"], a.get("timed_out"))
        for a in values
    )


def outcome_of(case: Case) -> str:
    """Return the job's statement about the runs."""
    (runs,) = [rule.runs for rule in deploy(case.versions("carry")).rulebook.report().rules if rule.runs is not None]
    return runs.outcome


@pytest.mark.parametrize("seed", seeds(150, 12))
def test_a_carried_run_is_one_that_the_new_version_would_have_built(seed: int, tmp_path: Path) -> None:
    case, path = drawn(seed), tmp_path / "history.jsonl"
    path.write_bytes(b"\n".join(case.lines))
    carried = replayed(case.versions("carry"), path)
    if outcome_of(case) == "carried":
        assert matches(carried) == matches(replayed([case.version(1, case.after, "drain", None)], path))
    else:
        assert carried == replayed(case.versions("drain"), path)
    records = case.versions("carry")
    deployment, counters = deploy(records), Counter[str]()
    job = Job(deployment.schema, deployment.key_domains, 4, 1, 0)
    engine = Engine(job, tuple(record.to_json() for record in records), MemoryStore(), Workers(1))
    alerts = feed(engine, cut(case.lines, 5, seed), counters) + finish(engine, counters)
    assert sorted(alerts) == sorted(carried)


def test_the_seeds_have_both_outcomes() -> None:
    assert {outcome_of(drawn(seed)) for seed in range(12)} == {"carried", "drained"}
