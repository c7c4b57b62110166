"""Matches → the alert table that every sink receives.

    alert_id = first 128 bits of SHA-256 over "rule version 4:card2:t12:t2" (key, ids of the bound events), as hex

If matches of one time bind the same events to other variables, all but one have a digest of their variables, too.
An alert from `on timeout emit` has the kind "timeout"; its digest begins with "timeout ".

The source events of derived events are a text stored with each derived event, and a column of alerts:

    made of = for each source event:  mark | variables | mark | event id | mark | time (ms)      c.t  t12  1700…

The variables belong to the matches in between, the latest first: the match that became the event bound as c bound `c.t`
as t. So an alert can list source events without other events, in any process. The state of an earlier build has no such
texts. There a derived event stands for its origins, and an alert that binds it lists none.

Tested by: tests/engine/test_alerts.py, tests/api/test_alerts.py.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cep.base.limits import ORIGINS_MAX, TIME_MS_MAX, TIME_MS_MIN
from cep.base.schema import FLAG_CUT, FLAG_FOLDED, Kind, Type
from cep.columnar.batch import TEXT, from_slots, text_buffers
from cep.columnar.convert import as_decimals
from cep.columnar.texts import encoded
from cep.engine.advance import Matches
from cep.engine.reach import RetainedWindow, gaps_from_ms, history_from_ms, retained_from_ms
from cep.kernels.layout import Int32, Int64, UInt8
from cep.kernels.records import Texts
from cep.kernels.text.alert_texts import bound_rows, chosen_texts, digest_texts
from cep.lang.walk import histories
from cep.nfa.deployed import DeployedRule
from cep.nfa.program import Program, RuleProgram

_TIMESTAMP = pa.timestamp("ms", tz="UTC")
ORIGIN = pa.struct(
    [
        ("place", pa.int32()),  # index of the bound event that was made of it
        ("level", pa.int32()),  # number of names in `variable`: 2 for an event that the bound event's match has bound
        ("variable", pa.string()),
        ("event_id", pa.string()),
        ("event_time", _TIMESTAMP),
    ]
)
ORIGINS = pa.list_(ORIGIN)
_RECORD_MARK, _PART_MARK, _ESCAPE_MARK, _LEVEL_MARK = "\x1e", "\x1f", "\x1d", "."
# An id may have any character. A mark in an id is replaced by an escape that begins with another mark.
_ESCAPED = ((_ESCAPE_MARK, f"{_ESCAPE_MARK}0"), (_RECORD_MARK, f"{_ESCAPE_MARK}1"), (_PART_MARK, f"{_ESCAPE_MARK}2"))


def write_origins(
    offsets: Int32, names: pa.Array, ids: pa.Array, time_ms: Int64, inner_origins: pa.Array
) -> tuple[pa.Array, int]:
    """Return the source events of each of M derived events, as text[M], and the number of dropped source events.

    Derived event m is made of match m, which has the bound events offsets[m] to offsets[m + 1]. The text has a record
    for each bound event: its variable, id and time. A bound event that is itself derived is replaced by its own source
    events, which `inner_origins` has as text; null for the other events."""
    for mark, escaped in _ESCAPED:
        ids = pc.replace_substring(ids, mark, escaped)
    times = pa.array(time_ms).cast(TEXT)
    lead = pa.scalar(_RECORD_MARK, TEXT)
    part = pa.scalar(_PART_MARK, TEXT)
    records = pc.binary_join_element_wise(lead, names.cast(TEXT), part, ids, part, times, pa.scalar("", TEXT))
    texts = pc.coalesce(_with_variable_before(names, inner_origins), records)
    whole = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), texts), pa.scalar("", TEXT))
    counts = pc.count_substring(whole, _RECORD_MARK).to_numpy()
    if not (counts > ORIGINS_MAX).any():
        return whole, 0
    is_over = pa.array(counts > ORIGINS_MAX)  # + 1 below: a text begins with a mark, so its first part is empty
    cut = [_RECORD_MARK.join(text.split(_RECORD_MARK)[: ORIGINS_MAX + 1]) for text in whole.filter(is_over).to_pylist()]
    return pc.replace_with_mask(whole, is_over, pa.array(cut, TEXT)), int(np.maximum(counts - ORIGINS_MAX, 0).sum())


def list_origins(offsets: Int32, names: pa.Array, inner_origins: pa.Array) -> tuple[pa.Array, int]:
    """List the origins of each alert, null without them. Return also the number of dropped ones.

    A derived event is made of a match, and its origins are the source events of that match. Alert m has the bound
    events offsets[m] to offsets[m + 1], with the variables `names`. A derived one has a text in `inner_origins`, with a
    record for each origin: a record mark, the variable, a part mark, the event id, a part mark, and the time (ms)."""
    count = len(offsets) - 1
    derived = np.flatnonzero(np.asarray(pc.is_valid(inner_origins)))
    if not len(derived):
        return pa.nulls(count, ORIGINS), 0
    positions = pa.array(derived)
    texts = _with_variable_before(names.take(positions), inner_origins.take(positions))  # t of c becomes c.t
    records = pc.split_pattern(pc.utf8_slice_codeunits(texts, 1), _RECORD_MARK)  # without the first mark
    event_of_record = derived[np.asarray(pc.list_parent_indices(records))]
    alert_of_record = np.searchsorted(offsets, event_of_record, side="right") - 1
    first_record = np.searchsorted(alert_of_record, np.arange(count))  # of each alert
    stays = np.arange(len(alert_of_record)) - first_record[alert_of_record] < ORIGINS_MAX
    dropped = len(alert_of_record) - int(np.count_nonzero(stays))
    parts = pc.split_pattern(records.flatten().filter(pa.array(stays)), _PART_MARK).flatten()
    event_of_record, alert_of_record = event_of_record[stays], alert_of_record[stays]
    variables, ids, times = (parts.take(pa.array(np.arange(part, len(parts), 3))) for part in range(3))
    for mark, escaped in reversed(_ESCAPED):  # ids have escapes instead of marks
        ids = pc.replace_substring(ids, escaped, mark)
    columns: Sequence[pa.Array] = [
        pa.array((event_of_record - offsets[alert_of_record]).astype(np.int32)),  # place: index in the alert's events
        pc.add(pc.count_substring(variables, _LEVEL_MARK).cast(pa.int32()), pa.scalar(1, pa.int32())),  # level
        variables.cast(pa.string()),
        ids.cast(pa.string()),
        times.cast(pa.int64()).cast(_TIMESTAMP),
    ]
    ends = np.searchsorted(alert_of_record, np.arange(count + 1)).astype(np.int32)
    values = pa.StructArray.from_arrays(columns, fields=list(ORIGIN))
    return pa.ListArray.from_arrays(pa.array(ends), values, mask=pa.array(ends[1:] == ends[:-1])), dropped


def _with_variable_before(names: pa.Array, inner_origins: pa.Array) -> pa.Array:
    """Put the variable of a derived event before the variables of its origins; null stays null."""
    texts = inner_origins
    for name in pc.unique(names).to_pylist():
        longer = pc.replace_substring(inner_origins, _RECORD_MARK, f"{_RECORD_MARK}{name}{_LEVEL_MARK}")
        texts = pc.if_else(pc.equal(names, name), longer, texts)
    return texts


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
        ("description", pa.string()),  # the `##` lines of the pattern
        ("measures", pa.string()),
        ("events", pa.list_(_BOUND_EVENT)),
        ("origins", ORIGINS),  # source events of the derived events in the match; null without derived events
        ("history_cut", pa.bool_()),  # a condition read a sub-key whose events may be forgotten.
        ("history_folded", pa.bool_()),  # a condition read a window whose older events are folded (in sums).
        ("history_from", _TIMESTAMP),  # the time from which the past is complete, if a condition looked back further
        ("unconfirmed", pa.bool_()),  # the history ended before the alert was certain: only with `--to-the-end`.
        ("flawed", pa.bool_()),  # the key had an event with an unreadable value in the last days (step/marks.py)
        ("match_start", _TIMESTAMP),
        ("match_end", _TIMESTAMP),
        ("detected_at", _TIMESTAMP),
        ("content_hash", pa.string()),
    ]
)
NO_ALERTS = ALERT_SCHEMA.empty_table()
_MATCH, _TIMEOUT = "match", "timeout"
ALERT_ID_CHARS = 32
# attributes of a deployed rule with the same names in alerts
_RULE_COLUMNS = ("rule_id", "version", "epoch", "status", "severity", "priority", "score", "content_hash")
_HEX = np.array([f"{byte:02x}".encode() for byte in range(256)]).view(np.uint16)  # two characters for each byte
_COLUMN_BYTES = 1 << 31
_SCALE_OF_DIGITS = 6  # Arrow writes a small decimal with more digits as 1E-8
_AT_ONCE = 1 << 20  # alerts of several rules that are made together
_RULES_CACHED = 64  # sets of rules that reacted together, whose common columns are cached
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def alert_table(program: Program, matches: Matches, since_ms: int = TIME_MS_MIN) -> pa.Table:
    """Return one row per completed match or time-out, sorted by (detected_at, alert_id), but for produced events.

    `since_ms`: the job has seen all events from then on (reach.py). Cost: columns, plus one digest for each alert.
    """
    return alerts_of(alerting(program, matches), matches, since_ms)


def alerting(program: Program, matches: Matches) -> list[Alerting]:
    """Choose the matches that become alerts, by rule and kind."""
    parts: list[Alerting] = []
    for number in matches.rules:
        rule = program.rules[number]
        if rule.deployed.pattern.produces is None:
            parts.append(Alerting(rule, completed_rows(matches, number)))
        if rule.timeout_measures:
            parts.append(Alerting(rule, np.flatnonzero((matches.rule == number) & matches.timed_out), _TIMEOUT))
    return [part for part in parts if len(part.rows)]


def alerts_of(
    parts: Sequence[Alerting], matches: Matches, since_ms: int, counters: Counter[str] | None = None
) -> pa.Table:
    """Return the alerts of all parts, as alert_table does. `counters` counts dropped origins."""
    counters = Counter() if counters is None else counters
    if sum(len(part.rows) for part in parts) > _AT_ONCE:  # a column of texts holds two gigabytes
        return sorted_together([_table([part], matches, since_ms, counters) for part in parts])
    return _table(parts, matches, since_ms, counters)


def sort_alerts(table: pa.Table) -> pa.Table:
    """Sort alerts in the order in which alert sets are compared and written."""
    if table.num_rows < 2:
        return table
    return table.sort_by([("detected_at", "ascending"), ("alert_id", "ascending")])


def sorted_together(tables: Sequence[pa.Table]) -> pa.Table:
    """Join sorted alert tables into one sorted table."""
    filled = [table for table in tables if table.num_rows]
    if len(filled) < 2:
        return filled[0] if filled else NO_ALERTS
    whole = pa.concat_tables(filled)
    times = [(table["detected_at"][0].value, table["detected_at"][-1].value) for table in filled]
    follow = all(last < first for (_, last), (first, _) in pairwise(times))
    return whole if follow else sort_alerts(whole)


def completed_rows(matches: Matches, number: int) -> Int64:
    """Return the rows of the completed matches of the rule."""
    return np.flatnonzero((matches.rule == number) & matches.completed)


def _windows_with_times(deployed: DeployedRule, from_ms: Sequence[int]) -> list[RetainedWindow]:
    """Return the windows of a rule's histories with the time from which events are stored; empty if all are."""
    return [(h.window, ms) for h, ms in zip(histories(deployed.pattern), from_ms, strict=True)] if from_ms else []


