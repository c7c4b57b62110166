"""One event offered to one run: what it becomes, which of its waits close, and what is left of a key's runs.

Tested by: tests/kernels/test_merge.py, tests/engine/test_advance.py, tests/engine/test_against_oracle.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cep.kernels import layout as y
from cep.kernels.jit import bare, inlined
from cep.kernels.matches import emit
from cep.kernels.merge import emit_all
from cep.kernels.runs import accepts, bit, gaps_fit, guarded, suits, take

_FOREVER = np.int64(y.FOREVER)
_COMPLETE = np.int64(y.COMPLETE)
_ONE = np.int64(1)


@bare
def hold_back(work: Any, i: Any, runs: Any) -> Any:
    """Write the match that run i has become behind row `runs`; returns the new number of rows."""
    for c in range(work.shape[1]):
        work[runs, c] = work[i, c]
    work[runs, y.RUN_WAITS] = _COMPLETE
    work[runs, y.RUN_EXPIRY] = _FOREVER
    return runs + 1


@inlined
def _settle_child(
    image: Any, rule: Any, columns: Any, nulls: Any, row: Any, work: Any, runs: Any, nodes: Any, node_count: Any,
    out: Any, matches: Any, limit: Any, trail: Any, machine: Any, counters: Any,
) -> Any:  # fmt: skip
    """Keep the child in row `runs` if it waits for more, and report it if it is a match.

    Returns (runs, node count, matches, FULL_*).
    """
    accepted = accepts(image, work, runs)
    child = runs
    if accepted and rule[y.R_MERGES] != 0:
        node_count, matches, full = emit_all(
            image, rule, columns, nulls, row, work, runs, runs + 1, nodes, node_count, out, matches, limit, trail,
            machine, counters,
        )  # fmt: skip
        if full != y.FULL_NOT:
            return runs, node_count, matches, full
    elif accepted and rule[y.R_IN_ORDER] == 0:
        emit(
            image, rule, columns, nulls, row, work, runs, nodes, y.KIND_MATCH, columns[y.COLUMN_TIME, row], out,
            matches, machine, counters,
        )  # fmt: skip
        matches += 1
    if work[child, y.RUN_WAITS] != 0:
        runs += 1
    if accepted and rule[y.R_IN_ORDER] != 0:
        runs = hold_back(work, child, runs)
    return runs, node_count, matches, y.FULL_NOT


@inlined
def offer(
    image: Any, rule: Any, columns: Any, nulls: Any, bitmaps: Any, row: Any, new: Any, i: Any, work: Any, runs: Any,
    nodes: Any, node_count: Any, out: Any, matches: Any, limit: Any, trail: Any, machine: Any, counters: Any,
) -> Any:  # fmt: skip
    """Offer the event in `row` (new event number `new`) to run i: children go behind row `runs`, waits may close.

    Returns (runs, node count, matches, FULL_*).
    """
    waits = work[i, y.RUN_WAITS]
    nfa_state = image[y.HEADER_STATES] + work[i, y.RUN_STATE] * y.STATE_WIDTH
    full, mask = y.FULL_NOT, _ONE
    for wait in range(image[nfa_state + y.S_WAITS], image[nfa_state + y.S_WAITS_END], y.WAIT_WIDTH):
        current, mask = mask, mask << _ONE
        if waits & current == 0:
            continue
        kind = image[wait + y.W_KIND]
        fits = 1
        if kind == y.WAIT_STRICT and columns[y.COLUMN_ORDINAL, row] != work[i, y.RUN_ORDINAL] + 1:
            fits = -1
        elif i > 0 and image[wait + y.W_BOUNDS] < image[wait + y.W_BOUNDS_END]:
            fits = gaps_fit(image, wait, columns, row, work, i, nodes)
        guards = image[wait + y.W_GUARDS] < image[wait + y.W_GUARDS_END]
        if guards and fits >= 0:
            if guarded(image, wait, waits, True, columns, nulls, bitmaps, row, new, work, i, nodes, machine, counters):
                fits = -1
            elif kind >= y.WAIT_ABSENCE and guarded(  # it takes nothing: whatever is forbidden breaks it
                image, wait, waits, False, columns, nulls, bitmaps, row, new, work, i, nodes, machine, counters
            ):
                fits = -1
        if fits < 0:
            waits &= ~current
            continue
        takes = False
        if fits > 0 and kind < y.WAIT_ABSENCE:
            takes = suits(image, wait, columns, nulls, bitmaps, row, new, work, i, nodes, machine, counters)
        if takes:
            if runs + 1 >= work.shape[0] or node_count >= nodes.shape[0] or matches >= out.shape[0]:
                full = y.FULL_WORK if runs + 1 >= work.shape[0] else y.FULL_MATCHES
                full = y.FULL_NODES if node_count >= nodes.shape[0] else full
                break
            take(image, rule, wait, columns, nulls, row, work, i, runs, nodes, node_count, counters)
            node_count += 1
            runs, node_count, matches, full = _settle_child(
                image, rule, columns, nulls, row, work, runs, nodes, node_count, out, matches, limit, trail, machine,
                counters,
            )  # fmt: skip
            if full != y.FULL_NOT:
                break
            if kind != y.WAIT_ANY and waits & image[wait + y.W_REOPENS] == 0:
                waits &= ~current
        elif kind == y.WAIT_STRICT:
            waits &= ~current
        elif kind == y.WAIT_ABSENCE_NEXT:
            if matches >= out.shape[0] or runs >= work.shape[0]:
                full = y.FULL_MATCHES if matches >= out.shape[0] else y.FULL_WORK
                break
            if rule[y.R_IN_ORDER] != 0:
                runs = hold_back(work, i, runs)
                work[runs - 1, y.RUN_ORDINAL] = columns[y.COLUMN_ORDINAL, row]
            else:
                emit(
                    image, rule, columns, nulls, row, work, i, nodes, y.KIND_MATCH, columns[y.COLUMN_TIME, row], out,
                    matches, machine, counters,
                )  # fmt: skip
                matches += 1
            waits &= ~current
        if guards and waits & current != 0:
            if guarded(image, wait, waits, False, columns, nulls, bitmaps, row, new, work, i, nodes, machine, counters):
                waits &= ~current
    if i > 0:
        every = (1 << np.int64((image[nfa_state + y.S_WAITS_END] - image[nfa_state + y.S_WAITS]) // y.WAIT_WIDTH)) - 1
        waits |= work[i, y.RUN_WAITS] & ~every  # stop events that have ended the greed of a loop
        work[i, y.RUN_WAITS] = 0 if waits & (every | _COMPLETE) == 0 else waits
    return runs, node_count, matches, full


@inlined
def tidy(rule: Any, work: Any, runs: Any, counters: Any) -> Any:
    """Drop the runs without waits, keep the order, and drop the oldest beyond the limit; returns how many are left."""
    kept = 1
    for i in range(1, runs):
        if work[i, y.RUN_WAITS] != 0:
            if kept != i:
                for c in range(work.shape[1]):
                    work[kept, c] = work[i, c]
            kept += 1
    surplus = kept - 1 - rule[y.R_RUNS_MAX]
    if surplus > 0:
        counters[y.COUNT_EVICTED] += surplus
        for i in range(1, kept - surplus):
            for c in range(work.shape[1]):
                work[i, c] = work[i + surplus, c]
        kept -= surplus
    return kept


@bare
def moved_states(image: Any, rule: Any, bitmaps: Any, new: Any) -> Any:
    """A bit for each NFA state of the rule that the event may concern; bit 62 stands for all from the 63rd on."""
    moved = np.int64(1) << np.int64(62)
    states = image[y.HEADER_STATES]
    for number in range(rule[y.R_START_STATE], min(rule[y.R_END_STATE], rule[y.R_START_STATE] + 62)):
        nfa_state = states + number * y.STATE_WIDTH
        concerned = False
        for wait in range(image[nfa_state + y.S_WAITS], image[nfa_state + y.S_WAITS_END], y.WAIT_WIDTH):
            predicate = image[wait + y.W_PREDICATE]
            if image[wait + y.W_KIND] != y.WAIT_ABSENCE and (predicate < 0 or bit(bitmaps, predicate, new)):
                concerned = True
            for g in range(image[wait + y.W_GUARDS], image[wait + y.W_GUARDS_END], y.GUARD_WIDTH):
                predicate = image[g + y.G_PREDICATE]
                if predicate < 0 or bit(bitmaps, predicate, new):
                    concerned = True
        if concerned:
            moved |= np.int64(1) << np.int64(number - rule[y.R_START_STATE])
    return moved
