"""A plain reference for the life of a rule, and an engine run in micro-batches to compare with it.

The reference knows records, events and times; it works without a rulebook. It walks the events in order, looks up the
version of each event by its event time, and keeps a list of waiting matches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.base.schema import Schema
from cep.columnar.batch import TEXT, EventBatch
from cep.engine.alerts import sort_alerts
from cep.engine.keyed_state import KeyedState
from cep.engine.migrate import migrate_state
from cep.lists.store import ListStore
from cep.model.rule import ControlRecord, PauseRecord, ResumeRecord, RetireRecord, RollbackRecord, UpsertRecord
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.step.match import MatchOutput, match_events
from cep.step.rules import Programs
from tests.rulebook.records import SCHEMA

DOMAIN = ("card_id",)
WITHIN_MS = 20
# One small payment, then one that is large enough, within 20 ms; every small one waits for itself. The second pattern
# has a middling payment between them, so that the rules have a prefix of two conditions in common.
SOURCE = """
event payment { tx_id id  event_time time  card_id string  amount decimal(2) }
pattern pair(large: decimal = 5.00) by card_id {
  seq    small -> large_one  within 20 ms
  where  small:     payment  amount < 1.00
         large_one: payment  amount > large
  skip   none
  emit   amount = large_one.amount
}
pattern triple(large: decimal = 5.00) by card_id {
  seq    small -> middle -> large_one  within 20 ms
  where  small:     payment  amount < 1.00
         middle:    payment  amount == 2.00
         large_one: payment  amount > large
  skip   none
  emit   amount = large_one.amount
}
"""


@dataclass(frozen=True)
class Payment:
    """One event; `minor` is the amount in cents."""

    time_ms: int
    minor: int
    card: str = "c"


@dataclass(frozen=True)
class Arrival:
    """A control record, and the number of events before it."""

    record: ControlRecord
    after: int


Found = set[tuple[str, int, int, int]]  # rule, version, times of the first and the last event


def upsert(rule_id: str, version: int, effective: str | None, large: int, **changes: object) -> UpsertRecord:
    fields = {
        "id": rule_id, "version": version, "pattern": "pair", "status": "live", "severity": "low", "owner": "o",
        "message": "m", "source": SOURCE, "effective_at": effective, "params": {"large": large}, **changes,
    }  # fmt: skip
    return UpsertRecord.model_validate(fields)


# -------------------------------------------------------------------------------------------------- the reference


@dataclass(frozen=True)
class _Change:
    start_ms: int
    version: int
    status: str
    large: int
    on_update: str
    is_triple: bool = False


def reference(events: Sequence[Payment], arrivals: Sequence[Arrival]) -> Found:
    """Return the expected matches: each rule by itself, its live and shadow versions independently."""
    matches: Found = set()
    for rule_id in sorted({a.record.id for a in arrivals if hasattr(a.record, "id")}):
        own_arrivals = [a for a in arrivals if getattr(a.record, "id", None) == rule_id]
        pauses = _pauses(events, own_arrivals)
        for is_shadow in (False, True):
            matches |= _walk(rule_id, events, _changes(events, own_arrivals, is_shadow), pauses)
    return matches


def _start_ms(events: Sequence[Payment], arrival: Arrival) -> int:
    """Return the start of a change; a record that comes too late for some events starts right after them."""
    effective_ms = arrival.record.effective_ms  # type: ignore[union-attr]
    if arrival.after == 0:
        return TIME_MS_MIN if effective_ms is None else effective_ms
    first_ms = events[arrival.after - 1].time_ms + 1
    return first_ms if effective_ms is None else max(effective_ms, first_ms)


def _changes(events: Sequence[Payment], arrivals: Sequence[Arrival], is_shadow: bool) -> list[_Change]:
    """Return the changes of one track in the order of versions, without ignored ones (older or repeated).

    A version has one meaning: if two records of it differ, the first counts, even if one is a shadow.
    """
    live = shadow = 0
    meanings: dict[int, tuple[str, int, bool]] = {}
    changes: list[_Change] = []
    for arrival in arrivals:
        record = arrival.record
        if isinstance(record, RollbackRecord):
            record = record.as_upsert()
        start_ms = _start_ms(events, arrival)
        if isinstance(record, RetireRecord):
            change = _Change(start_ms, record.version, "retired", 0, "restart")
        elif isinstance(record, UpsertRecord):
            large = record.params["large"]
            assert isinstance(large, int)
            is_triple = record.pattern == "triple"
            change = _Change(start_ms, record.version, record.status, large * 100, record.on_update, is_triple)
        else:
            continue
        of_shadow = change.status == "shadow"
        if change.version <= (max(live, shadow) if of_shadow else live):
            continue
        meaning = (change.status, change.large, change.is_triple)
        if meanings.setdefault(change.version, meaning) != meaning:
            continue
        live, shadow = (live, change.version) if of_shadow else (change.version, shadow)
        if of_shadow == is_shadow:
            changes.append(change)
        elif is_shadow:  # a live version, or a retirement, ends the shadows before it
            changes.append(replace(change, status="retired"))
    return sorted(changes, key=lambda c: c.version)


def _pauses(events: Sequence[Payment], arrivals: Sequence[Arrival]) -> list[tuple[int, int, bool]]:
    """Return (start, version, paused) in the order of versions."""
    last = 0
    turns: list[tuple[int, int, bool]] = []
    for arrival in arrivals:
        record = arrival.record
        if isinstance(record, PauseRecord | ResumeRecord) and record.version > last:
            last = record.version
            turns.append((_start_ms(events, arrival), last, isinstance(record, PauseRecord)))
    return turns


def _in_force(changes: Sequence[_Change], time_ms: int) -> _Change | None:
    """Return the version for an event of this time: the highest that has started."""
    return max((c for c in changes if c.start_ms <= time_ms), key=lambda c: c.version, default=None)


def _is_paused(turns: Sequence[tuple[int, int, bool]], time_ms: int) -> bool:
    last = max((t for t in turns if t[0] <= time_ms), key=lambda t: t[1], default=None)
    return last is not None and last[2]


@dataclass(frozen=True)
class _Waiting:
    """The start of a match, the version that judges it, and whether only a large payment is missing."""

    start_ms: int
    by: _Change
    is_ready: bool


def _walk(
    rule_id: str, events: Sequence[Payment], changes: Sequence[_Change], turns: Sequence[tuple[int, int, bool]]
) -> Found:
    matches: Found = set()
    waiting: list[_Waiting] = []
    now_ms = TIME_MS_MIN
    bounds = sorted({c.start_ms for c in changes} | {t[0] for t in turns})
    for event in events:
        for bound in bounds:  # the changes between two events
            if now_ms < bound <= event.time_ms:
                waiting = _turned(waiting, changes, turns, bound)
        now_ms = event.time_ms
        if _is_paused(turns, now_ms):
            continue
        waiting = [one for one in waiting if now_ms - one.start_ms < WITHIN_MS]
        for one in [one for one in waiting if one.is_ready and event.minor > one.by.large]:
            matches.add((rule_id, one.by.version, one.start_ms, now_ms))
            waiting.remove(one)
        if event.minor == 200:
            waiting = [replace(one, is_ready=True) for one in waiting]
        current = _in_force(changes, now_ms)
        if event.minor < 100 and current is not None and current.status in ("live", "shadow"):
            waiting.append(_Waiting(now_ms, current, not current.is_triple))
    return matches


def _turned(
    waiting: list[_Waiting], changes: Sequence[_Change], turns: Sequence[tuple[int, int, bool]], at_ms: int
) -> list[_Waiting]:
    """Apply a change that starts now to the waiting matches."""
    if _is_paused(turns, at_ms):
        return []
    now, before = _in_force(changes, at_ms), _in_force(changes, at_ms - 1)
    if now is None or now == before:
        return waiting
    if now.status in ("retired", "draft") or now.on_update == "restart":
        return []
    if now.on_update == "carry":
        return [replace(one, by=now) if one.by == before else one for one in waiting]
    return waiting


# ---------------------------------------------------------------------------------------------------- the engine


def played(
    schema: Schema, events: Sequence[Payment], arrivals: Sequence[Arrival], cuts: Sequence[int],
    restarts: Sequence[int],
) -> tuple[pa.Table, Rulebook]:  # fmt: skip
    """Run the rulebook and the matcher on micro-batches; return the alerts, and the rulebook at the end.

    `cuts` are the ends of micro-batches; after each of `restarts` the rulebook comes back from its bytes and forgets
    expired versions.
    """
    store = ListStore()
    book, programs, output = Rulebook(schema, (DOMAIN,), store), Programs(), MatchOutput()
    keyed_state: KeyedState | None = None
    bounds = sorted({0, len(events), *cuts, *(a.after for a in arrivals)})
    for first, end in zip([0, *bounds], bounds, strict=False):
        watermark_ms = events[end - 1].time_ms if end else TIME_MS_MIN
        keyed_state = step(programs, book, keyed_state, as_batch(events[first:end]), watermark_ms, output)
        if end in restarts:
            book = rulebook_from_bytes(rulebook_bytes(book), schema, (DOMAIN,), store)
            book.forget(watermark_ms)
            store.keep_only(book.lists.names())
        for arrival in arrivals:
            if arrival.after == end:
                book.apply(arrival.record, watermark_ms if end else None)
    step(programs, book, keyed_state, as_batch([]), TIME_MS_MAX, output)
    return output.alert_table(), book


def engine(
    events: Sequence[Payment], arrivals: Sequence[Arrival], cuts: Sequence[int], restarts: Sequence[int]
) -> Found:
    """Return the matches of `played`."""
    table, _ = played(SCHEMA, events, arrivals, cuts, restarts)
    starts, ends = (table[name].cast(pa.int64()).to_pylist() for name in ("match_start", "match_end"))
    rules = zip(table["rule_id"].to_pylist(), table["version"].to_pylist(), strict=True)
    alerts = [(*rule, start, end) for rule, start, end in zip(rules, starts, ends, strict=True)]
    assert len(alerts) == len(set(alerts)), "an alert came twice"
    return set(alerts)


def alerts_of(book: Rulebook, events: Sequence[Payment]) -> pa.Table:
    """Return all columns of the alerts of a rulebook, from events alone."""
    output = MatchOutput()
    step(Programs(), book, None, as_batch(events), TIME_MS_MAX, output)
    return sort_alerts(output.alert_table())


def step(
    programs: Programs, book: Rulebook, keyed_state: KeyedState | None, batch: EventBatch, watermark_ms: int,
    output: MatchOutput,
) -> KeyedState | None:  # fmt: skip
    """Run one micro-batch of a job; return its keyed state."""
    program = programs.of(book, book.schema).get(DOMAIN)
    if program is None:
        return None
    fitted = None if keyed_state is None else migrate_state(keyed_state, program)[0]
    return match_events(program, fitted, batch, watermark_ms, output)


def as_batch(events: Sequence[Payment]) -> EventBatch:
    """Return a batch of events; the id of an event is its time."""
    cards = pa.array([e.card for e in events], TEXT)
    return EventBatch(
        key=cards,
        event_id=pa.array([f"{e.time_ms:09}" for e in events], TEXT),
        event_type=np.zeros(len(events), np.int16),
        time_ms=np.array([e.time_ms for e in events], np.int64),
        columns={"card_id": cards, "amount": pa.array([e.minor for e in events], pa.int64())},
    )
