"""The tables and code of one rule → a piece: everything that a program needs of a rule, in one array.

    header (words of each section) | rule | states | waits | … | instructions of its predicates | …

Its numbers are its own, starting at 0 (states, code), or shared by all rules of the process (prefixes.py). So a piece
does not depend on other rules: it is compiled once, and a program combines pieces by adding offsets (link.py).
Tested by: tests/nfa/test_shared.py
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain

import numpy as np

from cep.base.schema import Type
from cep.kernels import layout as y
from cep.kernels.expressions.opcodes import MACHINE_WIDTH
from cep.kernels.layout import Int64
from cep.lang.ir import HistoryWindow
from cep.lang.walk import histories
from cep.nfa.code import COLUMN_OPERAND, CONSTANT_OPERAND, Constants, Instruction, register_positions
from cep.nfa.columns import ColumnMap, identity_of
from cep.nfa.histories import CUT, is_foldable
from cep.nfa.predicates import Atom, WrittenPredicate
from cep.nfa.prefixes import Prefix, Symbols
from cep.nfa.rule_tables import RuleTables
from cep.nfa.tables import DERIVED, WaitRow


class Section(IntEnum):
    """The sections of a piece (one compiled rule), in their order. Comments list the columns of a section's rows.

    The linker joins the pieces of all rules to the image, the array that kernels read (kernels/layout.py). Offsets in
    the image are not known yet, so a row has the count of its rows in another section, or the number of one. A wait
    is a transition that a run waits for, a guard is an event that closes it, and a bound limits its time."""

    RULE = 0  # layout.RULE_WIDTH words, then the words of RULE_EXTRA
    STATES = 1  # count of waits, 1 if accepting, loop counter, its least value to accept, count of actions, variable.
    WAITS = 2  # as in the image; counts of marks, guards and bounds; a bit for each wait that keeps it open (reopens).
    GUARDS = 3  # as in the image, with the count of bounds in place of their range.
    BOUNDS = 4  # time limits of waits.
    MARKS = 5  # registers that a wait sets to the row of the event it takes.
    ACTIONS = 6  # updates of registers by a taken event; column -1 - n means the derived column (below) number n
    MEASURES = 7  # values that a match emits: code and result register
    CODE = 8  # of the rule's conditions and measures
    REGISTERS = 9  # 1 for each register that holds a row of the event table
    RELEVANCE = 10  # predicates that the rule reacts to; -1 for all events
    COLUMNS = 11  # column, 1 if it is stored with bound events; in the order in which the rule uses them.
    DERIVED = 12  # derived column (an expression of one event), count of its instructions
    DERIVED_CODE = 13  # instruction's number, op, a, b, c
    PREDICATES = 14  # predicate (condition of one event), event type or -1, count of instructions, count of atoms.
    PREDICATE_CODE = 15  # instruction's number, op, a, b, c
    ATOMS = 16  # comparison for an index: index, count of constants, length and result register of the rest's code.
    VALUES = 17  # constants of atoms
    REST_CODE = 18  # code of the rest: the other comparisons of an atom's predicate
    PREFIXES = 19  # prefix (first conditions of the pattern), the predicate by which it extends the prefix before
    GUARD_BOUNDS = 20  # time limits of guards

    __hash__ = int.__hash__  # sections are looked up for each rule, and the hash of an enum is slow


WIDTHS = {
    Section.STATES: 6, Section.WAITS: 18, Section.GUARDS: y.GUARD_WIDTH - 1, Section.BOUNDS: y.BOUND_WIDTH,
    Section.ACTIONS: y.ACTION_WIDTH, Section.MEASURES: y.MEASURE_WIDTH, Section.CODE: MACHINE_WIDTH,
    Section.COLUMNS: 2, Section.DERIVED: 2, Section.DERIVED_CODE: MACHINE_WIDTH, Section.PREDICATES: 4,
    Section.PREDICATE_CODE: MACHINE_WIDTH, Section.ATOMS: 4, Section.REST_CODE: MACHINE_WIDTH, Section.PREFIXES: 2,
    Section.GUARD_BOUNDS: y.BOUND_WIDTH,
}  # fmt: skip
# After the words of a rule's row: registers, size of the machine for its code, number of its stream or -1.
RULE_EXTRA = 3
RULE_REGISTERS, RULE_MACHINE, RULE_STREAM = range(y.RULE_WIDTH, y.RULE_WIDTH + RULE_EXTRA)
WIDTHS[Section.RULE] = y.RULE_WIDTH + RULE_EXTRA


@dataclass(frozen=True, slots=True, eq=False)
class RuleFacts:
    """Facts about a rule that the engine needs and that its compiled tables do not have.

    A history is an aggregate over a key's past events. In the values of a finished run, the measures of a match come
    first and the measures of a time-out follow.
    """

    variables: tuple[str, ...]
    measures: tuple[tuple[str, Type], ...]  # name and type of each value that a match emits
    timeout_measures: tuple[tuple[str, Type], ...]
    repeats: bool  # a match may be found in more than one way
    may_be_cut: frozenset[str]  # histories `by` a field (a sub-key): they lack values if the field has too many values
    may_be_folded: frozenset[str]  # histories whose oldest events are merged into sums if the key has too many events
    windows: tuple[HistoryWindow | None, ...]  # the time windows of its histories; None is the whole past


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A compiled rule: its sections as words, int64, and its facts."""

    words: Int64
    facts: RuleFacts


