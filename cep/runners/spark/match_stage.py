"""Second stage of the live job: packed rows of one key group → alerts, with keyed state in Spark's state store.

    part of its state     holds                                             touched
    progress              rulebook digest, event times, deadlines           read and written once a micro-batch
    pages                 (domain << 16 | page) → runs of many keys         a touched page is written, read if not held
                                                                            (held_pages.py)
    past                  the same → head of their histories                where rules look back: the same (past.py)
    segments              page, number → past events of many keys           a new one; those that a window reaches into
    waiting               domain → events that are not due yet              where some wait (event_time.py)
    seen                  domain, bucket → hashes of event ids              where duplicates are looked for

Every key group has rows in every micro-batch with records: how far each partition was read. So all have the same
watermark, and windows close with it in the same micro-batch; no timer of Spark is needed.

Tested by: tests/runners/spark/test_live.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Row

from cep.base.errors import StateFormatError
from cep.base.limits import PAGE_BYTES_HELD, TIME_MS_MAX, TIME_MS_MIN
from cep.columnar.batch import EventBatch, concat_batches, conformed, empty_batch
from cep.columnar.codec import decode_batch, encode_batch
from cep.columnar.route import key_pages
from cep.engine.history_state import Histories
from cep.engine.keyed_state import KeyedState
from cep.rulebook.held import Policies
from cep.runners import duplicates
from cep.runners.beginning import Beginning, group_beginning
from cep.runners.event_time import PartitionTimes, TimesRead, due_before, merged, since_after, watermark_of
from cep.runners.group_entries import PAGE_BITS
from cep.runners.group_rules import JobRules, KnownRulebook, changed, forgotten, keep, known, told
from cep.runners.job import ARRIVAL, Job, Programs, StepOutput
from cep.runners.letters import on_time
from cep.runners.output import encode_alerts
from cep.runners.paged import SinglePages, drop_pages, match_pages
from cep.runners.rule_status import rule_status
from cep.runners.spark.group_parts import GroupParts, Part
from cep.runners.spark.held_pages import HeldPages
from cep.runners.spark.packed import (
    ALERTS,
    CONTROL,
    COUNTERS,
    EVENTS,
    LATE,
    REFUSED,
    STATUS,
    TIMES,
    WATERMARK,
    PackedRow,
    produced_rows,
)
from cep.runners.spark.past_pages import PastPages
from cep.runners.waiting import part_due
from cep.state.pages import decode_page, encode_page

_TAKEN = (EVENTS, TIMES, CONTROL)  # the kinds of rows that a stage works on
_PROGRESS_VALUES = 9

# Shared by all key groups that a worker process serves.
_PROGRAMS = Programs()
_HELD = HeldPages(PAGE_BYTES_HELD)


@dataclass(slots=True)
class Progress:
    """What a key group remembers of itself from one micro-batch to the next."""

    rulebook: str = ""
    watermark_ms: int = TIME_MS_MIN
    times: PartitionTimes = field(default_factory=dict)
    deadlines: dict[int, int] = field(default_factory=dict)  # page id → earliest expiry
    waiting_ms: int | None = None  # earliest event that waits for the watermark
    seen: dict[int, list[int]] = field(default_factory=dict)  # domain → buckets of ids
    over: dict[int, int] = field(default_factory=dict)  # page id → when all of its histories is over
    since_ms: int = TIME_MS_MAX  # of the first event
    digests: dict[int, str] = field(default_factory=dict)  # page id → hash of its bytes (held_pages.py), if known

    def to_bytes(self) -> bytes:
        values = [
            self.rulebook, self.watermark_ms, self.times, self.deadlines, self.waiting_ms, self.seen, self.over,
            self.since_ms, self.digests,
        ]  # fmt: skip
        return orjson.dumps(values, option=orjson.OPT_NON_STR_KEYS)

    @staticmethod
    def from_bytes(data: bytes) -> Progress:
        values = orjson.loads(data)
        if len(values) != _PROGRESS_VALUES:
            raise StateFormatError(
                "the checkpoint is of a build that kept other things of a key group; "
                "start from an empty checkpoint directory, or with the build that wrote it"
            )
        rulebook, watermark_ms, times, pages, waiting_ms, seen, over, since_ms, digests = values
        return Progress(
            rulebook,
            watermark_ms,
            {name: (ms, behind) for name, (ms, behind) in times.items()},
            {int(page): ms for page, ms in pages.items()},
            waiting_ms,
            {int(domain): buckets for domain, buckets in seen.items()},
            {int(page): ms for page, ms in over.items()},
            since_ms,
            {int(page): digest for page, digest in digests.items()},
        )


class MatchStage:
    """One stage of one job, in one task.

    `level`: which of the rules (rulebook/levels.py). The first stage tells what became of records, each hands on all
    that the next one needs. `begins`: the directory and what it begins with (beginning.py).
    """

    def __init__(self, rules: JobRules, level: int, begins: tuple[Path, Beginning] | None, kept: GroupParts) -> None:
        self._job = rules.job
        self._level = level
        self._rules_of_job = rules
        self._begins = begins
        self._kept = kept
        self._pasts = PastPages(kept.past, kept.segments)

    def rows(self, group: int, rows: Iterator[Row]) -> Iterator[Row]:
        """The rows that those of one key group in one micro-batch become."""
        batches: dict[int, list[EventBatch]] = {}
        controls: list[str] = []
        times = TimesRead({})
        is_last = self._level + 1 == self._job.levels_count
        for row in rows:
            if row.kind not in _TAKEN or not is_last:
                yield _row((group, row.kind, row.domain, row.order, bytes(row.payload)))
            if row.kind == EVENTS:
                batches.setdefault(row.domain, []).append(decode_batch(bytes(row.payload)))
            elif row.kind == TIMES:
                times = times.joined(TimesRead.from_bytes(bytes(row.payload)))
            elif row.kind == CONTROL:
                controls.append(bytes(row.payload).decode())
        if batches or controls or times.partitions:
            for found in self._step(group, batches, told(self._rules_of_job, tuple(sorted(controls))), times):
                yield _row(found)

    # ------------------------------------------------------------------------------------------------ one step

    def _step(
        self, group: int, batches: dict[int, list[EventBatch]], controls: tuple[bytes, ...], times: TimesRead
    ) -> Iterator[PackedRow]:
        job, is_first = self._job, self._level == 0
        progress = self._load_progress(group)
        output = StepOutput()
        # The watermark that this micro-batch begins with, the same in every key group: what was matched before lies
        # below or at it, and what comes now is late by it. What came now moves it only after that.
        before_ms, digest = progress.watermark_ms, progress.rulebook
        rulebook, letters = self._rules(progress, controls, before_ms, group, output)
        for letter in letters if is_first else ():
            yield group, REFUSED, 0, 0, letter
        progress.times = merged(progress.times, times.partitions)
        progress.since_ms = output.since_ms = since_after(progress.since_ms, times.first_ms, before_ms)
        watermark_ms = max(progress.watermark_ms, watermark_of(progress.times, job.lateness_ms, job.idle_ms))
        progress.watermark_ms = watermark_ms
        seen = _SeenIds(progress.seen, self._kept.seen)
        fresh, late = on_time(job, duplicates.without_seen(job, batches, before_ms, seen, output), before_ms, output)
        if not is_first:  # the first stage has told already what is behind, or was here before
            output.counters.clear()
        elif late:
            yield group, LATE, 0, 0, json.dumps(late).encode()
        released = fresh if job.order == ARRIVAL else self._reorder(progress, fresh, watermark_ms)
        programs = _PROGRAMS.of(rulebook.rulebook, job.schema, self._level)
        for number, domain in enumerate(job.domains):
            batch = released.get(number)
            pages = _DomainPages(job, (self._level, group, number), progress, (self._kept.pages, self._pasts))
            if domain in programs:
                events = empty_batch(job.schema) if batch is None else batch
                match_pages(pages, programs[domain], events, watermark_ms, output)
            else:
                if is_first and batch is not None and domain not in rulebook.rulebook.domains():
                    output.counters["events_without_rule"] += len(batch)
                drop_pages(pages, output)
        # Not before: events that waited may belong to a version that is over by now.
        after = rulebook
        if rulebook.forget_ms <= watermark_ms:
            after = forgotten(self._rules_of_job, rulebook, watermark_ms)
            self._keep_rulebook(progress, after)
        if is_first and group == 0 and progress.rulebook != digest:
            # What this micro-batch has matched may be held back by what is forgotten at its end.
            status = {**rule_status(after.rulebook), "policies": Policies.of(rulebook.rulebook).to_json()}
            yield group, STATUS, 0, 0, orjson.dumps(status)
        self._kept.progress.put(0, progress.to_bytes())
        alerts = output.alert_table()
        if alerts.num_rows:
            yield group, ALERTS, 0, 0, encode_alerts(alerts)
        if self._level + 1 < job.levels_count:
            for made in output.produced:
                yield from produced_rows(job, made)
        counters = {name: count for name, count in output.counters.items() if count}
        if counters:
            yield group, COUNTERS, 0, 0, json.dumps(counters).encode()
        if is_first and group == 0 and watermark_ms > TIME_MS_MIN:
            told = json.dumps({"ms": watermark_ms, "partitions": progress.times}).encode()
            yield group, WATERMARK, 0, 0, told

    def _load_progress(self, group: int) -> Progress:
        stored = self._kept.progress.get(0)
        if stored is not None:
            return Progress.from_bytes(stored)
        return Progress() if self._begins is None else self._begin(group, *self._begins)

    def _begin(self, group: int, checkpoint: Path, begins: Beginning) -> Progress:
        """Take up what the key group has from elsewhere (beginning.py)."""
        kept = group_beginning(checkpoint, begins, self._job, self._level, group)
        for page, data in kept.pages.items():
            self._kept.pages.put(page, data)
        self._pasts.begin(kept.heads, kept.segments)
        for number, data in kept.waiting.items():
            self._kept.waiting.put(number, data)
        seen: dict[int, list[int]] = {}
        for (number, bucket), data in sorted(kept.seen.items()):
            self._kept.seen.put(number, data, bucket)
            seen.setdefault(number, []).append(bucket)
        waiting_ms = min((int(decode_batch(data).time_ms.min()) for data in kept.waiting.values()), default=None)
        times = begins.partition_times()
        found = Progress(begins.rulebook, begins.watermark_ms, times, dict(kept.deadlines), waiting_ms, seen)
        return replace(found, over=dict(kept.over), since_ms=begins.since_ms)

    # ------------------------------------------------------------------------------------------------ rulebook

    def _rules(
        self, progress: Progress, controls: tuple[bytes, ...], before_ms: int, group: int, output: StepOutput
    ) -> tuple[KnownRulebook, tuple[bytes, ...]]:
        """The rules after these control records, and dead letters of those that were refused."""
        after = before = known(self._rules_of_job, progress.rulebook)
        letters: tuple[bytes, ...] = ()
        if controls:
            seen_ms = before_ms
            if self._job.order == ARRIVAL:  # then events are matched before the watermark has passed them
                seen_ms = max([before_ms, *(ms for ms, _ in progress.times.values())])
            change = changed(self._rules_of_job, before, controls, seen_ms if seen_ms > TIME_MS_MIN else None)
            after = change.after
            progress.watermark_ms = max(progress.watermark_ms, change.heartbeat_ms)
            if group == 0:  # every key group sees the same records; one of them reports
                letters = change.dead_letters
                output.counters.update(change.counters)
        self._keep_rulebook(progress, after)
        return after, letters

    def _keep_rulebook(self, progress: Progress, rulebook: KnownRulebook) -> None:
        if rulebook.digest != progress.rulebook:
            keep(self._rules_of_job, rulebook)
            progress.rulebook = rulebook.digest

    def _reorder(self, progress: Progress, fresh: dict[int, EventBatch], watermark_ms: int) -> dict[int, EventBatch]:
        """Hold back what the watermark has not passed; bring out what it has."""
        # What a pattern produces may have the time of an event that is still to come, and stands behind it.
        at_once = self._job.lateness_ms == 0 and len(progress.times) == 1 and self._level == 0
        bound_ms = due_before(watermark_ms, at_once=at_once)
        is_due = progress.waiting_ms is not None and progress.waiting_ms < bound_ms
        released: dict[int, EventBatch] = {}
        # Domains that are not looked at hold nothing that is due.
        earliest = [] if is_due or progress.waiting_ms is None else [progress.waiting_ms]
        for number in range(len(self._job.domains)):
            if number not in fresh and not is_due:
                continue
            stored = self._kept.waiting.get(number) if progress.waiting_ms is not None else None
            held = [conformed(decode_batch(stored), self._job.schema)] if stored is not None else []
            due, rest = part_due([*held, fresh[number]] if number in fresh else held, bound_ms)
            if due is not None:
                released[number] = due
            if rest:
                left = concat_batches(rest)
                earliest.append(int(left.time_ms.min()))
                self._kept.waiting.put(number, encode_batch(left))
            elif stored is not None:
                self._kept.waiting.remove(number)
        progress.waiting_ms = min(earliest, default=None)
        return released


class _DomainPages(SinglePages):
    """As paged.DomainPages; a slot is the number of a page in its key group. `place` are the level, the key group and
    the number of the domain, `kept` where pages and histories are."""

    def __init__(self, job: Job, place: tuple[int, int, int], progress: Progress, kept: tuple[Part, PastPages]) -> None:
        self._job = job
        self._level, self._group, number = place
        self._base = number << PAGE_BITS
        self._deadlines = progress.deadlines
        self._digests = progress.digests
        self._pages = kept[0]
        self._pasts = _DomainPasts(number, progress.over, kept[1], self.slots)

    @property
    def pasts(self) -> _DomainPasts:
        return self._pasts

    def slots(self, keys: pa.Array) -> NDArray[np.int64]:
        return key_pages(keys, self._job.groups_count, self._job.pages_count).astype(np.int64)

    def touched(self, keys: pa.Array, watermark_ms: int) -> NDArray[np.int64]:
        due = [slot for slot in self.stored() if self._deadlines[self._base + slot] <= watermark_ms]
        return np.union1d(self.slots(keys), np.array(due, np.int64))

    def stored(self) -> list[int]:
        return [page - self._base for page in self._deadlines if page >> PAGE_BITS == self._base >> PAGE_BITS]

    def read(self, slot: int) -> KeyedState | None:
        page = self._base + slot
        if page not in self._deadlines:
            return None
        held = _HELD.get((self._level, self._group, page), self._digests.get(page))
        if held is None:
            held = self._pages.get(page)
            assert held is not None, "a page with a deadline is stored"
        return decode_page(held)

    def write(self, slot: int, keyed_state: KeyedState, deadline_ms: int) -> None:
        page, data = self._base + slot, encode_page(keyed_state, compressed=True)
        self._pages.put(page, data)
        self._deadlines[page] = deadline_ms
        self._digests[page] = _HELD.put((self._level, self._group, page), data)

    def remove(self, slot: int) -> None:
        page = self._base + slot
        self._digests.pop(page, None)
        _HELD.drop((self._level, self._group, page))
        if self._deadlines.pop(page, None) is not None:
            self._pages.remove(page)


class _DomainPasts:
    """As paged.DomainPasts. `over`: by page id when all of its histories is over."""

    def __init__(
        self, number: int, over: dict[int, int], pages: PastPages, slots: Callable[[pa.Array], NDArray[np.int64]]
    ) -> None:
        self.slots = slots
        self._base = number << PAGE_BITS
        self._over = over
        self._pages = pages

    def stored(self, watermark_ms: int) -> list[int]:
        own = [(page, ms) for page, ms in self._over.items() if page >> PAGE_BITS == self._base >> PAGE_BITS]
        return [page - self._base for page, ms in own if ms <= watermark_ms]

    def read(self, slot: int) -> Histories:
        return self._pages.read(self._base + slot) if self._base + slot in self._over else Histories()

    def write(self, slot: int, histories: Histories, over_ms: int) -> None:
        self._pages.write(self._base + slot, histories)
        self._over[self._base + slot] = over_ms

    def remove(self, slot: int) -> None:
        if self._over.pop(self._base + slot, None) is not None:
            self._pages.remove(self._base + slot)


class _SeenIds:
    """As duplicates.SeenIds. `buckets`: those of each domain that `part` has."""

    def __init__(self, buckets: dict[int, list[int]], part: Part) -> None:
        self._buckets = buckets
        self._part = part

    def known(self, number: int, bucket: int, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        return duplicates.are_known(hashes, self._of(number, bucket))

    def add(self, number: int, bucket: int, hashes: NDArray[np.uint64], keys: pa.Array) -> None:
        joined = np.concatenate([self._of(number, bucket), hashes])
        self._part.put(number, duplicates.to_bytes(joined), bucket)
        self._buckets[number] = sorted({*self._buckets.get(number, ()), bucket})

    def forget(self, oldest: int) -> None:
        for number, buckets in self._buckets.items():
            for bucket in [bucket for bucket in buckets if bucket < oldest]:
                self._part.remove(number, bucket)
            self._buckets[number] = [bucket for bucket in buckets if bucket >= oldest]

    def _of(self, number: int, bucket: int) -> NDArray[np.uint64]:
        stored = self._part.get(number, bucket) if bucket in self._buckets.get(number, ()) else None
        return duplicates.from_bytes(stored or b"")


def _row(packed: PackedRow) -> Row:
    group, kind, domain, order, payload = packed
    return Row(key_group=group, kind=kind, domain=domain, order=order, payload=payload)
