"""Follow the events of a common prefix (nfa/prefixes.py) once for all rules that share it.

For each step of the prefix, the kernel computes the time until which some run may wait for its event. A start opens the
steps after it. An event that a step waits for opens the next steps, and closes the step where a run takes only one
event. This covers more than the runs of any single rule: a rule may have lost its run to a match, or count the events
that it waits for.

Tested by: tests/engine/test_starts.py
"""

from __future__ import annotations

from cep.kernels import layout as y
from cep.kernels.jit import bare
from cep.kernels.layout import Int64, int64
from cep.kernels.records import PrefixEvents, PrefixRuns

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

    Shapes: steps int64[n, 4]; columns int64[C, N] of the event table; `events` are retained and new ones; waits and
    entered int64[n] are scratch. A retained event keeps its expiry. A new event has NOT_TAKEN, and keeps it if no run
    waits for it. `within` is the prefix's window in ms.
    Cost: O(events x steps² + runs x steps).
    """
    run_index = 0
    keys, rows = events.keys, events.rows
    for i in range(rows.shape[0]):
        if i == 0 or keys[i] != keys[i - 1]:
            waits[:] = _NEVER
        while run_index < runs.keys.shape[0] and runs.keys[run_index] <= keys[i]:
            if runs.keys[run_index] == keys[i]:
                if runs.rows[run_index] >= rows[i]:
                    break
                _enter(steps, runs.nfa_states[run_index], runs.expiry[run_index], waits)
            run_index += 1
        time = columns[y.COLUMN_TIME, rows[i]]
        latest_end = _NEVER
        entered[:] = _NEVER
        for s in range(steps.shape[0]):
            if (events.masks[i] >> steps[s, STEP_BIT]) & 1 == 0:
                continue
            begins = steps[s, STEP_STATE] == 0
            ends = min(_FOREVER, time + within) if begins else waits[s]
            if ends > time:
                latest_end = max(latest_end, ends)
                _enter(steps, steps[s, STEP_TARGET], ends, entered)
                if steps[s, STEP_ENDS] != 0:
                    waits[s] = _NEVER
        for s in range(steps.shape[0]):
            waits[s] = max(waits[s], entered[s])
        if events.expiry[i] == _NEVER:
            events.expiry[i] = latest_end
