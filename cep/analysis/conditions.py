"""The events of a history → conditions that a suggested pattern may use, each with the events that satisfy it.

Conditions on one event:

    amount > 250.00      at quantiles of all events, and of fraud events
    status == declined   for each common value, of columns with few values
    hour(event_time, "UTC") in [23, 0, 1]   for the hours and weekdays that have many frauds and few other events

Conditions on the past of the event's key, with the values of the engine (columnar/order.py decides at equal times):

    amount >= 3 * avg(pay.amount over previous 30 d)              Far above the key's usual amount.
    sum(pay.amount over 1 d) >= 1000.00                           Much in a short time, including the event itself.
    count(pay over previous 1 h where status == declined) >= 3    Repeated events.
    count(pay over previous 14 d) <= 0                            A key that was silent.
    distinct(pay.shop over 1 d) >= 5                              Many different values in a short time.

Tested by: tests/analysis/test_suggest.py
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cep.analysis.history import Events
from cep.base.schema import EventType, Field, Kind, Type
from cep.columnar.texts import different_texts, encoded
from cep.functions.calendar import of_times
from cep.kernels.chains import count_distinct
from cep.lang.field_names import Role, role_of
from cep.lang.show import show_duration, show_value

_QUANTILES = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99)
_FRAUD_QUANTILES = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)
_VALUES_MAX = 30  # of a column whose values are named one by one
EVENTS_MIN = 10  # events: fewer say nothing
_NEARLY_ALL = 0.97
# The lengths of the stretches of hours and weekdays that are tried; the number of values, and the first one.
_CLOCKS = {"hour": ((2, 3, 4, 6, 8), 24, 0), "weekday": ((1, 2, 3), 7, 1)}
_MORE_FREQUENT = 0.15  # share of the frauds in a stretch above the share of the other events

Mask = NDArray[np.bool_]  # bool[N]: which of the events satisfy a condition


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on an event of one type, such as `amount >= 500`: `field`, `op`, and `limit` of type `kind`. `field`
    is "" for a condition on the type alone. `holds` bool[N] are the events that satisfy it. A condition on the past,
    such as `amount >= 3 * avg(…)`, reaches `past_ms` back: `left` is "amount", `limit` "3", `right` " * avg(…)",
    `reads` are the fields that it reads, `name` is the name of its parameter, and `field` only identifies it."""

    event_type: str
    field: str
    op: str
    limit: str
    kind: str
    holds: Mask
    left: str = ""
    right: str = ""
    name: str = ""
    reads: tuple[str, ...] = ()
    past_ms: int = 0

    def text(self, limit: str) -> str:
        """Return the condition with a limit, or the name of a parameter in its place; nothing for the type alone."""
        return f"{self.left or self.field} {self.op} {limit}{self.right}" if self.field else ""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of events that it reads, without the time of the event."""
        return self.reads if self.left else (self.field,) * bool(self.field)

    @property
    def has_param(self) -> bool:
        return self.op in (">=", "<=")

    @property
    def is_of_time(self) -> bool:
        """True for a condition on the hour or the weekday."""
        return self.op == "in"

    @property
    def param(self) -> str:
        """The name of the parameter that its limit becomes."""
        return self.name or f"{self.field}_{'min' if self.op == '>=' else 'max'}"


def field_conditions(events: Events, rows: NDArray[np.int64], is_fraud: Mask, key: str) -> list[Condition]:
    """List the conditions on single fields, such as `amount >= 500`, that a suggested pattern may have to find frauds,
    each with the events that satisfy it. Shapes: rows int64[N]; is_fraud bool[N]."""
    conditions: list[Condition] = []
    for code, event_type in enumerate(events.schema.event_types):
        is_of_type = events.event_type[rows] == code
        if event_type.derived or is_of_type.sum() < EVENTS_MIN:
            continue
        conditions.append(Condition(event_type.name, field="", op="", limit="", kind="", holds=is_of_type))
        for field in event_type.fields:
            if field.name != key and field.name in events.columns and not field.type.protected:
                conditions += _conditions_on_field(events, rows, (event_type, is_of_type, is_fraud), field)
    return conditions


def time_conditions(events: Events, rows: NDArray[np.int64], is_fraud: Mask, zone: str) -> Iterator[Condition]:
    """Yield conditions on the hour and the weekday, such as `hour(event_time, zone) in [22, 23, 0]`. For each
    length it is the stretch, maybe over midnight, whose share of the frauds most exceeds its share of other events."""
    for code, event_type in enumerate(events.schema.event_types):
        is_of_type = events.event_type[rows] == code
        if event_type.derived or is_of_type.sum() < EVENTS_MIN or not (is_of_type & is_fraud).any():
            continue
        for name, (lengths, count, first) in _CLOCKS.items():  # the hour has 24 values, from 0
            values = of_times(name, zone, events.time_ms[rows]) - first
            frauds = np.bincount(values[is_of_type & is_fraud], minlength=count).astype(np.float64)
            others = np.bincount(values[is_of_type & ~is_fraud], minlength=count).astype(np.float64)
            excess_share = frauds / frauds.sum() - others / max(others.sum(), 1.0)
            for length in lengths:
                sums = np.array(
                    [excess_share[np.arange(start, start + length) % count].sum() for start in range(count)]
                )
                start = int(np.argmax(sums))
                if sums[start] >= _MORE_FREQUENT:
                    chosen_values = [(start + step) % count + first for step in range(length)]
                    holds = is_of_type & np.isin(values + first, chosen_values)
                    call_text = f'{name}(event_time, "{zone}")'
                    yield Condition(event_type.name, name, "in", str(chosen_values), "int", holds, call_text)


def _conditions_on_field(
    events: Events, rows: NDArray[np.int64], type_and_masks: tuple[EventType, Mask, Mask], field: Field
) -> Iterator[Condition]:
    """Yield conditions on one field that a pattern may use: limits of a number, or frequent values of a text."""
    event_type, is_of_type, is_fraud = type_and_masks
    kind = str(field.type.as_nullable(False))
    if field.type.is_number:
        values, has_value = numbers(events, rows, is_of_type, field)
        for limit, value_text in quantiles(values, (has_value, is_fraud), (_QUANTILES, _FRAUD_QUANTILES), field):
            yield Condition(event_type.name, field.name, ">=", value_text, kind, has_value & (values >= limit))
            yield Condition(event_type.name, field.name, "<=", value_text, kind, has_value & (values <= limit))
    elif field.type.kind in (Kind.STRING, Kind.ENUM, Kind.BOOL):
        column = events.columns[field.name].take(pa.array(rows))
        for value_text, holds in values_if_few(column, field.type, _VALUES_MAX):
            yield Condition(event_type.name, field.name, "==", value_text, kind, is_of_type & holds)


def numbers(events: Events, rows: NDArray[np.int64], is_of: Mask, field: Field) -> tuple[NDArray[np.float64], Mask]:
    """Return the values of a field, float64[N], 0 without a value; and the events of `is_of` that have one, bool[N]."""
    column = events.columns[field.name].take(pa.array(rows))
    has_value = is_of & np.asarray(column.is_valid())
    return np.where(has_value, np.asarray(column.fill_null(0)).astype(np.float64), 0.0), has_value


def quantiles(
    values: NDArray[np.float64], masks: tuple[Mask, Mask],
    shares: tuple[Sequence[float], Sequence[float]], field: Field,
) -> Iterator[tuple[float, str]]:  # fmt: skip
    """Yield limits for a number, ascending, each with its text: the values at some shares of all events, and of the
    frauds. `masks` mark the events with a value, and the frauds."""
    has_value, is_fraud = masks
    limits: set[float] = set()
    for chosen_rows, mask_shares in zip((has_value, has_value & is_fraud), shares, strict=True):
        if chosen_rows.any():
            limits |= set(np.quantile(values[chosen_rows], mask_shares, method="nearest").tolist())
    for value in sorted(limits):
        yield value, show_value(value if field.type.is_float else int(value), field.type)


def values_if_few(column: pa.Array, type_: Type, most: int) -> Iterator[tuple[str, Mask]]:
    """Yield each value of a column as it is written, with the rows that have it; nothing if there are more."""
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    # A sender chooses the texts; an enum and a bool have few values.
    values = different_texts(column) if is_text else pc.unique(column.drop_null())
    if len(values) <= most:
        for value in sorted(values.to_pylist()):
            yield show_value(value, type_), np.asarray(pc.fill_null(pc.equal(column, value), False))


def leave_out_useless(conditions: Sequence[Condition]) -> list[Condition]:
    """Leave out conditions that hardly any event or nearly every one satisfies, and repeated ones."""
    chosen: dict[bytes, Condition] = {}
    for condition in conditions:
        count = int(condition.holds.sum())
        if count >= EVENTS_MIN and (not condition.field or count <= _NEARLY_ALL * len(condition.holds)):
            chosen.setdefault(np.packbits(condition.holds).tobytes(), condition)
    return list(chosen.values())


_COUNTED_MS = (3_600_000, 86_400_000, 4 * 86_400_000, 7 * 86_400_000)
_AVERAGED_MS = (7 * 86_400_000, 30 * 86_400_000)
_SUMMED_MS = (3_600_000, 86_400_000, 7 * 86_400_000)
_SUM_QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.98)  # of the events of the type, and of fraud events
_FRAUD_SUM_QUANTILES = (0.1, 0.25, 0.5, 0.75)
_TIMES = (1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0, 10.0)  # the average
_COUNTS = (1, 2, 3, 4, 5, 7, 10)
_SILENT_MS = (3 * 86_400_000, 7 * 86_400_000, 14 * 86_400_000, 30 * 86_400_000)
_DISTINCT_MS = (3_600_000, 6 * 3_600_000, 86_400_000)
_DISTINCT = (2, 3, 4, 5, 7, 10)
_DISTINCT_VALUES_MIN = 10  # of a field whose different values are counted
_DISTINCT_FIELDS_MAX = 3
_KINDS_MAX = 6  # values of a field that are counted one by one
_Numbers = tuple[NDArray[np.float64], Mask]  # values of a field, and which events have one


class KeyRows(NamedTuple):
    """The mined events, sorted by key, time and id: their `rows` in the history, the times, and for each of them the
    index at which the events of its key begin (`key_start`)."""

    rows: NDArray[np.int64]
    key_start: NDArray[np.int64]
    time_ms: NDArray[np.int64]

    def window_starts(self, past_ms: int) -> NDArray[np.int64]:
        """Return for each event the first one of its key that is less than `past_ms` older: int64[N]."""
        span = int(self.time_ms.max(initial=0)) - int(self.time_ms.min(initial=0)) + past_ms + 1
        # Each key has its own stretch of one axis of time, so that one search finds the windows of all keys.
        axis_ms = self.key_start * span + (self.time_ms - int(self.time_ms.min(initial=0)))
        return np.maximum(np.searchsorted(axis_ms, axis_ms - past_ms, side="right"), self.key_start)


def past_conditions(events: Events, key_rows: KeyRows, is_fraud: Mask) -> Iterator[Condition]:
    """Yield conditions on a key's past that a pattern may use: counts, silence, distinct values, sums, and amounts
    compared with their average. An event of any type may ask for a count of a `counted` type, so all pairs are tried.
    Limits of sums are quantiles of all events and of frauds. Shapes: is_fraud bool[N]."""
    type_of_row = events.event_type[key_rows.rows]
    types = [(each, type_of_row == code) for code, each in enumerate(events.schema.event_types) if not each.derived]
    for event_type, is_of_type in types:
        if is_of_type.sum() >= EVENTS_MIN:
            for field in event_type.fields:
                if field.type.kind in (Kind.DECIMAL, Kind.FLOAT) and field.name in events.columns:
                    field_numbers = numbers(events, key_rows.rows, is_of_type, field)
                    yield from _average_conditions(key_rows, event_type, field, field_numbers)
                    if _is_summable(field, field_numbers):
                        yield from _sum_conditions(key_rows, event_type, field, field_numbers, is_fraud)
    for past_ms in _COUNTED_MS:
        begin = key_rows.window_starts(past_ms)  # of each row, the first row in the window before it
        for counted, is_counted in types:
            for where, field_read, holds in _event_subsets(events, key_rows, counted, is_counted):
                before = np.concatenate([[0], np.cumsum(holds)])
                count = before[np.arange(len(key_rows.rows))] - before[begin]
                for event_type, is_of_type in types:
                    yield from _count_conditions(event_type, is_of_type, (counted, where, field_read), past_ms, count)
    for past_ms in _SILENT_MS:
        begin = key_rows.window_starts(past_ms)
        for counted, is_counted in types:
            before = np.concatenate([[0], np.cumsum(is_counted)])
            is_silent = before[np.arange(len(key_rows.rows))] == before[begin]
            for event_type, is_of_type in types:
                yield _silence_condition(event_type, is_of_type & is_silent, counted, past_ms)
    for event_type, is_of_type in types:
        yield from _distinct_conditions(events, key_rows, event_type, is_of_type)


def _silence_condition(event_type: EventType, holds: Mask, counted: EventType, past_ms: int) -> Condition:
    window = show_duration(past_ms)
    text = f"count({counted.name} over previous {window})"
    name = re.sub(r"\W+", "_", f"{counted.name}_in_{window}_max")
    return Condition(event_type.name, text, "<=", "0", "int", holds, text, "", name, (), past_ms)


def _distinct_conditions(
    events: Events, key_rows: KeyRows, event_type: EventType, is_of_type: Mask
) -> Iterator[Condition]:
    """Yield conditions on the number of distinct values of a field, for the first fields that may have many values."""
    fields = [
        (field, codes)
        for field in event_type.fields
        if field.type.kind is Kind.STRING and field.name in events.columns and not field.type.protected
        and (codes := _codes(events, key_rows, is_of_type, field)).max(initial=-1) >= _DISTINCT_VALUES_MIN
    ]  # fmt: skip
    for field, codes in fields[:_DISTINCT_FIELDS_MAX]:
        for past_ms in _DISTINCT_MS:
            count = np.empty(len(codes), np.int64)  # of each row, filled by the next line
            count_distinct(codes, key_rows.window_starts(past_ms), np.zeros(int(codes.max()) + 1, np.int64), count)
            window = show_duration(past_ms)
            text = f"distinct({event_type.name}.{field.name} over {window})"
            name = re.sub(r"\W+", "_", f"{field.name}_in_{window}")
            for count_min in _DISTINCT:
                holds = is_of_type & (count >= count_min)
                yield Condition(  # `text` stands for both the field and the left side; the right side is empty
                    event_type.name, text, ">=", str(count_min), "int", holds, text, "", name, (field.name,), past_ms
                )


def _codes(events: Events, key_rows: KeyRows, is_of: Mask, field: Field) -> NDArray[np.int64]:
    """Return each row's value of a field as a number from 0; -1 for other events, and without a value."""
    codes = np.asarray(encoded(events.columns[field.name].take(pa.array(key_rows.rows))).indices.fill_null(-1))
    return np.where(is_of, codes, -1).astype(np.int64)


