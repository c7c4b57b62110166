"""Finished micro-batches → OpenTelemetry spans, one for each, with a child for each of its phases.

    micro_batch          cep.batch_id, cep.events, cep.alerts
    ├── decoding …       phases that the runner has timed, in their order
    ├── commit           of `cep run`, after the micro-batch
    └── sinks            of `cep run`, when its delivery is over, perhaps while later micro-batches are matched

Without `--traces` the library is not imported. Its environment variables set the destination, the sampling and the
service name (OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME).
Tested by: tests/runners/test_traces.py
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cep.base.process import Closing
from cep.runners.observe import Log

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider

_NS_PER_MS = 1_000_000
_LIBRARY = "opentelemetry"
_WRITE, _SYNC = "2", "3"  # steps of a commit (embedded/commit.py): the first is all that a micro-batch waits for


def open_traces(log: Log) -> Traces:
    """Send spans to a collector over OTLP. Raises: ModuleNotFoundError without the extra `otel`."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    library = logging.getLogger(_LIBRARY)
    library.handlers, library.propagate = [_ToLog(log)], False
    named = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "cep"}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Traces(provider)


class _ToLog(logging.Handler):
    """A way of the library's warnings, such as that no collector answers, into the job's log."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        reason = record.getMessage()
        self._log.tell("traces", f"traces: {reason}", reason=reason)


class Traces(Closing):
    """The spans of a job. Threads of the runner call it; sending is for a thread of the library."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.context import Context  # noqa: PLC0415
        from opentelemetry.trace import set_span_in_context  # noqa: PLC0415

        self._provider = provider
        self._tracer = provider.get_tracer("cep")
        self._root = Context()
        self._below = set_span_in_context
        self._newest: Context | None = None
        self._writing_ns: int | None = None

    def micro_batch(self, batch_id: int, phases_ms: Mapping[str, float], counters: Mapping[str, int]) -> None:
        """Create the spans of a micro-batch that has just ended; its phases ran one after the other."""
        ended_ns = time.time_ns()
        began_ns = ended_ns - sum(int(ms * _NS_PER_MS) for ms in phases_ms.values())
        alerts = sum(count for name, count in counters.items() if name.startswith("alerts["))
        facts = {"cep.batch_id": batch_id, "cep.events": counters.get("events", 0), "cep.alerts": alerts}
        span = self._tracer.start_span("micro_batch", self._root, attributes=facts, start_time=began_ns)
        self._newest = context = self._below(span)
        for phase, ms in phases_ms.items():
            self._phase(context, phase, began_ns, began_ns + int(ms * _NS_PER_MS))
            began_ns += int(ms * _NS_PER_MS)
        span.end(ended_ns)

    def commit_step(self, step: str) -> None:
        """Make the span of a commit of `cep run`; `step` is the step that begins."""
        if step == _WRITE:
            self._writing_ns = time.time_ns()
        elif step == _SYNC and self._writing_ns is not None and self._newest is not None:
            self._phase(self._newest, "commit", self._writing_ns, time.time_ns())

    def around(
        self, sending: Callable[[str, pa.Table], AbstractContextManager[Any]]
    ) -> Callable[[str, pa.Table], AbstractContextManager[Any]]:
        """Return `sending` with an OpenTelemetry span for each delivery, below the span of the newest micro-batch."""

        @contextmanager
        def send(name: str, alerts: pa.Table) -> Iterator[None]:
            context, began_ns = self._newest, time.time_ns()  # before a later one begins, during the delivery
            with sending(name, alerts):
                yield
            if context is not None:
                self._phase(context, "sinks", began_ns, time.time_ns(), {"cep.alerts": alerts.num_rows})

        return send

    def close(self) -> None:
        """Send the remaining spans, and end."""
        self._provider.shutdown()

    def _phase(
        self, context: Context, name: str, began_ns: int, ended_ns: int, facts: Mapping[str, int] | None = None
    ) -> None:
        self._tracer.start_span(name, context, attributes=facts, start_time=began_ns).end(ended_ns)
