"""The ids of topics are stored with positions: another topic of the same name ends a job, for both of its topics."""

from __future__ import annotations

import uuid
from pathlib import Path

import orjson
import pytest

from cep.base.exits import Exit
from cep.cli.main import main
from cep.runners.embedded.commit_entries import HEAD, Head, read_head
from cep.runners.handover.payload import payload_in
from cep.state.memory import MemoryStore
from cep.state.savepoints import open_savepoint
from cep.state.store import WriteBatch
from cep.state.target import Target
from tests.real_kafka import KafkaCluster, RealKafka
from tests.runners.embedded.cases import morning

ROOT = Path(__file__).parents[3]


def run(kafka: KafkaCluster, folder: Path, events: str, control: str) -> int:
    """Run one life of a job, to the end of the records."""
    topics = ["--bootstrap-servers", kafka.address, "--topic", events, "--control-topic", control]
    return main(["run", "--rules", str(ROOT / "rules"), *topics, "--checkpoint", str(folder), "--available-now"])


@pytest.mark.parametrize("number", [0, 1], ids=["events", "control"])
def test_a_topic_that_was_created_again_ends_the_job(
    number: int, kafka_broker: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not isinstance(kafka_broker, RealKafka):  # the mock cannot delete topics
        return
    topics = [f"{kind}-{uuid.uuid4().hex[:8]}" for kind in ("events", "control")]
    for topic in topics:
        kafka_broker.create(topic, 1)
    heartbeat = orjson.dumps({"kind": "heartbeat", "event_time_ms": 0})
    records = [[{"value": line} for line in morning()[:200]], [{"value": heartbeat}]]
    for topic, sent in zip(topics, records, strict=True):
        kafka_broker.send(topic, sent)
    assert run(kafka_broker, tmp_path / "job", *topics) == 0
    assert run(kafka_broker, tmp_path / "job", *topics) == 0, "the same topics are read on"
    saved = tmp_path / "saved"
    assert main(["job", "savepoint", "--checkpoint", str(tmp_path / "job"), "--to", str(saved)]) == 0
    assert set(payload_in(open_savepoint(Target(str(saved)), tmp_path / "work")).topic_ids) == set(topics)
    kafka_broker.create_again(topics[number], 1)
    kafka_broker.send(topics[number], records[number] * 2)  # all offsets of the old topic exist in the new one
    capsys.readouterr()
    assert run(kafka_broker, tmp_path / "job", *topics) == Exit.FINAL
    message = capsys.readouterr().err
    assert f"cep: topic {topics[number]} was deleted and created again" in message
    assert "start with a new checkpoint" in message
    restore = ["job", "restore", "--from", str(saved), "--checkpoint"]
    assert main([*restore, str(tmp_path / "restored")]) == 0
    assert run(kafka_broker, tmp_path / "restored", *topics) == Exit.FINAL
    assert run(kafka_broker, tmp_path / "new", *topics) == 0
    totals = orjson.loads((tmp_path / "new" / "progress.json").read_bytes())["totals"]
    assert totals["events"] == (400 if number == 0 else 200)


def test_a_commit_of_a_build_without_ids_is_read() -> None:
    store, batch = MemoryStore(), WriteBatch()
    Head(3, 0, "a", range(8), {}, {"events": {"t[0]": 5}, "control": {}}, topic_ids={"t": "id"}).save(batch)
    store.write(batch)
    head = read_head(store)
    assert head is not None
    assert head.topic_ids == {"t": "id"}
    fields = orjson.loads(store.get(HEAD) or b"")
    del fields["topic_ids"]
    older = WriteBatch()
    older.put(HEAD, orjson.dumps(fields))
    store.write(older)
    head = read_head(store)
    assert head is not None
    assert head.topic_ids == {}
    assert head.positions["events"] == {"t[0]": 5}
