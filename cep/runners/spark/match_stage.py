"""Second stage of the live job: packed rows of one key group → alerts, with keyed state in Spark's state store.

    state variable        holds                                             touched
    progress  ValueState  rulebook digest, event times, deadlines           read and written once a micro-batch
    pages     MapState    (domain << 16 | page) → keyed state of many keys  each touched page, once a micro-batch
    waiting   MapState    domain → events that are not due yet              where some wait (event_time.py)
    seen      MapState    domain, bucket → hashes of event ids              where duplicates are looked for

Every key group has rows in every micro-batch with records: how far each partition was read. So all have the same
watermark, and windows close with it in the same micro-batch; no timer of Spark is needed.

Tested by: tests/runners/spark/test_live.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from cep.base.limits import TIME_MS_MIN
from cep.columnar.batch import EventBatch, concat_batches, conformed, empty_batch
from cep.columnar.codec import decode_batch, encode_batch
from cep.columnar.route import key_pages
from cep.engine.keyed_state import KeyedState, concat_states, fit, select_keys
from cep.nfa.program import Program
from cep.rulebook.held import Policies
from cep.runners import duplicates
from cep.runners.event_time import PartitionTimes, due_before, merged, watermark_of
from cep.runners.group_rules import JobRules, KnownRulebook, beyond_levels, changed, forgotten, keep, known, told
from cep.runners.job import ARRIVAL, Programs, StepOutput, match_step, page_deadline_ms
from cep.runners.letters import first_seen, on_time
from cep.runners.output import encode_alerts
from cep.runners.rule_status import rule_status
from cep.runners.spark.packed import (
    ALERTS,
    CONTROL,
    COUNTERS,
    DEAD,
    EVENTS,
    LATE,
    STATUS,
    TIMES,
    WATERMARK,
    PackedRow,
    produced_rows,
)
from cep.state.pages import decode_page, encode_page

_TAKEN = (EVENTS, TIMES, CONTROL)  # the kinds of rows that a stage works on
PAGE_BITS = 16  # of a page id; the number of the key domain is above them

# Shared by all key groups that a worker process serves.
_PROGRAMS = Programs()


@dataclass(slots=True)
class Progress:
    """What a key group remembers of itself from one micro-batch to the next."""

    rulebook: str = ""
    watermark_ms: int = TIME_MS_MIN
    times: PartitionTimes = field(default_factory=dict)
    deadlines: dict[int, int] = field(default_factory=dict)  # page id → earliest expiry
    waiting_ms: int | None = None  # earliest event that waits for the watermark
    seen: dict[int, list[int]] = field(default_factory=dict)  # domain → buckets of ids

    def to_bytes(self) -> bytes:
        values = [self.rulebook, self.watermark_ms, self.times, self.deadlines, self.waiting_ms, self.seen]
        return orjson.dumps(values, option=orjson.OPT_NON_STR_KEYS)

    @staticmethod
    def from_bytes(data: bytes) -> Progress:
        rulebook, watermark_ms, times, pages, waiting_ms, seen = orjson.loads(data)
        return Progress(
            rulebook,
            watermark_ms,
            {name: (ms, behind) for name, (ms, behind) in times.items()},
            {int(page): ms for page, ms in pages.items()},
            waiting_ms,
            {int(domain): buckets for domain, buckets in seen.items()},
        )


class MatchProcessor(StatefulProcessor):
    """transformWithState's processor for one job.

    `level`: which of the rules (rulebook/levels.py). The first stage tells what became of records, each hands on all
    that the next one needs.
    """

    def __init__(self, rules: JobRules, level: int) -> None:
        self._job = rules.job
        self._level = level
        self._rules_of_job = rules

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._progress_state = handle.getValueState("progress", "content binary")
        self._pages = handle.getMapState("pages", "page int", "content binary")
        self._waiting = handle.getMapState("waiting", "domain int", "content binary")
        self._seen = handle.getMapState("seen", "domain int, bucket bigint", "content binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Called once a micro-batch for each key group that has rows."""
        batches: dict[int, list[EventBatch]] = {}
        controls: list[str] = []
        times: PartitionTimes = {}
        is_last = self._level + 1 == self._job.levels_count
        for row in rows:
            if row.kind not in _TAKEN or not is_last:
                yield _row((key[0], row.kind, row.domain, row.order, bytes(row.payload)))
            if row.kind == EVENTS:
                batches.setdefault(row.domain, []).append(decode_batch(bytes(row.payload)))
            elif row.kind == TIMES:
                times = merged(times, orjson.loads(bytes(row.payload)))
            elif row.kind == CONTROL:
                controls.append(bytes(row.payload).decode())
        if batches or controls or times:
            for found in self._step(key[0], batches, told(self._rules_of_job, tuple(sorted(controls))), times):
                yield _row(found)

    def close(self) -> None:
        """Nothing is held between micro-batches but caches."""

    # ------------------------------------------------------------------------------------------------ one step

    def _step(
        self, group: int, batches: dict[int, list[EventBatch]], controls: tuple[bytes, ...], times: PartitionTimes
    ) -> Iterator[PackedRow]:
        job, is_first = self._job, self._level == 0
        progress = self._load_progress()
        output = StepOutput()
        # The watermark that this micro-batch begins with, the same in every key group: what was matched before lies
        # below or at it, and what comes now is late by it. What came now moves it only after that.
        before_ms, digest = progress.watermark_ms, progress.rulebook
        rulebook, letters = self._rules(progress, controls, before_ms, group, output)
        for letter in letters if is_first else ():
            yield group, DEAD, 0, 0, letter
        progress.times = merged(progress.times, times)
        watermark_ms = max(progress.watermark_ms, watermark_of(progress.times, job.lateness_ms, job.idle_ms))
        progress.watermark_ms = watermark_ms
        fresh, late = on_time(job, self._without_duplicates(progress, batches, output), before_ms, output)
        if not is_first:  # the first stage has told already what is behind, or was here before
            output.counters.clear()
        elif late:
            yield group, LATE, 0, 0, json.dumps(late).encode()
        released = fresh if job.order == ARRIVAL else self._reorder(progress, fresh, watermark_ms)
        programs = _PROGRAMS.of(rulebook.rulebook, job.schema, self._level)
        for number, domain in enumerate(job.domains):
            batch = released.get(number)
            if domain in programs:
                self._match_domain(progress, number, programs[domain], batch, watermark_ms, output)
            else:
                if is_first and batch is not None and domain not in rulebook.rulebook.domains():
                    output.counters["events_without_rule"] += len(batch)
                self._drop_pages(progress, number, output)
        # Not before: events that waited may belong to a version that is over by now.
        after = rulebook
        if rulebook.forget_ms <= watermark_ms:
            after = forgotten(self._rules_of_job, rulebook, watermark_ms)
            self._keep_rulebook(progress, after)
        if is_first and group == 0 and progress.rulebook != digest:
            # What this micro-batch has matched may be held back by what is forgotten at its end.
            status = {**rule_status(after.rulebook), "policies": Policies.of(rulebook.rulebook).to_json()}
            yield group, STATUS, 0, 0, orjson.dumps(status)
        self._progress_state.update((progress.to_bytes(),))
        alerts = output.alert_table()
        if alerts.num_rows:
            yield group, ALERTS, 0, 0, encode_alerts(alerts)
        if self._level + 1 < job.levels_count:
            for events in output.produced:
                yield from produced_rows(job, events)
        counters = {name: count for name, count in output.counters.items() if count}
        if counters:
            yield group, COUNTERS, 0, 0, json.dumps(counters).encode()
        if is_first and group == 0 and watermark_ms > TIME_MS_MIN:
            told = json.dumps({"ms": watermark_ms, "partitions": progress.times}).encode()
            yield group, WATERMARK, 0, 0, told

    def _load_progress(self) -> Progress:
        stored = self._progress_state.get()
        return Progress() if stored is None else Progress.from_bytes(bytes(stored[0]))

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
                letters = (*change.dead_letters, *beyond_levels(after.rulebook, self._job.levels_count))
                output.counters.update(change.counters)
        self._keep_rulebook(progress, after)
        return after, letters

    def _keep_rulebook(self, progress: Progress, rulebook: KnownRulebook) -> None:
        if rulebook.digest != progress.rulebook:
            keep(self._rules_of_job, rulebook)
            progress.rulebook = rulebook.digest

    # -------------------------------------------------------------------------------------------------- events

    def _without_duplicates(
        self, progress: Progress, batches: dict[int, list[EventBatch]], output: StepOutput
    ) -> dict[int, list[EventBatch]]:
        """The events whose ids have not been seen, if the job looks for duplicates; it forgets ids that are too old."""
        window_ms = self._job.dedup_ms
        if window_ms == 0:
            return batches
        fresh: dict[int, list[EventBatch]] = {}
        oldest = duplicates.oldest_bucket(progress.watermark_ms, window_ms)
        for number, parts in batches.items():
            batch = concat_batches(parts)
            hashes = duplicates.event_hashes(batch)
            is_new = duplicates.first_of_each(hashes)
            buckets = batch.time_ms // duplicates.bucket_width(window_ms)
            held = set(progress.seen.get(number, ()))
            for bucket in np.unique(buckets[buckets >= oldest]).tolist():
                here = buckets == bucket
                stored = self._seen.getValue((number, bucket)) if bucket in held else None
                kept = duplicates.from_bytes(bytes(stored[0]) if stored is not None else b"")
                is_new[here] &= ~duplicates.are_known(hashes[here], kept)
                added = hashes[here & is_new]
                if len(added):
                    self._seen.updateValue((number, bucket), (duplicates.to_bytes(np.concatenate([kept, added])),))
                    held.add(bucket)
            for bucket in [bucket for bucket in held if bucket < oldest]:
                self._seen.removeKey((number, bucket))
                held.remove(bucket)
            progress.seen[number] = sorted(held)
            if not is_new.all():
                output.counters["duplicates"] += first_seen(self._job, number, batch.take(~is_new))
                batch = batch.take(is_new)
            fresh[number] = [batch]
        return fresh

    def _reorder(self, progress: Progress, fresh: dict[int, EventBatch], watermark_ms: int) -> dict[int, EventBatch]:
        """Hold back what the watermark has not passed; bring out what it has."""
        # What a pattern produces may have the time of an event that is still to come, and stands behind it.
        at_once = self._job.lateness_ms == 0 and len(progress.times) == 1 and self._level == 0
        bound_ms = due_before(watermark_ms, at_once=at_once)
        due = progress.waiting_ms is not None and progress.waiting_ms < bound_ms
        released: dict[int, EventBatch] = {}
        earliest: list[int] = []
        for number in range(len(self._job.domains)):
            if number not in fresh and not due:
                continue
            stored = self._waiting.getValue((number,)) if progress.waiting_ms is not None else None
            parts = [conformed(decode_batch(bytes(stored[0])), self._job.schema)] if stored is not None else []
            parts += [fresh[number]] if number in fresh else []
            if not parts:
                continue
            batch = concat_batches(parts)
            ready = batch.time_ms < bound_ms
            if ready.any():
                released[number] = batch.take(ready)
            if ready.all():
                if stored is not None:
                    self._waiting.removeKey((number,))
                continue
            rest = batch.take(~ready)
            earliest.append(int(rest.time_ms.min()))
            self._waiting.updateValue((number,), (encode_batch(rest),))
        if not due and progress.waiting_ms is not None:
            earliest.append(progress.waiting_ms)  # domains that were not looked at hold nothing that is due
        progress.waiting_ms = min(earliest, default=None)
        return released

    def _match_domain(
        self, progress: Progress, number: int, program: Program, batch: EventBatch | None, watermark_ms: int,
        output: StepOutput,
    ) -> None:  # fmt: skip
        """Read the touched and the due pages of a domain, advance them together, write them back."""
        job = self._job
        touched: set[int] = set()
        if batch is not None:
            touched = {int(p) for p in np.unique(key_pages(batch.key, job.groups_count, job.pages_count))}
        base = number << PAGE_BITS
        touched |= {p - base for p, ms in progress.deadlines.items() if p >> PAGE_BITS == number and ms <= watermark_ms}
        if not touched:
            return
        states: list[KeyedState] = []
        runs_before = 0
        for page in sorted(touched):
            stored = self._pages.getValue((base + page,)) if base + page in progress.deadlines else None
            if stored is not None:
                fitted, orphans = fit(decode_page(bytes(stored[0])), program)
                output.counters["runs_orphaned"] += orphans
                runs_before += len(fitted) + orphans
                states.append(fitted)
        before = concat_states(states, program.row_registers) if states else None
        after = match_step(program, before, empty_batch(job.schema) if batch is None else batch, watermark_ms, output)
        output.counters["runs"] += len(after) - runs_before  # so the job's total is the number of runs alive
        self._write_pages(progress, base, touched, after, program)

    def _write_pages(
        self, progress: Progress, base: int, touched: set[int], after: KeyedState, program: Program
    ) -> None:
        job = self._job
        page_of_key = key_pages(after.keys, job.groups_count, job.pages_count)
        for page in sorted(touched):
            wanted = page_of_key == page
            share = after if wanted.all() else select_keys(after, wanted, program.row_registers)
            deadline_ms = page_deadline_ms(program, share)
            if deadline_ms is not None:
                self._pages.updateValue((base + page,), (encode_page(share),))
                progress.deadlines[base + page] = deadline_ms
            elif base + page in progress.deadlines:
                self._pages.removeKey((base + page,))
                del progress.deadlines[base + page]

    def _drop_pages(self, progress: Progress, number: int, output: StepOutput) -> None:
        """Nothing is matched by this key any more: its runs belong to no rule."""
        for page in [page for page in progress.deadlines if page >> PAGE_BITS == number]:
            stored = self._pages.getValue((page,))
            assert stored is not None, "a page with a deadline is stored"
            orphans = len(decode_page(bytes(stored[0])))
            output.counters["runs_orphaned"] += orphans
            output.counters["runs"] -= orphans
            self._pages.removeKey((page,))
            del progress.deadlines[page]


def _row(packed: PackedRow) -> Row:
    group, kind, domain, order, payload = packed
    return Row(key_group=group, kind=kind, domain=domain, order=order, payload=payload)
