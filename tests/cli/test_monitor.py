"""Alert rules and dashboard name existing metrics, and Prometheus accepts the rules."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cep.cli.main import main
from cep.cli.monitor import FILES, FOLDER
from cep.runners.http import served
from cep.runners.meanings import COUNTERS, FROM_ZERO, GAUGES, HISTOGRAMS, TOTALS_THAT_FALL
from cep.runners.observe import Observed
from tests.cli.monitored import dashboard, names_used, rules
from tests.real_prometheus import Tools


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


def test_the_verb_prints_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    for part, name in FILES.items():
        assert main(["job", "monitor", part]) == 0
        assert capsys.readouterr().out == (FOLDER / name).read_text(encoding="utf-8")


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
    path = FOLDER / FILES["alerts"]
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
        text = (FOLDER / FILES["alerts"]).read_text(encoding="utf-8").replace("for: 1m", "for: 0s")
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
