"""Rows of a keyed state in another order or number, and what points from one to another.

A run points to a node and to the row of its first event, registers of some rules to rows; a node points to a row, or
as a union to another node, and to the node before. Shapes, throughout: runs int64[n, W], run_rule int32[n], nodes
int64[m, NODE_WIDTH], row_registers uint8[rules, R], where not 0 says that a rule's register holds a row.
Tested by: tests/kernels/test_parts.py, tests/engine/test_partition.py, tests/engine/test_keyed_state.py
"""

from __future__ import annotations

from typing import Any

from cep.kernels import layout as y
from cep.kernels.jit import bare, inlined

KEYS, RUNS, NODES, EVENTS = range(4)
COUNTS = 4


@bare
def order_rows(
    part: Any, run_key: Any, event_key: Any, nodes: Any, bounds: Any, cursor: Any, key_order: Any, run_order: Any,
    node_order: Any, event_order: Any, key_place: Any, node_place: Any, event_place: Any,
) -> Any:  # fmt: skip
    """Which rows belong to which part, in their order. Returns how many rows of a kind a part has at most, at least 1.

    Shapes: part int64[K] in [0, P), of each key; out bounds int64[4, P + 1], zeros before, say where the keys, runs,
    nodes and events of each part begin and the last one's end; orders int64[K], [n], [m], [E] the row that comes where;
    places int64[K], [m], [E] where a row is within its part; cursor int64[4, P] scratch.
    """
    parts = bounds.shape[1] - 1
    for k in range(part.shape[0]):
        bounds[KEYS, part[k] + 1] += 1
    for i in range(run_key.shape[0]):
        bounds[RUNS, part[run_key[i]] + 1] += 1
    for i in range(nodes.shape[0]):
        bounds[NODES, part[event_key[_row_of(nodes, i)]] + 1] += 1
    for i in range(event_key.shape[0]):
        bounds[EVENTS, part[event_key[i]] + 1] += 1
    most = 1
    for which in range(COUNTS):
        for p in range(parts):
            most = max(most, bounds[which, p + 1])
            cursor[which, p] = bounds[which, p]
            bounds[which, p + 1] += bounds[which, p]
    for k in range(part.shape[0]):
        at = cursor[KEYS, part[k]]
        key_order[at], key_place[k] = k, at - bounds[KEYS, part[k]]
        cursor[KEYS, part[k]] += 1
    for i in range(run_key.shape[0]):
        own = part[run_key[i]]
        run_order[cursor[RUNS, own]] = i
        cursor[RUNS, own] += 1
    for i in range(nodes.shape[0]):
        own = part[event_key[_row_of(nodes, i)]]
        at = cursor[NODES, own]
        node_order[at], node_place[i] = i, at - bounds[NODES, own]
        cursor[NODES, own] += 1
    for i in range(event_key.shape[0]):
        own = part[event_key[i]]
        at = cursor[EVENTS, own]
        event_order[at], event_place[i] = i, at - bounds[EVENTS, own]
        cursor[EVENTS, own] += 1
    return most


@inlined
def _row_of(nodes: Any, node: Any) -> Any:
    """The row of an event that a node leads to: its own, or for a union that of one of its ways."""
    found = node
    while nodes[found, y.NODE_ROW] < 0:
        found = nodes[found, y.NODE_STATE]
    return nodes[found, y.NODE_ROW]


@bare
def point_runs(runs: Any, run_rule: Any, row_registers: Any, new_row: Any, new_node: Any) -> None:
    """Let runs point to rows and nodes by their new numbers; in place."""
    for i in range(runs.shape[0]):
        runs[i, y.RUN_NODE] = new_node[runs[i, y.RUN_NODE]]
        runs[i, y.RUN_START_ROW] = new_row[runs[i, y.RUN_START_ROW]]
        for k in range(row_registers.shape[1]):
            if row_registers[run_rule[i], k] != 0 and runs[i, y.RUN_HEADER + k] >= 0:
                runs[i, y.RUN_HEADER + k] = new_row[runs[i, y.RUN_HEADER + k]]


@bare
def point_anew(runs: Any, run_rule: Any, nodes: Any, row_registers: Any, new_row: Any, new_node: Any) -> None:
    """Let runs and nodes point to rows and nodes by their new numbers; in place."""
    point_runs(runs, run_rule, row_registers, new_row, new_node)
    for i in range(nodes.shape[0]):
        if nodes[i, y.NODE_ROW] >= 0:
            nodes[i, y.NODE_ROW] = new_row[nodes[i, y.NODE_ROW]]
        else:
            nodes[i, y.NODE_STATE] = new_node[nodes[i, y.NODE_STATE]]
        if nodes[i, y.NODE_PREVIOUS] >= 0:
            nodes[i, y.NODE_PREVIOUS] = new_node[nodes[i, y.NODE_PREVIOUS]]


@bare
def point_among_all(
    runs: Any, run_rule: Any, nodes: Any, row_registers: Any, run_bounds: Any, node_bounds: Any, row_bounds: Any
) -> Any:
    """The other way round: what stands part by part points to rows and nodes among those of all parts; in place.

    The bounds, int64[P + 1], say where each part begins. Returns whether every run is of one of the rules.
    """
    for p in range(run_bounds.shape[0] - 1):
        rows, before = row_bounds[p], node_bounds[p]
        for i in range(run_bounds[p], run_bounds[p + 1]):
            runs[i, y.RUN_NODE] += before
            runs[i, y.RUN_START_ROW] += rows
            if not 0 <= run_rule[i] < row_registers.shape[0]:
                return False
            for k in range(row_registers.shape[1]):
                if row_registers[run_rule[i], k] != 0 and runs[i, y.RUN_HEADER + k] >= 0:
                    runs[i, y.RUN_HEADER + k] += rows
        move_nodes(nodes, before, node_bounds[p + 1], rows)
    return True


@bare
def move_nodes(nodes: Any, first: Any, end: Any, rows: Any) -> None:
    """Let the nodes of a part, first <= i < end, point among those of all; `rows` of events stand before its own."""
    for i in range(first, end):
        if nodes[i, y.NODE_ROW] >= 0:
            nodes[i, y.NODE_ROW] += rows
        else:
            nodes[i, y.NODE_STATE] += first
        if nodes[i, y.NODE_PREVIOUS] >= 0:
            nodes[i, y.NODE_PREVIOUS] += first
