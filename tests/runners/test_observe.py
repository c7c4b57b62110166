"""Metrics equal the totals, health distinguishes a stuck job from an idle one, logs have one object a line."""

from __future__ import annotations

import io
import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from cep.base.errors import UsageError
from cep.runners.http import served
from cep.runners.meanings import current_names
from cep.runners.observe import Log, Observed
from tests.rulebook.test_suppression import alert, table

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


def registry_of(observed: Observed) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(observed)
    return registry


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return every sample by name and labels, as Prometheus reads them."""
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
    observed.lagging({"payments[0]": 5, "payments[1]": 0})
    with served(("127.0.0.1", 0), observed) as address:
        status, text = get(address, "/metrics")
    assert status == 200
    metrics = samples(text)
    assert metrics["cep_events_total", ()] == 12
    assert metrics["cep_late_events_total", ()] == 3
    assert metrics["cep_poison_total", (("code", "missing_field"),)] == 2
    assert metrics["cep_unkeyed_total", (("key", "card_id,merchant_id"),)] == 4
    assert metrics["cep_alerts_total", (("rule", "card_testing"), ("version", "3"))] == 5
    assert metrics["cep_runs", ()] == 9
    assert metrics["cep_state_bytes", ()] == 1_000
    assert 30 <= metrics["cep_watermark_delay_seconds", ()] < 600
    assert metrics["cep_micro_batch_seconds", (("phase", "addBatch"),)] == 0.25
    assert metrics["cep_micro_batch_seconds", (("phase", "matching"),)] == 0.125
    assert metrics["cep_micro_batch_id", ()] == 17
    assert metrics["cep_lag_records", (("partition", "payments[0]"),)] == 5
    assert metrics["process_open_fds", ()] > 0, "the process is seen as well"
    counted = sum(value for (name, _), value in metrics.items() if name.startswith("cep_") and name.endswith("_total"))
    assert counted == TOTALS.total() - TOTALS["runs"]
    assert metrics["cep_matches_dropped_total", ()] == 0, "there before the first one"


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
        assert get(address, "/live")[0] == get(address, "/ready")[0] == 503
        assert get(address, "/other")[0] == 404


def test_a_part_in_trouble_is_unhealthy_and_no_reason_for_a_restart() -> None:
    lines = io.StringIO()
    observed = Observed(3_600_000, Log("json", lines))
    assert not observed.ready()[0], "it has no state yet"
    observed.begin()
    observed.note("sinks", None)
    assert observed.health()[0]
    for _ in range(3):
        observed.note("brokers", "no answer since then", "kafka:9092 gave no answer")
    is_healthy, answer = observed.health()
    assert (is_healthy, answer["parts"]) == (False, {"brokers": "no answer since then", "sinks": "well"})
    assert observed.live()[0]
    assert observed.ready()[0]
    assert samples(generate_latest(registry_of(observed)).decode())["cep_part_up", (("part", "brokers"),)] == 0
    for _ in range(3):
        observed.note("brokers", None)
    assert observed.health()[0]
    log_lines = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [(line["event"], line["part"]) for line in log_lines] == [("unhealthy", "brokers"), ("healthy", "brokers")]
    assert log_lines[0]["reason"] == "kafka:9092 gave no answer"
    assert "kafka:9092" not in json.dumps(answer), "who asks has no token"


@pytest.mark.parametrize(
    ("stalled_ms", "failure", "is_live"), [(3_600_000, None, 1), (0, None, 0), (3_600_000, "x", 0)]
)
def test_the_metric_of_life_says_stuck_and_failed(stalled_ms: int, failure: str | None, is_live: int) -> None:
    observed = Observed(stalled_ms)
    observed.failure = failure
    assert samples(generate_latest(registry_of(observed)).decode())["cep_live", ()] == is_live


def test_latency_counts_each_alert_once_it_is_delivered() -> None:
    observed = Observed(0)
    now_ms = int(time.time() * 1_000)
    with observed.sending(
        "alerts", table(alert(1, now_ms - 20_000), alert(2, now_ms - 7_000_000), alert(3, now_ms + 60_000))
    ):
        assert list(observed.sending_since_s) == ["alerts"]
    with pytest.raises(ValueError, match="refused"), observed.sending("alerts", table(alert(4, now_ms))):
        raise ValueError("refused")
    assert observed.sending_since_s == {}
    metrics = samples(generate_latest(registry_of(observed)).decode())
    below = {
        labels[0][1]: value for (name, labels), value in metrics.items() if name.endswith("latency_seconds_bucket")
    }
    assert (below["0.01"], below["10.0"], below["60.0"], below["3600.0"], below["+Inf"]) == (1, 1, 2, 2, 3)
    assert metrics["cep_alert_latency_seconds_count", ()] == 3


def test_every_name_on_the_port_has_a_sentence() -> None:
    """The totals include names of an earlier build, which had reason and rule of suppressed alerts in two brackets."""
    observed = Observed(0)
    observed.finished(1, current_names({**TOTALS, "held[shadow][card_testing]": 2, "held[shadow@card_testing]": 3}))
    text = generate_latest(registry_of(observed)).decode()
    assert samples(text)["cep_held_total", (("reason", "shadow"), ("rule", "card_testing"))] == 5
    helps = [line.split(" ", 3) for line in text.splitlines() if line.startswith("# HELP cep_")]
    assert [name for _, _, name, text in helps if len(text.split()) < 3 or text.startswith("Counter ")] == []


def test_nowhere_and_a_port_that_is_taken() -> None:
    threads = threading.active_count()
    with served(None, Observed(0)) as address:
        assert address is None
    with (
        served(("127.0.0.1", 0), Observed(0)) as open_address,
        pytest.raises(UsageError, match="cannot listen"),
        served(open_address, Observed(0)),
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
