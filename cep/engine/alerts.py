"""Matches → the alert table that every sink receives.

    alert_id = first 128 bits of SHA-256 over "rule version 4:card2:t12:t2" (key, ids of the bound events), as hex

What `on timeout emit` gives is an alert of kind "timeout"; before its digest "timeout " is written.
Everything but the id's digest is done column by column: an alert never becomes a Python object here.
Tested by: tests/engine/test_alerts.py
"""

from __future__ import annotations

import decimal
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.base.schema import Kind, Type
from cep.columnar.batch import from_slots
from cep.engine.advance import Matches
from cep.engine.reach import KeptWindow, known_from
from cep.kernels.layout import Int64
from cep.lang.walk import histories
from cep.nfa.deployed import DeployedRule
from cep.nfa.program import Program, RuleProgram

_TIMESTAMP = pa.timestamp("ms", tz="UTC")
_BOUND_EVENT = pa.struct([("variable", pa.string()), ("event_id", pa.string()), ("event_time", _TIMESTAMP)])
ALERT_SCHEMA = pa.schema(
    [
        ("alert_id", pa.string()),
        ("rule_id", pa.string()),
        ("version", pa.int32()),
        ("epoch", pa.int32()),
        ("status", pa.string()),
        ("severity", pa.string()),
        ("priority", pa.int32()),
        ("score", pa.int32()),
        ("kind", pa.string()),  # match, or timeout: a partial match whose time ran out
        ("key", pa.string()),
        ("message", pa.string()),
        ("description", pa.string()),  # what the pattern says of itself: its `##` lines
        ("measures", pa.string()),
        ("events", pa.list_(_BOUND_EVENT)),
        ("history_cut", pa.bool_()),  # a condition looked back at a window whose oldest events are not kept
        (
            "history_folded",
            pa.bool_(),
        ),  # …, or are only there summed up by stretches of time, with an edge rounded outwards
        ("history_from", _TIMESTAMP),  # since when events are known, if a condition looked back further
        ("match_start", _TIMESTAMP),
        ("match_end", _TIMESTAMP),
        ("detected_at", _TIMESTAMP),
        ("content_hash", pa.string()),
    ]
)
_MATCH, _TIMEOUT = "match", "timeout"
ALERT_ID_CHARS = 32
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def alert_table(program: Program, matches: Matches, since_ms: int = TIME_MS_MIN) -> pa.Table:
    """One row a completed match or a time-out, in the order (detected_at, alert_id); matches that become events are
    left out (produced.py). `since_ms`: the job has seen all events from then on (reach.py).

    Cost: columns, plus one digest for each alert.
    """
    numbers = np.unique(matches.rule).tolist()
    parts = []
    for number in numbers:
        rule = program.rules[number]
        if rule.deployed.pattern.produces is None:
            parts.append(rule_alerts(rule, matches, np.flatnonzero(of_rule(matches, number)), since_ms=since_ms))
        if rule.timeout_measures:
            timed_out = np.flatnonzero((matches.rule == number) & matches.timed_out)
            parts.append(rule_alerts(rule, matches, timed_out, _TIMEOUT, since_ms))
    table = pa.concat_tables(parts) if parts else ALERT_SCHEMA.empty_table()
    return sort_alerts(table)


def sort_alerts(table: pa.Table) -> pa.Table:
    """The order in which alert sets are compared and written."""
    return table.sort_by([("detected_at", "ascending"), ("alert_id", "ascending")])


def sorted_together(tables: Sequence[pa.Table]) -> pa.Table:
    """All alerts of tables that are sorted each, in that order too."""
    if len(tables) > 1:
        return sort_alerts(pa.concat_tables(tables))
    return tables[0] if tables else ALERT_SCHEMA.empty_table()


def of_rule(matches: Matches, number: int) -> NDArray[np.bool_]:
    """Which are completed matches of the rule: bool[M]."""
    mask: NDArray[np.bool_] = (matches.rule == number) & matches.completed
    return mask


def _kept(deployed: DeployedRule) -> list[KeptWindow]:
    """The windows of a rule's histories, each with since when its events are kept; none where all of them are."""
    if not deployed.known_ms:
        return []
    return [(h.window, ms) for h, ms in zip(histories(deployed.pattern), deployed.known_ms[1:], strict=True)]


