"""Second stage of the live job: packed rows of one key group → alerts, with keyed state in Spark's state store.

    part        a micro-batch touches
    progress    all of it, once.
    pages       those with new events or due runs: read if not cached (group_ports.py), then written.
    past        where rules look back, the same pages (group_ports.py).
    segments    new ones, and the ones that a window reaches into.
    waiting     key domains with new or due events (group_ports.py).
    event-ids   where duplicates are looked for: the buckets of the new events.

Every key group has rows in every micro-batch with records: how far each partition was read. So all have the same
watermark, windows close in the same micro-batch, and no timer of Spark is needed.
Tested by: tests/runners/spark/test_live.py, tests/runners/spark/test_future.py
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import orjson
import pyarrow as pa
from pyspark import SparkFiles
from pyspark.sql import Row

from cep.columnar.batch import EventBatch, decode_batch
from cep.lists.store import ListStore
from cep.runners.handover.beginning import Beginning, group_beginning
from cep.runners.output import encode_alerts
from cep.runners.spark import packed as packing
from cep.runners.spark.group_parts import GroupParts
from cep.runners.spark.group_ports import GroupPorts, GroupProgress
from cep.runners.spark.place import SharedFolder
from cep.step import rules as step_rules
from cep.step.dead_letters import evicted_dead_letters
from cep.step.event_time import NOTHING_READ, TimesRead, times_json
from cep.step.step import MicroBatch, Outcome, Progress, step

_NEEDED_KINDS = (packing.EVENTS, packing.TIMES, packing.CONTROL)  # of rows: the stage of every level needs them


class MatchStage:
    """One stage of one job, in one task."""

    def __init__(
        self, rules: step_rules.JobRules, level: int, beginning: tuple[Path, Beginning] | None,
        folder: SharedFolder | None, stored: GroupParts, list_files: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """Prepare the stage of a level (rules that read alerts of lower levels only). `stored` is Spark's state.

        `beginning`: this job's checkpoint, and the state of an earlier job that it continues. `folder`: of the job,
        which the driver and every task must share. `list_files`: lists that Spark has copied to this machine. Raises:
        StoreError if the task sees another folder."""
        if folder is not None:
            folder.check()
        self._job = rules.job
        self._level = level
        self._rules = _with_lists(rules, list_files) if list_files else rules
        self._beginning = beginning
        self._stored = stored

    def rows(self, group: int, rows: Iterator[Row]) -> Iterator[Row]:
        """Match the rows of one key group in one micro-batch with the rules of one level. Rules that read events of
        other rules have a higher level, and match in the next stage. Yield rows for the next stage or the driver:
        results, the rows that this stage does not need, and the ones that higher levels need as well."""
        events: dict[int, list[tuple[str, EventBatch]]] = {}
        controls: list[str] = []
        times = NOTHING_READ
        is_last_level = self._level + 1 == self._job.levels_count
        seen: set[tuple[str, int, str]] = set()
        for row in rows:
            if packing.is_repeated(row, seen):
                continue
            if row.kind not in _NEEDED_KINDS or not is_last_level:  # the last level keeps the rows that it uses
                yield packing.stage_row((group, row.kind, row.domain, row.order, bytes(row.payload)))
            if row.kind == packing.EVENTS:
                events.setdefault(row.domain, []).append((row.order, decode_batch(bytes(row.payload))))
            elif row.kind == packing.TIMES:
                times = times.joined(TimesRead.from_bytes(bytes(row.payload)))
            elif row.kind == packing.CONTROL:
                controls.append(bytes(row.payload).decode())  # the name of the file with rule changes
        if events or controls or times != NOTHING_READ:
            # The clock comes with the events, the rule changes or both. A missing one is the greatest time (NO_CLOCK).
            times = replace(times, now_ms=min(times.now_ms, step_rules.clock_of(controls)))
            records = step_rules.read_records(self._rules, tuple(sorted(controls))) if controls else ()
            arrived = {number: packing.in_arrival_order(batches) for number, batches in events.items()}
            micro_batch = MicroBatch(arrived, records, times)
            for packed in self._step(group, micro_batch):
                yield packing.stage_row(packed)

    def _step(self, group: int, micro_batch: MicroBatch) -> Iterator[packing.PackedRow]:
        """Match one key group with the rules of this level (rules of higher levels read their events, in a later
        stage): load its progress, store the new progress, yield the results."""
        stored = self._load_progress(group)
        can_change = self._rules.store is not None  # rules that may change are stored, each rulebook by its digest
        rulebook = (step_rules.rulebook_of if can_change else step_rules.given_rulebook)(self._rules, stored.rulebook)
        progress = Progress(
            rulebook, stored.watermark_ms, stored.times, stored.since_ms, stored.heartbeat_ms, stored.last_event,
            stored.gap_ms,
        )  # fmt: skip
        ports = GroupPorts(self._rules, self._level, stored, self._stored)
        outcome = step(progress, ports, micro_batch)
        after = outcome.progress
        digest = after.rulebook.digest if can_change else step_rules.given_digest(self._rules)
        is_changed = digest != stored.rulebook
        if is_changed and can_change:
            step_rules.save_rulebook(self._rules, after.rulebook)
        stored.rulebook = digest
        stored.watermark_ms, stored.times, stored.since_ms = after.watermark_ms, after.times, after.since_ms
        stored.heartbeat_ms, stored.last_event = after.heartbeat_ms, after.last_event
        self._stored.progress.put(0, stored.to_bytes())  # 0: a key group has one such entry
        yield from self._matched_rows(group, outcome)
        if self._level == 0 and group == 0:  # all key groups have the same rules and times; one of them reports
            yield from _common_rows(outcome, is_changed=is_changed)

    def _matched_rows(self, group: int, outcome: Outcome) -> Iterator[packing.PackedRow]:
        """Yield the results of a key group as rows: key group, kind, key domain, order, payload. Only events (for a
        later stage) have a key domain; other kinds have 0. None has an order of arrival (NO_ORDER)."""
        if outcome.events_aside:  # late events, and events with a reused id
            yield group, packing.LATE, 0, packing.NO_ORDER, json.dumps(outcome.events_aside).encode()
        for letter in evicted_dead_letters(outcome.evicted):  # about runs that a limit has removed
            yield group, packing.DEAD, 0, packing.NO_ORDER, letter
        if outcome.alerts:
            yield group, packing.ALERTS, 0, packing.NO_ORDER, encode_alerts(pa.concat_tables(outcome.alerts))
        if self._level + 1 < self._job.levels_count:
            for produced in outcome.produced:
                yield from packing.produced_rows(self._job, produced)
        if outcome.counters:
            yield group, packing.COUNTERS, 0, packing.NO_ORDER, json.dumps(outcome.counters).encode()

    def _load_progress(self, group: int) -> GroupProgress:
        data = self._stored.progress.get(0)
        if data is not None:
            return GroupProgress.from_bytes(data)
        return GroupProgress() if self._beginning is None else self._import_beginning(group, *self._beginning)

    def _import_beginning(self, group: int, checkpoint: Path, earlier: Beginning) -> GroupProgress:
        """Copy the state of an earlier job or replay from files of the checkpoint to Spark's state, at the first
        micro-batch of a key group. Return the progress of the key group."""
        initial = group_beginning(checkpoint, earlier, self._job, self._level, group)
        stored, id_buckets = self._stored, dict[int, list[int]]()
        parts = (stored.pages, initial.pages), (stored.past, initial.heads), (stored.waiting, initial.waiting)
        for part, data_by_index in parts:  # index: the id of a page; for waiting events, a key domain
            for index, data in data_by_index.items():
                part.put(index, data)
        # Segments (blocks of past events) by page and number; hashes of earlier ids by domain and time bucket.
        for part, data_by_pair in ((stored.segments, initial.segments), (stored.seen, initial.seen)):
            for (index, number), data in data_by_pair.items():
                part.put(index, data, number)
        for domain, bucket in sorted(initial.seen):
            id_buckets.setdefault(domain, []).append(bucket)  # buckets that have ids, by domain
        waiting_ms = min((int(decode_batch(data).time_ms.min()) for data in initial.waiting.values()), default=None)
        return GroupProgress(
            earlier.rulebook, earlier.watermark_ms, earlier.partition_times(), dict(initial.deadlines), waiting_ms,
            id_buckets, expiry_ms=dict(initial.expiry_ms), since_ms=earlier.since_ms, heartbeat_ms=earlier.heartbeat_ms,
            gap_ms=earlier.gap_ms,
        )  # fmt: skip


@lru_cache
def _with_lists(rules: step_rules.JobRules, list_files: tuple[str, ...]) -> step_rules.JobRules:
    """Name the folder of this machine into which Spark has copied the files of lists."""
    return replace(rules, job_lists=ListStore(Path(SparkFiles.get(list_files[0])).parent))


def _common_rows(outcome: Outcome, *, is_changed: bool) -> Iterator[packing.PackedRow]:
    """Pack the results that all key groups share, so that one reports them: refused rule changes, status, watermark."""
    for letter in outcome.refused:
        yield 0, packing.REFUSED, 0, packing.NO_ORDER, letter  # key group, kind, key domain, order, payload
    if outcome.rule_counters:
        yield 0, packing.COUNTERS, 0, packing.NO_ORDER, json.dumps(outcome.rule_counters).encode()
    progress = outcome.progress
    if is_changed:
        # The policies say which rules suppress alerts of this micro-batch, also rules that it has just removed.
        status = {**step_rules.rule_status(progress.rulebook.rulebook), "policies": outcome.in_force.policies.to_json()}
        yield 0, packing.STATUS, 0, packing.NO_ORDER, orjson.dumps(status)
    if progress.times:
        times = {"ms": progress.watermark_ms, "partitions": times_json(progress.times)}
        yield 0, packing.WATERMARK, 0, packing.NO_ORDER, json.dumps(times).encode()
