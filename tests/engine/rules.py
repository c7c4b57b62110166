"""Pattern text → program, and rows written by hand → batch, for the tests of the engine."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa

from cep.base.schema import Schema
from cep.columnar.batch import EventBatch
from cep.columnar.decode import decode_json, route
from cep.lang.load import load_text
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule
from cep.nfa.program import Program
from tests.lang.common import bound_pattern

EVENTS = """
event e {
  id          id
  event_time  time
  key         string
  kind        enum(a, b, c)
  amount      decimal(2)?
  note        string?
}
"""
SCHEMA: Schema = load_text(EVENTS).schema


def rule(text: str, rule_id: str = "r", **changes: Any) -> DeployedRule:
    """Return a deployed rule whose pattern has the body `text`, by key."""
    bound, _ = bound_pattern(f"{EVENTS}\npattern p by key {{\n{text}\n}}")
    return replace(DeployedRule(rule_id, 1, 1, "hash of " + text, bound), **changes)


def program(*rules: DeployedRule) -> Program:
    return compile_rules(SCHEMA, ("key",), rules)


def batch(*rows: str) -> EventBatch:
    """Return events e0, e1 … from rows `key kind@ms amount note`, such as `x a@10 9.50 hello`; `-` is null."""
    records: Sequence[bytes] = [_record(f"e{i}", row) for i, row in enumerate(rows)]
    decoded = decode_json(SCHEMA, pa.array(records, pa.binary()))
    assert decoded.poison == ()
    return route(decoded, ("key",), SCHEMA.columns())[0]


def _record(event_id: str, row: str) -> bytes:
    key, kind_and_time, *rest = row.split()
    kind, time_ms = kind_and_time.split("@")
    values = [None if text == "-" else text for text in rest] + [None] * (2 - len(rest))
    fields = {"id": event_id, "event_time": int(time_ms), "key": key, "kind": kind}
    return orjson.dumps({**fields, "amount": values[0], "note": values[1]})
