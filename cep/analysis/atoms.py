"""The columns of a history → simple conditions on one event, each with the events that satisfy it.

    amount > 250.00      at quantiles of all events, and of fraud events
    status == declined   for each common value, of columns with few values
    hour(event_time, "UTC") in [23, 0, 1]   for the hours and weekdays that have many frauds and few other events

Tested by: tests/analysis/test_suggest.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cep.analysis.history import Events
from cep.base.schema import EventType, Field, Kind
from cep.columnar.texts import different_texts
from cep.functions.calendar import of_times
from cep.lang.show import show_value

_QUANTILES = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99)
_FRAUD_QUANTILES = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98)
_VALUES_MAX = 30  # of a column whose values are named one by one
FEW = 10  # events: fewer say nothing
_NEARLY_ALL = 0.97
# The lengths of the stretches of hours and weekdays that are tried; the number of values, and the first one.
_CLOCKS = {"hour": ((2, 3, 4, 6, 8), 24, 0), "weekday": ((1, 2, 3), 7, 1)}
_MORE_FREQUENT = 0.15  # share of the frauds in a stretch above the share of the other events


@dataclass(frozen=True, slots=True)
class Atom:
    """A condition on an event of one type; `field` is "" for a condition on the type alone. `holds` bool[N] are the
    events.

    `limit` is the compared value, as a pattern writes it, and `kind` its type. A condition on the past
    (`past_atoms.py`) reaches `past_ms` back: `field` names its side, `left` and `right` are the text around the limit,
    `reads` are the fields that it reads and `name` is the name of its parameter.
    """

    event_type: str
    field: str
    op: str
    limit: str
    kind: str
    holds: NDArray[np.bool_]
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
        """True if its limit becomes a parameter of a pattern."""
        return self.op in (">=", "<=")

    @property
    def is_of_time(self) -> bool:
        """True for a condition on the hour or the weekday."""
        return self.op == "in"

    @property
    def param(self) -> str:
        """The name of the parameter that its limit becomes."""
        return self.name or f"{self.field}_{'min' if self.op == '>=' else 'max'}"


def atoms_of(events: Events, rows: NDArray[np.int64], is_fraud: NDArray[np.bool_], key: str) -> list[Atom]:
    """List the simple conditions that a suggested pattern may use, such as `amount >= 500`, with their rows.

    Shapes: rows int64[N]; is_fraud bool[N].
    """
    atoms: list[Atom] = []
    for code, event_type in enumerate(events.schema.event_types):
        is_of_type = events.event_type[rows] == code
        if event_type.derived or is_of_type.sum() < FEW:
            continue
        atoms.append(Atom(event_type.name, "", "", "", "", is_of_type))
        for field in event_type.fields:
            if field.name != key and field.name in events.columns and not field.type.protected:
                atoms += _of_field(events, rows, (event_type, is_of_type, is_fraud), field)
    return atoms


def time_atoms(events: Events, rows: NDArray[np.int64], is_fraud: NDArray[np.bool_], zone: str) -> Iterator[Atom]:
    """Yield conditions on the hour and the weekday, such as `hour(event_time, zone) in [22, 23, 0]`.

    For each length, it is the stretch of hours or days that has the most frauds beyond its share of the other events;
    it may include midnight. Shapes: is_fraud bool[N].
    """
    for code, event_type in enumerate(events.schema.event_types):
        is_of_type = events.event_type[rows] == code
        if event_type.derived or is_of_type.sum() < FEW or not (is_of_type & is_fraud).any():
            continue
        for name, (lengths, count, first) in _CLOCKS.items():
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
                    chosen_hours = [(start + step) % count + first for step in range(length)]
                    holds = is_of_type & np.isin(values + first, chosen_hours)
                    call_text = f'{name}(event_time, "{zone}")'
                    yield Atom(event_type.name, name, "in", str(chosen_hours), "int", holds, call_text)


def _of_field(
    events: Events,
    rows: NDArray[np.int64],
    type_and_masks: tuple[EventType, NDArray[np.bool_], NDArray[np.bool_]],
    field: Field,
) -> Iterator[Atom]:
    """Yield the conditions on one field: limits of a number, or each frequent value of a text."""
    event_type, is_of_type, is_fraud = type_and_masks
    kind = str(field.type.as_nullable(False))
    if field.type.is_number:
        values, has_value = numbers(events, rows, is_of_type, field)
        for limit, written in quantiles(values, (has_value, is_fraud), (_QUANTILES, _FRAUD_QUANTILES), field):
            yield Atom(event_type.name, field.name, ">=", written, kind, has_value & (values >= limit))
            yield Atom(event_type.name, field.name, "<=", written, kind, has_value & (values <= limit))
    elif field.type.kind in (Kind.STRING, Kind.ENUM, Kind.BOOL):
        for written, holds in few_values(events, rows, field, _VALUES_MAX):
            yield Atom(event_type.name, field.name, "==", written, kind, is_of_type & holds)


def numbers(
    events: Events, rows: NDArray[np.int64], is_of: NDArray[np.bool_], field: Field
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the values of a field, float64[N], 0 without a value; and the events of `is_of` that have one, bool[N]."""
    column = events.columns[field.name].take(pa.array(rows))
    has_value = is_of & np.asarray(column.is_valid())
    return np.where(has_value, np.asarray(column.fill_null(0)).astype(np.float64), 0.0), has_value


def quantiles(
    values: NDArray[np.float64], masks: tuple[NDArray[np.bool_], NDArray[np.bool_]],
    shares: tuple[Sequence[float], Sequence[float]], field: Field,
) -> Iterator[tuple[float, str]]:  # fmt: skip
    """Yield limits for a number: its values at some shares of all events, and at some shares of the frauds, ascending.

    `masks` mark the events with a value, and the frauds. Each limit comes with the text that a pattern writes for it.
    """
    has_value, is_fraud = masks
    limits: set[float] = set()
    for chosen_rows, mask_shares in zip((has_value, has_value & is_fraud), shares, strict=True):
        if chosen_rows.any():
            limits |= set(np.quantile(values[chosen_rows], mask_shares, method="nearest").tolist())
    for value in sorted(limits):
        yield value, show_value(value if field.type.is_float else int(value), field.type)


def few_values(
    events: Events, rows: NDArray[np.int64], field: Field, most: int
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield each value of a field as it is written, with the events that have it; nothing if there are more values."""
    column = events.columns[field.name].take(pa.array(rows))
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    # A sender chooses the texts; an enum and a bool have few values.
    values = different_texts(column) if is_text else pc.unique(column.drop_null())
    if len(values) <= most:
        for value in sorted(values.to_pylist()):
            yield show_value(value, field.type), np.asarray(pc.fill_null(pc.equal(column, value), False))


def different(atoms: Sequence[Atom]) -> list[Atom]:
    """Leave out conditions that hardly any event or nearly every one satisfies, and repeated ones."""
    chosen: dict[bytes, Atom] = {}
    for atom in atoms:
        count = int(atom.holds.sum())
        if count >= FEW and (not atom.field or count <= _NEARLY_ALL * len(atom.holds)):
            chosen.setdefault(np.packbits(atom.holds).tobytes(), atom)
    return list(chosen.values())
