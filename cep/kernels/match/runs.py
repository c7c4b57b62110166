"""One run: its open waits, the events that they take, and the run that a take creates.

Tested by: tests/engine/test_advance.py, tests/engine/test_against_oracle.py
"""

import numpy as np

from cep.kernels import layout as y
from cep.kernels.expressions.checked import add_overflows, added, subtracted
from cep.kernels.expressions.interpret import as_bits, as_float, run_code
from cep.kernels.expressions.twofold import sum_rest
from cep.kernels.jit import bare, inlined
from cep.kernels.layout import Int64, UInt64, int64
from cep.kernels.records import Events, Rule, RuleInput, Work

_FOREVER = int64(y.FOREVER)
_TIMED_OUT = int64(y.TIMED_OUT)
_HELD_BACK = int64(y.HELD_BACK)
_ONE = int64(1)


@inlined
def bit(bitmaps: UInt64, predicate: int, event_index: int) -> bool:
    """Return True if the predicate holds for new event number `event_index`; bitmaps uint64[P, words]."""
    return (bitmaps[predicate, event_index >> 6] >> np.uint64(event_index & 63)) & np.uint64(1) != 0


@inlined
def simple_condition_holds(image: Int64, wait: int, events: Events, row: int, runs: Int64, run: int) -> bool:
    """Test a wait's simple condition: it compares a field of the event with a field of a bound event.

    Its operator, in the rule's compiled image, is a comparison (SIMPLE_LT, LE, GT, GE, EQ or NE, ascending numbers),
    plus 8 (SIMPLE_FLOAT) for floats, plus 16 (SIMPLE_OR_NULL) if it also holds where the bound event's field is null.
    In all other cases a null makes it False. Shapes: runs int64[*, W].
    """
    bound = runs[run, y.RUN_HEADER + image[wait + y.W_SIMPLE_REGISTER]]
    column, other = image[wait + y.W_SIMPLE_COLUMN], image[wait + y.W_SIMPLE_OTHER]
    op = image[wait + y.W_SIMPLE]
    holds = False
    if bound < 0 or events.nulls[other, bound] != 0:
        holds = op >= y.SIMPLE_OR_NULL
    elif events.nulls[column, row] == 0:
        op &= y.SIMPLE_OR_NULL - 1  # without SIMPLE_OR_NULL
        less, equal = False, False
        if op >= y.SIMPLE_FLOAT:
            less = as_float(events.columns[column, row]) < as_float(events.columns[other, bound])
            equal = as_float(events.columns[column, row]) == as_float(events.columns[other, bound])
            op -= y.SIMPLE_FLOAT
        else:
            less = events.columns[column, row] < events.columns[other, bound]
            equal = events.columns[column, row] == events.columns[other, bound]
        if op <= y.SIMPLE_LE:
            holds = less or (op == y.SIMPLE_LE and equal)
        elif op <= y.SIMPLE_GE:
            holds = not less and (op == y.SIMPLE_GE or not equal)
        else:
            holds = equal == (op == y.SIMPLE_EQ)
    return holds


@inlined
def code_holds(image: Int64, code: int, events: Events, row: int, work: Work, run: int) -> bool:
    """Return True if the code that (first, last, result) at image[code] names is true and not null."""
    run_code(image, image[code], image[code + 1], events, row, work, run)
    result = 2 * image[code + 2]
    return work.registers[result] != 0 and work.registers[result + 1] == 0


@inlined
def condition_holds(image: Int64, wait: int, events: Events, row: int, work: Work, run: int) -> bool:
    """Return True if the condition of the wait holds for the event and the run."""
    predicate = image[wait + y.W_PREDICATE]
    holds = predicate < 0 or bit(events.bitmaps, predicate, row - events.first_row)
    if holds:
        if image[wait + y.W_SIMPLE] != y.SIMPLE_NONE:
            holds = simple_condition_holds(image, wait, events, row, work.runs, run)
        elif image[wait + y.W_CODE] >= 0:
            holds = code_holds(image, wait + y.W_CODE, events, row, work, run)
    return holds


