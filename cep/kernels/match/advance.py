"""The matcher: advances the runs of one rule over the events of many keys.

States, transitions and terms come from SASE (Agrawal et al., "Efficient Pattern Matching over Event Streams", 2008) as
Flink CEP uses them, in another form. A run is in a position of the pattern (the last variable that it has taken) and
has a set of open *waits*, one for each way to continue. An event that a wait takes creates a new run. The take closes a
relaxed wait, an any-wait stays open, and a strict wait is open for the next event only. So an event that satisfies no
condition changes nothing and is not read.

Bound events form a tree of nodes (row, state, previous): runs with a common prefix share its nodes.

The queue holds the rows that satisfy some condition of the rule, by key and time; other keys are only visited if they
have runs. If an output array is full, the caller enlarges it and the work on the key starts again. During the work on a
key its runs are rows of `work`; row 0 is the start run, which has taken no event and never closes.
Tested by: tests/engine/test_advance.py, tests/engine/test_against_oracle.py
"""

from cep.kernels import layout as y
from cep.kernels.jit import bare, inlined
from cep.kernels.layout import Int64, int64
from cep.kernels.match.matches import choose_matches, emit, emit_in_order, note_evicted, same_bindings
from cep.kernels.match.merge import merge_runs
from cep.kernels.match.offer import find_concerned_states, hold_back, offer, tidy
from cep.kernels.match.room import KeyRoom, key_room, less_room, limit_nodes
from cep.kernels.match.runs import close_due, close_missed, next_key
from cep.kernels.records import Counts, Events, Rule, RuleInput, RuleScratch, RunOutput, Work

_FOREVER = int64(y.FOREVER)
_TIMED_OUT = int64(y.TIMED_OUT)
_HELD_BACK = int64(y.HELD_BACK)
_BY_DEADLINE = int64(2 * y.FOREVER + 1)  # plus a time is more than FOREVER, and fits
_FEW_RUNS = 8  # up to this number, visiting each run is cheaper than finding the states that the event concerns


@bare
def _mark_timed_out(rule: Rule, i: int, work: Work, count: int) -> None:
    """Mark the time-out of run i as reported, also in runs that have bound the same events in another way."""
    runs = work.runs
    if runs[i, y.RUN_OPEN_WAITS] != 0:
        runs[i, y.RUN_OPEN_WAITS] |= _TIMED_OUT
    if rule.words[y.R_REPEATS] != 0:
        for k in range(1, count):
            is_open = runs[k, y.RUN_OPEN_WAITS] != 0 and runs[k, y.RUN_OPEN_WAITS] != _HELD_BACK
            if is_open and runs[k, y.RUN_START_ROW] == runs[i, y.RUN_START_ROW]:
                if same_bindings(rule.image, work.nodes, runs[k, y.RUN_NODE], runs[i, y.RUN_NODE]):
                    runs[k, y.RUN_OPEN_WAITS] |= _TIMED_OUT


