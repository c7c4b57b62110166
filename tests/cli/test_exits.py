"""A topic that was created again, and records that its retention has deleted: both runners end with the final code."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

import orjson
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from cep.base.exits import Exit
from tests.real_kafka import TIMEOUT_S, KafkaCluster, RealKafka
from tests.runners.embedded.cases import morning
from tests.runners.spark.live_cases import ROOT
from tests.spark_versions import on_this_spark

WAIT_S = 300
RUNNERS = ["run", pytest.param("live", marks=[pytest.mark.spark, pytest.mark.slow])]


def work(verb: str, kafka: KafkaCluster, folder: Path, topic: str, *more: str) -> tuple[int, str]:
    """Let a job read the available events. Return its exit code and its output."""
    words = (
        verb, "--rules", str(ROOT / "rules"), "--bootstrap-servers", kafka.address, "--topic", topic,
        "--checkpoint", str(folder / "job"), "--alerts", str(folder / "alerts"), "--key-groups", "2",
        "--available-now", *more,
    )  # fmt: skip
    process = subprocess.run(
        [sys.executable, "-c", "import sys; from cep.cli.main import main; sys.exit(main())", *words],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=WAIT_S, env=on_this_spark(),
    )  # fmt: skip
    return process.returncode, process.stderr


def delete_records(kafka: KafkaCluster, topic: str, offset: int) -> None:
    """Delete the records before an offset, as the retention of the topic does."""
    admin = AdminClient({"bootstrap.servers": kafka.address, "log_level": 2})
    place = TopicPartition(topic, 0, offset)
    admin.delete_records([place])[place].result(TIMEOUT_S)


@pytest.mark.parametrize("verb", RUNNERS)
@pytest.mark.parametrize("fault", ["created again", "gone"])
def test_a_fault_that_a_restart_cannot_mend_has_a_code_of_its_own(
    verb: str, fault: str, kafka_broker: KafkaCluster, tmp_path: Path
) -> None:
    if not isinstance(kafka_broker, RealKafka):  # the mock cannot delete
        return
    topic, lines = f"exits-{uuid.uuid4().hex[:8]}", morning()[:300]
    kafka_broker.create(topic, 1)
    kafka_broker.send(topic, [{"value": line} for line in lines[:100]])
    assert work(verb, kafka_broker, tmp_path, topic)[0] == Exit.CLEAN
    if fault == "created again":
        kafka_broker.create_again(topic, 1)
    kafka_broker.send(topic, [{"value": line} for line in lines[100:]])
    if fault == "gone":
        delete_records(kafka_broker, topic, 200)
    for _ in range(2):  # a restart ends in the same way
        code, printed = work(verb, kafka_broker, tmp_path, topic)
        assert code == Exit.FINAL, printed
        assert fault in printed
    if fault == "created again":
        return
    if verb == "live":
        code, printed = work(verb, kafka_broker, tmp_path, topic, "--accept-gap")
        assert (code, "cep job savepoint" in printed) == (Exit.USAGE, True), printed
        return
    # An operator decides to continue.
    code, printed = work(verb, kafka_broker, tmp_path, topic, "--accept-gap")
    assert code == Exit.CLEAN, printed
    totals = orjson.loads((tmp_path / "job" / "progress.json").read_bytes())["totals"]
    assert (totals["records_gone"], totals["records"]) == (100, 200)
    assert work(verb, kafka_broker, tmp_path, topic)[0] == Exit.CLEAN, "it is decided once"