def rule_alerts(
    rule: RuleProgram, matches: Matches, rows: Int64, kind: str = _MATCH, since_ms: int = TIME_MS_MIN
) -> pa.Table:
    """The alerts of these matches, or time-outs, of one rule, in their order."""
    count = len(rows)
    if count == 0:
        return ALERT_SCHEMA.empty_table()
    deployed = rule.deployed
    lengths = matches.offsets[rows + 1] - matches.offsets[rows]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    flat = np.arange(int(offsets[-1])) + np.repeat(matches.offsets[rows] - offsets[:-1], lengths)
    event_id = matches.event_id.take(pa.array(flat)).cast(pa.string())
    times = matches.event_time_ms[flat]
    variables = pa.array(rule.variables, pa.string()).take(pa.array(matches.variable[flat]))
    stamped = pa.array(times).cast(_TIMESTAMP)
    events = pa.ListArray.from_arrays(
        pa.array(offsets.astype(np.int32)),
        pa.StructArray.from_arrays([variables, event_id, stamped], type=_BOUND_EVENT),
    )
    key = matches.keys.take(pa.array(matches.key[rows])).cast(pa.string())
    columns_of = enumerate(rule.measures)
    if kind == _TIMEOUT:
        columns_of = enumerate(rule.timeout_measures, start=len(rule.measures))
    measures = {name: measure_values(matches, rows, at, type_) for at, (name, type_) in columns_of}

    # An absence without a window is certain when the input ends, which is no time of day: its last event's serves.
    ended = matches.detected_ms[rows] >= TIME_MS_MAX
    detected = np.where(ended, times[offsets[1:] - 1], matches.detected_ms[rows])

    def constant(value: Any, type_: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, type_), count)

    columns = [
        _alert_ids("" if kind == _MATCH else f"{kind} ", deployed, key, event_id, offsets),
        constant(deployed.rule_id, pa.string()),
        constant(deployed.version, pa.int32()),
        constant(deployed.epoch, pa.int32()),
        constant(deployed.status, pa.string()),
        constant(deployed.severity, pa.string()),
        constant(deployed.priority, pa.int32()),
        constant(deployed.score, pa.int32()),
        constant(kind, pa.string()),
        key,
        _message(deployed.message, {**{n: _plain(v, t) for n, (v, t) in measures.items()}, "key": key}, count),
        constant(" ".join(deployed.pattern.doc.split()), pa.string()),
        _measures_json(measures, count),
        events,
        pa.array((matches.cut[rows] & rule.cuts) != 0),
        pa.array((matches.cut[rows] & rule.folds) != 0),
        known_from(rule.windows, times[offsets[:-1]], since_ms, _kept(deployed)).cast(_TIMESTAMP),
        pa.array(times[offsets[:-1]]).cast(_TIMESTAMP),
        pa.array(times[offsets[1:] - 1]).cast(_TIMESTAMP),
        pa.array(detected).cast(_TIMESTAMP),
        constant(deployed.content_hash, pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=ALERT_SCHEMA)


def _alert_ids(before: str, deployed: DeployedRule, key: pa.Array, event_id: pa.Array, offsets: Int64) -> pa.Array:
    """Key and ids stand behind their lengths: whatever they hold, no two lists of parts look alike."""
    measured = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), _with_length(event_id))
    head = pa.scalar(f"{before}{deployed.rule_id} {deployed.version} ")
    texts = pc.binary_join_element_wise(head, _with_length(key), pc.binary_join(measured, ""), "")
    return pa.array(
        [hashlib.sha256(t).hexdigest()[:ALERT_ID_CHARS] for t in texts.cast(pa.binary()).to_pylist()], pa.string()
    )


def _with_length(texts: pa.Array) -> pa.Array:
    """`5:abcde` for `abcde`, bytes counted."""
    return pc.binary_join_element_wise(pc.binary_length(texts).cast(pa.string()), texts, ":")


