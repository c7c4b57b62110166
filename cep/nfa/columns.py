"""The columns of a program's event table: fields that rules read, functions of a field, histories.

Tested by: tests/nfa/test_compile.py, tests/histories/test_values.py
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cep.base.schema import Kind, Schema, Type
from cep.kernels import layout as y
from cep.lang.functions import IN_LIST
from cep.lang.ir import Call, CurrentField, History
from cep.lang.show import show_expr

# The column with the names of an event's histories that lack older events or have them folded: their identities as one
# text, null for none. Stored events keep it, so it is the same in every program.
INCOMPLETE = "histories told"
HISTORY = "history"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the event table: a field of the events, or a value that the engine computes for each event."""

    name: str
    type: Type
    retained: bool  # stored with bound events, because conditions or measures read it from them.
    derived: bool = False  # an expression of one event that an aggregate reads, such as amount * 2 for its sum.
    source: int = -1  # the column of the field that `computed` reads
    computed: Call | None = None  # a function of one text or time field, such as lower(name) (functions/columns.py).
    history: bool = False  # an aggregate over past events, or the names of the aggregates that lack some (INCOMPLETE)

    @property
    def is_field(self) -> bool:
        """True if the column is a field of the events, unchanged."""
        return not (self.derived or self.computed or self.history)

    @property
    def is_stored_history(self) -> bool:
        """True for a history that is stored with bound events, because a match may come only after its last event."""
        return self.history and self.retained and self.name != INCOMPLETE

    @property
    def is_listed(self) -> bool:
        """True if the column says whether a value is in a list. It is stored, because the list may change."""
        return self.computed is not None and self.computed.fn == IN_LIST


class ColumnMap:
    """Field name → column number; a column exists if some rule reads it. layout.COLUMNS_FIXED come first."""

    def __init__(self, schema: Schema) -> None:
        self._types = schema.columns()
        self._times = schema.time_fields
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
        """Return the column with a function of the event's text or time."""
        name = show_expr(call)
        if name not in self._computed:
            self._computed[name] = (self.number(_subject(call)), call)
            self.names.append(name)
        return y.COLUMNS_FIXED + self.names.index(name)

    def history(self, expr: History) -> int:
        """Return the column with a history of the event; equal histories of different rules share a column."""
        if not self._histories:
            self.names.append(INCOMPLETE)
        if expr not in self._histories:
            self._histories[expr] = f"history {len(self._histories)}"
            self.names.append(self._histories[expr])
        return y.COLUMNS_FIXED + self.names.index(self._histories[expr])

    @property
    def histories(self) -> dict[int, History]:
        """Column number → history."""
        return {self.history(expr): expr for expr in self._histories}

    def columns(self, derived: Sequence[Type]) -> tuple[Column, ...]:
        """Return the columns of the event table; the results of the vector code come last."""
        return event_columns(self._types, self.described(), derived)

    def described(self) -> Iterator[tuple[str, int, Call | History | None, bool]]:
        """Yield (name, column that it is a function of or -1, function or history, whether it is retained) of each."""
        past = {name: expr for expr, name in self._histories.items()}
        for number, name in enumerate(self.names, start=y.COLUMNS_FIXED):
            source, call = self._computed.get(name, (-1, None))
            # Histories are identified by their definition; their number depends on the other histories.
            history = past.get(name)
            yield name if history is None else HISTORY, source, call or history, number in self.retained


def event_columns(
    types: Mapping[str, Type],
    described: Iterable[tuple[str, int, Call | History | None, bool]],
    derived: Sequence[Type],
) -> tuple[Column, ...]:
    """List the columns of an event table: the fixed ones, the ones that rules read, then derived columns.

    `described` are the columns that rules read: (name, column that a function reads, that function or a history,
    whether it is stored with bound events). A history is an aggregate of past events. The column INCOMPLETE names the
    histories that lack events or have them merged into sums. Derived columns hold expressions that aggregates read."""
    fixed = [Column(f"fixed {i}", Type(Kind.INT), retained=False) for i in range(y.COLUMNS_FIXED)]
    described_columns: list[Column] = []
    histories_count = 0
    for name, source, function, is_retained in described:
        if isinstance(function, History):
            type_ = function.type.as_nullable()
            # A column that is stored with bound events needs the same name in every program; others are numbered.
            suffix = identity_of(function) if is_retained else histories_count
            described_columns.append(Column(f"{HISTORY} {suffix}", type_, is_retained, history=True))
            histories_count += 1
        elif function is not None:
            type_ = function.type.as_nullable()
            described_columns.append(Column(name, type_, retained=False, source=source, computed=function))
        elif name == INCOMPLETE:
            described_columns.append(Column(name, Type(Kind.STRING, nullable=True), retained=True, history=True))
        else:
            described_columns.append(Column(name, types[name], is_retained))
    derived_columns = [Column(f"derived {i}", type_, retained=False, derived=True) for i, type_ in enumerate(derived)]
    return (*fixed, *described_columns, *derived_columns)


def identity_of(expr: History) -> str:
    """Return a text that is the same for equal histories in every program."""
    return hashlib.blake2b(repr(expr).encode(), digest_size=12).hexdigest()


def _subject(call: Call) -> str:
    """Return the field that a function of the event's text or time reads."""
    inner = call.arguments[0]
    assert isinstance(inner, CurrentField | Call), "checked before"
    return inner.field if isinstance(inner, CurrentField) else _subject(inner)
