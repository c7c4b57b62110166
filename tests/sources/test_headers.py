"""Headers of Kafka records are fields of their events."""

from __future__ import annotations

import uuid

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import UsageError
from cep.columnar.decode import decode_json
from cep.columnar.mapping import PLAIN, mapping_of
from cep.sources.headers import headers_of, with_headers
from cep.sources.kafka import KafkaSettings, latest_offsets, read_range
from cep.sources.live.kafka import TopicSource
from cep.sources.offsets import OffsetRange
from cep.sources.registry.form import RecordFormat
from tests.columnar.common import GOOD, TWO
from tests.real_kafka import KafkaCluster

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
    st.booleans(),
)
def test_an_object_gets_a_member_for_each_header(
    record: dict[str, object], header: str | bytes | None, framed: bool
) -> None:
    record.pop("header:h", None)
    begin = b"\0\0\0\0\1" if framed else b" \n"
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
    topic = f"headers-{uuid.uuid4().hex[:8]}"
    kafka_broker.create(topic)
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
