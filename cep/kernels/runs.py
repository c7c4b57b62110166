"""One run: what it waits for, whether an event fits, and what it becomes by taking it.

Tested by: tests/engine/test_advance.py, tests/engine/test_against_oracle.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cep.kernels import layout as y
from cep.kernels.checked import add_overflows
from cep.kernels.interpret import as_bits, as_float, run_code
from cep.kernels.jit import bare, inlined

_FOREVER = np.int64(y.FOREVER)
_TIMED_OUT = np.int64(y.TIMED_OUT)
_COMPLETE = np.int64(y.COMPLETE)
_ONE = np.int64(1)


@inlined
def bit(bitmaps: Any, predicate: Any, at: Any) -> Any:
    """Whether the predicate holds for new event number `at`."""
    return (bitmaps[predicate, at >> 6] >> np.uint64(at & 63)) & np.uint64(1) != 0


@inlined
def simple(image: Any, wait: Any, columns: Any, nulls: Any, row: Any, runs: Any, run: Any) -> Any:
    """The simple form of a cross-event condition; false if a side is null."""
    bound = runs[run, y.RUN_HEADER + image[wait + y.W_SIMPLE_REGISTER]]
    column, other = image[wait + y.W_SIMPLE_COLUMN], image[wait + y.W_SIMPLE_OTHER]
    holds = False
    if bound >= 0 and nulls[column, row] == 0 and nulls[other, bound] == 0:
        op = image[wait + y.W_SIMPLE]
        less, equal = False, False
        if op >= y.SIMPLE_FLOAT:
            less = as_float(columns[column, row]) < as_float(columns[other, bound])
            equal = as_float(columns[column, row]) == as_float(columns[other, bound])
            op -= y.SIMPLE_FLOAT
        else:
            less = columns[column, row] < columns[other, bound]
            equal = columns[column, row] == columns[other, bound]
        if op <= y.SIMPLE_LE:
            holds = less or (op == y.SIMPLE_LE and equal)
        elif op <= y.SIMPLE_GE:
            holds = not less and (op == y.SIMPLE_GE or not equal)
        else:
            holds = equal == (op == y.SIMPLE_EQ)
    return holds


@bare
def code_holds(
    image: Any, code: Any, columns: Any, nulls: Any, row: Any, runs: Any, run: Any, nodes: Any, machine: Any,
    counters: Any,
) -> Any:  # fmt: skip
    """Whether the code that (first, last, result) at image[code] names is true and not null."""
    run_code(image, image[code], image[code + 1], columns, nulls, row, runs, run, nodes, machine, counters)
    result = 2 * image[code + 2]
    return machine[result] != 0 and machine[result + 1] == 0


@inlined
def suits(
    image: Any, wait: Any, columns: Any, nulls: Any, bitmaps: Any, row: Any, new: Any, runs: Any, run: Any, nodes: Any,
    machine: Any, counters: Any,
) -> Any:  # fmt: skip
    """Whether the condition of the wait holds for the event and the run."""
    predicate = image[wait + y.W_PREDICATE]
    holds = predicate < 0 or bit(bitmaps, predicate, new)
    if holds:
        if image[wait + y.W_SIMPLE] != y.SIMPLE_NONE:
            holds = simple(image, wait, columns, nulls, row, runs, run)
        elif image[wait + y.W_CODE] >= 0:
            holds = code_holds(image, wait + y.W_CODE, columns, nulls, row, runs, run, nodes, machine, counters)
    return holds


@bare
def guarded(
    image: Any, wait: Any, waits: Any, before: Any, columns: Any, nulls: Any, bitmaps: Any, row: Any, new: Any,
    runs: Any, run: Any, nodes: Any, machine: Any, counters: Any,
) -> Any:  # fmt: skip
    """Whether a guard of the wait closes it for the event: one of those that speak before a take, or of the others.

    `waits` are the waits of the run that are open.
    """
    for g in range(image[wait + y.W_GUARDS], image[wait + y.W_GUARDS_END], y.GUARD_WIDTH):
        moment = image[g + y.G_MOMENT]
        if (moment == y.GUARD_BEFORE or moment == y.GUARD_GREEDY) != before:
            continue
        if moment == y.GUARD_GREEDY and runs[run, y.RUN_WAITS] & image[g + y.G_FREED] != 0:
            continue
        if moment == y.GUARD_STOP and waits & image[wait + y.W_REOPENS] != 0:
            continue
        if moment == y.GUARD_NEXT and columns[y.COLUMN_ORDINAL, row] != runs[run, y.RUN_ORDINAL] + 1:
            continue
        node = runs[run, y.RUN_NODE]
        if node >= 0 and (image[g + y.G_GAP_MIN] > 0 or image[g + y.G_GAP_MAX] < _FOREVER):
            gap = columns[y.COLUMN_TIME, row] - columns[y.COLUMN_TIME, nodes[node, y.NODE_ROW]]
            if gap < image[g + y.G_GAP_MIN] or gap >= image[g + y.G_GAP_MAX]:
                continue
        predicate = image[g + y.G_PREDICATE]
        if predicate >= 0 and not bit(bitmaps, predicate, new):
            continue
        if image[g + y.G_CODE] < 0 or code_holds(
            image, g + y.G_CODE, columns, nulls, row, runs, run, nodes, machine, counters
        ):
            if moment != y.GUARD_FREES:
                return True
            if run > 0:
                runs[run, y.RUN_WAITS] |= image[g + y.G_FREED]
    return False


@bare
def gaps_fit(image: Any, wait: Any, columns: Any, row: Any, runs: Any, run: Any, nodes: Any) -> Any:
    """1: the gaps fit, 0: too early for the wait, -1: too late for ever."""
    verdict = 1
    for b in range(image[wait + y.W_BOUNDS], image[wait + y.W_BOUNDS_END], y.BOUND_WIDTH):
        register = image[b + y.B_REGISTER]
        base = nodes[runs[run, y.RUN_NODE], y.NODE_ROW] if register < 0 else runs[run, y.RUN_HEADER + register]
        gap = columns[y.COLUMN_TIME, row] - columns[y.COLUMN_TIME, base]
        if gap >= image[b + y.B_MAX]:
            return -1
        if gap < image[b + y.B_MIN]:
            verdict = 0
    return verdict


@bare
def _aggregate(kind: Any, old: Any, value: Any, seen: Any, counters: Any) -> Any:
    """The new content of an aggregate's register."""
    if kind == y.ACT_SUM:
        if add_overflows(old, value):
            counters[y.COUNT_OVERFLOW] += 1
            return old
        return old + value
    if kind == y.ACT_COUNT_PRESENT:
        return old + 1
    if kind == y.ACT_MIN:
        return min(old, value) if seen else value
    if kind == y.ACT_MAX:
        return max(old, value) if seen else value
    x, z = as_float(old), as_float(value)
    if kind == y.ACT_FSUM:
        return as_bits(x + z) if seen else value
    if kind == y.ACT_FSQUARES:
        return as_bits(x + z * z if seen else z * z)
    if kind == y.ACT_FMIN:
        return as_bits(min(x, z) if seen else z)
    return as_bits(max(x, z) if seen else z)


