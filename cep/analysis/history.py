"""A replay, watched → its alerts, and the events that it read as a few columns.

Each piece of a history is decoded once, by the replay. The ids, the times and the requested columns stay here, in the
order of the history: without records that were set aside, and with repeated events once.
Tested by: tests/analysis/test_backtest.py
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from rich.console import Console

from cep.base.limits import DEDUP_MS_DEFAULT, PRODUCE_DEPTH_MAX
from cep.base.schema import Kind, Schema
from cep.columnar.batch import TEXT, WHOLES, EventBatch, arrow_type, joined_orders
from cep.columnar.decode import Decoded
from cep.columnar.digests import CONTENT, KEYS
from cep.columnar.texts import rows_among
from cep.engine.alerts import ALERT_ID_CHARS
from cep.kernels.groups import NEW
from cep.rulebook.deploy import Deployment
from cep.runners.embedded.replay import replay_shown
from cep.runners.output import Replayed
from cep.sources.pieces import Pieces
from cep.step.duplicates import ensure_digests, first_rows
from cep.step.job import Job

# The end of a derived event's id: "~" and the id of its alert (engine/produced.py).
_PRODUCED = r"~[0-9a-f]{32}$"


@dataclass(frozen=True, slots=True)
class Events:
    """The events of a history with some of their columns, all of length N; `order` sorts events of equal `time_ms`."""

    schema: Schema
    event_id: pa.Array
    event_type: NDArray[np.int16]
    time_ms: NDArray[np.int64]
    columns: Mapping[str, pa.Array]
    order: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.time_ms)

    def taken(self, rows: NDArray[np.int64]) -> Decoded:
        """Return the events at these rows."""
        return Decoded(self.event_id, self.event_type, self.time_ms, self.columns, (), self.order).take(rows)

    def batch(self, rows: NDArray[np.int64]) -> EventBatch:
        """Return the events at these rows without columns, for sorting, which reads no keys: ids stand in for them."""
        decoded = self.taken(rows)
        return EventBatch(decoded.event_id, decoded.event_id, decoded.event_type, decoded.time_ms, {}, decoded.order)

    def rows_at(self, event_ids: pa.Array, time_ms: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row of each event by its id and time, -1 if unknown: events of two types may have one id."""
        rows = self.rows_of(event_ids)
        others = np.flatnonzero((rows >= 0) & (self.time_ms[rows] != time_ms)) if len(self) else rows[:0]
        if len(others):
            ids, times = self.event_id.cast(TEXT), pa.array(self.time_ms)
            wanted = event_ids.cast(TEXT).take(pa.array(others)), pa.array(time_ms[others])
            rows[others] = rows_among(_joined(*wanted), _joined(ids, times))
        return rows

    def rows_of(self, event_ids: pa.Array) -> NDArray[np.int64]:
        """Return the first row of each id, -1 if unknown. A produced event has the row of the event that completed
        it."""
        source_ids = event_ids.cast(TEXT)
        if any(event_type.derived for event_type in self.schema.event_types):
            source_ids = pc.replace_substring_regex(source_ids, pattern=_PRODUCED, replacement="")
        return rows_among(source_ids, self.event_id)

    def numbers(self, name: str) -> NDArray[np.float64]:
        """Return a column of numbers in its own unit; NaN for events without a value."""
        type_ = self.schema.columns()[name]
        values = np.asarray(self.columns[name].cast(pa.float64()).fill_null(np.nan), np.float64)
        return values / 10**type_.scale if type_.kind is Kind.DECIMAL else values


