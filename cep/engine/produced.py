"""Matches of patterns that `produce` → derived events, which are routed and matched like source events.

    id = "<id of the source event that completed it>~<id that the alert would have>"
    time = detection time of the match, fields = its measures, and its alert's statements about the past and origins

The same match gives the same event, in any runner. Derived events of one millisecond are matched in the order of the
events that completed them, after all source events of that millisecond.

Tested by: tests/runners/test_produced.py
"""

from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.base.limits import TIME_MS_MIN
from cep.base.schema import DERIVED_COMPLETE_FROM, DERIVED_FLAGS, DERIVED_ORIGINS, FLAG_CUT, FLAG_FOLDED
from cep.columnar.batch import TEXT, arrow_type, data_columns, no_order
from cep.columnar.convert import finite
from cep.columnar.decode import Decoded, concat_decoded
from cep.columnar.order import order_of_derived
from cep.engine.advance import Matches
from cep.engine.alerts import ALERT_ID_CHARS, completed_rows, measure_values, rule_alerts, write_origins
from cep.kernels.text.alert_texts import bound_rows
from cep.nfa.program import Program, RuleProgram


def produced_events(
    program: Program, matches: Matches, counters: Counter[str], since_ms: int = TIME_MS_MIN,
    alert_tables: list[pa.Table] | None = None,
) -> Decoded | None:  # fmt: skip
    """Convert matches of live rules that produce events to events; None without such matches.

    The alerts go into `alert_tables`. An event has its origins in the column DERIVED_ORIGINS: the source events of its
    match, up to a limit (`counters` counts dropped ones). A shadow rule (on trial) produces no events, because live
    rules would react to them."""
    parts = []
    for number in matches.rules:
        rule = program.rules[number]
        if rule.deployed.pattern.produces is None or rule.deployed.status != "live":
            continue
        rows = completed_rows(matches, number)
        if len(rows):
            alerts = rule_alerts(rule, matches, rows, since_ms)
            events = _make_events(program, rule, alerts, matches, rows)
            origins = {DERIVED_ORIGINS: _origins(rule, matches, rows, counters)}
            parts.append(replace(events, columns={**events.columns, **origins}))
            if alert_tables is not None:
                alert_tables.append(alerts)
    return concat_decoded(program.schema, parts) if parts else None


def _make_events(program: Program, rule: RuleProgram, alerts: pa.Table, matches: Matches, rows: np.ndarray) -> Decoded:
    """Make a derived event of each match: with its measures as fields, and its alert's flags of incomplete histories.

    Its id is "<id of the source event that completed the match>~<id of the alert>". A history (aggregate of past
    events) may lack events (cut), have only sums of them (folded), or be complete only from some time on (from)."""
    name = rule.deployed.pattern.produces
    event_type = program.schema.event_type(name or "")
    assert event_type is not None, "the rulebook takes rules whose event types the job has"
    alert_ids = alerts.column("alert_id").combine_chunks().cast(TEXT)
    ids = pc.binary_join_element_wise(_sources(program, rule, matches, rows), alert_ids, pa.scalar("~", TEXT))
    times = np.asarray(alerts.column("detected_at").combine_chunks().cast(pa.int64()))
    index_and_type = {measure: (index, type_) for index, (measure, type_) in enumerate(rule.measures)}
    columns: dict[str, pa.Array] = {}
    for column, type_ in data_columns(program.schema).items():
        if column == event_type.id_field:
            columns[column] = ids
        elif column in index_and_type:
            values = measure_values(matches, rows, *index_and_type[column]).cast(arrow_type(type_))
            columns[column] = finite(values) if type_.is_float else values
        else:
            columns[column] = pa.nulls(len(rows), arrow_type(type_))
    cut, folded, from_time = (
        alerts.column(f"history_{name}").combine_chunks().cast(pa.int64()) for name in ("cut", "folded", "from")
    )
    flags = np.asarray(cut) * FLAG_CUT + np.asarray(folded) * FLAG_FOLDED
    columns |= {DERIVED_COMPLETE_FROM: from_time, DERIVED_FLAGS: pa.array(flags, mask=flags == 0)}
    code = np.full(len(rows), program.schema.code(event_type.name), np.int16)
    return Decoded(ids, code, times, columns, (), _order(matches, rows, times))


def _order(matches: Matches, rows: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the order of derived events: of their completing events, after all source events; none for deadlines."""
    last = matches.offsets[rows + 1] - 1
    order = no_order(len(rows)) if matches.order is None else matches.order[last]
    order[matches.event_time_ms[last] != times] = no_order(1)
    return order_of_derived(order, 1 + ALERT_ID_CHARS)


def _origins(rule: RuleProgram, matches: Matches, rows: np.ndarray, counters: Counter[str]) -> pa.Array:
    offsets, events = bound_rows(matches.offsets, rows)
    positions = pa.array(events)
    names = pa.array(rule.variables, pa.string()).take(pa.array(matches.variable[events]))
    inner = pa.nulls(len(positions), TEXT) if matches.origins is None else matches.origins.take(positions)
    texts, dropped = write_origins(
        offsets, names, matches.event_id.take(positions), matches.event_time_ms[events], inner
    )
    if dropped:
        counters["origins_dropped"] += dropped
    return texts


def _sources(program: Program, rule: RuleProgram, matches: Matches, rows: np.ndarray) -> pa.Array:
    """Return the id of the source event of each match: its last event, or that event's own source event."""
    last = matches.offsets[rows + 1] - 1
    ids = matches.event_id.take(pa.array(last))
    schema, pattern = program.schema, rule.deployed.pattern
    of_variable = [schema.event_type(pattern.variable(name).event_type) for name in rule.variables]
    derived = np.array([e is not None and e.derived for e in of_variable])[matches.variable[last]]
    made_from = pc.utf8_slice_codeunits(ids, 0, -(1 + ALERT_ID_CHARS))
    return pc.if_else(pa.array(derived), made_from, ids)
