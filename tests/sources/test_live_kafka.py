"""A topic as a live source: partitions are lanes, offsets positions, and headers of records fields of their events."""

import contextlib
import re
import time
import uuid
from random import Random

import orjson
import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import SourceError, UsageError
from cep.columnar.decode import decode_json
from cep.columnar.mapping import PLAIN, mapping_of
from cep.sources import kafka
from cep.sources.kafka import KafkaSettings, latest_offsets, read_range
from cep.sources.live import kafka as live_kafka
from cep.sources.live.base import Chunk
from cep.sources.live.kafka import TopicSource
from cep.sources.offsets import OffsetRange
from cep.sources.registry.form import RecordFormat, headers_of, with_headers
from tests.columnar.common import GOOD, TWO
from tests.real_kafka import KafkaCluster, MockCluster, RealKafka, new_topic


def drain(source: TopicSource, count: int) -> dict[str, list[bytes]]:
    """Return the values of each lane: wait for `count` of them, and then until every lane has reached its end."""
    values_by_lane: dict[str, list[bytes]] = {}
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        chunks: list[Chunk] = source.poll(100, 0.1)
        for chunk in chunks:
            values_by_lane.setdefault(chunk.lane, []).extend(chunk.values)
        at_end = source.ended or not any(source.behind().values())
        if not chunks and sum(map(len, values_by_lane.values())) >= count and at_end:
            return values_by_lane
    pytest.fail(f"{sum(map(len, values_by_lane.values()))} of {count} records came")


def send(kafka_broker: KafkaCluster, topic: str, first: int, end: int) -> dict[int, list[bytes]]:
    values: dict[int, list[bytes]] = {}
    records = []
    for n in range(first, end):
        values.setdefault(n % 3, []).append(b"%d" % n)
        records.append({"value": b"%d" % n, "partition": n % 3})
    kafka_broker.send(topic, records)
    return values


def test_every_record_of_every_partition_in_order_and_again_from_a_position(kafka_broker: KafkaCluster) -> None:
    topic = new_topic(kafka_broker)
    sent = send(kafka_broker, topic, 0, 300)
    source = TopicSource(KafkaSettings(kafka_broker.address), topic)
    values_by_lane = drain(source, 300)
    assert values_by_lane == {f"{topic}[{p}]": values for p, values in sent.items()}
    assert source.poll(2_000_000, 0.0) == [], "the client takes a million for a request"
    assert set(source.behind()) == {f"{topic}[{p}]" for p in range(4)}
    positions = source.positions()
    source.close()
    more = send(kafka_broker, topic, 300, 400)
    again = TopicSource(KafkaSettings(kafka_broker.address), topic)
    again.seek(positions)
    assert drain(again, 100) == {f"{topic}[{p}]": values for p, values in more.items()}
    again.close()


def test_partitions_that_are_let_go_and_taken_again_lose_and_double_nothing(kafka_broker: KafkaCluster) -> None:
    topic, chance = f"live-{uuid.uuid4().hex[:8]}", Random(5)
    kafka_broker.create(topic)
    sent = send(kafka_broker, topic, 0, 3_000)
    source, values_by_lane = TopicSource(KafkaSettings(kafka_broker.address), topic), dict[str, list[bytes]]()
    deadline_s = time.monotonic() + 30
    while sum(map(len, values_by_lane.values())) < 3_000 and time.monotonic() < deadline_s:
        lanes = {lane for lane in source.behind() if chance.random() < 0.4}
        source.hold(lanes)
        for chunk in source.poll(chance.randrange(1, 200), 0.05):
            assert chunk.lane not in lanes
            values_by_lane.setdefault(chunk.lane, []).extend(chunk.values)
    source.hold(())
    assert source.poll(10, 0.2) == []
    assert values_by_lane == {f"{topic}[{p}]": values for p, values in sent.items()}
    assert not any(source.behind().values())
    source.close()


def test_latest_begins_at_the_end_and_a_lost_offset_is_told(kafka_broker: KafkaCluster) -> None:
    topic = new_topic(kafka_broker)
    send(kafka_broker, topic, 0, 30)
    source = TopicSource(KafkaSettings(kafka_broker.address), topic, "latest")
    source.seek({})
    assert source.poll(10, 0.2) == []
    sent = send(kafka_broker, topic, 30, 33)
    assert drain(source, 3) == {f"{topic}[{p}]": values for p, values in sent.items()}
    source.close()
    lost = TopicSource(KafkaSettings(kafka_broker.address), topic)
    lost.seek({f"{topic}[0]": 1_000_000})
    with pytest.raises(SourceError, match="is gone"):
        drain(lost, 1)
    lost.close()


