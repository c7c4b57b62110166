"""Every fault of the simulation: the job's alerts equal the replay, and the expected alarms ring.

A sample of the fault matrix keeps the promises, and its oracle sees a lost alert. On a real broker, two seeds of each
runner are right. The soak's rules are sound, its judges detect faults, and a short one ends well. Every alert rule can
be evaluated, rings where Prometheus' would, and names the part.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import orjson
import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from cep.rulebook.deploy import deploy
from cep.rulebook.files import read_rules
from tests.bench.metrics import Samples
from tests.cli.monitored import rules
from tests.faults import soak
from tests.faults.alarms import Alarms, parsed
from tests.faults.matrix import cells
from tests.faults.matrix.campaign import run_numbers
from tests.faults.matrix.campaign import table as matrix_table
from tests.faults.matrix.cells import CELLS as MATRIX_CELLS
from tests.faults.matrix.cells import FAULTS as MATRIX_FAULTS
from tests.faults.matrix.cells import MOMENTS as MATRIX_MOMENTS
from tests.faults.matrix.cells import SHAPES, Cell, run_cell, world
from tests.faults.matrix.shims import simulated
from tests.faults.real import FAULTS as REAL_FAULTS
from tests.faults.real import OF_RUN, Outcome, chosen
from tests.faults.real import table as real_table
from tests.faults.real_cells import CELLS, MOMENTS
from tests.faults.real_cells import FAULTS as CELL_FAULTS
from tests.faults.simulation import FAULTS, Simulation, table
from tests.real_postgres import IS_THERE
from tests.seeds import seeds
from tests.webhook import Webhook


@pytest.mark.parametrize("seed", seeds(30, 2))
def test_a_seed(seed: int, tmp_path: Path) -> None:
    outcome = Simulation(seed, tmp_path).run()
    assert outcome.problem == "", f"seed {seed}: {outcome.begun_ms}"


@pytest.mark.parametrize("half", [0, 1])
def test_every_fault_is_survived_and_seen(half: int, tmp_path: Path) -> None:
    named = [name for name in FAULTS if not name.startswith("clock")]
    outcome = Simulation(100 + half, tmp_path, named[half::2]).run()
    assert outcome.problem == ""
    assert set(outcome.begun_ms) == set(named[half::2])
    assert {row[0] for row in table([outcome]) if row[1] == "1"} == set(named[half::2])


def test_nothing_rings_in_a_quiet_hour(tmp_path: Path) -> None:
    outcome = Simulation(7, tmp_path, ["old heartbeat"]).run()
    assert outcome.problem == ""
    assert outcome.rung == {}


STEP = 97  # coprime to the number of cells: a few neighbours differ in fault, moment and runner


@pytest.mark.parametrize("seed", seeds(400, 10))
def test_a_cell_keeps_the_promises(seed: int) -> None:
    ((number, result),) = run_numbers([seed * STEP])
    assert result.problem == "", f"cell {number}, {result.cell}\n" + "\n".join(result.log)
    assert result.has_begun


def test_the_first_cells_have_each_combination_once() -> None:
    assert len(set(MATRIX_CELLS)) == len(MATRIX_CELLS)
    assert {cell.fault for cell in MATRIX_CELLS} == set(MATRIX_FAULTS)
    for fault in MATRIX_FAULTS:
        assert {cell.moment for cell in MATRIX_CELLS if cell.fault == fault} == set(MATRIX_MOMENTS)
        assert {cell.shape for cell in MATRIX_CELLS if cell.fault == fault} <= set(SHAPES)


def test_a_cell_repeats_exactly() -> None:
    (_, first), (_, second) = run_numbers([STEP, STEP])
    assert (first.exits, first.named_s, first.recovery_s, first.stop_s) == (
        second.exits, second.named_s, second.recovery_s, second.stop_s,
    )  # fmt: skip


def test_a_lost_alert_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle sees a receiver that forgets an alert, and the table counts the cell."""
    whole = cells.World._found

    def found(self: cells.World) -> dict[str, Counter[str]]:
        alerts = whole(self)
        alerts["kafka:alerts"].popitem()
        return alerts

    monkeypatch.setattr(cells.World, "_found", found)
    with simulated(world):
        result = run_cell(Cell("killed", "steady state", "run"), tmp_path)
    assert "1 alerts are missing" in result.problem
    assert next(row for row in matrix_table([(0, result)]) if row[0] == "killed")[-1] == "1"


@pytest.mark.parametrize("seed", seeds(40, 2))
def test_a_stop_while_brokers_restart_is_no_failure(seed: int, tmp_path: Path) -> None:
    """The last transaction has no alert but the changes of the state, and fails: the next start brings them."""
    with simulated(world):
        result = run_cell(Cell("brokers restart one by one", "shutdown", "run --changelog", seed), tmp_path)
    assert result.problem == ""
    assert set(result.exits) == {0}


def drawn(runner: str, *, has_disk: bool) -> set[str]:
    return {name for seed in range(300) for name in chosen(Random(seed), runner, has_disk=has_disk)}


def test_every_fault_is_drawn_where_it_can_be() -> None:
    there = set(REAL_FAULTS) - ({"outage of the sink"} if not IS_THERE else set())
    assert drawn("run", has_disk=True) == there
    assert drawn("live", has_disk=False) == there - {*OF_RUN, "topic recreated", "disk full"}


