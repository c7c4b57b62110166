"""A job in one process keeps its state when fields of its events are added, dropped or become nullable."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import orjson

from cep.base.schema import Field, Kind, Schema, Type
from cep.rulebook.deploy import deploy
from cep.rulebook.rulebook import Rulebook
from cep.runners.embedded import replay as embedded
from cep.runners.embedded.commit import Commits, Sources
from cep.runners.embedded.engine import Engine, Workers
from cep.runners.embedded.opening import StoreSettings
from cep.runners.embedded.outlets import Outlets
from cep.runners.embedded.run import Pace, Runner
from cep.runners.live_checkpoint import open_checkpoint
from cep.sinks.files import FileSink
from cep.sinks.json_form import json_lines
from cep.sources.live.files import FilesSource
from cep.sources.pieces import read_pieces
from cep.step.job import Job
from tests.runners.embedded.cases import morning
from tests.runners.spark.live_cases import disordered, rules, write_file

LATENESS_MS = 90_000
NAMES = ("card_testing", "small_then_large", "rising_amounts")


def changed(schema: Schema) -> Schema:
    """Return the schema without a field that these rules do not read, with a new one, and with a nullable amount."""
    (transaction,) = schema.event_types
    other_fields = [field for field in transaction.fields if field.name != "channel"]
    fields = [replace(f, type=f.type.as_nullable()) if f.name == "amount" else f for f in other_fields]
    return Schema((replace(transaction, fields=(*fields, Field("device", Type(Kind.STRING, nullable=True)))),))


def run(folder: Path, job: Job, initial: tuple[bytes, ...]) -> None:
    assert open_checkpoint(folder / "job", job, initial)[0] == initial
    commits = Commits(StoreSettings(folder / "job"))
    engine = Engine(job, initial, commits.store, Workers(2))
    sources = Sources(FilesSource(folder / "events", follow=False), None)
    outlets = Outlets([FileSink(folder / "alerts")], None)
    Runner(engine, sources, outlets, commits, Pace(records_max=300)).run(threading.Event(), until_end=True)
    assert not any(name.startswith(("poison[", "runs_orphaned")) for name in commits.totals)
    for opened in (sources, outlets, engine, commits):
        opened.close()


def test_state_is_kept(tmp_path: Path) -> None:
    rules_of_test = list(rules(*NAMES).values())
    initial = tuple(record.to_json() for record in rules_of_test)
    deployment = deploy(rules_of_test)
    job = Job(deployment.schema, deployment.key_domains, 8, lateness_ms=LATENESS_MS)
    (tmp_path / "events").mkdir()
    lines = disordered(morning(), LATENESS_MS, 5)
    half = len(lines) // 2
    for number in range(half, len(lines), 9):
        lines[number] = orjson.dumps({**orjson.loads(lines[number]), "amount": None, "device": "d"})
    write_file(tmp_path / "events" / "0.jsonl", lines[:half], 0)
    run(tmp_path, job, initial)
    after = replace(job, schema=changed(job.schema))
    write_file(tmp_path / "events" / "1.jsonl", lines[half:], 1)
    run(tmp_path, after, initial)
    alerts = [line for path in (tmp_path / "alerts").iterdir() for line in path.read_bytes().splitlines()]

    path = tmp_path / "history.jsonl"
    path.write_bytes(b"\n".join(lines))
    book = Rulebook(after.schema, after.domains)
    assert all(book.apply(record, None).kind == "applied" for record in rules_of_test)
    replayed = embedded.replay(replace(after, lateness_ms=0), book, read_pieces(path, after.schema), 1)
    assert not any(name.startswith("poison[") for name in replayed.counters)
    assert sorted(alerts) == sorted(json_lines(replayed.alerts))
    assert alerts
