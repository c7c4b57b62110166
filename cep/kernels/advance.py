"""The matcher: carries the runs of one rule over the events of many keys.

States, transitions and the words are those of SASE (Agrawal et al., "Efficient Pattern Matching over Event Streams",
2008) as Flink CEP uses them, in another form: a run is in a position of the pattern (the last variable it took) and
has a set of open *waits*, one for each way to go on. An event that a wait takes makes a new run; a relaxed wait is
closed by that, an any-wait stays open, a strict wait is open for the very next event alone. So an event that no
condition names changes nothing, and is not looked at.

Bound events form a tree of nodes (row, state, previous): runs that share a prefix share its nodes.
The queue holds the rows that some condition of the rule may react to, by key and time; keys without any are only
visited if they have runs. Work on a key is restarted when an output array is full and has been enlarged.
While a key is worked on its runs are rows of `work`; row 0 is the start run, which has taken nothing and never closes.
Tested by: tests/kernels/test_advance.py, tests/engine/test_against_oracle.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cep.kernels import layout as y
from cep.kernels.jit import bare, inlined
from cep.kernels.matches import choose, emit, settle
from cep.kernels.merge import emit_all, merge_runs
from cep.kernels.runs import accepts, bit, close_due, close_missed, gaps_fit, guarded, suits, take

_FOREVER = np.int64(y.FOREVER)
_TIMED_OUT = np.int64(y.TIMED_OUT)
_COMPLETE = np.int64(y.COMPLETE)
_FREED = np.int64(y.FREED)
_FLAGS = np.int64(y.TIMED_OUT | y.FREED)
_ONE = np.int64(1)
_FEW_RUNS = 8  # up to this many, looking at each is cheaper than asking which states the event concerns


@bare
def _hold_back(work: Any, i: Any, runs: Any) -> Any:
    """Write the match that run i has become behind row `runs`; returns the new number of rows."""
    for c in range(work.shape[1]):
        work[runs, c] = work[i, c]
    work[runs, y.RUN_WAITS] = _COMPLETE
    work[runs, y.RUN_EXPIRY] = _FOREVER
    return runs + 1


@bare
def _fire(
    image: Any, rule: Any, columns: Any, nulls: Any, until: Any, detected: Any, seen: Any, i: Any, work: Any, runs: Any,
    nodes: Any, out: Any, matches: Any, machine: Any, counters: Any,
) -> Any:  # fmt: skip
    """Close the waits of run i whose time is up; report the match of an absence, or the time-out.

    `skip … in order` puts the match behind row `runs` instead. Returns (runs, matches).
    """
    reported = work[i, y.RUN_WAITS] & _TIMED_OUT != 0
    absent, ran_out = close_due(image, rule, columns, work, i, nodes, until)
    if work[i, y.RUN_WAITS] == 0:
        counters[y.COUNT_EXPIRED] += 1
    fresh = ran_out and rule[y.R_TIMEOUTS] != 0 and not reported
    if fresh and work[i, y.RUN_WAITS] != 0:
        work[i, y.RUN_WAITS] |= _TIMED_OUT
    if absent and rule[y.R_IN_ORDER] != 0:
        runs = _hold_back(work, i, runs)
        work[runs - 1, y.RUN_ORDINAL] = seen - 1  # completed by a deadline after the last event, not by that event
        absent = False
    if absent or fresh:
        kind = y.KIND_TIMEOUT if not absent else (y.KIND_BOTH if fresh else y.KIND_MATCH)
        last = nodes[work[i, y.RUN_NODE], y.NODE_ROW]
        emit(image, rule, columns, nulls, last, work, i, nodes, kind, detected, out, matches, machine, counters)
        matches += 1
    return runs, matches


@bare
def _release(
    image: Any, rule: Any, columns: Any, nulls: Any, detected: Any, work: Any, runs: Any, nodes: Any, out: Any,
    before: Any, matches: Any, machine: Any, counters: Any,
) -> Any:  # fmt: skip
    """Apply the rule's skip strategy after one event or deadline. Returns (matches, full)."""
    if rule[y.R_IN_ORDER] != 0:
        return settle(image, rule, columns, nulls, work, runs, nodes, detected, out, matches, machine, counters)
    if rule[y.R_SKIP] != y.SKIP_NONE and matches > before:
        matches = choose(image, rule, nodes, out, before, matches, work, runs)
    return matches, False