def test_a_record_that_the_broker_has_damaged_is_no_record(real_broker: RealKafka) -> None:
    # the mock does not use files
    topic = new_topic(real_broker, 1)
    real_broker.send(topic, [{"value": b"good"}])
    real_broker.send(topic, [{"value": b"amount 100"}])
    real_broker.damage(topic, b"amount 100")
    settings = KafkaSettings(real_broker.address)
    source = TopicSource(settings, topic)
    with pytest.raises(SourceError, match="from offset 1 on are not as they were sent"):
        drain(source, 2)
    source.close()
    with pytest.raises(SourceError, match="from offset 1 on are not as they were sent"):
        list(read_range(settings, OffsetRange(topic, 0, 0, 2)))


def test_another_topic_of_the_same_name_is_refused_though_it_is_longer(
    real_broker: RealKafka, monkeypatch: pytest.MonkeyPatch
) -> None:  # the mock cannot delete topics
    topic, settings = f"live-{uuid.uuid4().hex[:8]}", KafkaSettings(real_broker.address)
    real_broker.create(topic, 3)
    send(real_broker, topic, 0, 30)
    running = TopicSource(settings, topic)
    drain(running, 30)
    positions, ids = running.positions(), running.ids()
    assert set(ids) == {topic}
    monkeypatch.setattr(live_kafka, "_SEARCH_S", 3_600.0)  # it does not look during the test
    real_broker.create_again(topic, 3)
    send(real_broker, topic, 0, 90)
    was = re.escape(ids[topic])
    refusal = rf"topic {topic} was deleted and created again \(its id was {was} .*; start with a new checkpoint"
    again = TopicSource(settings, topic)
    again.expect(ids)
    with pytest.raises(SourceError, match=refusal):
        again.seek(positions)
    monkeypatch.setattr(live_kafka, "_SEARCH_S", 0.0)
    for look in (running.look, lambda: running.poll(100, 0.1)):
        with pytest.raises(SourceError, match=refusal):
            look()
    assert running.ids() == ids, "a commit that comes now does not take the new topic for the old one"
    of_before = TopicSource(settings, topic)  # an earlier build wrote no ids
    of_before.expect({"another": "id"})
    of_before.seek({})
    assert of_before.ids() != ids
    assert sum(map(len, drain(of_before, 90).values())) == 90
    for source in (running, again, of_before):
        source.close()


@pytest.mark.parametrize("stopped", [[0], [0, 1, 2, 3]])
def test_a_client_that_has_stopped_is_replaced(
    kafka_broker: KafkaCluster, monkeypatch: pytest.MonkeyPatch, stopped: list[int]
) -> None:
    """A paused partition imitates a client that no longer reads it and gives no error."""
    topic = new_topic(kafka_broker)
    sent = send(kafka_broker, topic, 0, 30)
    source = TopicSource(KafkaSettings(kafka_broker.address), topic)
    values_by_lane = drain(source, 30)
    client = source._consumer
    client.pause([TopicPartition(topic, partition) for partition in stopped])
    more = send(kafka_broker, topic, 30, 90)
    monkeypatch.setattr(live_kafka, "_SEARCH_S", 0.5)
    monkeypatch.setattr(live_kafka, "_STUCK_S", 1.0)
    monkeypatch.setattr(live_kafka, "_POLLS_MIN", 3)
    for lane, values in drain(source, 60).items():
        values_by_lane[lane] += values
    assert values_by_lane == {f"{topic}[{p}]": sent[p] + more[p] for p in range(3)}
    assert source._consumer is not client
    source.close()


