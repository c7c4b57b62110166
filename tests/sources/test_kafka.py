"""Offsets are planned, shared and limited exactly; ranges are read exactly, or an error names the missing records."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from cep.base.errors import SourceError, UsageError
from cep.base.limits import KAFKA_IDLE_CONSUMERS_MAX
from cep.sources import kafka as source
from cep.sources.offsets import (
    OffsetRange,
    Offsets,
    Position,
    limit_offsets,
    ranges_between,
    reached,
    refuse_new_topics,
    share_ranges,
)
from tests.mock_kafka import MockKafka


@pytest.fixture(scope="module")
def kafka() -> Iterator[MockKafka]:
    with MockKafka() as cluster:
        yield cluster


def settings_of(kafka: MockKafka, **changes: Any) -> source.KafkaSettings:
    return source.KafkaSettings(kafka.address, **{"wait_ms": 5_000, **changes})


def test_a_range_gives_what_was_produced(kafka: MockKafka) -> None:
    sent = [{"partition": 1, "key": b"k%d" % i, "value": b"v%d" % i, "timestamp": 1_000 + i} for i in range(5_000)]
    sent[7] = {"partition": 1, "value": None, "key": None, "timestamp": 7}
    kafka.send("exact", sent)
    table = pa.Table.from_batches(source.read_range(settings_of(kafka), OffsetRange("exact", 1, 5, 4_990)))
    assert table.schema == source.RECORD_SCHEMA
    rows = table.to_pylist()
    assert [row["offset"] for row in rows] == list(range(5, 4_990))
    for row in rows:
        record = sent[row["offset"]]
        assert {name: row[name] for name in record} == record
        assert row["topic"] == "exact"


def test_ends_of_partitions(kafka: MockKafka) -> None:
    kafka.send("ends", [{"partition": p, "value": b"x"} for p in (0, 0, 0, 2)])
    assert source.earliest_offsets(settings_of(kafka), ["ends"]) == {"ends": {0: 0, 1: 0, 2: 0, 3: 0}}
    assert source.latest_offsets(settings_of(kafka), ["ends"]) == {"ends": {0: 3, 1: 0, 2: 1, 3: 0}}
    kafka.send("ends", [{"partition": 1, "value": b"x"}])
    assert source.latest_offsets(settings_of(kafka), ["ends"])["ends"][1] == 1


def test_named_offsets(kafka: MockKafka) -> None:
    kafka.send("named", [{"partition": 0, "value": b"x"}] * 3)
    settings = settings_of(kafka)
    assert source.resolve_offsets(settings, ["named"], '{"named": {"0": 2, "1": -2}}', "earliest") == {
        "named": {0: 2, 1: 0, 2: 0, 3: 0}
    }
    assert source.resolve_offsets(settings, ["named"], '{"named": {"1": -1}}', "latest")["named"][0] == 3
    assert source.resolve_offsets(settings, ["named"], "latest", "earliest") == source.latest_offsets(
        settings, ["named"]
    )
    for text in ("first", "[1]", '{"named": 3}', '{"named": {"a": 3}}', '{"other": {"0": 1}}', '{"named": {"4": 1}}'):
        with pytest.raises(UsageError, match="offsets"):
            source.resolve_offsets(settings, ["named"], text, "earliest")


def test_offsets_that_are_gone(kafka: MockKafka) -> None:
    # The mock keeps five megabytes a partition.
    kafka.send("gone", ({"partition": 0, "value": b"x" * 1_000} for _ in range(9_000)))
    earliest = source.earliest_offsets(settings_of(kafka), ["gone"])["gone"][0]
    assert earliest > 100
    with pytest.raises(
        SourceError, match=rf"offset 100 is gone, gone\[0\] now has {earliest}\.\.9000.*startingOffsets"
    ):
        list(source.read_range(settings_of(kafka), OffsetRange("gone", 0, 100, 9_000)))


class _Moving:
    """A consumer that hears a few times that another broker leads a partition."""

    def __init__(self, consumer: Any, refusals: list[int]) -> None:
        self._own, self._refusals = consumer, refusals

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def offsets_for_times(self, times: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        if self._refusals:
            raise KafkaException(KafkaError(self._refusals.pop()))
        offsets: list[TopicPartition] = self._own.offsets_for_times(times, timeout=timeout)
        return offsets


def test_partitions_that_move_are_asked_again(kafka: MockKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    kafka.send("moving", [{"partition": 2, "value": b"x"}])
    refusals = [KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION]
    take = source._CONSUMERS.take
    monkeypatch.setattr(source._CONSUMERS, "take", lambda settings: _Moving(take(settings), refusals))
    monkeypatch.setattr(source._CONSUMERS, "give", lambda _, consumer: consumer.close())
    assert source.latest_offsets(settings_of(kafka), ["moving"]) == {"moving": {0: 0, 1: 0, 2: 1, 3: 0}}
    assert not refusals
    refusals += [KafkaError.NOT_LEADER_FOR_PARTITION] * 1_000
    with pytest.raises(SourceError, match=r"gave no offsets of moving within 0\.\d s: .*[Nn]ot leader"):
        source.latest_offsets(settings_of(kafka, wait_ms=300), ["moving"])
    assert 900 < len(refusals) < 1_000, "asked now and then, not as often as it goes"
    refusals[:] = [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(SourceError, match="gave no offsets of moving"):
        source.latest_offsets(settings_of(kafka), ["moving"])
    refusals[:] = [KafkaError.UNKNOWN_TOPIC_OR_PART]
    with pytest.raises(SourceError, match=r"topic moving cannot be read on .*Unknown topic"):
        source.latest_offsets(settings_of(kafka), ["moving"])  # it was deleted after its partitions were listed


def test_a_missing_topic(kafka: MockKafka) -> None:
    with pytest.raises(SourceError, match="topic nowhere cannot be read"):
        source.latest_offsets(settings_of(kafka), ["nowhere"])


def test_a_range_past_the_end_fails_in_bounded_time(kafka: MockKafka) -> None:
    kafka.send("short", [{"partition": 0, "value": b"x"}] * 3)
    batches = source.read_range(settings_of(kafka, wait_ms=200), OffsetRange("short", 0, 0, 9))
    assert next(batches).num_rows == 3
    with pytest.raises(SourceError, match="stopped at offset 3: nothing came for 200 ms"):
        next(batches)


def test_no_broker() -> None:
    nobody = source.KafkaSettings("127.0.0.1:1", wait_ms=200)
    with pytest.raises(SourceError, match=r"127\.0\.0\.1:1 gave no offsets of t within 0\.\d s"):
        source.latest_offsets(nobody, ["t"])
    with pytest.raises(SourceError, match="nothing came for 200 ms"):
        list(source.read_range(nobody, OffsetRange("t", 0, 0, 1)))


def test_client_options(kafka: MockKafka) -> None:
    secret = settings_of(kafka, client_options=(("sasl.password", "hunter2"),))
    assert "hunter2" not in repr(secret)
    with pytest.raises(UsageError, match=r"No such configuration property.*sasl\.pasword"):
        source.latest_offsets(settings_of(kafka, client_options=(("sasl.pasword", "hunter2"),)), ["t"])
    with pytest.raises(UsageError, match=r"auto\.offset\.reset is set by the source"):
        source.latest_offsets(settings_of(kafka, client_options=(("auto.offset.reset", "earliest"),)), ["t"])


class FakeMessage:
    """A record, or a notice in its place."""

    def __init__(self, offset: int, code: int | None = None) -> None:
        self._offset = offset
        self._code = code

    def error(self) -> KafkaError | None:
        return None if self._code is None else KafkaError(self._code)

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self._offset

    def key(self) -> bytes:
        return b""

    def value(self) -> bytes:
        return b"%d" % self._offset


class FakeConsumer:
    """Answers each `consume` with the next of the given lists, then with nothing."""

    def __init__(self, answers: Sequence[Sequence[FakeMessage]]) -> None:
        self._answers = list(answers)

    def assign(self, _: object) -> None:
        pass

    def unassign(self) -> None:
        pass

    def close(self) -> None:
        pass

    def consume(self, count: int, _: float) -> list[FakeMessage]:
        return list(self._answers.pop(0)) if self._answers else []


END = int(KafkaError._PARTITION_EOF)
DOWN = int(KafkaError._ALL_BROKERS_DOWN)
REFUSED = int(KafkaError.TOPIC_AUTHORIZATION_FAILED)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param([[FakeMessage(0), FakeMessage(3), FakeMessage(7)]], [0, 3], id="hole over the end, record behind"),
        pytest.param([[FakeMessage(0), FakeMessage(2), FakeMessage(5, END)]], [0, 2], id="hole up to the log's end"),
        pytest.param([[FakeMessage(9)]], [], id="nothing but a hole"),
        pytest.param([[FakeMessage(5, END)]], [], id="transaction markers only"),
        pytest.param([[FakeMessage(0, END)], [], [FakeMessage(4)]], [4], id="end seen too early, then a record"),
        pytest.param([[FakeMessage(0, DOWN)], [FakeMessage(4)]], [4], id="brokers down, then back"),
        pytest.param(
            [[FakeMessage(1)], [FakeMessage(0), FakeMessage(1), FakeMessage(4)]], [1, 4], id="old record again"
        ),
    ],
)
def test_holes_in_a_range(
    answers: list[list[FakeMessage]], expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_CONSUMERS", source._IdleConsumers())
    monkeypatch.setattr(source, "_connect", lambda _: FakeConsumer(answers))
    batches = list(source.read_range(source.KafkaSettings("fake:1", wait_ms=200), OffsetRange("t", 0, 0, 5)))
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == expected
    assert all(batch.num_rows for batch in batches)


def test_a_refusal_ends_the_read_and_the_last_error_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_CONSUMERS", source._IdleConsumers())
    monkeypatch.setattr(source, "_connect", lambda _: FakeConsumer([[FakeMessage(0, REFUSED)]]))
    with pytest.raises(SourceError, match=r"(?i)authorization"):
        list(source.read_range(source.KafkaSettings("fake:1"), OffsetRange("t", 0, 0, 5)))
    monkeypatch.setattr(source, "_connect", lambda _: FakeConsumer([[FakeMessage(0, DOWN)]]))
    with pytest.raises(SourceError, match=r"last error: .*broker connections are down"):
        list(source.read_range(source.KafkaSettings("fake:1", wait_ms=50), OffsetRange("t", 0, 0, 5)))


def test_idle_consumers_are_reused_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = source._IdleConsumers()
    monkeypatch.setattr(source, "_CONSUMERS", idle)
    connected: list[source.KafkaSettings] = []

    def connect(settings: source.KafkaSettings) -> FakeConsumer:
        connected.append(settings)
        return FakeConsumer([[FakeMessage(i) for i in range(5)]])

    monkeypatch.setattr(source, "_connect", connect)
    offsets = OffsetRange("t", 0, 0, 5)
    first, second = (source.read_range(source.KafkaSettings("fake:1", wait_ms=50), offsets) for _ in range(2))
    next(first)
    next(second)
    assert len(connected) == 2, "two reads at a time have a consumer each"
    first.close()
    second.close()
    with pytest.raises(SourceError):  # the same fake again, now empty
        list(source.read_range(source.KafkaSettings("fake:1", wait_ms=50), offsets))
    assert len(connected) == 2
    for number in range(2 * KAFKA_IDLE_CONSUMERS_MAX):
        list(source.read_range(source.KafkaSettings(f"fake:{number}"), offsets))
    assert len(idle._idle) == KAFKA_IDLE_CONSUMERS_MAX


def test_the_cluster_as_a_process() -> None:
    command = [sys.executable, "-m", "tests.mock_kafka"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root, env=os.environ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        with pytest.raises(SourceError, match="cannot be read"):
            source.latest_offsets(source.KafkaSettings(address, wait_ms=5_000), ["t"])
        process.communicate(timeout=10)
        assert process.returncode == 0


def answer_for_ids(topic_id: str | None) -> Future[Any]:
    """Return the brokers' answer to a question for a topic id; for None they do not answer."""
    answer = Future[Any]()
    if topic_id is None:
        answer.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    else:
        answer.set_result(SimpleNamespace(topic_id=topic_id))
    return answer


