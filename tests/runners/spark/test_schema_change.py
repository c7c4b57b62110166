"""A job whose event types change keeps its state: fields added, dropped or made nullable, an enum with a new symbol."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from pyspark.sql import SparkSession

from cep.base.errors import UsageError
from cep.base.schema import Field, Kind, Schema, Type
from cep.runners.live_checkpoint import open_checkpoint, read_job
from cep.runners.spark.rescale import partitions_of
from tests.runners.spark.live_cases import END, LiveRun, disordered, make_job, payments, replayed, rows, rules, split

pytestmark = pytest.mark.spark
LATENESS_MS = 90_000


def evolved(schema: Schema) -> Schema:
    """Return the schema without an unread field, with a new field and a new symbol, and with a nullable amount."""
    (transaction,) = schema.event_types
    fields = [field for field in transaction.fields if field.name != "channel"]
    for number, field in enumerate(fields):
        if field.type.kind is Kind.ENUM:
            fields[number] = replace(field, type=replace(field.type, symbols=(*field.type.symbols, "disputed")))
        if field.name == "amount":
            fields[number] = replace(field, type=field.type.as_nullable())
    return Schema((replace(transaction, fields=(*fields, Field("device", Type(Kind.STRING, nullable=True)))),))


def test_state_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    rules_by_id = rules("card_testing", "small_then_large", "rising_amounts")
    initial = tuple(record.to_json() for record in rules_by_id.values())
    live = LiveRun(spark, tmp_path, make_job(rules_by_id.values(), LATENESS_MS), initial)
    checkpoint = live.checkpoint.parent
    before = live.job
    open_checkpoint(checkpoint, before, initial)
    parts = split(disordered(payments(51), LATENESS_MS, 6), 2)
    live.phase(parts[:1])
    assert live.totals["runs"] > 0, "there is something to keep"
    live.job = replace(before, schema=evolved(before.schema))
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
