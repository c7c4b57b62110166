"""Compiled pieces of the rules of one key domain → Program.

    pieces ──JoinedPieces──▶ sections of all rules ──▶ predicates, vector code, columns, image

Every number of a piece becomes a number of the program: a number of its own by adding the start of its part, a shared
number by a table. This is arithmetic on the arrays of all rules at once, so a change of one rule among thousands costs
a few milliseconds. Shared items are numbered in the order in which rules use them, so the same rules give the same
program on every machine, independent of earlier compilations in the process.
Tested by: tests/nfa/test_shared.py, tests/nfa/test_compile.py, tests/nfa/test_predicates.py
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cep.base.limits import TIME_MS_MAX
from cep.base.schema import Schema, Type
from cep.kernels import layout as y
from cep.kernels.expressions.opcodes import MACHINE_WIDTH
from cep.kernels.layout import Int32, Int64, UInt8
from cep.lang.ir import Call, History
from cep.nfa.code import COLUMN_OPERAND, CONSTANT_OPERAND, VectorProgram, allocate, register_positions
from cep.nfa.columns import event_columns
from cep.nfa.deployed import DeployedRule, fingerprint
from cep.nfa.histories import plan_histories
from cep.nfa.image import Image, JoinedPieces, ProgramNumbers, assign_numbers, image_of, join_ranges, range_starts
from cep.nfa.piece import RULE_MACHINE, RULE_STREAM, Piece, Section
from cep.nfa.predicates import PredicatePlan, choose
from cep.nfa.prefixes import SharedStart, Symbols, shared_starts, without_deferred
from cep.nfa.program import Program, RulePrograms

_OPS = 64  # above every opcode


def _positions(table: dict[int, int]) -> Int64:
    positions = np.full(_OPS, -1, np.int64)
    positions[list(table)] = list(table.values())
    return positions


_CONSTANT, _COLUMN = _positions(CONSTANT_OPERAND), _positions(COLUMN_OPERAND)
_REGISTERS = np.array([[operand in register_positions(op) for operand in range(3)] for op in range(_OPS)])


@dataclass(frozen=True, slots=True)
class JoinedPredicates:
    """The distinct conditions of single events ("predicates") of all rules of a program.

    An index on a column finds most predicates by a constant that they compare with; the rest of such a predicate is
    checked for the events that the index finds. The other D predicates are evaluated for each event. A shared number
    identifies a predicate in the whole process; a program has its own numbers 0, 1, 2, … for the ones that it uses.
    """

    count: int
    program_number: Int64  # the number in the program, by shared number; -1 for an unused predicate.
    evaluated: Int64  # int64[D], the program's numbers of the evaluated predicates.
    evaluated_code: Int64  # int64[instructions, 5], rows as in JoinedVector.code
    results: Int64  # int64[D], the instruction that computes each evaluated predicate
    groups: list[tuple[int, int]]  # (kind of index, column) of each index
    sizes: Int64  # the number of entries of each index.
    entries: Int64  # int64[E, INDEX_ENTRY_WIDTH] by index; a predicate has one of the E entries for each constant
    rest: Int64  # the code for the rests of predicates; the code offsets of entries count from its first instruction


@dataclass(frozen=True, slots=True)
class JoinedVector:
    """The code that a program runs over columns of events: its derived columns and evaluated predicates, each once.

    Equal instructions of all rules have one number in the process. A derived column holds an expression of one event.
    """

    code: Int64  # int64[n, 5]: number of the instruction, op, operands a, b, c
    row_of_instruction: Int64  # its row in `code`, by number of an instruction; -1 for an unused one
    derived: tuple[int, ...]  # the instruction that computes each derived column
    derived_types: tuple[Type, ...]
    derived_number: Int64  # the number of a derived column in the program, by its shared number; -1 for an unused one


def join_predicates(joined: JoinedPieces, symbols: Symbols) -> JoinedPredicates:
    """Assign numbers to the distinct predicates of all rules, and choose the ones that an index finds.

    An atom is a comparison in a predicate that an index can answer; the rest are the predicate's other comparisons.
    """
    shared_numbers, event_types, code_lengths, atoms_counts = joined.rows(Section.PREDICATES).T
    ids, program_number, first = assign_numbers(shared_numbers, len(symbols.predicates))  # first: row of first use
    atom_groups, constants_counts, rest_lengths, rest_results = joined.rows(Section.ATOMS).T
    atoms = join_ranges(range_starts(atoms_counts)[first], atoms_counts[first])  # the rows of each predicate's atoms
    predicate_of_atom = np.repeat(np.arange(len(ids)), atoms_counts[first])
    chosen = choose(predicate_of_atom, atom_groups[atoms], len(ids))  # the atom for the index; -1: evaluated by code
    evaluated, indexed = np.flatnonzero(chosen < 0), np.flatnonzero(chosen >= 0)
    index_atoms = atoms[chosen[indexed]]
    index_rest_lengths = rest_lengths[index_atoms]
    rest_first = np.where(index_rest_lengths > 0, range_starts(index_rest_lengths), -1)
    groups, group_number, _ = assign_numbers(atom_groups[index_atoms], len(symbols.groups))
    group = group_number[atom_groups[index_atoms]]
    order = np.argsort(group, kind="stable")
    counts = constants_counts[index_atoms][order]
    entries = np.empty((int(counts.sum()), y.INDEX_ENTRY_WIDTH), np.int64)
    constants = join_ranges(range_starts(constants_counts)[index_atoms[order]], counts)
    entries[:, y.INDEX_CONSTANT] = joined.rows(Section.VALUES)[constants]
    per_predicate = {
        y.INDEX_PREDICATE: indexed,
        y.INDEX_TYPE: event_types[first][indexed],
        y.INDEX_CODE: rest_first,
        y.INDEX_CODE_END: np.where(index_rest_lengths > 0, rest_first + index_rest_lengths, -1),
        y.INDEX_RESULT: rest_results[index_atoms],
    }
    for column, of_predicate in per_predicate.items():
        entries[:, column] = np.repeat(of_predicate[order], counts)
    code, code_first = joined.rows(Section.PREDICATE_CODE), range_starts(code_lengths)
    code_rows = first[evaluated]
    return JoinedPredicates(
        count=len(ids),
        program_number=program_number,
        evaluated=evaluated,
        evaluated_code=code[join_ranges(code_first[code_rows], code_lengths[code_rows])],
        results=code[code_first[code_rows] + code_lengths[code_rows] - 1, 0],
        groups=[symbols.groups.items[number] for number in groups.tolist()],
        sizes=np.bincount(np.repeat(group[order], counts), minlength=len(groups)),
        entries=entries,
        rest=joined.rows(Section.REST_CODE)[join_ranges(range_starts(rest_lengths)[index_atoms], index_rest_lengths)],
    )


def join_vector(joined: JoinedPieces, symbols: Symbols, predicates: JoinedPredicates) -> JoinedVector:
    """Join the code of derived columns (expressions of one event) and evaluated predicates, each instruction once."""
    shared_numbers, code_lengths = joined.rows(Section.DERIVED).T
    # Derived columns: the used numbers of the process, the program's number of each, and the row of its first use.
    used_derived, derived_number, first = assign_numbers(shared_numbers, len(symbols.derived))
    code_rows = join_ranges(range_starts(code_lengths)[first], code_lengths[first])
    code = np.concatenate([joined.rows(Section.DERIVED_CODE)[code_rows], predicates.evaluated_code])
    _, row_of_instruction, first_rows = assign_numbers(code[:, 0], len(symbols.instructions))  # column 0: its number
    derived = [symbols.derived.items[number] for number in used_derived.tolist()]
    return JoinedVector(
        code=code[first_rows],
        row_of_instruction=row_of_instruction,
        derived=tuple(instruction for instruction, _ in derived),
        derived_types=tuple(type_ for _, type_ in derived),
        derived_number=derived_number,
    )


def constants_of(op: Int64, operands: Int64) -> Int64:
    """Return the constants that instructions name, in order."""
    named = np.flatnonzero(_CONSTANT[op] >= 0)
    return operands[named, _CONSTANT[op[named]]]


def translated(op: Int64, operands: Int64, program_number: ProgramNumbers) -> Int64:
    """Replace operands by the program's numbers of constants and columns."""
    renumbered = operands.copy()
    for position, numbers in ((_CONSTANT, program_number.constant), (_COLUMN, program_number.column)):
        named = np.flatnonzero(position[op] >= 0)
        operand = position[op[named]]
        renumbered[named, operand] = numbers[operands[named, operand]]
    return renumbered


