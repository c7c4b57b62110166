"""Compare the reported busiest keys with counts over the state itself."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from cep.base.limits import NODES_PER_KEY_MAX, RUNS_PER_KEY_MAX
from cep.engine.advance import advance
from cep.engine.keyed_state import KeyedState
from cep.kernels import layout as y
from cep.report.busy_keys import busiest_keys
from cep.report.keyed_state import SHARED
from cep.state.pages import StoredPage, encode_page
from tests.engine.rules import batch, program, rule
from tests.report.random_state import DOMAIN, random_state

PAIR = "seq x -> y within 1 h\nwhere x: e kind == a\ny: e kind == b"
LOOP = "seq x+ -> y within 1 h\nwhere x: e kind == a\ny: e kind == b"


def page_of(state: KeyedState) -> StoredPage:
    return StoredPage(0, DOMAIN, encode_page(state))


def bound_of(state: KeyedState, node: int) -> set[int]:
    """Walk from a node to all nodes that lead to it, as a reader would: return the nodes that have an event."""
    if node < 0:
        return set()
    row, also_before, before = state.nodes[node].tolist()
    return bound_of(state, before) | ({node} if row >= 0 else bound_of(state, also_before))


def test_a_key_at_its_limit_is_told_first_with_all_of_it() -> None:
    lines = [f"busy a@{1_000 + number}" for number in range(RUNS_PER_KEY_MAX + 50)]
    rules = program(rule(PAIR, "pair"))
    events = batch("idle a@1000", *lines, "idle a@60000", "calm a@60000")
    state = advance(rules, None, events, 0).keyed_state
    first, second, third = busiest_keys([page_of(state)], 5)
    assert (first.rule_id, first.version, first.key, first.runs, first.bound) == (
        "pair", 1, "busy", RUNS_PER_KEY_MAX, RUNS_PER_KEY_MAX,
    )  # fmt: skip
    assert first.fullness == 1
    assert [(busy.key, busy.runs) for busy in (second, third)] == [("idle", 2), ("calm", 1)]
    assert [busy.key for busy in busiest_keys([page_of(state)], 2)] == ["busy", "idle"]


def test_events_that_one_run_has_bound_count_too() -> None:
    rules = program(rule(LOOP, "loop"))
    state = advance(rules, None, batch(*(f"k a@{1_000 + number}" for number in range(300))), 0).keyed_state
    (busy,) = busiest_keys([page_of(state)], 5)
    assert busy.bound >= 300
    assert busy.fullness == max(busy.runs / RUNS_PER_KEY_MAX, busy.bound / NODES_PER_KEY_MAX)


def test_starts_that_rules_share() -> None:
    later = [f"y{n}: e kind == b and amount == {n}.00" for n in range(6)]
    texts = [f"seq x -> y{n} within 1 min\nwhere x: e kind == a\n{later[n]}" for n in range(6)]
    rules = program(*(rule(text, f"r{n}") for n, text in enumerate(texts)))
    state = advance(rules, None, batch("k a@1000", "k a@2000", "j a@3000"), 0).keyed_state
    rows = [(busy.rule_id, busy.version, busy.key, busy.runs) for busy in busiest_keys([page_of(state)], 9)]
    assert rows == [(SHARED, 0, "k", 2), (SHARED, 0, "j", 1)]


@pytest.mark.parametrize("seed", range(40))
def test_counts_agree_with_a_walk_over_each_run(seed: int) -> None:
    random_job = random_state(seed)
    if random_job is None:
        return
    rules, state = random_job.rules, random_job.keyed_state
    busy_keys = busiest_keys(random_job.pages, 1_000_000)
    runs: Counter[tuple[str, str]] = Counter()
    bound: dict[tuple[str, str], set[int]] = {}
    keys = state.keys.to_pylist()
    for run in np.flatnonzero(state.is_run).tolist():
        if state.run_rule[run] < len(rules.rules):
            pair = (rules.rules[state.run_rule[run]].deployed.rule_id, keys[state.run_key[run]])
            runs[pair] += 1
            bound.setdefault(pair, set()).update(bound_of(state, int(state.runs[run, y.RUN_NODE])))
    counts = {(busy.rule_id, busy.key): (busy.runs, busy.bound) for busy in busy_keys if busy.version and busy.runs}
    assert counts == {pair: (count, len(bound[pair])) for pair, count in runs.items()}
    assert [busy.fullness for busy in busy_keys] == sorted((busy.fullness for busy in busy_keys), reverse=True)
