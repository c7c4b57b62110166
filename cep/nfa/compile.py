"""Deployed rules of one key domain → Program, in two halves: `compile_piece` for each single rule, `link` for all.

    pattern ──build──▶ automaton ──compile_tables──▶ tables, code ──pack──▶ piece ─┐
    pattern ─────────────────────────── … ─────────────────────────────────▶ piece ─┴─link──▶ program

A piece is compiled once and cached. So a changed rule costs its own compilation and the addition of offsets.
Tested by: tests/nfa/test_compile.py, tests/nfa/test_shared.py, tests/lang/golden/diagnostics/
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from cep.base.limits import DIAGNOSTICS_MAX, PIECES_CACHED_MAX, REGISTERS_MAX, SYMBOLS_MAX, WAITS_PER_STATE_MAX
from cep.base.schema import Kind, Schema
from cep.lang.check.bind import bind
from cep.lang.diagnostics import Diagnostic, Span
from cep.lang.ir import Aggregate, ParamDecl, PatternIR, VarField
from cep.lang.load import Checked
from cep.lang.syntax import VariableSyntax
from cep.lang.walk import nodes
from cep.nfa.deployed import DeployedRule
from cep.nfa.link import link
from cep.nfa.lists import given_lists, in_place_problems
from cep.nfa.piece import Piece, pack
from cep.nfa.positions import Automaton, CompileError, build
from cep.nfa.predicates import write_predicates
from cep.nfa.prefixes import Symbols
from cep.nfa.program import Program
from cep.nfa.rule_tables import compile_tables


def compile_piece(pattern: PatternIR, schema: Schema, symbols: Symbols) -> Piece:
    """Compile one pattern to a piece: its tables in one array, which `link` joins with others. Raises: CompileError.

    | pass | its input → its output | file |
    | --- | --- | --- |
    | build | structure → positions, with their waits (transitions to a next position) | positions.py |
    | compile_tables | conditions → predicates (of one event) and code → tables | rule_tables.py, simplify.py, code.py |
    | write_predicates | predicates → code, and comparisons ("atoms") by which an index finds them | predicates.py |
    | pack | numbers of this rule → numbers that all rules share → one array of words | piece.py |
    """
    automaton = build(pattern.structure)
    rule = compile_tables(pattern, schema, automaton)
    predicates = write_predicates(rule.predicates, rule.vector, rule.scalar)  # code for whole columns, for one event
    return pack(rule, predicates, symbols)


class Compiler:
    """Compiles rules for one schema, and caches the pieces.

    The cache identifies a pattern by its object: a rulebook passes on unchanged patterns, and comparing trees would
    cost as much as compiling them. Threads may share a compiler.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._symbols = Symbols()
        self._symbols_after_reset = 0
        self._pieces: OrderedDict[int, tuple[PatternIR, Piece]] = OrderedDict()
        self._lock = threading.Lock()

    def program(self, key_fields: tuple[str, ...], rules: Sequence[DeployedRule]) -> Program:
        """Compile rules that share a key into one program. Raises: CompileError as `check` does.

        Symbols are the numbers of constants, columns, …, that all pieces (compiled patterns) share. They only grow, and
        each program pays for all. So the compiler begins again with none when most belong to former rules."""
        assert all(rule.pattern.key == key_fields for rule in rules), "rules of one program share their key"
        with self._lock:
            is_full = len(self._symbols) > SYMBOLS_MAX + self._symbols_after_reset
            if is_full:
                self._symbols = Symbols()
                self._pieces.clear()
            pieces = [self._piece(rule.pattern) for rule in rules]
            if is_full:  # now the symbols are the ones of the rules in force, which do not count towards the limit
                self._symbols_after_reset = len(self._symbols)
            while len(self._pieces) > max(PIECES_CACHED_MAX, len(rules)):
                self._pieces.popitem(last=False)
            return link(self._schema, key_fields, rules, pieces, self._symbols)

    def check(self, pattern: PatternIR) -> None:
        """Compile a pattern that will soon be needed. Raises: CompileError."""
        with self._lock:
            self._piece(pattern)

    def _piece(self, pattern: PatternIR) -> Piece:
        cached = self._pieces.get(id(pattern))
        if cached is not None:  # the cache holds the pattern, so no other object has its id
            self._pieces.move_to_end(id(pattern))
            return cached[1]
        piece = compile_piece(pattern, self._schema, self._symbols)
        self._pieces[id(pattern)] = pattern, piece
        return piece