def finish_predicates(predicates: JoinedPredicates, program_number: ProgramNumbers, at_rest: int) -> PredicatePlan:
    """Return the plan for an image in which the code of entries begins at an offset."""
    entries = predicates.entries.copy()
    entries[:, y.INDEX_CONSTANT] = program_number.constant[entries[:, y.INDEX_CONSTANT]]
    coded = entries[:, y.INDEX_CODE] >= 0
    for column in (y.INDEX_CODE, y.INDEX_CODE_END):
        entries[coded, column] = at_rest + MACHINE_WIDTH * entries[coded, column]
    ends = np.cumsum(predicates.sizes)
    kinds = np.array(predicates.groups, np.int64).reshape(-1, 2)
    groups = np.column_stack([kinds[:, 0], program_number.column[kinds[:, 1]], ends - predicates.sizes, ends])
    return PredicatePlan(predicates.count, predicates.evaluated.astype(np.int32), groups, entries)


def finish_vector(vector: JoinedVector, predicates: JoinedPredicates, program_number: ProgramNumbers) -> VectorProgram:
    """Return the code with machine registers."""
    op = vector.code[:, 1]
    operands = translated(op, vector.code[:, 2:], program_number)
    is_register = _REGISTERS[op]
    operands[is_register] = vector.row_of_instruction[operands[is_register]]
    code = np.column_stack([op, np.arange(len(op)), operands])
    derived = vector.row_of_instruction[list(vector.derived)]
    return _allocated(code.tobytes(), vector.row_of_instruction[predicates.results].tobytes(), derived.tobytes())


