"""The pieces of all rules of a program → their sections as arrays, and the flat image that kernels read.

The form of the image is in kernels/layout.py.
Tested by: tests/nfa/test_compile.py, tests/nfa/test_shared.py
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cep.kernels import layout as y
from cep.kernels.expressions.opcodes import MACHINE_WIDTH
from cep.kernels.layout import Int64
from cep.nfa.piece import WIDTHS, Piece, Section


class JoinedPieces:
    """The sections of many pieces, joined in a few passes over their words, without a loop over rules.

    A piece is the compiled form of one rule: first the size of each section in words, then the words of all sections.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._words: Int64 = np.concatenate([np.empty(0, np.int64), *(piece.words for piece in pieces)])
        lengths = np.array([len(piece.words) for piece in pieces], np.int64)
        piece_starts = range_starts(lengths)[:, None]
        self._sizes = self._words[piece_starts + np.arange(len(Section))].reshape(len(pieces), len(Section))
        self._first = piece_starts + len(Section) + np.cumsum(self._sizes, axis=1) - self._sizes

    def rows(self, section: Section) -> Int64:
        """Return the rows of a section of all rules, in the order of the rules: int64[n, width of a row]."""
        words: Int64 = self._words[join_ranges(self._first[:, section], self._sizes[:, section])]
        width = WIDTHS.get(section)
        return words.reshape(-1, width) if width else words

    def counts(self, section: Section) -> Int64:
        """Return the number of rows of each rule: int64[rules]."""
        counts: Int64 = self._sizes[:, section] // WIDTHS.get(section, 1)
        return counts


def range_starts(counts: Int64) -> Int64:
    """Return the first index of each of several consecutive ranges, given their lengths."""
    return np.cumsum(counts) - counts


def join_ranges(first: Int64, count: Int64) -> Int64:
    """Return the numbers first[i] … first[i] + count[i] - 1 of each i in turn."""
    return np.arange(int(count.sum())) + np.repeat(first - range_starts(count), count)


def assign_numbers(used: Int64, ids_count: int) -> tuple[Int64, Int64, Int64]:
    """Assign numbers 0, 1, 2, … to the used ids, in order of first use.

    Returns: the used ids, each once; the number of each of `ids_count` ids, -1 for unused ids and for the id -1; and
    for each used id its first index in `used`.
    """
    first = np.full(ids_count, len(used), np.int64)
    first[used[::-1]] = np.arange(len(used) - 1, -1, -1)  # of several assignments, numpy keeps the last one
    used_ids = np.flatnonzero(first < len(used))
    ids = used_ids[np.argsort(first[used_ids])]
    number_of_id = np.full(ids_count + 1, -1, np.int64)
    number_of_id[ids] = np.arange(len(ids))
    return ids, number_of_id, first[ids]


@dataclass(frozen=True, slots=True)
class ProgramNumbers:
    """Tables from the numbers that all rules of the process share to the numbers of one program.

    Each is int64 by shared number: -1 for an item that the program does not use, and -1 at its end, the place of -1.
    `column` begins with layout.COLUMNS_FIXED; `derived` are also numbers of columns.
    """

    constant: Int64
    column: Int64
    predicate: Int64
    derived: Int64


@dataclass(frozen=True, slots=True)
class Image:
    """The words, the offset of the first measure and of the first instruction, and each rule's first NFA state."""

    words: Int64
    at_measures: int
    at_code: int
    first_state: Int64