def pack(rule: RuleTables, predicates: Sequence[WrittenPredicate], symbols: Symbols) -> Piece:
    """Translate a rule's own numbers into shared ones, and concatenate its tables."""
    pattern, states, vector, scalar = rule.pattern, rule.states, rule.vector, rule.scalar
    shared = _SharedNumbers(symbols, rule.constants, rule.columns)
    predicate_ids = [symbols.predicates.number(predicate) for predicate in rule.predicates.all()]
    derived_types = dict(rule.derived_types)
    derived_code = [shared.vector(vector.derived_code(number)) for number in range(len(derived_types))]
    derived = [symbols.derived.number((code[-1][0], derived_types[n])) for n, code in enumerate(derived_code)]
    predicate_code = [shared.vector(vector.predicate_code(number)) for number in range(len(predicates))]
    waits = [wait for nfa_state in states for wait in nfa_state.waits]
    guards = [row for wait in waits for row in wait.guards]
    stream = symbols.streams.number(rule.stream) if rule.stream else -1
    sections: dict[Section, Sequence[Sequence[int]]] = {
        Section.RULE: [[*rule.row(), rule.registers_count, scalar.machine_size, stream]],
        Section.STATES: [[len(row.waits), *row.accept, len(row.actions), row.variable] for row in states],
        Section.WAITS: [shared.wait(wait, predicate_ids) for wait in waits],
        Section.GUARDS: [
            [row.kind, _at(predicate_ids, row.predicate), *row.code, row.freed, len(row.bounds)] for row in guards
        ],
        Section.BOUNDS: [row for wait in waits for row in wait.bounds],
        Section.MARKS: [wait.marks for wait in waits],
        Section.ACTIONS: [shared.action(row, derived) for nfa_state in states for row in nfa_state.actions],
        Section.MEASURES: rule.measure_rows,
        Section.CODE: shared.scalar(scalar.instructions[: rule.code_end]),
        Section.REGISTERS: [rule.holds_rows()],
        Section.RELEVANCE: [[_at(predicate_ids, predicate) for predicate in rule.relevance()]],
        Section.COLUMNS: shared.columns(),
        Section.DERIVED: [[number, len(code)] for number, code in zip(derived, derived_code, strict=True)],
        Section.DERIVED_CODE: [row for code in derived_code for row in code],
        Section.PREDICATES: [
            [predicate_ids[number], predicate.event_type, len(predicate_code[number]), len(predicate.atoms)]
            for number, predicate in enumerate(predicates)
        ],
        Section.PREDICATE_CODE: [row for code in predicate_code for row in code],
        Section.ATOMS: [shared.atom(*atom) for predicate in predicates for atom in predicate.atoms],
        Section.VALUES: [shared.values(atom) for predicate in predicates for atom, _ in predicate.atoms],
        Section.REST_CODE: shared.scalar(scalar.instructions[rule.code_end :]),
        Section.PREFIXES: shared.prefixes(rule.prefix, predicate_ids),
        Section.GUARD_BOUNDS: [bound for row in guards for bound in row.bounds],
    }
    flat = [[*chain.from_iterable(sections[section])] for section in Section]
    used_columns = tuple(histories(pattern))
    facts = RuleFacts(
        tuple(v.name for v in pattern.variables),
        tuple((m.name, m.value.type) for m in pattern.measures),
        tuple((m.name, m.value.type) for m in pattern.timeout_measures or ()),
        rule.repeats(),
        frozenset(identity_of(past) + CUT for past in used_columns if past.by),
        frozenset(identity_of(past) for past in used_columns if is_foldable(past)),
        tuple(dict.fromkeys(past.window for past in used_columns)),
    )
    return Piece(np.fromiter(chain(map(len, flat), *flat), np.int64), facts)


