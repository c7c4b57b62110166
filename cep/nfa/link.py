"""Compiled pieces of the rules of one key domain → Program.

Every number of a piece becomes a number of the program: a number of its own by adding the start of its part, a shared
number by a table. All of it is arithmetic on the arrays of all rules at once, so a change of one rule among thousands
costs a few milliseconds.

    pieces ──Gathered──▶ sections of all rules ──▶ predicates, vector code, columns, image

Shared items are numbered in the order in which rules use them. So the same rules give the same program on every
machine, independent of earlier compilations in the process.

Tested by: tests/nfa/test_shared.py, tests/nfa/test_compile.py
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cep.base.limits import TIME_MS_MAX
from cep.base.schema import Schema
from cep.kernels import layout as y
from cep.kernels.expressions.opcodes import MACHINE_WIDTH
from cep.kernels.layout import Int32, Int64, UInt8
from cep.lang.ir import Call, History
from cep.nfa.columns import event_columns
from cep.nfa.deployed import DeployedRule, fingerprint
from cep.nfa.gather import Gathered, numbered, segments, starts_of
from cep.nfa.histories import plan_histories
from cep.nfa.image import Image, Places, image_of
from cep.nfa.link_code import (
    constants_of,
    finish_predicates,
    finish_vector,
    gather_predicates,
    gather_vector,
    translated,
)
from cep.nfa.piece import RULE_MACHINE, RULE_STREAM, Piece, Section
from cep.nfa.program import Program, RulePrograms
from cep.nfa.shared import Place, SharedStart, shared_starts, without_starts
from cep.nfa.symbols import Symbols


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
    described = _described(symbols, column_ids, place, used_columns)
    return Program(
        schema=schema,
        key_fields=key_fields,
        rules=RulePrograms(rules, pieces, rows),
        places=(*_places(rules, parts, image), *(start.place for start in shared)),
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
        compared=_compared(rules),
    )


def _described(
    symbols: Symbols, column_ids: Int64, place: Places, used_columns: Int64
) -> list[tuple[str, int, Call | History | None, bool]]:
    """Describe the columns as ColumnMap.described does, in the order of the program."""
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


def _places(rules: Sequence[DeployedRule], parts: Gathered, image: Image) -> list[Place]:
    counts = parts.counts(Section.STATES).tolist()
    return list(zip((rule.identity for rule in rules), image.first_state.tolist(), counts, strict=True))


def _shared(
    parts: Gathered, handovers: Sequence[tuple[int, int, int]], rows: Int64, place: Places, symbols: Symbols,
    bitmaps_count: int,
) -> tuple[SharedStart, ...]:  # fmt: skip
    """Find prefixes that rules share, and write the number of the shared prefix into each rule's row.

    Rules with a handover do not share: the owner of a start depends on its time.
    """
    counts = parts.counts(Section.PREFIXES)
    prefixes = np.full((len(counts), int(counts.max(initial=0))), -1, np.int64)
    rule = np.repeat(np.arange(len(counts)), counts)
    prefixes[rule, segments(np.zeros(len(counts), np.int64), counts)] = parts.rows(Section.PREFIXES)[:, 0]
    prefixes[[number for _, *both in handovers for number in both]] = -1
    states_count = int(parts.counts(Section.STATES).sum())
    shared = shared_starts(prefixes, rows, place.predicate, states_count, symbols.prefixes.things, bitmaps_count)
    for number, start in enumerate(shared):
        rows[start.rules, y.R_SHARES] = number + 1
    return shared


def _first_runs(parts: Gathered, image: Image) -> tuple[UInt8, Int64]:
    """Build the run with which each rule starts, and mark the registers of runs that hold a row of the event table.

    Returns: uint8[rules, registers], and the start runs int64[rules, words of a run].
    """
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
    """Return the sets of event types in which rules count positions, and the set of each rule, -1 for none.

    Shapes: uint8[streams, event types]; int64[rules].
    """
    used = {number: symbols.streams.things[number] for number in np.unique(stream[stream >= 0]).tolist()}
    streams = sorted(used.values())
    is_in = np.zeros((len(streams), types_count), np.uint8)
    for number, types in enumerate(streams):
        is_in[number, list(types)] = 1
    places = {number: streams.index(types) for number, types in used.items()}
    return is_in, np.array([places.get(number, -1) for number in stream.tolist()], np.int64)


def _compared(rules: Sequence[DeployedRule]) -> tuple[int, ...]:
    in_shadow = {rule.rule_id for rule in rules if rule.status == "shadow"}
    return tuple(number for number, rule in enumerate(rules) if rule.rule_id in in_shadow) if in_shadow else ()


def _handovers(rules: Sequence[DeployedRule]) -> tuple[tuple[int, int, int], ...]:
    """Return (time, giver, taker) for each version of a rule that takes over the open runs of its previous version.

    It takes them from the interval of the previous version that still processes events when it starts. An interval that
    ended earlier, by a pause or a live version, has no runs left.
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
