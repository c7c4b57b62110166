"""The embedded replay: a finite history → all its alerts, in this process, on several threads.

    files ─▶ pieces ─▶ decode, route, split by key ─┐ a thread a piece
                                                    ▼
              shares of keys, each in the cache ─▶ advance to the end of time ─▶ alerts, sorted

The same events, keys and rules give the alerts of the replay on Spark, byte for byte. The events are held in memory,
with the columns that rules read. Kernels and Arrow let go of the interpreter's lock, so threads use all cores.
Tested by: tests/runners/embedded/test_replay.py
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from cep.base.limits import TIME_MS_MAX
from cep.columnar.batch import EventBatch, concat_batches
from cep.columnar.decode import Decoded
from cep.columnar.route import KeyDomain, key_groups, slice_batch
from cep.engine.alerts import ALERT_SCHEMA, sort_alerts
from cep.nfa.program import Program
from cep.rulebook.deploy import Deployment
from cep.rulebook.rulebook import Rulebook
from cep.runners.intake import take_in
from cep.runners.job import Job, Programs, StepOutput, match_step
from cep.runners.output import Replayed
from cep.sources.pieces import Piece, Pieces, read_pieces

# Events that are matched together: enough for the fixed costs, few enough for the cache.
_EVENTS_AT_ONCE = 65_536
_SHARES_MAX = 256
_AHEAD = 3  # pieces that a thread may be behind the reader
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class _Split:
    """What a piece gave: its events by (key domain, share of keys), dead letters, counters."""

    shares: dict[tuple[int, int], EventBatch]
    dead_letters: tuple[bytes, ...]
    counters: Counter[str]


def read_and_replay(deployment: Deployment, path: Path, workers: int, groups_count: int, console: Console) -> Replayed:
    """Match the events at `path` on `workers` threads, and show how far it is on `console`.

    Raises: UsageError for numbers that make no sense, SourceError for a path without events.
    """
    job = Job(deployment.schema, deployment.key_domains, groups_count)
    history = read_pieces(path, job.schema)
    if not console.is_terminal:
        return replay(job, deployment.rulebook, history, workers)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("reading", total=history.size)

        def show(what: str, done: int, total: int | None) -> None:
            bar.update(task, description=what, completed=done, total=total)

        return replay(job, deployment.rulebook, history, workers, show)


def replay(
    job: Job, rulebook: Rulebook, history: Pieces, workers: int,
    show: Callable[[str, int, int | None], None] = lambda *_: None,
) -> Replayed:  # fmt: skip
    """Match all events. `show(what, done, total)` is told how far it is."""
    started = time.monotonic()
    pa.set_cpu_count(workers)
    programs = Programs().of(rulebook, job.schema)
    shares_count = max(1, min(_SHARES_MAX, history.rows // _EVENTS_AT_ONCE))
    with ThreadPoolExecutor(workers) as pool:
        done = 0
        shares: dict[tuple[int, int], list[EventBatch]] = {}
        letters: list[bytes] = []
        counters: Counter[str] = Counter()

        def split_work(piece: Piece) -> Callable[[], _Split]:
            return lambda: _split(job, programs, piece.decode(), shares_count)

        works = ((piece.size, split_work(piece)) for piece in history.pieces)
        for size, split in _in_order(pool, works, _AHEAD * workers):
            for at, batch in split.shares.items():
                shares.setdefault(at, []).append(batch)
            letters += split.dead_letters
            counters.update(split.counters)
            done += size
            show("reading", done, history.size)
        total = len(shares)

        def match_work(at: tuple[int, int]) -> Callable[[], StepOutput]:
            return lambda: _match(programs[job.domains[at[0]]], shares.pop(at))

        tables: list[pa.Table] = []
        matched = _in_order(pool, ((at, match_work(at)) for at in sorted(shares)), total)
        for number, (_, output) in enumerate(matched):
            tables += output.alerts
            counters.update(output.counters)
            show("matching", number + 1, total)
    alerts = sort_alerts(pa.concat_tables(tables)) if tables else ALERT_SCHEMA.empty_table()
    return Replayed(alerts, tuple(letters), counters, time.monotonic() - started)


def _in_order(
    pool: ThreadPoolExecutor, works: Iterator[tuple[T, Callable[[], R]]], ahead: int
) -> Iterator[tuple[T, R]]:
    """Do the works in the pool, at most `ahead` of them at a time; results come in the order of the works."""
    running: deque[tuple[T, Future[R]]] = deque()
    try:
        for tag, work in works:
            running.append((tag, pool.submit(work)))
            while len(running) > ahead or (running and running[0][1].done()):
                done, first = running.popleft()
                yield done, first.result()
        while running:
            done, first = running.popleft()
            yield done, first.result()
    finally:
        for _, future in running:
            future.cancel()


def _split(job: Job, programs: Mapping[KeyDomain, Program], decoded: Decoded, shares_count: int) -> _Split:
    """The events of a piece, by key domain and share of keys, with the columns that the domain's rules read."""
    taken = take_in(job, decoded)
    shares: dict[tuple[int, int], EventBatch] = {}
    for number, (domain, batch) in enumerate(zip(job.domains, taken.batches, strict=True)):
        if domain not in programs:
            taken.counters["events_without_rule"] += len(batch)
            continue
        if not len(batch):
            continue
        read = programs[domain].columns_read
        lean = replace(batch, columns={name: batch.columns[name] for name in read})
        if shares_count == 1:
            shares[number, 0] = lean
            continue
        share = key_groups(lean.key, shares_count).astype(np.uint16)  # 16 bits: numpy sorts those by counting
        ordered = lean.take(np.argsort(share, kind="stable"))
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(share, minlength=shares_count))]).tolist()
        for at in range(shares_count):
            if bounds[at] < bounds[at + 1]:
                shares[number, at] = slice_batch(ordered, bounds[at], bounds[at + 1])
    return _Split(shares, taken.dead_letters, taken.counters)


def _match(program: Program, parts: list[EventBatch]) -> StepOutput:
    output = StepOutput()
    match_step(program, None, concat_batches(parts), TIME_MS_MAX, output)
    return output
