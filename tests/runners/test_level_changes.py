"""Rules that feed others come, change, pause and go while a job runs.

No run, history or shared start of another rule is lost by it. A job equals a replay with the same control records, for
every cut and restart.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Literal

import orjson
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cep.base.utc import utc_text
from cep.model.rule import ControlRecord, PauseRecord, ResumeRecord, RetireRecord, RollbackRecord, UpsertRecord
from cep.rulebook.deploy import deploy
from cep.rulebook.rulebook import Rulebook
from cep.runners.embedded import replay as embedded
from cep.runners.embedded.engine import Engine, Workers
from cep.sinks.json_form import json_lines
from cep.sources.pieces import read_pieces
from cep.state.memory import MemoryStore
from cep.state.rocks import RocksStore
from cep.state.store import DurableStore
from cep.step.job import Job
from tests.runners.embedded.cases import decoded, save
from tests.runners.spark.live_cases import END, LiveRun, time_ms
from tests.runners.test_later_rules import written
from tests.runners.test_producer_gaps import EVENTS, START_MS, lines_of

LEVELS = 4
MAKERS = {
    "drop": "by card { seq a -> b within 20 s where a: payment amount > 5 b: payment amount < 3 skip none "
    "emit card = b.card, shop = b.shop produce flag }",
    "quiet": "by shop { seq a -> !b within 15 s where a: payment amount > 6 b: payment amount < 2 skip none "
    "emit card = a.card, shop = a.shop produce flag }",
    "alone": "by card { seq f -> !g within 10 s where f: flag g: flag shop == f.shop skip none emit card = f.card "
    "produce echo }",
    "heard": "by card { seq p -> f within 90 s where p: payment amount > 4 f: flag skip none emit card = f.card "
    "produce echo }",
}
# Rules that read derived events. They are always there, and also begin matches with the source's events.
READERS = {
    "paid_flag": "by card { seq a -> f within 2 min where a: payment amount > 4 f: flag skip none }",
    "paid_echo": "by card { seq a -> e within 3 min where a: payment amount > 6 e: echo skip none }",
    "absent": "by card { seq a -> !f within 40 s where a: payment f: flag skip none }",
    "timely": "by shop { seq a -> f -> c within 90 s where a: payment f: flag c: payment amount > 7 skip none "
    "emit n = count(f) on timeout emit n = count(f) }",
    "busy": "by card { seq a -> b within 60 s where a: payment count(payment over 2 min) >= 3 b: payment "
    "count(flag over 1 min) == 0 and amount > 5 skip none }",
    "held": "by card { seq a -> f within 2 min where a: payment sum(payment.amount over 3 min) > 9 f: flag skip none }",
    **{
        f"alike{number}": "by card { seq a -> b -> c within 2 min where a: payment amount > 3 b: payment amount < 6 "
        f'c: flag shop == "{"st"[number % 2]}" skip none }}'
        for number in range(4)
    },
}
TOP = {"topmost": "by card { seq e -> p within 2 min where e: echo p: payment skip none }"}
SOURCE = EVENTS + "\n".join(f"pattern {name} {body}" for name, body in (MAKERS | READERS | TOP).items())


def rule(name: str, version: int = 1, effective_ms: int | None = None) -> UpsertRecord:
    record = written(name, SOURCE, name, None if effective_ms is None else utc_text(effective_ms))
    return record.model_copy(update={"version": version})


def job_of(groups: int = 4) -> Job:
    deployment = deploy([rule(name) for name in MAKERS | READERS | TOP])
    assert deployment.set_aside == ()
    return Job(deployment.schema, deployment.key_domains, groups, 1, levels_count=LEVELS)


def timeline(random: Random, lines: list[bytes], there: set[str], count: int) -> list[tuple[int, ControlRecord]]:
    """Return changes of the makers, each with the number of the next line; it starts after the last line."""
    later = [n for n in range(3, len(lines)) if time_ms(lines[n]) > time_ms(lines[n - 1]) + 1]
    versions, switches = dict.fromkeys(there, 1), dict.fromkeys(MAKERS, 0)
    first: dict[str, UpsertRecord] = {name: rule(name) for name in there}
    records: list[tuple[int, ControlRecord]] = []
    for line in sorted(random.sample(later, count)):
        name = random.choice(sorted(MAKERS))
        effective_at = utc_text(random.randint(time_ms(lines[line - 1]) + 1, time_ms(lines[line])))
        version = versions.get(name, 0) + 1
        kind = random.choice(("upsert", "retire", "pause", "resume", "rollback")) if name in versions else "upsert"
        on_update: Literal["drain", "restart", "carry"] = random.choice(("drain", "restart", "carry"))
        record: ControlRecord
        if kind in ("pause", "resume"):
            switches[name] += 1
            record_class = PauseRecord if kind == "pause" else ResumeRecord
            record = record_class(id=name, version=switches[name], effective_at=effective_at)
        else:
            versions[name] = version
            if kind == "retire":
                record = RetireRecord(id=name, version=version, effective_at=effective_at)
            elif kind == "rollback" and version > first[name].version:
                back = first[name]
                record = RollbackRecord(
                    id=name,
                    version=version,
                    effective_at=effective_at,
                    to_version=back.version,
                    rule=back,
                    on_update=on_update,
                )
            else:
                record = rule(name, version).model_copy(update={"effective_at": effective_at, "on_update": on_update})
                first.setdefault(name, record)
        records.append((line, record))
    return records


def lived(
    job: Job, initial: list[UpsertRecord], later: list[tuple[int, ControlRecord]], lines: list[bytes], random: Random,
    folder: Path | None,
) -> tuple[list[bytes], list[bytes]]:  # fmt: skip
    """Return the alerts and refusal letters of a job that is cut anywhere.

    With a folder, it restarts now and then, from memory or RocksDB.
    """
    store: DurableStore = MemoryStore() if folder is None or random.random() < 0.5 else RocksStore(folder / "first")
    first_records = tuple(record.to_json() for record in initial)
    engine = Engine(job, first_records, store, Workers(random.randint(1, 2)))
    cuts = sorted({0, len(lines), *(line for line, _ in later), *random.sample(range(1, len(lines)), 14)})
    tables: list[pa.Table] = []
    letters: list[bytes] = []
    for number, (start, end) in enumerate(pairwise(cuts)):
        records = tuple(record.to_json() for line, record in later if line == start)
        stepped = engine.step(decoded(job, lines[start:end]), records, {"p": (time_ms(lines[end - 1]), False)})
        assert stepped.counters["late_events"] == 0
        tables.append(stepped.alerts)
        letters += stepped.dead_letters
        if folder is not None and random.random() < 0.4:
            save(engine, number)
            store.checkpoint(folder / str(number))
            engine.close()
            kind = MemoryStore.open if isinstance(store, MemoryStore) else RocksStore
            store = kind(folder / str(number))
            engine = Engine(job, first_records, store, Workers(random.randint(1, 2)))
            engine.restore()
    tables.append(engine.step([], (END,), {}).alerts)
    engine.close()
    return sorted(json_lines(pa.concat_tables(tables))), letters


def replayed(job: Job, records: list[ControlRecord], lines: list[bytes], folder: Path) -> list[bytes]:
    rulebook = Rulebook(job.schema, job.domains)
    for record in records:
        assert rulebook.apply(record, None).kind == "applied"
    path = folder / "history.jsonl"
    path.write_bytes(b"\n".join(lines))
    # The live jobs of the tests get a watermark at the end of time, and so does the replay.
    whole = replace(job, to_the_end=True)
    return sorted(json_lines(embedded.replay(whole, rulebook, read_pieces(path, job.schema), 1).alerts))


def drawn(random: Random) -> tuple[list[UpsertRecord], list[tuple[int, ControlRecord]], list[bytes]]:
    """Return first rules, their later changes, and events. Every rule that reads derived events is there."""
    lines = lines_of(random, 130, START_MS, "e")
    there = set(random.sample(sorted(MAKERS), random.randint(0, 2)))
    initial = [rule(name) for name in (*there, *READERS, *TOP)]
    random.shuffle(initial)
    return initial, timeline(random, lines, there, random.randint(3, 9)), lines


def by_rule(alerts: list[bytes]) -> set[str]:
    return {orjson.loads(alert)["rule_id"] for alert in alerts}


@pytest.mark.parametrize("seed", range(6))
def test_a_job_finds_what_a_replay_with_the_same_records_finds(seed: int, tmp_path: Path) -> None:
    random = Random(f"levels {seed}")
    job, (initial, later, lines) = job_of(), drawn(random)
    alerts, letters = lived(job, initial, later, lines, random, tmp_path)
    assert letters == []
    assert lived(job, initial, later, lines, random, None) == (alerts, []), "cut otherwise"
    assert alerts == replayed(job, [*initial, *(record for _, record in later)], lines, tmp_path)
    assert len(by_rule(alerts)) >= 4


def test_a_rule_that_nothing_feeds_yet_keeps_its_runs_when_something_does(tmp_path: Path) -> None:
    """The run begins with a payment before any rule produces flags, and ends with its flag.

    A rule between the two comes, pauses and goes without an effect.
    """
    amounts = (9, 4, 4, 8, 1, 9, 1, 9, 1)
    lines = [
        orjson.dumps(
            {"event_type": "payment", "tx_id": f"t{n}", "event_time": utc_text(START_MS + 5_000 * n), "card": "x",
             "shop": "s", "amount": amount}
        )
        for n, amount in enumerate(amounts)
    ]  # fmt: skip
    job, initial = job_of(), [rule("paid_flag"), rule("paid_echo"), rule("heard")]
    records: list[ControlRecord] = [
        rule("drop", 1, START_MS + 15_000),
        PauseRecord(id="drop", version=1, effective_at=utc_text(START_MS + 25_000)),
        ResumeRecord(id="drop", version=2, effective_at=utc_text(START_MS + 35_000)),
        RetireRecord(id="heard", version=2, effective_at=utc_text(START_MS + 36_000)),
    ]
    later = list(zip((3, 5, 7, 8), records, strict=True))
    alerts = cut_at_each(job, initial, later, lines)
    assert alerts == replayed(job, [*initial, *records], lines, tmp_path)
    bound = {tuple(e["event_id"].split("~")[0] for e in a["events"]) for a in map(orjson.loads, alerts)}
    assert ("t0", "t4") in bound, "t0 came before the rule that produces what its run waits for"


def cut_at_each(
    job: Job, initial: list[UpsertRecord], later: list[tuple[int, ControlRecord]], lines: list[bytes]
) -> list[bytes]:
    engine = Engine(job, tuple(record.to_json() for record in initial), MemoryStore(), Workers(1))
    tables = []
    for number, line in enumerate(lines):
        records = tuple(record.to_json() for record_line, record in later if record_line == number)
        stepped = engine.step(decoded(job, [line]), records, {"p": (time_ms(line), False)})
        assert stepped.dead_letters == ()
        tables.append(stepped.alerts)
    tables.append(engine.step([], (END,), {}).alerts)
    engine.close()
    return sorted(json_lines(pa.concat_tables(tables)))


@pytest.mark.spark
@pytest.mark.slow
def test_a_job_on_spark_finds_the_same(spark: SparkSession, tmp_path: Path) -> None:
    random = Random("levels on Spark")
    job, (initial, later, lines) = job_of(2), drawn(random)
    live = LiveRun(spark, tmp_path / "live", job, tuple(record.to_json() for record in initial), 1)
    cuts = sorted({0, len(lines), *(line for line, _ in later)})
    for start, end in pairwise(cuts):
        records = [record.to_json() for line, record in later if line == start]
        if records:
            live.phase([], records)
        live.phase([lines[start:end]])
    live.phase([], [END])
    assert live.letters == []
    assert sorted(live.alerts()) == replayed(job, [*initial, *(record for _, record in later)], lines, tmp_path)