@lru_cache(4)  # a process has one schema; tests and tools have more
def compiler_of(schema: Schema) -> Compiler:
    """Return the compiler of this process for a schema."""
    return Compiler(schema)


def problems(pattern: PatternIR, schema: Schema) -> list[str]:
    """Return the reasons why a bound pattern does not compile: limits, and wrong entries of its lists in place."""
    try:
        compiler_of(schema).check(pattern)
    except CompileError as error:
        return [str(error)]
    return in_place_problems(pattern)


def compile_rules(schema: Schema, key_fields: tuple[str, ...], rules: Sequence[DeployedRule]) -> Program:
    """Compile bound rules that share a key. Raises: CompileError for a rule that `problems` would have named."""
    return compiler_of(schema).program(key_fields, rules)


_HELP = {
    "CEP424": "put what follows into a pattern of its own, or leave out the group's window",
    "CEP425": "split the pattern into several, or lower the repetition of its groups",
}
# Registers that one aggregate may need (stddev: offsets, their squares, base, present), and a field of an event.
_AGGREGATE_REGISTERS, _FIELD_REGISTERS = 4, 2


def compilable(checked: Checked) -> Checked:
    """Replace patterns and lists that do not compile by diagnostics. The check before this builds no automaton."""
    refused = {name: _refusal(pattern, checked.schema) for name, pattern in checked.patterns.items()}
    diagnostics = [_diagnostic(name, error, checked) for name, error in refused.items() if error is not None]
    diagnostics += given_lists(checked).diagnostics
    if not diagnostics:
        return checked
    diagnostics_left = max(0, DIAGNOSTICS_MAX - len(checked.diagnostics))
    return replace(
        checked,
        patterns={name: pattern for name, pattern in checked.patterns.items() if refused[name] is None},
        diagnostics=(*checked.diagnostics, *diagnostics[:diagnostics_left]),
        dropped=checked.dropped + len(diagnostics[diagnostics_left:]),  # diagnostics above the limit are only counted
    )


def _refusal(pattern: PatternIR, schema: Schema) -> CompileError | None:
    stand_ins = {p.name: _least(p) for p in pattern.params if p.default is None}
    bound, _ = bind(pattern, stand_ins)
    if bound is None:
        return None  # a structure that needs other arguments; the rule with these arguments is checked
    try:
        if _is_near_a_limit(bound, build(bound.structure)):
            compile_rules(schema, bound.key, (DeployedRule("check", 1, 0, "", bound),))
    except CompileError as error:
        return error
    return None


def _is_near_a_limit(bound: PatternIR, automaton: Automaton) -> bool:
    """Return True if the tables could be too large. An upper bound, so that few patterns need to be compiled."""
    parts = list(nodes(bound))
    registers = sum(p.loops for p in automaton.positions) + automaton.groups_count
    registers += _AGGREGATE_REGISTERS * sum(isinstance(p, Aggregate) for p in parts)
    registers += _FIELD_REGISTERS * sum(isinstance(p, VarField) for p in parts)
    flags = (len(p.waits) + sum(g.moment == "frees" for w in p.waits for g in w.guards) for p in automaton.positions)
    return registers > REGISTERS_MAX or any(count > WAITS_PER_STATE_MAX for count in flags)


def _least(param: ParamDecl) -> object:
    """Return the argument with which a pattern has the fewest states. If that does not compile, no argument does."""
    if param.type.kind is Kind.ENUM:
        return param.type.symbols[0]
    if param.type.kind is Kind.BOOL:
        return False
    if param.type.kind is Kind.LIST:
        return []
    if param.type.is_text:
        return ""
    if param.type.kind is Kind.DECIMAL:  # its minimum counts the smallest unit, such as cents; its value is a text
        return 0 if param.minimum is None else f"{int(param.minimum) / 10**param.type.scale:.{param.type.scale}f}"
    least = 1 if param.minimum is None else param.minimum  # it may be a count of repetitions, which unroll to states
    return f"{least} ms" if param.type.kind is Kind.DURATION else least


def _diagnostic(name: str, error: CompileError, checked: Checked) -> Diagnostic:
    return Diagnostic(error.code, str(error), _place(name, error.variable, checked), (), _HELP[error.code])


def _place(name: str, variable: str | None, checked: Checked) -> Span:
    """Return the variable in the structure, or the name of the pattern."""
    pattern = checked.resolved.patterns[name]
    spans = (n.span for n in nodes(pattern.structure) if isinstance(n, VariableSyntax) and n.name == variable)
    return next(spans, pattern.span)
