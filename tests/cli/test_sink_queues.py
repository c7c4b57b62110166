"""A real sink that hangs or refuses delays no other sink: it is named, it survives kill -9, and no alert is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import orjson
import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from cep.cli.main import main
from tests.cli.broken_sinks import Hanging
from tests.cli.test_outage import metrics, status, wait_for
from tests.cli.test_refused_alerts import Judge, asked
from tests.cli.test_run import RULES, free_port
from tests.cli.test_stopping import CONF, WAIT_S
from tests.real_kafka import KafkaCluster
from tests.real_postgres import IS_THERE, RealPostgres
from tests.runners.embedded.cases import deployment, expected, morning
from tests.runners.embedded.test_run import ROOT, consumed
from tests.spark_versions import on_this_spark
from tests.webhook import url_of

ALERT_BYTES_MAX = 200  # of a topic that takes no alert
COMMAND = "from cep.cli.main import entry; entry()"


def configured(folder: Path, events: str, alerts: list[str], port: int, more: str = "") -> Path:
    """The settings of a job in a folder."""
    folder.mkdir(exist_ok=True)
    shown = ", ".join(map(json.dumps, alerts))
    listen = f'listen = "{port}"\n{more}'
    text = CONF.format(rules=json.dumps(RULES), folder=folder, events=events, alerts=shown, more=listen)
    (folder / "cep.toml").write_text(text)
    return folder / "cep.toml"


def begun(verb: str, conf: Path, *more: str) -> subprocess.Popen[bytes]:
    """A job in a process group of its own, which has Spark's Java in it."""
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, verb, "--conf", str(conf), *more],
        env={**on_this_spark(), "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def killed(process: subprocess.Popen[bytes]) -> bytes:
    """Kill a job and all its processes without notice; return what it has said."""
    os.killpg(process.pid, signal.SIGKILL)
    _, said = process.communicate(timeout=WAIT_S)
    return said


def value(port: int, name: str, sink: str) -> float:
    """A metric of a sink; -1 if there is none."""
    start = f'{name}{{sink="{sink}"}} '
    return next((float(line.removeprefix(start)) for line in metrics(port) if line.startswith(start)), -1.0)


def has_all_but(port: int, healthy: list[str], waiting: list[str]) -> bool:
    """True if alerts wait for some sinks, and the others have taken all."""
    if status(port, "/live") == 0:
        return False
    counts = {name: value(port, "cep_sink_waiting_alerts", name) for name in (*healthy, *waiting)}
    delivered = {name: value(port, "cep_alerts_delivered_total", name) for name in healthy}
    is_waiting = min(counts[name] for name in waiting) > 0
    return is_waiting and max(counts[name] for name in healthy) == 0 and min(delivered.values()) > 0


def ids(lines: list[bytes]) -> Counter[str]:
    return Counter(orjson.loads(line)["alert_id"] for line in lines)


def lines_of(folder: Path) -> list[bytes]:
    return [line for path in folder.iterdir() for line in path.read_bytes().splitlines()]


@pytest.mark.slow
@pytest.mark.always
def test_sinks_that_hang_or_refuse_delay_no_other(kafka_broker: KafkaCluster, tmp_path: Path) -> None:
    """A webhook hangs, and alerts are too large for a topic; a topic, a folder and a table have all meanwhile."""
    if not kafka_broker.is_real:
        return
    good, small = (f"{name}-{uuid.uuid4().hex[:8]}" for name in ("good", "small"))
    kafka_broker.create(good, 1)
    kafka_broker.create(small, 1, max_message_bytes=str(ALERT_BYTES_MAX))
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(morning()))
    port, hook, folder = free_port(), Hanging(), str(tmp_path / "alerts")
    with ExitStack() as stack:
        stack.callback(hook.close)
        healthy, broken = [f"kafka:{good}", folder], [url_of(hook.server), f"kafka:{small}"]
        table: RealPostgres | None = None
        if IS_THERE:
            table = RealPostgres()
            stack.callback(table.close)
            healthy.append(table.address.replace("cep@", "…@"))
        sinks = [*broken, *healthy[:2], *([] if table is None else [table.address])]
        more = f'[kafka]\nbootstrap_servers = "{kafka_broker.address}"'
        conf = configured(tmp_path / "run", f'folder = "{tmp_path}/events.jsonl"', sinks, port, more)
        process = begun("run", conf)
        stack.callback(process.kill)
        wait_for(lambda: has_all_but(port, healthy, broken))
        wait_for(lambda: all(f"{name}" in asked(port, "/health")[1] for name in broken))
        code, health = asked(port, "/health")
        assert code == 503
        assert f"kafka:{small} at {kafka_broker.address}: an alert is larger than it allows" in health
        up = [line for line in metrics(port) if line.startswith("cep_sink_up")]
        address = f'address="{kafka_broker.address}"'
        assert f'cep_sink_up{{{address},reason="too_large",sink="kafka:{small}"}} 0.0' in up
        assert any(f'sink="{broken[0]}"}} 0.0' in line for line in up)
        assert all(any(f'reason="",sink="{name}"}} 1.0' in line for line in up) for name in healthy)
        said = killed(process).decode()
        assert any(small in line and kafka_broker.address in line for line in said.splitlines() if "unhealthy" in line)
        raise_limit(kafka_broker, small)
        hook.released.set()
        assert begun("run", conf, "--available-now").wait(WAIT_S) == 0
        wanted = ids(expected(morning(), deployment(), tmp_path))
        assert ids(lines_of(Path(folder))) == wanted
        for topic in (good, small):
            got = consumed(kafka_broker.address, topic, lambda values: len(values) >= len(wanted))
            assert ids(got) == wanted, topic
        assert set(hook.taken) == set(wanted)
        if table is not None:
            with psycopg.connect(table.address) as connection:
                rows = connection.execute("select alert_id from cep_alerts").fetchall()
            assert {row[0] for row in rows} == set(wanted)


