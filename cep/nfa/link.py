"""Compiled pieces of the rules of one key domain → Program.

    pieces ──Gathered──▶ sections of all rules ──▶ predicates, vector code, columns, image

Every number of a piece becomes a number of the program: a number of its own by adding the start of its part, a shared
number by a table. This is arithmetic on the arrays of all rules at once, so a change of one rule among thousands costs
a few milliseconds. Equal predicates of different rules become one, and so do equal instructions. Shared items are
numbered in the order in which rules use them. So the same rules give the same program on every machine, independent of
earlier compilations in the process.
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
from cep.nfa.image import Gathered, Image, Places, image_of, numbered, segments, starts_of
from cep.nfa.piece import RULE_MACHINE, RULE_STREAM, Piece, Section
from cep.nfa.predicates import PredicatePlan, choose
from cep.nfa.prefixes import SharedStart, Symbols, shared_starts, without_starts
from cep.nfa.program import Program, RulePrograms

_OPS = 64  # above every opcode


def _positions(table: dict[int, int]) -> Int64:
    positions = np.full(_OPS, -1, np.int64)
    positions[list(table)] = list(table.values())
    return positions


_CONSTANT, _COLUMN = _positions(CONSTANT_OPERAND), _positions(COLUMN_OPERAND)
_REGISTERS = np.array([[operand in register_positions(op) for operand in range(3)] for op in range(_OPS)])


@dataclass(frozen=True, slots=True)
class GatheredPredicates:
    """The distinct predicates of a program, in numbers of the process, found by index or evaluated for each event.

    Shapes: place int64 as in Places; dense int64[D] are the numbers of the evaluated predicates, dense_code int64[n, 5]
    their code and results int64[D] the instruction of each result; groups int64[G] and their sizes int64[G]; entries
    int64[E, INDEX_ENTRY_WIDTH] by group, with code offsets relative to the first instruction of `rest`.
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
    """The code of a program over columns, in numbers of the process: rows (instruction, op, a, b, c) int64[n, 5].

    Each instruction is there once, at the index `place`, as in Places. `derived` are the instructions of derived
    columns.
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


def link(
    schema: Schema, key_fields: tuple[str, ...], rules: Sequence[DeployedRule], pieces: Sequence[Piece],
    symbols: Symbols,
) -> Program:  # fmt: skip
    """Combine the pieces of rules that share a key; `symbols` are the ones that compiled them."""
    parts = Gathered(pieces)
    predicates = gather_predicates(parts, symbols)
    vector = gather_vector(parts, symbols, predicates)
    code = np.concatenate([parts.rows(Section.CODE), predicates.rest])
    constants = [constants_of(code[:, 0], code[:, 2:]), constants_of(vector.code[:, 1], vector.code[:, 2:])]
    constant_ids, constant_place, _ = numbered(
        np.concatenate([*constants, predicates.entries[:, y.INDEX_CONSTANT]]), len(symbols.constants)
    )
    values = [symbols.constants.things[number] for number in constant_ids.tolist()]
    used_columns = parts.rows(Section.COLUMNS)
    column_ids, column_place, _ = numbered(used_columns[:, 0] - y.COLUMNS_FIXED, len(symbols.columns))
    place = Places(
        constant_place,
        np.concatenate([np.arange(y.COLUMNS_FIXED), y.COLUMNS_FIXED + column_place]),
        predicates.place,
        np.where(vector.derived_place < 0, -1, y.COLUMNS_FIXED + len(column_ids) + vector.derived_place),
    )
    code[:, 2:] = translated(code[:, 0], code[:, 2:], place)
    slots = np.array([-1 if is_text else value for is_text, value in values], np.int64)
    image = image_of(parts, place, code, slots)
    rule_rows = parts.rows(Section.RULE)
    row_registers, start_runs = _first_runs(parts, image)
    relevance_first, relevance = _relevance(parts, place)
    streams, stream_of = _streams(rule_rows[:, RULE_STREAM], symbols, len(schema.event_types))
    rows = _rows(rule_rows, parts, image, rules)
    rows[:, y.R_COUNTS] = stream_of + 1
    handovers = _handovers(rules)
    filled = finish_predicates(predicates, place, image.at_code + MACHINE_WIDTH * int(parts.counts(Section.CODE).sum()))
    shared = _shared(parts, handovers, rows, place, symbols, max(filled.count, 1))
    relevance_first, relevance = without_starts(relevance_first, relevance, shared)
    states_counts = parts.counts(Section.STATES).tolist()
    places = zip((rule.identity for rule in rules), image.first_state.tolist(), states_counts, strict=True)
    in_shadow = {rule.rule_id for rule in rules if rule.status == "shadow"}
    described = _described(symbols, column_ids, place, used_columns)
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
        vector=finish_vector(vector, predicates, place),
        predicates=filled,
        relevance_first=relevance_first,
        relevance=relevance,
        prefix_first=np.concatenate([[0], np.cumsum(parts.counts(Section.PREFIXES))]),
        prefixes=place.predicate[parts.rows(Section.PREFIXES)[:, 1]].astype(np.int32),
        streams=streams,
        text_constants=tuple((slot, str(value)) for slot, (is_text, value) in enumerate(values) if is_text),
        start_runs=start_runs,
        row_registers=np.pad(row_registers, ((0, len(shared)), (0, 0))),
        width=start_runs.shape[1],
        machine_size=int(rule_rows[:, RULE_MACHINE].max(initial=1)),
        measures_max=int(parts.counts(Section.MEASURES).max(initial=0)),
        shared=shared,
        fingerprint=fingerprint(rules, schema, (start.place[0] for start in shared)),
        handovers=handovers,
        compared=tuple(number for number, rule in enumerate(rules) if rule.rule_id in in_shadow),
    )


def _described(
    symbols: Symbols, column_ids: Int64, place: Places, used_columns: Int64
) -> list[tuple[str, int, Call | History | None, bool]]:
    retained = set(used_columns[used_columns[:, 1] == 1, 0].tolist())
    columns = []
    for number in column_ids.tolist():
        name, source, function = symbols.columns.things[number]
        source_place = source if source < 0 else int(place.column[source])
        columns.append((name, source_place, function, y.COLUMNS_FIXED + number in retained))
    return columns


def _rows(rule_rows: Int64, parts: Gathered, image: Image, rules: Sequence[DeployedRule]) -> Int64:
    """Fill the table of rules for the kernels: int64[rules, RULE_WIDTH]. Offsets become offsets in the program."""
    rows = rule_rows[:, : y.RULE_WIDTH].copy()
    rows[:, y.R_NUMBER] = np.arange(len(rows))
    rows[:, y.R_START_STATE] = image.first_state
    rows[:, y.R_END_STATE] += image.first_state
    first_measure = image.at_measures + y.MEASURE_WIDTH * starts_of(parts.counts(Section.MEASURES))
    rows[:, y.R_MEASURES] = first_measure
    rows[:, y.R_MEASURES_END] = first_measure + y.MEASURE_WIDTH * rule_rows[:, y.R_MEASURES_END]
    rows[:, y.R_FROM_MS] = np.fromiter((rule.from_ms for rule in rules), np.int64, len(rules))
    rows[:, y.R_STARTS_UNTIL_MS] = np.fromiter((rule.starts_until_ms for rule in rules), np.int64, len(rules))
    rows[:, y.R_UNTIL_MS] = np.fromiter((rule.until_ms for rule in rules), np.int64, len(rules))
    return rows


def _shared(
    parts: Gathered, handovers: Sequence[tuple[int, int, int]], rows: Int64, place: Places, symbols: Symbols,
    bitmaps_count: int,
) -> tuple[SharedStart, ...]:  # fmt: skip
    """Find prefixes that rules share, and write the number of the shared prefix into each rule's row."""
    counts = parts.counts(Section.PREFIXES)
    prefixes = np.full((len(counts), int(counts.max(initial=0))), -1, np.int64)
    rule = np.repeat(np.arange(len(counts)), counts)
    prefixes[rule, segments(np.zeros(len(counts), np.int64), counts)] = parts.rows(Section.PREFIXES)[:, 0]
    # Rules with a handover do not share: the owner of a start depends on its time.
    prefixes[[number for _, *both in handovers for number in both]] = -1
    states_count = int(parts.counts(Section.STATES).sum())
    shared = shared_starts(prefixes, rows, place.predicate, states_count, symbols.prefixes.things, bitmaps_count)
    for number, start in enumerate(shared):
        rows[start.rules, y.R_SHARES] = number + 1
    return shared


