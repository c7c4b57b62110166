"""Deployed rules of one key domain → Program, in two halves: `compile_piece` for each single rule, `link` for all.

    pattern ──build──▶ automaton ──compile_tables──▶ tables, code ──pack──▶ piece ─┐
    pattern ─────────────────────────── … ─────────────────────────────────▶ piece ─┴─link──▶ program

A piece is compiled once and cached. So a changed rule costs its own compilation and the addition of offsets. Nothing is
compiled to machine code here.

Tested by: tests/nfa/test_compile.py, tests/nfa/test_shared.py
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from cep.base.limits import PIECES_CACHED_MAX, SYMBOLS_MAX
from cep.base.schema import Schema
from cep.lang.ir import PatternIR
from cep.nfa.deployed import DeployedRule
from cep.nfa.given_lists import in_place_problems
from cep.nfa.link import link
from cep.nfa.piece import Piece, pack
from cep.nfa.positions import build
from cep.nfa.predicates import write_predicates
from cep.nfa.program import Program
from cep.nfa.refusal import CompileError
from cep.nfa.rule_tables import compile_tables
from cep.nfa.symbols import Symbols


def compile_piece(pattern: PatternIR, schema: Schema, symbols: Symbols) -> Piece:
    """Compile a single bound pattern. Raises: CompileError.

    | pass | converts | in |
    | --- | --- | --- |
    | build | structure → positions and their waits | positions.py |
    | compile_tables | conditions → conjuncts → predicates and code → tables | rule_tables.py, simplify.py, code.py |
    | write_predicates | predicates → code that evaluates them, atoms that look them up | predicates.py |
    | pack | the rule's own numbers → shared numbers → one array of words | piece.py |
    """
    automaton = build(pattern.structure)
    rule = compile_tables(pattern, schema, automaton)
    predicates = write_predicates(rule.predicates, rule.vector, rule.scalar)
    return pack(rule, predicates, symbols)


class Compiler:
    """Compiles rules for one schema, and caches the pieces.

    The cache identifies a pattern by its object: a rulebook passes on unchanged patterns, and comparing trees would
    cost as much as compiling them. Threads may share a compiler.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._symbols = Symbols()
        self._symbols_first = 0
        self._pieces: OrderedDict[int, tuple[PatternIR, Piece]] = OrderedDict()
        self._lock = threading.Lock()

    def program(self, key_fields: tuple[str, ...], rules: Sequence[DeployedRule]) -> Program:
        """Compile rules that share a key into one program. Raises: CompileError as `check` does.

        The pieces of known rules come from a cache.
        """
        assert all(rule.pattern.key == key_fields for rule in rules), "rules of one program share their key"
        with self._lock:
            is_full = len(self._symbols) > SYMBOLS_MAX + self._symbols_first
            if is_full:
                self._symbols = Symbols()
                self._pieces.clear()
            pieces = [self._piece(rule.pattern) for rule in rules]
            if is_full:  # the symbols of the rules in force do not count towards the limit
                self._symbols_first = len(self._symbols)
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


_COMPILERS_CACHED = 4  # a process has one schema; tests and tools have more
_COMPILERS: OrderedDict[int, tuple[Schema, Compiler]] = OrderedDict()
_LOCK = threading.Lock()


def compiler_of(schema: Schema) -> Compiler:
    """Return the compiler of this process for a schema."""
    with _LOCK:
        if id(schema) not in _COMPILERS:
            _COMPILERS[id(schema)] = schema, Compiler(schema)
            while len(_COMPILERS) > _COMPILERS_CACHED:
                _COMPILERS.popitem(last=False)
        return _COMPILERS[id(schema)][1]


def problems(pattern: PatternIR, schema: Schema) -> list[str]:
    """Return the reasons why a checked, bound pattern cannot be compiled; empty if it can.

    They are limits of the automaton, and wrong entries of a list that the rule writes in place.
    """
    try:
        compiler_of(schema).check(pattern)
    except CompileError as error:
        return [str(error)]
    return in_place_problems(pattern)


def compile_rules(schema: Schema, key_fields: tuple[str, ...], rules: Sequence[DeployedRule]) -> Program:
    """Compile bound rules that share a key.

    Raises: CompileError for a rule that `problems` would have named.
    Cost: milliseconds for each rule that is new to the process, and a few milliseconds for thousands that are not.
    """
    return compiler_of(schema).program(key_fields, rules)
