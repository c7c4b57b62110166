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
Tested by: tests/engine/test_advance.py, tests/engine/test_against_oracle.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cep.kernels import layout as y
from cep.kernels.jit import bare
from cep.kernels.matches import choose, emit, same_bindings, settle
from cep.kernels.merge import merge_runs
from cep.kernels.offer import hold_back, moved_states, offer, tidy
from cep.kernels.runs import close_due, close_missed, next_key

_FOREVER = np.int64(y.FOREVER)
_TIMED_OUT = np.int64(y.TIMED_OUT)
_COMPLETE = np.int64(y.COMPLETE)
_BY_DEADLINE = np.int64(2 * y.FOREVER + 1)  # and a time is more than FOREVER, and fits
_FEW_RUNS = 8  # up to this many, looking at each is cheaper than asking which states the event concerns


@bare
def _tell_alike(image: Any, rule: Any, i: Any, work: Any, runs: Any, nodes: Any) -> None:
    """Note in run i, and in the runs that have bound the same on another way, that the time-out has been reported."""
    if work[i, y.RUN_WAITS] != 0:
        work[i, y.RUN_WAITS] |= _TIMED_OUT
    if rule[y.R_REPEATS] != 0:
        for k in range(1, runs):
            open_ = work[k, y.RUN_WAITS] != 0 and work[k, y.RUN_WAITS] != _COMPLETE
            if (
                open_
                and work[k, y.RUN_START_ROW] == work[i, y.RUN_START_ROW]
                and same_bindings(image, nodes, work[k, y.RUN_NODE], work[i, y.RUN_NODE])
            ):
                work[k, y.RUN_WAITS] |= _TIMED_OUT


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
    if fresh:
        _tell_alike(image, rule, i, work, runs, nodes)
    if absent and rule[y.R_IN_ORDER] != 0:
        runs = hold_back(work, i, runs)
        # Completed by a deadline: after the last event, and after the matches that it has completed.
        work[runs - 1, y.RUN_ORDINAL] = seen - 1
        work[runs - 1, y.RUN_EXPIRY] = _BY_DEADLINE + detected
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
    moved = moved_states(image, rule, bitmaps, new) if choosy else np.int64(-1)
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
        runs, node_count, matches, full = offer(
            image, rule, columns, nulls, bitmaps, row, new, i, work, runs, nodes, node_count, out, matches,
            before + rule[y.R_MATCHES_MAX], trail, machine, counters,
        )  # fmt: skip
        if full != y.FULL_NOT:
            return runs, node_count, matches, full
        closed = closed or work[i, y.RUN_WAITS] == 0
    if rule[y.R_MERGES] != 0 and runs > live:
        node_count, full = merge_runs(rule, work, live, runs, nodes, node_count, trail)
        closed = True
        if full != y.FULL_NOT:
            return runs, node_count, matches, full
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
        runs = tidy(rule, work, runs, counters)
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
    """Close what is over by the watermark once a key's events are done; returns (runs, matches, FULL_*).

    A rule that sees nothing any more learns of no deadline after that: what it then still waits for is dropped.
    """
    full = y.FULL_NOT
    if rule[y.R_FIRES] != 0:
        until = min(watermark, rule[y.R_UNTIL_MS])
        runs, matches, full = _expire(
            image, rule, columns, nulls, until, seen, work, runs, nodes, out, matches, machine, counters
        )
        if full == y.FULL_NOT and until == rule[y.R_UNTIL_MS] and until < _FOREVER:
            for i in range(1, runs):
                if work[i, y.RUN_WAITS] != 0:
                    work[i, y.RUN_WAITS] = 0
                    counters[y.COUNT_EXPIRED] += 1
    else:
        for i in range(1, runs):
            if work[i, y.RUN_EXPIRY] <= watermark and work[i, y.RUN_WAITS] != 0:
                work[i, y.RUN_WAITS] = 0
                counters[y.COUNT_EXPIRED] += 1
    return tidy(rule, work, runs, counters), matches, full


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
        at = cursor[y.CURSOR_QUEUE]
        node_count, matches, out_count = cursor[y.CURSOR_NODES], cursor[y.CURSOR_MATCHES], cursor[y.CURSOR_OUT]
        for c in range(y.COUNTERS):
            held[c] = counters[c]
        key, run_at, runs = next_key(columns, queue, in_runs, in_keys, cursor, work)
        if runs < 0:
            return y.FULL_WORK
        full = y.FULL_NOT
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