@bare
def _end_waits(
    rule: Rule, events: Events, until: int, detected_ms: int, events_seen: int, i: int, work: Work, counts: Counts
) -> Counts:
    """Close the waits of run i that end by `until`. Report a match for an absence, a time-out for another wait.

    A wait is a transition that the run may still make. An absence is a wait that succeeds if no forbidden event comes.
    The report has the time `detected_ms` (ms, UTC); the key's stream has had `events_seen` events by then. With `skip …
    in order` (R_IN_ORDER) the match is held back: a copy of the run waits until no open run started earlier.
    """
    runs, count, matches = work.runs, counts.runs, counts.matches
    had_timed_out = runs[i, y.RUN_OPEN_WAITS] & _TIMED_OUT != 0
    absent, ran_out = close_due(rule, events.columns, runs, i, work.nodes, until)
    if runs[i, y.RUN_OPEN_WAITS] == 0:
        work.counters[y.COUNT_EXPIRED] += 1
    is_new_timeout = ran_out and rule.words[y.R_TIMEOUTS] != 0 and not had_timed_out
    if is_new_timeout:
        _mark_timed_out(rule, i, work, count)  # so that no run with the same events reports it again
    if absent and rule.words[y.R_IN_ORDER] != 0:
        count = hold_back(runs, i, count)
        # Completed by a deadline: after the last event, and after the matches that this event has completed.
        runs[count - 1, y.RUN_ORDINAL] = events_seen - 1
        runs[count - 1, y.RUN_EXPIRY] = _BY_DEADLINE + detected_ms  # a held-back run has its rank here
        absent = False
    if absent or is_new_timeout:
        kind = y.KIND_TIMEOUT if not absent else (y.KIND_BOTH if is_new_timeout else y.KIND_MATCH)
        last = work.nodes[runs[i, y.RUN_NODE], y.NODE_ROW]
        emit(rule, events, last, work, i, matches, kind, detected_ms)
        matches += 1
    return Counts(count, counts.nodes, matches, y.NOT_FULL)


@bare
def _apply_skip(rule: Rule, events: Events, detected_ms: int, work: Work, old_matches: int, counts: Counts) -> Counts:
    """Apply the rule's skip strategy after one event or deadline. `before` is the number of matches before it."""
    if rule.words[y.R_IN_ORDER] != 0:
        return emit_in_order(rule, events, detected_ms, work, counts)
    matches = counts.matches
    if rule.words[y.R_SKIP] != y.SKIP_NONE and matches > old_matches:
        matches = choose_matches(rule, work, old_matches, matches, counts.runs)
    return Counts(counts.runs, counts.nodes, matches, y.NOT_FULL)


@bare
def _full_array_before_report(work: Work, counts: Counts) -> int:
    if counts.matches >= work.matches.shape[0]:
        return y.FULL_MATCHES
    return y.FULL_RUNS if counts.runs >= work.runs.shape[0] else y.NOT_FULL


@bare
def _process_deadlines(rule: Rule, events: Events, until: int, events_seen: int, work: Work, counts: Counts) -> Counts:
    """Process deadlines (ends of waits) up to `until` (ms, UTC), the earliest first: they cause matches or time-outs.

    The key's stream has had `events_seen` events by then. `until` is FOREVER at the end of the input: then waits for
    an absence match even without a deadline. RUN_OPEN_WAITS is 0 in a closed run, and HELD_BACK in a match that waits
    for earlier runs. If an array is full, the caller enlarges it and starts the work on the key again.
    """
    runs = work.runs
    while True:
        due_ms = _FOREVER
        any_open = False
        for i in range(1, counts.runs):  # row 0 is the start run
            if runs[i, y.RUN_OPEN_WAITS] != 0 and runs[i, y.RUN_OPEN_WAITS] != _HELD_BACK:
                due_ms = min(due_ms, runs[i, y.RUN_EXPIRY])
                any_open = True
        if due_ms > until or (due_ms >= _FOREVER and not any_open):
            return counts
        old_matches, runs_before = counts.matches, counts.runs
        for i in range(1, runs_before):
            waits, end_ms = runs[i, y.RUN_OPEN_WAITS], runs[i, y.RUN_EXPIRY]
            if waits == 0 or waits == _HELD_BACK or end_ms > due_ms:
                continue
            full_array = _full_array_before_report(work, counts)
            if full_array != y.NOT_FULL:
                return Counts(counts.runs, counts.nodes, counts.matches, full_array)
            close_missed(rule.image, runs, i, events_seen)  # a strict wait ends if the very next event did not suit
            if runs[i, y.RUN_OPEN_WAITS] != 0:
                counts = _end_waits(rule, events, due_ms, due_ms, events_seen, i, work, counts)  # detected when due
        counts = _apply_skip(rule, events, due_ms, work, old_matches, counts)  # a match ends the runs that it covers
        if counts.full_array != y.NOT_FULL or due_ms >= _FOREVER:
            return counts


