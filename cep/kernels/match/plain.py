"""The matcher for plain rules: only relaxed waits, without guards, bounds or deadlines that fire.

Most fraud patterns are plain. This matcher gives the same results as `advance.py` with less work: a run that takes an
event and has one way to continue is updated in its own row; the deadline of a run follows from its start, so the oldest
runs expire first; and rows are moved together only now and then. The general matcher takes 1.9 to 3.1 times as long on
plain rules (docs/inside/decisions/two-matchers.md).

    row 0 | dead rows | head … runs: live rows in the order of creation, some without waits (dead)

Tested by: tests/kernels/test_plain.py, tests/engine/test_against_oracle.py
"""

from typing import NamedTuple

from cep.kernels import layout as y
from cep.kernels.groups import first_at
from cep.kernels.jit import bare, inlined
from cep.kernels.layout import Int64, int64
from cep.kernels.match.matches import choose_matches, emit, note_evicted
from cep.kernels.match.room import KeyRoom, evict_beyond, key_room, less_room, limit_nodes
from cep.kernels.match.runs import accepts, bit, condition_holds, next_key, update_registers
from cep.kernels.records import Counts, Events, Rule, RuleInput, RuleScratch, RunOutput, SharedStarts, Work

_FOREVER = int64(y.FOREVER)
_ONE = int64(1)
_SLACK = 32  # up to this number of dead rows, moving the others is not worthwhile


class _Counts(NamedTuple):
    """The rows of `Work` in use: rows [head, runs), of which `dead` have no waits."""

    head: int
    runs: int
    dead: int
    nodes: int
    matches: int
    full_array: int


class _KeyStarts(NamedTuple):
    """Shared events of a key: the first one, the first that the rule has not processed yet, and their end."""

    first: int
    unprocessed: int
    end: int


@inlined
def _open_waits(image: Int64, nfa_state: int, runs: Int64, i: int) -> None:
    """Set the bits of the open waits (transitions) of run i, which has just entered the state at `nfa_state`."""
    waits = int64(0)
    mask = _ONE
    for wait in range(image[nfa_state + y.S_WAITS], image[nfa_state + y.S_WAITS_END], y.WAIT_WIDTH):
        register = image[wait + y.W_COUNT_REGISTER]
        if register < 0:  # the wait counts no repetitions: it is open
            waits |= mask
        else:
            count = runs[i, y.RUN_HEADER + register]
            if count >= image[wait + y.W_COUNT_MIN] and count < image[wait + y.W_COUNT_MAX]:
                waits |= mask
        mask <<= _ONE
    runs[i, y.RUN_OPEN_WAITS] = waits


@bare
def _count_dead(runs: Int64, head: int, end: int) -> int:
    count = 0
    for i in range(head, end):
        count += runs[i, y.RUN_OPEN_WAITS] == 0
    return count


@bare
def _expire(runs: Int64, head: int, end: int, time: int, counters: Int64) -> int:
    """Close runs that have expired at `time` (ms, UTC); return the number of dead rows in [head, end)."""
    for i in range(head, end):
        if runs[i, y.RUN_OPEN_WAITS] != 0 and runs[i, y.RUN_EXPIRY] <= time:
            runs[i, y.RUN_OPEN_WAITS] = 0
            counters[y.COUNT_EXPIRED] += 1
    return _count_dead(runs, head, end)


@bare
def _evict(rule: Rule, work: Work, counts: _Counts, time: int, heap: Int64) -> int:
    """Close expired runs, then the oldest beyond the limit (heap int64[*] is scratch). Return the dead rows in use."""
    head, end, limit = counts.head, counts.runs, rule.words[y.R_RUNS_MAX]
    dead = _expire(work.runs, head, end, time, work.counters)
    if end - head - dead > limit:
        evict_beyond(work.runs, head, end, limit, heap, work.counters)
        dead = end - head - limit
    return dead


@bare
def _close_gaps(runs: Int64, head: int, end: int) -> int:
    """Move the live rows of [head, end) to row 1 and the rows after it; return the new end."""
    to = 1
    for i in range(head, end):
        if runs[i, y.RUN_OPEN_WAITS] != 0:
            if to != i:
                for c in range(runs.shape[1]):
                    runs[to, c] = runs[i, c]
            to += 1
    return to


