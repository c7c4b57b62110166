"""Events + a pattern → the value of each of its histories at each event, as the engine has it.

What a history is of takes all events of a key, so a trace does not work it out again event by event.
Tested by: tests/testing/test_past.py
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from cep.base.limits import TIME_MS_MAX
from cep.base.schema import Schema
from cep.columnar.batch import EventBatch, from_slots
from cep.engine.keyed_state import empty_state
from cep.engine.table import prepare
from cep.lang.ir import PatternIR
from cep.lang.show import show_expr
from cep.lang.test_ir import Slot
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule

PastValues = Mapping[str, Mapping[str, Slot]]


def past_values(schema: Schema, pattern: PatternIR, batch: EventBatch) -> PastValues:
    """By event id, the value of each history by how it is written. Empty for a pattern without histories."""
    program = compile_rules(schema, pattern.key, (DeployedRule("past", 1, 1, "past", pattern),))
    if program.histories is None or not program.histories.histories or len(batch) == 0:
        return {}
    prepared = prepare(program, empty_state(program), batch, TIME_MS_MAX)
    columns: dict[str, list[Slot]] = {}
    for history in program.histories.histories:
        type_ = history.expr.type
        slots, nulls = prepared.columns[history.number], prepared.nulls[history.number]
        if type_.is_text:
            values = prepared.texts.take(pa.array(slots, mask=nulls.astype(bool)))
        else:
            values = from_slots(slots.copy(), nulls, type_)
        columns[show_expr(history.expr)] = values.to_pylist()
    ids = batch.event_id.take(pa.array(prepared.batch_rows)).to_pylist()
    return {i: {name: values[at] for name, values in columns.items()} for at, i in enumerate(ids)}