@bare
def _end_event_windows(rule: Rule, events: Events, row: int, work: Work, counts: Counts) -> Counts:
    """Close the runs whose window, a number of events, ends with the event in `row`; report absences and time-outs."""
    runs, old_matches, runs_before = work.runs, counts.matches, counts.runs
    ordinal, detected_ms = events.columns[y.COLUMN_ORDINAL, row], events.columns[y.COLUMN_TIME, row]
    for i in range(1, runs_before):  # row 0 is the start run
        has_ended = ordinal - runs[i, y.RUN_START_ORDINAL] >= rule.words[y.R_WITHIN_EVENTS]
        if not has_ended or runs[i, y.RUN_OPEN_WAITS] == 0 or runs[i, y.RUN_OPEN_WAITS] == _HELD_BACK:
            continue  # its window has not ended, it is closed, or it is a match that is held back
        full_array = _full_array_before_report(work, counts)
        if full_array != y.NOT_FULL:
            return Counts(counts.runs, counts.nodes, counts.matches, full_array)
        close_missed(rule.image, runs, i, ordinal)  # a strict wait that missed the very next event is not reported
        if runs[i, y.RUN_OPEN_WAITS] != 0:
            until = _FOREVER + 1  # later than each deadline: the window ends all waits
            counts = _end_waits(rule, events, until, detected_ms, ordinal, i, work, counts)
    return _apply_skip(rule, events, detected_ms, work, old_matches, counts)


@inlined
def _offer_to_all(
    rule: Rule, events: Events, row: int, work: Work, counts: Counts, stack: Int64
) -> tuple[Counts, bool]:
    """Offer an event to the start run and to every open run. Return the counts, and True if a run may have closed."""
    runs, time = work.runs, events.columns[y.COLUMN_TIME, row]
    old_matches, runs_before, new = counts.matches, counts.runs, row - events.first_row
    # Row 0 is the start run, which has taken no event. It takes one only at times at which the rule may start runs.
    first = 0 if time >= rule.words[y.R_FROM_MS] and time < rule.words[y.R_STARTS_UNTIL_MS] else 1
    deadlines_matter = rule.words[y.R_DEADLINES_MATTER] != 0
    may_have_closed = deadlines_matter  # deadlines before the event may have closed runs
    earliest_ordinal = events.columns[y.COLUMN_ORDINAL, row] - rule.words[y.R_WITHIN_EVENTS]
    # With many runs, skip the runs whose NFA state has no condition that the event satisfies. But offer each 64th event
    # to all runs, so that expired runs are dropped.
    skips = runs_before > _FEW_RUNS and new & 63 != 0 and not deadlines_matter and rule.words[y.R_REACTS_TO_ALL] == 0
    concerned_states = find_concerned_states(rule, events.bitmaps, new) if skips else int64(-1)
    for i in range(first, runs_before):
        if runs[i, y.RUN_OPEN_WAITS] == 0 or runs[i, y.RUN_OPEN_WAITS] == _HELD_BACK:  # closed, or a held-back match
            continue
        nfa_state = min(int64(62), runs[i, y.RUN_STATE] - rule.words[y.R_START_STATE])  # bit 62: all later states
        if i > 0 and skips and (concerned_states >> nfa_state) & 1 == 0:  # the event cannot change this run
            continue
        if i > 0 and (runs[i, y.RUN_EXPIRY] <= time or runs[i, y.RUN_START_ORDINAL] <= earliest_ordinal):
            runs[i, y.RUN_OPEN_WAITS] = 0
            work.counters[y.COUNT_EXPIRED] += 1
            may_have_closed = True
            continue
        work.counters[y.COUNT_STEPS] += 1
        counts = offer(rule, events, row, i, work, counts, old_matches + rule.words[y.R_MATCHES_MAX], stack)
        if counts.full_array != y.NOT_FULL:
            break
        may_have_closed = may_have_closed or runs[i, y.RUN_OPEN_WAITS] == 0
    return counts, may_have_closed


