"""The predicates and derived columns of all rules of a program → an index, and one vector code for the rest.

Equal predicates of different rules become one, and so do equal instructions.

Tested by: tests/nfa/test_predicates.py, tests/nfa/test_shared.py
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cep.base.schema import Type
from cep.kernels import layout as y
from cep.kernels.expressions.opcodes import MACHINE_WIDTH
from cep.kernels.layout import Int64
from cep.nfa.code import COLUMN_OPERAND, CONSTANT_OPERAND, VectorProgram, allocate, register_positions
from cep.nfa.gather import Gathered, numbered, segments, starts_of
from cep.nfa.image import Places
from cep.nfa.piece import Section
from cep.nfa.predicates import PredicatePlan, choose
from cep.nfa.symbols import Symbols

_OPS = 64  # above every opcode


def _positions(table: dict[int, int]) -> Int64:
    positions = np.full(_OPS, -1, np.int64)
    positions[list(table)] = list(table.values())
    return positions


_CONSTANT, _COLUMN = _positions(CONSTANT_OPERAND), _positions(COLUMN_OPERAND)
_REGISTERS = np.array([[operand in register_positions(op) for operand in range(3)] for op in range(_OPS)])


@dataclass(frozen=True, slots=True)
class GatheredPredicates:
    """The distinct predicates of a program. Each is found through an index, or evaluated for every event.

    Shapes: place int64 as in Places; dense int64[D] are the numbers of the evaluated predicates, dense_code int64[n, 5]
    their code and results int64[D] the instruction of each result; groups int64[G] and their sizes int64[G]; entries
    int64[E, INDEX_ENTRY_WIDTH] by group, with code offsets relative to the first instruction of `rest`. The numbers are
    the ones of the process.
    """

    count: int
    place: Int64
    dense: Int64
    dense_code: Int64
    results: Int64
    groups: list[tuple[int, int]]
    sizes: Int64
    entries: Int64
    rest: Int64


@dataclass(frozen=True, slots=True)
class GatheredVector:
    """The code of a program that runs over columns: rows (instruction, op, a, b, c) int64[n, 5], each instruction once.

    `place` is the index of each instruction, as in Places. `derived` are the instructions of the derived columns.
    The numbers are the ones of the process.
    """

    code: Int64
    place: Int64
    derived: tuple[int, ...]
    derived_types: tuple[Type, ...]
    derived_place: Int64


def gather_predicates(parts: Gathered, symbols: Symbols) -> GatheredPredicates:
    """Assign numbers to the distinct predicates of all rules. An index finds each predicate, or code evaluates it."""
    rows = parts.rows(Section.PREDICATES)
    ids, place, first = numbered(rows[:, 0], len(symbols.predicates))
    atoms, values = parts.rows(Section.ATOMS), parts.rows(Section.VALUES)
    atom_rows = segments(starts_of(rows[:, 3])[first], rows[first, 3])
    chosen = choose(np.repeat(np.arange(len(ids)), rows[first, 3]), atoms[atom_rows, 0], len(ids))
    dense, indexed = np.flatnonzero(chosen < 0), np.flatnonzero(chosen >= 0)
    index_atoms = atom_rows[chosen[indexed]]
    rest_lengths = atoms[index_atoms, 2]
    rest_first = np.where(rest_lengths > 0, starts_of(rest_lengths), -1)
    groups, group_place, _ = numbered(atoms[index_atoms, 0], len(symbols.groups))
    group = group_place[atoms[index_atoms, 0]]
    order = np.argsort(group, kind="stable")
    counts = atoms[index_atoms, 1][order]
    entries = np.empty((int(counts.sum()), y.INDEX_ENTRY_WIDTH), np.int64)
    entries[:, y.INDEX_CONSTANT] = values[segments(starts_of(atoms[:, 1])[index_atoms[order]], counts)]
    per_predicate = {
        y.INDEX_PREDICATE: indexed,
        y.INDEX_TYPE: rows[first, 1][indexed],
        y.INDEX_CODE: rest_first,
        y.INDEX_CODE_END: np.where(rest_lengths > 0, rest_first + rest_lengths, -1),
        y.INDEX_RESULT: atoms[index_atoms, 3],
    }
    for column, of_predicate in per_predicate.items():
        entries[:, column] = np.repeat(of_predicate[order], counts)
    code, code_first = parts.rows(Section.PREDICATE_CODE), starts_of(rows[:, 2])
    evaluated = first[dense]
    return GatheredPredicates(
        count=len(ids),
        place=place,
        dense=dense,
        dense_code=code[segments(code_first[evaluated], rows[evaluated, 2])],
        results=code[code_first[evaluated] + rows[evaluated, 2] - 1, 0],
        groups=[symbols.groups.things[number] for number in groups.tolist()],
        sizes=np.bincount(np.repeat(group[order], counts), minlength=len(groups)),
        entries=entries,
        rest=parts.rows(Section.REST_CODE)[segments(starts_of(atoms[:, 2])[index_atoms], rest_lengths)],
    )


def gather_vector(parts: Gathered, symbols: Symbols, predicates: GatheredPredicates) -> GatheredVector:
    """Join the code of all derived columns, followed by the code of the evaluated predicates, each instruction once."""
    rows = parts.rows(Section.DERIVED)
    ids, derived_place, first = numbered(rows[:, 0], len(symbols.derived))
    code = parts.rows(Section.DERIVED_CODE)[segments(starts_of(rows[:, 1])[first], rows[first, 1])]
    code = np.concatenate([code, predicates.dense_code])
    _, place, once = numbered(code[:, 0], len(symbols.instructions))
    derived = [symbols.derived.things[number] for number in ids.tolist()]
    return GatheredVector(
        code[once],
        place,
        tuple(instruction for instruction, _ in derived),
        tuple(type_ for _, type_ in derived),
        derived_place,
    )


def constants_of(op: Int64, operands: Int64) -> Int64:
    """Return the constants that instructions name, in order."""
    named = np.flatnonzero(_CONSTANT[op] >= 0)
    return operands[named, _CONSTANT[op[named]]]


def translated(op: Int64, operands: Int64, place: Places) -> Int64:
    """Replace operands by the program's numbers of constants and columns."""
    placed = operands.copy()
    for position, numbers in ((_CONSTANT, place.constant), (_COLUMN, place.column)):
        named = np.flatnonzero(position[op] >= 0)
        operand = position[op[named]]
        placed[named, operand] = numbers[operands[named, operand]]
    return placed


