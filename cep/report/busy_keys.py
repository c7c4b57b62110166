"""Stored pages → the keys with the most runs and bound events of a rule, nearest to its limits first.

Metrics count the losses to a limit by rule, because metrics and logs may not name a key. This report names the keys.
Tested by: tests/report/test_keyed_state.py
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cep.base.limits import NODES_PER_KEY_MAX, RUNS_PER_KEY_MAX
from cep.columnar.route import KeyDomain
from cep.engine.keyed_state import KeyedState
from cep.kernels import layout as y
from cep.kernels.layout import Int64
from cep.nfa.shared import shares
from cep.report.keyed_state import SHARED
from cep.state.pages import StoredPage, decode_page


@dataclass(frozen=True, slots=True)
class BusyKey:
    """The runs of one rule on one key. `fullness` is the share of the nearer limit: at 1 the oldest runs are dropped.

    `bound` counts events, each step of a run once however many runs share it. With `SHARED` as the rule it is 0, and
    `runs` are events that begin a run of several rules.
    """

    rule_id: str
    version: int
    domain: KeyDomain
    key: str
    runs: int
    bound: int
    fullness: float


def busiest_keys(pages: Iterable[StoredPage], count: int) -> list[BusyKey]:
    """Return the `count` pairs of rule and key that are nearest to a limit. Raises: StateError for a damaged page."""
    each = (busy for page in pages for busy in _of_page(page, count))
    return heapq.nsmallest(count, each, key=lambda busy: (-busy.fullness, busy.rule_id, busy.version, busy.key))


def _of_page(page: StoredPage, count: int) -> Iterator[BusyKey]:
    """Yield the `count` busiest rules and keys of one page. Only these become objects."""
    keyed_state = decode_page(page.content)
    pair = keyed_state.run_rule.astype(np.int64) * len(keyed_state.keys) + keyed_state.run_key
    pairs, pair_of_node = np.unique(pair, return_inverse=True)
    runs = np.bincount(pair_of_node, keyed_state.is_run, len(pairs)).astype(np.int64)
    bound = np.bincount(_owners(keyed_state, pair_of_node), minlength=len(pairs))
    fullness = np.maximum(runs / RUNS_PER_KEY_MAX, bound / NODES_PER_KEY_MAX)
    for number in np.argsort(-fullness, kind="stable")[:count].tolist():
        slot, key = divmod(int(pairs[number]), len(keyed_state.keys))
        identity = keyed_state.layout.rules[slot][0]
        rule_id, version = (SHARED, 0) if shares(identity) else identity[:2]
        name = keyed_state.keys[key].as_py()
        yield BusyKey(
            rule_id, version, page.domain, name, int(runs[number]), int(bound[number]), float(fullness[number])
        )


def _owners(keyed_state: KeyedState, pair: Int64) -> Int64:
    """Assign each bound event to a rule and key whose runs need it.

    `pair` is the number of rule and key of each run.
    """
    owners = np.full(len(keyed_state.nodes), -1, np.int64)
    belongs = keyed_state.is_run & ~_is_shared(keyed_state)[keyed_state.run_rule]
    nodes, pairs = keyed_state.runs[belongs, y.RUN_NODE], pair[belongs]
    while len(nodes):
        is_new = nodes >= 0
        is_new[is_new] = owners[nodes[is_new]] < 0
        nodes, pairs = nodes[is_new], pairs[is_new]
        owners[nodes] = pairs
        row, second_branches, previous_nodes = keyed_state.nodes[nodes].T
        is_join = row < 0  # such a node has two branches and no event
        nodes, pairs = (
            np.concatenate([previous_nodes, second_branches[is_join]]),
            np.concatenate([pairs, pairs[is_join]]),
        )
    return owners[(keyed_state.nodes[:, 0] >= 0) & (owners >= 0)]


def _is_shared(keyed_state: KeyedState) -> NDArray[np.bool_]:
    """bool[slots]: which rules of the layout stand for several that begin alike."""
    return np.array([bool(shares(identity)) for identity, _, _ in keyed_state.layout.rules], np.bool_)
