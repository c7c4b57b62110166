"""Rows of a keyed state → the same rows in another order or numbering, with adjusted pointers.

A run points to a node and to the row of its first event; some of its registers point to rows. A node points to a row,
or as a union to another node, and to the previous node.

Shapes, throughout: runs int64[n, W], run_rule int32[n], nodes int64[m, NODE_WIDTH]; row_registers uint8[rules, R] is
not 0 where a rule's register holds a row.

Tested by: tests/kernels/test_packed.py, tests/engine/test_keyed_state.py, tests/engine/test_keyed_state.py
"""

from __future__ import annotations

from cep.kernels import layout as y
from cep.kernels.jit import bare, inlined
from cep.kernels.layout import Int32, Int64, UInt8
from cep.kernels.records import PartOrder

KEYS, RUNS, NODES, EVENTS = range(4)
COUNTS = 4


@bare
def order_rows(part: Int64, run_key: Int32, event_key: Int32, nodes: Int64, order: PartOrder, cursor: Int64) -> int:
    """Sort rows by part; within a part they keep their order.

    Shapes: part int64[K] in [0, P), of each key; `order` is filled, with bounds that are zeros before; cursor int64[4,
    P] is scratch. Returns the largest number of rows of one kind in a part, at least 1.
    """
    bounds = order.bounds
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
        node_index = cursor[KEYS, part[k]]
        order.keys[node_index], order.key_place[k] = k, node_index - bounds[KEYS, part[k]]
        cursor[KEYS, part[k]] += 1
    for i in range(run_key.shape[0]):
        p = part[run_key[i]]
        order.runs[cursor[RUNS, p]] = i
        cursor[RUNS, p] += 1
    for i in range(nodes.shape[0]):
        p = part[event_key[_row_of(nodes, i)]]
        node_index = cursor[NODES, p]
        order.nodes[node_index], order.node_place[i] = i, node_index - bounds[NODES, p]
        cursor[NODES, p] += 1
    for i in range(event_key.shape[0]):
        p = part[event_key[i]]
        node_index = cursor[EVENTS, p]
        order.events[node_index], order.event_place[i] = i, node_index - bounds[EVENTS, p]
        cursor[EVENTS, p] += 1
    return most


@inlined
def _row_of(nodes: Int64, node: int) -> int:
    """Return the row of an event on a node's path: its own, or the row on one branch of a union."""
    node_index = node
    while nodes[node_index, y.NODE_ROW] < 0:
        node_index = nodes[node_index, y.NODE_STATE]
    return nodes[node_index, y.NODE_ROW]


@bare
def point_runs(runs: Int64, run_rule: Int32, row_registers: UInt8, new_row: Int64, new_node: Int64) -> None:
    """Change the pointers of runs to the new numbers of rows and nodes, in place."""
    for i in range(runs.shape[0]):
        runs[i, y.RUN_NODE] = new_node[runs[i, y.RUN_NODE]]
        runs[i, y.RUN_START_ROW] = new_row[runs[i, y.RUN_START_ROW]]
        for k in range(row_registers.shape[1]):
            if row_registers[run_rule[i], k] != 0 and runs[i, y.RUN_HEADER + k] >= 0:
                runs[i, y.RUN_HEADER + k] = new_row[runs[i, y.RUN_HEADER + k]]


@bare
def point_anew(
    runs: Int64, run_rule: Int32, nodes: Int64, row_registers: UInt8, new_row: Int64, new_node: Int64
) -> None:
    """Change the pointers of runs and nodes to the new numbers of rows and nodes, in place."""
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
    runs: Int64, run_rule: Int32, nodes: Int64, row_registers: UInt8, run_bounds: Int64, node_bounds: Int64,
    row_bounds: Int64,
) -> bool:  # fmt: skip
    """Change the pointers of runs and nodes, sorted by part, to indexes among all parts, in place.

    The bounds, int64[P + 1], are the starts of the parts. Returns True if every run belongs to one of the rules.
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
def move_nodes(nodes: Int64, first: int, end: int, rows: int) -> None:
    """Change the pointers of a part's nodes, first <= i < end, to indexes among all; `rows` events precede the part."""
    for i in range(first, end):
        if nodes[i, y.NODE_ROW] >= 0:
            nodes[i, y.NODE_ROW] += rows
        else:
            nodes[i, y.NODE_STATE] += first
        if nodes[i, y.NODE_PREVIOUS] >= 0:
            nodes[i, y.NODE_PREVIOUS] += first
