"""Deployed rules of one key domain → Program.

A rule is compiled alone, once (piece.py): structure → positions (positions.py), conditions → conjuncts (simplify.py) →
code (code.py) → tables (rule_tables.py). A program is put together from such pieces (link.py), so that a changed rule
costs its own compilation and the addition of offsets. Nothing is compiled to machine code here.
Tested by: tests/nfa/test_compile.py, tests/nfa/test_link.py
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from cep.base.limits import PIECES_KEPT_MAX, SYMBOLS_MAX
from cep.base.schema import Schema
from cep.lang.ir import PatternIR
from cep.nfa.deployed import DeployedRule
from cep.nfa.given_lists import in_place_problems
from cep.nfa.link import link
from cep.nfa.piece import Piece, compile_piece
from cep.nfa.program import Program
from cep.nfa.refusal import CompileError
from cep.nfa.symbols import Symbols


class Compiler:
    """Compiles rules for one schema, and keeps the pieces that it has made.

    A pattern is known by being the same object: a rulebook hands on those that have not changed, and to compare trees
    would cost as much as to compile them. Threads may share a compiler.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._symbols = Symbols()
        self._symbols_first = 0
        self._pieces: OrderedDict[int, tuple[PatternIR, Piece]] = OrderedDict()
        self._lock = threading.Lock()

    def program(self, key_fields: tuple[str, ...], rules: Sequence[DeployedRule]) -> Program:
        """The program of bound rules that share a key. Raises: CompileError for a rule that `check` would refuse."""
        assert all(rule.pattern.key == key_fields for rule in rules), "rules of one program share their key"
        with self._lock:
            is_full = len(self._symbols) > SYMBOLS_MAX + self._symbols_first
            if is_full:
                self._symbols = Symbols()
                self._pieces.clear()
            pieces = [self._piece(rule.pattern) for rule in rules]
            if is_full:  # what the rules in force need is not in the way of what is to come
                self._symbols_first = len(self._symbols)
            while len(self._pieces) > max(PIECES_KEPT_MAX, len(rules)):
                self._pieces.popitem(last=False)
            return link(self._schema, key_fields, rules, pieces, self._symbols)

    def check(self, pattern: PatternIR) -> None:
        """Compile a pattern that will be wanted soon. Raises: CompileError."""
        with self._lock:
            self._piece(pattern)

    def _piece(self, pattern: PatternIR) -> Piece:
        found = self._pieces.get(id(pattern))
        if found is not None:  # the pattern is held beside its piece, so that its id is nobody else's
            self._pieces.move_to_end(id(pattern))
            return found[1]
        piece = compile_piece(pattern, self._schema, self._symbols)
        self._pieces[id(pattern)] = pattern, piece
        return piece


_COMPILERS_KEPT = 4  # a process has one schema; tests and tools have more
_COMPILERS: OrderedDict[int, tuple[Schema, Compiler]] = OrderedDict()
_LOCK = threading.Lock()


def compiler_of(schema: Schema) -> Compiler:
    """The compiler of this process for a schema."""
    with _LOCK:
        if id(schema) not in _COMPILERS:
            _COMPILERS[id(schema)] = schema, Compiler(schema)
            while len(_COMPILERS) > _COMPILERS_KEPT:
                _COMPILERS.popitem(last=False)
        return _COMPILERS[id(schema)][1]


def problems(pattern: PatternIR, schema: Schema) -> list[str]:
    """Why a checked, bound pattern cannot be compiled: limits of the automaton, wrong entries of a list that the rule
    gives in place. Empty if it can."""
    try:
        compiler_of(schema).check(pattern)
    except CompileError as error:
        return [str(error)]
    return in_place_problems(pattern)


def compile_rules(schema: Schema, key_fields: tuple[str, ...], rules: Sequence[DeployedRule]) -> Program:
    """Compile bound rules that share a key.

    Raises: CompileError for a rule that `problems` would have named.
    Cost: milliseconds for each rule that is new to the process, and a few for thousands that are not.
    """
    return compiler_of(schema).program(key_fields, rules)
