"""Metrics are what the totals say, health tells a stuck job from an idle one, logs have one object a line."""

from __future__ import annotations

import io
import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cep.base.errors import UsageError
from cep.runners.http import served
from cep.runners.observe import Log, Observed

TOTALS = Counter(
    {
        "events": 12, "late_events": 3, "duplicates": 1, "poison[missing_field]": 2, "poison[unreadable]": 1,
        "unkeyed[card_id,merchant_id]": 4, "alerts[card_testing@3]": 5, "alerts[other@1]": 6, "runs_expired": 7,
        "runs": 9,
    }
)  # fmt: skip


def get(address: tuple[str, int] | None, path: str) -> tuple[int, str]:
    assert address is not None
    try:
        with urllib.request.urlopen(f"http://{address[0]}:{address[1]}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by name and labels, as Prometheus reads them."""
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_every_total_is_a_metric() -> None:
    observed = Observed(60_000)
    observed.finished(16, TOTALS, int(time.time() * 1_000) - 30_000, {"matching": 125.0})
    observed.finished(17, TOTALS)
    observed.measured({"state_bytes": 1_000.0}, {"addBatch": 250.0})
    with served(("127.0.0.1", 0), observed) as address:
        status, text = get(address, "/metrics")
    assert status == 200
    found = samples(text)
    assert found["cep_events_total", ()] == 12
    assert found["cep_late_events_total", ()] == 3
    assert found["cep_poison_total", (("code", "missing_field"),)] == 2
    assert found["cep_unkeyed_total", (("key", "card_id,merchant_id"),)] == 4
    assert found["cep_alerts_total", (("rule", "card_testing"), ("version", "3"))] == 5
    assert found["cep_runs", ()] == 9
    assert found["cep_state_bytes", ()] == 1_000
    assert 30 <= found["cep_watermark_delay_seconds", ()] < 600
    assert found["cep_micro_batch_seconds", (("phase", "addBatch"),)] == 0.25
    assert found["cep_micro_batch_seconds", (("phase", "matching"),)] == 0.125
    assert found["cep_micro_batch_id", ()] == 17
    counted = sum(value for (name, _), value in found.items() if name.endswith("_total"))
    assert counted == TOTALS.total() - TOTALS["runs"]
    assert found["cep_matches_dropped_total", ()] == 0, "there before the first one"


def test_health_tells_stuck_from_idle() -> None:
    observed = Observed(0)
    with served(("127.0.0.1", 0), observed) as address:
        status, text = get(address, "/health")
        assert (status, json.loads(text)["healthy"]) == (503, False), "no progress for longer than 0 ms"
        observed.stalled_ms = 3_600_000
        observed.idle()
        observed.finished(4, TOTALS)
        status, text = get(address, "/health")
        assert (status, json.loads(text)["batch_id"]) == (200, 4)
        observed.failure = "SinkError"
        status, text = get(address, "/health")
        assert (status, json.loads(text)["failure"]) == (503, "SinkError")
        assert get(address, "/other")[0] == 404


def test_nowhere_and_a_port_that_is_taken() -> None:
    threads = threading.active_count()
    with served(None, Observed(0)) as address:
        assert address is None
    with (
        served(("127.0.0.1", 0), Observed(0)) as taken,
        pytest.raises(UsageError, match="cannot listen"),
        served(taken, Observed(0)),
    ):
        pass
    assert threading.active_count() == threads, "the server's thread has ended"


def test_log() -> None:
    text, lines = io.StringIO(), io.StringIO()
    for form, stream in (("text", text), ("json", lines)):
        log = Log("json" if form == "json" else "text", stream)
        log.tell("micro_batch", "micro-batch 3: 12 events", batch_id=3, events=12)
        log.tell("stopped", 'a "quoted"\nline', reason='a "quoted"\nline')
    assert text.getvalue().splitlines()[0] == "micro-batch 3: 12 events"
    first, second = map(json.loads, lines.getvalue().splitlines())
    assert (first["event"], first["batch_id"], first["events"]) == ("micro_batch", 3, 12)
    assert first["time"].endswith("Z")
    assert second["reason"] == 'a "quoted"\nline'
