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

import numpy as np

from cep.kernels import layout as y
from cep.kernels.jit import bare
from cep.kernels.layout import Int64, int64
from cep.kernels.match.matches import emit
from cep.kernels.match.runs import act
from cep.kernels.records import Counts, Events, Rule, Work
from cep.kernels.siphash import begin, finish, take_word

_FEW_RUNS = 8  # new runs of one event: up to this many, comparing each with all runs is cheaper than a hash table


@bare
def _alike(words: Int64, runs: Int64, a: int, b: int) -> bool:
    """Return True if runs a and b have the same future. `words` are the rule's, runs int64[*, W]."""
    if runs[a, y.RUN_START_ROW] != runs[b, y.RUN_START_ROW] or runs[a, y.RUN_STATE] != runs[b, y.RUN_STATE]:
        return False
    if runs[a, y.RUN_WAITS] != runs[b, y.RUN_WAITS]:
        return False
    control = words[y.R_CONTROL]
    for r in range(runs.shape[1] - y.RUN_HEADER):
        if (control >> int64(r)) & 1 != 0 and runs[a, y.RUN_HEADER + r] != runs[b, y.RUN_HEADER + r]:
            return False
    return True


@bare
def _slot(words: Int64, work: Work, i: int, size: int) -> int:
    """Return where the search for runs like run i begins in a table of `size` slots, a power of two.

    Registers may have sums of what a sender chooses, so the hash has a key (siphash.py).
    """
    runs = work.runs
    sip = take_word(begin(work.table_key), np.uint64(runs[i, y.RUN_START_ROW]))
    sip = take_word(sip, np.uint64(runs[i, y.RUN_STATE]))
    sip = take_word(sip, np.uint64(runs[i, y.RUN_WAITS]))
    control = words[y.R_CONTROL]
    for r in range(runs.shape[1] - y.RUN_HEADER):
        if (control >> int64(r)) & 1 != 0:
            sip = take_word(sip, np.uint64(runs[i, y.RUN_HEADER + r]))
    return int64(finish(sip) & np.uint64(size - 1))


@bare
def _first_alike(words: Int64, runs: Int64, i: int) -> int:
    """Return the first open row before row i that is alike; 0 if there is none."""
    for other in range(1, i):
        if runs[other, y.RUN_WAITS] != 0 and _alike(words, runs, i, other):
            return other
    return 0


@bare
def _alike_in_table(words: Int64, work: Work, i: int, table: Int64, size: int) -> int:
    """Return the row in the hash table that is alike; 0 if there is none, after putting row i into it."""
    at, runs = _slot(words, work, i, size), work.runs
    while table[at, 0] != 0 and not _alike(words, runs, i, table[at, 0]):
        at = (at + 1) & (size - 1)
    if table[at, 0] == 0:
        table[at, 0] = i
        return 0
    return table[at, 0]


@bare
def merge_runs(words: Int64, work: Work, live: int, counts: Counts, table: Int64) -> Counts:
    """Join each run in rows [live, counts.runs) to the first row that is alike; it loses its waits.

    table int64[*, 3] is scratch: its first column becomes a hash table of rows, unless few are to be looked up.
    `words` are the rule's. Cost: O(runs).
    """
    runs, nodes, node_count = work.runs, work.nodes, counts.nodes
    few = counts.runs - live <= _FEW_RUNS
    size = 2
    while not few and size < 2 * counts.runs:
        size *= 2
    if size > table.shape[0]:
        return Counts(counts.runs, node_count, counts.matches, y.FULL_TRAIL)
    for at in range(size):
        table[at, 0] = 0
    for i in range(live if few else 1, counts.runs):
        if runs[i, y.RUN_WAITS] == 0:
            continue
        other = _first_alike(words, runs, i) if few else _alike_in_table(words, work, i, table, size)
        if other == 0 or i < live:
            continue
        if node_count >= nodes.shape[0]:
            return Counts(counts.runs, node_count, counts.matches, y.FULL_NODES)
        nodes[node_count, y.NODE_ROW] = -1
        nodes[node_count, y.NODE_STATE] = runs[other, y.RUN_NODE]
        nodes[node_count, y.NODE_PREVIOUS] = runs[i, y.RUN_NODE]
        runs[other, y.RUN_NODE] = node_count
        runs[i, y.RUN_WAITS] = 0
        node_count += 1
    return Counts(counts.runs, node_count, counts.matches, y.FULL_NOT)


@bare
def emit_all(
    rule: Rule, events: Events, row: int, work: Work, run: int, counts: Counts, limit: int, trail: Int64
) -> Counts:
    """Write every match that the run has become, up to match number `limit`; count once what lies beyond.

    The row behind the run's is scratch for each match's registers, and trail int64[*, 3] is a stack.
    """
    depth_of, node_of, path = 0, 1, 2
    runs, nodes = work.runs, work.nodes
    node_count, matches, scratch = counts.nodes, counts.matches, run + 1
    trail[0, depth_of], trail[0, node_of] = 0, runs[run, y.RUN_NODE]
    top = 1
    while top > 0:
        top -= 1
        depth, node = trail[top, depth_of], trail[top, node_of]
        # Follow one way down to the first event; what branches off waits on the stack.
        while node >= 0:
            if max(top, depth) + 1 >= trail.shape[0]:
                return Counts(counts.runs, node_count, matches, y.FULL_TRAIL)
            if nodes[node, y.NODE_ROW] < 0:
                trail[top, depth_of], trail[top, node_of] = depth, nodes[node, y.NODE_PREVIOUS]
                top += 1
                node = nodes[node, y.NODE_STATE]
            else:
                trail[depth, path] = node
                depth += 1
                node = nodes[node, y.NODE_PREVIOUS]
        if matches >= limit:
            work.counters[y.COUNT_DROPPED] += 1
            return Counts(counts.runs, node_count, matches, y.FULL_NOT)
        if matches >= work.matches.shape[0]:
            return Counts(counts.runs, node_count, matches, y.FULL_MATCHES)
        if node_count + depth > nodes.shape[0]:
            return Counts(counts.runs, node_count, matches, y.FULL_NODES)
        for c in range(runs.shape[1]):
            runs[scratch, c] = runs[0, c]
        previous = int64(-1)
        for k in range(depth - 1, -1, -1):
            bound = trail[k, path]
            target = nodes[bound, y.NODE_STATE]
            nodes[node_count, y.NODE_ROW] = nodes[bound, y.NODE_ROW]
            nodes[node_count, y.NODE_STATE] = target
            nodes[node_count, y.NODE_PREVIOUS] = previous
            previous = node_count
            node_count += 1
            nfa_state = rule.image[y.HEADER_STATES] + target * y.STATE_WIDTH
            act(rule.image, nfa_state, events, nodes[bound, y.NODE_ROW], work, scratch)
        runs[scratch, y.RUN_START_ROW] = runs[run, y.RUN_START_ROW]
        runs[scratch, y.RUN_NODE] = previous
        emit(rule, events, row, work, scratch, matches, y.KIND_MATCH, events.columns[y.COLUMN_TIME, row])
        matches += 1
    return Counts(counts.runs, node_count, matches, y.FULL_NOT)
