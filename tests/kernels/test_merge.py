"""Repetition in every combination: linear memory, every match up to the limit, measures of each."""

from __future__ import annotations

from itertools import combinations

import pytest

from cep.base.limits import MATCHES_PER_EVENT_MAX
from cep.engine.advance import Advanced, advance
from cep.state.pages import decode_page, encode_page
from tests.engine.rules import batch, program, rule

PATTERN = (
    "seq a+ any -> b within 1 h\nwhere a: e kind == a\n b: e kind == b\nskip none\nemit n = count(a), s = sum(a.amount)"
)


def _events(count: int) -> list[str]:
    return [f"x a@{number} {number}.00" for number in range(1, count + 1)]


def _found(advanced: Advanced) -> dict[tuple[str, ...], tuple[int, int]]:
    matches = advanced.matches
    measures = {}
    for row in range(len(matches)):
        ids = matches.event_id[matches.offsets[row] : matches.offsets[row + 1]].to_pylist()
        measures[tuple(ids)] = (int(matches.measures[row, 0]), int(matches.measures[row, 1]))
    return measures


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 12])
def test_every_combination_is_a_match_with_its_own_measures(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.nfa.rule_tables.MATCHES_PER_EVENT_MAX", 10_000)
    compiled = program(rule(PATTERN))
    first = advance(compiled, None, batch(*_events(count)), 0)
    state = decode_page(encode_page(first.keyed_state))
    assert len(state) == count, "one run for each start"
    measures = _found(advance(compiled, state, batch(f"x b@{count + 1}"), 0))
    ids = state.events.event_id.to_pylist()
    amounts = {event: 100 * (number + 1) for number, event in enumerate(ids)}
    chosen = [c for size in range(1, count + 1) for c in combinations(ids, size)]
    assert {key[:-1] for key in measures} == set(chosen)
    assert all(measured == (len(key) - 1, sum(amounts[i] for i in key[:-1])) for key, measured in measures.items())


def test_thirty_repetitions_take_linear_memory_and_end_at_the_limit() -> None:
    compiled = program(rule(PATTERN))
    sizes = {}
    for count in (15, 30):
        state = advance(compiled, None, batch(*_events(count)), 0).keyed_state
        sizes[count] = len(state.nodes) / count
        assert len(state) == count
    assert sizes[30] <= 2.1 * sizes[15], "nodes grow with starts times events, not with combinations"
    result = advance(compiled, state, batch("x b@31"), 0)
    assert len(result.matches) == MATCHES_PER_EVENT_MAX
    assert result.counters["matches_dropped"] > 0