@inlined
def _save(work: Work, counts: _Counts, watermark: int, key: int, output: RunOutput, out_count: int) -> int:
    """Write runs that expire after the watermark, at row out_count; return the new count, -1 if they may not fit."""
    if out_count + counts.runs - counts.head > output.runs.shape[0]:
        return -1
    for i in range(counts.head, counts.runs):
        if work.runs[i, y.RUN_OPEN_WAITS] == 0:  # the run has ended
            continue
        if work.runs[i, y.RUN_EXPIRY] <= watermark:
            work.counters[y.COUNT_EXPIRED] += 1
            continue
        for c in range(work.runs.shape[1]):
            output.runs[out_count, c] = work.runs[i, c]
        output.keys[out_count] = key
        out_count += 1
    return out_count


@inlined
def _take(rule: Rule, wait: int, events: Events, row: int, work: Work, starts: bool, i: int, node: int) -> None:
    """Let run i take the event as node `node`: its row moves to the wait's target state. `starts`: it is the first."""
    target = rule.image[wait + y.W_TARGET]  # a wait is the offset of a transition in the image, the compiled rules
    nfa_state = rule.image[y.HEADER_STATES] + target * y.STATE_WIDTH
    work.nodes[node, y.NODE_ROW] = row
    work.nodes[node, y.NODE_STATE] = target
    work.nodes[node, y.NODE_PREVIOUS] = work.runs[i, y.RUN_NODE]
    work.runs[i, y.RUN_NODE] = node
    work.runs[i, y.RUN_STATE] = target
    if starts:
        work.runs[i, y.RUN_START_ROW] = row
        within_ms = rule.words[y.R_WITHIN_MS]
        work.runs[i, y.RUN_EXPIRY] = min(_FOREVER, events.columns[y.COLUMN_TIME, row] + within_ms)
        work.counters[y.COUNT_STARTED] += 1
    if rule.image[wait + y.W_RESET] >= 0:
        work.runs[i, y.RUN_HEADER + rule.image[wait + y.W_RESET]] = 0
    update_registers(rule.image, nfa_state, events, row, work, i)
    _open_waits(rule.image, nfa_state, work.runs, i)


@inlined
def _offer(rule: Rule, events: Events, row: int, work: Work, i: int, counts: _Counts) -> _Counts:
    """Offer an event to the run in row i. The run advances in its row, or new runs are written from counts.runs on.

    A wait is a transition that the run may still make, a bit of RUN_OPEN_WAITS. A relaxed wait takes one event: the run
    itself advances if that is its only wait, otherwise a copy does and the wait is closed. An any-wait stays open.
    """
    image = rule.image
    runs, node_count, matches, full_array = counts.runs, counts.nodes, counts.matches, y.NOT_FULL
    waits = work.runs[i, y.RUN_OPEN_WAITS]
    nfa_state = image[y.HEADER_STATES] + work.runs[i, y.RUN_STATE] * y.STATE_WIDTH
    first, end = image[nfa_state + y.S_WAITS], image[nfa_state + y.S_WAITS_END]
    is_only_wait = i > 0 and end - first == y.WAIT_WIDTH
    moved = False
    mask = _ONE
    for wait in range(first, end, y.WAIT_WIDTH):
        current, mask = mask, mask << _ONE
        if waits & current != 0 and condition_holds(image, wait, events, row, work, i):
            no_room, no_match_room = runs + 1 >= work.runs.shape[0], matches >= work.matches.shape[0]
            if no_room or node_count >= work.nodes.shape[0] or no_match_room:
                full_array = y.FULL_RUNS if no_room else y.FULL_MATCHES
                full_array = y.FULL_NODES if node_count >= work.nodes.shape[0] else full_array
                break
            relaxed = image[wait + y.W_KIND] == y.WAIT_RELAXED
            moved = is_only_wait and relaxed
            child = i
            if not moved:
                child = runs
                for c in range(work.runs.shape[1]):
                    work.runs[child, c] = work.runs[i, c]
                if relaxed:
                    waits &= ~current
            _take(rule, wait, events, row, work, i == 0, child, node_count)
            node_count += 1
            if accepts(image, work.runs, child):
                emit(rule, events, row, work, child, matches, y.KIND_MATCH, events.columns[y.COLUMN_TIME, row])
                matches += 1
            if child == runs and work.runs[child, y.RUN_OPEN_WAITS] != 0:
                runs += 1
    if i > 0 and not moved:
        work.runs[i, y.RUN_OPEN_WAITS] = waits
    return _Counts(counts.head, runs, counts.dead, node_count, matches, full_array)