@bare
def _expire(
    image: Any, rule: Any, columns: Any, nulls: Any, until: Any, seen: Any, work: Any, runs: Any, nodes: Any, out: Any,
    matches: Any, machine: Any, counters: Any,
) -> Any:  # fmt: skip
    """Close what is over by `until`, deadline after deadline: absences match, other waits time out.

    The key's stream has had `seen` events by then. Returns (runs, matches, FULL_*). Closed runs have no waits left.
    """
    while True:
        due_ms = _FOREVER
        open_ = False
        for i in range(1, runs):
            if work[i, y.RUN_WAITS] != 0 and work[i, y.RUN_WAITS] != _COMPLETE:
                due_ms = min(due_ms, work[i, y.RUN_EXPIRY])
                open_ = True
        if due_ms > until or (due_ms >= _FOREVER and not open_):
            return runs, matches, y.FULL_NOT
        before, live = matches, runs
        for i in range(1, live):
            if work[i, y.RUN_WAITS] == 0 or work[i, y.RUN_WAITS] == _COMPLETE or work[i, y.RUN_EXPIRY] > due_ms:
                continue
            if matches >= out.shape[0]:
                return runs, matches, y.FULL_MATCHES
            if runs >= work.shape[0]:
                return runs, matches, y.FULL_WORK
            close_missed(image, work, i, seen)
            if work[i, y.RUN_WAITS] != 0:
                runs, matches = _fire(
                    image, rule, columns, nulls, due_ms, due_ms, seen, i, work, runs, nodes, out, matches, machine,
                    counters,
                )  # fmt: skip
        matches, stuck = _release(
            image, rule, columns, nulls, due_ms, work, runs, nodes, out, before, matches, machine, counters
        )
        if stuck:
            return runs, matches, y.FULL_MATCHES
        if due_ms >= _FOREVER:
            return runs, matches, y.FULL_NOT


@bare
def _expire_events(
    image: Any, rule: Any, columns: Any, nulls: Any, row: Any, work: Any, runs: Any, nodes: Any, out: Any, matches: Any,
    machine: Any, counters: Any,
) -> Any:  # fmt: skip
    """Close the runs whose window in events ends with the event in `row`. Returns (runs, matches, FULL_*)."""
    before, live = matches, runs
    ordinal, detected = columns[y.COLUMN_ORDINAL, row], columns[y.COLUMN_TIME, row]
    for i in range(1, live):
        over = ordinal - work[i, y.RUN_START_ORDINAL] >= rule[y.R_WITHIN_EVENTS]
        if not over or work[i, y.RUN_WAITS] == 0 or work[i, y.RUN_WAITS] == _COMPLETE:
            continue
        if matches >= out.shape[0]:
            return runs, matches, y.FULL_MATCHES
        if runs >= work.shape[0]:
            return runs, matches, y.FULL_WORK
        close_missed(image, work, i, ordinal)
        if work[i, y.RUN_WAITS] != 0:
            runs, matches = _fire(
                image, rule, columns, nulls, _FOREVER + 1, detected, ordinal, i, work, runs, nodes, out, matches,
                machine, counters,
            )  # fmt: skip
    matches, stuck = _release(
        image, rule, columns, nulls, detected, work, runs, nodes, out, before, matches, machine, counters
    )
    return runs, matches, y.FULL_MATCHES if stuck else y.FULL_NOT