@bare
def gaps_allow(
    image: Int64, first: int, end: int, columns: Int64, row: int, runs: Int64, run: int, nodes: Int64
) -> int:
    """Compare an event's time with the bounds image[first:end] of a rule: 1 is in time, 0 too early, -1 too late."""
    verdict = 1
    for b in range(first, end, y.BOUND_WIDTH):
        register = image[b + y.B_REGISTER]
        if register < 0:  # the gap is measured from the event that the run took last
            base = nodes[runs[run, y.RUN_NODE], y.NODE_ROW]
        else:
            base = runs[run, y.RUN_HEADER + register]  # the row of an earlier event; registers follow the run's header
        gap = columns[y.COLUMN_TIME, row] - columns[y.COLUMN_TIME, base]  # must be in [B_MIN, B_MAX)
        if gap >= image[b + y.B_MAX]:
            return -1
        if gap < image[b + y.B_MIN]:
            verdict = 0
    return verdict


@bare
def guarded(image: Int64, wait: int, waits: int, before: bool, events: Events, row: int, work: Work, run: int) -> bool:
    """Return True if a guard (a condition on events that must not come) closes the wait because of the event in `row`.

    A wait is a transition that the run may still make, given by its offset in the image (the compiled rules). `waits`
    has a bit for each open wait of the run. `before` selects the guards that are tested before the wait takes the
    event, otherwise the others. GUARD_GREEDY: while a loop is greedy, an event that repeats the loop closes the wait
    that leaves the loop. GUARD_FREES closes nothing: its stop event ends the greed, and sets a flag of the run.
    """
    for g in range(image[wait + y.W_GUARDS], image[wait + y.W_GUARDS_END], y.GUARD_WIDTH):
        moment = image[g + y.G_MOMENT]
        if (moment == y.GUARD_BEFORE or moment == y.GUARD_GREEDY) != before:
            continue
        if moment == y.GUARD_GREEDY and work.runs[run, y.RUN_OPEN_WAITS] & image[g + y.G_FREED] != 0:
            continue  # a stop event has ended the greed
        if moment == y.GUARD_STOP and waits & image[wait + y.W_REOPENS] != 0:
            continue  # another open wait keeps this one open
        if moment == y.GUARD_NEXT and events.columns[y.COLUMN_ORDINAL, row] != work.runs[run, y.RUN_ORDINAL] + 1:
            continue  # not the very next event of the stream
        first, end = image[g + y.G_BOUNDS], image[g + y.G_BOUNDS_END]
        if run > 0 and first < end:  # run 0 is the start run, without an earlier event
            if gaps_allow(image, first, end, events.columns, row, work.runs, run, work.nodes) < 1:
                continue  # too early or too late
        predicate = image[g + y.G_PREDICATE]
        if predicate >= 0 and not bit(events.bitmaps, predicate, row - events.first_row):
            continue  # the event does not satisfy the guard's condition
        if image[g + y.G_CODE] < 0 or code_holds(image, g + y.G_CODE, events, row, work, run):  # -1: no more to test
            if moment != y.GUARD_FREES:
                return True
            if run > 0:  # the start run keeps no flags
                work.runs[run, y.RUN_OPEN_WAITS] |= image[g + y.G_FREED]
    return False


@bare
def _float_part(kind: int, old: int, value: int, other: int) -> int:
    """Return the new content of a float register: the rest of a sum, or a sum of offsets or of their squares."""
    if kind == y.ACT_FREST:
        return as_bits(as_float(old) + sum_rest(as_float(other), as_float(value)))
    offset = as_float(value) - as_float(other)
    if kind <= y.ACT_OFFSET_SQUARED:
        offset = np.float64(subtracted(value, other))
    if kind == y.ACT_OFFSET_SQUARED or kind == y.ACT_FOFFSET_SQUARED:
        offset *= offset
    return as_bits(as_float(old) + offset)


