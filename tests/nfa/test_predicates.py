"""Predicates by index give the same bits as evaluating them for every event."""

import random

import numpy as np
import pyarrow as pa
import pytest

from cep.base.schema import EventType, Field, Kind, Schema, Type
from cep.columnar.batch import TEXT, EventBatch
from cep.engine.keyed_state import empty_state
from cep.engine.table import prepare
from cep.lang.ir import Binary, Const, CurrentField, Expr, In, Link, PatternIR, SequenceNode, Step, Variable, VarNode
from cep.nfa import predicates
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule

INT, TEXT_TYPE, BOOL = Type(Kind.INT, nullable=True), Type(Kind.STRING, nullable=True), Type(Kind.BOOL)
SCHEMA = Schema(
    tuple(
        EventType(
            name,
            (
                Field("id", Type(Kind.ID)),
                Field("event_time", Type(Kind.TIME)),
                Field("v", INT),
                Field("w", INT),
                Field("k", TEXT_TYPE),
            ),
        )
        for name in ("one", "two")
    )
)


def _atom(rng: random.Random) -> Expr:
    if rng.random() < 0.4:
        field, const = CurrentField("k", TEXT_TYPE), Const(rng.choice("abcdxyz"), TEXT_TYPE)
        if rng.random() < 0.3:
            return In(field, (const, Const(rng.choice("abz"), TEXT_TYPE)), BOOL)
        return Binary(rng.choice(["==", "!="]), field, const, BOOL)
    field, const = CurrentField(rng.choice("vw"), INT), Const(rng.randint(-3, 12), INT)
    op = rng.choice(["==", "<", "<=", ">", ">=", "!="])
    return Binary(op, field, const, BOOL) if rng.random() < 0.7 else Binary(op, const, field, BOOL)  # type: ignore[arg-type]


def _rule(rng: random.Random, number: int) -> DeployedRule:
    where = _atom(rng)
    for _ in range(rng.randint(0, 2)):
        where = Binary("and", where, _atom(rng), BOOL)
    structure = SequenceNode((Step(Link.FOLLOWED_BY, VarNode("x")),))
    variable = Variable("x", rng.choice(["one", "two"]), where)
    pattern = PatternIR("p", (), ("k",), structure, (variable,), (), ("one", "two"))
    return DeployedRule(f"r{number}", 1, 1, str(number), pattern)


def _events(rng: random.Random, count: int) -> EventBatch:
    ids = pa.array([f"{i:05d}" for i in range(count)], TEXT)

    def numbers() -> pa.Array:
        return pa.array([None if rng.random() < 0.1 else rng.randint(-2, 10) for _ in range(count)], pa.int64())

    texts = pa.array([None if rng.random() < 0.1 else rng.choice("abcdefg") for _ in range(count)], TEXT)
    types = np.array([rng.randint(0, 1) for _ in range(count)], np.int16)
    columns = {"id": ids, "v": numbers(), "w": numbers(), "k": texts}
    return EventBatch(pa.array(["key"] * count, TEXT), ids, types, np.arange(count, dtype=np.int64), columns)


@pytest.mark.parametrize("seed", range(20))
def test_index_and_evaluation_agree(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    rules = [_rule(rng, n) for n in range(rng.choice([3, 40, 120]))]
    batch = _events(rng, rng.choice([1, 63, 64, 300, 700]))
    matched = []
    for smallest in (1, 8, 10**9):
        monkeypatch.setattr(predicates, "INDEX_MIN", smallest)
        program = compile_rules(SCHEMA, ("k",), rules)
        if smallest == 10**9:
            assert len(program.predicates.groups) == 0
        bitmaps = prepare(program, empty_state(program), batch, 0).bitmaps
        relevant = np.split(program.relevance, program.relevance_first[1:-1])
        reacts = [[bitmaps[p].tolist() for p in predicates if p >= 0] for predicates in relevant]
        matched.append(reacts)
    assert matched[0] == matched[1] == matched[2]


def test_many_equal_columns_use_one_index() -> None:
    rules = [
        DeployedRule(
            f"r{n}", 1, 1, str(n),
            PatternIR(
                "p", (), ("k",), SequenceNode((Step(Link.FOLLOWED_BY, VarNode("x")),)),
                (Variable("x", "one", Binary("==", CurrentField("v", INT), Const(n, INT), BOOL)),), (), ("one", "two"),
            ),
        )
        for n in range(50)
    ]  # fmt: skip
    program = compile_rules(SCHEMA, ("k",), rules)
    assert len(program.predicates.groups) == 1
    assert len(program.predicates.entries) == 50
    assert len(program.predicates.evaluated) == 0