def image_of(joined: JoinedPieces, program_number: ProgramNumbers, code: Int64, constants: Int64) -> Image:
    """Return the image. Shapes: code int64[n, MACHINE_WIDTH], the one of the rules first; constants int64[m]."""
    states, waits, guards = joined.rows(Section.STATES), joined.rows(Section.WAITS), joined.rows(Section.GUARDS)
    bounds, guard_bounds = joined.rows(Section.BOUNDS), joined.rows(Section.GUARD_BOUNDS)
    marks = joined.rows(Section.MARKS)
    actions, measures = joined.rows(Section.ACTIONS), joined.rows(Section.MEASURES)
    at_states = y.HEADER_WIDTH
    at_waits = at_states + y.STATE_WIDTH * len(states)
    at_guards = at_waits + y.WAIT_WIDTH * len(waits)
    at_bounds = at_guards + y.GUARD_WIDTH * len(guards)
    at_guard_bounds = at_bounds + y.BOUND_WIDTH * len(bounds)
    at_marks = at_guard_bounds + y.BOUND_WIDTH * len(guard_bounds)
    at_actions = at_marks + len(marks)
    at_measures = at_actions + y.ACTION_WIDTH * len(actions)
    at_code = at_measures + y.MEASURE_WIDTH * len(measures)
    at_constants = at_code + MACHINE_WIDTH * len(code)
    first_state = range_starts(joined.counts(Section.STATES))
    first_code = range_starts(joined.counts(Section.CODE))

    def with_image_offsets(rows: Int64, section: Section) -> Int64:
        """Return (first instruction, end, result) of each row, as offsets in the image."""
        offset = at_code + MACHINE_WIDTH * np.repeat(first_code, joined.counts(section))[:, None]
        moved = rows.copy()
        moved[:, :2] = np.where(rows[:, :1] < 0, rows[:, :2], MACHINE_WIDTH * rows[:, :2] + offset)
        return moved

    state_words = np.empty((len(states), y.STATE_WIDTH), np.int64)
    _set_range(state_words, y.S_WAITS, at_waits, y.WAIT_WIDTH, states[:, 0])
    state_words[:, y.S_ACCEPT : y.S_ACTIONS] = states[:, 1:4]
    _set_range(state_words, y.S_ACTIONS, at_actions, y.ACTION_WIDTH, states[:, 4])
    state_words[:, y.S_VARIABLE] = states[:, 5]

    wait_words = np.empty((len(waits), y.WAIT_WIDTH), np.int64)
    wait_words[:, : y.W_ROW_REGISTERS] = waits[:, : y.W_ROW_REGISTERS]
    offset = np.repeat(first_state, joined.counts(Section.WAITS))
    wait_words[:, y.W_TARGET] = np.where(waits[:, y.W_TARGET] < 0, waits[:, y.W_TARGET], waits[:, y.W_TARGET] + offset)
    wait_words[:, y.W_PREDICATE] = program_number.predicate[waits[:, y.W_PREDICATE]]
    wait_words[:, y.W_CODE : y.W_SIMPLE] = with_image_offsets(waits[:, y.W_CODE : y.W_SIMPLE], Section.WAITS)
    for column in (y.W_SIMPLE_COLUMN, y.W_SIMPLE_OTHER):  # 0 stays 0 if there is no simple form
        wait_words[:, column] = program_number.column[waits[:, column]]
    _set_range(wait_words, y.W_ROW_REGISTERS, at_marks, 1, waits[:, 14])
    _set_range(wait_words, y.W_GUARDS, at_guards, y.GUARD_WIDTH, waits[:, 15])
    _set_range(wait_words, y.W_BOUNDS, at_bounds, y.BOUND_WIDTH, waits[:, 16])
    wait_words[:, y.W_REOPENS] = waits[:, 17]

    guard_words = np.empty((len(guards), y.GUARD_WIDTH), np.int64)
    guard_words[:, : y.G_BOUNDS] = guards[:, : y.G_BOUNDS]
    guard_words[:, y.G_PREDICATE] = program_number.predicate[guards[:, y.G_PREDICATE]]
    guard_words[:, y.G_CODE : y.G_FREED] = with_image_offsets(guards[:, y.G_CODE : y.G_FREED], Section.GUARDS)
    _set_range(guard_words, y.G_BOUNDS, at_guard_bounds, y.BOUND_WIDTH, guards[:, y.G_BOUNDS])
    action_words, read = actions.copy(), actions[:, y.A_COLUMN]
    # -1 and below are derived columns; np.where also looks up the values that it drops, so both must be in range.
    action_words[:, y.A_COLUMN] = np.where(
        read < 0, program_number.derived[np.maximum(-1 - read, -1)], program_number.column[np.maximum(read, 0)]
    )
    header = np.array([at_states, at_constants])
    parts_in_order = [
        header, state_words, wait_words, guard_words, bounds, guard_bounds, marks, action_words,
        with_image_offsets(measures, Section.MEASURES), code, constants,
    ]  # fmt: skip
    words = np.concatenate([part.reshape(-1) for part in parts_in_order])
    assert len(words) == at_constants + len(constants), "every part lies where the offsets say"
    return Image(words, at_measures, at_code, first_state)


def _set_range(words: Int64, column: int, offset: int, width: int, counts: Int64) -> None:
    """Write the start and end of the rows that belong to each row. These rows are consecutive."""
    words[:, column] = offset + width * range_starts(counts)
    words[:, column + 1] = words[:, column] + width * counts
