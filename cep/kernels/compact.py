"""Live runs → what of the tree of bound events they can still reach.

Tested by: tests/engine/test_advance.py, tests/engine/test_against_oracle.py
"""

from __future__ import annotations

from typing import Any

from cep.kernels import layout as y
from cep.kernels.jit import bare
from cep.kernels.parts import point_runs


@bare
def compact(runs: Any, nodes: Any, row_registers: Any, run_rule: Any, node_map: Any, row_map: Any) -> Any:
    """Keep what live runs can reach: renumber nodes and rows in place.

    Shapes: runs int64[n, W], row_registers uint8[rules, registers] marks registers that hold rows,
    node_map int64[nodes] and row_map int64[N] come in as -1.
    Returns: (nodes kept, rows kept); row_map[row] is the new row. Order is unchanged.
    """
    for i in range(runs.shape[0]):
        node_map[runs[i, y.RUN_NODE]] = 0
    for k in range(nodes.shape[0] - 1, -1, -1):
        if node_map[k] >= 0:
            if nodes[k, y.NODE_ROW] >= 0:
                row_map[nodes[k, y.NODE_ROW]] = 0
            else:
                node_map[nodes[k, y.NODE_STATE]] = 0
            if nodes[k, y.NODE_PREVIOUS] >= 0:
                node_map[nodes[k, y.NODE_PREVIOUS]] = 0
    rows_kept = 0
    for row in range(row_map.shape[0]):
        if row_map[row] >= 0:
            row_map[row] = rows_kept
            rows_kept += 1
    nodes_kept = 0
    for k in range(nodes.shape[0]):
        if node_map[k] >= 0:
            node_map[k] = nodes_kept
            previous = nodes[k, y.NODE_PREVIOUS]
            row, other = nodes[k, y.NODE_ROW], nodes[k, y.NODE_STATE]
            nodes[nodes_kept, y.NODE_ROW] = row_map[row] if row >= 0 else -1
            nodes[nodes_kept, y.NODE_STATE] = other if row >= 0 else node_map[other]
            nodes[nodes_kept, y.NODE_PREVIOUS] = node_map[previous] if previous >= 0 else -1
            nodes_kept += 1
    point_runs(runs, run_rule, row_registers, row_map, node_map)
    return nodes_kept, rows_kept