@inlined
def _candidates(
    image: Int64, common_wait: int, events: Events, row: int, runs: Int64, counts: _Counts, picked: Int64, count: int
) -> int:
    """Append the rows of the runs that the event may advance to `picked`. Return the new count.

    `common_wait` is the offset in the image of a wait whose condition all runs share, or -1. Runs are in rows
    [counts.head, counts.runs). The loop writes each row and counts it only if it fits, without a branch on its content:
    matching runs are unpredictable, and a wrong branch prediction costs more than the comparison.
    """
    columns, nulls = events.columns, events.nulls
    time = columns[y.COLUMN_TIME, row]
    op = y.SIMPLE_NONE
    column = other = register = int64(0)
    if common_wait >= 0:
        predicate = image[common_wait + y.W_PREDICATE]
        op, column = image[common_wait + y.W_SIMPLE], image[common_wait + y.W_SIMPLE_COLUMN]
        other, register = image[common_wait + y.W_SIMPLE_OTHER], y.RUN_HEADER + image[common_wait + y.W_SIMPLE_REGISTER]
        if predicate >= 0 and not bit(events.bitmaps, predicate, row - events.first_row):
            return count
        if op != y.SIMPLE_NONE and op < y.SIMPLE_OR_NULL and nulls[column, row] != 0:
            return count
    if op == y.SIMPLE_NONE:
        for i in range(counts.head, counts.runs):
            picked[count] = i
            count += (runs[i, y.RUN_OPEN_WAITS] != 0) & (runs[i, y.RUN_EXPIRY] > time)
        return count
    value, has_value = columns[column, row], nulls[column, row] == 0
    or_null = op >= y.SIMPLE_OR_NULL
    op &= y.SIMPLE_OR_NULL - 1
    on_less = has_value and (op == y.SIMPLE_LT or op == y.SIMPLE_LE or op == y.SIMPLE_NE)
    on_equal = has_value and (op == y.SIMPLE_LE or op == y.SIMPLE_GE or op == y.SIMPLE_EQ)
    on_greater = has_value and (op == y.SIMPLE_GT or op == y.SIMPLE_GE or op == y.SIMPLE_NE)
    for i in range(counts.head, counts.runs):
        bound = max(runs[i, register], int64(0))  # row 0 instead of -1 (not bound), which must not be read
        is_bound = (runs[i, register] >= 0) & (nulls[other, bound] == 0)
        against = columns[other, bound]
        holds = (on_less & (value < against)) | (on_equal & (value == against)) | (on_greater & (value > against))
        fits = (is_bound & holds) | (or_null & (not is_bound))
        picked[count] = i
        count += fits & (runs[i, y.RUN_OPEN_WAITS] != 0) & (runs[i, y.RUN_EXPIRY] > time)
    return count


@inlined
def _advance_all(
    rule: Rule, common_wait: int, events: Events, row: int, work: Work, run_rows: Int64, counts: _Counts
) -> _Counts:
    """Let the runs in rows `run_rows`, int64[*], take an event that they wait for; each has one wait.

    The waits have the kind of `common_wait`, an offset in the rule's image. With an any-wait (WAIT_ANY) the run goes on
    waiting, and a copy of it takes the event. `dead` counts rows without open waits, which are removed later.
    """
    runs, dead, node_count, matches = counts.runs, counts.dead, counts.nodes, counts.matches
    run_stays = rule.image[common_wait + y.W_KIND] == y.WAIT_ANY
    time = events.columns[y.COLUMN_TIME, row]
    for k in range(run_rows.shape[0]):
        child = run_rows[k]
        nfa_state = rule.image[y.HEADER_STATES] + work.runs[child, y.RUN_STATE] * y.STATE_WIDTH
        wait = rule.image[nfa_state + y.S_WAITS]
        if run_stays:
            for c in range(work.runs.shape[1]):
                work.runs[runs, c] = work.runs[child, c]
            child = runs
        _take(rule, wait, events, row, work, False, child, node_count)
        node_count += 1
        if accepts(rule.image, work.runs, child):
            emit(rule, events, row, work, child, matches, y.KIND_MATCH, time)
            matches += 1
        is_open = work.runs[child, y.RUN_OPEN_WAITS] != 0
        if run_stays:
            runs += is_open  # the copy is kept if it waits for more events
        else:
            dead += not is_open
    return _Counts(counts.head, runs, dead, node_count, matches, y.NOT_FULL)


