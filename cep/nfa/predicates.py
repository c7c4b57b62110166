"""Conditions of one event, over a whole rulebook → which are evaluated for every event, and which by index.

A predicate is a set of conjuncts. Where many predicates compare the same column with a constant, looking the event's
value up finds those that can hold, and the others cost nothing: hundreds of rules that name hundreds of merchants cost
one look-up an event. The rest becomes vector code.

    merchant_id == "m17" and amount > 5.00     index on merchant_id, the rest is checked for the events that are found
    amount > 500.00                            index on amount, if it stands alone
    anything else                              evaluated for every event

Tested by: tests/nfa/test_predicates.py
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from cep.kernels import layout as y
from cep.kernels.opcodes import MACHINE_WIDTH
from cep.lang.ir import Binary, Const, CurrentField, Expr, In
from cep.nfa.code import ColumnNumbers, Constants, ScalarCode, VectorCode
from cep.nfa.simplify import TRUE

# Below this many predicates on a column, evaluating them for every event is cheaper than looking up.
INDEX_MIN = 8
_KINDS = {"==": y.INDEX_EQ, "<": y.INDEX_LT, "<=": y.INDEX_LE, ">": y.INDEX_GT, ">=": y.INDEX_GE}
_TURNED = {"==": "==", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_Group = tuple[int, str]  # kind, field


@dataclass(frozen=True, slots=True)
class PredicatePlan:
    """How the bitmaps of a program are filled.

    Shapes: dense int32[D] are the predicates that vector code evaluates, in the order of its predicate registers;
    groups int64[G, INDEX_GROUP_WIDTH] and entries int64[E, INDEX_ENTRY_WIDTH] as in layout.py. `count` is the number of
    bitmaps. Code in entries counts instructions until it is `placed`.
    """

    count: int
    dense: y.Int32
    groups: y.Int64
    entries: y.Int64

    def placed(self, at_code: int) -> PredicatePlan:
        """The plan for an image whose code begins at this offset."""
        entries = self.entries.copy()
        coded = entries[:, y.INDEX_CODE] >= 0
        for column in (y.INDEX_CODE, y.INDEX_CODE_END):
            entries[coded, column] = at_code + MACHINE_WIDTH * entries[coded, column]
        return replace(self, entries=entries)


@dataclass(frozen=True, slots=True)
class _Atom:
    """A comparison of a column with constants that an index can answer, and the conjuncts that remain."""

    group: _Group
    values: tuple[int | str, ...]
    rest: tuple[Expr, ...]


class Predicates:
    """Numbers the distinct predicates of a program, and decides in the end how each is evaluated."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[frozenset[Expr], int | None], int] = {}

    def number(self, conjuncts: list[Expr], event_type: int | None) -> int:
        """The number of the bitmap for "is of this event type, and all conjuncts are true"."""
        assert conjuncts or event_type is not None, "a predicate without any condition needs no bitmap"
        return self._numbers.setdefault((frozenset(conjuncts), event_type), len(self._numbers))

    def finish(
        self, vector: VectorCode, scalar: ScalarCode, columns: ColumnNumbers, constants: Constants
    ) -> PredicatePlan:
        """Write the code; call once all predicates have their numbers."""
        options = {key: _atoms(_ordered(key[0])) for key in self._numbers}
        popular = Counter(group for atoms in options.values() for group in {a.group for a in atoms})
        dense: list[int] = []
        grouped: dict[_Group, list[list[int]]] = {}
        for (conjuncts, event_type), number in self._numbers.items():
            atoms = [a for a in options[conjuncts, event_type] if popular[a.group] >= INDEX_MIN]
            if not atoms:
                vector.predicate(_ordered(conjuncts), event_type)
                dense.append(number)
                continue
            atom = max(atoms, key=lambda a: popular[a.group])
            code = _code(atom.rest, scalar)
            columns.number(atom.group[1])
            rows = grouped.setdefault(atom.group, [])
            for value in atom.values:
                slot = constants.add(value, is_float=False)
                rows.append([slot, number, -1 if event_type is None else event_type, *code])
        groups: list[list[int]] = []
        entries: list[list[int]] = []
        for (kind, field), rows in grouped.items():
            groups.append([kind, columns.number(field), len(entries), len(entries) + len(rows)])
            entries += rows
        return PredicatePlan(
            len(self._numbers),
            np.array(dense, np.int32),
            np.array(groups, np.int64).reshape(-1, y.INDEX_GROUP_WIDTH),
            np.array(entries, np.int64).reshape(-1, y.INDEX_ENTRY_WIDTH),
        )


def _ordered(conjuncts: frozenset[Expr]) -> list[Expr]:
    """A fixed order: a program must be the same on every machine."""
    return sorted(conjuncts, key=repr)


def _code(rest: tuple[Expr, ...], scalar: ScalarCode) -> tuple[int, int, int]:
    if not rest:
        return -1, -1, -1
    whole = rest[0]
    for part in rest[1:]:
        whole = Binary("and", whole, part, TRUE.type.as_nullable())
    return scalar.compile(whole, _no_register, _no_variable)


def _no_register(kind: str, variable: str, argument: Expr | None) -> int:
    raise AssertionError(f"{kind} of {variable} ({argument}) in a predicate of the event alone")


def _no_variable(name: str) -> int:
    raise AssertionError(f"variable {name} in a predicate of the event alone")


def _atoms(conjuncts: list[Expr]) -> list[_Atom]:
    found: list[_Atom] = []
    for at, part in enumerate(conjuncts):
        rest = tuple(conjuncts[:at] + conjuncts[at + 1 :])
        atom = _atom(part, rest)
        if atom is not None and (atom.group[0] == y.INDEX_EQ or not rest):
            found.append(atom)
    return found


def _atom(part: Expr, rest: tuple[Expr, ...]) -> _Atom | None:
    if isinstance(part, In) and isinstance(part.argument, CurrentField) and not part.argument.type.is_float:
        values = tuple(_slot(item) for item in part.items)
        known = tuple(v for v in values if v is not None)
        return _Atom((y.INDEX_EQ, part.argument.field), known, rest) if len(known) == len(values) else None
    if not isinstance(part, Binary) or part.op not in _KINDS:
        return None
    op, left, right = part.op, part.left, part.right
    if isinstance(right, CurrentField):
        op, left, right = _TURNED[op], right, left  # type: ignore[assignment]
    if not isinstance(left, CurrentField) or left.type.is_float or left.type.kind != right.type.kind:
        return None
    value = _slot(right)
    return None if value is None else _Atom((_KINDS[op], left.field), (value,), rest)


def _slot(expr: Expr) -> int | str | None:
    """The content of a constant that an index can hold."""
    if not isinstance(expr, Const) or expr.value is None or isinstance(expr.value, float):
        return None
    return expr.value if isinstance(expr.value, str) else int(expr.value)