def raise_limit(kafka: KafkaCluster, topic: str) -> None:
    """Let a topic take records of a megabyte."""
    limit = ConfigEntry("max.message.bytes", "1048576", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[limit])
    admin = AdminClient({"bootstrap.servers": kafka.address, "log_level": 2})
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)


@pytest.mark.slow
@pytest.mark.always
def test_refused_alerts_in_a_topic_are_listed_and_sent_again(
    kafka_broker: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, unwanted = f"letters-{uuid.uuid4().hex[:8]}", list[str]()
    kafka_broker.create(topic, 1)
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(morning()))
    receiver = Judge()

    def judge(names: list[str]) -> int:
        unwanted.append(names[0]) if not unwanted else None
        return 422 if unwanted[0] in names else 204

    receiver.judge = judge
    name = url_of(receiver.server)
    conf = configured(
        tmp_path / "run", f'folder = "{tmp_path}/events.jsonl"', [name], free_port(),
        f'[kafka]\nbootstrap_servers = "{kafka_broker.address}"',
    )  # fmt: skip
    conf.write_text(conf.read_text().replace("[output]\n", f'[output]\ndead_letter_topic = "{topic}"\n'))
    try:
        assert main(["run", "--conf", str(conf), "--available-now"]) == 0
        where = [f"kafka:{topic}", "--conf", str(conf)]
        capsys.readouterr()
        assert main(["job", "letters", "list", *where]) == 1
        shown = capsys.readouterr().out
        assert unwanted[0] in shown
        assert f"1 alerts were refused by {name}" in shown
        assert main(["job", "letters", "send", *where]) == 1
        assert f"{name}: 0 alerts sent, 1 refused again" in capsys.readouterr().out
        receiver.judge = lambda _: 204
        assert main(["job", "letters", "send", *where]) == 0
        wanted = ids(expected(morning(), deployment(), tmp_path))
        assert Counter(receiver.taken) == wanted
    finally:
        receiver.server.shutdown()
        receiver.server.server_close()
