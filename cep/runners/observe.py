"""The work of a job → its log on standard error, and the metrics and health that http.py serves.

    totals                 ─▶ cep_events_total, cep_late_events_total, cep_poison_total{code="…"},
                              cep_alerts_total{rule="…", version="…"}, …: every counter there is, under its own name
    gauges                 ─▶ cep_runs, cep_state_bytes, cep_watermark_delay_seconds, cep_micro_batch_seconds{phase="…"}
    lag                    ─▶ cep_lag_records{partition="payments[0]"}
    parts of the job       ─▶ cep_part_up{part="brokers"}, and a line when one stops to be well or is well again

Every runner uses this module, which does not depend on Spark. No payload passes through: fields of a log line are
numbers and names. Totals continue over restarts, and the counters with them. A reader never waits for the job, and the
job never waits for a reader.
Tested by: tests/runners/test_observe.py
"""

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TextIO

import numpy as np
import orjson
import pyarrow as pa
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from cep.base.errors import SinkAwayError
from cep.base.limits import EVENT_TIME_MS_MIN, SENDING_MS_MAX
from cep.base.text import utc_text, visible
from cep.kernels.layout import Int64
from cep.runners import meanings
from cep.sinks.base import SINK_REASONS

_COUNTER = re.compile(r"(\w+)(?:\[(.*)\])?", re.DOTALL)
BROKERS, EVENTS, SINKS, CHECKPOINTS, DISK = "brokers", "events", "sinks", "checkpoints", "disk"
REGISTRY = "registry"
RECORDS = "records"
_LATENCY = "alert_latency_seconds"
_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3_600.0)


@dataclass(slots=True, eq=False)
class Log:
    """Lines on standard error: sentences for a person, or JSON objects (time, event, fields) for a machine."""

    form: Literal["text", "json"]
    stream: TextIO
    is_closed: bool = False

    def close(self) -> None:
        """Drop all later lines: the last lines of a job stay the last, though other threads still run."""
        self.is_closed = True

    def tell(self, event: str, sentence: str, **fields: float | str | None) -> None:
        """Print one line. `event` is a fixed word, `sentence` is for a person, `fields` are numbers and names."""
        if self.is_closed:
            return
        line = {"time": utc_text(int(time.time() * 1_000)), "event": event, **fields}
        text = sentence if self.form == "text" else orjson.dumps(line).decode()
        with suppress(OSError):  # a full disk, or a reader that has gone, does not end a job
            self.stream.write(visible(text) + "\n")  # one write: `print` would let other threads write before the "\n"
            self.stream.flush()


@dataclass(eq=False)
class Latency:
    """Counts the latencies of delivered alerts by bucket, from zero in each process. Several threads need a lock.

    A latency runs from the event time at which a match became certain to the clock at the delivery of its alert.
    """

    counts: Int64 = field(default_factory=lambda: np.zeros(len(_BOUNDS_S) + 1, np.int64))
    sum_s: float = 0.0

    def add(self, alerts: pa.Table, now_ms: int) -> None:
        """Count alerts that are delivered at the clock `now_ms`."""
        if not alerts.num_rows:
            return
        detected_ms = np.asarray(alerts["detected_at"].cast(pa.int64()))
        seconds = np.maximum(now_ms - detected_ms, 0) / 1_000
        np.add.at(self.counts, np.searchsorted(_BOUNDS_S, seconds), 1)
        self.sum_s += float(seconds.sum())

    def family(self) -> HistogramMetricFamily:
        """Return the counts as a metric."""
        totals = np.cumsum(self.counts).tolist()
        names = [*map(floatToGoString, _BOUNDS_S), "+Inf"]
        buckets = [(name, float(count)) for name, count in zip(names, totals, strict=True)]
        return HistogramMetricFamily(
            f"cep_{_LATENCY}", meanings.HISTOGRAMS[_LATENCY], buckets=buckets, sum_value=self.sum_s
        )


