"""A frame and functions of past events → their value at every event, as columns next to the columns of the frame.

The kernels that compute conditions of patterns compute them, over columns, so the values are equal.
Tested by: tests/api/test_features.py
"""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.api.describe import draft
from cep.api.events import HistoryForms, open_whole, split_forms, warn_of
from cep.api.frames import Naming, texts_for_mixed
from cep.base.errors import SourceError, UsageError
from cep.base.limits import TIME_MS_MAX
from cep.base.schema import Kind, Schema, Type
from cep.columnar.batch import TEXT, EventBatch, from_slots
from cep.columnar.convert import as_decimals
from cep.columnar.decode import Decoded, KeyDomain, route
from cep.columnar.mapping import view_of
from cep.columnar.redact import redact
from cep.columnar.times import counting_skipped
from cep.engine.keyed_state import empty_state
from cep.engine.table import prepare
from cep.kernels.groups import NEW, OTHER
from cep.lang.explain.render import render_text
from cep.lang.ir import History, PatternIR, Unary
from cep.lang.load import bundle_source, load_text
from cep.lang.walk import histories
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule
from cep.step.duplicates import first_rows, reused_letters
from cep.step.job import Job
from cep.step.rejections import Rejections, rejections_of_poison

_EVENT_TYPE_IN_CALL = re.compile(r"\(\s*([A-Za-z_]\w*)")


def features(
    events: Any, expressions: Sequence[str] | Mapping[str, str], *, by: str | Sequence[str] = (),
    declare: str | Path | None = None, columns: Mapping[str, str] | None = None, tz: str | None = None,
    **forms: Unpack[HistoryForms],
) -> Any:  # fmt: skip
    """Work out functions of past events at every event: return the frame with a column for each, its rows as they are.

    `expressions` are histories as conditions of patterns have them; a dict names their columns. Their key is `by`, or
    the fields that the text names, such as `by card`. `declare` is the event declaration, as text or the path of a
    `.cep` file; without one, `cep.describe` drafts it. `events`, `columns`, `tz`, `strict` and the forms of values
    (`fixed`, `minor`, `time_unit`, `time_form`) are as in `Rules.match`; rows outside of `since` and `until` are left
    out.

    An event without a key has no value, and neither has a record that cannot be read. An event that comes again within
    `dedup` ("10 min") counts once, and its rows have the same value. Another event with its id is a rejected record.

    With views, such as `columns={"sent/account": "payer", "received/account": "payee"}`, a row is an event of each
    view. Each function then has a column for each, such as `spent_sent` and `spent_received`, and needs `declare`.

    Raises: UsageError for another expression, SourceError if no event can be read.

    >>> import pyarrow as pa
    >>> times = pa.array([0, 60_000, 90_000], pa.timestamp("ms", "UTC"))
    >>> frame = pa.table({"pay_id": ["a", "b", "c"], "event_time": times, "card": ["x", "x", "y"], "amount": [1, 5, 7]})
    >>> cep.features(frame, {"spent": "sum(pay.amount over 1 h by card)"})["spent"].to_pylist()
    [1, 6, 7]
    """
    made = rejecting_features(events, expressions, by, declare, Naming(columns, tz, split_forms(forms)[0]), forms)
    warn_of(made.rejections, forms)
    if made.skipped_times:
        warnings.warn(made.times_line(), UserWarning, stacklevel=2)
    return made.frame


@dataclass(frozen=True, slots=True)
class Features:
    """A frame with its features, its number of rows, its rejected records, and how many local times the clocks skip."""

    frame: Any
    rows: int
    rejections: Rejections
    skipped_times: int = 0

    def times_line(self) -> str:
        """Return a sentence on skipped times; empty without one."""
        sentence = "local times are in an hour that the clocks of their zone skip, and are read with the offset before"
        return f"{self.skipped_times:,} {sentence}" if self.skipped_times else ""


