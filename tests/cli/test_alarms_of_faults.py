"""Real faults of a real job, scraped by a real Prometheus: each fires its alert rule of the shipped file.

The waits of the rules (`for`) are a second here, and the alert age of CepSinkBehind is two. All else is as shipped.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import orjson
import pytest

from cep.base.utc import utc_text
from cep.cli.monitor import FILES, FOLDER
from cep.model.rule import HeartbeatRecord
from tests.cli.test_monitor import _states
from tests.cli.test_outage import wait_for
from tests.cli.test_refused_alerts import Judge
from tests.cli.test_run import free_port
from tests.cli.test_sink_queues import Hanging, begun, configured, killed
from tests.real_prometheus import Tools
from tests.runners.embedded.cases import morning
from tests.webhook import url_of

DAY_MS = 86_400_000
FAULTY = 20
# A sink that hangs; one that refuses; late, early and unreadable records; an early heartbeat; old events; a job that
# is killed, and started too often.
FIRED = {
    "CepAlertsWait", "CepSinkBehind", "CepPartInTrouble", "CepAlertsRefused", "CepEventsLate", "CepEventsAhead",
    "CepRecordsUnreadable", "CepChangeRefused", "CepWatermarkBehind", "CepAlertsLate", "CepJobGone", "CepProcessDown",
    "CepRestartsOften",
}  # fmt: skip


def prometheus_of(tools: Tools, folder: Path, job_port: int, port: int) -> subprocess.Popen[bytes]:
    """Start a Prometheus that scrapes a job and evaluates the shipped rules."""
    text = re.sub(r"for: \d+m", "for: 1s", (FOLDER / FILES["alerts"]).read_text(encoding="utf-8"))
    folder.mkdir()
    (folder / "rules.yml").write_text(text.replace("seconds > 120", "seconds > 2"), encoding="utf-8")
    scrape = {"job_name": "cep", "static_configs": [{"targets": [f"127.0.0.1:{job_port}"]}]}
    config = {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(folder / "rules.yml")], "scrape_configs": [scrape],
    }  # fmt: skip
    (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")
    command = [
        str(tools.prometheus), f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}", "--log.level=error",
    ]  # fmt: skip
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def holds(port: int, expression: str) -> bool:
    """True if an expression has a value now."""
    query = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{query}", timeout=5) as answer:
            return bool(json.load(answer)["data"]["result"])
    except OSError:
        return False


def faulty_records() -> list[bytes]:
    """Records that are late, early or unreadable."""
    first = orjson.loads(morning()[0])
    early = utc_text(int(time.time() * 1_000) + 30 * DAY_MS)
    late = [orjson.dumps({**first, "tx_id": f"late{number}"}) for number in range(FAULTY)]
    return [*late, *(orjson.dumps({**first, "tx_id": f"early{n}", "event_time": early}) for n in range(FAULTY)), b"{"]


@pytest.mark.slow
@pytest.mark.always
def test_each_fault_fires_its_rule(prometheus: Tools, tmp_path: Path) -> None:
    for name in ("events", "control"):
        (tmp_path / name).mkdir()
    (tmp_path / "events" / "1.jsonl").write_bytes(b"\n".join(morning()))
    job_port, port, hanging, refusing = free_port(), free_port(), Hanging(), Judge(lambda _: 422)
    sinks = [url_of(hanging.server), url_of(refusing.server), str(tmp_path / "alerts")]
    fired: set[str] = set()

    def has_fired(*names: str) -> bool:
        fired.update(name for name, (_, state) in _states(port).items() if state == "firing")
        return fired.issuperset(names)

    conf = configured(tmp_path / "run", f'folder = "{tmp_path}/events"', sinks, job_port)
    conf.write_text(conf.read_text() + f'[control]\nfolder = "{tmp_path}/control"\n')
    with ExitStack() as stack:
        stack.callback(hanging.close)
        stack.callback(refusing.server.server_close)
        stack.callback(refusing.server.shutdown)
        process = begun("run", conf)
        stack.callback(lambda: process.kill())
        server = prometheus_of(prometheus, tmp_path / "prometheus", job_port, port)
        stack.callback(server.wait)
        stack.callback(server.kill)
        wait_for(lambda: holds(port, f"cep_events_total == {len(morning())}"))
        (tmp_path / "events" / "2.jsonl").write_bytes(b"\n".join(faulty_records()))
        tomorrow = HeartbeatRecord(event_time=utc_text(int(time.time() * 1_000) + DAY_MS))
        (tmp_path / "control" / "1.jsonl").write_bytes(tomorrow.to_json())
        wait_for(lambda: has_fired(*(FIRED - {"CepJobGone", "CepProcessDown", "CepRestartsOften"})))
        killed(process)
        wait_for(lambda: has_fired("CepJobGone", "CepProcessDown"))
        for _ in range(2):
            process = begun("run", conf)
            wait_for(lambda: holds(port, "cep_live == 1"))
            killed(process)
            wait_for(lambda: not holds(port, "cep_live == 1"))
        process = begun("run", conf)
        wait_for(lambda: has_fired(*FIRED))
        killed(process)
