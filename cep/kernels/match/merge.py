"""Runs with the same future share one row, so that repetition in every combination stays linear.

Two runs with the same start, the same open waits, and equal registers where a condition may read them differ only in
their bound events. They become one run, and their bindings meet in a *union* node:

    node row   | -1 | node | other node |          both paths lead here

So `a+ any -> b` over thirty a has thirty runs and not 2**30. When such a run matches, its bindings are read from the
graph one by one, up to a limit, and written as plain chains of nodes. The graph has the shape of tECS (Bucchi, Grez,
Quintana, Riveros, Vansummeren, "CORE: a Complex Event Recognition Engine", 2022).
Tested by: tests/kernels/test_room.py, tests/engine/test_advance.py, tests/engine/test_against_oracle.py.
"""

import numpy as np

from cep.kernels import layout as y
from cep.kernels.jit import bare
from cep.kernels.layout import Int64, UInt8, int64
from cep.kernels.match.matches import emit
from cep.kernels.match.runs import update_registers
from cep.kernels.pages.packed import renumber_run_pointers
from cep.kernels.records import Counts, Events, LiveRuns, NewNumbers, Remaining, Rule, Work
from cep.kernels.siphash import begin, finish, take_word

_FEW_RUNS = 8  # new runs per event: up to this number, comparing each with all runs is cheaper than a hash table


@bare
def _has_same_future(words: Int64, runs: Int64, a: int, b: int) -> bool:
    """Return True if runs a and b have the same future. `words` are the rule's, runs int64[*, W]."""
    if runs[a, y.RUN_START_ROW] != runs[b, y.RUN_START_ROW] or runs[a, y.RUN_STATE] != runs[b, y.RUN_STATE]:
        return False
    if runs[a, y.RUN_OPEN_WAITS] != runs[b, y.RUN_OPEN_WAITS]:
        return False
    control = words[y.R_CONTROL]
    for r in range(runs.shape[1] - y.RUN_HEADER):
        if (control >> int64(r)) & 1 != 0 and runs[a, y.RUN_HEADER + r] != runs[b, y.RUN_HEADER + r]:
            return False
    return True


@bare
def _first_slot(words: Int64, work: Work, i: int, size: int) -> int:
    """Return where the search for runs with the same future as run i begins, in a hash table of `size` slots (2^n).

    The future depends on the start, state, open waits, and registers that a condition reads (bits of R_CONTROL). A
    register may hold a sum that a sender chooses, so the hash has a secret key (siphash.py).
    """
    runs = work.runs
    sip = take_word(begin(work.table_key), np.uint64(runs[i, y.RUN_START_ROW]))
    sip = take_word(sip, np.uint64(runs[i, y.RUN_STATE]))
    sip = take_word(sip, np.uint64(runs[i, y.RUN_OPEN_WAITS]))
    control = words[y.R_CONTROL]
    for r in range(runs.shape[1] - y.RUN_HEADER):
        if (control >> int64(r)) & 1 != 0:
            sip = take_word(sip, np.uint64(runs[i, y.RUN_HEADER + r]))
    return int64(finish(sip) & np.uint64(size - 1))


@bare
def _first_with_same_future(words: Int64, runs: Int64, i: int) -> int:
    """Return the first open row before row i with the same future; 0 if there is none."""
    for twin in range(1, i):
        if runs[twin, y.RUN_OPEN_WAITS] != 0 and _has_same_future(words, runs, i, twin):
            return twin
    return 0


@bare
def _find_or_add_in_table(words: Int64, work: Work, i: int, table: Int64, size: int) -> int:
    """Return the row in the hash table with the same future; 0 if there is none, after adding row i."""
    slot, runs = _first_slot(words, work, i, size), work.runs
    while table[slot, 0] != 0 and not _has_same_future(words, runs, i, table[slot, 0]):
        slot = (slot + 1) & (size - 1)
    if table[slot, 0] == 0:
        table[slot, 0] = i
        return 0
    return table[slot, 0]


@bare
def merge_runs(words: Int64, work: Work, first_new: int, counts: Counts, table: Int64) -> Counts:
    """Join each new run, in rows [first_new, counts.runs), to its twin: the first row with the same future.

    Twins are equal in their start, state, open waits, and registers that a condition reads. Their bindings meet in a
    union, a node with two previous nodes. The new run loses its waits, so it is dropped later.
    With many new runs, the first column of table int64[*, 3], the matcher's stack, becomes a hash table of rows; if it
    is too short, FULL_STACK is returned. `words` are the rule's. Cost: O(runs).
    """
    runs, nodes, node_count = work.runs, work.nodes, counts.nodes
    is_few = counts.runs - first_new <= _FEW_RUNS
    size = 2
    while not is_few and size < 2 * counts.runs:
        size *= 2
    if size > table.shape[0]:
        return Counts(counts.runs, node_count, counts.matches, y.FULL_STACK)
    for slot in range(size):
        table[slot, 0] = 0
    for i in range(first_new if is_few else 1, counts.runs):  # the table needs old runs too
        if runs[i, y.RUN_OPEN_WAITS] == 0:
            continue
        twin = _first_with_same_future(words, runs, i) if is_few else _find_or_add_in_table(words, work, i, table, size)
        if twin == 0 or i < first_new:  # 0: it has none; old runs are only put into the table
            continue
        if node_count >= nodes.shape[0]:
            return Counts(counts.runs, node_count, counts.matches, y.FULL_NODES)
        nodes[node_count, y.NODE_ROW] = -1  # a union is without an event; its NODE_STATE is the second previous node
        nodes[node_count, y.NODE_STATE] = runs[twin, y.RUN_NODE]
        nodes[node_count, y.NODE_PREVIOUS] = runs[i, y.RUN_NODE]
        runs[twin, y.RUN_NODE] = node_count
        runs[i, y.RUN_OPEN_WAITS] = 0
        node_count += 1
    return Counts(counts.runs, node_count, counts.matches, y.NOT_FULL)


