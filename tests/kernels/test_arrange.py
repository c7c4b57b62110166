"""Sorting by key, time and arrival."""

from __future__ import annotations

from random import Random

import pytest

from cep.engine.advance import advance
from tests.engine.rules import batch, program, rule

END_MS = 2**61 - 1


@pytest.mark.parametrize("seed", range(10))
def test_events_are_matched_in_the_order_of_time_then_arrival(seed: int) -> None:
    random = Random(seed)
    rows = [f"k{random.randint(0, 2)} a@{random.randint(0, 9)}" for _ in range(60)]
    compiled = program(rule("seq a{2,} -> c within 1 h\nwhere a: e kind == a\n c: e kind == c\nskip none"))
    ordered = sorted(range(60), key=lambda i: (rows[i].split()[0], int(rows[i].split("@")[1])))
    expected = [f"e{i}" for i in ordered]
    state = advance(compiled, None, batch(*rows), 9).keyed_state
    events = [e for k in sorted(state.keys.to_pylist()) for e in expected if rows[int(e[1:])].startswith(k)]
    assert sorted(state.events.event_id.to_pylist()) == sorted(events)
    matches = advance(compiled, state, batch(*(f"k{i} c@20" for i in range(3))), END_MS).matches
    ids = matches.event_id.to_pylist()
    for i in range(len(matches)):
        bound = ids[matches.offsets[i] : matches.offsets[i + 1] - 1]
        assert [expected.index(e) for e in bound] == sorted(expected.index(e) for e in bound)