def rejecting_features(
    events: Any, expressions: Sequence[str] | Mapping[str, str], by: str | Sequence[str], declare: str | Path | None,
    naming: Naming, forms: HistoryForms,
) -> Features:  # fmt: skip
    """Compute functions of past events, as `features` does. Only the period of `forms` counts."""
    named = dict(expressions) if isinstance(expressions, Mapping) else {text: text for text in expressions}
    if not named:
        raise UsageError('give at least one expression, like "count(payment over 1 h by card_id)"')
    period = split_forms(forms)[1]
    views = [view for name in (*(naming.columns or {}), *naming.fixed) if (view := view_of(name)[0])]
    if views and declare is None:
        raise UsageError("with views the fields of events are not the columns of the frame; give their declaration")
    whole = open_whole(events, naming.file_form)
    frame, table = whole.frame, whole.table
    declared, naming = _declaration(table, named, declare, naming)
    key = (by,) if isinstance(by, str) else tuple(by)
    histories = {name: _wrapper_pattern(declared, text, key) for name, text in named.items()}
    schema = load_text(declared).schema
    with counting_skipped() as skipped:
        read = whole.decode(schema, naming)
    decoded, rows, view_numbers = read.decoded, read.rows, read.views
    skipped_times = sum(skipped) + decoded.skipped_times
    poison = [redact(schema, each) for each in decoded.poison]
    if poison and not len(decoded):
        summary = rejections_of_poison(0, poison).summary()
        raise SourceError(f"no event can be read: {summary}; declare the fields as their values are")
    if not period.cuts_nothing:
        is_in = (decoded.time_ms >= period.since_ms) & (decoded.time_ms < period.until_ms)
        stays, rows = np.unique(rows[is_in], return_inverse=True)
        table, decoded = table.take(pa.array(stays)), decoded.between(period.since_ms, period.until_ms)
        view_numbers = view_numbers[is_in]
    by_key: dict[KeyDomain, list[str]] = {}
    for name, pattern in histories.items():
        by_key.setdefault(pattern.key, []).append(name)
    job = Job(schema, tuple(by_key), dedup_ms=period.dedup_ms).begin()
    verdicts, first_row = first_rows(job, decoded)
    reused = decoded.take(np.flatnonzero(verdicts == OTHER))
    rejections = rejections_of_poison(len(decoded), poison, reused_letters(reused))
    value_places = np.where(verdicts == OTHER, -1, (np.cumsum(verdicts == NEW) - 1)[first_row])
    decoded = decoded.take(np.flatnonzero(verdicts == NEW))
    columns: dict[str, pa.Array] = {}
    for domain, names in by_key.items():
        columns |= _feature_values(schema, domain, {name: histories[name] for name in names}, decoded)
    for number, view in enumerate(dict.fromkeys(views) or ("",)):
        of_view = np.flatnonzero(view_numbers == number)
        places = np.full(table.num_rows, -1, np.int64)
        places[rows[of_view]] = value_places[of_view]
        for name in named:
            title = f"{name}_{view}" if view else name
            if title in frame.names:
                raise UsageError(f"the frame has a column `{title}` already; name the feature otherwise in a dict")
            table = table.append_column(title, columns[name].take(pa.array(places, mask=places < 0)))
    return Features(frame.to_frame(texts_for_mixed(table)), table.num_rows, rejections, skipped_times)


def _declaration(
    table: pa.Table, expressions: Mapping[str, str], declare: str | Path | None, naming: Naming
) -> tuple[str, Naming]:
    """Return the text that declares the events, and the naming of columns that fits it. Without `declare`, both are
    drafted from the table, for the one event type that the expressions name. Raises: UsageError."""
    if isinstance(declare, Path) or (isinstance(declare, str) and declare.endswith(".cep")):
        return bundle_source(declare), naming
    if declare is not None:
        return declare, naming
    fields = {*table.column_names, *(naming.columns or {})}
    matches = map(_EVENT_TYPE_IN_CALL.search, expressions.values())
    types = {match[1] for match in matches if match is not None} - fields  # the word may be a field
    if len(types) != 1:
        raise UsageError(
            f"the expressions are of the events {', '.join(sorted(types))}; without `declare` they are of one type"
        )
    described = draft(table, types.pop(), keeps_labels=True)  # expressions may read labels
    columns = {**described.columns, **(naming.columns or {})}
    if naming.has_time_form:  # the caller has said how times are written; otherwise the draft says it
        return described.text, replace(naming, columns=columns)
    forms: Any = {name: form for name, form in described.forms.items() if name != "tz"}  # how times are written
    return described.text, Naming(columns, naming.tz or described.forms.get("tz"), {**forms, **naming.forms})


