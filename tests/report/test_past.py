"""Stored histories, counted and in words."""

from __future__ import annotations

from cep.engine.advance import advance
from cep.engine.keyed_state import KeyedState
from cep.histories.rows import Block
from cep.histories.store import StoredSegment
from cep.histories.values import compact_page
from cep.report.past import past_of_key, past_shares
from cep.state.past import SegmentCache, StoredPast, decode_segment, encode_head, store_segments
from tests.engine.bridge import batch_of
from tests.histories.test_reach import payment, program_over

DOMAIN = ("key",)
TIME_MS = 1_700_000_000_000


def test_the_past_of_a_key_in_words() -> None:
    program = program_over(
        "count(pay over 3 s) > 1", "sum(pay.amount over previous 3 s) > 1.00", "last(pay).size > 1",
        "stddev(pay.amount over 3 s) > 1", "count(pay over 3 s by way) > 1",
        "approx_percentile(pay.size over 6400 s, 50) > 1.0",
    )  # fmt: skip
    plan = program.histories
    assert plan is not None
    written: dict[int, bytes] = {}

    def load(stored: StoredSegment) -> Block:
        return decode_segment(written[stored.number])

    keyed_state: KeyedState | None = None
    for number in range(12):
        key, time_ms = "xy"[number % 3 == 2], TIME_MS + number * 1_000
        batch = batch_of(program.schema, {key: [payment(number, time_ms, key)]})
        keyed_state = advance(program, keyed_state, batch, time_ms).keyed_state
    assert keyed_state is not None
    histories = store_segments(
        compact_page(plan, keyed_state.histories, time_ms), written.__setitem__, load, SegmentCache(None)
    )
    page = StoredPast(0, DOMAIN, encode_head(histories), written)
    head = encode_head(histories)
    (share,) = past_shares([StoredPast(0, DOMAIN, head), StoredPast(1, DOMAIN, head)], [{DOMAIN: program}])
    parts = {(part.kind, part.of): (part.rows, part.size, part.rules) for part in share.parts}
    windowed, single = ("beside_1 v1", "beside_3 v1", "beside_4 v1", "subject v1"), ("beside_2 v1",)
    events, panes = ([s for s in histories.segments if bool(s.panes) == has_panes] for has_panes in (False, True))
    size = 2 * sum(s.stored.size for s in events if s.stored)
    assert parts["kept events", "pay for 3 s"] == (2 * sum(map(len, events)), size, windowed)
    (of_panes,) = (part_name for kind, part_name in parts if kind == "panes")
    assert parts["panes", of_panes][::2] == (2 * sum(map(len, panes)), ("beside_5 v1",))
    assert parts["pinned events", "pay"] == (2 * 2, 2 * histories.pinned.nbytes, single)
    assert parts["carried", "count(pay over 3 s)"] == (2 * 2, 2 * 2 * 24, ("subject v1",))
    assert parts["carried", "count(pay over 3 s by way)"][::2] == (2 * 2, ("beside_4 v1",))
    assert sum(part.size for part in share.parts if part.kind in ("kept events", "panes")) == share.size
    assert len(parts) == 3 + 4
    (share,) = past_shares([StoredPast(0, DOMAIN, head)], [])
    assert {part.rules for part in share.parts} == {()}, "nobody asks for it any more"
    assert (share.domain, share.pages, share.keys, share.events) == (DOMAIN, 1, 2, len(histories))
    assert share.panes == 2, "one size in one pane of each key"
    assert (share.segments, share.size) == (len(written), sum(map(len, written.values())))
    (past,) = past_of_key([page], "x", [{DOMAIN: program}])
    # At 11 s the window of 3 s has the events of 9, 10 and 11 s, of which the last one is of y.
    assert past.clock == "2023-11-14T22:13:31.000Z"
    assert dict(past.tallies) == {
        "count(pay over 3 s)": 2,
        "sum(pay.amount over previous 3 s)": 0.09 + 0.10,
        "stddev(pay.amount over 3 s)": 0.005,
        "count(pay over 3 s by way) [card]": 2,
    }
    assert past.events[-1]["event_time"] == "2023-11-14T22:13:30.000Z"
    assert (past.events[-1]["event_type"], past.events[-1]["amount"]) == ("pay", 0.10)
    assert past.panes_count == 1
    assert past.events_count == len({event["event_time"] for event in past.events}), "each event once"
    assert list(past_of_key([page], "nobody", [{DOMAIN: program}])) == []
