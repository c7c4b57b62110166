"""Alert rules and dashboard: their names, their alarms, and real faults that fire them."""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import pytest

from cep.base.text import utc_text
from cep.cli.docs import MONITORING, MONITORING_FILES
from cep.cli.main import main
from cep.model.rule import HeartbeatRecord
from cep.runners.http import served
from cep.runners.meanings import COUNTERS, FROM_ZERO, GAUGES, HISTOGRAMS, TOTALS_THAT_FALL
from cep.runners.observe import Observed
from tests.cli.monitored import dashboard, names_used, rules
from tests.cli.test_outage import wait_for
from tests.cli.test_run import RULES, Judge, begun, configured, free_port
from tests.cli.test_sinks import Hanging, killed
from tests.output_of import OutputOf
from tests.real_kafka import RealKafka
from tests.real_prometheus import Tools
from tests.real_s3 import open_s3
from tests.rule_files import rule_text
from tests.runners.embedded.cases import morning
from tests.runners.embedded.test_run import ROOT, place
from tests.small_disk import small_disk
from tests.webhook import url_of

# Alert rules and dashboard name existing metrics, and Prometheus accepts the rules.


def test_every_name_is_a_metric_of_ours() -> None:
    counters = {f"cep_{name}_total" for name in (*FROM_ZERO, *COUNTERS)}
    others = {f"cep_{name}" for name in (*GAUGES, *TOTALS_THAT_FALL, *HISTOGRAMS)}
    used = {name for name in names_used() if name.startswith("cep_")}
    assert used - counters - others == set()
    assert len(used) > 20


def test_what_a_rule_waits_for_is_there_before_the_first_count() -> None:
    """Prometheus sees no increase in a counter that first appears with a 1."""
    waited = {name for rule in rules() for name in re.findall(r"increase\(cep_(\w+)_total", rule["expr"])}
    assert waited
    assert waited <= FROM_ZERO.keys()


def test_every_rule_says_what_and_how_bad() -> None:
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical"), rule["alert"]
        assert rule["annotations"].keys() == {"summary", "description"}, rule["alert"]