@bare
def _aggregate(kind: int, old: int, value: int, other: int, counters: Int64) -> int:
    """Return the new content of an aggregate's register.

    `other` is the content of a second register. For ACT_FREST it is the sum without the value. For offsets (differences
    from the first value, which a standard deviation needs) it is the first value. Otherwise it counts earlier values.
    """
    has_value = other > 0
    if kind == y.ACT_HIGH:  # the sum of upper halves; with ACT_LOW it forms a sum of 128 bits
        return old + (value >> int64(32))
    if kind == y.ACT_LOW:
        return old + (value & int64(0xFFFFFFFF))
    if kind == y.ACT_BASE:  # the first value, which offsets are relative to
        return old if has_value else value
    if kind >= y.ACT_FREST:  # the rounding errors of a sum; all later kinds are sums of offsets
        return _float_part(kind, old, value, other)
    if kind == y.ACT_SUM:
        if add_overflows(old, value):
            counters[y.COUNT_OVERFLOW] += 1
        return added(old, value)
    if kind == y.ACT_COUNT_PRESENT:
        return old + 1
    if kind == y.ACT_MIN:
        return min(old, value) if has_value else value
    if kind == y.ACT_MAX:
        return max(old, value) if has_value else value
    x, z = as_float(old), as_float(value)  # the other kinds are of floats
    if kind == y.ACT_FSUM:
        return as_bits(x + z) if has_value else value
    if kind == y.ACT_FMIN:
        return as_bits(min(x, z) if has_value else z)
    return as_bits(max(x, z) if has_value else z)


@inlined
def update_registers(image: Int64, nfa_state: int, events: Events, row: int, work: Work, run: int) -> None:
    """Update the registers of a run for the event that it has taken; `nfa_state` is the offset of its state row."""
    for k in range(image[nfa_state + y.S_ACTIONS], image[nfa_state + y.S_ACTIONS_END], y.ACTION_WIDTH):
        kind = image[k + y.A_KIND]
        register = y.RUN_HEADER + image[k + y.A_REGISTER]
        if kind == y.ACT_COUNT:
            work.runs[run, register] += 1
        elif kind == y.ACT_LAST:
            work.runs[run, register] = row
        elif kind == y.ACT_FIRST:
            if work.runs[run, register] < 0:
                work.runs[run, register] = row
        elif kind == y.ACT_PREVIOUS:
            work.runs[run, register] = work.runs[run, y.RUN_HEADER + image[k + y.A_OTHER]]
        elif events.nulls[image[k + y.A_COLUMN], row] == 0:
            other = work.runs[run, y.RUN_HEADER + image[k + y.A_OTHER]]
            value = events.columns[image[k + y.A_COLUMN], row]
            work.runs[run, register] = _aggregate(kind, work.runs[run, register], value, other, work.counters)


@bare
def _deadline(image: Int64, wait: int, within_ms: int, columns: Int64, runs: Int64, run: int, nodes: Int64) -> int:
    """Return the time (ms, UTC) at which a wait of the run ends."""
    ends = min(_FOREVER, columns[y.COLUMN_TIME, runs[run, y.RUN_START_ROW]] + within_ms)
    for b in range(image[wait + y.W_BOUNDS], image[wait + y.W_BOUNDS_END], y.BOUND_WIDTH):
        register = image[b + y.B_REGISTER]
        if register < 0:
            since = nodes[runs[run, y.RUN_NODE], y.NODE_ROW]
        else:
            since = runs[run, y.RUN_HEADER + register]
        ends = min(ends, columns[y.COLUMN_TIME, since] + image[b + y.B_MAX])
    return ends


@bare
def set_expiry(rule: Rule, nfa_state: int, columns: Int64, runs: Int64, run: int, nodes: Int64) -> None:
    """Set when the run's waits are next examined: at the first deadline with an effect, otherwise at the last one."""
    image = rule.image
    earliest, latest = _FOREVER, -_FOREVER
    wait = image[nfa_state + y.S_WAITS]
    waits = runs[run, y.RUN_OPEN_WAITS]  # a bit for each wait of the state, 1 if it is open
    while wait < image[nfa_state + y.S_WAITS_END]:
        if waits & 1 != 0:
            ends = _deadline(image, wait, rule.words[y.R_WITHIN_MS], columns, runs, run, nodes)
            latest = max(latest, ends)
            # The end of an absence is a match. Another end may be a time-out, or release a match that is held back.
            matters = rule.words[y.R_TIMEOUTS] != 0 or rule.words[y.R_IN_ORDER] != 0
            if image[wait + y.W_KIND] >= y.WAIT_ABSENCE or matters:
                earliest = min(earliest, ends)
        waits >>= 1
        wait += y.WAIT_WIDTH
    runs[run, y.RUN_EXPIRY] = min(earliest, latest)  # waits whose end has no effect may end earlier, unseen


