"""Events of keys in order → chains of earlier events, and the quality of a sequence with these chains.

    chains   int64[S, C]   the rows that each of C chains binds, by step: the first step first, the last step last

A search for sequences calls these kernels half a million times, each time for a few hundred chains. So they create no
intermediate arrays. No job needs these kernels: `runners/warm.py` leaves them out.
Tested by: tests/kernels/test_chains.py, tests/analysis/test_suggest.py
"""

import numpy as np

from cep.kernels.jit import bare, kernel
from cep.kernels.layout import Bool, Int32, Int64
from cep.kernels.records import MinedEvents


@bare
def latest_before(holds: Bool, order: Int64, begin: Int64, out: Int32) -> None:
    """Fill out int32[N] with the row of the latest event that holds before each event, −1 if there is none.

    Shapes: order int64[N] are the rows in event order; begin int64[N] is the first usable position. Cost: O(N).
    """
    latest = -1
    for place in range(order.shape[0]):
        row = order[place]
        out[row] = order[latest] if latest >= max(begin[place], 0) else -1
        if holds[row]:
            latest = place


@bare
def count_distinct(codes: Int64, begin: Int64, seen: Int64, out: Int64) -> None:
    """Fill out int64[N] with the number of different codes in the rows from begin[i] to each row i, both included.

    Shapes: codes int64[N], −1 for a row without a code; begin int64[N], which never falls from row to row; seen
    int64[greatest code + 1] is scratch, zeros before the call. Cost: O(N).
    """
    first, count = 0, 0
    for row in range(codes.shape[0]):
        while first < begin[row]:
            code = codes[first]
            if code >= 0:
                seen[code] -= 1
                count -= seen[code] == 0
            first += 1
        code = codes[row]
        if code >= 0:
            count += seen[code] == 0
            seen[code] += 1
        out[row] = count


@kernel
def prepended_rows(chains: Int64, earlier: Int32, absent: Int32, time_ms: Int64, window_ms: int) -> Int64:
    """Put one more event before each chain: return the longer chains int64[S + 1, C' ≤ C], in the same order.

    A chain, chains[:, chain], has the row of one event for each of S steps. earlier int32[N] is the row to put before
    each event, −1 for none. A chain is left out if it has no such row, if it would last `window_ms` or more, or if a
    forbidden event lies between the first two events. absent int32[N] is the latest forbidden row before each event; it
    is empty if no event is forbidden. Cost: O(S · C).
    """
    steps, count = chains.shape
    fits = np.empty(count, np.bool_)
    longer_count = 0
    for chain in range(count):
        start, end = chains[0, chain], chains[steps - 1, chain]
        first = earlier[start]
        fits[chain] = first >= 0 and time_ms[end] - time_ms[first] < window_ms
        if fits[chain] and absent.shape[0] > 0:
            fits[chain] = absent[start] <= first  # the latest forbidden event is not after the new first one
        longer_count += fits[chain]
    longer = np.empty((steps + 1, longer_count), np.int64)
    index = 0
    for chain in range(count):
        if fits[chain]:
            longer[0, index] = earlier[chains[0, chain]]
            for step in range(steps):
                longer[step + 1, index] = chains[step, chain]
            index += 1
    return longer


@bare
def _fraud_at(chains: Int64, step: int, chain: int, events: MinedEvents, late_ms: int) -> int:
    """Return the number of the fraud that a chain finds by the event of one step, −1 for none.

    A chain, chains[:, chain], has an event row for each step of a mined sequence. Its last event raises the alert. If
    the fraud is of an earlier event, the alert must come less than `late_ms` after it, at an event whose type occurs in
    frauds. A customer's report of a fraud has another type: it follows each fraud, but an alert then is too late.
    """
    last = chains.shape[0] - 1
    row, end = chains[step, chain], chains[last, chain]
    fraud = events.fraud[row]
    if fraud >= 0 and step < last:
        if events.time_ms[end] - events.time_ms[row] >= late_ms or not events.has_fraud_type[end]:
            return -1
    return fraud


@bare
def fill_frauds(chains: Int64, events: MinedEvents, by_any: bool, late_ms: int, out: Int64) -> None:
    """Fill out int64[S, C] with the fraud that each row of a chain finds (its last if not `by_any`). Cost: O(S · C)."""
    for step in range(chains.shape[0]):
        for chain in range(chains.shape[1]):
            counts = by_any or step == chains.shape[0] - 1
            out[step, chain] = _fraud_at(chains, step, chain, events, late_ms) if counts else -1


@kernel
def count_chains(
    chains: Int64, events: MinedEvents, by_any: bool, late_ms: int, open_frauds: Bool
) -> tuple[int, int, float]:
    """Count the open frauds (still to be found) that chains find. open_frauds bool[F] marks them by number.

    A chain, chains[:, chain], has an event row for each step of a mined sequence. It finds the frauds of all its rows
    (`by_any`) or of its last one, but an earlier row must be less than `late_ms` older than the last.
    Returns: how many open frauds the chains find, how many chains find one, and the weight (number of represented
    events) of the chains that find no fraud at all, open or not. Cost: O(S · C + F) for S steps, C chains and F frauds.
    """
    last = chains.shape[0] - 1
    is_found = np.zeros(open_frauds.shape[0], np.bool_)
    frauds_count, right_chains, wrong_events = 0, 0, 0.0
    for chain in range(chains.shape[1]):
        is_wrong, is_right = True, False
        for step in range(0 if by_any else last, last + 1):
            fraud = _fraud_at(chains, step, chain, events, late_ms)
            if fraud < 0:
                continue
            is_wrong = False
            if open_frauds[fraud]:
                is_right = True
                if not is_found[fraud]:
                    is_found[fraud] = True
                    frauds_count += 1
        right_chains += is_right
        if is_wrong:
            wrong_events += events.weight[chains[last, chain]]
    return frauds_count, right_chains, wrong_events
