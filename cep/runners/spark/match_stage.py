"""Second stage of the live job: packed rows of one key group → alerts, with keyed state in Spark's state store.

    state variable        holds                                             touched
    rulebook  ValueState  the key group's rulebook                          read once a process, written on a change
    progress  ValueState  rulebook fingerprint, heartbeat, deadlines        read and written once a micro-batch
    pages     MapState    (domain << 16 | page) → runs of many keys         each touched page, once a micro-batch
    waiting   MapState    domain → events that the watermark has not passed only where lateness is allowed

Tested by: tests/runners/spark/test_live.py
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from cep.base.limits import TIME_MS_MIN
from cep.columnar.batch import EventBatch, concat_batches, empty_batch
from cep.columnar.codec import decode_batch, encode_batch
from cep.columnar.decode import Poison
from cep.columnar.route import key_pages
from cep.engine.keyed_state import KeyedState, concat_states, fit, select_keys
from cep.model.rule import HeartbeatRecord, parse_control
from cep.nfa.program import Program
from cep.rulebook.rulebook import Rulebook
from cep.runners.job import Job, Programs, StepOutput, match_step
from cep.runners.spark.packed import ALERTS, CONTROL, COUNTERS, DEAD, EVENTS, LATE, dead_letter, encode_alerts
from cep.state.pages import decode_page, encode_page

OUTPUT_SCHEMA = "kind string, payload binary"
_RULEBOOKS_KEPT = 64
_PAGE_BITS = 16

# Shared by all key groups that a worker process serves.
_PROGRAMS = Programs()
_RULEBOOKS: OrderedDict[str, Rulebook] = OrderedDict()
_CHANGES: OrderedDict[tuple[Any, ...], tuple[Rulebook, list[bytes], Counter[str]]] = OrderedDict()


@dataclass(slots=True)
class _Progress:
    """What a key group remembers of itself from one micro-batch to the next."""

    rulebook: str = ""
    heartbeat_ms: int = TIME_MS_MIN
    deadlines: dict[int, int] = field(default_factory=dict)  # page id → earliest expiry
    waiting_ms: int | None = None  # earliest event that waits for the watermark
    timer_ms: int | None = None

    def to_bytes(self) -> bytes:
        pages = {str(page): ms for page, ms in self.deadlines.items()}
        values = [self.rulebook, self.heartbeat_ms, pages, self.waiting_ms, self.timer_ms]
        return json.dumps(values).encode()

    @staticmethod
    def from_bytes(data: bytes) -> _Progress:
        rulebook, heartbeat_ms, pages, waiting_ms, timer_ms = json.loads(data)
        return _Progress(rulebook, heartbeat_ms, {int(p): ms for p, ms in pages.items()}, waiting_ms, timer_ms)


class MatchProcessor(StatefulProcessor):
    """transformWithState's processor for one job. `initial` are the rules that a new key group begins with."""

    def __init__(self, job: Job, initial: tuple[bytes, ...]) -> None:
        self._job = job
        self._initial = initial

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._rulebook_state = handle.getValueState("rulebook", "content binary")
        self._progress_state = handle.getValueState("progress", "content binary")
        self._pages = handle.getMapState("pages", "page int", "content binary")
        self._waiting = handle.getMapState("waiting", "domain int", "content binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Called once a micro-batch for each key group that has rows."""
        batches: dict[int, list[EventBatch]] = {}
        controls: list[tuple[int, bytes]] = []
        for row in rows:
            if row.kind == EVENTS:
                batches.setdefault(row.domain, []).append(decode_batch(bytes(row.payload)))
            elif row.kind == CONTROL:
                controls.append((row.order, bytes(row.payload)))
            else:
                yield Row(kind=row.kind, payload=bytes(row.payload))
        if batches or controls:
            yield from self._step(key[0], batches, [r for _, r in sorted(controls)], _watermark(timerValues))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Called when the watermark has passed the time that the key group asked for."""
        yield from self._step(key[0], {}, [], _watermark(timerValues), fired_ms=expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        """Nothing is held between micro-batches but caches."""

    # ------------------------------------------------------------------------------------------------ one step

    def _step(
        self, group: int, batches: dict[int, list[EventBatch]], controls: list[bytes], spark_watermark_ms: int,
        fired_ms: int | None = None,
    ) -> Iterator[Row]:  # fmt: skip
        progress = self._load_progress()
        if fired_ms is not None and progress.timer_ms == fired_ms:
            progress.timer_ms = None
        output = StepOutput()
        # What was matched before is bounded by the watermark that this micro-batch begins with, in every key group.
        before_ms = max(spark_watermark_ms, progress.heartbeat_ms)
        rulebook, letters = self._apply(progress, controls, before_ms if before_ms > 0 else None, group, output)
        watermark_ms = max(spark_watermark_ms, progress.heartbeat_ms)
        for letter in letters:
            yield Row(kind=DEAD, payload=letter)
        released, late = self._release(progress, batches, watermark_ms, output)
        if late is not None:
            yield Row(kind=LATE, payload=late)
        programs = _PROGRAMS.of(rulebook, self._job.schema)
        for number, domain in enumerate(self._job.domains):
            if domain in programs:
                self._match_domain(progress, number, programs[domain], released.get(number), watermark_ms, output)
            elif number in released:
                output.counters["events_without_rule"] += len(released[number])
        self._set_timer(progress, watermark_ms)
        self._progress_state.update((progress.to_bytes(),))
        alerts = output.alert_table()
        if alerts.num_rows:
            yield Row(kind=ALERTS, payload=encode_alerts(alerts))
        if output.counters:
            yield Row(kind=COUNTERS, payload=json.dumps(output.counters).encode())

    def _load_progress(self) -> _Progress:
        stored = self._progress_state.get()
        return _Progress() if stored is None else _Progress.from_bytes(bytes(stored[0]))

    def _set_timer(self, progress: _Progress, watermark_ms: int) -> None:
        """One timer a key group: the earliest deadline of its runs and of the events that wait."""
        times = list(progress.deadlines.values())
        if progress.waiting_ms is not None:
            times.append(progress.waiting_ms + 1)  # an event is released when the watermark is past it
        wanted = min((t for t in times if t > watermark_ms), default=None)
        if wanted == progress.timer_ms or (wanted is not None and wanted >= _TIMER_MS_MAX):
            return
        if progress.timer_ms is not None:
            self._handle.deleteTimer(progress.timer_ms)
        if wanted is not None:
            self._handle.registerTimer(wanted)
        progress.timer_ms = wanted

    # ------------------------------------------------------------------------------------------------ rulebook

    def _apply(
        self, progress: _Progress, controls: list[bytes], seen_ms: int | None, group: int, output: StepOutput
    ) -> tuple[Rulebook, list[bytes]]:
        rulebook = self._load_rulebook(progress)
        if not controls:
            return rulebook, []
        known = (rulebook.fingerprint, seen_ms, tuple(controls))
        if known not in _CHANGES:
            changed = Rulebook.from_bytes(rulebook.to_bytes(), self._job.schema, self._job.domains)
            _CHANGES[known] = (changed, *_apply_all(changed, controls, seen_ms))
            _limit(_CHANGES)
        changed, letters, counters = _CHANGES[known]
        for record in controls:
            parsed, _ = parse_control(record)
            if isinstance(parsed, HeartbeatRecord):
                progress.heartbeat_ms = max(progress.heartbeat_ms, parsed.event_time_ms)
        progress.rulebook = changed.fingerprint
        self._rulebook_state.update((changed.to_bytes(),))
        _RULEBOOKS[changed.fingerprint] = changed
        _limit(_RULEBOOKS)
        if group != 0:
            return changed, []  # every key group sees the same records; one of them reports
        output.counters.update(counters)
        return changed, letters

    def _load_rulebook(self, progress: _Progress) -> Rulebook:
        if progress.rulebook in _RULEBOOKS:
            return _RULEBOOKS[progress.rulebook]
        stored = self._rulebook_state.get()
        if stored is not None:
            rulebook = Rulebook.from_bytes(bytes(stored[0]), self._job.schema, self._job.domains)
        else:
            rulebook = Rulebook(self._job.schema, self._job.domains)
            _apply_all(rulebook, list(self._initial), None)
            self._rulebook_state.update((rulebook.to_bytes(),))
        progress.rulebook = rulebook.fingerprint
        _RULEBOOKS[rulebook.fingerprint] = rulebook
        _limit(_RULEBOOKS)
        return rulebook

    # -------------------------------------------------------------------------------------------------- events

    def _release(
        self, progress: _Progress, batches: dict[int, list[EventBatch]], watermark_ms: int, output: StepOutput
    ) -> tuple[dict[int, EventBatch], bytes | None]:
        """The events whose turn it is, by domain, and the late ones of this micro-batch."""
        late: list[dict[str, Any]] = []
        fresh: dict[int, EventBatch] = {}
        for number, parts in batches.items():
            batch = concat_batches(parts)
            on_time = batch.time_ms >= watermark_ms
            if not on_time.all():
                late += _late_letters(self._job, number, batch.take(~on_time))
                batch = batch.take(on_time)
            fresh[number] = batch
        if late:
            output.counters["late_events"] += len(late)
        if self._job.lateness_ms > 0:
            fresh = self._reorder(progress, fresh, watermark_ms)
        return {n: b for n, b in fresh.items() if len(b)}, json.dumps(late).encode() if late else None

    def _reorder(self, progress: _Progress, fresh: dict[int, EventBatch], watermark_ms: int) -> dict[int, EventBatch]:
        """Hold back what the watermark has not passed; bring out what it has."""
        due = progress.waiting_ms is not None and progress.waiting_ms < watermark_ms
        released: dict[int, EventBatch] = {}
        earliest: list[int] = []
        for number in range(len(self._job.domains)):
            if number not in fresh and not due:
                continue
            stored = self._waiting.getValue((number,)) if progress.waiting_ms is not None else None
            parts = [decode_batch(bytes(stored[0]))] if stored is not None else []
            parts += [fresh[number]] if number in fresh else []
            if not parts:
                continue
            batch = concat_batches(parts)
            ready = batch.time_ms < watermark_ms
            released[number] = batch.take(ready)
            rest = batch.take(~ready)
            if len(rest):
                earliest.append(int(rest.time_ms.min()))
            self._waiting.updateValue((number,), (encode_batch(rest),))
        if not due and progress.waiting_ms is not None:
            earliest.append(progress.waiting_ms)
        progress.waiting_ms = min(earliest, default=None)
        return released

    def _match_domain(
        self, progress: _Progress, number: int, program: Program, batch: EventBatch | None, watermark_ms: int,
        output: StepOutput,
    ) -> None:  # fmt: skip
        """Read the touched and the due pages of a domain, advance them together, write them back."""
        job = self._job
        touched: set[int] = set()
        if batch is not None:
            touched = {int(p) for p in np.unique(key_pages(batch.key, job.groups_count, job.pages_count))}
        base = number << _PAGE_BITS
        touched |= {p - base for p, ms in progress.deadlines.items() if p >> _PAGE_BITS == number and ms <= watermark_ms}
        if not touched:
            return
        states: list[KeyedState] = []
        for page in sorted(touched):
            stored = self._pages.getValue((base + page,)) if base + page in progress.deadlines else None
            if stored is not None:
                fitted, orphans = fit(decode_page(bytes(stored[0])), program)
                output.counters["runs_orphaned"] += orphans
                states.append(fitted)
        before = concat_states(states, program.row_registers) if states else None
        after = match_step(program, before, empty_batch(job.schema) if batch is None else batch, watermark_ms, output)
        self._write_pages(progress, base, touched, after, program)

    def _write_pages(self, progress: _Progress, base: int, touched: set[int], state: KeyedState, program: Program) -> None:
        job = self._job
        page_of_key = key_pages(state.keys, job.groups_count, job.pages_count)
        for page in sorted(touched):
            wanted = page_of_key == page
            if not wanted.any():
                if base + page in progress.deadlines:
                    self._pages.removeKey((base + page,))
                    del progress.deadlines[base + page]
                continue
            share = state if len(touched) == 1 else select_keys(state, wanted, program.row_registers)
            self._pages.updateValue((base + page,), (encode_page(share),))
            expiry_ms = share.expiry_min
            assert expiry_ms is not None, "a page without runs is removed"
            progress.deadlines[base + page] = expiry_ms


_TIMER_MS_MAX = 2**52  # runs without a window never expire; Spark's timers are in µs inside


def _watermark(timer_values: Any) -> int:
    return int(timer_values.getCurrentWatermarkInMs())


def _limit(cache: OrderedDict[Any, Any]) -> None:
    while len(cache) > _RULEBOOKS_KEPT:
        cache.popitem(last=False)


def _apply_all(rulebook: Rulebook, records: list[bytes], seen_ms: int | None) -> tuple[list[bytes], Counter[str]]:
    """Apply control records in order; returns dead letters for those that are refused, and counters."""
    letters: list[bytes] = []
    counters: Counter[str] = Counter()
    for record in records:
        parsed, problems = parse_control(record)
        if parsed is None:
            counters["control_unreadable"] += 1
            reason = "; ".join(str(p) for p in problems)
            letters.append(dead_letter(Poison("control_unreadable", reason, record.decode("utf-8", "backslashreplace"))))
            continue
        outcome = rulebook.apply(parsed, seen_ms)
        counters[f"control_{outcome.kind}"] += 1
        if outcome.late_ms:
            counters["rule_late_ms"] += outcome.late_ms
        if outcome.kind == "refused":
            detail = "; ".join([outcome.reason, *(f"{d.code} {d.message}" for d in outcome.diagnostics)])
            letters.append(dead_letter(Poison("control_refused", detail, record.decode("utf-8", "backslashreplace"))))
    return letters, counters


def _late_letters(job: Job, number: int, batch: EventBatch) -> list[dict[str, Any]]:
    """What is told of an event that came behind the watermark."""
    names = [e.name for e in job.schema.event_types]
    domain = ",".join(job.domains[number])
    return [
        {"event_id": i, "event_type": names[t], "event_time_ms": ms, "key_domain": domain, "key": k}
        for i, t, ms, k in zip(
            batch.event_id.to_pylist(), batch.event_type.tolist(), batch.time_ms.tolist(), batch.key.to_pylist(), strict=True
        )
    ]


