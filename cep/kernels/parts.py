"""Rows of a keyed state ↔ rows part by part, and what points from one to another.

A run points to a node and to the row of its first event, registers of some rules to rows; a node points to a row, or
as a union to another node, and to the node before. Shapes, throughout: runs int64[n, W], run_rule int32[n], nodes
int64[m, NODE_WIDTH], row_registers uint8[rules, R], where not 0 says that a rule's register holds a row.
Tested by: tests/kernels/test_parts.py
"""

from __future__ import annotations

from typing import Any

from cep.kernels import layout as y
from cep.kernels.jit import bare


@bare
def order_by_part(part: Any, bounds: Any, cursor: Any, order: Any, place: Any) -> None:
    """The rows of each part one after the other, in their order.

    Shapes: part int64[N] in [0, P); out bounds int64[P + 1] and cursor int64[P], both zero before, of which bounds say
    where each part begins; out order int64[N] is the row that comes where, place int64[N] where a row is within its
    part.
    """
    for row in range(part.shape[0]):
        bounds[part[row] + 1] += 1
    for p in range(cursor.shape[0]):
        bounds[p + 1] += bounds[p]
    for row in range(part.shape[0]):
        p = part[row]
        place[row] = cursor[p]
        order[bounds[p] + cursor[p]] = row
        cursor[p] += 1


@bare
def point_to_places(runs: Any, run_rule: Any, nodes: Any, row_registers: Any, row_place: Any, node_place: Any) -> None:
    """Let runs and nodes point to where rows and nodes are within their parts; in place."""
    for i in range(runs.shape[0]):
        runs[i, y.RUN_NODE] = node_place[runs[i, y.RUN_NODE]]
        runs[i, y.RUN_START_ROW] = row_place[runs[i, y.RUN_START_ROW]]
        for k in range(row_registers.shape[1]):
            if row_registers[run_rule[i], k] != 0 and runs[i, y.RUN_HEADER + k] >= 0:
                runs[i, y.RUN_HEADER + k] = row_place[runs[i, y.RUN_HEADER + k]]
    for i in range(nodes.shape[0]):
        if nodes[i, y.NODE_ROW] >= 0:
            nodes[i, y.NODE_ROW] = row_place[nodes[i, y.NODE_ROW]]
        else:
            nodes[i, y.NODE_STATE] = node_place[nodes[i, y.NODE_STATE]]
        if nodes[i, y.NODE_PREVIOUS] >= 0:
            nodes[i, y.NODE_PREVIOUS] = node_place[nodes[i, y.NODE_PREVIOUS]]


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
        for i in range(node_bounds[p], node_bounds[p + 1]):
            if nodes[i, y.NODE_ROW] >= 0:
                nodes[i, y.NODE_ROW] += rows
            else:
                nodes[i, y.NODE_STATE] += before
            if nodes[i, y.NODE_PREVIOUS] >= 0:
                nodes[i, y.NODE_PREVIOUS] += before
    return True
