"""Which columns the event table of a program has: what its rules read, functions of a field, histories.

Tested by: tests/nfa/test_compile.py, tests/engine/test_histories.py
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from cep.base.schema import Kind, Schema, Type
from cep.kernels import layout as y
from cep.lang.ir import Call, CurrentField, History
from cep.lang.show import show_expr

# The column that says of an event which histories lack older events there: a set of `cut_bit`s.
CUT = "history cut"


def cut_bit(expr: History) -> int:
    """The bit of a history in the column CUT. Stored events keep theirs, so it is the same in every program."""
    return 1 << (zlib.crc32(repr(expr).encode()) % 62)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the event table. `retained`: conditions or measures read it of bound events.

    `computed` is a function of one text or time field of the event, which is column `source`; the engine fills the
    column (engine/functions.py), and that of a `history` (engine/histories.py).
    """

    name: str
    type: Type
    retained: bool
    derived: bool = False
    source: int = -1
    computed: Call | None = None
    history: bool = False

    @property
    def is_read(self) -> bool:
        """Whether the column is a field of the events, as they come."""
        return not (self.derived or self.computed or self.history)


class ColumnMap:
    """Field name → column number; a column exists if some rule reads it. Those of layout.COLUMNS_FIXED come first."""

    def __init__(self, schema: Schema) -> None:
        self._types = schema.columns()
        self._times = {e.time_field for e in schema.event_types}
        self.names: list[str] = []
        self._computed: dict[str, tuple[int, Call]] = {}
        self._histories: dict[History, str] = {}
        self.retained: set[int] = set()

    def number(self, field: str) -> int:
        if field in self._times:
            return y.COLUMN_TIME
        if field not in self.names:
            self.names.append(field)
        return y.COLUMNS_FIXED + self.names.index(field)

    def computed(self, call: Call) -> int:
        """The column that holds a function of the event's text or time."""
        name = show_expr(call)
        if name not in self._computed:
            self._computed[name] = (self.number(_subject(call)), call)
            self.names.append(name)
        return y.COLUMNS_FIXED + self.names.index(name)

    def history(self, expr: History) -> int:
        """The column that holds a history of the event; equal ones of different rules are the same column."""
        if not self._histories:
            self.names.append(CUT)
        if expr not in self._histories:
            self._histories[expr] = f"history {len(self._histories)}"
            self.names.append(self._histories[expr])
        return y.COLUMNS_FIXED + self.names.index(self._histories[expr])

    @property
    def histories(self) -> dict[int, History]:
        """Column number → history."""
        return {self.history(expr): expr for expr in self._histories}

    def columns(self, derived: Sequence[Type]) -> tuple[Column, ...]:
        fixed = [Column(f"fixed {i}", Type(Kind.INT), False) for i in range(y.COLUMNS_FIXED)]
        read = [
            self._column(name, number in self.retained) for number, name in enumerate(self.names, start=y.COLUMNS_FIXED)
        ]
        made = [Column(f"derived {i}", t, False, derived=True) for i, t in enumerate(derived)]
        return (*fixed, *read, *made)

    def _column(self, name: str, retained: bool) -> Column:
        if name == CUT:
            return Column(name, Type(Kind.INT), retained=True, history=True)
        past = next((expr for expr, known in self._histories.items() if known == name), None)
        if past is not None:
            return Column(name, past.type.as_nullable(), retained=False, history=True)
        if name not in self._computed:
            return Column(name, self._types[name], retained)
        source, call = self._computed[name]
        return Column(name, call.type.as_nullable(), retained=False, source=source, computed=call)


def _subject(call: Call) -> str:
    """The field that a function of the event's text or time looks at."""
    inner = call.arguments[0]
    assert isinstance(inner, CurrentField | Call), "checked before"
    return inner.field if isinstance(inner, CurrentField) else _subject(inner)