@inlined
def act(image: Any, nfa_state: Any, columns: Any, nulls: Any, row: Any, runs: Any, run: Any, counters: Any) -> None:
    """Bring the registers of the run up to the event it has taken; `state` is the offset of its state row."""
    for k in range(image[nfa_state + y.S_ACTIONS], image[nfa_state + y.S_ACTIONS_END], y.ACTION_WIDTH):
        kind = image[k + y.A_KIND]
        register = y.RUN_HEADER + image[k + y.A_REGISTER]
        if kind == y.ACT_COUNT:
            runs[run, register] += 1
        elif kind == y.ACT_LAST:
            runs[run, register] = row
        elif kind == y.ACT_FIRST:
            if runs[run, register] < 0:
                runs[run, register] = row
        elif kind == y.ACT_PREVIOUS:
            runs[run, register] = runs[run, y.RUN_HEADER + image[k + y.A_OTHER]]
        elif nulls[image[k + y.A_COLUMN], row] == 0:
            seen = runs[run, y.RUN_HEADER + image[k + y.A_OTHER]] > 0
            value = columns[image[k + y.A_COLUMN], row]
            runs[run, register] = _aggregate(kind, runs[run, register], value, seen, counters)


@bare
def _deadline(image: Any, wait: Any, within_ms: Any, columns: Any, runs: Any, run: Any, nodes: Any) -> Any:
    """The time at which a wait of the run is over."""
    ends = min(_FOREVER, columns[y.COLUMN_TIME, runs[run, y.RUN_START_ROW]] + within_ms)
    for b in range(image[wait + y.W_BOUNDS], image[wait + y.W_BOUNDS_END], y.BOUND_WIDTH):
        base = image[b + y.B_REGISTER]
        since = nodes[runs[run, y.RUN_NODE], y.NODE_ROW] if base < 0 else runs[run, y.RUN_HEADER + base]
        ends = min(ends, columns[y.COLUMN_TIME, since] + image[b + y.B_MAX])
    return ends