def _first_runs(parts: Gathered, image: Image) -> tuple[UInt8, Int64]:
    """Return which registers hold rows of the event table, uint8[rules, registers], and runs int64[rules, words]."""
    holds_rows, counts = parts.rows(Section.REGISTERS), parts.counts(Section.REGISTERS)
    rule = np.repeat(np.arange(len(counts)), counts)
    register = segments(np.zeros(len(counts), np.int64), counts)
    row_registers = np.zeros((len(counts), int(counts.max(initial=0))), np.uint8)
    row_registers[rule, register] = holds_rows
    runs = np.zeros((len(counts), y.RUN_HEADER + row_registers.shape[1]), np.int64)
    runs[:, y.RUN_STATE], runs[:, y.RUN_WAITS], runs[:, y.RUN_EXPIRY] = image.first_state, y.EVERY_WAIT, TIME_MS_MAX
    runs[:, [y.RUN_START_ROW, y.RUN_ORDINAL, y.RUN_START_ORDINAL, y.RUN_NODE]] = -1
    runs[:, y.RUN_HEADER :][row_registers != 0] = -1
    return row_registers, runs


def _relevance(parts: Gathered, place: Places) -> tuple[Int32, Int32]:
    """Return the predicates that each rule reacts to, ascending, and the start of each rule's predicates."""
    counts = parts.counts(Section.RELEVANCE)
    numbers = place.predicate[parts.rows(Section.RELEVANCE)]
    order = np.lexsort((numbers, np.repeat(np.arange(len(counts)), counts)))
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), numbers[order].astype(np.int32)