def test_a_client_that_reads_is_not_replaced(kafka_broker: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose partitions are held, or are read in parts, is not replaced."""
    topic = new_topic(kafka_broker)
    monkeypatch.setattr(live_kafka, "_SEARCH_S", 0.0)
    monkeypatch.setattr(live_kafka, "_STUCK_S", 0.0)
    monkeypatch.setattr(live_kafka, "_POLLS_MIN", 5)
    send(kafka_broker, topic, 0, 300)
    source = TopicSource(KafkaSettings(kafka_broker.address), topic)
    client = source._consumer
    source.seek({})
    source.hold([f"{topic}[1]"])
    for _ in range(20):
        source.poll(7, 0.1)
    source.hold([])
    drain(source, 160)
    assert source._consumer is client
    source.close()


def test_brokers_that_give_no_ids_are_read_at_every_look() -> None:
    """The mock leaves the question unanswered, as old brokers do."""
    with contextlib.closing(MockCluster("brokers without ids are asked for")) as brokers:
        topic = new_topic(brokers)
        sent = send(brokers, topic, 0, 30)
        source = TopicSource(KafkaSettings(brokers.address, wait_ms=4_000), topic)
        source.look()
        source.look()
        assert drain(source, 30) == {f"{topic}[{p}]": values for p, values in sent.items()}
        assert source.ids() == {}
        source.close()


def test_another_topic_is_refused_at_a_start_that_waits_for_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers do not answer the first question for ids, and give offsets a moment later."""
    with contextlib.closing(MockCluster("brokers come back in a start")) as brokers:
        topic = new_topic(brokers)
        answers = [{}, {topic: "second"}]
        monkeypatch.setattr(kafka, "topic_ids", lambda *_: answers.pop(0))
        source = TopicSource(KafkaSettings(brokers.address, wait_ms=4_000), topic)
        source.expect({topic: "first"})
        with pytest.raises(SourceError, match="created again"):
            source.seek({f"{topic}[0]": 30})
        source.close()


def test_offsets_to_begin_and_to_end_at(kafka_broker: KafkaCluster) -> None:
    topic = new_topic(kafka_broker)
    sent = send(kafka_broker, topic, 0, 60)
    starting = f'{{"{topic}": {{"0": 5, "1": -1}}}}'
    ending = f'{{"{topic}": {{"0": 12, "1": 3, "2": -1, "3": 0}}}}'
    source = TopicSource(KafkaSettings(kafka_broker.address), topic, starting, ending)
    source.seek({})
    values_by_lane = drain(source, 27)
    assert values_by_lane == {f"{topic}[0]": sent[0][5:12], f"{topic}[2]": sent[2]}
    assert source.ended
    positions = source.positions()
    assert positions == {f"{topic}[0]": 12, f"{topic}[1]": 20, f"{topic}[2]": 20, f"{topic}[3]": 0}
    source.close()
    again = TopicSource(KafkaSettings(kafka_broker.address), topic, starting)
    again.seek(positions)
    assert drain(again, 8) == {f"{topic}[0]": sent[0][12:]}
    assert not again.ended
    again.close()


MAPPING = mapping_of(["event_type=header:ce_type", "device=header:dev", "a/login_id=id"])
TYPED = mapping_of(["event_type=header:ce_type", "card_id=header:card"])


def test_a_mapping_names_headers_once() -> None:
    assert headers_of(MAPPING) == ("ce_type", "dev")
    assert headers_of(mapping_of(['card_id="header:card.id"'])) == ("card.id",)
    assert headers_of(PLAIN) == ()
    with pytest.raises(UsageError, match="headers are read beside JSON only"):
        RecordFormat("avro", schema_file="x.avsc", mapping=MAPPING)


@given(
    st.dictionaries(st.text(), st.integers(-(2**63), 2**63 - 1) | st.text()),
    st.text() | st.none() | st.binary(),
    st.sampled_from([b" \n", b"\0\0\0\0\1", b"\0\0\0\0\1 \n"]),
)
def test_an_object_gets_a_member_for_each_header(
    record: dict[str, object], header: str | bytes | None, begin: bytes
) -> None:
    record.pop("header:h", None)
    value = with_headers(begin + orjson.dumps(record), [("h", "earlier"), ("h", header)], ["h", "absent"])
    assert value is not None
    assert value.startswith(begin)
    read = orjson.loads(value[len(begin) :])
    text = header.decode("utf-8", "backslashreplace") if isinstance(header, bytes) else header
    assert read == {"header:h": text, "header:absent": None, **record}


@pytest.mark.parametrize("value", [None, b"", b"  ", b"[1]", b"no json", b"\0\1", b"\0\0\0\0\1avro"])
def test_what_is_no_object_stays(value: bytes | None) -> None:
    assert with_headers(value, [("h", b"x")], ["h"]) == value


def test_a_record_cannot_bring_a_header_of_its_own() -> None:
    """A forged header does not count, next to the true one or in its place."""
    forged = b'{"header:card":"c-forged",' + orjson.dumps(GOOD)[1:]
    names = headers_of(TYPED)
    for headers in ([("ce_type", b"payment"), ("card", b"c9")], [("ce_type", b"payment")], None):
        good = with_headers(orjson.dumps(GOOD), headers, names)
        decoded = decode_json(TWO, pa.array([with_headers(forged, headers, names), good], pa.large_binary()), TYPED)
        assert "c-forged" not in decoded.columns["card_id"].to_pylist()
        assert decoded.poison
        assert decoded.columns["card_id"].to_pylist() == ([None, *["c9"][: len(headers) - 1]] if headers else [])


def test_both_readers_of_a_topic_give_headers(kafka_broker: KafkaCluster) -> None:
    topic = new_topic(kafka_broker)
    kafka_broker.send(
        topic,
        [
            {"value": b'{"n":%d}' % n, "partition": 0, "headers": [("card", b"c%d" % n)] if n % 3 else None}
            for n in range(30)
        ],
    )
    expected = [{"header:card": f"c{n}" if n % 3 else None, "n": n} for n in range(30)]
    settings = KafkaSettings(kafka_broker.address)
    source = TopicSource(settings, topic, headers=("card",))
    live: list[bytes] = []
    while len(live) < 30:
        live += [value for chunk in source.poll(100, 0.5) for value in chunk.values]
    source.close()
    offsets = OffsetRange(topic, 0, 0, latest_offsets(settings, [topic])[topic][0])
    ranged = [
        value for batch in read_range(settings, offsets, headers=("card",)) for value in batch["value"].to_pylist()
    ]
    assert [orjson.loads(value) for value in live] == [orjson.loads(value) for value in ranged] == expected