@bare
def _close_ended_runs(rule: Rule, events: Events, row: int, work: Work, count: int) -> None:
    """Close the runs in rows [1, count) whose window ends by the event in `row`, and strict waits that missed theirs.

    Events are only offered to runs that may take them, so other runs may have expired unseen. They are closed before
    runs are counted for a limit. If the end of a window causes a match or a time-out (R_DEADLINES_MATTER),
    _process_deadlines closes them instead.
    """
    runs, time, ordinal = work.runs, events.columns[y.COLUMN_TIME, row], events.columns[y.COLUMN_ORDINAL, row]
    deadlines_matter, counts_events = rule.words[y.R_DEADLINES_MATTER] != 0, rule.words[y.R_COUNTS] != 0
    for i in range(1, count):
        if runs[i, y.RUN_OPEN_WAITS] == 0 or runs[i, y.RUN_OPEN_WAITS] == _HELD_BACK:  # closed, or a held-back match
            continue
        if counts_events:  # the rule needs an event's ordinal, its number in the key's stream
            close_missed(rule.image, runs, i, ordinal + 1)  # a strict wait takes only the event right after the last
            events_since_start = ordinal - runs[i, y.RUN_START_ORDINAL]
            if not deadlines_matter and events_since_start >= rule.words[y.R_WITHIN_EVENTS]:
                runs[i, y.RUN_OPEN_WAITS] = 0
        if not deadlines_matter and runs[i, y.RUN_OPEN_WAITS] != 0 and runs[i, y.RUN_EXPIRY] <= time:
            runs[i, y.RUN_OPEN_WAITS] = 0
            work.counters[y.COUNT_EXPIRED] += 1


@bare
def _evict_over_node_limit(
    rule: Rule, events: Events, row: int, work: Work, scratch: RuleScratch, cursor: Int64,
    counts_and_room: tuple[Counts, KeyRoom],
) -> tuple[Counts, KeyRoom]:  # fmt: skip
    """Evict the oldest runs if they have bound too many events (nodes); drop the nodes that no run needs any more."""
    counts, room = counts_and_room
    _close_ended_runs(rule, events, row, work, counts.runs)
    first_run = int64(1)  # row 0 is the start run
    counts, room = limit_nodes(rule, work, scratch, cursor, first_run, counts, room, events.weights)
    runs = tidy(rule.words, work.runs, counts.runs, scratch.picked, work.counters)
    return Counts(runs, counts.nodes, counts.matches, counts.full_array), room


@bare
def _on_event(rule: Rule, events: Events, row: int, work: Work, counts: Counts, scratch: RuleScratch) -> Counts:
    """Process one event of a key: deadlines before it, its offer to all runs, merging, the skip strategy, limits."""
    time = events.columns[y.COLUMN_TIME, row]
    if rule.words[y.R_DEADLINES_MATTER] != 0:  # deadlines up to the event cause matches or time-outs
        counts = _process_deadlines(rule, events, time, events.columns[y.COLUMN_ORDINAL, row], work, counts)
        if counts.full_array == y.NOT_FULL and rule.words[y.R_WITHIN_EVENTS] < _FOREVER:
            counts = _end_event_windows(rule, events, row, work, counts)
        if counts.full_array != y.NOT_FULL:  # the caller enlarges it and starts the work on the key again
            return counts
    old_matches, runs_before = counts.matches, counts.runs
    counts, may_have_closed = _offer_to_all(rule, events, row, work, counts, scratch.stack)
    if counts.full_array != y.NOT_FULL:
        return counts
    if rule.words[y.R_MERGES] != 0 and counts.runs > runs_before:  # new runs with the same future as another become one
        counts = merge_runs(rule.words, work, runs_before, counts, scratch.stack)
        may_have_closed = True
        if counts.full_array != y.NOT_FULL:
            return counts
    runs, matches = counts.runs, counts.matches
    if matches > old_matches or rule.words[y.R_IN_ORDER] != 0:  # a held-back match may now be emitted
        may_have_closed = may_have_closed or rule.words[y.R_SKIP] != y.SKIP_NONE  # a match ends runs that it covers
        counts = _apply_skip(rule, events, time, work, old_matches, counts)
        matches = counts.matches
        if counts.full_array != y.NOT_FULL:
            return counts
        if matches - old_matches > rule.words[y.R_MATCHES_MAX]:
            work.counters[y.COUNT_DROPPED] += matches - old_matches - rule.words[y.R_MATCHES_MAX]
            matches = old_matches + rule.words[y.R_MATCHES_MAX]
    if runs - 1 > rule.words[y.R_RUNS_MAX]:  # the start run, in row 0, does not count
        _close_ended_runs(rule, events, row, work, runs)
        may_have_closed = True
    if may_have_closed:
        runs = tidy(rule.words, work.runs, runs, scratch.picked, work.counters)
    return Counts(runs, counts.nodes, matches, y.NOT_FULL)