@inlined
def _offer(
    image: Any, rule: Any, columns: Any, nulls: Any, bitmaps: Any, row: Any, new: Any, i: Any, work: Any, runs: Any,
    nodes: Any, node_count: Any, out: Any, matches: Any, limit: Any, trail: Any, machine: Any, counters: Any,
) -> Any:  # fmt: skip
    """Offer the event in `row` (new event number `new`) to run i: children go behind row `runs`, waits may close.

    Returns (runs, node count, matches, FULL_*).
    """
    waits = work[i, y.RUN_WAITS]
    nfa_state = image[y.HEADER_STATES] + work[i, y.RUN_STATE] * y.STATE_WIDTH
    full = y.FULL_NOT
    mask = _ONE
    for wait in range(image[nfa_state + y.S_WAITS], image[nfa_state + y.S_WAITS_END], y.WAIT_WIDTH):
        current, mask = mask, mask << _ONE
        if waits & current == 0:
            continue
        kind = image[wait + y.W_KIND]
        if kind == y.WAIT_STRICT and columns[y.COLUMN_ORDINAL, row] != work[i, y.RUN_ORDINAL] + 1:
            waits &= ~current
            continue
        fits = 1
        if i > 0 and image[wait + y.W_BOUNDS] < image[wait + y.W_BOUNDS_END]:
            fits = gaps_fit(image, wait, columns, row, work, i, nodes)
        guards = image[wait + y.W_GUARDS] < image[wait + y.W_GUARDS_END]
        if guards and fits >= 0:
            if guarded(image, wait, True, columns, nulls, bitmaps, row, new, work, i, nodes, machine, counters):
                fits = -1
            elif kind >= y.WAIT_ABSENCE:  # which takes nothing: whatever is forbidden breaks it
                if guarded(image, wait, False, columns, nulls, bitmaps, row, new, work, i, nodes, machine, counters):
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
            accepted = accepts(image, work, runs)
            if accepted and rule[y.R_MERGES] != 0:
                node_count, matches, full = emit_all(
                    image, rule, columns, nulls, row, work, runs, runs + 1, nodes, node_count, out, matches, limit,
                    trail, machine, counters,
                )  # fmt: skip
                if full != y.FULL_NOT:
                    break
            elif accepted and rule[y.R_IN_ORDER] == 0:
                emit(
                    image, rule, columns, nulls, row, work, runs, nodes, y.KIND_MATCH, columns[y.COLUMN_TIME, row], out,
                    matches, machine, counters,
                )  # fmt: skip
                matches += 1
            child = runs
            if work[runs, y.RUN_WAITS] != 0:
                runs += 1
            if accepted and rule[y.R_IN_ORDER] != 0:
                runs = _hold_back(work, child, runs)
            if kind != y.WAIT_ANY:
                waits &= ~current
        elif kind == y.WAIT_STRICT:
            waits &= ~current
        elif kind == y.WAIT_ABSENCE_NEXT:
            if matches >= out.shape[0] or runs >= work.shape[0]:
                full = y.FULL_MATCHES if matches >= out.shape[0] else y.FULL_WORK
                break
            if rule[y.R_IN_ORDER] != 0:
                runs = _hold_back(work, i, runs)
                work[runs - 1, y.RUN_ORDINAL] = columns[y.COLUMN_ORDINAL, row]
            else:
                emit(
                    image, rule, columns, nulls, row, work, i, nodes, y.KIND_MATCH, columns[y.COLUMN_TIME, row], out,
                    matches, machine, counters,
                )  # fmt: skip
                matches += 1
            waits &= ~current
        if guards and waits & current != 0:
            if guarded(image, wait, False, columns, nulls, bitmaps, row, new, work, i, nodes, machine, counters):
                waits &= ~current
    if i > 0:
        waits |= work[i, y.RUN_WAITS] & _FREED
        work[i, y.RUN_WAITS] = 0 if waits & ~_FLAGS == 0 else waits
    return runs, node_count, matches, full


@inlined
def _tidy(rule: Any, work: Any, runs: Any, counters: Any) -> Any:
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
def _moved_states(image: Any, rule: Any, bitmaps: Any, new: Any) -> Any:
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