@dataclass(eq=False)
class Observed(Collector):
    """The latest that is known of a job. Threads of the runner write it, the server's read it."""

    stalled_ms: int
    log: Log | None = None
    totals: Counter[str] = field(default_factory=Counter)
    gauges: dict[str, float] = field(default_factory=dict)
    memory_bytes: Mapping[str, int] = field(default_factory=dict)  # by part; replaced, never changed
    phases_ms: dict[str, float] = field(default_factory=dict)
    lags: dict[str, int] = field(default_factory=dict)
    positions: Mapping[str, int] = field(default_factory=dict)  # of the events; replaced, never changed
    batch_id: int = -1
    watermark_ms: int | None = None
    failure: str | None = None
    has_begun: bool = False
    sending_since_s: dict[str, float] = field(default_factory=dict)  # by sink: a delivery is under way; monotonic
    sinks_away: dict[str, str] = field(default_factory=dict)  # by name: the reason, a word of SINK_REASONS
    sink_names: tuple[str, ...] = ()
    sink_addresses: Mapping[str, str] = field(default_factory=dict)  # by name, where the name does not say it
    ready_lag_ms: int | None = None  # the time of arriving events that may wait when a job becomes ready; None: any
    has_caught_up: bool = False  # the lag has once been below that since the start
    _backlogs: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    _abandoned: dict[str, int] = field(default_factory=dict)  # alerts that no sink gets, by the sink that is gone
    _logged_sinks: dict[str, tuple[str, float]] = field(default_factory=dict)  # by name: reason and begin (monotonic)
    _troubles: dict[str, str | None] = field(default_factory=dict)  # by part; None: it is well
    _troubled_s: dict[str, float] = field(default_factory=dict)
    _latency: Latency = field(default_factory=Latency)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _alive_s: float = field(default_factory=time.monotonic)

    def begin(self) -> None:
        """Note that the job has its state and its sources."""
        with self._lock:
            self.has_begun, self._alive_s = True, time.monotonic()

    def finished(
        self, batch_id: int, totals: Mapping[str, int], watermark_ms: int | None = None,
        phases_ms: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        """Report a finished micro-batch, and the job's totals so far. Without a watermark the last one stays."""
        with self._lock:
            self.batch_id, self.totals, self._alive_s = batch_id, Counter(totals), time.monotonic()
            self.watermark_ms = self.watermark_ms if watermark_ms is None else watermark_ms
            self.phases_ms.update(phases_ms or {})

    def measured(self, gauges: Mapping[str, float], phases_ms: Mapping[str, float]) -> None:
        """Set gauges by name (state_bytes …), and the times of the latest micro-batch, by phase."""
        with self._lock:
            self.gauges.update(gauges)
            self.phases_ms.update(phases_ms)

    def use_memory(self, memory_bytes: Mapping[str, int]) -> None:
        """Note the bytes that each part of the job has in memory."""
        self.memory_bytes = dict(memory_bytes)

    def lagging(self, lags: Mapping[str, int], arriving_per_s: float = 0.0) -> None:
        """Note how many records of each partition wait, and how many arrive in a second."""
        with self._lock:
            self.lags = dict(lags)
            waiting_max = arriving_per_s * (self.ready_lag_ms or 0) / 1_000
            self.has_caught_up = self.has_caught_up or sum(lags.values()) <= waiting_max

    def idle(self) -> None:
        """Report that the job waits for records, which does not mean that it is stuck."""
        with self._lock:
            self._alive_s = time.monotonic()

    @contextmanager
    def sending(self, name: str, alerts: pa.Table) -> Iterator[None]:
        """Note how long a sink takes for a delivery, and how old its alerts are when the sink has them."""
        with self._lock:
            began_s = self.sending_since_s[name] = time.monotonic()
        try:
            yield
            with self._lock:
                self._latency.add(alerts, int(time.time() * 1_000))
                self.phases_ms["sinks"] = (time.monotonic() - began_s) * 1_000
        finally:
            with self._lock:
                del self.sending_since_s[name]

    def away(self, name: str, error: SinkAwayError | None) -> None:
        """Note that a sink is away and that the job tries again; None: the sink has accepted the alerts."""
        with self._lock:
            if error is None:
                self.sinks_away.pop(name, None)
            else:
                self.sinks_away[name] = error.reason
            self._alive_s = time.monotonic()  # a job that tries again is alive, although it may have stopped reading
        self.look_at_sinks(str(error or ""))

    def look_at_sinks(self, detail: str = "") -> None:
        """Note which sinks take no alerts or answer too slowly, and log each change. `detail` is for the log alone."""
        with self._lock:
            away = self._sinks_in_trouble()
            before, now_s = dict(self._logged_sinks), time.monotonic()  # before: by sink (reason, since)
            since = {sink: before[sink][1] if sink in before else now_s for sink in away}
            self._logged_sinks = {sink: (reason, since[sink]) for sink, reason in away.items()}
        troubles = [f"{self._shown(sink)}: {SINK_REASONS[reason]}" for sink, reason in sorted(away.items())]
        self.note(SINKS, "; ".join(troubles) + "; the job tries again" if troubles else None, detail)
        if self.log is None:
            return
        for sink, reason in sorted(away.items()):
            if before.get(sink, ("",))[0] != reason:  # it was well, or away for another reason
                self.log.tell(
                    "sink_away", f"{self._shown(sink)} takes no alerts: {SINK_REASONS[reason]}; the job tries again",
                    sink=sink, address=self.address_of(sink), reason=reason,
                )  # fmt: skip
        for sink in sorted(before.keys() - away.keys()):
            seconds = round(now_s - before[sink][1], 1)  # since it was first away
            text = f"{self._shown(sink)} takes alerts again, after {seconds:.0f} s"
            self.log.tell("sink_back", text, sink=sink, address=self.address_of(sink), seconds=seconds)

    def address_of(self, sink: str) -> str:
        """Return the address of a sink, without any secret."""
        return self.sink_addresses.get(sink, sink)

    def _shown(self, sink: str) -> str:
        return f"{sink} at {self.sink_addresses[sink]}" if sink in self.sink_addresses else sink

    def abandon(self, name: str, count: int) -> None:
        """Report alerts that wait for a sink which the job no longer has, and that no new sink takes over."""
        with self._lock:
            self._abandoned[name] = count
        if self.log is not None:
            self.log.tell(
                "abandoned",
                f"{count:,} alerts waited for {name}, which the job no longer has, and no new sink takes them over: "
                "they are not sent; `cep replay` makes them again",
                sink=name, count=count,
            )  # fmt: skip

    def _sinks_in_trouble(self) -> dict[str, str]:
        """Return the reason for each sink that takes no alerts, or has not answered for too long; with the lock."""
        before_s = time.monotonic() - SENDING_MS_MAX / 1_000
        slow = {name: "slow" for name, since_s in self.sending_since_s.items() if since_s <= before_s}
        return {**slow, **self.sinks_away}

    def wait_for(self, backlogs: Mapping[str, tuple[int, int | None]]) -> None:
        """Note for each sink how many alerts wait for it, and since when the oldest does (ms UTC)."""
        with self._lock:
            self._backlogs = dict(backlogs)

    def refused(self, name: str, count: int, reason: str) -> None:
        """Log that a receiver has refused alerts for good, which are in the dead letters now."""
        if self.log is not None:
            self.log.tell(
                "alerts_refused",
                f"{count} alerts were refused by {name}: {reason}; they are in the dead letters: `cep job letters "
                "list` shows them, and `cep job letters send` sends them again",
                sink=name, count=count, reason=reason,
            )  # fmt: skip

    def note(self, part: str, trouble: str | None, detail: str = "") -> None:
        """Report the trouble of a part of the job, or None if the part is well. A change is logged.

        `/health` shows `trouble` to everybody, also without an access token. `detail` is for the log alone.
        """
        now_s = time.monotonic()
        with self._lock:
            before = self._troubles.get(part)
            self._troubles[part] = trouble
            since_s = self._troubled_s.setdefault(part, now_s) if trouble is not None else None
            ended_s = self._troubled_s.pop(part, None) if trouble is None else None
        if self.log is None:
            return
        if before is None and since_s is not None:
            reason = detail or trouble
            self.log.tell("unhealthy", f"unhealthy: {part}: {reason}", part=part, reason=reason)
        elif ended_s is not None:
            seconds = round(now_s - ended_s, 1)
            self.log.tell("healthy", f"healthy again: {part}, after {seconds:.0f} s", part=part, seconds=seconds)

    @property
    def troubles(self) -> dict[str, str]:
        """The parts that are not well, and why."""
        with self._lock:
            return {part: trouble for part, trouble in self._troubles.items() if trouble is not None}

    def live(self) -> tuple[bool, dict[str, Any]]:
        """Return True if the job makes progress, and the reasons. If it does not, a restart may help."""
        with self._lock:
            silent_s = time.monotonic() - self._alive_s
            is_live = self.failure is None and silent_s * 1_000 < self.stalled_ms
            answer = {"live": is_live, "batch_id": self.batch_id, "seconds_since_progress": round(silent_s, 1)}
            return is_live, answer if self.failure is None else {**answer, "failure": self.failure}

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Return True if the job is alive, has its state and its sinks, and has once caught up with its topic."""
        is_live, answer = self.live()
        with self._lock:
            reads = self.ready_lag_ms is not None and not self.gauges.get("standby")  # a standby reads no events
            has_caught_up = self.has_caught_up or not reads
            lag = sum(self.lags.values()) if self.lags else None
        is_ready = is_live and self.has_begun and has_caught_up and not self.sinks_away
        return is_ready, {"ready": is_ready, **answer, "lag_records": lag}

    def health(self) -> tuple[bool, dict[str, Any]]:
        """Return True if the job makes progress or reads its state, and every part is well; and the reasons."""
        self.look_at_sinks()  # a sink that hangs is named at once, not at the next look of the watch
        is_live, answer = self.live()
        with self._lock:
            parts = {part: trouble or "well" for part, trouble in sorted(self._troubles.items())}
        is_healthy = is_live and all(trouble == "well" for trouble in parts.values())
        return is_healthy, {"healthy": is_healthy, **answer, **self.ready()[1], "parts": parts}

    def collect(self) -> Iterator[Metric]:
        """Return all figures as metric families, for prometheus_client."""
        with self._lock:
            totals, gauges, phases = dict(self.totals), dict(self.gauges), dict(self.phases_ms)
            batch_id, watermark_ms, lags, troubles = self.batch_id, self.watermark_ms, self.lags, dict(self._troubles)
            sinks_away, backlogs, abandoned = self._sinks_in_trouble(), dict(self._backlogs), dict(self._abandoned)
            latency = self._latency.family()
        if watermark_ms is not None and watermark_ms >= EVENT_TIME_MS_MIN:
            gauges["watermark_delay_seconds"] = time.time() - watermark_ms / 1_000
        yield from _counters(totals)
        yield GaugeMetricFamily("cep_runs", meanings.TOTALS_THAT_FALL["runs"], value=totals.get("runs", 0))
        open_runs = meanings.open_runs(totals)
        yield _labelled("rule_runs", {tuple(name.split("@")): count for name, count in open_runs.items()})  # rule@3
        for name, value in {**gauges, "micro_batch_id": batch_id, "live": float(self.live()[0])}.items():
            yield GaugeMetricFamily(f"cep_{name}", meanings.GAUGES[name], value=value)
        yield _labelled("micro_batch_seconds", {phase: ms / 1_000 for phase, ms in phases.items()})
        yield _labelled("memory_bytes", self.memory_bytes)
        yield _labelled("lag_records", lags)
        yield _labelled("part_up", {part: float(trouble is None) for part, trouble in troubles.items()})
        sinks = [(name, self.address_of(name), sinks_away.get(name, "")) for name in {*self.sink_names, *sinks_away}]
        yield _labelled("sink_up", {sink: float(sink[0] not in sinks_away) for sink in sinks})  # [0]: its name
        now_ms = time.time() * 1_000  # backlogs: by sink, how many alerts wait, and since when (ms)
        ages_s = {name: 0.0 if ms is None else max(0.0, now_ms - ms) / 1_000 for name, (_, ms) in backlogs.items()}
        yield _labelled("sink_waiting_alerts", {name: count for name, (count, _) in backlogs.items()})
        yield _labelled("sink_oldest_alert_seconds", ages_s)
        yield _labelled("abandoned_alerts", abandoned)
        yield latency


def _labelled(name: str, values: Mapping[Any, float]) -> Metric:
    """Return a gauge with a number for each value of its label, or tuple of values of its labels."""
    text = meanings.GAUGES.get(name) or meanings.TOTALS_THAT_FALL[name]
    labels = meanings.GAUGE_LABELS.get(name) or meanings.LABELS[name]
    family = GaugeMetricFamily(f"cep_{name}", text, labels=labels)
    for value, number in sorted(values.items()):
        family.add_metric([value] if isinstance(value, str) else value, number)
    return family


def _counters(totals: Mapping[str, int]) -> Iterator[Metric]:
    """Yield every total as a counter. The text in the brackets of its name becomes labels: the total `alerts[rule@3]`
    is in the family `cep_alerts`, with the labels rule and 3. Totals that can fall are gauges, and left out."""
    families: dict[str, CounterMetricFamily] = {}
    always_shown = dict.fromkeys([*meanings.FROM_ZERO, *(f"poison[{code}]" for code in meanings.POISON_CODES)], 0)
    for full_name, count in sorted({**always_shown, **totals}.items()):
        parsed = _COUNTER.fullmatch(full_name)
        assert parsed is not None, full_name
        name, inner = parsed[1], parsed[2]  # inner: the text in the brackets, or None
        if name in meanings.TOTALS_THAT_FALL:
            continue
        labels = meanings.LABELS.get(name, () if inner is None else ("of",))  # "of": for an unknown name
        if name not in families:
            families[name] = CounterMetricFamily(f"cep_{name}", meanings.counter_text(name), labels=labels)
        values = [""] * len(labels) if inner is None else inner.split("@") if len(labels) > 1 else [inner]
        families[name].add_metric(values, count)
    yield from families.values()
