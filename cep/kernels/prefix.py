"""The events of a common prefix (nfa/prefixes.py), followed once for all rules that share it.

For each step (nfa/prefixes.py) it is known until when some run may wait for its event. A start opens the steps that
follow it, an event that a step waits for opens those after that, and closes it where a run takes but one. That is more
than any one rule has: one may have lost its run to a match, or count what it waits for.
Tested by: tests/engine/test_starts.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cep.kernels import layout as y
from cep.kernels.jit import bare

STEP_STATE, STEP_BIT, STEP_TARGET, STEP_ENDS = range(4)
_FOREVER = np.int64(y.FOREVER)
NOT_TAKEN = -(2**62)  # an expiry before any time
_NEVER = np.int64(NOT_TAKEN)


@bare
def _enter(steps: Any, nfa_state: Any, expiry: Any, waits: Any) -> None:
    """A run that is over at `expiry` waits in the state."""
    for s in range(steps.shape[0]):
        if steps[s, STEP_STATE] == nfa_state:
            waits[s] = max(waits[s], expiry)


@bare
def follow_prefix(
    steps: Any, within: Any, columns: Any, keys: Any, rows: Any, masks: Any, run_keys: Any, run_rows: Any,
    run_states: Any, run_expiry: Any, waits: Any, entered: Any, expiry: Any,
) -> None:  # fmt: skip
    """Fill the expiry of new events: the latest time at which a run is over that would take them.

    Shapes: steps int64[n, 4]; keys int32[S], rows and masks int64[S] of kept and new events by key and row, a bit in
    the mask for each condition that holds; run_keys int32[R], run_rows, run_states and run_expiry int64[R] of the
    rules' own runs by key and row of the last event taken; waits and entered int64[n] are scratch. expiry int64[S] is
    that of events kept before, which stays, and NOT_TAKEN for new ones, which stays where no run waits.
    Cost: O(events x steps² + runs x steps).
    """
    at = 0
    for i in range(rows.shape[0]):
        if i == 0 or keys[i] != keys[i - 1]:
            waits[:] = _NEVER
        while at < run_keys.shape[0] and run_keys[at] <= keys[i]:
            if run_keys[at] == keys[i]:
                if run_rows[at] >= rows[i]:
                    break
                _enter(steps, run_states[at], run_expiry[at], waits)
            at += 1
        time = columns[y.COLUMN_TIME, rows[i]]
        taken = _NEVER
        entered[:] = _NEVER
        for s in range(steps.shape[0]):
            if (masks[i] >> steps[s, STEP_BIT]) & 1 == 0:
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
        if expiry[i] == _NEVER:
            expiry[i] = taken
