"""Rules come to a job without a free level for them, or without their event type or key.

A replay of the same records refuses the same rules by the same letters, and finds the same alerts, for every cut and
restart.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Literal

import orjson
import pytest
from pyspark.sql import SparkSession

from cep.base.utc import utc_text
from cep.columnar.route import KeyDomain
from cep.model.rule import ControlRecord, PauseRecord, ResumeRecord, RetireRecord, RollbackRecord, UpsertRecord
from cep.rulebook.deploy import Deployment, deploy, deploy_to_job
from cep.rulebook.levels import levels_needed
from cep.runners.embedded import replay as embedded
from cep.runners.spark.replay import read_events, replay
from cep.sinks.json_form import json_lines
from cep.sources.pieces import read_pieces
from cep.step.job import Job
from cep.step.rules import refusal_dead_letters
from tests.runners.spark.live_cases import END, LiveRun, time_ms
from tests.runners.test_later_rules import written
from tests.runners.test_level_changes import lived
from tests.runners.test_producer_gaps import EVENTS, START_MS, lines_of

TYPES = EVENTS + "event ring { ring_id id  event_time time  card string }\n"
# Each rule is a chain of the rules before it: payment, flag, echo, ring; some rules are shortcuts.
RULES = {
    "drop": "by card { seq a -> b within 20 s where a: payment amount > 5 b: payment amount < 3 skip none "
    "emit card = b.card, shop = b.shop produce flag }",
    "quiet": "by shop { seq a -> !b within 15 s where a: payment amount > 6 b: payment amount < 2 skip none "
    "emit card = a.card, shop = a.shop produce flag }",
    "heard": "by card { seq p -> f within 90 s where p: payment amount > 4 f: flag skip none emit card = f.card "
    "produce echo }",
    "rung": "by card { seq e -> p within 90 s where e: echo p: payment skip none emit card = p.card produce ring }",
    "short": "by card { seq a where a: payment amount == 9 emit card = a.card produce ring }",
    "paid_flag": "by card { seq a -> f within 2 min where a: payment amount > 4 f: flag skip none }",
    "paid_echo": "by card { seq a -> e within 3 min where a: payment amount > 6 e: echo skip none }",
    "absent": "by card { seq a -> !f within 40 s where a: payment f: flag skip none }",
    "timely": "by shop { seq a -> f -> c within 90 s where a: payment f: flag c: payment amount > 7 skip none "
    "emit n = count(f) on timeout emit n = count(f) }",
    "ringing": "by card { seq r -> p within 60 s where r: ring p: payment skip none }",
    "plain": "by card { seq a -> b within 30 s where a: payment amount > 7 b: payment amount > 8 skip none }",
}
# These read past events, so they are there from the beginning: incomplete histories have their own tests.
FIRST_ONLY = {
    "busy": "by card { seq a -> b within 60 s where a: payment count(payment over 2 min) >= 3 b: payment "
    "count(flag over 1 min) == 0 and amount > 5 skip none }",
}
ALL = RULES | FIRST_ONLY
TOGETHER = TYPES + "\n".join(f"pattern {name} {body}" for name, body in ALL.items())
Later = list[tuple[int, ControlRecord]]


def rule(name: str, version: int = 1, effective_at: str | None = None, *, alone: bool = True) -> UpsertRecord:
    """Return a rule whose text has only its own pattern, so that other derived events are unknown, or all patterns."""
    source = TYPES + f"pattern {name} {ALL[name]}" if alone else TOGETHER
    return written(name, source, name, effective_at).model_copy(update={"version": version})


def job_of(initial: list[UpsertRecord], levels_count: int, keys: tuple[KeyDomain, ...], groups: int = 4) -> Job:
    begun = deploy(initial)
    levels_count = max(levels_count, levels_needed(begun.rulebook.deployed()))
    domains = tuple(sorted({*begun.key_domains, *keys}))
    return Job(begun.schema, domains, groups, 1, levels_count=levels_count)


def as_the_job(job: Job, initial: list[UpsertRecord], later: Later) -> Deployment:
    """Return the rules of a replay, which does not know when records came or which events were matched by then."""
    return deploy_to_job(deploy(initial), (record for _, record in later), job.domains, job.levels_count)


def drawn(random: Random, changes_count: int) -> tuple[list[UpsertRecord], Later, list[bytes]]:
    """Return first rules, later ones with the number of the line after them, and events."""
    lines = lines_of(random, 130, START_MS, "e")
    others = random.sample(sorted(ALL.keys() - {"absent"}), random.randint(1, 4))
    first = [rule(name, alone=random.random() < 0.5) for name in ("absent", *others)]
    gaps = [n for n in range(3, len(lines)) if time_ms(lines[n]) > time_ms(lines[n - 1]) + 1]
    versions = {record.id: 1 for record in first}
    first_versions, switches = {record.id: record for record in first}, dict.fromkeys(RULES, 0)
    later: Later = []
    for start in sorted(random.sample(gaps, changes_count)):
        name = random.choice(sorted(RULES))
        # Most records come right before they start, others long before, even before the first event.
        line = start if random.random() < 0.7 else random.randint(later[-1][0] if later else 0, start)
        effective_at = utc_text(random.randint(time_ms(lines[start - 1]) + 1, time_ms(lines[start])))
        version = versions.get(name, 0) + 1
        kind = random.choice(("upsert", "upsert", "retire", "pause", "resume", "rollback"))
        on_update: Literal["drain", "restart", "carry"] = random.choice(("drain", "restart", "carry"))
        record: ControlRecord
        if name not in versions:
            kind = "upsert"
        if kind in ("pause", "resume"):
            switches[name] += 1
            record_class = PauseRecord if kind == "pause" else ResumeRecord
            record = record_class(id=name, version=switches[name], effective_at=effective_at)
        else:
            versions[name] = version
            if kind == "retire":
                record = RetireRecord(id=name, version=version, effective_at=effective_at)
            elif kind == "rollback":
                back = first_versions[name]
                record = RollbackRecord(
                    id=name,
                    version=version,
                    effective_at=effective_at,
                    to_version=back.version,
                    rule=back,
                    on_update=on_update,
                )
            else:
                record = rule(name, version, effective_at, alone=random.random() < 0.6)
                record = record.model_copy(update={"on_update": on_update})
                first_versions.setdefault(name, record)
        later.append((max(line, later[-1][0] if later else 0), record))
    return first, later, lines


def replayed(job: Job, deployment: Deployment, lines: list[bytes], folder: Path) -> list[bytes]:
    path = folder / "history.jsonl"
    path.write_bytes(b"\n".join(lines))
    # The live jobs of the tests get a watermark at the end of time, and so does the replay.
    replay_job = Job(job.schema, deployment.key_domains, to_the_end=True)
    return sorted(json_lines(embedded.replay(replay_job, deployment.rulebook, read_pieces(path, job.schema), 1).alerts))


def cases(seed: int) -> tuple[Job, list[UpsertRecord], Later, list[bytes], Random]:
    random = Random(f"refused {seed}")
    initial, later, lines = drawn(random, random.randint(6, 14))
    keys: tuple[KeyDomain, ...] = (("card",), ("shop",)) if random.random() < 0.8 else ()
    return job_of(initial, random.randint(1, 4), keys), initial, later, lines, random


@pytest.mark.parametrize("seed", range(8))
def test_a_replay_refuses_and_finds_what_the_job_did(seed: int, tmp_path: Path) -> None:
    job, initial, later, lines, random = cases(seed)
    alerts, letters = lived(job, initial, later, lines, random, tmp_path)
    deployed = as_the_job(job, initial, later)
    assert letters == refusal_dead_letters(deployed.refused)
    assert alerts == replayed(job, deployed, lines, tmp_path)
    assert len(alerts) > 10


@pytest.mark.spark
@pytest.mark.slow
def test_on_spark_the_same(spark: SparkSession, tmp_path: Path) -> None:
    random = Random("refused on Spark 8")
    initial, later, lines = drawn(random, 4)
    job = job_of(initial, 2, (("card",), ("shop",)), 2)
    live = LiveRun(spark, tmp_path / "live", job, tuple(record.to_json() for record in initial), 1)
    for start, end in pairwise(sorted({0, len(lines), *(line for line, _ in later)})):
        records = [record.to_json() for line, record in later if line == start]
        if records:
            live.phase([], records)
        live.phase([lines[start:end]])
    live.phase([], [END])
    deployed = as_the_job(job, initial, later)
    assert deployed.refused
    assert live.letters == [orjson.loads(letter) for letter in refusal_dead_letters(deployed.refused)]
    assert sorted(live.alerts()) == replayed(job, deployed, lines, tmp_path)
    path = tmp_path / "history.jsonl"
    events = read_events(spark, path)
    replay_job = Job(job.schema, deployed.key_domains)
    assert sorted(json_lines(replay(replay_job, deployed.rulebook, events, 2).alerts)) == sorted(live.alerts())