@bare
def close_missed(image: Int64, runs: Int64, run: int, events_seen: int) -> None:
    """Close a run's strict waits that have missed their event: the stream has had `events_seen`. runs int64[*, W]."""
    if events_seen > runs[run, y.RUN_ORDINAL] + 1:
        nfa_state = image[y.HEADER_STATES] + runs[run, y.RUN_STATE] * y.STATE_WIDTH
        mask = _ONE
        for wait in range(image[nfa_state + y.S_WAITS], image[nfa_state + y.S_WAITS_END], y.WAIT_WIDTH):
            if image[wait + y.W_KIND] == y.WAIT_STRICT:
                runs[run, y.RUN_OPEN_WAITS] &= ~mask
            mask <<= _ONE
        if runs[run, y.RUN_OPEN_WAITS] & ((mask - _ONE) | _HELD_BACK) == 0:
            runs[run, y.RUN_OPEN_WAITS] = 0


@bare
def close_due(rule: Rule, columns: Int64, runs: Int64, run: int, nodes: Int64, until: int) -> tuple[bool, bool]:
    """Close the run's waits that end by `until` (ms, UTC). Return if an absence was certain, and if another wait ended.

    An absence is a wait (a possible transition) that succeeds if it ends without a forbidden event. A wait without a
    window ends at FOREVER. At the end of the input, `until` is FOREVER: then an absence without a window is certain,
    but other waits without a window stay open. FOREVER + 1 closes all waits, at the end of a window of n events.
    """
    image = rule.image  # the compiled rules
    nfa_state = image[y.HEADER_STATES] + runs[run, y.RUN_STATE] * y.STATE_WIDTH
    absent, ran_out = False, False
    mask = _ONE  # the bit of the wait in RUN_OPEN_WAITS
    for wait in range(image[nfa_state + y.S_WAITS], image[nfa_state + y.S_WAITS_END], y.WAIT_WIDTH):
        is_open = runs[run, y.RUN_OPEN_WAITS] & mask != 0
        if is_open:
            absence = image[wait + y.W_KIND] >= y.WAIT_ABSENCE
            ends = _deadline(image, wait, rule.words[y.R_WITHIN_MS], columns, runs, run, nodes)
            if ends <= until and (absence or ends < _FOREVER or until > _FOREVER):
                runs[run, y.RUN_OPEN_WAITS] &= ~mask
                absent = absent or absence
                ran_out = ran_out or not absence
        mask <<= _ONE
    if runs[run, y.RUN_OPEN_WAITS] & ((mask - _ONE) | _HELD_BACK) == 0:  # no open wait, not a match that waits
        runs[run, y.RUN_OPEN_WAITS] = 0
    else:
        set_expiry(rule, nfa_state, columns, runs, run, nodes)
    return absent, ran_out


@inlined
def open_waits(rule: Rule, nfa_state: int, columns: Int64, work: Work, run: int) -> None:
    """Set the waits of a run that has just entered the state at offset `nfa_state`, and its expiry.

    A wait is a transition of the state that may take an event. It is open, with its bit set, if the run's count of
    repetitions permits it. The run expires by the time bounds of open waits, otherwise by the pattern's `within`.
    """
    waits = int64(0)
    mask = _ONE
    bounded = False
    for wait in range(rule.image[nfa_state + y.S_WAITS], rule.image[nfa_state + y.S_WAITS_END], y.WAIT_WIDTH):
        register = rule.image[wait + y.W_COUNT_REGISTER]
        fits = register < 0
        if not fits:
            count = work.runs[run, y.RUN_HEADER + register]
            fits = count >= rule.image[wait + y.W_COUNT_MIN] and count < rule.image[wait + y.W_COUNT_MAX]
        if fits:
            waits |= mask
            bounded = bounded or rule.image[wait + y.W_BOUNDS] < rule.image[wait + y.W_BOUNDS_END]
        mask <<= _ONE
    work.runs[run, y.RUN_OPEN_WAITS] = waits
    if bounded:
        set_expiry(rule, nfa_state, columns, work.runs, run, work.nodes)
    else:
        started = columns[y.COLUMN_TIME, work.runs[run, y.RUN_START_ROW]]
        work.runs[run, y.RUN_EXPIRY] = min(_FOREVER, started + rule.words[y.R_WITHIN_MS])