@pytest.mark.parametrize(
    ("answers", "answers_others", "ids"),
    [
        ([None, "first", None, None, "second"], False, [None, "first", None, None, "second"]),  # twice away
        (["first", None, None, "second"], True, ["first", None, None, "second"]),  # slow, and they have ids
        ([None, None, "late"], False, [None, None, None]),  # brokers without ids are not asked again for a while
        ([None, "late"], True, [None, None]),  # at once, because they answer other questions
    ],
)
def test_an_outage_is_not_taken_for_brokers_without_ids(
    answers: list[str | None], answers_others: bool, ids: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    remaining_answers = list(answers)

    def list_topics(*_: str, **__: float) -> None:
        if not answers_others:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    client = SimpleNamespace(
        describe_topics=lambda *_, **__: {"t": answer_for_ids(remaining_answers.pop(0))}, list_topics=list_topics
    )
    monkeypatch.setattr(source, "AdminClient", lambda _: client)
    settings = source.KafkaSettings(f"nobody-{len(answers)}-{answers_others}:1")
    assert [source.topic_ids(settings, ["t"]).get("t") for _ in answers] == ids


def test_ranges() -> None:
    start: Offsets = {"a": {0: 5, 1: 7}}
    end: Offsets = {"a": {0: 5, 1: 10, 2: 2}, "b": {0: 1}}
    assert ranges_between(start, end) == [
        OffsetRange("a", 1, 7, 10),
        OffsetRange("a", 2, 0, 2),
        OffsetRange("b", 0, 0, 1),
    ]
    assert [(r.start, r.end) for r in ranges_between({"a": {0: 1}}, {"a": {0: 6}}, 2)] == [(1, 3), (3, 5), (5, 6)]


def test_a_position_is_written_down_and_read_again() -> None:
    position = Position({"a": {0: 5, 1: 7}, "b": {2: 1}}, {"a": [1]}, {"a": "x"})
    assert Position.from_json(json.loads(json.dumps(position.to_json()))) == position
    with pytest.raises(SourceError, match="in a form that this build does not know"):
        Position.from_json({"a": {"0": "five"}})
    assert Position.from_json({"a": {"0": 5}}) == Position({"a": {0: 5}}), "of the connector of Spark's JVM"


def test_what_is_behind_and_which_topics_are_known() -> None:
    start = Position({"a": {0: 5, 1: 7}}, {"a": [0]}, {"a": "x"})
    end = reached(start, {"a": {0: 9, 1: 7}, "b": {0: 1}}, {"a": {0: 9, 1: 8}, "b": {0: 3}}, {"b": "y"})
    assert end == Position({"a": {0: 9, 1: 7}, "b": {0: 1}}, {"a": [1], "b": [0]}, {"a": "x", "b": "y"})


def test_a_topic_that_was_created_again_is_refused() -> None:
    refuse_new_topics({"a": "x"}, {"a": "x", "b": "y"})
    refuse_new_topics({"a": "x"}, {})
    with pytest.raises(SourceError, match=r"topic a was deleted and created again \(its id was x and is z"):
        refuse_new_topics({"a": "x"}, {"a": "z"})


def test_ranges_are_dealt_evenly() -> None:
    ranges = [OffsetRange("a", p, 0, size) for p, size in enumerate([5, 1, 4, 3, 3])]
    dealt = share_ranges(ranges, 2)
    assert sorted(r for task in dealt for r in [(w.partition, w.end) for w in task]) == [
        (p, size) for p, size in enumerate([5, 1, 4, 3, 3])
    ]
    assert [sum(r.end for r in task) for task in dealt] == [8, 8]
    assert share_ranges(ranges[:2], 9) == [(ranges[0],), (ranges[1],)]
    assert share_ranges([], 2) == []


@pytest.mark.parametrize("seed", range(20))
def test_the_ranges_of_a_partition_stay_in_order_from_task_to_task(seed: int) -> None:
    random = Random(seed)
    end: Offsets = {"t": {partition: random.randrange(300) for partition in range(random.randint(1, 4))}}
    ranges = ranges_between({}, end, random.randint(20, 150))
    tasks = share_ranges(ranges, random.randint(1, 5))
    assert all(tasks)
    for partition in end["t"]:
        starts = [each.start for task in tasks for each in task if each.partition == partition]
        assert starts == [each.start for each in ranges if each.partition == partition]


@pytest.mark.parametrize(("end", "text"), [({"a": {0: 4}}, "ends at 4"), ({"a": {}}, "no longer there")])
def test_a_topic_that_went_backwards(end: Offsets, text: str) -> None:
    with pytest.raises(SourceError, match=text):
        ranges_between({"a": {0: 5}}, end)


@pytest.mark.parametrize("sizes", [[100], [1, 1_000_000], [0, 5, 5], [1, 1, 1, 1], [333, 333, 334], [0, 0]])
@pytest.mark.parametrize("records_max", [1, 2, 3, 10, 999])
def test_a_limit_is_met_exactly_and_everything_comes_in_the_end(sizes: list[int], records_max: int) -> None:
    position: Offsets = {"t": dict.fromkeys(range(len(sizes)), 50)}
    end: Offsets = {"t": {p: 50 + size for p, size in enumerate(sizes)}}
    for _ in range(5):
        before = sum(r.end - r.start for r in ranges_between(position, end))
        position = limit_offsets(position, end, records_max)
        after = sum(r.end - r.start for r in ranges_between(position, end))
        assert before - after == min(before, records_max)
    if records_max >= len(sizes):
        assert all(position["t"][p] > 50 for p, size in enumerate(sizes) if size), "no partition starves"


def test_partitions_that_are_behind_catch_up_together() -> None:
    limited = limit_offsets({"t": {0: 0, 1: 0}}, {"t": {0: 1_000, 1: 3_000}}, 400)
    assert limited == {"t": {0: 100, 1: 300}}
