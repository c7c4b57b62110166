"""Deployed rules of one key domain → Program.

One pass a rule: structure → positions (positions.py), conditions → conjuncts (simplify.py) → code (code.py), then the
tables are written out. Costs milliseconds; nothing is compiled to machine code here.
Tested by: tests/nfa/test_compile.py
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from cep.base.schema import Schema
from cep.kernels import layout as y
from cep.lang.ir import PatternIR
from cep.lang.walk import histories
from cep.nfa.code import Constants, ScalarCode, VectorCode
from cep.nfa.columns import ColumnMap, cut_bit
from cep.nfa.deployed import DeployedRule
from cep.nfa.histories import plan_histories
from cep.nfa.image import Tables
from cep.nfa.positions import build
from cep.nfa.predicates import Predicates
from cep.nfa.program import Program, RuleProgram
from cep.nfa.refusal import CompileError
from cep.nfa.rule_tables import RuleCompiler


def problems(pattern: PatternIR, schema: Schema) -> list[str]:
    """Why a checked, bound pattern cannot be compiled: limits of the automaton. Empty if it can."""
    rule = DeployedRule("check", 1, 0, "", pattern)
    try:
        compile_rules(schema, pattern.key, (rule,))
    except CompileError as error:
        return [str(error)]
    return []


def compile_rules(schema: Schema, key_fields: tuple[str, ...], rules: Sequence[DeployedRule]) -> Program:
    """Compile bound rules that share a key.

    Raises: CompileError for a rule that `problems` would have named.
    """
    constants = Constants()
    columns = ColumnMap(schema)
    vector = VectorCode(constants, columns)
    predicates = Predicates()
    scalar = ScalarCode(constants, columns)
    tables = Tables()
    compiled: list[RuleCompiler] = []
    for number, rule in enumerate(rules):
        assert rule.pattern.key == key_fields, "rules of one program share their key"
        compiler = RuleCompiler(number, rule, schema, columns, predicates, vector, scalar, tables)
        compiler.compile(build(rule.pattern.structure))
        compiled.append(compiler)
    plan = predicates.finish(vector, scalar, columns, constants)
    finished = vector.finish()
    derived = [t for c in compiled for t in c.derived_types]
    derived_types = list(dict(sorted(derived)).values())
    first_derived = y.COLUMNS_FIXED + len(columns.names)
    image, at_measures = tables.image(scalar.instructions, constants.slots, first_derived)
    registers_max = max((c.registers_count for c in compiled), default=0)
    width = y.RUN_HEADER + registers_max
    streams = sorted({c.stream for c in compiled if c.stream})
    return Program(
        schema=schema,
        key_fields=key_fields,
        rules=tuple(_rule_program(c, streams, at_measures) for c in compiled),
        columns=columns.columns(derived_types),
        histories=plan_histories(schema, columns.histories),
        image=image,
        vector=finished,
        predicates=plan.placed(at_measures + y.MEASURE_WIDTH * len(tables.measures)),
        relevance_first=np.cumsum([0, *(len(c.relevance()) for c in compiled)], dtype=np.int32),
        relevance=np.array([p for c in compiled for p in c.relevance()], np.int32),
        streams=tuple(streams),
        text_constants=tuple(constants.texts),
        start_runs=np.array([c.start_run(width) for c in compiled], np.int64).reshape(-1, width),
        row_registers=np.array([c.row_registers(registers_max) for c in compiled], np.uint8).reshape(
            len(compiled), registers_max
        ),
        width=width,
        machine_size=scalar.machine_size,
        measures_max=max((len(c.measures) for c in compiled), default=0),
        fingerprint=_fingerprint(schema, rules),
        handovers=_handovers(rules),
    )


def _rule_program(compiler: RuleCompiler, streams: list[tuple[int, ...]], at_measures: int) -> RuleProgram:
    return RuleProgram(
        compiler.rule,
        np.array(compiler.row(at_measures), np.int64),
        tuple(v.name for v in compiler.pattern.variables),
        tuple((m.name, m.value.type) for m in compiler.pattern.measures),
        tuple((m.name, m.value.type) for m in compiler.pattern.timeout_measures or ()),
        streams.index(compiler.stream) if compiler.stream else -1,
        compiler.repeats(),
        sum({cut_bit(past) for past in histories(compiler.pattern)}),
    )


def _handovers(rules: Sequence[DeployedRule]) -> tuple[tuple[int, int, int], ...]:
    """A version that carries takes over from the part of the one before that still sees events when it starts: what a
    pause or a live version has ended before has no run left to hand over."""
    return tuple(
        sorted(
            (rule.from_ms, giver, taker)
            for taker, rule in enumerate(rules)
            if rule.carries
            for giver, other in enumerate(rules)
            if (other.rule_id, other.version, other.status) == (rule.rule_id, rule.carries, rule.status)
            and other.until_ms > rule.from_ms
        )
    )


def _fingerprint(schema: Schema, rules: Sequence[DeployedRule]) -> str:
    text = repr((schema, [(*r.identity, r.from_ms, r.starts_until_ms, r.until_ms, r.carries) for r in rules]))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