@bare
def _on_event(
    image: Any, rule: Any, columns: Any, nulls: Any, bitmaps: Any, row: Any, new: Any, work: Any, runs: Any, nodes: Any,
    node_count: Any, out: Any, matches: Any, trail: Any, machine: Any, counters: Any,
) -> Any:  # fmt: skip
    """One event of a key: expire, offer to every run and the start run, apply the skip strategy, tidy up.

    Returns (runs, node count, matches, FULL_*).
    """
    time = columns[y.COLUMN_TIME, row]
    if rule[y.R_FIRES] != 0:
        seen = columns[y.COLUMN_ORDINAL, row]
        runs, matches, full = _expire(
            image, rule, columns, nulls, time, seen, work, runs, nodes, out, matches, machine, counters
        )
        if full == y.FULL_NOT and rule[y.R_WITHIN_EVENTS] < _FOREVER:
            runs, matches, full = _expire_events(
                image, rule, columns, nulls, row, work, runs, nodes, out, matches, machine, counters
            )
        if full != y.FULL_NOT:
            return runs, node_count, matches, full
    before, live = matches, runs
    first = 0 if time >= rule[y.R_FROM_MS] and time < rule[y.R_STARTS_UNTIL_MS] else 1
    closed = rule[y.R_FIRES] != 0 or runs - 1 >= rule[y.R_RUNS_MAX]
    earliest_ordinal = columns[y.COLUMN_ORDINAL, row] - rule[y.R_WITHIN_EVENTS]
    # With many runs, those whose state no condition of the event speaks of are passed over, but for a full look now
    # and then that drops what has expired.
    choosy = live > _FEW_RUNS and new & 63 != 0 and rule[y.R_FIRES] == 0 and rule[y.R_REACTS_TO_ALL] == 0
    moved = _moved_states(image, rule, bitmaps, new) if choosy else np.int64(-1)
    for i in range(first, live):
        if work[i, y.RUN_WAITS] == 0 or work[i, y.RUN_WAITS] == _COMPLETE:
            continue
        if i > 0 and choosy and (moved >> min(np.int64(62), work[i, y.RUN_STATE] - rule[y.R_START_STATE])) & 1 == 0:
            continue
        if i > 0 and (work[i, y.RUN_EXPIRY] <= time or work[i, y.RUN_START_ORDINAL] <= earliest_ordinal):
            work[i, y.RUN_WAITS] = 0
            counters[y.COUNT_EXPIRED] += 1
            closed = True
            continue
        counters[y.COUNT_STEPS] += 1
        runs, node_count, matches, full = _offer(
            image, rule, columns, nulls, bitmaps, row, new, i, work, runs, nodes, node_count, out, matches,
            before + rule[y.R_MATCHES_MAX], trail, machine, counters,
        )  # fmt: skip
        if full != y.FULL_NOT:
            return runs, node_count, matches, full
        closed = closed or work[i, y.RUN_WAITS] == 0
    if rule[y.R_MERGES] != 0 and runs > live:
        node_count, stuck = merge_runs(rule, work, live, runs, nodes, node_count)
        closed = True
        if stuck:
            return runs, node_count, matches, y.FULL_NODES
    if matches > before or rule[y.R_IN_ORDER] != 0:
        closed = closed or rule[y.R_SKIP] != y.SKIP_NONE
        matches, stuck = _release(
            image, rule, columns, nulls, time, work, runs, nodes, out, before, matches, machine, counters
        )
        if stuck:
            return runs, node_count, matches, y.FULL_MATCHES
        if matches - before > rule[y.R_MATCHES_MAX]:
            counters[y.COUNT_DROPPED] += matches - before - rule[y.R_MATCHES_MAX]
            matches = before + rule[y.R_MATCHES_MAX]
    if closed:
        runs = _tidy(rule, work, runs, counters)
    return runs, node_count, matches, y.FULL_NOT


@bare
def _save(
    image: Any, rule: Any, key: Any, seen: Any, work: Any, runs: Any, out_runs: Any, out_keys: Any, out_count: Any
) -> Any:
    """Write the key's runs behind row out_count; returns the new count, or -1 if they do not fit.

    `seen` is the number of events that the key's stream has had in this batch: ordinals become relative to the key's
    next event, and strict waits that have missed theirs are closed.
    """
    if out_count + runs - 1 > out_runs.shape[0]:
        return -1
    for i in range(1, runs):
        close_missed(image, work, i, seen)
        over = rule[y.R_FIRES] == 0 and seen - work[i, y.RUN_START_ORDINAL] >= rule[y.R_WITHIN_EVENTS]
        if over or work[i, y.RUN_WAITS] == 0:
            continue
        for c in range(work.shape[1]):
            out_runs[out_count, c] = work[i, c]
        out_runs[out_count, y.RUN_ORDINAL] -= seen
        out_runs[out_count, y.RUN_START_ORDINAL] -= seen
        out_keys[out_count] = key
        out_count += 1
    return out_count


@bare
def _on_end(
    image: Any, rule: Any, columns: Any, nulls: Any, watermark: Any, seen: Any, work: Any, runs: Any, nodes: Any,
    out: Any, matches: Any, machine: Any, counters: Any,
) -> Any:  # fmt: skip
    """Close what is over by the watermark once a key's events are done; returns (runs, matches, FULL_*)."""
    full = y.FULL_NOT
    if rule[y.R_FIRES] != 0:
        runs, matches, full = _expire(
            image, rule, columns, nulls, watermark, seen, work, runs, nodes, out, matches, machine, counters
        )
    else:
        for i in range(1, runs):
            if work[i, y.RUN_EXPIRY] <= watermark and work[i, y.RUN_WAITS] != 0:
                work[i, y.RUN_WAITS] = 0
                counters[y.COUNT_EXPIRED] += 1
    return _tidy(rule, work, runs, counters), matches, full


