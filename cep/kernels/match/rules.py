"""Advance the rules of a call one after the other, each with the simplest matcher that suits it (plain.py, advance.py).

A rule without new relevant events and without runs costs only a look at its conditions' bitmaps. The events of a common
prefix (nfa/prefixes.py) are followed once for all rules that share it.
Tested by: tests/engine/test_advance.py, tests/engine/test_starts.py, tests/engine/test_against_oracle.py.
"""

from cep.kernels import layout as y
from cep.kernels.arrange import count_ordinals, queue_rows
from cep.kernels.jit import bare, inlined
from cep.kernels.layout import Int32, Int64, int64
from cep.kernels.match.advance import advance_rule
from cep.kernels.match.plain import advance_plain
from cep.kernels.records import (
    AllRuns,
    Events,
    PrefixEvents,
    PrefixRuns,
    Program,
    Rule,
    RuleInput,
    RuleScratch,
    RunOutput,
    SharedStarts,
    Work,
)


@bare
def _number_stream(program: Program, stream: int, events: Events, stream_count: Int32, cursor: Int64) -> None:
    """Write the new events' positions in a stream, if there is one (>= 0), into the table, unless they are there.

    Shapes: stream_count int32[K] becomes the counts by key; cursor int64[CURSOR_WIDTH].
    """
    if stream >= 0 and stream + 1 != cursor[y.CURSOR_STREAM]:
        for key in range(stream_count.shape[0]):
            stream_count[key] = 0
        count_ordinals(events.columns, program.streams[stream], events.first_row, stream_count)
        cursor[y.CURSOR_STREAM] = stream + 1


@inlined
def _next_rule(
    program: Program, events: Events, runs: AllRuns, work: Work, scratch: RuleScratch, output: RunOutput
) -> int:
    """Move the cursor to the first rule that has work, and start the rule unless it was started before.

    The cursor is the position at which the kernel resumes after the caller has enlarged a full array. Returns: the
    number of events that the rule may react to, in scratch.queue; -1 if no rule has work.
    """
    cursor = output.cursor
    new_count = events.columns.shape[1] - events.first_row
    while cursor[y.CURSOR_RULE] < program.rules.shape[0]:
        number = cursor[y.CURSOR_RULE]
        relevant = program.relevance[program.relevance_first[number] : program.relevance_first[number + 1]]
        queued = queue_rows(events.bitmaps, relevant, events.first_row, new_count, scratch.queue)
        if queued > 0 or runs.bounds[number] < runs.bounds[number + 1]:
            if cursor[y.CURSOR_QUEUE] == 0 and cursor[y.CURSOR_RUN] == 0:  # the rule does not resume
                cursor[y.CURSOR_FIRST_OUT] = cursor[y.CURSOR_OUT]  # where its open runs begin in the output
                for c in range(y.COUNTERS):  # the counters before the rule: _close_rule subtracts them
                    cursor[y.CURSOR_COUNTED + c] = work.counters[c]
            stream = program.rules[number, y.R_COUNTS] - 1  # the events that its window counts; -1 for a window of time
            _number_stream(program, stream, events, scratch.stream_count, cursor)
            return queued
        cursor[y.CURSOR_RULE] += 1
    return -1


@inlined
def _close_rule(number: int, work: Work, output: RunOutput) -> None:
    """Record the rule's output, and move the cursor to the next rule."""
    cursor = output.cursor
    for i in range(cursor[y.CURSOR_FIRST_OUT], cursor[y.CURSOR_OUT]):
        output.rules[i] = number
    for c in range(y.COUNTERS):
        output.counters[c, number] = work.counters[c] - cursor[y.CURSOR_COUNTED + c]
    cursor[y.CURSOR_RULE] += 1
    cursor[y.CURSOR_QUEUE] = cursor[y.CURSOR_RUN] = 0


@inlined
def _input(program: Program, number: int, queued: int, runs: AllRuns, scratch: RuleScratch) -> RuleInput:
    lo, hi = runs.bounds[number], runs.bounds[number + 1]
    return RuleInput(scratch.queue[:queued], program.start_runs[number], runs.rows[lo:hi], runs.keys[lo:hi])


@inlined
def _starts(words: Int64, shared: SharedStarts) -> SharedStarts:
    """Return the shared starts of a plain rule with these words; empty if it shares none."""
    first = end = shared.bounds[0]
    if words[y.R_SHARES] != 0:
        first, end = shared.bounds[words[y.R_SHARES] - 1], shared.bounds[words[y.R_SHARES]]
    return SharedStarts(
        shared.keys[first:end], shared.rows[first:end], shared.counts[first:end],
        shared.columns[first:end], shared.bits, shared.bounds, shared.weights[first:end],
    )  # fmt: skip