def _history_from_ms(part: Alerting, matches: Matches, times: tuple[Int64, Int64], since_ms: int) -> Int64:
    """Return int64[M]: the time from which the past of each match of one rule is complete, TIME_MS_MIN if all of it is.

    The past has histories (aggregates over past events), derived events (made by other rules), and absent events.
    `times`: of the first event and the detection. `since_ms`: the job has seen all events from then on."""
    deployed, (first_ms, detected_ms) = part.rule.deployed, times
    from_ms: Int64 = matches.derived_from_ms[part.rows]
    if deployed.gaps:  # times before which derived events that the rule reads may be missing
        from_ms = np.maximum(from_ms, gaps_from_ms(deployed.gaps, first_ms, detected_ms, since_ms))
    if deployed.folded_since_ms:  # folded events (merged into sums) are complete from other times
        is_folded = matches.history_flags[part.rows] & FLAG_FOLDED != 0
        unfolded_from_ms = retained_from_ms(_windows_with_times(deployed, deployed.folded_since_ms), first_ms)
        from_ms[is_folded] = np.maximum(from_ms, unfolded_from_ms)[is_folded]
    retained = _windows_with_times(deployed, deployed.complete_ms[1:])  # of each history; [0] is the key domain's
    return history_from_ms(part.rule.windows, first_ms, since_ms, retained, from_ms)


