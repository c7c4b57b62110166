"""What a job does → its log on standard error, Prometheus' text at /metrics, and a yes or no at /health.

    totals (progress.json) ─▶ cep_events_total, cep_late_events_total, cep_poison_total{code="…"},
                              cep_alerts_total{rule="…", version="…"}, …: every counter there is, under its own name
    gauges                 ─▶ cep_runs, cep_state_bytes, cep_watermark_delay_seconds, cep_micro_batch_seconds{phase="…"}

Every runner uses it; nothing here knows Spark. No payload goes through: fields of a log line are numbers and names.
Totals go on over restarts, and so do the counters. Who asks for metrics never waits for the job, nor the job for them.
Tested by: tests/runners/test_observe.py
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TextIO
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import orjson
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from cep.base.errors import UsageError
from cep.base.limits import EVENT_TIME_MS_MIN
from cep.model.rule import utc_text

# What stands in the brackets of a counter's name: `poison[missing_field]`, `alerts[card_testing@3]`.
_LABELS: Mapping[str, tuple[str, ...]] = {
    "poison": ("code",), "unkeyed": ("key",), "alerts": ("rule", "version"),
    "rule_events": ("rule", "version"), "rule_steps": ("rule", "version"),
}  # fmt: skip
_COUNTER = re.compile(r"(\w+)(?:\[(.*)\])?")
# Path → what is answered to the parameters of a question, None for what is not there.
Answers = Mapping[str, Callable[[Mapping[str, list[str]]], Any]]
# Counters that stand at 0 before the first one is counted, so that a rate has a beginning and an alarm finds its name.
_TEXTS: Mapping[str, str] = {
    "records": "Records read, also those that cannot be decoded.",
    "events": "Records that could be decoded.",
    "late_events": "Events behind the watermark, set aside.",
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
        """A micro-batch is done; `totals` are those of the job so far. Without a watermark the last one stays."""
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
        """Whether the job gets on, and why that is said."""
        with self._lock:
            silent_s = time.monotonic() - self._alive_s
            is_healthy = self.failure is None and silent_s * 1_000 < self.stalled_ms
            told = {"healthy": is_healthy, "batch_id": self.batch_id, "seconds_since_progress": round(silent_s, 1)}
            return is_healthy, told if self.failure is None else {**told, "failure": self.failure}

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


@contextmanager
def served(
    address: tuple[str, int] | None, observed: Observed, answers: Answers | None = None
) -> Iterator[tuple[str, int] | None]:
    """Answer /metrics, /health and what the runner answers, for as long as the block runs; gives the address, with the
    port that was chosen for 0.

    Raises: UsageError if the address cannot be had.
    """
    if address is None:
        yield None
        return
    try:
        server = make_server(*address, _app(observed, answers or {}), _server_class(address[0]), _QuietHandler)
    except OSError as error:
        raise UsageError(
            f"cannot listen at {address[0]}:{address[1]}: {error}; give --listen another port, or none"
        ) from error
    thread = threading.Thread(target=server.serve_forever, name="cep-metrics", daemon=True)
    thread.start()
    try:
        yield address[0], server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _QuietHandler(WSGIRequestHandler):
    """Does not write a line for every request: the log is the job's."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the base class has the name
        pass


def _server_class(host: str) -> type[WSGIServer]:
    class Server(ThreadingWSGIServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    return Server


def _app(observed: Observed, answers: Answers) -> Callable[[Mapping[str, Any], Callable[..., Any]], Iterable[bytes]]:
    registry = CollectorRegistry()
    registry.register(observed)
    metrics: Callable[[Mapping[str, Any], Callable[..., Any]], Iterable[bytes]] = make_wsgi_app(registry)

    def answer(environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/metrics":
                return metrics(environ, start_response)
            case "/health":
                is_healthy, told = observed.health()
                status = "200 OK" if is_healthy else "503 Service Unavailable"
                start_response(status, [("Content-Type", "application/json")])
                return [orjson.dumps(told) + b"\n"]
            case path if path in answers:
                found = answers[path](parse_qs(environ["QUERY_STRING"]))
                start_response("404 Not Found" if found is None else "200 OK", [("Content-Type", "application/json")])
                return [orjson.dumps(found) + b"\n"]
            case _:
                start_response("404 Not Found", [("Content-Type", "text/plain")])
                return [" ".join(["here are /metrics /health", *answers]).encode() + b"\n"]

    return answer


def _counters(totals: Mapping[str, int]) -> Iterator[Metric]:
    """Every total as a counter; those that differ only in the brackets are one family."""
    families: dict[str, CounterMetricFamily] = {}
    for full_name, count in sorted({**dict.fromkeys(_TEXTS, 0), **totals}.items()):
        found = _COUNTER.fullmatch(full_name)
        assert found is not None, full_name
        name, inner = found[1], found[2]
        if name in _GAUGES:
            continue
        labels = () if inner is None else _LABELS.get(name, ("of",))
        if name not in families:
            families[name] = CounterMetricFamily(f"cep_{name}", _TEXTS.get(name, f"Counter {name}."), labels=labels)
        values = [] if inner is None else inner.split("@") if len(labels) > 1 else [inner]
        families[name].add_metric(values, count)
    yield from families.values()
