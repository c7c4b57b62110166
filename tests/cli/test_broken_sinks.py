"""Sinks of seven kinds are broken, each in its own way: they delay no healthy one and no end, and lack no alert."""

from __future__ import annotations

import signal
from pathlib import Path

import orjson
import pytest

from tests.cli.broken_sinks import REASONS, BrokenSinks, open_broken_sinks
from tests.cli.test_outage import metrics, status, wait_for
from tests.cli.test_refused_alerts import asked
from tests.cli.test_run import free_port
from tests.cli.test_sink_queues import begun, configured, has_all_but, ids, killed, lines_of
from tests.cli.test_stopping import WAIT_S, verify_end
from tests.real_postgres import IS_THERE
from tests.runners.embedded.cases import deployment, expected, morning

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not IS_THERE, reason="no PostgreSQL on the path")]


def is_named(sinks: BrokenSinks, kind: str, health: str, up: list[str]) -> bool:
    """True if health and the metric have a sink, its address and one of the reasons for which it may be broken."""
    name, address = sinks.names[kind], sinks.addresses[kind]
    labels = [f'cep_sink_up{{address="{address}",reason="{reason}",sink="{name}"}} 0.0' for reason in REASONS[kind]]
    shown = name if name == address else f"{name} at {address}"
    return f"{shown}: " in health and any(line in up for line in labels)


@pytest.mark.parametrize(
    "runner", [pytest.param("run", marks=pytest.mark.always), pytest.param("live", marks=pytest.mark.spark)]
)
def test_broken_sinks_of_every_kind(runner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is asked to stop, started, killed, and started again once all sinks are repaired."""
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / "1.jsonl").write_bytes(b"\n".join(morning()))
    port, healthy = free_port(), str(tmp_path / "alerts")
    with open_broken_sinks(tmp_path, monkeypatch) as sinks:
        broken = [sinks.names[kind] for kind in REASONS]
        more = f'[kafka]\nbootstrap_servers = "{sinks.kafka.address}"'
        conf = configured(tmp_path / "job", f'folder = "{tmp_path}/events"', [*sinks.alerts.values()], port, more)
        process = begun(runner, conf)
        sinks.stack.callback(process.kill)
        wait_for(lambda: has_all_but(port, [healthy], broken))

        def are_named() -> bool:
            (code, health), up = asked(port, "/health"), [m for m in metrics(port) if m.startswith("cep_sink_up")]
            return code == 503 and all(is_named(sinks, kind, health, up) for kind in REASONS)

        wait_for(are_named)
        assert status(port, "/ready") == 503
        assert verify_end(process, tmp_path / "said") == len(ids(lines_of(Path(healthy)))) > 0
        log = [orjson.loads(line) for line in (tmp_path / "said").read_bytes().splitlines() if line.startswith(b"{")]
        logged = {(line["sink"], line["address"]): line["reason"] for line in log if line["event"] == "sink_away"}
        assert all(logged[sinks.names[kind], sinks.addresses[kind]] in reasons for kind, reasons in REASONS.items())

        process = begun(runner, conf)
        sinks.stack.callback(process.kill)
        wait_for(lambda: has_all_but(port, [healthy], broken))
        assert killed(process)
        assert process.returncode == -signal.SIGKILL

        sinks.repair()
        last = begun(runner, conf, "--available-now")
        sinks.stack.callback(last.kill)
        _, complaint = last.communicate(timeout=WAIT_S)
        assert last.returncode == 0, complaint.decode()
        alerts = sinks.taken()
        if runner == "run":
            assert alerts["folder"] == ids(expected(morning(), deployment(), tmp_path))
        assert set(alerts["folder"].values()) == {1}
        assert {kind: counts for kind, counts in alerts.items() if counts != alerts["folder"]} == {}