@dataclass(frozen=True, slots=True)
class History:
    """The result of a replay of the rules in force, and the events that it read. `produced_matches` make events.
    `repeats` has, by the number of a piece, the rows that the replay left out: repeated events, reused ids, and events
    that are dated ahead of the clock."""

    deployment: Deployment
    replayed: Replayed
    events: Events
    produced_matches: pa.Table | None = None
    repeats: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)

    def unique_pieces(self, pieces_of: Callable[[Schema], Pieces]) -> Callable[[Schema], Pieces]:
        """Return a function that reads the same pieces again, without the repeats."""

        def unique(number: int, decoded: Decoded) -> Decoded:
            repeats = self.repeats.get(number)
            return decoded if repeats is None else decoded.take(np.delete(np.arange(len(decoded)), repeats))

        return lambda schema: pieces_of(schema).changed(unique)

    def bound(self, alerts: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (alert, event row), int64[N] each, for all bound events once; source events stand for derived ones."""
        lists = alerts["events"].combine_chunks()
        alert = np.asarray(pc.list_parent_indices(lists)).astype(np.int64)
        events = pc.list_flatten(lists)
        if self.produced_matches is not None and self.produced_matches.num_rows:
            alert, events = _expand(alert, events, self.produced_matches)
        time_ms = pc.struct_field(events, "event_time").cast(pa.int64())
        rows = self.events.rows_at(pc.struct_field(events, "event_id"), np.asarray(time_ms, np.int64))
        pairs = np.unique(np.stack([alert[rows >= 0], rows[rows >= 0]]), axis=1)
        return pairs[0], pairs[1]


def replay_history(
    deployment: Deployment, pieces_of: Callable[[Schema], Pieces], columns: Sequence[str], cores: int, console: Console
) -> History:
    """Replay the rules over a history, which `pieces_of` reads in numbered pieces, and keep `columns` of its events in
    memory. Events with a repeated id are left out, and events that are dated ahead of the clock; `repeats` has their
    rows by piece. Raises: SourceError."""
    pieces = pieces_of(deployment.schema)
    dedup_ms = DEDUP_MS_DEFAULT if pieces.dedup_ms is None else pieces.dedup_ms
    domains = deployment.key_domains or (tuple(columns[:1]),)  # without rules any key will do: the first column
    job = Job(deployment.schema, domains, dedup_ms=dedup_ms).begin()
    latest_ms = job.latest_ms(int(time.time() * 1_000))
    decoded_pieces: dict[int, Decoded] = {}  # by the number of the piece; `watched_pieces` fills it
    match_tables: list[pa.Table] = []  # the replay appends the matches that make derived events
    watched_pieces = _watch_pieces(job, pieces, tuple(columns), decoded_pieces)
    replayed = replay_shown(job, deployment.rulebook, watched_pieces, cores, console, derived_matches=match_tables)
    numbers = sorted(decoded_pieces)
    decoded = _join_pieces(job, tuple(columns), [decoded_pieces[number] for number in numbers])
    is_new = decoded.time_ms <= latest_ms  # the replay sets later ones aside
    in_time = decoded if is_new.all() else decoded.take(np.flatnonzero(is_new))
    # The verdict on each event: it is new, it is repeated, or its id belongs to another.
    is_new[is_new] = first_rows(job, in_time)[0] == NEW
    # Cut where the next piece begins, so not at the last sum. Without pieces np.split returns one part: not strict.
    by_piece = np.split(is_new, np.cumsum([len(decoded_pieces[number]) for number in numbers])[:-1])
    repeats = {number: np.flatnonzero(~is_new_here) for number, is_new_here in zip(numbers, by_piece, strict=False)}
    unique = decoded if is_new.all() else decoded.take(np.flatnonzero(is_new))
    chosen = {name: unique.columns[name] for name in columns}
    events = Events(job.schema, unique.event_id, unique.event_type, unique.time_ms, chosen, unique.order)
    produced_matches = pa.concat_tables(match_tables).combine_chunks() if match_tables else None
    return History(
        deployment,
        replayed,
        events,
        produced_matches,
        {n: repeated_rows for n, repeated_rows in repeats.items() if len(repeated_rows)},
    )


def _joined(ids: pa.Array, times: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(ids, times.cast(TEXT), pa.scalar("\x1f", TEXT))


def _expand(
    alert_rows: NDArray[np.int64], events: pa.StructArray, matches: pa.Table
) -> tuple[NDArray[np.int64], pa.StructArray]:
    """Replace each event that a rule has produced by the events that its match has bound, until no produced one is
    left. alert_rows[i] is the row of the alert that binds events[i]. Cost: a pass per level."""
    match_ids, bound = matches["alert_id"].combine_chunks().cast(TEXT), matches["events"].combine_chunks()
    for _ in range(PRODUCE_DEPTH_MAX + 1):  # produced events may bind produced events, to this depth
        ids = pc.struct_field(events, "event_id").cast(TEXT)
        is_produced = pc.match_substring_regex(ids, _PRODUCED)  # such an id ends in the id of its match
        id_of_match = pc.if_else(is_produced, pc.utf8_slice_codeunits(ids, -ALERT_ID_CHARS), pa.scalar(None, TEXT))
        match_rows = rows_among(id_of_match, match_ids)
        has_match = match_rows >= 0
        if not has_match.any():
            break
        lists = bound.take(pa.array(match_rows[has_match]))
        counts = np.asarray(pc.list_value_length(lists))
        events = pa.concat_arrays([events.filter(pa.array(~has_match)), pc.list_flatten(lists)])
        alert_rows = np.concatenate([alert_rows[~has_match], np.repeat(alert_rows[has_match], counts)])
    return alert_rows, events


def _watch_pieces(job: Job, pieces: Pieces, columns: tuple[str, ...], decoded_pieces: dict[int, Decoded]) -> Pieces:
    """Wrap pieces so that each adds its decoded events to `decoded_pieces`, with the columns that identify repeats."""

    def watched(number: int, decoded: Decoded) -> Decoded:
        decoded = ensure_digests(job, decoded)
        lean = {name: decoded.columns[name] for name in (*columns, *_digests(job))}
        decoded_pieces[number] = replace(decoded, columns=lean, poison=())
        return decoded

    return pieces.changed(watched)


def _digests(job: Job) -> tuple[str, ...]:
    """Return the columns by which repeated events are known."""
    return (KEYS, CONTENT) if job.dedup_ms else ()


def _join_pieces(job: Job, columns: tuple[str, ...], pieces: Sequence[Decoded]) -> Decoded:
    """Join the decoded events of all pieces, with these columns and the digests (hashes that show which events are
    repeats). Empty arrays of the right types come first, because the history may be empty."""
    types = {name: arrow_type(type_) for name, type_ in job.schema.columns().items()}
    names = (*columns, *_digests(job))
    return Decoded(
        pa.concat_arrays([pa.array([], TEXT), *(part.event_id.cast(TEXT) for part in pieces)]),
        np.concatenate([np.empty(0, np.int16), *(part.event_type for part in pieces)]),
        np.concatenate([np.empty(0, np.int64), *(part.time_ms for part in pieces)]),
        {
            name: pa.concat_arrays([pa.array([], types.get(name, WHOLES)), *(part.columns[name] for part in pieces)])
            for name in names
        },
        (),  # no rejected records
        joined_orders([(part.order, len(part)) for part in pieces]),
    )
