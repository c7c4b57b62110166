"""The embedded replay: a finite history → all its alerts, in this process, on several threads.

    files ─▶ pieces ─▶ decode, route, split by key ─┐ a thread a piece
                                                    ▼
              shares of keys, each in the cache ─▶ advance to the last event ──▶ alerts, sorted
                              ▲                             │
                              └──── what patterns produce ──┘ level by level (rulebook/rulebook.py)

The replay on Spark gives the same alerts, byte for byte. history_end.py decides where a replay ends, or it ends at a
cut, from which a live job continues (warm_start.py). The events stay in memory, with the columns that rules read.
Tested by: tests/runners/test_replay.py, tests/runners/handover/test_handover.py.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
from rich.console import Console

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.base.terminal import shown_progress
from cep.columnar.batch import EventBatch, concat_batches
from cep.columnar.decode import Decoded, KeyDomain, concat_decoded, key_groups, route, slice_batch
from cep.columnar.digests import CONTENT, KEYS
from cep.engine.alerts import sorted_together
from cep.engine.keyed_state import KeyedState, concat_states
from cep.nfa.program import Program
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.suppression import Policies
from cep.runners.ahead import carriers, compiled_ahead
from cep.runners.handover.warm_start import Ending, by_group, cut_ms, job_until, put_state
from cep.runners.output import Replayed, replay_to_the_end
from cep.sources.inputs import Records
from cep.sources.pieces import Piece, Pieces, read_pieces
from cep.state.manifest import StoredFile
from cep.step.dead_letters import COUNTED, bounded_equals, event_dead_letters, evicted_dead_letters, is_counted
from cep.step.duplicates import first_ones
from cep.step.history_end import watermark_at_end, within_history
from cep.step.job import Job
from cep.step.marks import Marks, joined_marks, with_marks
from cep.step.match import MatchOutput, match_events
from cep.step.rules import programs_by_level
from cep.step.validate import ValidEvents, validate_events

# Events that are matched together: enough for the fixed costs, few enough for the cache.
_EVENTS_AT_ONCE = 65_536
_SHARES_MAX = 256
_AHEAD = 3  # pieces that wait for a thread
T = TypeVar("T")
R = TypeVar("R")
# Events by (number of the key domain, share of keys).
Shares = dict[tuple[int, int], list[EventBatch]]


@dataclass(frozen=True, slots=True)
class _Span:
    """The time of the first event, and the watermark at the end. `is_end`: no job goes on from there."""

    first_ms: int
    watermark_ms: int
    is_end: bool


def read_and_replay(
    job: Job, rulebook: Rulebook, events: Records | Path, workers: int, console: Console, ending: Ending | None = None
) -> Replayed:
    """Match the events of files on `workers` threads, and show the progress on `console`.

    With an `ending`, from which a live job continues, the keyed state is saved and windows stay open. If the job
    has `to_the_end`, all windows close: a second pass finds the alerts that need this. Raises: UsageError, SourceError.
    """
    job = job_until(job, ending)  # skips later events
    records = Records.of(events)

    def replay_once(job_of_pass: Job) -> Replayed:
        pieces = read_pieces(records.paths, job_of_pass.schema, records.mapping)
        return replay_shown(job_of_pass, rulebook, pieces, workers, console, ending)

    return replay_to_the_end(job, replay_once)


def replay_shown(
    job: Job, rulebook: Rulebook, history: Pieces, workers: int, console: Console, ending: Ending | None = None,
    derived_matches: list[pa.Table] | None = None,
) -> Replayed:  # fmt: skip
    """Match all events, and show the progress on `console`. `derived_matches` gets the matches of derived events."""
    with shown_progress(console, "reading", history.size) as show:
        return replay(job, rulebook, history, workers, show, ending, derived_matches)


def replay(
    job: Job, rulebook: Rulebook, history: Pieces, workers: int,
    show: Callable[[str, int, int | None], None] = lambda *_: None, ending: Ending | None = None,
    derived_matches: list[pa.Table] | None = None,
) -> Replayed:  # fmt: skip
    """Match all events. `show(what, done, total)` gets the progress, `derived_matches` matches of derived events."""
    started = time.monotonic()
    to_the_end = job.to_the_end or history.to_the_end
    dedup_ms = job.dedup_ms if history.dedup_ms is None else history.dedup_ms
    job = replace(job, ends_ms=min(job.ends_ms, history.until_ms), to_the_end=to_the_end, dedup_ms=dedup_ms)
    pa.set_cpu_count(workers)
    now_ms = int(time.time() * 1_000)  # one clock for the whole history
    levels = programs_by_level(rulebook, job.schema, job.levels_count)
    columns_read = _columns_read(levels)
    shares_count = max(1, min(_SHARES_MAX, history.rows // _EVENTS_AT_ONCE))
    shares: Shares = {}
    ahead = compiled_ahead(carriers(program for programs in levels for program in programs.values()))
    with ahead, ThreadPoolExecutor(workers) as pool:
        read_size, first_ms, last_ms = 0, TIME_MS_MAX, TIME_MS_MIN
        dead_letters: list[bytes] = []
        counters: Counter[str] = Counter()
        parts_of_marks: list[Marks] = []

        divide = partial(_divide_piece, job, columns_read, shares_count=shares_count, now_ms=now_ms)
        works = ((piece.size, partial(divide, piece)) for piece in history.pieces)
        for size, (of_piece, valid) in _in_order(pool, works, _AHEAD * workers):
            for share_key, batch in of_piece.items():
                shares.setdefault(share_key, []).append(batch)
            dead_letters += valid.dead_letters
            counters.update(valid.counters)
            parts_of_marks.append(valid.marks)
            first_ms, last_ms = min(first_ms, valid.first_ms), max(last_ms, valid.last_ms)
            read_size += size
            show("reading", read_size, history.size)
        if job.dedup_ms > 0:
            dead_letters += _remove_repeats(job, pool, shares, counters)
        dead_letters = list(bounded_equals(dead_letters, counters))
        until_ms = None if ending is None else cut_ms(ending, last_ms)
        watermark_ms = watermark_at_end(job, last_ms, now_ms, until_ms)
        tables: list[pa.Table] = []
        files: list[StoredFile] = []
        for number, programs in enumerate(levels):
            is_last = number + 1 == len(levels)
            produced: list[Decoded] = []
            ended: dict[int, list[KeyedState]] = {}
            span, with_derived = _Span(first_ms, watermark_ms, is_end=ending is None), derived_matches is not None
            matched = _match_level(pool, job, programs, shares, show, span, is_last=is_last, with_derived=with_derived)
            for domain, output, keyed_state in matched:
                tables += output.alerts
                counters.update(output.counters)
                dead_letters += evicted_dead_letters(output.evicted)
                produced += output.produced
                if derived_matches is not None:
                    derived_matches += [table.select(["alert_id", "events"]) for table in output.produced_matches or ()]
                if keyed_state and ending is not None:
                    ended.setdefault(domain, []).append(keyed_state)
            if ending is not None:
                files += _put_states(ending, job, programs, number, ended)
            if produced and not is_last:
                in_time = within_history(job, concat_decoded(job.schema, produced))
                _add_produced(job, columns_read, in_time, shares_count, shares)
    marks = joined_marks(parts_of_marks)
    alerts = with_marks(sorted_together(tables), Policies.of(rulebook).keys, marks)
    seconds = time.monotonic() - started
    return Replayed(
        alerts, tuple(dead_letters), counters, seconds, first_ms, until_ms, tuple(files), watermark_ms, marks
    )  # fmt: skip


def _put_states(
    ending: Ending, job: Job, programs: Mapping[KeyDomain, Program], level: int, ended: Mapping[int, list[KeyedState]]
) -> Iterator[StoredFile]:
    for domain_number, states in sorted(ended.items()):
        program = programs[job.domains[domain_number]]
        whole = concat_states(states, program.row_registers)
        for group, share in by_group(whole, program, job.groups_count):
            yield put_state(ending.folder, level, domain_number, group, share)


def _in_order(
    pool: ThreadPoolExecutor, works: Iterator[tuple[T, Callable[[], R]]], ahead: int
) -> Iterator[tuple[T, R]]:
    """Run jobs in the pool, at most `ahead` of them at a time. Yield the results in the order of the jobs."""
    running: deque[tuple[T, Future[R]]] = deque()
    try:
        for tag, work in works:
            running.append((tag, pool.submit(work)))
            while len(running) > ahead or (running and running[0][1].done()):
                item, first = running.popleft()
                yield item, first.result()
        while running:
            item, first = running.popleft()
            yield item, first.result()
    finally:
        for _, future in running:
            future.cancel()


def _match_level(
    pool: ThreadPoolExecutor, job: Job, programs: Mapping[KeyDomain, Program], shares: Shares,
    show: Callable[[str, int, int | None], None], span: _Span, *, is_last: bool, with_derived: bool,
) -> Iterator[tuple[int, MatchOutput, KeyedState]]:  # fmt: skip
    """Match every share (the events of some keys) with the rules of one level (order in which rules run).

    The next level reads their alerts. Yields: the number of a share's key domain, its matches, and the keyed state at
    the end. `with_derived`: keep also the matches that gave derived events, which have no alert.
    """
    share_keys = [share_key for share_key in sorted(shares) if job.domains[share_key[0]] in programs]  # (domain, share)

    def match(share_key: tuple[int, int]) -> tuple[MatchOutput, KeyedState]:
        output = MatchOutput(since_ms=span.first_ms, produced_matches=[] if with_derived else None)
        program = programs[job.domains[share_key[0]]]
        events = concat_batches(shares.pop(share_key) if is_last else shares[share_key])  # the last level frees memory
        return output, match_events(program, None, events, span.watermark_ms, output, is_end=span.is_end)

    works = ((share_key, partial(match, share_key)) for share_key in share_keys)
    matched = _in_order(pool, works, len(share_keys))  # all at once; results in this order
    for number, (share_key, (output, keyed_state)) in enumerate(matched):
        show("matching", number + 1, len(share_keys))
        yield share_key[0], output, keyed_state


def _columns_read(levels: list[dict[KeyDomain, Program]]) -> dict[KeyDomain, tuple[str, ...]]:
    columns: dict[KeyDomain, dict[str, None]] = {}
    for programs in levels:
        for domain, program in programs.items():
            columns.setdefault(domain, {}).update(dict.fromkeys(program.columns_read))
    return {domain: tuple(names) for domain, names in columns.items()}


def _divide_piece(
    job: Job, columns_read: Mapping[KeyDomain, tuple[str, ...]], piece: Piece, shares_count: int, now_ms: int
) -> tuple[dict[tuple[int, int], EventBatch], ValidEvents]:
    """Divide the events of a piece of a file by (key domain, share of keys), with the columns that the rules read.

    Returns: the events of each share (some keys, matched together); dead letters, counters, times and marks.
    """
    validated = validate_events(job, piece.decode(), now_ms)
    shares: dict[tuple[int, int], EventBatch] = {}
    for domain_number, (domain, batch) in enumerate(zip(job.domains, validated.batches, strict=True)):
        if domain not in columns_read:
            validated.counters["events_without_rule"] += len(batch)
        elif job.dedup_ms > 0:
            # KEYS and CONTENT are digests, to find repeated events. COUNTED: True in the first key domain of an event.
            names, columns = (*columns_read[domain], KEYS, CONTENT), batch.columns
            if domain_number:  # an event that an earlier domain has must not count again
                names = (*names, COUNTED)
                columns = {**columns, COUNTED: pa.array(is_counted(job, domain_number, batch))}
            shares.update(_divide_keys(domain_number, names, replace(batch, columns=columns), shares_count))
        else:
            shares.update(_divide_keys(domain_number, columns_read[domain], batch, shares_count))
    return shares, replace(validated, batches=())  # without the events


def _divide_keys(
    domain_number: int, names: tuple[str, ...], batch: EventBatch, shares_count: int
) -> Iterator[tuple[tuple[int, int], EventBatch]]:
    """Divide the events of a key domain, with the columns `names` only, by (domain, share of keys)."""
    if not len(batch):
        return
    lean = replace(batch, columns={name: batch.columns[name] for name in names})
    if shares_count == 1:
        yield (domain_number, 0), lean
        return
    share = key_groups(lean.key, shares_count).astype(np.uint16)  # numpy sorts numbers of 16 bits fast
    ordered = lean.take(np.argsort(share, kind="stable"))
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(share, minlength=shares_count))]).tolist()
    for index in range(shares_count):
        if bounds[index] < bounds[index + 1]:
            yield (domain_number, index), slice_batch(ordered, bounds[index], bounds[index + 1])


def _remove_repeats(job: Job, pool: ThreadPoolExecutor, shares: Shares, counters: Counter[str]) -> list[bytes]:
    """Remove repeated events from `shares`, in place. Return dead letters of reused ids (same id, other content)."""

    def remove(share_key: tuple[int, int]) -> tuple[Counter[str], list[bytes]]:
        output = MatchOutput()
        first, reused = first_ones(job, share_key[0], shares[share_key], output)  # [0]: the key domain
        shares[share_key] = [first]
        return output.counters, event_dead_letters(reused)

    letters: list[bytes] = []
    for counts, reused in pool.map(remove, list(shares)):
        counters.update(counts)
        letters += reused
    return letters


def _add_produced(
    job: Job, columns_read: Mapping[KeyDomain, tuple[str, ...]], events: Decoded, shares_count: int, shares: Shares
) -> None:
    """Add the events that patterns have produced to the events of the source, by the keys of the job."""
    types = job.schema.columns()
    for domain_number, domain in enumerate(job.domains):
        if domain in columns_read:
            batch, _ = route(events, domain, types)
            for share_key, part in _divide_keys(domain_number, columns_read[domain], batch, shares_count):
                shares.setdefault(share_key, []).append(part)
