"""Every planted fraud of the demo has a path, every near miss a reason."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from cep.columnar.batch import EventBatch
from cep.columnar.decode import decode_table
from cep.columnar.route import KeyDomain, route
from cep.demo.stream import Planted, StreamSize, build
from cep.nfa.deployed import DeployedRule
from cep.rulebook.deploy import Deployment, deploy
from cep.rulebook.files import read_rules
from cep.testing.inquiry import World, why, why_not

SIZE = StreamSize(cards_count=400, payments_per_card=5)
STREAM = build(7, SIZE)
RULES = Path(__file__).parents[2] / "rules"


@cache
def deployment() -> Deployment:
    return deploy(read_rules(RULES)[0])


@cache
def routed(domain: KeyDomain) -> EventBatch:
    schema = deployment().schema
    return route(decode_table(schema, STREAM.payments, str), domain, schema.columns())[0]


def rule_and_batch(case: Planted) -> tuple[DeployedRule, EventBatch]:
    (rule,) = (r for r in deployment().rulebook.deployed() if r.rule_id == case.rule_id)
    batch = routed(rule.pattern.key)
    return rule, batch.take(np.asarray(pc.equal(batch.key, case.key)))


@pytest.mark.parametrize("case", [c for c in STREAM.planted if c.fires], ids=lambda c: f"{c.rule_id} {c.key}")
def test_a_fraud_has_a_path(case: Planted) -> None:
    rule, batch = rule_and_batch(case)
    answer = why_not(World(deployment().schema), [rule], batch, case.last_ms)
    assert [tuple(step[1] for step in match.steps) for match in answer.matches] == [case.tx_ids]
    (path,) = why(World(deployment().schema), rule, batch, case.tx_ids).matches
    assert path == answer.matches[0]


@pytest.mark.parametrize("case", [c for c in STREAM.planted if not c.fires], ids=lambda c: f"{c.rule_id} {c.key}")
def test_a_near_miss_has_a_reason(case: Planted) -> None:
    rule, batch = rule_and_batch(case)
    for at_ms in (None, case.last_ms):
        answer = why_not(World(deployment().schema), [rule], batch, at_ms)
        assert answer.matches == []
        assert answer.reasons
        assert all(details for _, details in answer.reasons)
    near_miss = why(World(deployment().schema), rule, batch, case.tx_ids)
    assert near_miss.matches == []
    assert near_miss.reasons