@bare
def advance_plain_rules(
    program: Program, events: Events, runs: AllRuns, shared: SharedStarts, watermark: int, work: Work,
    scratch: RuleScratch, output: RunOutput,
) -> int:  # fmt: skip
    """Advance rules as `advance_rules`, if all are plain (only relaxed waits): it compiles in a third of the time."""
    queued = _next_rule(program, events, runs, work, scratch, output)
    while queued >= 0:
        number = output.cursor[y.CURSOR_RULE]
        words, inputs = program.rules[number], _input(program, number, queued, runs, scratch)
        rule, starts = Rule(program.image, words), _starts(words, shared)
        full_array = advance_plain(rule, events, inputs, starts, watermark, work, scratch, output)
        if full_array != y.NOT_FULL:  # the caller enlarges the array, and the next call resumes here
            return full_array
        _close_rule(number, work, output)
        queued = _next_rule(program, events, runs, work, scratch, output)
    return y.NOT_FULL


@bare
def advance_rules(
    program: Program, events: Events, runs: AllRuns, shared: SharedStarts, watermark: int, work: Work,
    scratch: RuleScratch, output: RunOutput,
) -> int:  # fmt: skip
    """Advance each rule over the new events and process deadlines up to the watermark (ms, UTC).

    A plain rule (R_PLAIN) has only relaxed waits, without guards or time bounds, and a faster matcher, plain.py. The
    events `shared` may start runs of several rules. output.rules gets the rule of each row of output.runs, and
    output.counters the amount that each rule adds to each counter. Returns: NOT_FULL when all is done, otherwise the
    array that the caller enlarges; the next call then resumes at the cursor.
    """
    queued = _next_rule(program, events, runs, work, scratch, output)
    while queued >= 0:  # the number of events that the rule may react to; -1 if no rule is left
        number = output.cursor[y.CURSOR_RULE]
        words, inputs = program.rules[number], _input(program, number, queued, runs, scratch)
        rule = Rule(program.image, words)
        if words[y.R_PLAIN] != 0:
            starts = _starts(words, shared)
            full_array = advance_plain(rule, events, inputs, starts, watermark, work, scratch, output)
        else:
            full_array = advance_rule(rule, events, inputs, watermark, work, scratch, output)
        if full_array != y.NOT_FULL:
            return full_array
        _close_rule(number, work, output)
        queued = _next_rule(program, events, runs, work, scratch, output)
    return y.NOT_FULL


STEP_STATE, STEP_BIT, STEP_TARGET, STEP_ENDS = range(4)
_FOREVER = int64(y.FOREVER)
NOT_TAKEN = -(2**62)  # an expiry before any time
_NEVER = int64(NOT_TAKEN)


@bare
def _enter(steps: Int64, nfa_state: int, expiry: int, waits: Int64) -> None:
    """Let a run that expires at `expiry` (ms, UTC) wait in the state. Shapes: steps int64[n, 4], waits int64[n]."""
    for s in range(steps.shape[0]):
        if steps[s, STEP_STATE] == nfa_state:
            waits[s] = max(waits[s], expiry)


@bare
def follow_prefix(
    steps: Int64, within: int, columns: Int64, events: PrefixEvents, runs: PrefixRuns, waits: Int64, entered: Int64
) -> None:
    """Fill the expiry of new events: the latest expiry of the runs that would take them.

    A prefix is the first conditions of patterns, as far as rules share them. A step is a state of the prefix, the bit
    of the condition that the state waits for, the next state, and 1 if the wait ends when a run takes an event. For
    each step s, waits[s] is the time until which some run may take an event. The kernel follows all possible runs and
    the stored `runs` of single rules; a rule may really have fewer. A new event has the expiry NOT_TAKEN, and keeps it
    if no run waits for it. A retained event keeps its expiry. Shapes: steps int64[n, 4]; columns int64[C, N] of the
    event table; waits and entered int64[n] are scratch. `within` is in ms. Cost: O(events x steps² + runs x steps).
    """
    run_index = 0
    keys, rows = events.keys, events.rows
    for i in range(rows.shape[0]):
        if i == 0 or keys[i] != keys[i - 1]:
            waits[:] = _NEVER  # no run of this key waits yet
        while run_index < runs.keys.shape[0] and runs.keys[run_index] <= keys[i]:
            if runs.keys[run_index] == keys[i]:
                if runs.rows[run_index] >= rows[i]:
                    break  # this run waits only for later events
                _enter(steps, runs.nfa_states[run_index], runs.expiry[run_index], waits)
            run_index += 1
        time = columns[y.COLUMN_TIME, rows[i]]
        latest_end = _NEVER
        entered[:] = _NEVER
        for s in range(steps.shape[0]):
            if (events.masks[i] >> steps[s, STEP_BIT]) & 1 == 0:
                continue  # the event does not satisfy the step's condition
            begins = steps[s, STEP_STATE] == 0  # the event begins a run
            ends = min(_FOREVER, time + within) if begins else waits[s]
            if ends > time:  # some run may take the event
                latest_end = max(latest_end, ends)
                _enter(steps, steps[s, STEP_TARGET], ends, entered)
                if steps[s, STEP_ENDS] != 0:
                    waits[s] = _NEVER  # the runs go on to the next state
        for s in range(steps.shape[0]):
            waits[s] = max(waits[s], entered[s])  # runs that took this event wait for later ones
        if events.expiry[i] == _NEVER:  # a new event
            events.expiry[i] = latest_end