def _streams(stream: Int64, symbols: Symbols, types_count: int) -> tuple[UInt8, Int64]:
    """Return the streams in which rules count positions, uint8[streams, event types], and each rule's stream or -1."""
    used = {number: symbols.streams.things[number] for number in np.unique(stream[stream >= 0]).tolist()}
    streams = sorted(used.values())
    is_in = np.zeros((len(streams), types_count), np.uint8)
    for number, types in enumerate(streams):
        is_in[number, list(types)] = 1
    places = {number: streams.index(types) for number, types in used.items()}
    return is_in, np.array([places.get(number, -1) for number in stream.tolist()], np.int64)


def _handovers(rules: Sequence[DeployedRule]) -> tuple[tuple[int, int, int], ...]:
    """Return (time, giver, taker) for each version of a rule that takes over the open runs of its previous version.

    The giver is an interval that still processes events then: one that ended earlier has no runs left.
    """
    takers = [(number, rule) for number, rule in enumerate(rules) if rule.carries]
    if not takers:
        return ()
    versions: dict[tuple[str, int, str], list[int]] = {}
    for number, rule in enumerate(rules):
        versions.setdefault((rule.rule_id, rule.version, rule.status), []).append(number)
    return tuple(
        sorted(
            (rule.from_ms, giver, taker)
            for taker, rule in takers
            for giver in versions.get((rule.rule_id, rule.carries, rule.status), ())
            if rules[giver].until_ms > rule.from_ms
        )
    )