def _at(ids: Sequence[int], number: int) -> int:
    return number if number < 0 else ids[number]


class _SharedNumbers:
    """Translates a rule's own numbers of constants and columns into the numbers that all rules share."""

    def __init__(self, symbols: Symbols, constants: Constants, columns: ColumnMap) -> None:
        """Find the shared number of each constant and column of one rule; `symbols` are shared by all rules."""
        self._symbols, self._rule_constants, self._rule_columns = symbols, constants, columns
        texts = dict(constants.texts)
        self._constants: list[int] = []
        for index, slot in enumerate(constants.slots):
            is_text = index in texts  # then the text identifies it, because its number differs in each batch of events
            self._constants.append(symbols.constants.number((is_text, texts[index] if is_text else slot)))
        self._columns: list[int] = []
        self._retained: list[int] = []
        for name, source, function, is_retained in columns.described():
            shared_source = source if source < 0 else self.column(source)  # the column that `function` reads, or -1
            self._columns.append(y.COLUMNS_FIXED + symbols.columns.number((name, shared_source, function)))
            self._retained.append(int(is_retained))  # 1: stored with bound events

    def column(self, number: int) -> int:
        return number if number < y.COLUMNS_FIXED else self._columns[number - y.COLUMNS_FIXED]

    def columns(self) -> list[list[int]]:
        return [[number, retained] for number, retained in zip(self._columns, self._retained, strict=True)]

    def atom(self, atom: Atom, rest: tuple[int, int, int]) -> list[int]:
        group = self._symbols.groups.number((atom.kind, self.column(self._rule_columns.number(atom.field))))
        return [group, len(atom.values), rest[1] - rest[0], rest[2]]

    def values(self, atom: Atom) -> list[int]:
        return [self._constants[self._rule_constants.add(value, is_float=False)] for value in atom.values]

    def action(self, row: tuple[int, ...], derived: Sequence[int]) -> list[int]:
        kind, register, column, other = row
        return [kind, register, -1 - derived[column - DERIVED] if column >= DERIVED else self.column(column), other]

    def wait(self, wait: WaitRow, predicate_ids: Sequence[int]) -> list[int]:
        kind, column, register, other = wait.simple
        simple = [kind, self.column(column), register, self.column(other)] if kind != y.SIMPLE_NONE else wait.simple
        owned = [len(wait.marks), len(wait.guards), len(wait.bounds)]
        head = [wait.target, wait.kind, _at(predicate_ids, wait.predicate), *wait.code]
        return [*head, *simple, *wait.count, wait.reset, *owned, wait.reopens]

    def prefixes(self, prefix: Prefix, predicate_ids: Sequence[int]) -> list[list[int]]:
        predicates = [predicate_ids[predicate] for predicate in prefix.predicates]
        rows = []
        for count, steps in enumerate(prefix.steps, start=1):
            identity = (
                () if count == 1 else tuple((index, predicate_ids[p], target, ends) for index, p, target, ends in steps)
            )
            rows.append([self._symbols.prefixes.number((tuple(predicates[:count]), identity)), predicates[count - 1]])
        return rows

    def scalar(self, code: Sequence[Instruction]) -> list[list[int]]:
        return [[op, target, *self._operands(op, operands)] for op, target, *operands in code]

    def vector(self, code: Sequence[Instruction]) -> list[list[int]]:
        """Return rows (number of the instruction, op, a, b, c), in which registers are numbers of instructions."""
        numbers: dict[int, int] = {}
        rows: list[list[int]] = []
        for op, target, *operands in code:
            words = self._operands(op, operands)
            for position in register_positions(op):
                words[position] = numbers[words[position]]
            numbers[target] = self._symbols.instructions.number((op, 0, words[0], words[1], words[2]))
            rows.append([numbers[target], op, *words])
        return rows

    def _operands(self, op: int, operands: Sequence[int]) -> list[int]:
        shared = list(operands)
        if op in CONSTANT_OPERAND:
            shared[CONSTANT_OPERAND[op]] = self._constants[shared[CONSTANT_OPERAND[op]]]
        if op in COLUMN_OPERAND:
            shared[COLUMN_OPERAND[op]] = self.column(shared[COLUMN_OPERAND[op]])
        return shared
