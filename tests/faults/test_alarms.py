"""Every alert rule can be evaluated, rings where Prometheus' would, and names the part."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from tests.cli.monitored import rules
from tests.faults.alarms import Alarms, parsed

MINUTE_MS = 60_000
HOUR = 60


def gauge(name: str, value: float, **labels: str) -> Metric:
    family = GaugeMetricFamily(name, name, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def counter(name: str, value: float) -> Metric:
    return CounterMetricFamily(name, name, value=value)


def latency(minute: int, slow: int) -> Metric:
    """Return a histogram of a hundred alerts a minute, so many of which take more than a minute."""
    buckets = [("60.0", (100.0 - slow) * minute), ("300.0", 100.0 * minute), ("+Inf", 100.0 * minute)]
    family = HistogramMetricFamily("cep_alert_latency_seconds", "latency")
    family.add_metric([], buckets, sum_value=0.0)
    return family


WELL = (gauge("cep_micro_batch_id", 1), gauge("cep_live", 1))
# Alarm → the metrics of a minute with which it rings, and metrics with which it does not.
CASES: dict[str, tuple[Callable[[int], list[Metric]], Callable[[int], list[Metric]]]] = {
    "CepLagGrows": (
        lambda minute: [gauge("cep_lag_records", 11_000 + minute, partition="p[0]")],
        lambda minute: [gauge("cep_lag_records", 90_000 - minute, partition="p[0]")],
    ),
    "CepAlertsLate": (lambda minute: [latency(minute, 6)], lambda minute: [latency(minute, 4)]),
    "CepFewFilesLeft": (
        lambda _: [gauge("process_open_fds", 81), gauge("process_max_fds", 100)],
        lambda _: [gauge("process_open_fds", 79), gauge("process_max_fds", 100)],
    ),
    "CepRestartsOften": (
        lambda minute: [gauge("process_start_time_seconds", minute // 5)],
        lambda minute: [gauge("process_start_time_seconds", minute // 20)],
    ),
    "CepEventsAhead": (
        lambda minute: [counter("cep_events_ahead", minute // 30)],
        lambda _: [counter("cep_events_ahead", 5)],
    ),
    "CepAlertsWait": (
        lambda _: [gauge("cep_undelivered_alerts", 3)],
        lambda minute: [gauge("cep_undelivered_alerts", 3 if minute % 10 else 0)],
    ),
    "CepSinkBehind": (
        lambda minute: [gauge("cep_sink_oldest_alert_seconds", 60 * (minute % 5), sink="hook")],
        lambda minute: [gauge("cep_sink_oldest_alert_seconds", 60 * (minute % 3), sink="hook")],
    ),
    "CepAlertsRefused": (
        lambda minute: [counter("cep_alerts_refused", minute // 30)],
        lambda _: [counter("cep_alerts_refused", 5)],
    ),
    "CepEventsLate": (
        lambda minute: [counter("cep_late_events", minute), counter("cep_events", 900 * minute)],
        lambda minute: [counter("cep_late_events", minute), counter("cep_events", 1_100 * minute)],
    ),
}


def rung(metrics: Callable[[int], list[Metric]], scale: float = 1.0) -> Alarms:
    alarms = Alarms(scale)
    for minute in range(HOUR):
        alarms.scrape(int(minute * MINUTE_MS * scale), [*WELL, *metrics(minute)])
    return alarms


def test_every_rule_is_read() -> None:
    assert all(parsed(rule["expr"]) for rule in rules())


def test_a_rule_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="no shape"):
        parsed("cep_live == 0 or topk(3, cep_runs) > 2")


@pytest.mark.parametrize("alarm", CASES)
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_an_alarm_rings_and_does_not(alarm: str, scale: float) -> None:
    wrong, right = CASES[alarm]
    assert list(rung(wrong, scale).rung) == [alarm]
    assert rung(right, scale).rung == {}


def test_an_alarm_on_a_part_names_it_and_waits_for_each_by_itself() -> None:
    def metrics(minute: int) -> list[Metric]:
        return [gauge("cep_part_up", float(part != "sinks" or minute < 30), part=part) for part in ("sinks", "disk")]

    assert rung(metrics).rung == {'CepPartInTrouble{part="sinks"}': [minute * MINUTE_MS for minute in range(31, HOUR)]}


def test_an_alarm_rings_once_it_has_been_so_for_its_time() -> None:
    alarms = Alarms()
    for minute in range(10):
        alarms.scrape(minute * MINUTE_MS, None)
    assert alarms.rung == {"CepJobGone": [minute * MINUTE_MS for minute in range(5, 10)]}


def test_alarms_on_several_processes_tell_them_apart() -> None:
    alarms = Alarms()
    for minute in range(20):
        works = ("one",) if minute < 5 else ()
        metrics = [gauge("up", float(name in works or name == "two"), instance=name) for name in ("one", "two", "db")]
        metrics += [gauge("cep_live", 1.0, instance=name) for name in (*works, "two")]
        metrics += [gauge("cep_micro_batch_id", 1.0, instance=name) for name in (*works, "two")]
        metrics += [gauge("cep_standby", float(name == "two"), instance=name) for name in (*works, "two")]
        alarms.scrape(minute * MINUTE_MS, metrics)
    assert alarms.rung == {
        "CepNobodyWorks": [minute * MINUTE_MS for minute in range(6, 20)],
        "CepProcessDown": [minute * MINUTE_MS for minute in range(10, 20)],
    }, "db was never a process of cep"
