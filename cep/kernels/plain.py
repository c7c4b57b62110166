"""The matcher for plain rules: relaxed waits only, without guards, bounds or deadlines that fire something.

Most fraud patterns are of this kind. What `advance.py` does for every rule is done here with less: a run that takes an
event where there is one way to go on becomes its own child, in its row; a run's deadline is that of its start, so the
oldest leave at the front; rows are moved together only now and then. Same arguments, same answers.

    row 0 | dead rows | head … runs: live rows in the order of their making, some without waits (dead)
Tested by: tests/kernels/test_plain.py, tests/engine/test_against_oracle.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cep.kernels import layout as y
from cep.kernels.jit import bare, inlined
from cep.kernels.matches import choose, emit
from cep.kernels.runs import accepts, act, bit, next_key, suits
from cep.kernels.search import first_at

_FOREVER = np.int64(y.FOREVER)
_ONE = np.int64(1)
_SLACK = 32  # dead rows that are not worth moving the others for


@inlined
def _open_waits(image: Any, nfa_state: Any, work: Any, i: Any) -> None:
    """Set the waits of the run in row i, which has just entered the state at offset `nfa_state`."""
    waits = np.int64(0)
    mask = _ONE
    for wait in range(image[nfa_state + y.S_WAITS], image[nfa_state + y.S_WAITS_END], y.WAIT_WIDTH):
        register = image[wait + y.W_COUNT_REGISTER]
        if register < 0:
            waits |= mask
        else:
            count = work[i, y.RUN_HEADER + register]
            if count >= image[wait + y.W_COUNT_MIN] and count < image[wait + y.W_COUNT_MAX]:
                waits |= mask
        mask <<= _ONE
    work[i, y.RUN_WAITS] = waits


@bare
def _dead(work: Any, head: Any, runs: Any) -> Any:
    """How many of the rows have no waits."""
    count = 0
    for i in range(head, runs):
        count += work[i, y.RUN_WAITS] == 0
    return count


@bare
def _forget(work: Any, head: Any, runs: Any, time: Any, counters: Any) -> Any:
    """Close what is over at `time`; returns how many of the rows from head on are dead."""
    for i in range(head, runs):
        if work[i, y.RUN_WAITS] != 0 and work[i, y.RUN_EXPIRY] <= time:
            work[i, y.RUN_WAITS] = 0
            counters[y.COUNT_EXPIRED] += 1
    return _dead(work, head, runs)


@bare
def _evict(work: Any, head: Any, runs: Any, time: Any, limit: Any, counters: Any) -> Any:
    """Close what is over, then the oldest runs beyond the limit; returns how many rows from head on are dead."""
    alive = runs - head - _forget(work, head, runs, time, counters)
    i = head
    while alive > limit:
        if work[i, y.RUN_WAITS] != 0:
            work[i, y.RUN_WAITS] = 0
            counters[y.COUNT_EVICTED] += 1
            alive -= 1
        i += 1
    return runs - head - alive


@bare
def _together(work: Any, head: Any, runs: Any) -> Any:
    """Move the live rows to row 1 and what follows; returns the new end."""
    kept = 1
    for i in range(head, runs):
        if work[i, y.RUN_WAITS] != 0:
            if kept != i:
                for c in range(work.shape[1]):
                    work[kept, c] = work[i, c]
            kept += 1
    return kept


@bare
def _save(work: Any, head: Any, runs: Any, watermark: Any, key: Any, out_runs: Any, out_keys: Any, out_count: Any,
          counters: Any) -> Any:  # fmt: skip
    """Write what is not over by the watermark behind row out_count; returns the new count, -1 if it may not fit."""
    if out_count + runs - head > out_runs.shape[0]:
        return -1
    for i in range(head, runs):
        if work[i, y.RUN_WAITS] == 0:
            continue
        if work[i, y.RUN_EXPIRY] <= watermark:
            counters[y.COUNT_EXPIRED] += 1
            continue
        for c in range(work.shape[1]):
            out_runs[out_count, c] = work[i, c]
        out_keys[out_count] = key
        out_count += 1
    return out_count


@inlined
def _take(
    image: Any, wait: Any, within: Any, columns: Any, nulls: Any, row: Any, work: Any, starts: Any, i: Any, nodes: Any,
    node: Any, counters: Any,
) -> None:  # fmt: skip
    """Let the run in row i take the event in its own row; its node gets number `node`."""
    target = image[wait + y.W_TARGET]
    nfa_state = image[y.HEADER_STATES] + target * y.STATE_WIDTH
    nodes[node, y.NODE_ROW] = row
    nodes[node, y.NODE_STATE] = target
    nodes[node, y.NODE_PREVIOUS] = work[i, y.RUN_NODE]
    work[i, y.RUN_NODE] = node
    work[i, y.RUN_STATE] = target
    if starts:
        work[i, y.RUN_START_ROW] = row
        work[i, y.RUN_EXPIRY] = min(_FOREVER, columns[y.COLUMN_TIME, row] + within)
        counters[y.COUNT_STARTED] += 1
    if image[wait + y.W_RESET] >= 0:
        work[i, y.RUN_HEADER + image[wait + y.W_RESET]] = 0
    act(image, nfa_state, columns, nulls, row, work, i, counters)
    _open_waits(image, nfa_state, work, i)


@inlined
def _offer(
    image: Any, rule: Any, within: Any, columns: Any, nulls: Any, bitmaps: Any, row: Any, new: Any, work: Any, i: Any,
    runs: Any, nodes: Any, node_count: Any, out: Any, matches: Any, machine: Any, counters: Any,
) -> Any:  # fmt: skip
    """Offer the event to the run in row i: it moves on in its row, or children go behind row `runs`.

    Returns (runs, node count, matches, FULL_*).
    """
    waits = work[i, y.RUN_WAITS]
    nfa_state = image[y.HEADER_STATES] + work[i, y.RUN_STATE] * y.STATE_WIDTH
    first, end = image[nfa_state + y.S_WAITS], image[nfa_state + y.S_WAITS_END]
    alone = i > 0 and end - first == y.WAIT_WIDTH
    moved = False
    full = y.FULL_NOT
    mask = _ONE
    for wait in range(first, end, y.WAIT_WIDTH):
        current, mask = mask, mask << _ONE
        if waits & current != 0 and suits(
            image, wait, columns, nulls, bitmaps, row, new, work, i, nodes, machine, counters
        ):
            if runs + 1 >= work.shape[0] or node_count >= nodes.shape[0] or matches >= out.shape[0]:
                full = y.FULL_WORK if runs + 1 >= work.shape[0] else y.FULL_MATCHES
                full = y.FULL_NODES if node_count >= nodes.shape[0] else full
                break
            relaxed = image[wait + y.W_KIND] == y.WAIT_RELAXED
            moved = alone and relaxed
            child = i
            if not moved:
                child = runs
                for c in range(work.shape[1]):
                    work[child, c] = work[i, c]
                if relaxed:
                    waits &= ~current
            _take(image, wait, within, columns, nulls, row, work, i == 0, child, nodes, node_count, counters)
            node_count += 1
            if accepts(image, work, child):
                time = columns[y.COLUMN_TIME, row]
                emit(
                    image, rule, columns, nulls, row, work, child, nodes, y.KIND_MATCH, time, out, matches, machine,
                    counters,
                )  # fmt: skip
                matches += 1
            if child == runs and work[child, y.RUN_WAITS] != 0:
                runs += 1
    if i > 0 and not moved:
        work[i, y.RUN_WAITS] = waits
    return runs, node_count, matches, full


@inlined
def _candidates(
    image: Any, alike: Any, columns: Any, nulls: Any, bitmaps: Any, row: Any, new: Any, work: Any, head: Any, runs: Any,
    picked: Any, count: Any,
) -> Any:  # fmt: skip
    """Write the rows that the event may move behind picked[count]; returns the new count.

    `alike` is a wait whose condition is that of all runs, or -1. No branch on a row's content: which runs fit is as
    good as random, and a wrong guess of the processor costs more than the look.
    """
    time = columns[y.COLUMN_TIME, row]
    op = y.SIMPLE_NONE
    column = other = register = np.int64(0)
    if alike >= 0:
        predicate = image[alike + y.W_PREDICATE]
        op, column = image[alike + y.W_SIMPLE], image[alike + y.W_SIMPLE_COLUMN]
        other, register = image[alike + y.W_SIMPLE_OTHER], y.RUN_HEADER + image[alike + y.W_SIMPLE_REGISTER]
        if predicate >= 0 and not bit(bitmaps, predicate, new):
            return count
        if op != y.SIMPLE_NONE and nulls[column, row] != 0:
            return count
    if op == y.SIMPLE_NONE:
        for i in range(head, runs):
            picked[count] = i
            count += (work[i, y.RUN_WAITS] != 0) & (work[i, y.RUN_EXPIRY] > time)
        return count
    value = columns[column, row]
    on_less = op == y.SIMPLE_LT or op == y.SIMPLE_LE or op == y.SIMPLE_NE
    on_equal = op == y.SIMPLE_LE or op == y.SIMPLE_GE or op == y.SIMPLE_EQ
    on_greater = op == y.SIMPLE_GT or op == y.SIMPLE_GE or op == y.SIMPLE_NE
    for i in range(head, runs):
        bound = max(work[i, register], np.int64(0))
        known = (work[i, register] >= 0) & (nulls[other, bound] == 0)
        against = columns[other, bound]
        holds = (on_less & (value < against)) | (on_equal & (value == against)) | (on_greater & (value > against))
        picked[count] = i
        count += known & holds & (work[i, y.RUN_WAITS] != 0) & (work[i, y.RUN_EXPIRY] > time)
    return count


@inlined
def _move_all(
    image: Any, rule: Any, alike: Any, columns: Any, nulls: Any, row: Any, work: Any, runs: Any, dead: Any, picked: Any,
    first: Any, count: Any, nodes: Any, node_count: Any, out: Any, matches: Any, machine: Any, counters: Any,
) -> Any:  # fmt: skip
    """Let the runs in rows picked[first:count] take the event, which fits them all; each has one wait.

    Returns (runs, dead, node count, matches).
    """
    stays = image[alike + y.W_KIND] == y.WAIT_ANY
    time = columns[y.COLUMN_TIME, row]
    for k in range(first, count):
        child = picked[k]
        wait = image[image[y.HEADER_STATES] + work[child, y.RUN_STATE] * y.STATE_WIDTH + y.S_WAITS]
        if stays:
            for c in range(work.shape[1]):
                work[runs, c] = work[child, c]
            child = runs
        _take(image, wait, 0, columns, nulls, row, work, False, child, nodes, node_count, counters)
        node_count += 1
        if accepts(image, work, child):
            emit(
                image, rule, columns, nulls, row, work, child, nodes, y.KIND_MATCH, time, out, matches, machine,
                counters,
            )  # fmt: skip
            matches += 1
        opens = work[child, y.RUN_WAITS] != 0
        if stays:
            runs += opens
        else:
            dead += not opens
    return runs, dead, node_count, matches


@inlined
def _on_event(
    image: Any, rule: Any, alike: Any, within: Any, columns: Any, nulls: Any, bitmaps: Any, row: Any, new: Any,
    starts: Any, work: Any, head: Any, runs: Any, dead: Any, picked: Any, nodes: Any, node_count: Any, out: Any,
    matches: Any, machine: Any, counters: Any,
) -> Any:  # fmt: skip
    """Offer the event to the start run and to the rows that it may move; apply the skip strategy.

    Returns (head, runs, dead, node count, matches, FULL_*).
    """
    time = columns[y.COLUMN_TIME, row]
    while head < runs and (work[head, y.RUN_WAITS] == 0 or work[head, y.RUN_EXPIRY] <= time):
        if work[head, y.RUN_WAITS] == 0:
            dead -= 1
        else:
            counters[y.COUNT_EXPIRED] += 1
        head += 1
    if head - 1 + dead > _SLACK + runs - head:
        runs = _together(work, head, runs)
        head, dead = 1, 0
    counters[y.COUNT_STEPS] += runs - head - dead + starts
    picked[0] = 0
    count = _candidates(image, alike, columns, nulls, bitmaps, row, new, work, head, runs, picked, np.int64(starts))
    before = matches
    full = y.FULL_NOT
    offered = count if alike < 0 else np.int64(starts)
    for k in range(offered):
        i = picked[k]
        runs, node_count, matches, full = _offer(
            image, rule, within, columns, nulls, bitmaps, row, new, work, i, runs, nodes, node_count, out, matches,
            machine, counters,
        )  # fmt: skip
        if full != y.FULL_NOT:
            break
        dead += work[i, y.RUN_WAITS] == 0
    if full == y.FULL_NOT and count > offered:
        if runs + count >= work.shape[0]:
            full = y.FULL_WORK
        elif node_count + count > nodes.shape[0]:
            full = y.FULL_NODES
        elif matches + count > out.shape[0]:
            full = y.FULL_MATCHES
        else:
            runs, dead, node_count, matches = _move_all(
                image, rule, alike, columns, nulls, row, work, runs, dead, picked, offered, count, nodes, node_count,
                out, matches, machine, counters,
            )  # fmt: skip
    if matches > before and full == y.FULL_NOT:
        if rule[y.R_SKIP] != y.SKIP_NONE:
            matches = choose(image, rule, nodes, out, before, matches, work, runs)
            dead = _dead(work, head, runs)
        if matches - before > rule[y.R_MATCHES_MAX]:
            counters[y.COUNT_DROPPED] += matches - before - rule[y.R_MATCHES_MAX]
            matches = before + rule[y.R_MATCHES_MAX]
    if runs - head - dead > rule[y.R_RUNS_MAX]:
        dead = _evict(work, head, runs, time, rule[y.R_RUNS_MAX], counters)
    return head, runs, dead, node_count, matches, full


@inlined
def _put_off(rule: Any, start_keys: Any, start_rows: Any, key: Any, work: Any, runs: Any) -> Any:
    """Which of the shared events are the key's, and which of them the rule has not made up for.

    Returns (the first of the key, the first that is put off, their end, the first row of runs).
    """
    first = late = end = np.int64(0)
    head = np.int64(1)
    if rule[y.R_SHARES] != 0:
        first = first_at(start_keys, np.int64(0), np.int64(start_keys.shape[0]), key)
        end = first_at(start_keys, first, np.int64(start_keys.shape[0]), key + 1)
        late = first
        if runs > 1 and work[1, y.RUN_STATE] == rule[y.R_START_STATE]:
            late = first_at(start_rows, late, end, work[1, y.RUN_START_ROW] + 1)
            head = np.int64(2)
    return first, late, end, head


@bare
def _within_limit(start_counts: Any, late: Any, due: Any, limit: Any, counters: Any) -> Any:
    """The first of what is put off in [late, due) once all is dropped up to the last start beyond the limit."""
    before = start_counts[late - 1] if late > 0 else np.int64(0)
    over = start_counts[due - 1] - before - limit
    if over > 0:
        counters[y.COUNT_EVICTED] += over
        late = first_at(start_counts, late, due, before + over) + 1
    return late


@bare
def _note_taken(
    columns: Any, within: Any, last: Any, watermark: Any, key: Any, work: Any, nodes: Any, node_count: Any,
    out_runs: Any, out_keys: Any, out_count: Any,
) -> Any:  # fmt: skip
    """Write a row in the start state that says which shared events of the key the rule has taken over: those up to the
    one in row `last`. It is needed as long as the last of them could be open.

    Returns (node count, out count, FULL_*).
    """
    expiry = min(_FOREVER, columns[y.COLUMN_TIME, last] + within)
    if expiry <= watermark:
        return node_count, out_count, y.FULL_NOT
    if out_count >= out_runs.shape[0] or node_count >= nodes.shape[0]:
        return node_count, out_count, y.FULL_OUT if out_count >= out_runs.shape[0] else y.FULL_NODES
    for c in range(work.shape[1]):
        out_runs[out_count, c] = work[0, c]
    nodes[node_count, y.NODE_ROW] = last
    nodes[node_count, y.NODE_STATE] = work[0, y.RUN_STATE]
    nodes[node_count, y.NODE_PREVIOUS] = -1
    out_runs[out_count, y.RUN_EXPIRY] = expiry
    out_runs[out_count, y.RUN_START_ROW] = last
    out_runs[out_count, y.RUN_NODE] = node_count
    out_keys[out_count] = key
    return node_count + 1, out_count + 1, y.FULL_NOT


@bare
def _common_wait(image: Any, rule: Any) -> Any:
    """The wait that stands for those of all runs that have taken something, if they are alike; else -1."""
    if rule[y.R_ALIKE] != 0:
        for number in range(rule[y.R_START_STATE] + 1, rule[y.R_END_STATE]):
            nfa_state = image[y.HEADER_STATES] + number * y.STATE_WIDTH
            if image[nfa_state + y.S_WAITS] < image[nfa_state + y.S_WAITS_END]:
                return image[nfa_state + y.S_WAITS]
    return np.int64(-1)


@bare
def advance_plain(
    image: Any, rule: Any, columns: Any, nulls: Any, bitmaps: Any, first_row: Any, queue: Any, start_run: Any,
    in_runs: Any, in_keys: Any, watermark: Any, work: Any, nodes: Any, out: Any, out_runs: Any, out_keys: Any,
    picked: Any, start_keys: Any, start_rows: Any, start_counts: Any, start_bits: Any, start_columns: Any,
    machine: Any, cursor: Any, counters: Any, held: Any,
) -> Any:  # fmt: skip
    """Carry one plain rule over the queued events; see `advance.advance_rule` for shapes and what it returns.

    Where events are shared (R_SHARES), start_keys int32[S] and start_rows int64[S] are those of this call and the ones
    that are still kept, by key and row, start_counts int64[S] the starts among them up to each, start_bits
    uint64[P, words] bitmaps for them and start_columns int64[S] the place of each there; else they are empty.
    Cost: O(queued events x open runs of their key), a few nanoseconds each.
    """
    alike = _common_wait(image, rule)
    within, from_ms, starts_until = rule[y.R_WITHIN_MS], rule[y.R_FROM_MS], rule[y.R_STARTS_UNTIL_MS]
    for c in range(work.shape[1]):
        work[0, c] = start_run[c]
    while cursor[y.CURSOR_QUEUE] < queue.shape[0] or cursor[y.CURSOR_RUN] < in_keys.shape[0]:
        at = cursor[y.CURSOR_QUEUE]
        node_count, matches, out_count = cursor[y.CURSOR_NODES], cursor[y.CURSOR_MATCHES], cursor[y.CURSOR_OUT]
        for c in range(y.COUNTERS):
            held[c] = counters[c]
        key, run_at, runs = next_key(columns, queue, in_runs, in_keys, cursor, work)
        if runs < 0:
            return y.FULL_WORK
        first_start, late, end_start, head = _put_off(rule, start_keys, start_rows, key, work, runs)
        dead = 0
        due, due_ms = late, np.int64(0)
        full = y.FULL_NOT
        while full == y.FULL_NOT and at < queue.shape[0] and columns[y.COLUMN_KEY, queue[at]] == key:
            row = np.int64(queue[at])
            time = columns[y.COLUMN_TIME, row]
            if late == due and late < end_start and start_rows[late] < row and time < rule[y.R_UNTIL_MS]:
                # The event may move what was put off; of that, what is over by now or beyond the limit is not made up.
                dead = _forget(work, head, runs, time, counters)
                due, due_ms = first_at(start_rows, late, end_start, row), time
                late = _within_limit(start_counts, late, due, rule[y.R_RUNS_MAX], counters)
            bits, new = bitmaps, row - first_row
            if late < due:
                row = start_rows[late]
                bits, new = start_bits, start_columns[late]
                late += 1
                time = columns[y.COLUMN_TIME, row]
                if time + within <= due_ms:
                    continue
            else:
                at += 1
                if late < end_start and start_rows[late] == row:
                    late += 1
                    due = late
            starts = time >= from_ms and time < starts_until
            if time < rule[y.R_UNTIL_MS] and (starts or runs > 1):
                head, runs, dead, node_count, matches, full = _on_event(
                    image, rule, alike, within, columns, nulls, bits, row, new, starts, work, head, runs, dead, picked,
                    nodes, node_count, out, matches, machine, counters,
                )  # fmt: skip
        if full == y.FULL_NOT and late > first_start:
            node_count, out_count, full = _note_taken(
                columns, within, start_rows[late - 1], watermark, key, work, nodes, node_count, out_runs, out_keys,
                out_count,
            )  # fmt: skip
        if full == y.FULL_NOT:
            out_count = _save(work, head, runs, watermark, key, out_runs, out_keys, out_count, counters)
            full = y.FULL_OUT if out_count < 0 else y.FULL_NOT
        if full != y.FULL_NOT:
            for c in range(y.COUNTERS):
                counters[c] = held[c]
            return full
        cursor[y.CURSOR_QUEUE], cursor[y.CURSOR_RUN] = at, run_at
        cursor[y.CURSOR_NODES], cursor[y.CURSOR_MATCHES], cursor[y.CURSOR_OUT] = node_count, matches, out_count
    return y.FULL_NOT