@inlined
def _save(rule: Rule, key: int, events_seen: int, work: Work, count: int, output: RunOutput, out_count: int) -> int:
    """Write the key's open runs from row out_count on, for the next batch. Return the new count, -1 if they do not fit.

    Runs are in rows [1, count) of `work`; row 0, the start run, is not stored. `events_seen` is the number of events of
    the key's stream in this batch. An ordinal is the number of an event in the stream, stored relative to the next one.
    A strict wait is for the next event only: it is closed if that event has come and was not taken.
    """
    runs = work.runs
    if out_count + count - 1 > output.runs.shape[0]:
        return -1
    for i in range(1, count):
        close_missed(rule.image, runs, i, events_seen)
        events_since_start = events_seen - runs[i, y.RUN_START_ORDINAL]
        # If deadlines matter (they cause matches or time-outs), the end of the window still has to be reported.
        has_ended = rule.words[y.R_DEADLINES_MATTER] == 0 and events_since_start >= rule.words[y.R_WITHIN_EVENTS]
        if has_ended or runs[i, y.RUN_OPEN_WAITS] == 0:
            continue
        for c in range(runs.shape[1]):
            output.runs[out_count, c] = runs[i, c]
        output.runs[out_count, y.RUN_ORDINAL] -= events_seen
        output.runs[out_count, y.RUN_START_ORDINAL] -= events_seen
        output.keys[out_count] = key
        out_count += 1
    return out_count


@inlined
def _on_end(
    rule: Rule, events: Events, watermark: int, events_seen: int, work: Work, counts: Counts, heap: Int64
) -> Counts:
    """After a key's last event, close waits that end by the watermark; drop closed runs. heap int64[*] is scratch.

    If deadlines matter, they cause matches or time-outs; otherwise expired runs are only closed. At R_UNTIL_MS the
    validity of the rule ends: it processes no later deadline, and the remaining waits are dropped.
    """
    runs, until = work.runs, min(watermark, rule.words[y.R_UNTIL_MS])
    if rule.words[y.R_DEADLINES_MATTER] != 0:
        counts = _process_deadlines(rule, events, until, events_seen, work, counts)
        if counts.full_array == y.NOT_FULL and until == rule.words[y.R_UNTIL_MS] and until < _FOREVER:
            for i in range(1, counts.runs):  # row 0 is the start run
                if runs[i, y.RUN_OPEN_WAITS] != 0:
                    runs[i, y.RUN_OPEN_WAITS] = 0
                    work.counters[y.COUNT_EXPIRED] += 1
    else:
        for i in range(1, counts.runs):
            if runs[i, y.RUN_EXPIRY] <= watermark and runs[i, y.RUN_OPEN_WAITS] != 0:
                runs[i, y.RUN_OPEN_WAITS] = 0
                work.counters[y.COUNT_EXPIRED] += 1
    runs_left = tidy(rule.words, runs, counts.runs, heap, work.counters)
    return Counts(runs_left, counts.nodes, counts.matches, counts.full_array)


