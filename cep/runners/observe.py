"""The doings of a job → its log on standard error, and the metrics and health that http.py serves.

    totals (progress.json) ─▶ cep_events_total, cep_late_events_total, cep_poison_total{code="…"},
                              cep_alerts_total{rule="…", version="…"}, …: every counter there is, under its own name
    gauges                 ─▶ cep_runs, cep_state_bytes, cep_watermark_delay_seconds, cep_micro_batch_seconds{phase="…"}

Every runner uses it; nothing here knows Spark. No payload goes through: fields of a log line are numbers and names.
Totals go on over restarts, and so do the counters. A reader never waits for the job, nor the job for a reader.
Tested by: tests/runners/test_observe.py
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TextIO

import orjson
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cep.base.limits import EVENT_TIME_MS_MIN
from cep.model.rule import utc_text

# What stands in the brackets of a counter's name: `poison[missing_field]`, `alerts[card_testing@3]`.
_LABELS: Mapping[str, tuple[str, ...]] = {
    "poison": ("code",), "unkeyed": ("key",), "alerts": ("rule", "version"),
    "rule_events": ("rule", "version"), "rule_steps": ("rule", "version"),
    "rule_overflows": ("rule", "version"),
    "rule_runs_evicted": ("rule", "version"),
}  # fmt: skip
_COUNTER = re.compile(r"(\w+)(?:\[(.*)\])?")
# Counters that stand at 0 before the first one is counted, so that a rate has a beginning and an alarm finds its name.
_TEXTS: Mapping[str, str] = {
    "records": "Records read, also those that cannot be decoded.",
    "events": "Records that could be decoded.",
    "late_events": "Events behind the watermark, set aside.",
    "events_ahead": "Events dated too far ahead of the clock, set aside.",
    "duplicates": "Events that have come before, ignored.",
    "matches": "Matches completed; rules in shadow, suppressed and snoozed ones among them.",
    "runs_started": "Partial matches begun.",
    "runs_expired": "Partial matches that have ended without a match because their time was over.",
    "runs_evicted": "Partial matches lost to the limit of a rule on one key.",
    "matches_dropped": "Matches lost to the limit of one event.",
}
# Totals that rise and fall.
_GAUGES: Mapping[str, str] = {"runs": "Partial matches alive."}


@dataclass(eq=False)
class Observed(Collector):
    """The latest that is known of a job. Threads of the runner write it, the server's read it."""

    stalled_ms: int
    totals: Counter[str] = field(default_factory=Counter)
    gauges: dict[str, float] = field(default_factory=dict)
    phases_ms: dict[str, float] = field(default_factory=dict)
    batch_id: int = -1
    watermark_ms: int | None = None
    failure: str | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _alive_s: float = field(default_factory=time.monotonic)

    def finished(
        self, batch_id: int, totals: Mapping[str, int], watermark_ms: int | None = None,
        phases_ms: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        """Note that a micro-batch is done.

        `totals` are those of the job so far. Without a watermark the last one stays.
        """
        with self._lock:
            self.batch_id, self.totals, self._alive_s = batch_id, Counter(totals), time.monotonic()
            self.watermark_ms = self.watermark_ms if watermark_ms is None else watermark_ms
            self.phases_ms.update(phases_ms or {})

    def measured(self, gauges: Mapping[str, float], phases_ms: Mapping[str, float]) -> None:
        """Gauges by name (state_bytes …), and what the latest micro-batch took, by phase."""
        with self._lock:
            self.gauges.update(gauges)
            self.phases_ms.update(phases_ms)

    def idle(self) -> None:
        """There is nothing to do, which is not the same as being stuck."""
        with self._lock:
            self._alive_s = time.monotonic()

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Return True if the job gets on, and the reasons."""
        with self._lock:
            silent_s = time.monotonic() - self._alive_s
            is_healthy = self.failure is None and silent_s * 1_000 < self.stalled_ms
            answer = {"healthy": is_healthy, "batch_id": self.batch_id, "seconds_since_progress": round(silent_s, 1)}
            return is_healthy, answer if self.failure is None else {**answer, "failure": self.failure}

    def collect(self) -> Iterator[Metric]:
        """For prometheus_client: all of it as metric families."""
        with self._lock:
            totals, gauges, phases = dict(self.totals), dict(self.gauges), dict(self.phases_ms)
            batch_id, watermark_ms = self.batch_id, self.watermark_ms
        if watermark_ms is not None and watermark_ms >= EVENT_TIME_MS_MIN:
            gauges["watermark_delay_seconds"] = time.time() - watermark_ms / 1_000
        yield from _counters(totals)
        for name, text in _GAUGES.items():
            yield GaugeMetricFamily(f"cep_{name}", text, value=totals.get(name, 0))
        for name, value in gauges.items():
            yield GaugeMetricFamily(f"cep_{name}", f"{name.replace('_', ' ').capitalize()}.", value=value)
        yield GaugeMetricFamily("cep_micro_batch_id", "The latest micro-batch that is done.", value=batch_id)
        taken = GaugeMetricFamily(
            "cep_micro_batch_seconds", "What the latest micro-batch took, by phase.", labels=["phase"]
        )
        for phase, ms in phases.items():
            taken.add_metric([phase], ms / 1_000)
        yield taken


@dataclass(frozen=True, slots=True)
class Log:
    """Lines on standard error: sentences for a person, or JSON objects (time, event, fields) for a machine."""

    form: Literal["text", "json"]
    stream: TextIO

    def tell(self, event: str, sentence: str, **fields: float | str | None) -> None:
        """One line. `event` is a fixed word, `sentence` the whole for a person, `fields` numbers and names."""
        if self.form == "text":
            print(sentence, file=self.stream, flush=True)
            return
        line = {"time": utc_text(int(time.time() * 1_000)), "event": event, **fields}
        print(orjson.dumps(line).decode(), file=self.stream, flush=True)


def _counters(totals: Mapping[str, int]) -> Iterator[Metric]:
    """Every total as a counter; those that differ only in the brackets are one family."""
    families: dict[str, CounterMetricFamily] = {}
    for full_name, count in sorted({**dict.fromkeys(_TEXTS, 0), **totals}.items()):
        parsed = _COUNTER.fullmatch(full_name)
        assert parsed is not None, full_name
        name, inner = parsed[1], parsed[2]
        if name in _GAUGES:
            continue
        labels = () if inner is None else _LABELS.get(name, ("of",))
        if name not in families:
            families[name] = CounterMetricFamily(f"cep_{name}", _TEXTS.get(name, f"Counter {name}."), labels=labels)
        values = [] if inner is None else inner.split("@") if len(labels) > 1 else [inner]
        families[name].add_metric(values, count)
    yield from families.values()
