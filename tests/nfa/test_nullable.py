"""A rule has the same runs whether the job's fields may be null or not, so a job may let them become null."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np

from cep.base.schema import Field, Kind, Schema
from cep.model.rule import UpsertRecord
from cep.nfa.program import Program
from cep.rulebook.deploy import deploy
from cep.rulebook.rulebook import Rulebook
from cep.step.programs import programs_by_level
from tests.runners.parity_cases import drawn_rule
from tests.runners.spark.live_cases import rules


def nullable(schema: Schema) -> Schema:
    """Return the schema in which every field that may be nullable is."""

    def loosened(field: Field) -> Field:
        return field if field.type.kind in (Kind.ID, Kind.TIME) else replace(field, type=field.type.as_nullable())

    return Schema(tuple(replace(e, fields=tuple(map(loosened, e.fields))) for e in schema.event_types))


def programs(records: list[UpsertRecord], schema: Schema) -> list[Program]:
    book = Rulebook(schema, None)
    for record in records:
        assert book.apply(record, None).kind == "applied", record.id
    return [program for level in programs_by_level(book, schema) for program in level.values()]


def test_runs_have_the_same_shape() -> None:
    few = [rule for seed in range(12) if not deploy([rule := drawn_rule(Random(seed), f"x{seed}")]).set_aside]
    for records in (list(rules().values()), few):
        schema = deploy(records).schema
        for before, after in zip(programs(records, schema), programs(records, nullable(schema)), strict=True):
            assert before.width == after.width
            assert np.array_equal(before.row_registers, after.row_registers)
            for one, other in zip(before.rules, after.rules, strict=True):
                assert (one.identity, one.states_count) == (other.identity, other.states_count)
                assert np.array_equal(one.row, other.row)