def _wrapper_pattern(declared: str, text: str, by: tuple[str, ...]) -> PatternIR:
    """Write a pattern whose one condition is the user's expression, a function of past events, and check it. The key of
    the pattern is `by`, otherwise the fields after `by` in the expression. Raises: UsageError with mistakes."""
    schema = load_text(declared).schema
    source_types = [event_type for event_type in schema.event_types if not event_type.derived]
    named = [event_type for event_type in source_types if re.search(rf"\b{event_type.name}\b", text)] or source_types
    if not named:
        raise UsageError(f"the declaration has no event type:\n{declared}")
    ids = [field.name for field in named[0].fields if field.type.kind is Kind.ID]
    key = ", ".join(by) or ids[0]  # without `by` a stand-in: the expression's own `by` is read below
    condition = text if text.lstrip().startswith("exists") else f"({text}) is null"  # a number becomes a condition
    source = f"{declared}\npattern feature by {key} {{\n  seq e\n  where e: {named[0].name} {condition}\n}}\n"
    checked = load_text(source, "expression")
    pattern = checked.patterns.get("feature")
    if pattern is None or not checked.ok:
        errors = [diagnostic for diagnostic in checked.diagnostics if diagnostic.is_error]
        raise UsageError(f"`{text}` cannot be worked out:\n{render_text(errors, checked.sources)}")
    condition_expr = pattern.variables[0].where
    history = condition_expr.argument if isinstance(condition_expr, Unary) else condition_expr
    if not isinstance(history, History) or len(list(histories(pattern))) != 1:
        raise UsageError(f"`{text}` is no function of past events alone; write one like `sum(payment.amount over 7 d)`")
    if by:
        return pattern
    if not history.by or history.fn == "first_seen":
        raise UsageError(f'`{text}` is of no key; write `by card_id` behind its window, or by="card_id"')
    without_by = replace(history, by=())  # its fields become the pattern's key, which separates the events already
    where = replace(condition_expr, argument=without_by) if isinstance(condition_expr, Unary) else without_by
    return replace(pattern, key=history.by, variables=(replace(pattern.variables[0], where=where),))


def _feature_values(
    schema: Schema, domain: KeyDomain, patterns: Mapping[str, PatternIR], decoded: Decoded
) -> dict[str, pa.Array]:
    """Return the value of each expression at each decoded event, null for an event without a key. Each expression is in
    a pattern of one event (_wrapper_pattern), because the compiler of rules computes it."""
    batch, rows = _keyed(schema, domain, decoded)  # events with a key, and their rows in `decoded`
    if not len(batch):
        return {name: _nulls(next(iter(histories(pattern))).type, len(decoded)) for name, pattern in patterns.items()}
    values: dict[str, pa.Array] = {}
    for name, pattern in patterns.items():
        program = compile_rules(schema, domain, (DeployedRule("feature", 1, 1, "feature", pattern),))
        assert program.histories is not None, "the expression is a function of past events"
        (column,) = program.histories.histories  # the expression's only one
        prepared = prepare(program, empty_state(program), batch, TIME_MS_MAX)
        column_values = _typed(prepared.values(column.number, column.expr.type), column.expr.type)
        value_rows = np.full(len(decoded), -1, np.int64)  # the row of each event's value; -1: no key
        value_rows[rows[prepared.batch_rows]] = np.arange(len(rows))
        values[name] = column_values.take(pa.array(value_rows, mask=value_rows < 0))
    return values


def _keyed(schema: Schema, domain: KeyDomain, decoded: Decoded) -> tuple[EventBatch, np.ndarray]:
    """Return the events that have a key, and the rows where they are."""
    batch, unkeyed = route(decoded, domain, schema.columns())
    if not unkeyed:
        return batch, np.arange(len(decoded))
    has_key = np.ones(len(decoded), np.bool_)
    for field in domain:
        has_key &= np.asarray(pc.is_valid(decoded.columns[field]))
    return batch, np.flatnonzero(has_key)


def _nulls(type_: Type, count: int) -> pa.Array:
    empty = pa.array([], TEXT) if type_.is_text else from_slots(np.zeros(0, np.int64), np.zeros(0, np.uint8), type_)
    return pa.nulls(count, _typed(empty, type_).type)


def _typed(values: pa.Array, type_: Type) -> pa.Array:
    """Return values as a user has them: decimals, times and symbols instead of whole numbers."""
    if type_.kind is Kind.DECIMAL:
        return as_decimals(values, type_.scale)
    if type_.kind is Kind.TIME:
        return values.cast(pa.timestamp("ms", "UTC"))
    if type_.kind is Kind.ENUM:
        return pa.array(type_.symbols, TEXT).take(values)
    return values
