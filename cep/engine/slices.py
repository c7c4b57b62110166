"""Split the events of `advance` if they complete very many matches, to limit memory.

    events ──▶ advance_within ─┬─ few matches ──▶ Advanced
                               └─ too many ─────▶ the first half of the events, then the other half; recursively

Halves are by (key, time, event id): earlier events of a key are matched first. The first half ends with a watermark
that no event of the call is behind. Discarded work costs at most its bound, once for each slice.

Tested by: tests/engine/test_keyed_state.py
"""

from __future__ import annotations

from collections.abc import Iterator

from cep.base.limits import BINDINGS_AT_ONCE_MAX, MATCHES_AT_ONCE_MAX
from cep.columnar.batch import EventBatch
from cep.engine.advance import Advanced, Bounds, advance, advance_within
from cep.engine.keyed_state import KeyedState
from cep.nfa.program import Program


def advance_in_slices(
    program: Program, keyed_state: KeyedState | None, batch: EventBatch, watermark_ms: int, *, is_end: bool = False
) -> Iterator[Advanced]:
    """Yield the results of `advance`, in one part or in several; the last part has the keyed state after all events.

    `is_end`: no event follows the batch, so the last part has no keyed state.
    """
    most = Bounds(MATCHES_AT_ONCE_MAX, BINDINGS_AT_ONCE_MAX)
    waiting = [(batch, watermark_ms, is_end)]
    while waiting:
        events, until_ms, is_last = waiting.pop()
        if len(events) < 2:
            advanced = advance(program, keyed_state, events, until_ms, is_end=is_last)
        else:
            part = advance_within(program, keyed_state, events, until_ms, most, is_end=is_last)
            if not isinstance(part, Advanced):
                half = len(part) // 2
                waiting.append((events.take(part[half:]), until_ms, is_last))
                waiting.append((events.take(part[:half]), min(until_ms, int(events.time_ms.min())), False))
                continue
            advanced = part
        keyed_state = advanced.keyed_state
        yield advanced