def finish_predicates(predicates: GatheredPredicates, place: Places, at_rest: int) -> PredicatePlan:
    """Return the plan for an image in which the code of entries begins at an offset."""
    entries = predicates.entries.copy()
    entries[:, y.INDEX_CONSTANT] = place.constant[entries[:, y.INDEX_CONSTANT]]
    coded = entries[:, y.INDEX_CODE] >= 0
    for column in (y.INDEX_CODE, y.INDEX_CODE_END):
        entries[coded, column] = at_rest + MACHINE_WIDTH * entries[coded, column]
    ends = np.cumsum(predicates.sizes)
    kinds = np.array(predicates.groups, np.int64).reshape(-1, 2)
    groups = np.column_stack([kinds[:, 0], place.column[kinds[:, 1]], ends - predicates.sizes, ends])
    return PredicatePlan(predicates.count, predicates.dense.astype(np.int32), groups, entries)


def finish_vector(vector: GatheredVector, predicates: GatheredPredicates, place: Places) -> VectorProgram:
    """Return the code with machine registers."""
    op = vector.code[:, 1]
    operands = translated(op, vector.code[:, 2:], place)
    is_register = _REGISTERS[op]
    operands[is_register] = vector.place[operands[is_register]]
    code = np.column_stack([op, np.arange(len(op)), operands])
    derived = vector.place[list(vector.derived)]
    return _allocated(code.tobytes(), vector.place[predicates.results].tobytes(), derived.tobytes())


@lru_cache(64)
def _allocated(code: bytes, predicates: bytes, derived: bytes) -> VectorProgram:
    """Return an equal earlier code: a change of one rule rarely changes the code that all rules share."""
    rows = np.frombuffer(code, np.int64).reshape(-1, MACHINE_WIDTH).tolist()
    results = (np.frombuffer(data, np.int64).tolist() for data in (predicates, derived))
    return allocate([(row[0], row[1], row[2], row[3], row[4]) for row in rows], *results)
