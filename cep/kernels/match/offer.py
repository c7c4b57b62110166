"""Offer one event to one run: create the runs that it becomes, close waits, and tidy a key's runs.

Tested by: tests/kernels/test_room.py, tests/engine/test_advance.py, tests/engine/test_against_oracle.py
"""

from cep.kernels import layout as y
from cep.kernels.jit import bare, inlined
from cep.kernels.layout import Int64, UInt64, int64
from cep.kernels.match.matches import emit
from cep.kernels.match.merge import emit_all
from cep.kernels.match.room import evict_beyond
from cep.kernels.match.runs import accepts, bit, condition_holds, gaps_allow, guarded, make_child
from cep.kernels.records import Counts, Events, Rule, Work

_FOREVER = int64(y.FOREVER)
_HELD_BACK = int64(y.HELD_BACK)
_ONE = int64(1)
_BEFORE_TAKE, _AFTER_TAKE = True, False


@bare
def hold_back(runs: Int64, i: int, count: int) -> int:
    """Copy run i, a complete match, to row `count` of runs, where it waits for earlier runs. Return the new count."""
    for c in range(runs.shape[1]):
        runs[count, c] = runs[i, c]
    runs[count, y.RUN_OPEN_WAITS] = _HELD_BACK
    runs[count, y.RUN_EXPIRY] = _FOREVER
    return count + 1


@inlined
def _finish_child(rule: Rule, events: Events, row: int, work: Work, counts: Counts, limit: int, stack: Int64) -> Counts:
    """Finish the new run in row counts.runs: report it if it is a match, and keep it if it may take more events."""
    child = counts.runs
    accepted = accepts(rule.image, work.runs, child)
    runs, node_count, matches, full_array = counts.runs, counts.nodes, counts.matches, y.NOT_FULL
    if accepted and rule.words[y.R_MERGES] != 0:  # a merged run stands for several runs: several matches
        reported = emit_all(rule, events, row, work, child, counts, limit, stack)
        node_count, matches, full_array = reported.nodes, reported.matches, reported.full_array
    elif accepted and rule.words[y.R_IN_ORDER] == 0:
        emit(rule, events, row, work, child, matches, y.KIND_MATCH, events.columns[y.COLUMN_TIME, row])
        matches += 1
    if full_array == y.NOT_FULL:
        if work.runs[child, y.RUN_OPEN_WAITS] != 0:  # it may take more events
            runs += 1
        if accepted and rule.words[y.R_IN_ORDER] != 0:  # a copy waits until no earlier run is open
            runs = hold_back(work.runs, child, runs)
    return Counts(runs, node_count, matches, full_array)


@inlined
def _full_array_before_take(work: Work, counts: Counts) -> int:
    """Return FULL_* for an array without room for one more run, NOT_FULL if there is room."""
    full_array = y.NOT_FULL
    if counts.matches >= work.matches.shape[0]:
        full_array = y.FULL_MATCHES
    if counts.runs + 1 >= work.runs.shape[0]:
        full_array = y.FULL_RUNS
    if counts.nodes >= work.nodes.shape[0]:
        full_array = y.FULL_NODES
    return full_array


@bare
def _match_absence(rule: Rule, events: Events, row: int, i: int, work: Work, counts: Counts) -> Counts:
    """Report run i as a match: it forbids certain events as its next one, and the next event, in `row`, is another."""
    runs, matches = counts.runs, counts.matches
    if matches >= work.matches.shape[0]:  # the caller enlarges the array and starts the work on the key again
        return Counts(runs, counts.nodes, matches, y.FULL_MATCHES)
    if runs >= work.runs.shape[0]:
        return Counts(runs, counts.nodes, matches, y.FULL_RUNS)
    if rule.words[y.R_IN_ORDER] != 0:  # a copy of the run waits until no open run started earlier
        runs = hold_back(work.runs, i, runs)
        work.runs[runs - 1, y.RUN_ORDINAL] = events.columns[y.COLUMN_ORDINAL, row]
    else:
        last = work.nodes[work.runs[i, y.RUN_NODE], y.NODE_ROW]
        emit(rule, events, last, work, i, matches, y.KIND_MATCH, events.columns[y.COLUMN_TIME, row])
        matches += 1
    return Counts(runs, counts.nodes, matches, y.NOT_FULL)


