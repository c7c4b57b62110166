"""The checked form of a test: complete events on a clock that starts at 0, and the expected matches.

Every field of every event has a value (fields that the test does not name have the defaults of check/tests.py), so a
test means the same in every runner. Times are milliseconds since the start of the test.
Tested by: tests/lang/test_check_tests.py
"""

from __future__ import annotations

from dataclasses import dataclass

from cep.base.schema import Type
from cep.lang.diagnostics import Span
from cep.lang.ir import PatternIR

# The content of a slot (see ir.Const), None for null.
Slot = int | float | bool | str | None


@dataclass(frozen=True, slots=True)
class ScriptedEvent:
    """One event. `key` is the label of its key; `fields` has every field of its type but the time."""

    key: str
    event_type: str
    time_ms: int
    event_id: str
    fields: tuple[tuple[str, Slot], ...]
    span: Span


@dataclass(frozen=True, slots=True)
class ExpectedValue:
    """An emitted value: the slot, and how far a float may be off (half a unit of its last written digit)."""

    name: str
    value: Slot
    type: Type
    tolerance: float = 0.0


@dataclass(frozen=True, slots=True)
class Expected:
    """An expected match or time-out. An attribute of None, or a value that is not named, may be anything."""

    is_timeout: bool
    key: str | None
    at_ms: int | None
    values: tuple[ExpectedValue, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class ExpectedCount:
    """`expect matches 3`: how many matches there are, on one key or on all."""

    key: str | None
    count: int
    span: Span


@dataclass(frozen=True, slots=True)
class PatternTest:
    """A checked test. `pattern` is bound to the test's arguments; `todo` is the reason of a known gap, or None.

    The matches must be exactly the `expected` ones, unless `counts` give their number: then the `expected` ones must be
    among them. Time-outs are compared if one is expected. `nothing`: the pattern has no match and no time-out.
    """

    name: str
    pattern: PatternIR
    arguments: tuple[tuple[str, object], ...]
    events: tuple[ScriptedEvent, ...]
    expected: tuple[Expected, ...]
    counts: tuple[ExpectedCount, ...]
    nothing: tuple[str | None, ...]
    todo: str | None
    span: Span


@dataclass(frozen=True, slots=True)
class RefusedTest:
    """A test that cannot be carried out: the text of it or of its pattern has mistakes."""

    name: str
    pattern: str
    span: Span
