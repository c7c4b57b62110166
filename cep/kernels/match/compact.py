"""Live runs → the nodes, events and keys that they can still reach, renumbered.

Tested by: tests/engine/test_advance.py, tests/engine/test_against_oracle.py
"""

from __future__ import annotations

from cep.kernels import layout as y
from cep.kernels.jit import bare
from cep.kernels.layout import Int64, UInt8
from cep.kernels.pages.parts import point_runs
from cep.kernels.records import LiveRuns, NewNumbers, Remaining


@bare
def compact(
    live: LiveRuns, row_registers: UInt8, key_of_row: Int64, numbers: NewNumbers, remaining: Remaining
) -> tuple[int, int, int]:
    """Drop nodes, rows and keys that no live run can reach; renumber the others in place, with all references to them.

    Shapes: row_registers uint8[rules, registers] marks registers that hold rows; key_of_row int64[N]. Fills `numbers`
    and the first entries of `remaining`.
    Returns: the remaining number of nodes, rows and keys. Their order is unchanged.
    """
    runs, nodes = live.runs, live.nodes
    node_map, row_map, key_map = numbers.nodes, numbers.rows, numbers.keys
    node_map[:] = -1
    row_map[:] = -1
    key_map[:] = -1
    for i in range(runs.shape[0]):
        node_map[runs[i, y.RUN_NODE]] = 0
        key_map[live.keys[i]] = 0
    for k in range(nodes.shape[0] - 1, -1, -1):
        if node_map[k] >= 0:
            if nodes[k, y.NODE_ROW] >= 0:
                row_map[nodes[k, y.NODE_ROW]] = 0
            else:
                node_map[nodes[k, y.NODE_STATE]] = 0
            if nodes[k, y.NODE_PREVIOUS] >= 0:
                node_map[nodes[k, y.NODE_PREVIOUS]] = 0
    keys_count = 0
    for key in range(key_map.shape[0]):
        if key_map[key] >= 0:
            key_map[key] = keys_count
            remaining.keys[keys_count] = key
            keys_count += 1
    rows_count = 0
    for row in range(row_map.shape[0]):
        if row_map[row] >= 0:
            row_map[row] = rows_count
            remaining.rows[rows_count] = row
            remaining.row_keys[rows_count] = key_map[key_of_row[row]]
            rows_count += 1
    nodes_count = _compact_nodes(nodes, node_map, row_map)
    point_runs(runs, live.rules, row_registers, row_map, node_map)
    for i in range(live.keys.shape[0]):
        live.keys[i] = key_map[live.keys[i]]
    return nodes_count, rows_count, keys_count


@bare
def _compact_nodes(nodes: Int64, node_map: Int64, row_map: Int64) -> int:
    """Move the nodes that are still needed together, and renumber references to them. Return their number.

    Shapes: nodes int64[m, NODE_WIDTH]; node_map int64[m] becomes their new numbers; row_map int64[N].
    """
    count = 0
    for k in range(nodes.shape[0]):
        if node_map[k] >= 0:
            node_map[k] = count
            previous = nodes[k, y.NODE_PREVIOUS]
            row, other = nodes[k, y.NODE_ROW], nodes[k, y.NODE_STATE]
            nodes[count, y.NODE_ROW] = row_map[row] if row >= 0 else -1
            nodes[count, y.NODE_STATE] = other if row >= 0 else node_map[other]
            nodes[count, y.NODE_PREVIOUS] = node_map[previous] if previous >= 0 else -1
            count += 1
    return count
