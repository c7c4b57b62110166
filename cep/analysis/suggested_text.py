"""A mined sequence → the text of a pattern, with its limits as parameters, and three tests of it from the data.

Tested by: tests/analysis/test_suggest.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from cep.analysis.atoms import Atom
from cep.analysis.history import Events
from cep.analysis.mine import Ground, Mined, Step
from cep.base.schema import Schema
from cep.lang.show import show_duration, show_value

Values = Mapping[str, str]
TestEvent = tuple[int, str, Values]  # time since the first one in ms, event type, fields as they are written


def declarations(schema: Schema) -> str:
    """Return the event types as a pattern file declares them."""
    blocks = []
    for event_type in schema.event_types:
        if event_type.derived:
            continue
        width = max(len(field.name) for field in event_type.fields)
        lines = [f"  {field.name:<{width}}  {field.type}" for field in event_type.fields]
        blocks.append("\n".join([f"event {event_type.name} {{", *lines, "}"]))
    return "\n\n".join(blocks)


def pattern_text(name: str, mined: Mined, atoms: Sequence[Atom], key: str) -> str:
    """Return the pattern. Its steps are `s1`, `s2` and so on; a limit of `s1` on an amount is `s1_amount_min`."""
    params, wheres = [], []
    for place, step in enumerate(mined.steps, start=1):
        conditions = []
        for at in step:
            atom = atoms[at]
            if not atom.field:
                continue
            if atom.op == "==":
                conditions.append(atom.text)
                continue
            param = _param(place, atom)
            params.append(f"{param}: {atom.kind} = {atom.limit}")
            conditions.append(f"{atom.field} {atom.op} {param}")
        where = f"  {' and '.join(conditions)}" if conditions else ""
        wheres.append(f"s{place}: {atoms[step[0]].event_type}{where}")
    steps = " -> ".join(f"s{place}" for place in range(1, len(mined.steps) + 1))
    window = f"  within {show_duration(mined.window_ms)}" if len(mined.steps) > 1 else ""
    return "\n".join([
        "## Suggested from labelled events; give it a name, and say why it is fraud.",
        f"pattern {name}({', '.join(params)})" if params else f"pattern {name}",
        f"  by {key}",
        "{",
        f"  seq    {steps}{window}",
        "  where  " + "\n         ".join(wheres),
        "  skip   past last",
        "}",
    ])  # fmt: skip


def _param(place: int, atom: Atom) -> str:
    return f"s{place}_{atom.field}_{'min' if atom.op == '>=' else 'max'}"


def tests_text(name: str, of: tuple[Mined, Ground, NDArray[np.int64]], events: Events) -> str:
    """Return three tests: a fraud that was mined from fires; an honest event does not; nor does the fraud without
    its first event, or a single event just outside of a limit.
    """
    mined, ground, rows = of
    ends, _ = ground.chain(mined.steps, mined.window_ms)
    chain = _bound(ground, mined.steps, int(ends[ground.fraud[ends] >= 0][0]))
    start_ms = int(ground.time_ms[chain[0]])
    fields = {ground.atoms[at].field for step in mined.steps for at in step if ground.atoms[at].field}
    fires = [(int(ground.time_ms[row]) - start_ms, *_written(events, int(rows[row]), fields)) for row in chain]
    blocks = [_test(name, "a fraud of the data", fires, f"expect match on k1 at {show_duration(fires[-1][0])}")]
    honest = np.setdiff1d(np.flatnonzero(ground.fraud < 0), ends)
    like_last = honest[ground.holds(mined.steps[-1])[honest]]
    for row in (*like_last[:1], *honest[:1])[:1]:
        event = (0, *_written(events, int(rows[row]), fields))
        blocks.append(_test(name, "an honest event of the data", [event], "expect none"))
    if len(fires) > 1:
        blocks.append(_test(name, "the fraud without its first event", fires[1:], "expect none"))
    else:
        near = _outside(fires[0], [ground.atoms[at] for at in mined.steps[0]])
        if near is not None:
            blocks.append(_test(name, "just outside of a limit", [near], "expect none"))
    return "\n".join(blocks)


def _bound(ground: Ground, steps: Sequence[Step], end: int) -> list[int]:
    """Return the rows of a sequence that ends there, in their order."""
    rows = [end]
    for step in reversed(steps[:-1]):
        rows.insert(0, int(ground.before(step)[rows[0]]))
    return rows


def _written(events: Events, row: int, names: set[str]) -> tuple[str, Values]:
    """Return the type of an event, and the values of these fields as a test writes them."""
    event_type = events.schema.event_types[int(events.event_type[row])]
    values = {}
    for field in event_type.fields:
        if field.name in names:
            value = events.columns[field.name][row].as_py()
            if value is not None:
                values[field.name] = show_value(value, field.type)
    return event_type.name, values


def _outside(event: TestEvent, atoms: Sequence[Atom]) -> TestEvent | None:
    """Return the event with a value just outside of a limit; None if it has no limit."""
    for atom in atoms:
        if atom.op in (">=", "<="):
            limit = Decimal(atom.limit)
            unit = abs(limit) / 100 + 1 if "float" in atom.kind else Decimal(1).scaleb(int(limit.as_tuple().exponent))
            value = limit - unit if atom.op == ">=" else limit + unit
            return event[0], event[1], {**event[2], atom.field: f"{value:f}"}
    return None


def _test(name: str, title: str, given: Sequence[TestEvent], expected: str) -> str:
    """Write a test whose events are all of one key, the first of them at 0 s."""
    first_ms = given[0][0]
    lines = []
    for at_ms, event_type, values in given:
        fields = " ".join(f"{field}={value}" for field, value in values.items())
        lines.append(f"  k1: {show_duration(at_ms - first_ms)}  {event_type} {fields}".rstrip())
    return "\n".join([f'test "{title}" of {name} {{', *lines, f"  {expected}", "}"])