@bare
def emit_all(
    rule: Rule, events: Events, row: int, work: Work, run: int, counts: Counts, limit: int, stack: Int64
) -> Counts:
    """Write every match of the run, up to match number `limit`; count one drop if there are more.

    The row after the run's row is scratch for each match's registers, and stack int64[*, 3] is scratch.
    """
    depth_of, node_of, path = 0, 1, 2
    runs, nodes = work.runs, work.nodes
    node_count, matches, scratch = counts.nodes, counts.matches, run + 1
    stack[0, depth_of], stack[0, node_of] = 0, runs[run, y.RUN_NODE]
    top = 1
    while top > 0:
        top -= 1
        depth, node = stack[top, depth_of], stack[top, node_of]
        # Follow one path to the first event; other branches wait on the stack.
        while node >= 0:
            if max(top, depth) + 1 >= stack.shape[0]:
                return Counts(counts.runs, node_count, matches, y.FULL_STACK)
            if nodes[node, y.NODE_ROW] < 0:
                stack[top, depth_of], stack[top, node_of] = depth, nodes[node, y.NODE_PREVIOUS]
                top += 1
                node = nodes[node, y.NODE_STATE]
            else:
                stack[depth, path] = node
                depth += 1
                node = nodes[node, y.NODE_PREVIOUS]
        if matches >= limit:
            work.counters[y.COUNT_DROPPED] += 1
            return Counts(counts.runs, node_count, matches, y.NOT_FULL)
        if matches >= work.matches.shape[0]:
            return Counts(counts.runs, node_count, matches, y.FULL_MATCHES)
        if node_count + depth > nodes.shape[0]:
            return Counts(counts.runs, node_count, matches, y.FULL_NODES)
        for c in range(runs.shape[1]):
            runs[scratch, c] = runs[0, c]
        previous = int64(-1)
        for k in range(depth - 1, -1, -1):
            bound = stack[k, path]
            target = nodes[bound, y.NODE_STATE]
            nodes[node_count, y.NODE_ROW] = nodes[bound, y.NODE_ROW]
            nodes[node_count, y.NODE_STATE] = target
            nodes[node_count, y.NODE_PREVIOUS] = previous
            previous = node_count
            node_count += 1
            nfa_state = rule.image[y.HEADER_STATES] + target * y.STATE_WIDTH
            update_registers(rule.image, nfa_state, events, nodes[bound, y.NODE_ROW], work, scratch)
        runs[scratch, y.RUN_START_ROW] = runs[run, y.RUN_START_ROW]
        runs[scratch, y.RUN_NODE] = previous
        emit(rule, events, row, work, scratch, matches, y.KIND_MATCH, events.columns[y.COLUMN_TIME, row])
        matches += 1
    return Counts(counts.runs, node_count, matches, y.NOT_FULL)


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
    renumber_run_pointers(runs, live.rules, row_registers, row_map, node_map)
    for i in range(live.keys.shape[0]):
        live.keys[i] = key_map[live.keys[i]]
    return nodes_count, rows_count, keys_count


@bare
def _compact_nodes(nodes: Int64, node_map: Int64, row_map: Int64) -> int:
    """Move the needed nodes to the first rows, in their order, and renumber references to them. Return their number.

    A node is an event that runs have bound, with a link to the previous node. Without a row, it is a union of two
    paths, with its other previous node in NODE_STATE. Shapes: nodes int64[m, NODE_WIDTH]; node_map int64[m], -1 for
    dropped nodes, becomes the new numbers; row_map int64[N] has the new numbers of rows.
    """
    count = 0
    for k in range(nodes.shape[0]):
        if node_map[k] >= 0:
            node_map[k] = count
            previous = nodes[k, y.NODE_PREVIOUS]
            row, state_or_other = nodes[k, y.NODE_ROW], nodes[k, y.NODE_STATE]
            nodes[count, y.NODE_ROW] = row_map[row] if row >= 0 else -1
            nodes[count, y.NODE_STATE] = state_or_other if row >= 0 else node_map[state_or_other]
            nodes[count, y.NODE_PREVIOUS] = node_map[previous] if previous >= 0 else -1
            count += 1
    return count