@lru_cache(64)
def _allocated(code: bytes, predicates: bytes, derived: bytes) -> VectorProgram:
    """Return an equal earlier code: a change of one rule rarely changes the code that all rules share."""
    rows = np.frombuffer(code, np.int64).reshape(-1, MACHINE_WIDTH).tolist()
    results = (np.frombuffer(data, np.int64).tolist() for data in (predicates, derived))
    return allocate([(row[0], row[1], row[2], row[3], row[4]) for row in rows], *results)


def link(
    schema: Schema, key_fields: tuple[str, ...], rules: Sequence[DeployedRule], pieces: Sequence[Piece],
    symbols: Symbols,
) -> Program:  # fmt: skip
    """Combine the pieces of rules that share a key; `symbols` are the ones that compiled them."""
    joined = JoinedPieces(pieces)
    predicates = join_predicates(joined, symbols)
    vector = join_vector(joined, symbols, predicates)
    code = np.concatenate([joined.rows(Section.CODE), predicates.rest])
    constants = [constants_of(code[:, 0], code[:, 2:]), constants_of(vector.code[:, 1], vector.code[:, 2:])]
    constant_ids, constant_number, _ = assign_numbers(
        np.concatenate([*constants, predicates.entries[:, y.INDEX_CONSTANT]]), len(symbols.constants)
    )
    values = [symbols.constants.items[number] for number in constant_ids.tolist()]
    used_columns = joined.rows(Section.COLUMNS)
    column_ids, column_number, _ = assign_numbers(used_columns[:, 0] - y.COLUMNS_FIXED, len(symbols.columns))
    program_number = ProgramNumbers(
        constant_number,
        np.concatenate([np.arange(y.COLUMNS_FIXED), y.COLUMNS_FIXED + column_number]),
        predicates.program_number,
        np.where(vector.derived_number < 0, -1, y.COLUMNS_FIXED + len(column_ids) + vector.derived_number),
    )
    code[:, 2:] = translated(code[:, 0], code[:, 2:], program_number)
    slots = np.array([-1 if is_text else value for is_text, value in values], np.int64)
    image = image_of(joined, program_number, code, slots)
    rule_rows = joined.rows(Section.RULE)
    row_registers, start_runs = _first_runs(joined, image)
    relevance_first, relevance = _relevance(joined, program_number)
    streams, stream_of = _streams(rule_rows[:, RULE_STREAM], symbols, len(schema.event_types))
    rows = _rule_rows(rule_rows, joined, image, rules)
    rows[:, y.R_COUNTS] = stream_of + 1
    handovers = _handovers(rules)
    at_rest = image.at_code + MACHINE_WIDTH * int(joined.counts(Section.CODE).sum())
    filled = finish_predicates(predicates, program_number, at_rest)
    shared = _shared_prefixes(joined, handovers, rows, program_number, symbols, max(filled.count, 1))
    relevance_first, relevance = without_deferred(relevance_first, relevance, shared)
    states_counts = joined.counts(Section.STATES).tolist()
    places = zip((rule.identity for rule in rules), image.first_state.tolist(), states_counts, strict=True)
    in_shadow = {rule.rule_id for rule in rules if rule.status == "shadow"}
    described = _described(symbols, column_ids, program_number, used_columns)
    return Program(
        schema=schema,
        key_fields=key_fields,
        rules=RulePrograms(rules, pieces, rows),
        places=(*places, *(start.place for start in shared)),
        columns=event_columns(schema.columns(), described, vector.derived_types),
        histories=plan_histories(
            schema, {n: c[2] for n, c in enumerate(described, start=y.COLUMNS_FIXED) if isinstance(c[2], History)}
        ),
        image=image.words,
        vector=finish_vector(vector, predicates, program_number),
        predicates=filled,
        relevance_first=relevance_first,
        relevance=relevance,
        prefix_first=np.concatenate([[0], np.cumsum(joined.counts(Section.PREFIXES))]),
        prefixes=program_number.predicate[joined.rows(Section.PREFIXES)[:, 1]].astype(np.int32),
        streams=streams,
        text_constants=tuple((slot, str(value)) for slot, (is_text, value) in enumerate(values) if is_text),
        start_runs=start_runs,
        row_registers=np.pad(row_registers, ((0, len(shared)), (0, 0))),
        width=start_runs.shape[1],
        machine_size=int(rule_rows[:, RULE_MACHINE].max(initial=1)),
        measures_max=int(joined.counts(Section.MEASURES).max(initial=0)),
        shared=shared,
        fingerprint=fingerprint(rules, schema, (start.place[0] for start in shared)),
        handovers=handovers,
        compared=tuple(number for number, rule in enumerate(rules) if rule.rule_id in in_shadow),
    )


