"""The runs of some keys of a keyed state, without their histories: what `partition_keys` must give for each part."""

import numpy as np
import pyarrow as pa

from cep.engine.keyed_state import KeyedState
from cep.kernels import layout as y
from cep.kernels.layout import Int64
from cep.kernels.pages.packed import renumber_pointers


def some_row(nodes: Int64) -> Int64:
    """Return the row of an event on each node's path: its own, or the row on one branch of a union."""
    rows = nodes[:, y.NODE_ROW].copy()
    open_ = np.flatnonzero(rows < 0)
    target = nodes[open_, y.NODE_STATE]
    while len(open_):
        rows[open_] = nodes[target, y.NODE_ROW]
        again = rows[open_] < 0
        open_, target = open_[again], nodes[target[again], y.NODE_STATE]
    return rows


def select_keys(keyed_state: KeyedState, is_selected: np.ndarray, row_registers: np.ndarray) -> KeyedState:
    """Return the runs of the keys that the mask bool[K] selects. Their order is unchanged."""
    in_runs = is_selected[keyed_state.run_key]
    in_events = is_selected[keyed_state.events.key]
    in_nodes = in_events[some_row(keyed_state.nodes)]
    new_key = np.cumsum(is_selected, dtype=np.int64) - 1
    new_row = np.cumsum(in_events, dtype=np.int64) - 1
    new_node = np.cumsum(in_nodes, dtype=np.int64) - 1
    runs = keyed_state.runs[in_runs]
    run_rule, nodes = keyed_state.run_rule[in_runs], keyed_state.nodes[in_nodes]
    renumber_pointers(runs, run_rule, nodes, row_registers, new_row, new_node)
    return KeyedState(
        keyed_state.layout,
        keyed_state.keys.filter(pa.array(is_selected)),
        runs,
        run_rule,
        new_key[keyed_state.run_key[in_runs]].astype(np.int32),
        nodes,
        keyed_state.events.take(np.flatnonzero(in_events), new_key),
    )
