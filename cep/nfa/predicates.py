"""Conditions of one event, over a whole rulebook → conditions evaluated for every event, and conditions found by index.

A predicate is a set of conjuncts. Where many predicates compare the same column with a constant, a look-up of the
event's value finds the predicates that can hold, and the others cost nothing.

    merchant_id == "m17" and amount > 5.00     index on merchant_id, the rest is checked for the found events
    amount > 500.00                            index on amount, if it stands alone
    anything else                              vector code, evaluated for every event

The atoms of a predicate depend only on it (`atoms`); the atom that finds it depends on all predicates of a program
(`choose`).
Tested by: tests/nfa/test_predicates.py
"""

import numpy as np

from cep.base.schema import valueclass
from cep.kernels import layout as y
from cep.kernels.layout import Int32, Int64
from cep.lang.ir import Binary, Const, CurrentField, Expr, In, Unary
from cep.nfa.code import ScalarCode, VectorCode
from cep.nfa.simplify import all_of

INDEX_MIN = 8  # predicates on a column: evaluating fewer for every event is cheaper than an index
_KINDS = {"==": y.INDEX_EQ, "<": y.INDEX_LT, "<=": y.INDEX_LE, ">": y.INDEX_GT, ">=": y.INDEX_GE}
_TURNED = {"==": "==", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


@valueclass(frozen=True, slots=True)
class PredicatePlan:
    """The plan that fills a program's bitmaps: one bitmap per predicate, one bit per event.

    Shapes: evaluated int32[D] are the predicates that vector code evaluates, in the order of its registers; groups
    int64[G, INDEX_GROUP_WIDTH] and entries int64[E, INDEX_ENTRY_WIDTH] as in layout.py. There are `count` bitmaps.
    """

    count: int
    evaluated: Int32
    groups: Int64
    entries: Int64


@valueclass(frozen=True, slots=True)
class Atom:
    """A comparison of a column with constants that an index can answer, and the remaining conjuncts."""

    kind: int
    field: str
    values: tuple[int | str, ...]
    rest: tuple[Expr, ...]


@valueclass(frozen=True, slots=True)
class WrittenPredicate:
    """A predicate with its code: its event type or -1, and its atoms, each with the code of its remaining conjuncts."""

    event_type: int
    atoms: list[tuple[Atom, tuple[int, int, int]]]


class Predicates:
    """The distinct predicates (conditions of one event) of a rule and their numbers, 0, 1, 2, …."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[frozenset[Expr], int | None], int] = {}

    def number(self, conjuncts: list[Expr], event_type: int | None) -> int:
        """Return the number of the bitmap of the predicate "the event has this type, and all conjuncts are true"."""
        assert conjuncts or event_type is not None, "a predicate without any condition needs no bitmap"
        return self._numbers.setdefault((frozenset(conjuncts), event_type), len(self._numbers))

    def all(self) -> list[tuple[frozenset[Expr], int | None]]:
        return list(self._numbers)


def write_predicates(predicates: Predicates, vector: VectorCode, scalar: ScalarCode) -> list[WrittenPredicate]:
    """Write the code of each predicate, both for evaluation and for the index."""
    written = [_write(conjuncts, event_type, vector, scalar) for conjuncts, event_type in predicates.all()]
    for atom in (atom for predicate in written for atom, _ in predicate.atoms):
        for value in atom.values:
            scalar.constants.add(value, is_float=False)
    return written


def _write(
    conjuncts: frozenset[Expr], event_type: int | None, vector: VectorCode, scalar: ScalarCode
) -> WrittenPredicate:
    parts = ordered(conjuncts)
    vector.predicate(parts, event_type)
    atoms_with_code = [(atom, rest_code(atom.rest, scalar)) for atom in atoms(parts)]
    for atom, _ in atoms_with_code:
        scalar.columns.number(atom.field)
    return WrittenPredicate(-1 if event_type is None else event_type, atoms_with_code)


def choose(owner: Int64, group: Int64, count: int) -> Int64:
    """Choose the atom by which an index finds each predicate (condition of one event): int64[count], -1 for none.

    An atom is a comparison of a column with constants in a predicate, which an index on the column can answer. A
    predicate for which none is chosen is evaluated for each event.
    Shapes: owner int64[A] is the predicate of each atom, ascending, and group int64[A] the index that the atom would be
    an entry of. A predicate uses the index that most predicates can use, among equal ones the first. An index for fewer
    than INDEX_MIN predicates is not built.
    """
    chosen = np.full(count, -1, np.int64)
    if not len(group):
        return chosen
    groups_count = int(group.max()) + 1
    owner_group_pairs = np.unique(owner * groups_count + group)
    predicates_of_group = np.bincount(owner_group_pairs % groups_count, minlength=groups_count)[group]
    order = np.lexsort((np.arange(len(group)), -predicates_of_group, owner))
    best = order[np.flatnonzero(np.diff(owner[order], prepend=-1))]  # the first atom of each owner
    indexed = best[predicates_of_group[best] >= INDEX_MIN]
    chosen[owner[indexed]] = indexed
    return chosen


def ordered(conjuncts: frozenset[Expr]) -> list[Expr]:
    """Sort conjuncts by their texts, because a program must be the same on every machine."""
    by_head = {_head(conjunct): conjunct for conjunct in conjuncts}
    if len(by_head) == len(conjuncts):
        return [by_head[head] for head in sorted(by_head)]
    return sorted(conjuncts, key=repr)


def _head(expr: Expr) -> str:
    """Return the start of an expression's text. No start is a prefix of another one, so starts sort like texts."""
    kind = type(expr).__name__
    return f"{kind}(op={expr.op!r}" if isinstance(expr, Unary | Binary) else f"{kind}("


def rest_code(rest: tuple[Expr, ...], scalar: ScalarCode) -> tuple[int, int, int]:
    """Return code for the rest of a predicate that an index has found; (-1, -1, -1) if there is no rest."""
    if not rest:
        return -1, -1, -1
    return scalar.compile(all_of(rest))


def atoms(conjuncts: list[Expr]) -> list[Atom]:
    """Return the atoms by which an index can find a predicate."""
    by_index: list[Atom] = []
    for index, part in enumerate(conjuncts):
        rest = tuple(conjuncts[:index] + conjuncts[index + 1 :])
        atom = _atom(part, rest)
        if atom is not None and (atom.kind == y.INDEX_EQ or not rest):
            by_index.append(atom)
    return by_index


def _atom(part: Expr, rest: tuple[Expr, ...]) -> Atom | None:
    """Convert a comparison of a field with constants to an entry of an index. Return None if no index can answer it.

    `rest` are the other conjuncts of the predicate, checked for the events that the index finds. An index holds
    integers and numbers of texts, so it cannot answer comparisons of floats.
    """
    if isinstance(part, In) and isinstance(part.argument, CurrentField) and not part.argument.type.is_float:
        constants = tuple(c for c in map(_index_constant, part.items) if c is not None)
        return Atom(y.INDEX_EQ, part.argument.field, constants, rest) if len(constants) == len(part.items) else None
    if not isinstance(part, Binary) or part.op not in _KINDS:
        return None
    op, left, right = part.op, part.left, part.right
    if isinstance(right, CurrentField):
        op, left, right = _TURNED[op], right, left  # type: ignore[assignment]
    if not isinstance(left, CurrentField) or left.type.is_float or left.type.kind != right.type.kind:
        return None
    value = _index_constant(right)
    return None if value is None else Atom(_KINDS[op], left.field, (value,), rest)


def _index_constant(expr: Expr) -> int | str | None:
    """Return the value of a constant that an index can hold."""
    if not isinstance(expr, Const) or expr.value is None or isinstance(expr.value, float):
        return None
    return expr.value if isinstance(expr.value, str) else int(expr.value)