def rule_alerts(rule: RuleProgram, matches: Matches, rows: Int64, since_ms: int) -> pa.Table:
    """Return the alerts of these matches of one rule, in their order, without origins."""
    return _table([Alerting(rule, rows)] if len(rows) else [], matches, since_ms, None)


@dataclass(frozen=True, slots=True)
class Alerting:
    """The matches, or the time-outs, of one rule that become alerts."""

    rule: RuleProgram
    rows: Int64  # their rows in Matches
    kind: str = _MATCH

    def texts(self, matches: Matches, rows: Int64, key: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the messages of the matches at `rows`, which have these keys, and their measures (values) as JSON."""
        rule, template = self.rule, self.rule.deployed.message
        numbered = enumerate(rule.measures)
        if self.kind == _TIMEOUT:  # the measures of time-outs follow the ones of matches
            numbered = enumerate(rule.timeout_measures, start=len(rule.measures))
        measures = {name: (measure_values(matches, rows, number, type_), type_) for number, (name, type_) in numbered}
        values = {n: _plain(v, t) for n, (v, t) in measures.items()} if "{" in template else {}
        return _message(template, values | {"key": key}, len(key)), _measures_json(measures, len(key))


@dataclass(frozen=True, slots=True)
class _CommonValues:
    """The values that all alerts of a part have in common. A part is one rule and kind ("match" or "timeout")."""

    columns: pa.RecordBatch  # a row for each part
    digest_heads: Texts  # the beginning of the text whose digest is the alert's id: kind, rule and version
    variables: Texts  # the names of each rule's variables; the ones of part p begin at first_variable[p]
    first_variable: Int64

    def columns_of(self, part_of: Int64) -> dict[str, pa.Array]:
        """Return the columns for alerts of these parts, without a copy if each part has one alert."""
        count = self.columns.num_rows
        is_each = len(part_of) == count and (part_of == np.arange(count)).all()
        chosen = self.columns if is_each else self.columns.take(pa.array(part_of))
        return dict(zip(self.columns.schema.names, chosen.columns, strict=True))


@lru_cache(maxsize=_RULES_CACHED)
def _common_values(parts: Sequence[tuple[RuleProgram, str]]) -> _CommonValues:
    """Collect the values that all alerts of a part (one rule and kind: "match" or "timeout") have in common."""
    rules = [rule.deployed for rule, _ in parts]
    columns: dict[str, list[Any]] = {name: [getattr(rule, name) for rule in rules] for name in _RULE_COLUMNS}
    columns["kind"] = [kind for _, kind in parts]
    columns["description"] = [" ".join(rule.pattern.doc.split()) for rule in rules]
    arrays = [pa.array(values, ALERT_SCHEMA.field(name).type) for name, values in columns.items()]
    digest_heads = [  # an alert's id is the digest of this head, the key and the ids of its events
        f"{'' if kind == _MATCH else f'{kind} '}{rule.rule_id} {rule.version} "
        for rule, (_, kind) in zip(rules, parts, strict=True)
    ]
    return _CommonValues(
        columns=pa.RecordBatch.from_arrays(arrays, list(columns)),
        digest_heads=text_buffers(pa.array(digest_heads, TEXT)),
        variables=text_buffers(pa.array([name for rule, _ in parts for name in rule.variables], TEXT)),
        first_variable=np.cumsum([0, *(len(rule.variables) for rule, _ in parts)]),
    )


def _table(parts: Sequence[Alerting], matches: Matches, since_ms: int, counters: Counter[str] | None) -> pa.Table:
    """Return the alerts of all parts, sorted; without counters one part after the other, and without origins."""
    if not parts:
        return NO_ALERTS
    common = _common_values(tuple([(part.rule, part.kind) for part in parts]))
    rows = np.concatenate([part.rows for part in parts])
    part_of = np.repeat(np.arange(len(parts)), [len(part.rows) for part in parts])
    bounds = [0, *accumulate(len(part.rows) for part in parts)]
    first_ms = matches.event_time_ms[matches.offsets[rows]]
    last_ms = matches.event_time_ms[matches.offsets[rows + 1] - 1]
    # An absence without a window is certain when the input ends, which is not a time: use the time of its last event.
    detected_ms = matches.detected_ms[rows]
    detected_ms = np.where(detected_ms >= TIME_MS_MAX, last_ms, detected_ms)
    from_ms = np.concatenate(
        [
            _history_from_ms(part, matches, (first_ms[a:b], detected_ms[a:b]), since_ms)
            for part, (a, b) in zip(parts, pairwise(bounds), strict=True)
        ]
    )
    digests = _digests(common.digest_heads, part_of, matches, rows)
    if len(rows) > 1:
        order = _order(detected_ms, digests)
        if _tell_apart(digests, detected_ms, order, matches, rows):
            order = _order(detected_ms, digests)
    if counters is not None and len(rows) > 1:
        rows, part_of, digests = rows[order], part_of[order], digests[order]
        first_ms, last_ms, detected_ms, from_ms = (index[order] for index in (first_ms, last_ms, detected_ms, from_ms))
    key = _chosen(text_buffers(matches.keys), matches.key[rows])
    messages, measures = _texts(parts, part_of, matches, rows, key)
    offsets, events = bound_rows(matches.offsets, rows)
    first_variable = np.repeat(common.first_variable[part_of], np.diff(offsets))
    names = _chosen(common.variables, matches.variable[events] + first_variable)
    bound = [names, _chosen(text_buffers(matches.event_id), events), _stamps(matches.event_time_ms[events])]
    bound_events = pa.StructArray.from_arrays(bound, type=_BOUND_EVENT)
    origins = pa.nulls(len(rows), ORIGINS)
    if matches.origins is not None and counters is not None:
        origins, dropped = list_origins(offsets, names, matches.origins.take(pa.array(events)))
        if dropped:
            counters["origins_dropped"] += dropped
    flags = matches.history_flags[rows]
    columns = common.columns_of(part_of) | {
        "alert_id": _hex(digests),
        "key": key,
        "message": messages,
        "measures": measures,
        "events": pa.ListArray.from_arrays(pa.array(offsets), bound_events),
        "origins": origins,
        "history_cut": pa.array(flags & FLAG_CUT != 0),
        "history_folded": pa.array(flags & FLAG_FOLDED != 0),
        "history_from": _stamps(from_ms, from_ms > TIME_MS_MIN),
        "unconfirmed": pa.repeat(pa.scalar(False), len(rows)),
        "flawed": pa.repeat(pa.scalar(False), len(rows)),
        "match_start": _stamps(first_ms),
        "match_end": _stamps(last_ms),
        "detected_at": _stamps(detected_ms),
    }
    return pa.Table.from_arrays([columns[name] for name in ALERT_SCHEMA.names], schema=ALERT_SCHEMA)


def _texts(
    parts: Sequence[Alerting], part_of: Int64, matches: Matches, rows: Int64, key: pa.Array
) -> tuple[pa.Array, pa.Array]:
    """Return the messages of the matches at `rows`, and their measures as JSON; a part is one rule and kind."""
    if len(parts) == 1:
        return parts[0].texts(matches, rows, key)
    by_part = np.argsort(part_of, kind="stable")
    rows_of_part = np.split(by_part, np.searchsorted(part_of[by_part], np.arange(1, len(parts))))
    texts = [
        part.texts(matches, rows[positions], key.take(pa.array(positions)))
        for part, positions in zip(parts, rows_of_part, strict=True)
    ]
    in_former_order = pa.array(np.argsort(by_part))
    messages, measures = zip(*texts, strict=True)
    return pa.concat_arrays(messages).take(in_former_order), pa.concat_arrays(measures).take(in_former_order)


def _chosen(texts: Texts, rows: Int64 | Int32) -> pa.Array:
    """Return the texts, none of which is null, at these rows."""
    offsets, data = chosen_texts(*texts, rows)
    assert len(data) < _COLUMN_BYTES, "a column of texts holds two gigabytes"
    return pa.StringArray.from_buffers(len(rows), pa.py_buffer(offsets), pa.py_buffer(data))


def _stamps(time_ms: Int64, is_present: NDArray[np.bool_] | None = None) -> pa.Array:
    valid = None if is_present is None else pa.py_buffer(np.packbits(is_present, bitorder="little"))
    return pa.Array.from_buffers(_TIMESTAMP, len(time_ms), [valid, pa.py_buffer(time_ms)])


def _digests(digest_heads: Texts, head_of: Int64, matches: Matches, rows: Int64) -> UInt8:
    """Compute the SHA-256 digest of each match, uint8[M, 32], for its alert id.

    The digest is over the head of its part (one rule and kind), its key, and its events' ids. Each key and id follows
    its length, so that no two different lists have the same bytes."""
    texts, ends = digest_texts(
        digest_heads, head_of, text_buffers(matches.keys), matches.key[rows], text_buffers(matches.event_id),
        matches.offsets, rows,
    )  # fmt: skip
    digest, whole, start = hashlib.sha256, texts.data, 0
    digests = []
    for end in ends.tolist():
        digests.append(digest(whole[start:end]).digest())
        start = end
    return np.frombuffer(bytearray().join(digests), np.uint8).reshape(len(rows), -1)


def _tell_apart(digests: UInt8, detected_ms: Int64, order: Int64, matches: Matches, rows: Int64) -> bool:
    """Give matches of one time that bind the same events to other variables different digests, in place.

    The first one in the order of variables keeps its digest. `order` sorts the matches by time and digest. Return False
    if no digest has changed."""
    is_same = (digests[order[1:]] == digests[order[:-1]]).all(axis=1) & (np.diff(detected_ms[order]) == 0)
    if not is_same.any():
        return False
    equal_rows = order[np.append(is_same, False) | np.append(False, is_same)].tolist()
    bounds = [(row, slice(*matches.offsets[rows[row] : rows[row] + 2].tolist())) for row in equal_rows]
    bindings = [
        (int(detected_ms[row]), digests[row].tobytes(), matches.variable[bound].astype("<i4").tobytes(), row)
        for row, bound in bounds
    ]
    for before, (*same, variables, row) in pairwise(sorted(bindings)):
        if list(before[:2]) == same:
            digests[row] = np.frombuffer(hashlib.sha256(same[1] + variables).digest(), np.uint8)
    return True


def _order(detected_ms: Int64, digests: UInt8) -> Int64:
    """Return the rows by (detected_at, alert_id), as `sort_alerts` does."""
    words = np.ascontiguousarray(digests[:, : ALERT_ID_CHARS // 2]).view(">u8").astype(np.uint64)
    return np.lexsort((words[:, 1], words[:, 0], detected_ms))


def _hex(digests: UInt8) -> pa.Array:
    ends = np.arange(0, (len(digests) + 1) * ALERT_ID_CHARS, ALERT_ID_CHARS, dtype=np.int32)
    text = _HEX[digests[:, : ALERT_ID_CHARS // 2]]
    return pa.StringArray.from_buffers(len(digests), pa.py_buffer(ends), pa.py_buffer(text))


def measure_values(matches: Matches, rows: Int64, number: int, type_: Type) -> pa.Array:
    """Return measure `number` of these matches as a column."""
    values, nulls = matches.measures[rows, number], matches.measures_null[rows, number]
    if type_.is_text:
        codes = pa.array(np.where(nulls != 0, 0, values), mask=nulls.astype(bool))
        return matches.texts.take(codes)
    return from_slots(np.ascontiguousarray(values), nulls, type_)


def _plain(values: pa.Array, type_: Type) -> pa.Array:
    """Format a measure as readable text; null is "null"."""
    if type_.kind is Kind.DECIMAL:
        text = _digits(values, type_)
        if type_.scale > _SCALE_OF_DIGITS:
            text = pa.array([None if v is None else f"{Decimal(v):f}" for v in text.to_pylist()], pa.string())
    elif type_.kind is Kind.TIME:
        stamped = values.cast(_TIMESTAMP)
        text = pc.strftime(stamped, "%Y-%m-%dT%H:%M:%SZ")
    elif type_.kind is Kind.DURATION:
        text = pc.binary_join_element_wise(values.cast(pa.string()), pa.scalar(" ms"), "")
    elif type_.kind is Kind.ENUM:
        text = pa.array(type_.symbols, pa.string()).take(values)
    elif type_.is_float:
        # People read the message, so it has six digits; the measures have all digits.
        text = pa.array([None if v is None else f"{v:.6g}" for v in values.to_pylist()], pa.string())
    else:
        text = values.cast(pa.string())
    return text.cast(pa.string()).fill_null("null")


def _digits(values: pa.Array, type_: Type) -> pa.Array:
    """Format a decimal, a scaled integer: 90000 with scale 2 is 900.00. Exact for every int64."""
    return (as_decimals(values, type_.scale) if type_.scale else values).cast(pa.string())


def _message(template: str, values: dict[str, pa.Array], count: int) -> pa.Array:
    """Replace each {name} of the template; a name that the match does not have stays."""
    parts: list[str | pa.Array] = []
    position = 0
    for placeholder in _PLACEHOLDER.finditer(template):
        parts += [template[position : placeholder.start()], values.get(placeholder.group(1), placeholder.group(0))]
        position = placeholder.end()
    return _joined([*parts, template[position:]], count)


def _joined(parts: Sequence[str | pa.Array], count: int) -> pa.Array:
    if all(isinstance(part, str) for part in parts):
        return pa.repeat(pa.scalar("".join(parts), pa.string()), count)
    return pc.binary_join_element_wise(*parts, "")


def _measures_json(measures: dict[str, tuple[pa.Array, Type]], count: int) -> pa.Array:
    """Return a JSON object per match. Decimals are JSON numbers with all digits; times and durations are texts."""
    parts: list[str | pa.Array] = []
    for number, (name, (values, type_)) in enumerate(measures.items()):
        parts += [("{" if number == 0 else ",") + json.dumps(name) + ":", _json_values(values, type_)]
    return _joined([*parts, "}" if measures else "{}"], count)


def _json_values(values: pa.Array, type_: Type) -> pa.Array:
    if type_.kind is Kind.DECIMAL:
        return _digits(values, type_).fill_null("null")
    if type_.kind in (Kind.INT, Kind.BOOL):
        return _plain(values, type_)
    if type_.kind is Kind.FLOAT:
        finite = pc.if_else(pc.is_finite(values), values, pa.scalar(None, pa.float64()))
        return finite.cast(pa.string()).fill_null("null")
    text = values.cast(pa.string()) if type_.is_text else _plain(values, type_)
    different = encoded(text.cast(TEXT))
    quoted = pa.array(list(map(json.dumps, different.dictionary.to_pylist())), pa.string()).take(different.indices)
    return pc.if_else(pc.is_valid(values), quoted, pa.scalar("null", pa.string()))