def test_panels_do_not_overlap() -> None:
    places = [panel["gridPos"] for panel in dashboard()["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_the_verb_prints_the_files(output_of: OutputOf) -> None:
    for part, name in MONITORING_FILES.items():
        assert output_of(main(["job", "monitor", part])).out == (MONITORING / name).read_text(encoding="utf-8")


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    """Return samples a minute apart, in promtool's notation."""
    shown = ",".join(f'{label}="{value}"' for label, value in {"instance": "a", "job": "cep", **labels}.items())
    return {"series": f"{name}{{{shown}}}", "values": values}


# The metrics of a job over an hour, and the alarms that ring at its end.
HOURS: Mapping[str, tuple[list[dict[str, str]], set[str]]] = {
    "well": ([series("cep_events_total", "0+6000x60"), series("cep_late_events_total", "0+3x60")], set()),
    "late": ([series("cep_events_total", "0+6000x60"), series("cep_late_events_total", "0+60x60")], {"CepEventsLate"}),
    "silent": ([series("cep_events_total", "9x60"), series("cep_late_events_total", "3x60")], set()),
    "broker": ([series("cep_part_up", "1x30 0x30", part="brokers")], {"CepPartInTrouble"}),
    "stuck": ([series("cep_live", "1x50 0x10")], {"CepStuck"}),
    "behind": ([series("cep_lag_records", "0+1000x60", partition="p[0]")], {"CepLagGrows"}),
    "catches up": ([series("cep_lag_records", "900000-9000x60", partition="p[0]")], set()),
    "refused": ([series("cep_control_refused_total", "0x55 1x5")], {"CepChangeRefused"}),
    "slow": (
        [
            series("cep_alert_latency_seconds_bucket", "0+1x60", le="60"),
            series("cep_alert_latency_seconds_bucket", "0+10x60", le="300"),
            series("cep_alert_latency_seconds_bucket", "0+10x60", le="+Inf"),
        ],
        {"CepAlertsLate"},
    ),
    "gone": ([], {"CepJobGone"}),
    "one of two is gone": (
        [series("up", "1x60", instance="b"), series("up", "1x40 0x20"), series("cep_live", "1x40 _x20")],
        {"CepProcessDown"},
    ),
    "another program is gone": ([series("up", "0x60", instance="database", job="others")], set()),
    "one works": (
        [series("cep_standby", "0x60"), series("cep_standby", "1x60", instance="b")],
        set(),
    ),
    "nobody works": (
        [series("cep_standby", "0x40 _x20"), series("cep_standby", "1x60", instance="b")],
        {"CepNobodyWorks"},
    ),
    "nobody works of one job": (
        [series("cep_standby", "1x60", job="one"), series("cep_standby", "0x60", job="another", instance="b")],
        {"CepNobodyWorks"},
    ),
}


@pytest.mark.slow
@pytest.mark.always
def test_promtool_takes_the_rules_and_they_ring_when_they_should(prometheus: Tools, tmp_path: Path) -> None:
    path = MONITORING / MONITORING_FILES["alerts"]
    subprocess.run([str(prometheus.promtool), "check", "rules", str(path)], check=True, capture_output=True)
    tests = []
    for shown, ringing in HOURS.values():
        alive = [series("cep_micro_batch_id", "0+1x60")] if "CepJobGone" not in ringing else []
        names = " or ".join(f'count(ALERTS{{alertname="{name}",alertstate="firing"}})' for name in sorted(ringing))
        counted: dict[str, Any] = {"expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": "59m"}
        counted["exp_samples"] = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(ringing)]
        assert names or not ringing
        tests.append({"interval": "1m", "input_series": [*shown, *alive], "promql_expr_test": [counted]})
    (tmp_path / "tests.yml").write_text(
        json.dumps({"rule_files": [str(path)], "evaluation_interval": "1m", "tests": tests}), encoding="utf-8"
    )
    process = subprocess.run(
        [str(prometheus.promtool), "test", "rules", str(tmp_path / "tests.yml")],
        check=False,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.slow
@pytest.mark.always
def test_a_real_prometheus_scrapes_a_job_and_rings(prometheus: Tools, tmp_path: Path) -> None:
    """Prometheus reads the port, evaluates every rule without an error, and raises the alarm for missing brokers."""
    observed = Observed(3_600_000)
    observed.note("brokers", "no answer")
    with served(("127.0.0.1", 0), observed) as job, served(("127.0.0.1", 0), Observed(0)) as free:
        assert job is not None
        assert free is not None
        port = free[1]
    with served(job, observed):
        scrape = {"job_name": "cep", "static_configs": [{"targets": [f"{job[0]}:{job[1]}"]}]}
        text = (MONITORING / MONITORING_FILES["alerts"]).read_text(encoding="utf-8").replace("for: 1m", "for: 0s")
        (tmp_path / "rules.yml").write_text(text, encoding="utf-8")
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(tmp_path / "rules.yml")], "scrape_configs": [scrape],
        }  # fmt: skip
        (tmp_path / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
        command = [
            str(prometheus.prometheus), f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}", f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
        ]  # fmt: skip
        server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            states: dict[str, tuple[str, str]] = {}
            for _ in range(600):
                states = _states(port)
                if states and states["CepPartInTrouble"][1] == "firing":
                    break
                time.sleep(0.1)
            refused = {expr: status for expr in panels() if (status := _asked(port, expr)) != "success"}
        finally:
            server.kill()
            server.wait()
    assert states["CepPartInTrouble"] == ("ok", "firing")
    assert not refused, "expressions of the dashboard"
    assert {health for health, _ in states.values()} <= {"ok", "unknown"}


def panels() -> list[str]:
    """Return the expressions of the dashboard, with a value for each of Grafana's variables."""
    queries = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    assert len(queries) > 10
    return [re.sub(r"\$(?:__)?\w*(?:interval|range)\w*", "5m", expr).replace("$instance", ".*") for expr in queries]


def _asked(port: int, expression: str) -> str:
    """Evaluate an expression; return its status."""
    query = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{query}", timeout=5) as answer:
            return str(json.load(answer)["status"])
    except OSError as error:
        return str(error)


