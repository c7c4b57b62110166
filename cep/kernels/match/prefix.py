"""The events of a common prefix (nfa/prefixes.py), followed once for all rules that share it.

For each step (nfa/prefixes.py) it is known until when some run may wait for its event. A start opens the steps that
follow it, an event that a step waits for opens those after that, and closes it where a run takes but one. That is more
than any one rule has: one may have lost its run to a match, or count what it waits for.
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
    """Let a run that is over at `expiry` (ms, UTC) wait in the state. Shapes: steps int64[n, 4], waits int64[n]."""
    for s in range(steps.shape[0]):
        if steps[s, STEP_STATE] == nfa_state:
            waits[s] = max(waits[s], expiry)


@bare
def follow_prefix(
    steps: Int64, within: int, columns: Int64, events: PrefixEvents, runs: PrefixRuns, waits: Int64, entered: Int64
) -> None:
    """Fill the expiry of new events: the latest time at which a run is over that would take them.

    Shapes: steps int64[n, 4]; columns int64[C, N] of the event table; `events` are retained and new ones; waits and
    entered int64[n] are scratch. The expiry of a retained event stays. That of a new one is NOT_TAKEN, and stays so
    where no run waits. `within` is the prefix's window in ms.
    Cost: O(events x steps² + runs x steps).
    """
    at = 0
    keys, rows = events.keys, events.rows
    for i in range(rows.shape[0]):
        if i == 0 or keys[i] != keys[i - 1]:
            waits[:] = _NEVER
        while at < runs.keys.shape[0] and runs.keys[at] <= keys[i]:
            if runs.keys[at] == keys[i]:
                if runs.rows[at] >= rows[i]:
                    break
                _enter(steps, runs.nfa_states[at], runs.expiry[at], waits)
            at += 1
        time = columns[y.COLUMN_TIME, rows[i]]
        taken = _NEVER
        entered[:] = _NEVER
        for s in range(steps.shape[0]):
            if (events.masks[i] >> steps[s, STEP_BIT]) & 1 == 0:
                continue
            begins = steps[s, STEP_STATE] == 0
            ends = min(_FOREVER, time + within) if begins else waits[s]
            if ends > time:
                taken = max(taken, ends)
                _enter(steps, steps[s, STEP_TARGET], ends, entered)
                if steps[s, STEP_ENDS] != 0:
                    waits[s] = _NEVER
        for s in range(steps.shape[0]):
            waits[s] = max(waits[s], entered[s])
        if events.expiry[i] == _NEVER:
            events.expiry[i] = taken