@inlined
def _drop_ended(runs: Int64, counts: _Counts, time: int, counters: Int64) -> _Counts:
    """Move `head` past rows that are dead or expired at `time` (ms, UTC). Move rows together if many are dead."""
    head, end, dead = counts.head, counts.runs, counts.dead  # runs in rows [head, end), the oldest first
    while head < end and (runs[head, y.RUN_OPEN_WAITS] == 0 or runs[head, y.RUN_EXPIRY] <= time):
        if runs[head, y.RUN_OPEN_WAITS] == 0:  # dead
            dead -= 1
        else:
            counters[y.COUNT_EXPIRED] += 1
        head += 1
    if head - 1 + dead > _SLACK + end - head:  # more rows are unused (before `head`, or dead) than in use
        end = _close_gaps(runs, head, end)
        head, dead = 1, 0  # row 0 is the start run
    return _Counts(head, end, dead, counts.nodes, counts.matches, y.NOT_FULL)


@inlined
def _on_event(
    rule: Rule, common_wait: int, events: Events, row: int, starts: bool, work: Work, picked: Int64, counts: _Counts
) -> _Counts:
    """Process an event: offer it to the start run if it `starts`, and to the runs that it may advance; then skip.

    Runs are in rows [counts.head, counts.runs). The skip strategy drops runs and matches that a match covers; the limit
    on runs evicts the oldest. If full_array of the result names an array that is too small, the event must be repeated.
    """
    time = events.columns[y.COLUMN_TIME, row]
    counts = _drop_ended(work.runs, counts, time, work.counters)
    before = counts.matches
    work.counters[y.COUNT_STEPS] += counts.runs - counts.head - counts.dead + starts
    picked[0] = 0
    count = _candidates(rule.image, common_wait, events, row, work.runs, counts, picked, int64(starts))
    offered = count if common_wait < 0 else int64(starts)
    for k in range(offered):
        i = picked[k]
        counts = _offer(rule, events, row, work, i, counts)
        if counts.full_array != y.NOT_FULL:
            break
        is_dead = work.runs[i, y.RUN_OPEN_WAITS] == 0
        counts = _Counts(counts.head, counts.runs, counts.dead + is_dead, counts.nodes, counts.matches, y.NOT_FULL)
    full_array = counts.full_array
    if full_array == y.NOT_FULL and count > offered:
        if counts.runs + count >= work.runs.shape[0]:
            full_array = y.FULL_RUNS
        elif counts.nodes + count > work.nodes.shape[0]:
            full_array = y.FULL_NODES
        elif counts.matches + count > work.matches.shape[0]:
            full_array = y.FULL_MATCHES
        else:
            counts = _advance_all(rule, common_wait, events, row, work, picked[offered:count], counts)
    dead, matches = counts.dead, counts.matches
    if matches > before and full_array == y.NOT_FULL:
        if rule.words[y.R_SKIP] != y.SKIP_NONE:
            matches = choose_matches(rule, work, before, matches, counts.runs)
            dead = _count_dead(work.runs, counts.head, counts.runs)
        if matches - before > rule.words[y.R_MATCHES_MAX]:
            work.counters[y.COUNT_DROPPED] += matches - before - rule.words[y.R_MATCHES_MAX]
            matches = before + rule.words[y.R_MATCHES_MAX]
    if counts.runs - counts.head - dead > rule.words[y.R_RUNS_MAX]:
        dead = _evict(rule, work, counts, time, picked)
    return _Counts(counts.head, counts.runs, dead, counts.nodes, matches, full_array)


@inlined
def _find_key_starts(words: Int64, starts: SharedStarts, key: int, runs: Int64, end: int) -> tuple[_KeyStarts, int]:
    """Return the key's shared events, which may start runs of several rules, and the row of the rule's first real run.

    Shared events are stored once. A rule creates runs from them only when another event may advance such runs. If the
    key's first row is in the start state, it is not a run but a note: its RUN_START_ROW is the last shared event that
    the rule has processed. Shapes: words of the rule; runs int64[*, W], where rows [1, end) are the key's.
    """
    first = unprocessed = last = int64(0)  # positions among the shared events; `last` is the end of the key
    first_run = int64(1)
    if words[y.R_SHARES] != 0:
        first = first_at(starts.keys, int64(0), int64(starts.keys.shape[0]), key)
        last = first_at(starts.keys, first, int64(starts.keys.shape[0]), key + 1)
        unprocessed = first
        if end > 1 and runs[1, y.RUN_STATE] == words[y.R_START_STATE]:
            unprocessed = first_at(starts.rows, unprocessed, last, runs[1, y.RUN_START_ROW] + 1)
            first_run = int64(2)
    return _KeyStarts(first, unprocessed, last), first_run