def test_the_table_has_what_rang_and_after_how_long() -> None:
    outcomes = [Outcome(0, ["killed"], after_s={"killed": {"CepJobGone": seconds}}) for seconds in (4.0, 6.0, 11.0)]
    rows = {row[0]: row[1:] for row in real_table(outcomes)}
    assert rows["killed"] == ("3", "CepJobGone in 3, after 6 (11)")
    assert rows["burst"] == ("0", "-")


def test_each_fault_is_at_each_moment_of_each_runner() -> None:
    assert len(set(CELLS)) == len(CELLS) == 2 * len(CELL_FAULTS) * len(MOMENTS)
    assert len(CELLS) >= 200


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["run", pytest.param("live", marks=pytest.mark.spark)])
def test_a_cell(runner: str) -> None:
    words = ["-m", "tests.faults.real_cells", "--runner", runner, "--only", "killed, steady state", "--cells", "1"]
    process = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, cwd=soak.ROOT)
    assert process.stdout.splitlines()[-1:] == ["wrong: none"], process.stdout + process.stderr


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["run", pytest.param("live", marks=pytest.mark.spark)])
def test_two_seeds(runner: str) -> None:
    words = [sys.executable, "-m", "tests.faults.real", "--seeds", "2", "--runner", runner]
    result = subprocess.run(words, capture_output=True, text=True, check=False, cwd=soak.ROOT)
    assert result.stdout.splitlines()[-1:] == ["wrong: none"], result.stdout + result.stderr
    assert result.returncode == 0


NOW_MS = 1_767_225_600_000


def test_its_rules_are_taken_and_its_publisher_changes_them(tmp_path: Path) -> None:
    soak.write_rules(tmp_path / "rules")
    records, problems = read_rules(tmp_path / "rules")
    assert problems == []
    assert not deploy(records).set_aside
    publisher = soak.Publisher(records[0])
    for minute in range(4):
        assert publisher.changes(NOW_MS + minute) if minute % 2 == 0 else publisher.end()
    versions = [orjson.loads(line)["version"] for line in publisher.records if b'"temporary"' in line]
    assert versions == [1, 1, 2, 2, 3, 3, 4, 4]


def test_its_payments_have_numbers_of_their_own(tmp_path: Path) -> None:
    payments = soak.Payments(Random(1), tmp_path / "history")
    sent = [payments.payment(NOW_MS), *payments.odd(NOW_MS)]
    payments.write()
    written = (tmp_path / "history").read_bytes().splitlines()
    assert len(set(written)) == len(written)
    assert set(sent) - set(written) == {b"{", b"{}"}


def test_what_grows_is_seen() -> None:
    samples = Samples()
    for value in range(100):
        samples.add({soak.FLAT[0]: 1_000.0 + value, soak.FLAT[1]: 1_000.0 + 10 * value, "other": value})
    rows, is_flat = soak.judge_flat(samples)
    assert not is_flat
    assert [row[0] for row in rows] == [soak.FLAT[0], soak.FLAT[1], "other"]
    samples.found.pop(soak.FLAT[1])
    assert soak.judge_flat(samples)[1]


def test_what_is_missing_or_comes_twice_is_seen() -> None:
    assert soak.judge_sinks(["a", "b"], {"x": ["b", "a"]}) == ([("x", "2", "0", "0")], True)
    assert soak.judge_sinks(["a", "b"], {"x": ["b", "b"]}) == ([("x", "2", "1", "1")], False)


def test_each_metric_that_is_expected_elsewhere_is_named_by_its_test() -> None:
    assert set(soak.page()) > soak.ELSEWHERE.keys()
    for name, path in soak.ELSEWHERE.items():
        label = name if name == "cep_live" else name.removeprefix("cep_").removesuffix("_total")
        assert f'"{label}"' in (soak.ROOT / path).read_text(encoding="utf-8"), f"{path} does not name {name}"


def test_a_metric_that_stood_still_is_a_fault() -> None:
    moved = set(soak.page()) - soak.ELSEWHERE.keys()
    assert soak.judge_moved(moved)[1]
    lines, have_moved = soak.judge_moved(moved - {"cep_runs"})
    assert not have_moved
    assert lines[-1] == "of these expected here: cep_runs"


def test_a_webhook_notes_what_comes_again() -> None:
    webhook = Webhook()
    line = b'{"alert_id": "a", "detected_at": "2026-01-01T00:00:00Z", "n": 1}'
    for body, batch_id in ((line, 3), (line, 3), (line.replace(b"1}", b"2}"), 4)):
        webhook.take(body + b"\n", batch_id)
    assert (webhook.repeats, dict(webhook.again)) == (2, {3: 1, 4: 1})
    assert (webhook.lines, webhook.changed, webhook.wrong_batches) == ({"a": line}, ["a"], ["a"])


@pytest.mark.slow
def test_two_minutes() -> None:
    words = [sys.executable, "-m", "tests.faults.soak", "--minutes", "2", "--rate", "30"]
    result = subprocess.run(words, capture_output=True, text=True, check=False, cwd=soak.ROOT)
    lines = [line.split() for line in result.stdout.splitlines()]
    sinks = {line[0]: line[-2:] for line in lines if line and line[0] in ("folder", "Parquet", "webhook", "topic")}
    assert sinks == {name: ["0", "0"] for name in ("folder", "Parquet", "webhook", "topic")}, (
        result.stdout + result.stderr
    )


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
