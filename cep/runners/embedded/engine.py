"""Decoded records, control records and event times of one micro-batch → alerts, on several threads. No I/O, no clock.

    records ─▶ route (intake.py) ─┬─▶ share 0: key groups 0 … 63    ─┐
    control records ─▶ rulebook ──┼─▶ share 1: key groups 64 … 127  ─┼─▶ alerts, sorted
    event times ─▶ watermark ─────┘                                   ─┘

The rulebook and the watermark are one for all; shares work side by side and meet at the end of each micro-batch. So
between two micro-batches all keyed state is of one moment, which is what a checkpoint keeps. Patterns that read what
others produce come level by level in the same micro-batch, each level with shares of its own.
Tested by: tests/runners/embedded/test_engine.py
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from cep.base.errors import StateCorruptError, UsageError
from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.columnar.batch import TEXT, EventBatch, concat_batches
from cep.columnar.decode import Decoded, concat_decoded
from cep.columnar.route import KeyDomain, key_groups, route
from cep.engine.alerts import sorted_together
from cep.engine.partition import divide
from cep.kernels.layout import Int64
from cep.lists.store import ListStore
from cep.nfa.program import Program
from cep.rulebook.held import Policies, counted, fired_from_json, fired_json, hold_back
from cep.rulebook.saved import rulebook_bytes
from cep.runners.embedded.fired import StoredMemory
from cep.runners.embedded.pages import PAGES_MAX, Shapes
from cep.runners.embedded.seen import ADDED_SEEN
from cep.runners.embedded.share import ADDED_DEADLINES, Cache, Done, Share, Together, Work
from cep.runners.embedded.waiting import ADDED_WAITING
from cep.runners.event_time import PartitionTimes, due_before, merged, since_after, watermark_of
from cep.runners.group_entries import entries_of, state_of
from cep.runners.group_rules import JobRules, KnownRulebook, changed, forgotten, known, restored
from cep.runners.intake import span_ms, take_in
from cep.runners.job import ARRIVAL, Job, Programs
from cep.runners.letters import under_rules
from cep.runners.rule_output import held_lines
from cep.runners.warm_start import WarmStart, check_fits, laid_out
from cep.state.keys import STORE_GROUP, prefix_range, store_key
from cep.state.pages import StoredPage, encode_page
from cep.state.store import DurableStore, WriteBatch

# Pages of the store for each part of a key group's state that the job asks for, as long as a store does not say how
# many it has; and as earlier builds had them, which did not say.
PAGES_A_PART, _PAGES_A_PART_BEFORE = 2_048, 256
_ITEM = struct.Struct(">QH")  # of what a commit adds: its number, and that of the share
_ADDED = (ADDED_DEADLINES, ADDED_SEEN, ADDED_WAITING)
# What commits have added is gathered by key group when it has grown to this much, and to several times the whole.
_ADDED_BYTES_MIN, _ADDED_FACTOR = 4 << 20, 2
EVENTS_ALONE = 2_000  # fewer are matched in the caller's thread, by all shares as one
# Counters that only the first level adds to: every level is handed the source's events.
_OF_FIRST_LEVEL = ("late_events", "duplicates", "events_without_rule")


@dataclass(frozen=True, slots=True)
class Workers:
    """How matching is divided: threads, the key groups of this process, bytes of pages in memory (None: all)."""

    count: int = 2
    first_group: int = 0
    end_group: int | None = None
    page_bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class Stepped:
    """What a micro-batch gave: alerts in their order, letters of what was set aside (JSON), counters by name."""

    alerts: pa.Table
    letters: tuple[bytes, ...]
    counters: Counter[str]


@dataclass(frozen=True, slots=True)
class _InForce:
    """Rules, and what follows from them: the programs of each level, and what is held back."""

    rules: KnownRulebook
    programs: list[Mapping[KeyDomain, Program]]
    policies: Policies


class Engine:
    """The job's rulebook, watermark and keyed state. `initial` are the control records that it begins with."""

    def __init__(
        self, job: Job, initial: tuple[bytes, ...], store: DurableStore, workers: Workers,
        lists: ListStore | None = None,
    ) -> None:  # fmt: skip
        """`lists` is where the entries of lists are kept; in memory if it is None."""
        end = job.groups_count if workers.end_group is None else workers.end_group
        assert 0 <= workers.first_group < end <= job.groups_count, "key groups of this process"
        self.job = job
        self.store = store
        self.groups = range(workers.first_group, end)
        count = min(workers.count, len(self.groups))
        bounds = [self.groups.start + len(self.groups) * at // count for at in range(count + 1)]
        bytes_max = workers.page_bytes_max
        each_max = None if bytes_max is None else bytes_max // (count * len(job.domains))
        self._cache = Cache(min(PAGES_MAX, job.pages_count * PAGES_A_PART), each_max)
        self._shapes = Shapes(store)
        if job.levels_count > 1 and len(self.groups) < job.groups_count:
            raise UsageError(
                "patterns read what other patterns produce, and that may belong to any key: run the job in one process"
            )
        self._bounds = np.array(bounds, np.int32)
        self._make_shares()
        self._pool = ThreadPoolExecutor(count, "share") if count > 1 else None
        self._programs = Programs()
        self._memory = StoredMemory()
        self._rules = JobRules(job, initial, own_lists=lists)
        self._rulebook = known(self._rules, "")
        self._force: _InForce | None = None
        self._saved_rulebook: object = None  # what the store has
        self._added_bytes = self._whole_bytes = 0
        self.times: PartitionTimes = {}
        self.watermark_ms = TIME_MS_MIN
        self.since_ms = TIME_MS_MAX  # the time of the first event

    def _make_shares(self) -> None:
        """Those of each level, which hold nothing yet."""
        groups = [range(first, end) for first, end in pairwise(self._bounds.tolist())]
        self._levels = [
            [Share(self.job, own, self.store, self._shapes, self._cache, level) for own in groups]
            for level in range(self.job.levels_count)
        ]
        self._together = [Together(self.job, shares) for shares in self._levels]

    @property
    def shares(self) -> list[Share]:
        """Those of all levels."""
        return [share for shares in self._levels for share in shares]

    @property
    def rulebook(self) -> KnownRulebook:
        """The rules in force, and what tells them from all others."""
        return self._rulebook

    @property
    def epoch(self) -> int:
        """Of the rulebook: how many changes were applied."""
        return self._rulebook.rulebook.epoch

    def step(self, parts: Sequence[Decoded], controls: tuple[bytes, ...], times: PartitionTimes) -> Stepped:
        """One micro-batch. `times`: how far each partition has been read with it (event_time.py).

        Raises: StateError, StoreError; the engine is then of no use, and the job goes on from its checkpoint.
        """
        job = self.job
        # What was matched before lies below or at this watermark: what comes now is late by it, and then moves it.
        before_ms = self.watermark_ms
        refused, counters = self._change_rules(controls, before_ms)
        self.times = merged(self.times, times)
        self.watermark_ms = max(self.watermark_ms, watermark_of(self.times, job.lateness_ms, job.idle_ms))
        self.since_ms = since_after(
            self.since_ms, min((span_ms(job, p)[0] for p in parts), default=TIME_MS_MAX), before_ms
        )
        at_once = job.lateness_ms == 0 and len(self.times) == 1
        routed, letters = self._take_in(parts, counters)
        tables: list[pa.Table] = []
        for level in range(job.levels_count):
            produced: list[Decoded] = []
            # What a pattern produces may have the time of an event that is still to come, and stands behind it.
            times_of_work = (before_ms, self.watermark_ms, due_before(self.watermark_ms, at_once=at_once and not level))
            for done in self._work(level, routed, times_of_work):
                tables += done.output.alerts
                produced += done.output.produced
                if level == 0:
                    letters += [orjson.dumps({"code": "late", **event}) for event in done.late]
                else:  # the first level has counted what is late, or was here before
                    for name in _OF_FIRST_LEVEL:
                        done.output.counters.pop(name, None)
                counters.update(done.output.counters)
            if produced and level + 1 < job.levels_count:
                self._route_produced(concat_decoded(job.schema, produced), routed)
        alerts = sorted_together(tables)
        if letters:
            letters = under_rules(letters, self.epoch, self._rulebook.rulebook.content_hash)
        if alerts.num_rows:  # without any, what is remembered stays as it is
            policies = self._in_force().policies
            held = hold_back(alerts, policies, self._memory.last)
            self._memory.put(held.fired)
            counters["fired_forgotten"] += self._memory.forget(self.watermark_ms)
            if held.reasons:
                letters += held_lines(held)
                counters.update(counted(held))
            alerts = held.alerts
        # Not before: events that waited may belong to a version that is over by now.
        if self._rulebook.forget_ms <= self.watermark_ms:
            self._rulebook = forgotten(self._rules, self._rulebook, self.watermark_ms)
        for name in [name for name, count in counters.items() if not count]:
            del counters[name]
        return Stepped(alerts, (*refused, *letters), counters)

    def pages_of_key(self, key: str) -> tuple[list[StoredPage], Sequence[Mapping[KeyDomain, Program]]]:
        """The pages in which a key may have runs, and the programs in force by level.

        To be asked between micro-batches.
        """
        keys = pa.array([key], TEXT)
        group = int(key_groups(keys, self.job.groups_count)[0])
        levels = self._in_force().programs
        found: list[StoredPage] = []
        for programs, shares in zip(levels, self._levels, strict=True):
            for share in (share for share in shares if group in share.groups):
                for domain, pages in zip(self.job.domains, share.pages, strict=True):
                    page = pages.take(pages.slots(keys), programs[domain])[0] if domain in programs else None
                    if page is not None:
                        found.append(StoredPage(group, domain, encode_page(page)))
        return found, levels

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    def _work(
        self, level: int, routed: Mapping[int, Sequence[EventBatch]], times_of_work: tuple[int, int, int]
    ) -> list[Done]:
        known = self._rulebook.rulebook.domains() if self.job.levels_count > 1 else ()
        programs = self._in_force().programs[level]

        def work(own: Mapping[int, EventBatch]) -> Work:
            return Work(programs, own, *times_of_work, known, self.since_ms)

        whole = {number: concat_batches(batches) for number, batches in routed.items()}
        shares, together = self._levels[level], self._together[level]
        is_small = sum(map(len, whole.values())) < EVENTS_ALONE
        if is_small and len(self.groups) == self.job.groups_count and together.takes_whole(work(whole)):
            return [together.step_whole(work(whole))]
        works = [work(own) for own in self._shared_out(whole)]
        if is_small:
            return [together.step(works)]
        if self._pool is None:
            return [share.step(work) for share, work in zip(shares, works, strict=True)]
        return list(self._pool.map(lambda share, work: share.step(work), shares, works))

    def _in_force(self) -> _InForce:
        """What follows from the rulebook; worked out once for each."""
        if self._force is None or self._force.rules is not self._rulebook:
            rulebook = self._rulebook.rulebook
            levels = [self._programs.of(rulebook, self.job.schema, at) for at in range(self.job.levels_count)]
            self._force = _InForce(self._rulebook, levels, Policies.of(rulebook))
        return self._force

    def _change_rules(self, controls: tuple[bytes, ...], before_ms: int) -> tuple[list[bytes], Counter[str]]:
        if not controls:
            return [], Counter()
        seen_ms = before_ms
        if self.job.order == ARRIVAL:  # then events are matched before the watermark has passed them
            seen_ms = max([before_ms, *(ms for ms, _ in self.times.values())])
        change = changed(self._rules, self._rulebook, controls, seen_ms if seen_ms > TIME_MS_MIN else None)
        self._rulebook = change.after
        self.watermark_ms = max(self.watermark_ms, change.heartbeat_ms)
        return list(change.dead_letters), Counter(change.counters)

    def _take_in(
        self, parts: Sequence[Decoded], counters: Counter[str]
    ) -> tuple[dict[int, list[EventBatch]], list[bytes]]:
        """The events by the number of their key domain, and letters of what was set aside."""
        letters: list[bytes] = []
        routed: dict[int, list[EventBatch]] = {}
        for decoded in parts:
            taken = take_in(self.job, decoded)
            letters += taken.dead_letters
            counters.update(taken.counters)
            for number, batch in enumerate(taken.batches):
                if len(batch):
                    routed.setdefault(number, []).append(batch)
        return routed, letters

    def _route_produced(self, events: Decoded, routed: dict[int, list[EventBatch]]) -> None:
        types = self.job.schema.columns()
        for number, domain in enumerate(self.job.domains):
            batch, _ = route(events, domain, types)
            if len(batch):
                routed.setdefault(number, []).append(batch)

    def _shared_out(self, routed: Mapping[int, EventBatch]) -> list[dict[int, EventBatch]]:
        """The events of each share by the number of their domain; those of other processes' key groups are left out."""
        count = len(self._levels[0])
        found: list[dict[int, EventBatch]] = [{} for _ in range(count)]
        for number, batch in routed.items():
            if count == 1 and len(self.groups) == self.job.groups_count:
                found[0][number] = batch
                continue
            owner = self._owners(batch.key)
            for at in range(count):
                own = owner == at
                if own.any():
                    found[at][number] = batch if own.all() else batch.take(own)
        return found

    def _owners(self, keys: pa.Array) -> Int64:
        """The number of each key's share; -1 for keys of other processes."""
        groups = key_groups(keys, self.job.groups_count)
        is_ours = (groups >= self.groups.start) & (groups < self.groups.stop)
        return np.where(is_ours, np.searchsorted(self._bounds[1:], groups, side="right"), -1)

    # --------------------------------------------------------------------------------------------- save, restore

    def begin(self, warm: WarmStart) -> int:
        """Begin with the state that a replay has ended in; returns how many runs it has.

        Raises: UsageError if it does not fit; StateError.
        """
        runs = 0
        check_fits(warm.about, self.job)
        self._memory.put(fired_from_json(warm.about.memory))
        self.since_ms, self.watermark_ms = warm.about.since_ms, warm.about.until_ms - 1
        for level, shares in enumerate(self._levels):
            programs = self._programs.of(self._rulebook.rulebook, self.job.schema, level)
            for number, whole in laid_out(warm, self.job, level, programs):
                program = programs[self.job.domains[number]]
                for owner, part in divide(whole, self._owners, program.row_registers):
                    if owner >= 0:
                        runs += shares[owner].begin(number, part, program)
        return runs

    @property
    def loads_count(self) -> int:
        """How many pages were read from the store."""
        return sum(share.loads_count for share in self.shares)

    @property
    def changed_bytes(self) -> int:
        """Of the pages that the next `save` writes."""
        return sum(share.changed_bytes for share in self.shares)

    def save(self, batch: WriteBatch, commit: int) -> None:
        """Add all that has changed since the last commit. Commits are numbered upwards. Raises: StoreError."""
        shares = self.shares
        if self._added_bytes > max(_ADDED_BYTES_MIN, _ADDED_FACTOR * self._whole_bytes):
            self.save_whole(batch)
            return
        for number, share in enumerate(shares):
            self._added_bytes += share.save_changes(batch, _ITEM.pack(commit, number))
        self._save_rest(batch)

    def save_whole(self, batch: WriteBatch) -> None:
        """Add all that has changed, and what lies beside pages by key group, so that no commit before it is needed."""
        before = len(batch)
        for namespace in _ADDED:
            batch.delete_range(prefix_range(STORE_GROUP, b"", namespace))
        for share in self.shares:
            share.save_whole(batch)
        self._added_bytes = 0
        self._whole_bytes = sum(len(value) for _, _, value in batch.changes[before:])
        self._save_rest(batch)

    def _save_rest(self, batch: WriteBatch) -> None:
        self._shapes.save(batch)
        times = {name: list(at) for name, at in self.times.items()}
        head = {
            "watermark_ms": self.watermark_ms,
            "since_ms": self.since_ms,
            "times": times,
            "pages": self._cache.pages_count,
        }
        batch.put(_TIMES, orjson.dumps(head))
        if self._saved_rulebook is not self._rulebook:
            batch.put(_own_key(b"rulebook"), rulebook_bytes(self._rulebook.rulebook))
            self._saved_rulebook = self._rulebook
        self._memory.save(batch)

    def restore(self) -> None:
        """Go on from what the store holds. Raises: StateError."""
        found = {name: self.store.get(_own_key(name)) or b"" for name in (b"times", b"rulebook")}
        try:
            head = orjson.loads(found[b"times"])
        except ValueError as error:
            raise StateCorruptError(f"the store does not describe a job ({error!r}); restore a checkpoint") from error
        pages_count = head.get("pages", min(PAGES_MAX, self.job.pages_count * _PAGES_A_PART_BEFORE))
        if pages_count != self._cache.pages_count:
            self._cache = replace(self._cache, pages_count=pages_count)
            self._make_shares()
        self._know({**head, "rulebook": found[b"rulebook"].decode()})
        self._saved_rulebook = self._rulebook
        self._memory.restore(self.store)
        lists = self._rulebook.rulebook.lists
        lists.store.keep_only(lists.names())
        for share in self.shares:
            share.restore(self.store)

    def _know(self, told: Mapping[str, Any]) -> None:
        try:
            self._rulebook = restored(self._rules, told["rulebook"].encode())
            self.watermark_ms = int(told["watermark_ms"])
            self.since_ms = int(told.get("since_ms", TIME_MS_MIN))  # an earlier build did not ask
            self.times = {name: (int(ms), bool(behind)) for name, (ms, behind) in told["times"].items()}
        except (KeyError, TypeError, ValueError) as error:
            raise StateCorruptError(f"there is no job described ({error!r}); restore a checkpoint") from error

    # --------------------------------------------------------------------------------------------- for savepoints

    def told(self) -> dict[str, Any]:
        """What is the same for all key groups."""
        return {
            "rulebook": rulebook_bytes(self._rulebook.rulebook).decode(),
            "held_memory": fired_json(self._memory.last),
            "watermark_ms": self.watermark_ms,
            "since_ms": self.since_ms,
            "times": {name: list(at) for name, at in self.times.items()},
        }

    def entries_of(self, group: int) -> list[tuple[bytes, bytes]]:
        """A key group as entries of a savepoint (group_entries.py), in the order of their keys."""
        found: list[tuple[bytes, bytes]] = []
        for level, shares in enumerate(self._levels):
            programs = self._programs.of(self._rulebook.rulebook, self.job.schema, level)
            for share in shares:
                if group in share.groups:
                    found += entries_of(self.job, level, group, share.state_of(group, programs))
        return sorted(found)

    def take_over(self, told: Mapping[str, Any], entries: Callable[[int], Iterable[tuple[bytes, bytes]]]) -> int:
        """Begin with what a savepoint has: what `told` gave, and the entries of each key group.

        Pages go to the store at once, the rest with the next `save_whole`. Returns: how many entries there were.
        Raises: StateError.
        """
        self._know(told)
        self._memory.put(fired_from_json(told["held_memory"]))
        entries_count = 0
        for group in self.groups:
            own = list(entries(group))
            entries_count += len(own)
            batch = WriteBatch()
            for level, shares in enumerate(self._levels):
                programs = self._programs.of(self._rulebook.rulebook, self.job.schema, level)
                for share in shares:
                    if group in share.groups:
                        share.take_over(group, state_of(self.job, level, own), programs)
                        share.save_pages(batch)
            self.store.write(batch)
        return entries_count


def stored_rulebook(store: DurableStore) -> bytes:
    """The rulebook in force, as a store holds it. Raises: StateCorruptError."""
    found = store.get(_own_key(b"rulebook"))
    if found is None:
        raise StateCorruptError("the store holds no rulebook; restore a checkpoint")
    return found


def _own_key(name: bytes) -> bytes:
    return store_key(STORE_GROUP, b"", b"engine", name)


_TIMES = _own_key(b"times")