@bare
def _within_limit(counts: Int64, first: int, end: int, limit: int, counters: Int64) -> int:
    """Drop deferred events in [first, end) up to the last start beyond the limit; return the first remaining one.

    Shapes: counts int64[S], the number of starts up to each event.
    """
    before = counts[first - 1] if first > 0 else int64(0)
    over = counts[end - 1] - before - limit
    if over > 0:
        counters[y.COUNT_EVICTED] += over
        first = first_at(counts, first, end, before + over) + 1
    return first


@bare
def _within_weight(starts: SharedStarts, first: int, end: int, limit: int, counters: Int64) -> int:
    """Limit the weights of the starts, as `_within_limit` limits their number."""
    before = starts.weights[first - 1] if first > 0 else int64(0)
    over = starts.weights[end - 1] - before - limit
    if over <= 0:
        return first
    first_left = first_at(starts.weights, first, end, before + over) + 1
    counters[y.COUNT_EVICTED] += starts.counts[first_left - 1] - (starts.counts[first - 1] if first > 0 else int64(0))
    return first_left


@bare
def _write_progress(last: int, expiry: int, key: int, work: Work, node: int, output: RunOutput, out_count: int) -> int:
    """Write a note in the form of a run: the rule has processed the key's shared events up to the one in row `last`.

    Shared events may start runs of several rules, and are stored once for all. The note is needed until `expiry` (ms,
    UTC), when the run of the last event expires. Its node, with that event, is row `node`. Returns FULL_*, or NOT_FULL.
    """
    if out_count >= output.runs.shape[0] or node >= work.nodes.shape[0]:
        return y.FULL_OUT if out_count >= output.runs.shape[0] else y.FULL_NODES
    for c in range(work.runs.shape[1]):
        output.runs[out_count, c] = work.runs[0, c]  # row 0 is the start run: a note is in the start state
    work.nodes[node, y.NODE_ROW] = last
    work.nodes[node, y.NODE_STATE] = work.runs[0, y.RUN_STATE]
    work.nodes[node, y.NODE_PREVIOUS] = -1
    output.runs[out_count, y.RUN_EXPIRY] = expiry
    output.runs[out_count, y.RUN_START_ROW] = last
    output.runs[out_count, y.RUN_NODE] = node
    output.keys[out_count] = key
    return y.NOT_FULL


@bare
def _find_common_wait(rule: Rule) -> int:
    """Return a wait that represents the waits of all started runs if they are alike, otherwise -1."""
    if rule.words[y.R_SAME_WAIT] != 0:
        for number in range(rule.words[y.R_START_STATE] + 1, rule.words[y.R_END_STATE]):
            nfa_state = rule.image[y.HEADER_STATES] + number * y.STATE_WIDTH
            if rule.image[nfa_state + y.S_WAITS] < rule.image[nfa_state + y.S_WAITS_END]:
                return rule.image[nfa_state + y.S_WAITS]
    return int64(-1)


@bare
def _evict_over_node_limit(
    rule: Rule, events: Events, time: int, work: Work, scratch: RuleScratch, cursor: Int64,
    counts_and_room: tuple[_Counts, KeyRoom],
) -> tuple[_Counts, KeyRoom]:  # fmt: skip
    """Close runs that have expired at `time` (ms, UTC), and evict the oldest runs if they have bound too many nodes."""
    counts, room = counts_and_room
    _expire(work.runs, counts.head, counts.runs, time, work.counters)
    used = Counts(counts.runs, counts.nodes, counts.matches, y.NOT_FULL)
    used, room = limit_nodes(rule, work, scratch, cursor, counts.head, used, room, events.weights)
    dead = _count_dead(work.runs, counts.head, counts.runs)
    return _Counts(counts.head, counts.runs, dead, used.nodes, used.matches, used.full_array), room