@bare
def set_expiry(image: Any, nfa_state: Any, rule: Any, columns: Any, runs: Any, run: Any, nodes: Any) -> None:
    """When the run has to be looked at next: a deadline that fires something, else the last of all."""
    earliest, latest = _FOREVER, -_FOREVER
    wait = image[nfa_state + y.S_WAITS]
    waits = runs[run, y.RUN_WAITS]
    while wait < image[nfa_state + y.S_WAITS_END]:
        if waits & 1 != 0:
            ends = _deadline(image, wait, rule[y.R_WITHIN_MS], columns, runs, run, nodes)
            latest = max(latest, ends)
            if image[wait + y.W_KIND] >= y.WAIT_ABSENCE or rule[y.R_TIMEOUTS] != 0 or rule[y.R_IN_ORDER] != 0:
                earliest = min(earliest, ends)
        waits >>= 1
        wait += y.WAIT_WIDTH
    runs[run, y.RUN_EXPIRY] = min(earliest, latest)


@bare
def close_missed(image: Any, runs: Any, run: Any, seen: Any) -> None:
    """Close the strict waits of the run that have missed their event: the stream has had `seen` events by now."""
    if seen > runs[run, y.RUN_ORDINAL] + 1:
        nfa_state = image[y.HEADER_STATES] + runs[run, y.RUN_STATE] * y.STATE_WIDTH
        mask = _ONE
        for wait in range(image[nfa_state + y.S_WAITS], image[nfa_state + y.S_WAITS_END], y.WAIT_WIDTH):
            if image[wait + y.W_KIND] == y.WAIT_STRICT:
                runs[run, y.RUN_WAITS] &= ~mask
            mask <<= _ONE
        if runs[run, y.RUN_WAITS] & ((mask - _ONE) | _COMPLETE) == 0:
            runs[run, y.RUN_WAITS] = 0


@bare
def close_due(image: Any, rule: Any, columns: Any, runs: Any, run: Any, nodes: Any, until: Any) -> Any:
    """Close the waits of the run whose time is up. FOREVER is the end of the input: an absence without a window is
    certain then, other waits without one stay open. Anything later closes all.

    Returns (an absence was certain, another wait ran out).
    """
    nfa_state = image[y.HEADER_STATES] + runs[run, y.RUN_STATE] * y.STATE_WIDTH
    absent, ran_out = False, False
    mask = _ONE
    for wait in range(image[nfa_state + y.S_WAITS], image[nfa_state + y.S_WAITS_END], y.WAIT_WIDTH):
        open_ = runs[run, y.RUN_WAITS] & mask != 0
        if open_:
            absence = image[wait + y.W_KIND] >= y.WAIT_ABSENCE
            ends = _deadline(image, wait, rule[y.R_WITHIN_MS], columns, runs, run, nodes)
            if ends <= until and (absence or ends < _FOREVER or until > _FOREVER):
                runs[run, y.RUN_WAITS] &= ~mask
                absent = absent or absence
                ran_out = ran_out or not absence
        mask <<= _ONE
    if runs[run, y.RUN_WAITS] & ((mask - _ONE) | _COMPLETE) == 0:
        runs[run, y.RUN_WAITS] = 0
    else:
        set_expiry(image, nfa_state, rule, columns, runs, run, nodes)
    return absent, ran_out


