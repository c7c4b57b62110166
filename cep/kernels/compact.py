"""Live runs → what of the tree of bound events they can still reach.

Tested by: tests/engine/test_advance.py, tests/engine/test_against_oracle.py
"""

from __future__ import annotations

from typing import Any

from cep.kernels import layout as y
from cep.kernels.jit import bare
from cep.kernels.parts import point_runs


@bare
def compact(
    runs: Any, run_rule: Any, run_key: Any, nodes: Any, row_registers: Any, key_of_row: Any, node_map: Any,
    row_map: Any, key_map: Any, rows: Any, row_keys: Any, keys: Any,
) -> Any:  # fmt: skip
    """Keep what live runs can reach: renumber nodes, rows and keys in place.

    Shapes: runs int64[n, W] with run_rule and run_key int32[n]; row_registers uint8[rules, registers] marks registers
    that hold rows; key_of_row int64[N]. Filled are node_map int64[nodes], row_map int64[N] and key_map int32[K], what
    the new number of each is, or -1; rows int64[N] and keys int64[K] begin with the old numbers of what is kept,
    row_keys int32[N] with the new number of each kept row's key.
    Returns: (nodes kept, rows kept, keys kept). Order is unchanged.
    """
    node_map[:] = -1
    row_map[:] = -1
    key_map[:] = -1
    for i in range(runs.shape[0]):
        node_map[runs[i, y.RUN_NODE]] = 0
        key_map[run_key[i]] = 0
    for k in range(nodes.shape[0] - 1, -1, -1):
        if node_map[k] >= 0:
            if nodes[k, y.NODE_ROW] >= 0:
                row_map[nodes[k, y.NODE_ROW]] = 0
            else:
                node_map[nodes[k, y.NODE_STATE]] = 0
            if nodes[k, y.NODE_PREVIOUS] >= 0:
                node_map[nodes[k, y.NODE_PREVIOUS]] = 0
    keys_kept = 0
    for key in range(key_map.shape[0]):
        if key_map[key] >= 0:
            key_map[key] = keys_kept
            keys[keys_kept] = key
            keys_kept += 1
    rows_kept = 0
    for row in range(row_map.shape[0]):
        if row_map[row] >= 0:
            row_map[row] = rows_kept
            rows[rows_kept] = row
            row_keys[rows_kept] = key_map[key_of_row[row]]
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
    for i in range(run_key.shape[0]):
        run_key[i] = key_map[run_key[i]]
    return nodes_kept, rows_kept, keys_kept