def _described(
    symbols: Symbols, column_ids: Int64, program_number: ProgramNumbers, used_columns: Int64
) -> list[tuple[str, int, Call | History | None, bool]]:
    retained = set(used_columns[used_columns[:, 1] == 1, 0].tolist())
    columns = []
    for number in column_ids.tolist():
        name, source, function = symbols.columns.items[number]
        source_number = source if source < 0 else int(program_number.column[source])
        columns.append((name, source_number, function, y.COLUMNS_FIXED + number in retained))
    return columns


def _rule_rows(rule_rows: Int64, joined: JoinedPieces, image: Image, rules: Sequence[DeployedRule]) -> Int64:
    """Fill the table of rules for the kernels, int64[rules, RULE_WIDTH]: counts in `rule_rows` become offsets.

    They are offsets in the image, which has the words of all compiled rules. A measure is a value that matches emit. A
    rule processes events in [from, until). From `starts_until` on, it begins no match."""
    rows = rule_rows[:, : y.RULE_WIDTH].copy()
    rows[:, y.R_NUMBER] = np.arange(len(rows))
    rows[:, y.R_START_STATE] = image.first_state
    rows[:, y.R_END_STATE] += image.first_state  # before: the number of the rule's NFA states
    first_measure = image.at_measures + y.MEASURE_WIDTH * range_starts(joined.counts(Section.MEASURES))
    rows[:, y.R_MEASURES] = first_measure
    rows[:, y.R_MEASURES_END] = first_measure + y.MEASURE_WIDTH * rule_rows[:, y.R_MEASURES_END]  # their count
    rows[:, y.R_FROM_MS] = np.fromiter((rule.from_ms for rule in rules), np.int64, len(rules))
    rows[:, y.R_STARTS_UNTIL_MS] = np.fromiter((rule.starts_until_ms for rule in rules), np.int64, len(rules))
    rows[:, y.R_UNTIL_MS] = np.fromiter((rule.until_ms for rule in rules), np.int64, len(rules))
    return rows


