"""Spans of micro-batches: one for each, with its phases inside; in memory, and at a receiver of the real protocol."""

import io
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.cli.main import main
from cep.runners.observe import Log
from cep.runners.traces import Traces, open_traces
from tests.runners.embedded.cases import morning
from tests.runners.embedded.test_run import ROOT
from tests.runners.spark.live_cases import run_process, split, write_file
from tests.webhook import Handler, serving

sdk = pytest.importorskip("opentelemetry.sdk.trace")
export = pytest.importorskip("opentelemetry.sdk.trace.export")
memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")


def traced() -> tuple[Traces, Any]:
    exporter, provider = memory.InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    return Traces(provider), exporter


PHASES = st.dictionaries(st.sampled_from(["decoding", "matching", "sinks", "records"]), st.floats(0, 1e6), max_size=4)


@given(st.lists(st.tuples(PHASES, st.integers(0, 10**9), st.integers(0, 99)), min_size=1, max_size=5))
def test_phases_fill_their_micro_batch_one_behind_the_other(batches: list[tuple[dict[str, float], int, int]]) -> None:
    traces, exporter = traced()
    for number, (phases_ms, events, alerts) in enumerate(batches):
        traces.micro_batch(number, phases_ms, {"events": events, "alerts[a@1]": alerts, "alerts[b@2]": 1, "late": 7})
    spans = exporter.get_finished_spans()
    parents = [span for span in spans if span.parent is None]
    assert [dict(span.attributes) for span in parents] == [
        {"cep.batch_id": number, "cep.events": events, "cep.alerts": alerts + 1}
        for number, (_, events, alerts) in enumerate(batches)
    ]
    assert len({span.context.trace_id for span in parents}) == len(batches)
    for parent, (phases_ms, _, _) in zip(parents, batches, strict=True):
        children = [span for span in spans if span.parent is not None and span.parent.span_id == parent.context.span_id]
        assert [child.name for child in children] == list(phases_ms)
        ends = [parent.start_time, *(child.end_time for child in children)]
        assert [child.start_time for child in children] == ends[:-1]
        assert [int(ms * 1_000_000) for ms in phases_ms.values()] == [c.end_time - c.start_time for c in children]
        assert ends[-1] == parent.end_time


def test_commits_and_deliveries_are_children_of_the_newest_micro_batch() -> None:
    traces, exporter = traced()
    sending = traces.around(lambda *_: nullcontext())
    table = pa.table({"alert_id": ["a", "b"]})
    with sending("alerts", table):
        traces.commit_step("2")
        traces.commit_step("3")
    assert exporter.get_finished_spans() == (), "what belongs to no micro-batch has no span"
    traces.micro_batch(1, {"matching": 1.0}, {})
    for step in ("1", "2", "3", "4"):
        traces.commit_step(step)
    with sending("alerts", table):
        traces.micro_batch(2, {}, {})
    with pytest.raises(OSError, match="refused"), sending("alerts", table):
        raise OSError("refused")
    spans = {(span.name, span.attributes.get("cep.batch_id")): span for span in exporter.get_finished_spans()}
    assert set(spans) == {("micro_batch", 1), ("micro_batch", 2), ("matching", None), ("commit", None), ("sinks", None)}
    first = spans["micro_batch", 1].context.span_id
    assert spans["commit", None].parent.span_id == spans["sinks", None].parent.span_id == first
    assert spans["sinks", None].attributes["cep.alerts"] == 2
    traces.close()


@dataclass
class Receiver:
    """A collector: it keeps the requests over HTTP, read as the protocol's messages."""

    address: str
    requests: list[Any] = field(default_factory=list)

    def spans(self) -> list[tuple[str, Any]]:
        """Return (service, span) of all spans."""
        return [
            (next(fact.value.string_value for fact in each.resource.attributes if fact.key == "service.name"), span)
            for request in self.requests
            for each in request.resource_spans
            for scope in each.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest  # noqa: PLC0415

    requests: list[Any] = []

    class Collector(Handler):
        def status_of(self, body: bytes) -> int:
            assert self.path == "/v1/traces"
            requests.append(ExportTraceServiceRequest.FromString(body))
            return 200

    server = serving(Collector)
    yield Receiver(f"http://127.0.0.1:{server.server_port}", requests)
    server.shutdown()
    server.server_close()


def facts(span: Any) -> dict[str, int]:
    return {fact.key: fact.value.int_value for fact in span.attributes}


def test_a_job_sends_its_micro_batches(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.address)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join(morning()))
    arguments = [
        "run", "--rules", str(ROOT / "rules"), "--events", str(path), "--alerts", str(tmp_path / "alerts"),
        "--checkpoint", str(tmp_path / "job"), "--max-records", "300", "--available-now", "--traces",
    ]  # fmt: skip
    assert main(arguments) == 0
    spans = receiver.spans()
    assert {service for service, _ in spans} == {"cep"}
    batches = [span for _, span in spans if span.name == "micro_batch"]
    assert sum(facts(span)["cep.events"] for span in batches) == len(morning())
    ids = [facts(span)["cep.batch_id"] for span in batches]
    assert ids == list(range(ids[0], ids[0] + len(ids)))
    batch_ids = {span.span_id for span in batches}
    phases = [span for _, span in spans if span.name != "micro_batch"]
    assert {span.name for span in phases} == {"decoding", "matching", "commit", "sinks"}
    assert all(span.parent_span_id in batch_ids for span in phases)
    alerts = sum(facts(span)["cep.alerts"] for span in phases if span.name == "sinks")
    assert alerts == sum(len(file.read_bytes().splitlines()) for file in (tmp_path / "alerts").glob("*.jsonl"))
    assert "traces" not in capsys.readouterr().err


def test_a_collector_that_is_away_is_a_line_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    log = io.StringIO()
    with open_traces(Log("json", log)) as traces:
        traces.micro_batch(1, {"matching": 1.0}, {})
    lines = [orjson.loads(line) for line in log.getvalue().splitlines()]
    assert lines
    assert {line["event"] for line in lines} == {"traces"}


@pytest.mark.spark
@pytest.mark.slow
def test_a_job_on_spark_sends_its_micro_batches(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "events").mkdir()
    lines = morning()
    for number, part in enumerate(split(lines, 2)):
        write_file(tmp_path / "events" / f"{number}.jsonl", part, number)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.address)
    run_process(
        tmp_path, "--rules", ROOT / "rules", "--events", tmp_path / "events", "--checkpoint", tmp_path / "job",
        "--alerts", tmp_path / "alerts", "--key-groups", 4, "--max-files", 1, "--traces", "--available-now",
    )  # fmt: skip
    spans = [span for _, span in receiver.spans()]
    batches = {span.span_id: span for span in spans if span.name == "micro_batch"}
    assert sum(facts(span)["cep.events"] for span in batches.values()) == len(lines)
    assert sorted(facts(span)["cep.batch_id"] for span in batches.values()) == list(range(len(batches)))
    for parent, span in batches.items():
        phases = [other for other in spans if other.parent_span_id == parent]
        assert {phase.name for phase in phases} == {"matching", "sinks", "records"}
        assert all(span.start_time_unix_nano <= phase.start_time_unix_nano for phase in phases)
        assert all(phase.end_time_unix_nano <= span.end_time_unix_nano for phase in phases)
