"""The items that rules mention → one number each, shared by all rules that a process compiles.

Two rules that compare with 500 use the same constant, two that read `amount` the same column. A compiled rule contains
these numbers, so linking rules (link.py) is arithmetic on arrays. Numbers grow in the order in which a process meets
the items: a program renumbers the items that it needs in the order of its rules.

Tested by: tests/nfa/test_shared.py
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from cep.base.schema import Type
from cep.lang.ir import Call, Expr, History
from cep.nfa.code import Instruction
from cep.nfa.prefixes import Step

T = TypeVar("T", bound=Hashable)


class Numbers(Generic[T]):
    """The numbers of distinct items, 0, 1, 2, …: equal items have equal numbers."""

    def __init__(self) -> None:
        self.things: list[T] = []
        self._number_of: dict[T, int] = {}

    def __len__(self) -> int:
        return len(self.things)

    def of(self, thing: T) -> int:
        """Return the number of an item, a new one if the item is new."""
        number = self._number_of.setdefault(thing, len(self.things))
        if number == len(self.things):
            self.things.append(thing)
        return number


# A constant: whether it is a text, and its slot or that text.
Constant = tuple[bool, int | str]
# A column of the event table: its name from columns.ColumnMap, the column that it is a function of, and the function.
Symbol = tuple[str, int, Call | History | None]

# A prefix: its predicates in order, and its steps, which are empty for the shortest (prefixes.py).
PrefixSymbol = tuple[tuple[int, ...], tuple[Step, ...]]


@dataclass(frozen=True, slots=True)
class Symbols:
    """The numbers that the pieces of one process and one schema share, so that equal parts of rules are recognised.

    A column is (its name, the number of the column that it is a function of or -1, the function or history). An
    instruction of vector code is (op, a, b, c) in these numbers; registers are numbers of instructions. A group is a
    kind of index and a column. A derived column is the number of its instruction, and its type.
    """

    constants: Numbers[Constant] = field(default_factory=Numbers)
    columns: Numbers[Symbol] = field(default_factory=Numbers)
    predicates: Numbers[tuple[frozenset[Expr], int | None]] = field(default_factory=Numbers)
    instructions: Numbers[Instruction] = field(default_factory=Numbers)
    groups: Numbers[tuple[int, int]] = field(default_factory=Numbers)
    derived: Numbers[tuple[int, Type]] = field(default_factory=Numbers)
    streams: Numbers[tuple[int, ...]] = field(default_factory=Numbers)
    prefixes: Numbers[PrefixSymbol] = field(default_factory=Numbers)

    def __len__(self) -> int:
        """Return the number of numbered items."""
        tables = (self.constants, self.columns, self.predicates, self.instructions, self.prefixes)
        return sum(len(numbers) for numbers in tables)
