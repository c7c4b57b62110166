"""The things that rules mention → one number each, the same for all rules that a process compiles.

Two rules that compare with 500 mean the same constant, two that read `amount` the same column. A compiled rule holds
these numbers, so that putting rules together (link.py) is arithmetic on arrays. They count up in the order in which a
process happens to meet things: a program numbers what it needs anew, in the order of its rules.
Tested by: tests/nfa/test_link.py
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
    """Equal things have equal numbers, from 0 on."""

    def __init__(self) -> None:
        self.things: list[T] = []
        self._number_of: dict[T, int] = {}

    def __len__(self) -> int:
        return len(self.things)

    def of(self, thing: T) -> int:
        """Its number, a new one if it has none."""
        number = self._number_of.setdefault(thing, len(self.things))
        if number == len(self.things):
            self.things.append(thing)
        return number


# A constant: whether it is a text, and its slot or that text.
Constant = tuple[bool, int | str]
# A column of the event table: its name as columns.ColumnMap gives it, and what it is a function of, if of anything.
Symbol = tuple[str, int, Call | History | None]

# A prefix: its predicates in order, and its steps, of which the shortest needs none (prefixes.py).
PrefixSymbol = tuple[tuple[int, ...], tuple[Step, ...]]


@dataclass(frozen=True, slots=True)
class Symbols:
    """The numbers of one process and one schema.

    A column is (its name, the number of the column that it is a function of or -1, the function or history).
    An instruction of vector code is (op, a, b, c) in these numbers; registers are numbers of instructions. A group is
    a kind of index and a column. A derived column is the number of its instruction, and its type.
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
        """Return how many things have a number."""
        tables = (self.constants, self.columns, self.predicates, self.instructions, self.prefixes)
        return sum(len(numbers) for numbers in tables)