def _shared_prefixes(
    joined: JoinedPieces, handovers: Sequence[tuple[int, int, int]], rows: Int64, program_number: ProgramNumbers,
    symbols: Symbols, bitmaps_count: int,
) -> tuple[SharedStart, ...]:  # fmt: skip
    """Find the prefixes (first conditions of patterns) that rules share, so that their events are stored only once.

    A rule's row gets the number of its shared prefix. `joined`: the tables of all compiled rules. A handover is (time,
    giver, taker): a rule version gives its open runs to another. `bitmaps_count` bitmaps precede the ones of prefixes.
    """
    counts = joined.counts(Section.PREFIXES)
    prefixes = np.full((len(counts), int(counts.max(initial=0))), -1, np.int64)
    rule = np.repeat(np.arange(len(counts)), counts)
    length = 1 + join_ranges(np.zeros(len(counts), np.int64), counts)  # 1, 2, … for the prefixes of each rule
    prefixes[rule, length - 1] = joined.rows(Section.PREFIXES)[:, 0]
    # Versions that hand over runs share no prefix: before the handover a run belongs to the giver, later to the taker.
    prefixes[[number for _, *giver_and_taker in handovers for number in giver_and_taker]] = -1
    states_count = int(joined.counts(Section.STATES).sum())
    prefix_symbols = symbols.prefixes.items
    shared = shared_starts(prefixes, rows, program_number.predicate, states_count, prefix_symbols, bitmaps_count)
    for number, start in enumerate(shared):
        rows[start.rules, y.R_SHARES] = number + 1
    return shared


def _first_runs(joined: JoinedPieces, image: Image) -> tuple[UInt8, Int64]:
    """Return for each rule which registers of its runs hold rows of events (1 or 0), and the content of a new run.

    A run has a header and registers (numbers that it keeps). Its waits (transitions) are all open in the beginning.
    Shapes: uint8[rules, registers] and int64[rules, RUN_HEADER + registers]."""
    holds_rows, counts = joined.rows(Section.REGISTERS), joined.counts(Section.REGISTERS)
    rule = np.repeat(np.arange(len(counts)), counts)
    register = join_ranges(np.zeros(len(counts), np.int64), counts)  # 0, 1, 2, … within each rule
    row_registers = np.zeros((len(counts), int(counts.max(initial=0))), np.uint8)
    row_registers[rule, register] = holds_rows
    runs = np.zeros((len(counts), y.RUN_HEADER + row_registers.shape[1]), np.int64)
    runs[:, y.RUN_STATE], runs[:, y.RUN_OPEN_WAITS] = image.first_state, y.EVERY_WAIT
    runs[:, y.RUN_EXPIRY] = TIME_MS_MAX
    runs[:, [y.RUN_START_ROW, y.RUN_ORDINAL, y.RUN_START_ORDINAL, y.RUN_NODE]] = -1  # no event yet
    runs[:, y.RUN_HEADER :][row_registers != 0] = -1  # no row yet
    return row_registers, runs


def _relevance(joined: JoinedPieces, program_number: ProgramNumbers) -> tuple[Int32, Int32]:
    """Return the predicates that each rule reacts to, ascending, and the start of each rule's predicates."""
    counts = joined.counts(Section.RELEVANCE)
    numbers = program_number.predicate[joined.rows(Section.RELEVANCE)]
    order = np.lexsort((numbers, np.repeat(np.arange(len(counts)), counts)))
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), numbers[order].astype(np.int32)


def _streams(stream: Int64, symbols: Symbols, types_count: int) -> tuple[UInt8, Int64]:
    """Return the streams in which rules count positions, uint8[streams, event types], and each rule's stream or -1."""
    used = {number: symbols.streams.items[number] for number in np.unique(stream[stream >= 0]).tolist()}
    streams = sorted(used.values())
    is_in = np.zeros((len(streams), types_count), np.uint8)
    for number, types in enumerate(streams):
        is_in[number, list(types)] = 1
    row_of_stream = {number: streams.index(types) for number, types in used.items()}
    return is_in, np.array([row_of_stream.get(number, -1) for number in stream.tolist()], np.int64)


def _handovers(rules: Sequence[DeployedRule]) -> tuple[tuple[int, int, int], ...]:
    """Return (time, giver, taker) for each rule that takes over the open runs of its earlier version number `carries`.

    Giver and taker are indexes of `rules`. A version occurs there once for each interval in which it was deployed. An
    interval that ended before the taker begins has no runs to give."""
    takers = [(number, rule) for number, rule in enumerate(rules) if rule.carries]
    if not takers:
        return ()
    intervals: dict[tuple[str, int, str], list[int]] = {}
    for number, rule in enumerate(rules):
        intervals.setdefault((rule.rule_id, rule.version, rule.status), []).append(number)  # live or shadow
    return tuple(
        sorted(
            (rule.from_ms, giver, taker)
            for taker, rule in takers
            for giver in intervals.get((rule.rule_id, rule.carries, rule.status), ())
            if rules[giver].until_ms > rule.from_ms
        )
    )
