"""The key groups of a process, divided among threads: the embedded runner's side of step/ports.py.

    events of a level ─┬─▶ share 0: key groups 0 … 63    ─┐
                       ├─▶ share 1: key groups 64 … 127  ─┼─▶ alerts, in the order of the shares
                       └─▶ …                             ─┘

Each level has its own shares. A small micro-batch does not repay several threads: all shares are then matched as one in
the caller's thread, which pays the fixed cost of a match only once.
Tested by: tests/runners/embedded/test_engine.py, tests/step/test_step.py
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pyarrow as pa

from cep.columnar.batch import EventBatch, concat_batches
from cep.columnar.route import key_groups
from cep.histories.store import Histories
from cep.kernels.layout import Int64
from cep.runners.embedded.pages import MatchedPages, Shapes
from cep.runners.embedded.seen import SeenOfLevel
from cep.runners.embedded.share import Cache, Share, SharePasts
from cep.runners.handover.group_entries import domain_name
from cep.state.store import DurableStore
from cep.step.job import ARRIVAL, Job
from cep.step.ports import Events, Portion
from cep.step.programs import Programs
from cep.step.rules import JobRules

EVENTS_ALONE = 2_000  # fewer are matched in the caller's thread, by all shares as one
T = TypeVar("T")


class Shares:
    """The ports of this process: a share of its key groups for each thread, at each level."""

    def __init__(
        self, rules: JobRules, groups: range, store: DurableStore, shapes: Shapes, cache: Cache, count: int
    ) -> None:
        """Divide the key groups of this process among `count` threads."""
        self.rules = rules
        self.programs = Programs()
        self.levels = range(rules.job.levels_count)
        self._job = rules.job
        self._groups = groups
        self._is_alone = len(groups) == rules.job.groups_count  # no other process has any
        bounds = [groups.start + len(groups) * number // count for number in range(count + 1)]
        self._bounds = np.array(bounds, np.int32)
        self._pool = ThreadPoolExecutor(count, "share") if count > 1 else None
        self._store = store
        self._shapes = shapes
        self.lay_out(cache)

    def lay_out(self, cache: Cache) -> None:
        """Begin with empty shares."""
        self.cache = cache
        groups = [range(first, end) for first, end in pairwise(self._bounds.tolist())]
        self.by_level = []
        for level in self.levels:
            seen_ids = SeenOfLevel([domain_name(domain, level) for domain in self._job.domains], self._job.groups_count)
            self.by_level.append(
                [Share(self._job, part, self._store, self._shapes, cache, level, seen_ids) for part in groups]
            )
        self._joined = [JoinedShares(self._job, shares) for shares in self.by_level]

    @property
    def all(self) -> list[Share]:
        """The shares of all levels."""
        return [share for shares in self.by_level for share in shares]

    def with_group(self, group: int) -> list[tuple[int, Share]]:
        """Return each level with its share that has a key group."""
        return [
            (level, share) for level in self.levels for share in self.by_level[level] if group in share.groups
        ]  # fmt: skip

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    def spread(self, level: int, events: Events, due_ms: int, work: Callable[[Portion], T]) -> Iterable[T]:
        """Divide the events of a level among the threads, or match them in one thread if there are few."""
        whole = {number: concat_batches(batches) for number, batches in events.items()}
        shares, joined = self.by_level[level], self._joined[level]
        is_small = sum(map(len, whole.values())) < EVENTS_ALONE
        if is_small and self._is_alone and joined.only_matches(whole, due_ms):
            return [work(joined.undivided(whole))]
        divided = self._divide(whole)
        if is_small:
            return [work(joined.portion(divided))]
        portions = [Portion(share, [share_events]) for share, share_events in zip(shares, divided, strict=True)]
        return map(work, portions) if self._pool is None else self._pool.map(work, portions)

    def owners(self, keys: pa.Array) -> Int64:
        """Return the number of each key's share: int64[N]; -1 for keys of other processes."""
        groups = key_groups(keys, self._job.groups_count)
        is_ours = (groups >= self._groups.start) & (groups < self._groups.stop)
        return np.where(is_ours, np.searchsorted(self._bounds[1:], groups, side="right"), -1)

    def _divide(self, events: Mapping[int, EventBatch]) -> list[dict[int, list[EventBatch]]]:
        """Return the events of each share. Events of other processes' key groups are left out."""
        count = len(self.by_level[0])
        divided: list[dict[int, list[EventBatch]]] = [{} for _ in range(count)]
        for number, batch in events.items():
            if count == 1 and self._is_alone:
                divided[0][number] = [batch]
                continue
            owners = self.owners(batch.key)
            for share in range(count):
                is_of_share = owners == share
                if is_of_share.any():
                    divided[share][number] = [batch if is_of_share.all() else batch.take(is_of_share)]
        return divided


class JoinedShares:
    """Several shares of one level with consecutive key groups, matched as if they were one."""

    def __init__(self, job: Job, shares: Sequence[Share]) -> None:
        self._job = job
        self.parts = shares
        self.pages = [
            MatchedPages(
                [share.stored_pages[number] for share in shares],
                _JoinedPasts([share.pasts[number] for share in shares]),
                stays_open=False,
            )
            for number in range(len(job.domains))
        ]

    def only_matches(self, events: Mapping[int, EventBatch], due_ms: int) -> bool:
        """Return True if no event has waited or is to wait: then nothing is divided."""
        is_due = not any(np.count_nonzero(batch.time_ms >= due_ms) for batch in events.values())
        return self._job.order == ARRIVAL or (is_due and all(share.waiting.is_empty for share in self.parts))

    def undivided(self, events: Mapping[int, EventBatch]) -> Portion:
        """Return all key groups as one part."""
        self._close_pages()
        return Portion(_Undivided(self.parts[:1], self.pages), [{number: [batch] for number, batch in events.items()}])

    def portion(self, divided: Sequence[Events]) -> Portion:
        """Return all key groups, with the events of each share."""
        self._close_pages()
        return Portion(self, divided)

    def _close_pages(self) -> None:
        for share in self.parts:
            share.close_pages()


class _Undivided:
    """The pages of joined shares, with the arrivals of one of them: they share the seen ids, and no event waits."""

    def __init__(self, parts: Sequence[Share], pages: Sequence[MatchedPages]) -> None:
        self.parts = parts
        self.pages = pages


class _JoinedPasts:
    """The histories of several shares as if they were one (DomainPasts).

    Their slots follow each other, share by share.
    """

    def __init__(self, parts: Sequence[SharePasts]) -> None:
        self._parts = parts
        self._firsts = np.cumsum([0, *(part.slots_count for part in parts)])[:-1].tolist()

    def slots(self, keys: pa.Array) -> Int64:
        return self._parts[0].slots(keys)

    def stored(self, watermark_ms: int) -> list[int]:
        owned = zip(self._parts, self._firsts, strict=True)
        return [first + slot for part, first in owned for slot in part.stored(watermark_ms)]

    def read(self, slot: int) -> Histories:
        part, part_slot = self._at(slot)
        return part.read(part_slot)

    def write(self, slot: int, histories: Histories, over_ms: int) -> None:
        part, part_slot = self._at(slot)
        part.write(part_slot, histories, over_ms)

    def remove(self, slot: int) -> None:
        part, part_slot = self._at(slot)
        part.remove(part_slot)

    def _at(self, slot: int) -> tuple[SharePasts, int]:
        number = bisect_right(self._firsts, slot) - 1
        return self._parts[number], slot - self._firsts[number]
