"""The payments of the day → topics, ten minutes at a time, and at eleven o'clock a new rule.

Tested by: tests/demo/test_demo.py, tests/cli/test_main.py
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from cep.base.errors import CepError
from cep.base.text import utc_text
from cep.demo.stream import DAY_MS, HOUR_MS, MINUTE_MS, START_MS, Stream, json_lines
from cep.model.rule import HeartbeatRecord, UpsertRecord

PAYMENTS, CONTROL = "payments", "rules"
EFFECTIVE_MS = START_MS + 12 * HOUR_MS  # from when the late rule is in force
SLICE_MS = 10 * MINUTE_MS
_PUBLISHED_AT_MS = START_MS + 11 * HOUR_MS
# The limit of payments sent and not yet matched, as a share of all. The topics could hold more, but a viewer wants to
# see alerts as they come.
_AHEAD_SHARE = 1 / 8
_WAIT_S = 180
_POLL_S = 0.02


class Topics(Protocol):
    """The place to which the feed sends: Kafka, or the memory of this process."""

    def create(self, topic: str) -> None: ...

    def send(self, topic: str, records: Iterable[tuple[str, bytes]]) -> None: ...


class Report(Protocol):
    """The report of a micro-batch, by any runner."""

    @property
    def alerts(self) -> pa.Table: ...

    @property
    def totals(self) -> Counter[str]: ...


@dataclass(slots=True)
class Watch:
    """The reports of the live job so far, and a way to wait for more."""

    alerts: list[pa.Table] = field(default_factory=list)
    totals: Counter[str] = field(default_factory=Counter)
    reason_of_end: Callable[[], str | None] = lambda: None

    def take(self, report: Report) -> None:
        """Add the report of a micro-batch."""
        self.alerts.append(report.alerts)
        self.totals = Counter(report.totals)

    def wait(self, goal: str, is_done: Callable[[], bool]) -> None:
        """Wait until the job has come so far. Raises: CepError if it stops before, or takes too long."""
        deadline_s = time.monotonic() + _WAIT_S
        while not is_done():
            reason = self.reason_of_end()
            if reason is not None:
                raise CepError(f"the live job stopped before {goal}: {reason}")
            if time.monotonic() > deadline_s:
                raise CepError(f"the live job took more than {_WAIT_S} s before {goal}")
            time.sleep(_POLL_S)


class Feed:
    """Sends the day slice by slice and a rule on the way. Waits where the live job has to catch up."""

    def __init__(self, topics: Topics, stream: Stream, console: Console, watch: Watch) -> None:
        self._topics = topics
        self._console = console
        self._watch = watch
        self._times = stream.payments["event_time"].to_numpy().astype("datetime64[ms]").astype(np.int64)
        self._records = list(zip(stream.payments["card_id"].to_pylist(), json_lines(stream.payments), strict=True))
        self._sent_count = 0
        for topic in (PAYMENTS, CONTROL):
            topics.create(topic)

    def send_day(self, late_rule: UpsertRecord, seconds: float) -> None:
        """Send the payments and publish the rule on the way. End with a heartbeat, so that nothing waits."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True) as bar:
            task = bar.add_task("the job starts", total=len(self._records))
            self._send_until(START_MS + SLICE_MS)  # including events from before the day
            self._watch.wait("its first payments", lambda: self._matched_count > 0)
            last_ms = int(self._times[-1])
            ends = range(START_MS + 2 * SLICE_MS, last_ms + 2 * SLICE_MS, SLICE_MS)
            pause_s = seconds / len(ends)
            ahead_max = int(len(self._records) * _AHEAD_SHARE)
            for end_ms in ends:
                next_s = time.monotonic() + pause_s
                self._send_until(end_ms)
                if end_ms == _PUBLISHED_AT_MS:
                    self._publish(late_rule)
                self._show(bar, task, end_ms)
                self._watch.wait("it caught up", lambda: self._sent_count - self._matched_count < ahead_max)
                time.sleep(max(0.0, next_s - time.monotonic()))
            self._watch.wait("all payments", lambda: self._matched_count == self._sent_count)
            self._show(bar, task, last_ms)
            heartbeat = HeartbeatRecord(event_time=utc_text(last_ms + DAY_MS))
            self._topics.send(CONTROL, [("heartbeat", heartbeat.to_json())])
            self._watch.wait("the heartbeat", lambda: self._watch.totals["control_heartbeat"] > 0)
        self._console.print(f"{self._matched_count:,} payments matched, no restart; a heartbeat ended the day")

    @property
    def _matched_count(self) -> int:
        return self._watch.totals["records"]

    def _send_until(self, end_ms: int) -> None:
        end = int(np.searchsorted(self._times, end_ms))
        self._topics.send(PAYMENTS, self._records[self._sent_count : end])
        self._sent_count = end

    def _publish(self, rule: UpsertRecord) -> None:
        """Publish the rule and wait for it: it must reach the job before the first payment that it is to see."""
        self._topics.send(CONTROL, [(rule.id, rule.to_json())])
        time, effective = utc_text(_PUBLISHED_AT_MS)[11:16], utc_text(EFFECTIVE_MS)[11:16]
        self._console.print(f"[bold green]{time} rule {rule.id} is published, in force from {effective}[/bold green]")
        self._watch.wait("the new rule", lambda: self._watch.totals["control_applied"] > 0)

    def _show(self, bar: Progress, task: TaskID, now_ms: int) -> None:
        alerts_count = sum(alerts.num_rows for alerts in self._watch.alerts)
        text = f"{utc_text(now_ms)[11:16]}  {alerts_count} alerts"
        bar.update(task, completed=min(self._matched_count, len(self._records)), description=text)
