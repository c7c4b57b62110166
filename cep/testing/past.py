"""Events + a pattern → the value of each of its histories at each event, and its list memberships, as in the engine.

A history needs all events of a key, and a list has versions, so a trace does not compute them again.
Tested by: tests/testing/test_harness.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from cep.base.limits import TIME_MS_MAX
from cep.base.schema import Schema
from cep.columnar.batch import EventBatch, from_slots
from cep.engine.keyed_state import empty_state
from cep.engine.table import prepare
from cep.lang.ir import Expr, PatternIR
from cep.lang.ir_tests import Slot
from cep.lang.show import show_expr
from cep.lists.timeline import NO_LISTS, Lists
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule

PastValues = Mapping[str, Mapping[str, Slot]]


def past_values(schema: Schema, pattern: PatternIR, batch: EventBatch, lists: Lists = NO_LISTS) -> PastValues:
    """Compute the histories and list memberships of a pattern at each event, by event id and text of the expression.

    The result is empty for a pattern without them.
    """
    rule = DeployedRule("past", 1, 1, "past", pattern)
    program = replace(compile_rules(schema, pattern.key, (rule,)), lists=lists)
    computed: list[tuple[int, Expr]] = [
        (n, c.computed) for n, c in enumerate(program.columns) if c.computed is not None
    ]
    computed = [(number, expr) for number, expr in computed if program.columns[number].is_listed]
    computed += [] if program.histories is None else [(h.number, h.expr) for h in program.histories.histories]
    if not computed or len(batch) == 0:
        return {}
    prepared = prepare(program, empty_state(program), batch, TIME_MS_MAX)
    columns: dict[str, list[Slot]] = {}
    for number, expr in computed:
        type_ = expr.type
        slots, nulls = prepared.columns[number], prepared.nulls[number]
        if type_.is_text:
            values = prepared.texts.take(pa.array(slots, mask=nulls.astype(bool)))
        else:
            values = from_slots(slots.copy(), nulls, type_)
        columns[show_expr(expr)] = values.to_pylist()
    ids = batch.event_id.take(pa.array(prepared.batch_rows)).to_pylist()
    return {i: {name: values[row] for name, values in columns.items()} for row, i in enumerate(ids)}