def _states(port: int) -> dict[str, tuple[str, str]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/rules", timeout=5) as answer:
            groups = json.load(answer)["data"]["groups"]
    except OSError:
        return {}
    return {rule["name"]: (rule["health"], rule["state"]) for group in groups for rule in group["rules"]}


def _figures(port: int) -> list[str]:
    """Return the figures of a job, or the reason why it gives none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines: list[str] = answer.read().decode().splitlines()
    except OSError as error:
        return [str(error)]
    return [line for line in lines if not line.startswith("#") and "_bucket{" not in line]


# Real faults of real jobs, scraped by a real Prometheus: each fires its rule of the shipped file until it is repaired.
#
# The waits of the rules (`for`) and their windows are seconds here. All else is as shipped.

DAY_MS = 86_400_000
FAULTY = 20
DISK_MB, ROOMY_DISK = 900, "size=4g"  # below and above the limit of the rule
PER_KEY = 1_200  # partial matches of a card, more than a rule keeps
BACKLOG = 12_000
# A sink that hangs; one that refuses; late, early and unreadable records; an early heartbeat; old events; a job that
# is killed, and started too often; a sink that is gone from the settings.
OF_FILES = {
    "CepAlertsWait", "CepSinkBehind", "CepPartInTrouble", "CepAlertsRefused", "CepEventsLate", "CepEventsAhead",
    "CepRecordsUnreadable", "CepChangeRefused", "CepWatermarkBehind", "CepAlertsLate",
}  # fmt: skip
OF_PROCESSES = {"CepJobGone", "CepProcessDown", "CepRestartsOften", "CepAlertsAbandoned"}
# A full disk; a target that is away; too many files; a flood on one card; a job that is stuck; its backlog; a lease
# that nobody gets.
OF_MACHINES = {
    "CepDiskFull", "CepNoCheckpoint", "CepFewFilesLeft", "CepMatchesLost", "CepStuck", "CepLagGrows", "CepNobodyWorks",
}  # fmt: skip


def now_ms() -> int:
    return int(time.time() * 1_000)


class Watching:
    """A Prometheus that scrapes jobs, by name, and evaluates the shipped rules."""

    def __init__(self, tools: Tools, folder: Path, jobs: Mapping[str, list[int]]) -> None:
        folder.mkdir()
        (folder / "rules.yml").write_text(
            in_seconds((MONITORING / MONITORING_FILES["alerts"]).read_text(encoding="utf-8"))
        )
        scrapes = [
            {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}
            for name, ports in jobs.items()
        ]
        config = {
            "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(folder / "rules.yml")], "scrape_configs": scrapes,
        }  # fmt: skip
        (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
        self.port = free_port()
        self._ports = [port for ports in jobs.values() for port in ports]
        command = [
            str(tools.prometheus), f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=error",
        ]  # fmt: skip
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def close(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.wait()

    def firing(self) -> set[str]:
        """Return the rules that fire now."""
        return {name for name, (_, state) in _states(self.port).items() if state == "firing"}

    def wait_until_fired(self, *names: str) -> None:
        """Wait until each of these rules has fired."""
        lacking = set(names)

        def is_over() -> bool:
            lacking.difference_update(self.firing())
            return not lacking

        try:
            wait_for(is_over)
        except AssertionError:
            for port in self._ports:
                print(f"metrics of {port}:", *_figures(port), sep="\n")
            raise AssertionError(f"these rules have not fired: {sorted(lacking)}") from None

    def wait_until_quiet(self, *names: str) -> None:
        """Wait until none of these rules fires."""
        try:
            wait_for(lambda: not self.firing() & set(names))
        except AssertionError:
            raise AssertionError(f"these rules fire still: {sorted(self.firing() & set(names))}") from None

    def holds(self, expression: str) -> bool:
        """True if an expression has a value now."""
        query = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/query?{query}", timeout=5) as answer:
                return bool(json.load(answer)["data"]["result"])
        except OSError:
            return False


def in_seconds(text: str) -> str:
    """The rules with short waits and windows. A job needs some seconds to start, so starts are counted for longer."""
    text = re.sub(r"for: \d+m", "for: 1s", text)
    text = text.replace("process_start_time_seconds[15m]", "process_start_time_seconds[90s]")
    text = re.sub(r"\[1[05]m\]", "[8s]", text)
    return text.replace("seconds > 120", "seconds > 2").replace(
        "checkpointed_seconds > 600", "checkpointed_seconds > 3"
    )


def test_each_rule_has_a_fault() -> None:
    assert {rule["alert"] for rule in rules()} == OF_FILES | OF_PROCESSES | OF_MACHINES


def faulty_records(numbers: Iterator[int]) -> bytes:
    """Records that are late, early or unreadable."""
    first, early = orjson.loads(morning()[0]), utc_text(now_ms() + 30 * DAY_MS)
    late = [orjson.dumps({**first, "tx_id": f"late{next(numbers)}"}) for _ in range(FAULTY)]
    ahead = [orjson.dumps({**first, "tx_id": f"early{next(numbers)}", "event_time": early}) for _ in range(FAULTY)]
    return b"\n".join([*late, *ahead, *[b"{}"] * FAULTY])


@pytest.mark.slow
@pytest.mark.parametrize(
    "runner", [pytest.param("run", marks=pytest.mark.always), pytest.param("live", marks=pytest.mark.spark)]
)
def test_faults_of_records_sinks_and_processes(runner: str, prometheus: Tools, tmp_path: Path) -> None:
    for name in ("events", "control"):
        (tmp_path / name).mkdir()
    job_port, hanging, refusing, numbers = free_port(), Hanging(), Judge(lambda _: 422), count()
    sinks = [url_of(hanging.server), url_of(refusing.server), str(tmp_path / "alerts")]

    def settings(alerts: list[str]) -> Path:
        conf = configured(tmp_path / "job", f'folder = "{tmp_path}/events"', alerts, job_port)
        conf.write_text(conf.read_text() + f'[control]\nfolder = "{tmp_path}/control"\n')
        return conf

    with ExitStack() as stack:
        stack.callback(hanging.close)
        stack.callback(refusing.server.server_close)
        stack.callback(refusing.server.shutdown)
        jobs = [begun(runner, settings(sinks))]
        stack.callback(end_all, jobs)
        watching = Watching(prometheus, tmp_path / "prometheus", {"cep": [job_port]})
        stack.callback(watching.close)
        # Rules watch increases: the counters must have been seen at zero.
        wait_for(lambda: watching.holds("cep_alerts_refused_total == 0"))
        place(tmp_path / "events", "a.jsonl", list(morning()))
        wait_for(lambda: watching.holds(f"cep_events_total == {len(morning())}"))
        place(tmp_path / "events", "b.jsonl", [faulty_records(numbers)])
        early = HeartbeatRecord(event_time=utc_text(now_ms() + DAY_MS))
        place(tmp_path / "control", "1.jsonl", [early.to_json()])
        watching.wait_until_fired(*OF_FILES)

        killed(jobs[-1])
        watching.wait_until_fired("CepJobGone", "CepProcessDown")
        for _ in range(2):
            jobs.append(begun(runner, settings(sinks)))
            wait_for(lambda: watching.holds("cep_live == 1"))
            killed(jobs[-1])
            wait_for(lambda: not watching.holds("cep_live == 1"))
        jobs.append(begun(runner, settings(sinks[1:])))  # the sink that hangs is gone
        watching.wait_until_fired("CepRestartsOften", "CepAlertsAbandoned")
        killed(jobs[-1])

        # What the runbook says: repair the sinks, send what was refused, and let good records of now come.
        hanging.released.set()
        refusing.judge = lambda _: 204
        letters = str(tmp_path / "job" / "job" / "dead_letters")
        assert main(["job", "letters", "send", letters, "--conf", str(settings(sinks))]) == 0
        jobs.append(begun(runner, settings(sinks)))

        def is_quiet() -> bool:
            """Send a payment of now, as the watermark follows payments; True if all is well."""
            payment = {**orjson.loads(morning()[0]), "tx_id": f"new{next(numbers)}", "event_time": utc_text(now_ms())}
            place(tmp_path / "events", f"c{next(numbers):06d}.jsonl", [orjson.dumps(payment)])
            return watching.holds("cep_live == 1") and not watching.firing()

        try:
            wait_for(is_quiet)
        except AssertionError:
            raise AssertionError(f"these rules fire still: {sorted(watching.firing())}") from None
        killed(jobs[-1])


def end_all(jobs: list[subprocess.Popen[bytes]]) -> None:
    for job in jobs:
        job.kill()


def payment_of(number: int, **fields: object) -> bytes:
    """A payment of now."""
    first = {**orjson.loads(morning()[0]), "tx_id": f"m{number}", "event_time": utc_text(now_ms()), **fields}
    return orjson.dumps(first)


FLOODED = """pattern flooded by card_id {
  seq    one -> other within 1 d
  where  one:   transaction  amount > 0.00
         other: transaction  amount > 900000.00 and amount > one.amount
}
"""


def flooded_rules(folder: Path) -> str:
    """A folder with one rule, which keeps a partial match for each payment of a card."""
    folder.mkdir()
    source = (ROOT / "patterns" / "events.cep").read_text()
    (folder / "flooded.cep").write_text(f"{source}\n{FLOODED}")
    (folder / "flooded.toml").write_text(rule_text("flooded", "flooded.cep", message="{key}"))
    return str(folder)


@contextmanager
def stopped_thread(pid: int) -> Iterator[None]:
    """Stop the main thread of a process, as a disk does that gives no answer; its other threads go on."""
    trace, attach, detach = ctypes.CDLL(None, use_errno=True).ptrace, 16, 17
    assert trace(attach, pid, None, None) == 0, os.strerror(ctypes.get_errno())
    os.waitpid(pid, 0)
    try:
        yield
    finally:
        trace(detach, pid, None, None)


@pytest.mark.slow
@pytest.mark.always
def test_faults_of_machines(prometheus: Tools, tmp_path: Path) -> None:
    """A disk, an object store, a limit of the process, a card, the thread of the job, and a lease."""
    job_port, hanging, numbers = free_port(), Hanging(), count()
    members = {name: free_port() for name in ("one", "two")}
    with ExitStack() as stack:
        stack.callback(hanging.close)
        kafka, s3 = stack.enter_context(RealKafka()), stack.enter_context(open_s3())
        disk = stack.enter_context(small_disk(tmp_path / "disk", DISK_MB))
        for topic in ("payments", "others", "alerts"):
            kafka.create(topic, 1)
        brokers = f'[kafka]\nbootstrap_servers = "{kafka.address}"\n'
        more = f'stalled = "2 s"\n{brokers}[embedded]\ndelivery = "at-least-once"\ntarget = "{s3.url("job")}"\n'
        more += 'checkpoints = "500 ms"\n'
        conf = configured(tmp_path / "disk" / "run", 'topic = "payments"', [url_of(hanging.server)], job_port, more)
        conf.write_text(conf.read_text().replace(json.dumps(RULES), json.dumps(flooded_rules(tmp_path / "rules"))))
        process = begun("run", conf)
        stack.callback(show_log, process)
        watching = Watching(prometheus, tmp_path / "prometheus", {"cep": [job_port], "pair": [*members.values()]})
        stack.callback(watching.close)

        def pay(payments: int, **fields: object) -> None:
            kafka.send("payments", [{"value": payment_of(next(numbers), **fields)} for _ in range(payments)])

        pay(1)
        wait_for(lambda: watching.holds("cep_events_total{job='cep'} >= 1"))
        if disk.is_mounted:
            watching.wait_until_fired("CepDiskFull")
            words = ["mount", "-o", f"remount,{ROOMY_DISK}", str(tmp_path / "disk")]
            subprocess.run(words, check=True)
            watching.wait_until_quiet("CepDiskFull")

        s3.stop()
        pay(1)
        watching.wait_until_fired("CepNoCheckpoint")
        s3.start()
        watching.wait_until_quiet("CepNoCheckpoint", "CepPartInTrouble")

        files = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (int(files / 0.9), hard))
        watching.wait_until_fired("CepFewFilesLeft")
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (soft, hard))
        watching.wait_until_quiet("CepFewFilesLeft")

        pay(PER_KEY, amount=1.0)
        watching.wait_until_fired("CepMatchesLost")
        watching.wait_until_quiet("CepMatchesLost")  # the flood is over

        def fills() -> bool:
            pay(BACKLOG)
            return {"CepStuck", "CepLagGrows"} <= watching.firing()

        with stopped_thread(process.pid):
            wait_for(fills)
        watching.wait_until_quiet("CepStuck", "CepLagGrows")
        killed(process)
        nobody_works(kafka, brokers, tmp_path, members, watching, stack)


def show_log(process: subprocess.Popen[bytes]) -> None:
    """Kill a job and print its log."""
    process.kill()
    print(process.communicate()[1].decode())


def nobody_works(
    kafka: RealKafka, brokers: str, folder: Path, members: Mapping[str, int], watching: Watching, stack: ExitStack
) -> None:
    """The process that works is killed while the broker is frozen, so that the one that stands by gets no lease."""
    processes: dict[str, subprocess.Popen[bytes]] = {}
    for name, port in members.items():
        more = f'{brokers}[embedded]\nchangelog = "state"\nstandby = true\n'
        conf = configured(folder / name, 'topic = "others"', ["kafka:alerts"], port, more)
        processes[name] = begun("run", conf)
        stack.callback(processes[name].kill)
        wait_for(lambda: watching.holds("cep_standby{job='pair'}"))
    wait_for(lambda: watching.holds("count(cep_standby{job='pair'} == 0) == 1 and count(cep_standby{job='pair'}) == 2"))
    works = next(name for name, port in members.items() if watching.holds(f"cep_standby{{instance=~'.*:{port}'}} == 0"))
    assert kafka._process is not None
    kafka._process.send_signal(signal.SIGSTOP)
    killed(processes[works])
    watching.wait_until_fired("CepNobodyWorks")
    kafka._process.send_signal(signal.SIGCONT)
    watching.wait_until_quiet("CepNobodyWorks")
    killed(processes[next(name for name in members if name != works)])