@bare
def advance_plain(
    rule: Rule, events: Events, inputs: RuleInput, shared: SharedStarts, watermark: int, work: Work,
    scratch: RuleScratch, output: RunOutput,
) -> int:  # fmt: skip
    """Advance one plain rule over the queued events; see `advance.advance_rule` for the arguments and the result.

    If rules share events (R_SHARES), `shared` are the shared starts of the rule's prefix, of this call and of earlier
    ones; otherwise it is empty. Its bounds are not used.
    Cost: O(queued events x open runs of their key), a few nanoseconds each.
    """
    common_wait, words = _find_common_wait(rule), rule.words
    within = words[y.R_WITHIN_MS]
    queue, columns, cursor = inputs.queue, events.columns, output.cursor
    for c in range(work.runs.shape[1]):
        work.runs[0, c] = inputs.start_run[c]
    while cursor[y.CURSOR_QUEUE] < queue.shape[0] or cursor[y.CURSOR_RUN] < inputs.keys.shape[0]:
        turn, out_count = cursor[y.CURSOR_QUEUE], cursor[y.CURSOR_OUT]
        for c in range(y.COUNTERS):
            scratch.counters_before[c] = work.counters[c]
        key, run_at, runs = next_key(columns, inputs, cursor, work.runs)
        if runs < 0:
            return y.FULL_RUNS
        key_starts, head = _find_key_starts(words, shared, key, work.runs, runs)
        counts = _Counts(head, runs, int64(0), cursor[y.CURSOR_NODES], cursor[y.CURSOR_MATCHES], y.NOT_FULL)
        room = key_room(rule, cursor, runs > head, events.weights)
        shared_at, shared_end, due_ms = key_starts.unprocessed, key_starts.unprocessed, int64(0)
        while counts.full_array == y.NOT_FULL and turn < queue.shape[0] and columns[y.COLUMN_KEY, queue[turn]] == key:
            row = int64(queue[turn])
            time = columns[y.COLUMN_TIME, row]
            comes_first = shared_at == shared_end and shared_at < key_starts.end and shared.rows[shared_at] < row
            if comes_first and time < words[y.R_UNTIL_MS]:
                # The event may advance deferred events. Skip deferred events that have expired or exceed the limit.
                dead = _expire(work.runs, counts.head, counts.runs, time, work.counters)
                counts = _Counts(counts.head, counts.runs, dead, counts.nodes, counts.matches, y.NOT_FULL)
                shared_end, due_ms = first_at(shared.rows, shared_at, key_starts.end, row), time
                shared_at = _within_limit(shared.counts, shared_at, shared_end, words[y.R_RUNS_MAX], work.counters)
                if shared.weights.shape[0] > 0 and shared_at < shared_end:
                    shared_at = _within_weight(shared, shared_at, shared_end, words[y.R_NODES_MAX], work.counters)
            offered = events
            if shared_at < shared_end:
                row = shared.rows[shared_at]
                offered = Events(columns, events.nulls, shared.bits, row - shared.columns[shared_at], events.weights)
                shared_at += 1
                time = columns[y.COLUMN_TIME, row]
                if time + within <= due_ms:
                    continue
            else:
                turn += 1
                if shared_at < key_starts.end and shared.rows[shared_at] == row:
                    shared_at += 1
                    shared_end = shared_at
            starts = time >= words[y.R_FROM_MS] and time < words[y.R_STARTS_UNTIL_MS]
            if time < words[y.R_UNTIL_MS] and (starts or counts.runs > 1):
                before = counts.nodes
                counts = _on_event(rule, common_wait, offered, row, starts, work, scratch.picked, counts)
                room = less_room(room, events.weights, row, counts.nodes - before)
                if counts.nodes > room.weigh_at and counts.full_array == y.NOT_FULL:
                    counts, room = _evict_over_node_limit(rule, events, time, work, scratch, cursor, (counts, room))
        full_array, node_count = counts.full_array, counts.nodes
        if full_array == y.NOT_FULL and shared_at > key_starts.first:
            last = shared.rows[shared_at - 1]
            expiry = min(_FOREVER, columns[y.COLUMN_TIME, last] + within)
            if expiry > watermark:
                full_array = _write_progress(last, expiry, key, work, node_count, output, out_count)
                node_count, out_count = node_count + 1, out_count + 1
        if full_array == y.NOT_FULL:
            out_count = _save(work, counts, watermark, key, output, out_count)
            full_array = y.FULL_OUT if out_count < 0 else y.NOT_FULL
        full_array, matches = note_evicted(rule, key, work, scratch.counters_before, full_array, counts.matches)
        if full_array != y.NOT_FULL:
            for c in range(y.COUNTERS):
                work.counters[c] = scratch.counters_before[c]
            return full_array
        cursor[y.CURSOR_QUEUE], cursor[y.CURSOR_RUN] = turn, run_at
        cursor[y.CURSOR_NODES], cursor[y.CURSOR_MATCHES], cursor[y.CURSOR_OUT] = node_count, matches, out_count
    return y.NOT_FULL