def _is_summable(field: Field, field_numbers: _Numbers) -> bool:
    """Return True for amounts: a sum of balances, scores or rates means nothing, and neither has one with a sign."""
    values, has_value = field_numbers
    role = role_of(field.name)
    is_amount = role is Role.MONEY or (role is Role.OTHER and field.type.kind is Kind.DECIMAL)
    return is_amount and bool(values[has_value].min(initial=0.0) >= 0)


def _event_subsets(
    events: Events, key_rows: KeyRows, event_type: EventType, is_of: Mask
) -> Iterator[tuple[str, str, Mask]]:
    """Yield sets of events to count: (condition as text, its field, events), "" twice for all events of the type."""
    if is_of.sum() < EVENTS_MIN:
        return
    yield "", "", is_of
    for field in event_type.fields:
        if field.type.kind in (Kind.ENUM, Kind.BOOL) and field.name in events.columns and not field.type.protected:
            column = events.columns[field.name].take(pa.array(key_rows.rows))
            for value_text, holds in values_if_few(column, field.type, _KINDS_MAX):
                yield f"{field.name} == {value_text}", field.name, is_of & holds


def _count_conditions(
    event_type: EventType, is_of_type: Mask, type_where_and_field: tuple[EventType, str, str],
    past_ms: int, count: NDArray[np.int64],
) -> Iterator[Condition]:  # fmt: skip
    """Yield conditions on the number of earlier events: `count(type over previous window where …) >= n`. `count` has
    this number for each event. `where` is a text like `field == value`; it and the field are "" to count all events."""
    counted, where, field_name = type_where_and_field
    window = show_duration(past_ms)
    text = f"count({counted.name} over previous {window}{f' where {where}' if where else ''})"
    name = re.sub(r"\W+", "_", f"{where.rpartition(' ')[2] or counted.name}_in_{window}").strip("_")  # by its value
    for least in _COUNTS:
        holds = is_of_type & (count >= least)
        yield Condition(
            event_type.name, field=text, op=">=", limit=str(least), kind="int", holds=holds, left=text, name=name,
            reads=(field_name,) if field_name else (), past_ms=past_ms,
        )  # fmt: skip