@inlined
def open_waits(image: Any, nfa_state: Any, rule: Any, columns: Any, runs: Any, run: Any, nodes: Any) -> None:
    """Set the waits of a run that has just entered the state at offset `state`, and its expiry."""
    waits = np.int64(0)
    mask = _ONE
    bounded = False
    for wait in range(image[nfa_state + y.S_WAITS], image[nfa_state + y.S_WAITS_END], y.WAIT_WIDTH):
        register = image[wait + y.W_COUNT_REGISTER]
        fits = register < 0
        if not fits:
            count = runs[run, y.RUN_HEADER + register]
            fits = count >= image[wait + y.W_COUNT_MIN] and count < image[wait + y.W_COUNT_MAX]
        if fits:
            waits |= mask
            bounded = bounded or image[wait + y.W_BOUNDS] < image[wait + y.W_BOUNDS_END]
        mask <<= _ONE
    runs[run, y.RUN_WAITS] = waits
    if bounded:
        set_expiry(image, nfa_state, rule, columns, runs, run, nodes)
    else:
        started = columns[y.COLUMN_TIME, runs[run, y.RUN_START_ROW]]
        runs[run, y.RUN_EXPIRY] = min(_FOREVER, started + rule[y.R_WITHIN_MS])


@inlined
def take(
    image: Any, rule: Any, wait: Any, columns: Any, nulls: Any, row: Any, runs: Any, parent: Any, child: Any,
    nodes: Any, node: Any, counters: Any,
) -> None:  # fmt: skip
    """Make row `child` the run that row `parent` becomes by taking the event; its node gets number `node`."""
    target = image[wait + y.W_TARGET]
    nfa_state = image[y.HEADER_STATES] + target * y.STATE_WIDTH
    for c in range(runs.shape[1]):
        runs[child, c] = runs[parent, c]
    if parent == 0:
        runs[child, y.RUN_START_ROW] = row
        runs[child, y.RUN_START_ORDINAL] = columns[y.COLUMN_ORDINAL, row]
        counters[y.COUNT_STARTED] += 1
    nodes[node, y.NODE_ROW] = row
    nodes[node, y.NODE_STATE] = target
    nodes[node, y.NODE_PREVIOUS] = runs[parent, y.RUN_NODE]
    runs[child, y.RUN_NODE] = node
    runs[child, y.RUN_STATE] = target
    runs[child, y.RUN_ORDINAL] = columns[y.COLUMN_ORDINAL, row]
    if image[wait + y.W_RESET] >= 0:
        runs[child, y.RUN_HEADER + image[wait + y.W_RESET]] = 0
    for k in range(image[wait + y.W_MARKS], image[wait + y.W_MARKS_END]):
        runs[child, y.RUN_HEADER + image[k]] = row
    act(image, nfa_state, columns, nulls, row, runs, child, counters)
    open_waits(image, nfa_state, rule, columns, runs, child, nodes)


@inlined
def accepts(image: Any, runs: Any, run: Any) -> Any:
    """Whether the run has just become a match."""
    nfa_state = image[y.HEADER_STATES] + runs[run, y.RUN_STATE] * y.STATE_WIDTH
    register = image[nfa_state + y.S_ACCEPT_REGISTER]
    enough = register < 0
    if not enough:
        enough = runs[run, y.RUN_HEADER + register] >= image[nfa_state + y.S_ACCEPT_MIN]
    return image[nfa_state + y.S_ACCEPT] != 0 and enough


@inlined
def next_key(columns: Any, queue: Any, in_runs: Any, in_keys: Any, cursor: Any, work: Any) -> Any:
    """The next key that has queued events or runs; its runs are put into `work` from row 1 on.

    Returns (key, the first run of the key after it, the end of the rows of work: -1 if they do not fit).
    """
    at, run_at = cursor[y.CURSOR_QUEUE], cursor[y.CURSOR_RUN]
    key = _FOREVER
    if at < queue.shape[0]:
        key = columns[y.COLUMN_KEY, queue[at]]
    if run_at < in_keys.shape[0]:
        key = min(key, np.int64(in_keys[run_at]))
    runs = np.int64(1)
    while run_at < in_keys.shape[0] and in_keys[run_at] == key and runs >= 0:
        if runs < work.shape[0]:
            for c in range(work.shape[1]):
                work[runs, c] = in_runs[run_at, c]
            runs += 1
            run_at += 1
        else:
            runs = np.int64(-1)
    return key, run_at, runs