@bare
def advance_rule(
    image: Any, rule: Any, columns: Any, nulls: Any, bitmaps: Any, first_row: Any, stream_count: Any, queue: Any,
    start_run: Any, in_runs: Any, in_keys: Any, watermark: Any, work: Any, nodes: Any, out: Any, out_runs: Any,
    out_keys: Any, trail: Any, machine: Any, cursor: Any, counters: Any, held: Any,
) -> Any:  # fmt: skip
    """Carry one rule over the queued events and close what is over by the watermark.

    Shapes: image and rule as in layout.py; columns int64[C, N] and nulls uint8[C, N] of the event table, of which rows
    from first_row on are new; bitmaps uint64[P, words] of the new ones; stream_count int32[K]; queue int32[Q] rows,
    ascending; in_runs int64[n, W] with in_keys int32[n], by key; start_run int64[W]; held int64[COUNTERS] is scratch.
    cursor says where to begin and is left where to go on; outputs are written from the cursor's counts on.
    Returns: FULL_NOT when all is done, else what to enlarge before the next call.
    Cost: O(queued events x open runs of their key).
    """
    for c in range(start_run.shape[0]):
        work[0, c] = start_run[c]
    while cursor[y.CURSOR_QUEUE] < queue.shape[0] or cursor[y.CURSOR_RUN] < in_keys.shape[0]:
        at, run_at = cursor[y.CURSOR_QUEUE], cursor[y.CURSOR_RUN]
        node_count, matches, out_count = cursor[y.CURSOR_NODES], cursor[y.CURSOR_MATCHES], cursor[y.CURSOR_OUT]
        key = _FOREVER
        if at < queue.shape[0]:
            key = columns[y.COLUMN_KEY, queue[at]]
        if run_at < in_keys.shape[0]:
            key = min(key, np.int64(in_keys[run_at]))
        for c in range(y.COUNTERS):
            held[c] = counters[c]
        runs = 1
        full = y.FULL_NOT
        while run_at < in_keys.shape[0] and in_keys[run_at] == key:
            if runs >= work.shape[0]:
                return y.FULL_WORK
            for c in range(work.shape[1]):
                work[runs, c] = in_runs[run_at, c]
            runs += 1
            run_at += 1
        while at < queue.shape[0] and columns[y.COLUMN_KEY, queue[at]] == key and full == y.FULL_NOT:
            row = np.int64(queue[at])
            at += 1
            time = columns[y.COLUMN_TIME, row]
            starts = time >= rule[y.R_FROM_MS] and time < rule[y.R_STARTS_UNTIL_MS]
            outside = rule[y.R_COUNTS] != 0 and columns[y.COLUMN_ORDINAL, row] < 0
            if time < rule[y.R_UNTIL_MS] and (starts or runs > 1) and not outside:
                runs, node_count, matches, full = _on_event(
                    image, rule, columns, nulls, bitmaps, row, row - first_row, work, runs, nodes, node_count, out,
                    matches, trail, machine, counters,
                )  # fmt: skip
        if full == y.FULL_NOT and runs > 1:
            runs, matches, full = _on_end(
                image, rule, columns, nulls, watermark, stream_count[key], work, runs, nodes, out, matches, machine,
                counters,
            )  # fmt: skip
            if full == y.FULL_NOT:
                out_count = _save(image, rule, key, stream_count[key], work, runs, out_runs, out_keys, out_count)
                full = y.FULL_OUT if out_count < 0 else y.FULL_NOT
        if full != y.FULL_NOT:
            for c in range(y.COUNTERS):
                counters[c] = held[c]
            return full
        cursor[y.CURSOR_QUEUE], cursor[y.CURSOR_RUN] = at, run_at
        cursor[y.CURSOR_NODES], cursor[y.CURSOR_MATCHES], cursor[y.CURSOR_OUT] = node_count, matches, out_count
    return y.FULL_NOT


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
    for i in range(runs.shape[0]):
        runs[i, y.RUN_NODE] = node_map[runs[i, y.RUN_NODE]]
        runs[i, y.RUN_START_ROW] = row_map[runs[i, y.RUN_START_ROW]]
        for r in range(row_registers.shape[1]):
            if row_registers[run_rule[i], r] != 0 and runs[i, y.RUN_HEADER + r] >= 0:
                runs[i, y.RUN_HEADER + r] = row_map[runs[i, y.RUN_HEADER + r]]
    return nodes_kept, rows_kept
