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
    return [f"x a@{at} {at}.00" for at in range(1, count + 1)]


def _found(done: Advanced) -> dict[tuple[str, ...], tuple[int, int]]:
    matches = done.matches
    found = {}
    for row in range(len(matches)):
        ids = matches.event_id[matches.offsets[row] : matches.offsets[row + 1]].to_pylist()
        found[tuple(ids)] = (int(matches.measures[row, 0]), int(matches.measures[row, 1]))
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 12])
def test_every_combination_is_a_match_with_its_own_measures(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.nfa.rule_tables.MATCHES_PER_EVENT_MAX", 10_000)
    compiled = program(rule(PATTERN))
    first = advance(compiled, None, batch(*_events(count)), 0)
    kept = decode_page(encode_page(first.keyed_state))
    assert len(kept) == count, "one run for each start"
    found = _found(advance(compiled, kept, batch(f"x b@{count + 1}"), 0))
    ids = kept.events.event_id.to_pylist()
    amounts = {event: 100 * (at + 1) for at, event in enumerate(ids)}
    chosen = [c for size in range(1, count + 1) for c in combinations(ids, size)]
    assert {key[:-1] for key in found} == set(chosen)
    assert all(measured == (len(key) - 1, sum(amounts[i] for i in key[:-1])) for key, measured in found.items())


def test_thirty_repetitions_take_linear_memory_and_end_at_the_limit() -> None:
    compiled = program(rule(PATTERN))
    sizes = {}
    for count in (15, 30):
        kept = advance(compiled, None, batch(*_events(count)), 0).keyed_state
        sizes[count] = len(kept.nodes) / count
        assert len(kept) == count
    assert sizes[30] <= 2.1 * sizes[15], "nodes grow with starts times events, not with combinations"
    done = advance(compiled, kept, batch("x b@31"), 0)
    assert len(done.matches) == MATCHES_PER_EVENT_MAX
    assert done.counters["matches_dropped"] > 0
