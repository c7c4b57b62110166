"""Runs that can only do the same from now on share one row: repetition in every combination stays linear.

Two runs of the same start that wait for the same things, with equal registers where a condition may look, differ in
nothing but what they have bound. They become one run, and their bindings meet in a *union* node:

    node row   | -1 | node | other node |          both ways lead here

So `a+ any -> b` over thirty a has thirty runs and not 2**30. When such a run matches, its bindings are read out of the
graph one by one, up to a limit, and written as plain chains of nodes. The shape of the graph is that of tECS (Bucchi,
Grez, Quintana, Riveros, Vansummeren, "CORE: a Complex Event Recognition Engine", 2022).
Tested by: tests/kernels/test_merge.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cep.kernels import layout as y
from cep.kernels.jit import bare
from cep.kernels.matches import emit
from cep.kernels.runs import act

_FEW_RUNS = 8  # new ones of one event: comparing each with all that there are is cheaper than a table of all


@bare
def _alike(rule: Any, work: Any, a: Any, b: Any) -> Any:
    """Whether two runs have the same future."""
    if work[a, y.RUN_START_ROW] != work[b, y.RUN_START_ROW] or work[a, y.RUN_STATE] != work[b, y.RUN_STATE]:
        return False
    if work[a, y.RUN_WAITS] != work[b, y.RUN_WAITS]:
        return False
    control = rule[y.R_CONTROL]
    for r in range(work.shape[1] - y.RUN_HEADER):
        if (control >> np.int64(r)) & 1 != 0 and work[a, y.RUN_HEADER + r] != work[b, y.RUN_HEADER + r]:
            return False
    return True


@bare
def _slot(rule: Any, work: Any, i: Any, size: Any) -> Any:
    """Where the search for runs like run i begins in a table of `size` slots, a power of two (FNV-1a, by words)."""
    mixed = np.uint64(0xCBF29CE484222325) ^ np.uint64(work[i, y.RUN_START_ROW])
    mixed = (mixed * np.uint64(0x100000001B3)) ^ np.uint64(work[i, y.RUN_STATE])
    mixed = (mixed * np.uint64(0x100000001B3)) ^ np.uint64(work[i, y.RUN_WAITS])
    control = rule[y.R_CONTROL]
    for r in range(work.shape[1] - y.RUN_HEADER):
        if (control >> np.int64(r)) & 1 != 0:
            mixed = (mixed * np.uint64(0x100000001B3)) ^ np.uint64(work[i, y.RUN_HEADER + r])
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    return np.int64(mixed >> np.uint64(32)) & (size - 1)


@bare
def _earlier(rule: Any, work: Any, i: Any) -> Any:
    """The first row that is alike and open, before row i; 0 if there is none."""
    for other in range(1, i):
        if work[other, y.RUN_WAITS] != 0 and _alike(rule, work, i, other):
            return other
    return 0


@bare
def _known(rule: Any, work: Any, i: Any, table: Any, size: Any) -> Any:
    """The row in the hash table that is alike; 0 if there is none, and row i is put into it."""
    at = _slot(rule, work, i, size)
    while table[at, 0] != 0 and not _alike(rule, work, i, table[at, 0]):
        at = (at + 1) & (size - 1)
    if table[at, 0] == 0:
        table[at, 0] = i
        return 0
    return table[at, 0]


@bare
def merge_runs(rule: Any, work: Any, live: Any, runs: Any, nodes: Any, node_count: Any, table: Any) -> Any:
    """Join each run in rows [live, runs) to the first row that is alike; it loses its waits.

    table int64[*, 3] is scratch: its first column becomes a hash table of rows, unless few are to be looked up.
    Returns (node count, FULL_*). Cost: O(runs).
    """
    few = runs - live <= _FEW_RUNS
    size = 2
    while not few and size < 2 * runs:
        size *= 2
    if size > table.shape[0]:
        return node_count, y.FULL_TRAIL
    for at in range(size):
        table[at, 0] = 0
    for i in range(live if few else 1, runs):
        if work[i, y.RUN_WAITS] == 0:
            continue
        other = _earlier(rule, work, i) if few else _known(rule, work, i, table, size)
        if other == 0 or i < live:
            continue
        if node_count >= nodes.shape[0]:
            return node_count, y.FULL_NODES
        nodes[node_count, y.NODE_ROW] = -1
        nodes[node_count, y.NODE_STATE] = work[other, y.RUN_NODE]
        nodes[node_count, y.NODE_PREVIOUS] = work[i, y.RUN_NODE]
        work[other, y.RUN_NODE] = node_count
        work[i, y.RUN_WAITS] = 0
        node_count += 1
    return node_count, y.FULL_NOT


@bare
def emit_all(
    image: Any, rule: Any, columns: Any, nulls: Any, row: Any, work: Any, run: Any, scratch: Any, nodes: Any,
    node_count: Any, out: Any, matches: Any, limit: Any, trail: Any, machine: Any, counters: Any,
) -> Any:  # fmt: skip
    """Write every match that the run has become, up to match number `limit`; what lies beyond is counted once.

    Row `scratch` of work is used to work out each match's registers; trail int64[*, 3] is a stack.
    Returns (node count, matches, FULL_*).
    """
    depth_of, node_of, path = 0, 1, 2
    trail[0, depth_of], trail[0, node_of] = 0, work[run, y.RUN_NODE]
    top = 1
    while top > 0:
        top -= 1
        depth, node = trail[top, depth_of], trail[top, node_of]
        # Follow one way down to the first event; what branches off waits on the stack.
        while node >= 0:
            if max(top, depth) + 1 >= trail.shape[0]:
                return node_count, matches, y.FULL_TRAIL
            if nodes[node, y.NODE_ROW] < 0:
                trail[top, depth_of], trail[top, node_of] = depth, nodes[node, y.NODE_PREVIOUS]
                top += 1
                node = nodes[node, y.NODE_STATE]
            else:
                trail[depth, path] = node
                depth += 1
                node = nodes[node, y.NODE_PREVIOUS]
        if matches >= limit:
            counters[y.COUNT_DROPPED] += 1
            return node_count, matches, y.FULL_NOT
        if matches >= out.shape[0]:
            return node_count, matches, y.FULL_MATCHES
        if node_count + depth > nodes.shape[0]:
            return node_count, matches, y.FULL_NODES
        for c in range(work.shape[1]):
            work[scratch, c] = work[0, c]
        previous = np.int64(-1)
        for k in range(depth - 1, -1, -1):
            bound = trail[k, path]
            target = nodes[bound, y.NODE_STATE]
            nodes[node_count, y.NODE_ROW] = nodes[bound, y.NODE_ROW]
            nodes[node_count, y.NODE_STATE] = target
            nodes[node_count, y.NODE_PREVIOUS] = previous
            previous = node_count
            node_count += 1
            nfa_state = image[y.HEADER_STATES] + target * y.STATE_WIDTH
            act(image, nfa_state, columns, nulls, nodes[bound, y.NODE_ROW], work, scratch, counters)
        work[scratch, y.RUN_START_ROW] = work[run, y.RUN_START_ROW]
        work[scratch, y.RUN_NODE] = previous
        emit(
            image, rule, columns, nulls, row, work, scratch, nodes, y.KIND_MATCH, columns[y.COLUMN_TIME, row], out,
            matches, machine, counters,
        )  # fmt: skip
        matches += 1
    return node_count, matches, y.FULL_NOT