def _average_conditions(
    key_rows: KeyRows, event_type: EventType, field: Field, field_numbers: _Numbers
) -> Iterator[Condition]:
    """Yield the conditions `amount >= factor * average of the key's amounts in the window before`, each with the events
    that satisfy it, for several windows and factors."""
    values, has_value = field_numbers
    sums, counts = (np.concatenate([[0.0], np.cumsum(each)]) for each in (values, has_value.astype(np.float64)))
    row = np.arange(len(values))
    for past_ms in _AVERAGED_MS:
        begin = key_rows.window_starts(past_ms)  # of each row, the first row in the window before it
        count = counts[row] - counts[begin]
        average = (sums[row] - sums[begin]) / np.maximum(count, 1)
        window = show_duration(past_ms)
        name = re.sub(r"\W+", "_", f"{field.name}_times_{window}")
        right = f" * avg({event_type.name}.{field.name} over previous {window})"
        for factor in _TIMES:
            holds = has_value & (count > 0) & (values >= factor * average)
            yield Condition(
                event_type.name, field=f"{field.name} beside {window}", op=">=", limit=str(factor), kind="float",
                holds=holds, left=field.name, right=right, name=name, reads=(field.name,), past_ms=past_ms,
            )  # fmt: skip


def _sum_conditions(
    key_rows: KeyRows, event_type: EventType, field: Field, field_numbers: _Numbers, is_fraud: Mask
) -> Iterator[Condition]:
    """Yield conditions on the sum of a key's amounts in a window; limits are quantiles of all and of frauds."""
    values, has_value = field_numbers
    sums = np.concatenate([[0.0], np.cumsum(values)])
    row = np.arange(len(values))
    kind = str(field.type.as_nullable(False))
    for past_ms in _SUMMED_MS:
        total = sums[row + 1] - sums[key_rows.window_starts(past_ms)]  # with the event itself
        window = show_duration(past_ms)
        text = f"sum({event_type.name}.{field.name} over {window})"
        name = re.sub(r"\W+", "_", f"{field.name}_in_{window}")
        for sum_min, limit in quantiles(total, (has_value, is_fraud), (_SUM_QUANTILES, _FRAUD_SUM_QUANTILES), field):
            holds = has_value & (total >= sum_min)
            yield Condition(
                event_type.name, field=text, op=">=", limit=limit, kind=kind, holds=holds, left=text, name=name,
                reads=(field.name,), past_ms=past_ms,
            )  # fmt: skip
