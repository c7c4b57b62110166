"""Stored runs of an earlier build, with averages and spreads: this build continues them."""

from __future__ import annotations

import json
import lzma
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cep.base.schema import Kind, Type
from cep.engine.advance import Matches, advance
from cep.engine.keyed_state import KeyedState
from cep.engine.migrate import migrate_state
from cep.nfa.program import Program
from cep.state.pages import decode_page
from tests.engine.rules import batch, program, rule

CASES: list[dict[str, Any]] = json.loads(
    lzma.decompress(Path(__file__).with_name("earlier_pages.json.xz").read_bytes())
)
END_MS = 2**61 - 1


def matches(compiled: Program, before: KeyedState | None, case: dict[str, Any], *, after_cut: bool) -> list[Any]:
    """Return the matches that are completed after the cut: rule, bound events and measures."""
    events = batch(*case["events"])
    cut_ms = 60_000 * case["cut"]
    matches = advance(
        compiled, before, events.take(np.arange(case["cut"] if after_cut else 0, len(events))), END_MS
    ).matches
    matched = []
    for row, (first, end) in enumerate(pairwise(matches.offsets.tolist())):
        if matches.detected_ms[row] >= cut_ms:
            described = compiled.rules[int(matches.rule[row])]
            values = [_value(matches, row, number, type_) for number, (_, type_) in enumerate(described.measures)]
            bound = matches.event_id[first:end].to_pylist()
            matched.append((described.deployed.rule_id, bound, values))
    return sorted(matched, key=str)


def _value(matches: Matches, row: int, number: int, type_: Type) -> object:
    slot = matches.measures[row, number]
    if matches.measures_null[row, number]:
        return None
    if type_.kind is Kind.STRING:
        return matches.texts[int(slot)].as_py()
    return pytest.approx(float(slot.view(np.float64)), rel=1e-6, abs=1e-6) if type_.is_float else int(slot)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_runs_of_an_earlier_build_go_on(case: dict[str, Any]) -> None:
    compiled = program(rule(case["other"], "other"), rule(case["text"]))
    stored = decode_page(bytes.fromhex(case["page"]))
    assert stored.layout.is_earlier
    state, orphans = migrate_state(stored, compiled)
    assert (orphans, len(state)) == (0, len(stored))
    fresh = matches(compiled, None, case, after_cut=False)
    continued = matches(compiled, state, case, after_cut=True)
    assert continued == fresh