@inlined
def offer(rule: Rule, events: Events, row: int, i: int, work: Work, counts: Counts, limit: int, stack: Int64) -> Counts:
    """Offer the event in `row` to run i: new runs are written from row counts.runs on, waits may close.

    Matches beyond number `limit` are not written. Shapes: stack int64[*, 3] scratch.
    """
    image = rule.image
    waits = work.runs[i, y.RUN_OPEN_WAITS]
    nfa_state = image[y.HEADER_STATES] + work.runs[i, y.RUN_STATE] * y.STATE_WIDTH
    mask = _ONE
    for wait in range(image[nfa_state + y.S_WAITS], image[nfa_state + y.S_WAITS_END], y.WAIT_WIDTH):
        current, mask = mask, mask << _ONE
        if waits & current == 0:
            continue
        kind = image[wait + y.W_KIND]
        fits, first, end = 1, image[wait + y.W_BOUNDS], image[wait + y.W_BOUNDS_END]
        if kind == y.WAIT_STRICT and events.columns[y.COLUMN_ORDINAL, row] != work.runs[i, y.RUN_ORDINAL] + 1:
            fits = -1
        elif i > 0 and first < end:
            fits = gaps_allow(image, first, end, events.columns, row, work.runs, i, work.nodes)
        guards = image[wait + y.W_GUARDS] < image[wait + y.W_GUARDS_END]
        if guards and fits >= 0:
            if guarded(image, wait, waits, _BEFORE_TAKE, events, row, work, i):
                fits = -1
            # An absence takes no event, so any forbidden event breaks it.
            elif kind >= y.WAIT_ABSENCE and guarded(image, wait, waits, _AFTER_TAKE, events, row, work, i):
                fits = -1
        if fits < 0:
            waits &= ~current
            continue
        takes = False
        if fits > 0 and kind < y.WAIT_ABSENCE:
            takes = condition_holds(image, wait, events, row, work, i)
        if takes:
            full_array = _full_array_before_take(work, counts)
            if full_array != y.NOT_FULL:
                counts = Counts(counts.runs, counts.nodes, counts.matches, full_array)
                break
            make_child(rule, wait, events, row, work, i, counts.runs, counts.nodes)
            counts = Counts(counts.runs, counts.nodes + 1, counts.matches, y.NOT_FULL)
            counts = _finish_child(rule, events, row, work, counts, limit, stack)
            if counts.full_array != y.NOT_FULL:
                break
            if kind != y.WAIT_ANY and waits & image[wait + y.W_REOPENS] == 0:
                waits &= ~current
        elif kind == y.WAIT_STRICT:
            waits &= ~current
        elif kind == y.WAIT_ABSENCE_NEXT:
            counts = _match_absence(rule, events, row, i, work, counts)
            if counts.full_array != y.NOT_FULL:
                break
            waits &= ~current
        if guards and waits & current != 0:
            if guarded(image, wait, waits, _AFTER_TAKE, events, row, work, i):
                waits &= ~current
    if i > 0:
        every = (1 << int64((image[nfa_state + y.S_WAITS_END] - image[nfa_state + y.S_WAITS]) // y.WAIT_WIDTH)) - 1
        waits |= work.runs[i, y.RUN_OPEN_WAITS] & ~every  # stop events that have ended the greed of a loop
        work.runs[i, y.RUN_OPEN_WAITS] = 0 if waits & (every | _HELD_BACK) == 0 else waits
    return counts


@inlined
def tidy(words: Int64, runs: Int64, count: int, heap: Int64, counters: Int64) -> int:
    """Drop runs without open waits, and the oldest runs beyond the limit. Return the number of remaining rows.

    Shapes: words of the rule; runs int64[*, W], of which `count` rows are in use; heap int64[*] is scratch.
    """
    if count - 1 > words[y.R_RUNS_MAX]:
        evict_beyond(runs, 1, count, words[y.R_RUNS_MAX], heap, counters)
    end = 1  # row 0, the start run, stays
    for i in range(1, count):
        if runs[i, y.RUN_OPEN_WAITS] != 0:
            if end != i:
                for c in range(runs.shape[1]):
                    runs[end, c] = runs[i, c]
            end += 1
    return end


@bare
def find_concerned_states(rule: Rule, bitmaps: UInt64, event_index: int) -> int:
    """Return a bit for each NFA state that may react to new event `event_index`; runs in other states can skip it."""
    image, first = rule.image, rule.words[y.R_START_STATE]
    concerned_states = int64(1) << int64(62)  # always set: it stands for states from number 62 on, not tested
    states = image[y.HEADER_STATES]
    for number in range(first, min(rule.words[y.R_END_STATE], first + 62)):
        nfa_state = states + number * y.STATE_WIDTH
        concerned = False
        for wait in range(image[nfa_state + y.S_WAITS], image[nfa_state + y.S_WAITS_END], y.WAIT_WIDTH):
            # A wait may take the event, unless it is for an absence. A guard may close its wait because of the event.
            predicate = image[wait + y.W_PREDICATE]  # a condition on one event, -1 for any event
            if image[wait + y.W_KIND] != y.WAIT_ABSENCE and (predicate < 0 or bit(bitmaps, predicate, event_index)):
                concerned = True
            for g in range(image[wait + y.W_GUARDS], image[wait + y.W_GUARDS_END], y.GUARD_WIDTH):
                predicate = image[g + y.G_PREDICATE]
                if predicate < 0 or bit(bitmaps, predicate, event_index):
                    concerned = True
        if concerned:
            concerned_states |= int64(1) << int64(number - first)
    return concerned_states