@bare
def advance_rule(
    rule: Rule, events: Events, inputs: RuleInput, watermark: int, work: Work, scratch: RuleScratch, output: RunOutput
) -> int:
    """Advance one rule over the queued events and process deadlines up to the watermark (ms, UTC).

    Shapes: see the records. scratch.stream_count counts the events of the rule's stream. output.cursor holds the start
    position, and on return the position to continue from; matches, nodes and runs are written from its counts on.
    Returns: NOT_FULL when all is done, otherwise the array to enlarge before the next call. Cost: O(queued events x
    open runs of their key).
    """
    queue, columns, cursor = inputs.queue, events.columns, output.cursor
    for c in range(inputs.start_run.shape[0]):
        work.runs[0, c] = inputs.start_run[c]
    while cursor[y.CURSOR_QUEUE] < queue.shape[0] or cursor[y.CURSOR_RUN] < inputs.keys.shape[0]:
        queue_index, out_count = cursor[y.CURSOR_QUEUE], cursor[y.CURSOR_OUT]
        for c in range(y.COUNTERS):
            scratch.counters_before[c] = work.counters[c]
        key, run_at, runs = next_key(columns, inputs, cursor, work.runs)
        if runs < 0:
            return y.FULL_RUNS
        counts = Counts(runs, cursor[y.CURSOR_NODES], cursor[y.CURSOR_MATCHES], y.NOT_FULL)
        room = key_room(rule, cursor, runs > 1, events.weights)
        while (
            queue_index < queue.shape[0]
            and columns[y.COLUMN_KEY, queue[queue_index]] == key
            and counts.full_array == y.NOT_FULL
        ):
            row = int64(queue[queue_index])
            queue_index += 1
            time = columns[y.COLUMN_TIME, row]
            starts = time >= rule.words[y.R_FROM_MS] and time < rule.words[y.R_STARTS_UNTIL_MS]
            outside = rule.words[y.R_COUNTS] != 0 and columns[y.COLUMN_ORDINAL, row] < 0
            if time < rule.words[y.R_UNTIL_MS] and (starts or counts.runs > 1) and not outside:
                old_nodes = counts.nodes
                counts = _on_event(rule, events, row, work, counts, scratch)
                room = less_room(room, events.weights, row, counts.nodes - old_nodes)
                if counts.nodes > room.weigh_at and counts.full_array == y.NOT_FULL:
                    counts, room = _evict_over_node_limit(rule, events, row, work, scratch, cursor, (counts, room))
        full_array = counts.full_array
        if full_array == y.NOT_FULL and counts.runs > 1:
            # A rule that does not count has no counts in its scratch memory, and its runs have ordinals of 0.
            events_seen = int64(scratch.stream_count[key]) if rule.words[y.R_COUNTS] != 0 else int64(0)
            counts = _on_end(rule, events, watermark, events_seen, work, counts, scratch.picked)
            full_array = counts.full_array
            if full_array == y.NOT_FULL:
                out_count = _save(rule, key, events_seen, work, counts.runs, output, out_count)
                full_array = y.FULL_OUT if out_count < 0 else y.NOT_FULL
        full_array, matches = note_evicted(rule, key, work, scratch.counters_before, full_array, counts.matches)
        if full_array != y.NOT_FULL:
            for c in range(y.COUNTERS):
                work.counters[c] = scratch.counters_before[c]
            return full_array
        cursor[y.CURSOR_QUEUE], cursor[y.CURSOR_RUN] = queue_index, run_at
        cursor[y.CURSOR_NODES], cursor[y.CURSOR_MATCHES], cursor[y.CURSOR_OUT] = counts.nodes, matches, out_count
    return y.NOT_FULL