@inlined
def make_child(rule: Rule, wait: int, events: Events, row: int, work: Work, parent: int, child: int, node: int) -> None:
    """Create the run that results when the run in row `parent` takes the event, in row `child`; its node is `node`."""
    target = rule.image[wait + y.W_TARGET]  # a wait is the offset of a transition in the image, the compiled rules
    nfa_state = rule.image[y.HEADER_STATES] + target * y.STATE_WIDTH
    runs, nodes = work.runs, work.nodes
    for c in range(runs.shape[1]):
        runs[child, c] = runs[parent, c]
    if parent == 0:  # the start run, which has taken no event
        runs[child, y.RUN_START_ROW] = row
        runs[child, y.RUN_START_ORDINAL] = events.columns[y.COLUMN_ORDINAL, row]
        work.counters[y.COUNT_STARTED] += 1
    nodes[node, y.NODE_ROW] = row
    nodes[node, y.NODE_STATE] = target
    nodes[node, y.NODE_PREVIOUS] = runs[parent, y.RUN_NODE]
    runs[child, y.RUN_NODE] = node
    runs[child, y.RUN_STATE] = target
    runs[child, y.RUN_ORDINAL] = events.columns[y.COLUMN_ORDINAL, row]
    if rule.image[wait + y.W_RESET] >= 0:
        runs[child, y.RUN_HEADER + rule.image[wait + y.W_RESET]] = 0
    for k in range(rule.image[wait + y.W_ROW_REGISTERS], rule.image[wait + y.W_ROW_REGISTERS_END]):
        runs[child, y.RUN_HEADER + rule.image[k]] = row
    update_registers(rule.image, nfa_state, events, row, work, child)
    open_waits(rule, nfa_state, events.columns, work, child)


@inlined
def accepts(image: Int64, runs: Int64, run: int) -> bool:
    """Return True if the run has just become a match; runs int64[*, W]."""
    nfa_state = image[y.HEADER_STATES] + runs[run, y.RUN_STATE] * y.STATE_WIDTH
    register = image[nfa_state + y.S_ACCEPT_REGISTER]
    enough = register < 0
    if not enough:
        enough = runs[run, y.RUN_HEADER + register] >= image[nfa_state + y.S_ACCEPT_MIN]
    return image[nfa_state + y.S_ACCEPT] != 0 and enough


@inlined
def next_key(columns: Int64, inputs: RuleInput, cursor: Int64, runs: Int64) -> tuple[int, int, int]:
    """Find the next key with queued events or open runs; copy its runs into runs int64[*, W] from row 1 on.

    Returns: the key; the index of the next key's first run in `inputs`; the rows in use, or -1 if the runs do not fit.
    """
    event_index, run_at = cursor[y.CURSOR_QUEUE], cursor[y.CURSOR_RUN]
    key = _FOREVER  # larger than every key
    if event_index < inputs.queue.shape[0]:
        key = columns[y.COLUMN_KEY, inputs.queue[event_index]]
    if run_at < inputs.keys.shape[0]:
        key = min(key, int64(inputs.keys[run_at]))
    count = int64(1)  # row 0 is the start run, which has taken no event
    while run_at < inputs.keys.shape[0] and inputs.keys[run_at] == key and count >= 0:
        if count < runs.shape[0]:
            for c in range(runs.shape[1]):
                runs[count, c] = inputs.rows[run_at, c]
            count += 1
            run_at += 1
        else:
            count = int64(-1)
    return key, run_at, count