def measure_values(matches: Matches, rows: Int64, at: int, type_: Type) -> tuple[pa.Array, Type]:
    """Measure number `at` of these matches as a column, with its type."""
    values, nulls = matches.measures[rows, at], matches.measures_null[rows, at]
    if type_.is_text:
        codes = pa.array(np.where(nulls != 0, 0, values), mask=nulls.astype(bool))
        return matches.texts.take(codes), type_
    return from_slots(np.ascontiguousarray(values), nulls, type_), type_


def _plain(values: pa.Array, type_: Type) -> pa.Array:
    """A measure as text, as a person would write it; null as "null"."""
    if type_.kind is Kind.DECIMAL:
        text = _decimal_text(values, type_.scale)
    elif type_.kind is Kind.TIME:
        stamped = values.cast(_TIMESTAMP)
        text = pc.strftime(stamped, "%Y-%m-%dT%H:%M:%SZ")
    elif type_.kind is Kind.DURATION:
        text = pc.binary_join_element_wise(values.cast(pa.string()), pa.scalar(" ms"), "")
    elif type_.kind is Kind.ENUM:
        text = pa.array(type_.symbols, pa.string()).take(values)
    elif type_.is_float:
        # A sentence is read by a person: six digits; the measures beside it have all of them.
        text = pa.array([None if v is None else f"{v:.6g}" for v in values.to_pylist()], pa.string())
    else:
        text = values.cast(pa.string())
    return text.cast(pa.string()).fill_null("null")


def _decimal_text(values: pa.Array, scale: int) -> pa.Array:
    """Scaled integers as decimal text: 90000 with scale 2 is 900.00. Exact for every int64."""
    return (
        pc.multiply(values.cast(pa.decimal128(19, 0)), _unit(scale)).cast(pa.string())
        if scale
        else values.cast(pa.string())
    )


def _unit(scale: int) -> pa.Scalar:
    """One minor unit, 10**-scale."""
    return pa.scalar(decimal.Decimal(1).scaleb(-scale), pa.decimal128(scale + 1, scale))


def _message(template: str, values: dict[str, pa.Array], count: int) -> pa.Array:
    """The template with each {name} replaced; a name that the match does not have stays as it is written."""
    parts: list[Any] = []
    at = 0
    for found in _PLACEHOLDER.finditer(template):
        parts.append(pa.scalar(template[at : found.start()], pa.string()))
        parts.append(values.get(found.group(1), pa.scalar(found.group(0), pa.string())))
        at = found.end()
    parts.append(pa.scalar(template[at:], pa.string()))
    return _joined(parts, count)


def _joined(parts: list[Any], count: int) -> pa.Array:
    joined = pc.binary_join_element_wise(*parts, "")
    return joined if isinstance(joined, pa.Array) else pa.repeat(joined, count)


def _measures_json(measures: dict[str, tuple[pa.Array, Type]], count: int) -> pa.Array:
    """A JSON object a match. Decimals are JSON numbers with all their digits; times and durations are texts."""
    parts: list[Any] = []
    for number, (name, (values, type_)) in enumerate(measures.items()):
        parts.append(pa.scalar(("{" if number == 0 else ",") + json.dumps(name) + ":", pa.string()))
        parts.append(_json_values(values, type_))
    parts.append(pa.scalar("}" if measures else "{}", pa.string()))
    return _joined(parts, count)


def _json_values(values: pa.Array, type_: Type) -> pa.Array:
    if type_.kind in (Kind.INT, Kind.DECIMAL, Kind.BOOL):
        return _plain(values, type_)
    if type_.kind is Kind.FLOAT:
        finite = pc.if_else(pc.is_finite(values), values, pa.scalar(None, pa.float64()))
        return finite.cast(pa.string()).fill_null("null")
    text = values.cast(pa.string()) if type_.is_text else _plain(values, type_)
    quoted = _per_distinct(text, json.dumps)
    return pc.if_else(pc.is_valid(values), quoted, pa.scalar("null", pa.string()))


def _per_distinct(texts: pa.Array, function: Callable[[str], str]) -> pa.Array:
    """Apply a function of one text to a column, once for each different text."""
    encoded = texts.dictionary_encode()
    changed = pa.array([function(t) for t in encoded.dictionary.to_pylist()], pa.string())
    return changed.take(encoded.indices)
