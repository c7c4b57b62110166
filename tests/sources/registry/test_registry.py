"""Avro and Protobuf records give the same events and tokens as JSON; schemas that cost without end are recognised."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import SourceError, UsageError
from cep.base.limits import FAILING_SCHEMAS_MAX, UNKNOWN_SCHEMAS_MAX
from cep.columnar.decode import Decoded, decode_json
from cep.columnar.redact import redact
from cep.sources.registry.form import RecordFormat
from cep.sources.registry.kafka import Shape, _message_class, _shapes_of, client_of, decode, fields_of, shape_of
from tests.cli.test_erase import wrong
from tests.columnar import common
from tests.columnar.protected import CARDS, card_numbers, keys
from tests.plain_avro import plain_avro
from tests.sources.registry.registry_server import _Server, serve_registry

# The server, and the settings of a client of it.
Registry = tuple[_Server, tuple[tuple[str, str], ...]]
TOPIC = "payments"
CONTEXT = SerializationContext(TOPIC, MessageField.VALUE)
FIRST = datetime(2026, 3, 1, tzinfo=UTC)
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Payment",
    "fields": [
        {"name": "tx_id", "type": "string"},
        {"name": "event_time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "card_id", "type": "string"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 2}},
        {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["approved", "declined"]}},
        {"name": "lat", "type": ["null", "double"]},
        {"name": "retries", "type": ["null", "long"]},
        {"name": "online", "type": ["null", "boolean"]},
        {"name": "took", "type": ["null", "long"]},
    ],
}


def event(number: int) -> dict[str, Any]:
    return {
        "tx_id": f"t{number}",
        "event_time": FIRST + timedelta(milliseconds=1_500 * number),
        "card_id": f"c{number % 3}",
        "amount": Decimal(number) / 100 + 5,
        "status": ("approved", "declined")[number % 2],
        "lat": None if number % 4 == 0 else number / 8,
        "retries": None if number % 5 == 0 else number,
        "online": None if number % 7 == 0 else number % 2 == 0,
        "took": 10 * number,
    }


EVENTS = [event(number) for number in range(40)]


def in_json(events: Sequence[dict[str, Any]]) -> Decoded:
    """Return the same events decoded from JSON records."""
    texts = [{**e, "event_time": e["event_time"].isoformat(), "amount": float(e["amount"])} for e in events]
    return common.decode([json.dumps(text).encode() for text in texts])


def is_equal(decoded: Decoded, expected: Decoded) -> bool:
    return (
        decoded.event_id.equals(expected.event_id)
        and decoded.time_ms.tolist() == expected.time_ms.tolist()
        and all(decoded.columns[name].equals(column) for name, column in expected.columns.items())
    )


@pytest.fixture
def registry() -> Iterator[Registry]:
    with serve_registry() as served:
        yield served


def avro(client: SchemaRegistryClient, events: Sequence[dict[str, Any]], schema: dict[str, Any] = AVRO) -> list[bytes]:
    serializer = AvroSerializer(client, json.dumps(schema))
    values = [serializer(e, CONTEXT) for e in events]
    return [value for value in values if value is not None]


def read(form: RecordFormat, values: Sequence[bytes | None]) -> Decoded:
    return decode(form, common.ONE, pa.array(values, pa.binary()), TOPIC)


def test_avro_with_a_registry(registry: Registry) -> None:
    server, settings = registry
    form = RecordFormat("avro", settings)
    decoded = read(form, avro(client_of(settings), EVENTS))
    assert decoded.poison == ()
    assert is_equal(decoded, in_json(EVENTS))
    assert is_equal(read(form, avro(client_of(settings), EVENTS)), in_json(EVENTS))
    assert [path for path in server.asked if path.startswith("/schemas")] == ["/schemas/ids/1"], "asked for once"


def test_avro_with_the_clients_own_mock_registry() -> None:
    settings = (("url", "mock://tests"),)
    assert is_equal(read(RecordFormat("avro", settings), avro(client_of(settings), EVENTS)), in_json(EVENTS))


def test_avro_whose_schema_has_changed(registry: Registry, tmp_path: Path) -> None:
    """A topic has writers of two versions. Each record is read by its own version, or all by the schema of a file."""
    _, settings = registry
    older = {**AVRO, "fields": [f for f in AVRO["fields"] if f["name"] != "took"]}
    values = [*avro(client_of(settings), EVENTS[:5], older), *avro(client_of(settings), EVENTS[5:])]
    expected = in_json([*({**e, "took": None} for e in EVENTS[:5]), *EVENTS[5:]])
    assert is_equal(read(RecordFormat("avro", settings), values), expected)
    took = {"name": "took", "type": ["null", "long"], "default": None}
    (tmp_path / "payment.avsc").write_text(json.dumps({**AVRO, "fields": [*older["fields"], took]}))
    form = RecordFormat("avro", settings, str(tmp_path / "payment.avsc"))
    assert is_equal(read(form, values), expected)


def test_avro_with_a_file_alone(tmp_path: Path) -> None:
    (tmp_path / "payment.avsc").write_text(json.dumps(AVRO))
    form = RecordFormat("avro", schema_file=str(tmp_path / "payment.avsc"))
    assert is_equal(read(form, plain_avro(AVRO, EVENTS)), in_json(EVENTS))


def descriptors() -> bytes:
    """Return the descriptors that protoc writes for a message with the same fields."""
    file = descriptor_pb2.FileDescriptorProto(name="payment.proto", package="shop", syntax="proto3")
    status = file.enum_type.add(name="Status")
    status.value.add(name="approved", number=0)
    status.value.add(name="declined", number=1)
    message = file.message_type.add(name="Payment")
    kinds = {"tx_id": 9, "event_time": 3, "card_id": 9, "amount": 1, "status": 14, "lat": 1, "retries": 3, "online": 8}
    for number, (name, kind) in enumerate({**kinds, "took": 3}.items(), start=1):
        message.field.add(name=name, number=number, type=kind, label=1)
        if name == "status":
            message.field[-1].type_name = ".shop.Status"
    return bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


def protobuf(client: SchemaRegistryClient, path: Path) -> tuple[list[bytes], list[dict[str, Any]]]:
    """Return values by a writer with the descriptors at the path, and their events: Protobuf lacks null."""
    path.write_bytes(descriptors())
    message_class = _message_class(str(path), "shop.Payment")
    serializer = ProtobufSerializer(message_class, client, {"use.deprecated.format": False})
    events = [{**e, "lat": e["lat"] or 0.0, "retries": e["retries"] or 0, "online": bool(e["online"])} for e in EVENTS]
    values = []
    for e in events:
        times = {"event_time": round(e["event_time"].timestamp() * 1_000), "amount": float(e["amount"])}
        number = {"status": int(e["status"] == "declined")}
        values.append(serializer(message_class(**{**e, **times, **number}), CONTEXT) or b"")
    return values, events


def test_a_number_above_int64_is_a_text_also_in_a_wrapper(tmp_path: Path) -> None:
    wrappers = descriptor_pb2.FileDescriptorProto.FromString(wrappers_pb2.DESCRIPTOR.serialized_pb)
    file = descriptor_pb2.FileDescriptorProto(name="n.proto", package="n", syntax="proto3", dependency=[wrappers.name])
    message = file.message_type.add(name="N")
    message.field.add(name="plain", number=1, type=4, label=1)
    message.field.add(name="wrapped", number=2, type=11, label=1, type_name=".google.protobuf.UInt64Value")
    path = tmp_path / "n.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[wrappers, file]).SerializeToString())
    message_class = _message_class(str(path), "n.N")
    for number, value in ((2**63 - 1, 2**63 - 1), (2**64 - 1, str(2**64 - 1))):
        assert fields_of(message_class(plain=number, wrapped={"value": number})) == {"plain": value, "wrapped": value}


def test_protobuf_with_a_registry(registry: Registry, tmp_path: Path) -> None:
    _, settings = registry
    path = tmp_path / "payment.desc"
    values, events = protobuf(client_of(settings), path)
    decoded = read(RecordFormat("protobuf", settings, str(path), "shop.Payment"), values)
    assert decoded.poison == ()
    assert is_equal(decoded, in_json(events))
    with pytest.raises(UsageError, match=r"has no message shop\.Refund"):
        read(RecordFormat("protobuf", settings, str(path), "shop.Refund"), values)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2**32 - 1)), max_size=30))
def test_json_behind_the_id_of_a_schema(frames: list[tuple[bool, int]]) -> None:
    """Records with and without the frame of a registry, next to a null record, an empty one and a bare frame."""
    events = EVENTS[: len(frames)]
    texts = [{**e, "event_time": e["event_time"].isoformat(), "amount": float(e["amount"])} for e in events]
    lines = [json.dumps(text).encode() for text in texts]
    framed = [
        b"\x00" + number.to_bytes(4, "big") + line if is_framed else line
        for (is_framed, number), line in zip(frames, lines, strict=True)
    ]
    form = RecordFormat("json", (("url", "http://127.0.0.1:1"),))
    decoded = read(form, [*framed, None, b"", b"\x00\x00\x00\x00\x01"])
    assert is_equal(decoded, in_json(events))
    assert len(decoded.poison) == 3


def test_what_cannot_be_read_is_set_aside(registry: Registry) -> None:
    _, settings = registry
    good = avro(client_of(settings), EVENTS[:3])
    nobody = b"\x00\x00\x00\x03\xe7" + good[0][5:]
    decoded = read(RecordFormat("avro", settings), [good[0], None, b"", b"{}", nobody, good[1][:9], good[1], good[2]])
    assert decoded.event_id.to_pylist() == ["t0", "t1", "t2"]
    reasons = [poison.reason for poison in decoded.poison]
    assert len(reasons) == 5
    assert reasons[:2] == ["the record is empty"] * 2
    assert "the schema registry has no schema 999" in reasons
    assert {poison.code for poison in decoded.poison} == {"unreadable"}
    assert read(RecordFormat("avro", settings), [None]).event_id.to_pylist() == []


def test_a_few_bytes_do_not_end_the_process(registry: Registry, tmp_path: Path) -> None:
    """A schema may contain itself, or arrays of empty values: the sender of a record decides how often."""
    server, settings = registry
    node = {"type": "record", "name": "Node", "fields": [{"name": "n", "type": ["null", "Node"]}]}
    nested = {**AVRO, "fields": [*AVRO["fields"], {"name": "next", "type": ["null", "Node"]}]}
    empty = {**AVRO, "fields": [*AVRO["fields"], {"name": "xs", "type": {"type": "array", "items": "null"}}]}
    client = client_of(settings)
    first = avro(
        client,
        [{**EVENTS[0], "next": {"n": None}}],
        json.loads(json.dumps(nested).replace('"Node"', json.dumps(node), 1)),
    )
    second = avro(client, [{**EVENTS[1], "xs": []}], empty)
    deep = first[0][:-1] + b"\x02" * 100_000 + b"\x00"
    many = second[0][:-1] + b"\x80\xd0\xdb\xc3\xf4\x02\x00"  # a hundred billion empty values
    decoded = read(RecordFormat("avro", settings), [first[0], deep, many])
    assert decoded.event_id.to_pylist() == ["t0"]
    assert [p.reason.partition(",")[0] for p in decoded.poison] == [
        "its schema has itself inside", "its schema has an array of items that take no bytes"
    ]  # fmt: skip
    path = tmp_path / "nested.avsc"
    path.write_text(server.schemas[0]["schema"])
    decoded = read(RecordFormat("avro", schema_file=str(path)), [first[0][5:], deep[5:]])
    assert (decoded.event_id.to_pylist(), len(decoded.poison)) == (["t0"], 1)


def test_made_up_ids_are_few_requests(registry: Registry) -> None:
    server, settings = registry
    good = avro(client_of(settings), EVENTS[:2])
    server.asked.clear()
    made_up = [b"\x00" + number.to_bytes(4, "big") + good[0][5:] for number in range(1_000, 1_200)]
    decoded = read(RecordFormat("avro", settings), [*made_up, *good])
    assert decoded.event_id.to_pylist() == ["t0", "t1"]
    assert len(decoded.poison) == len(made_up)
    assert len(server.asked) <= UNKNOWN_SCHEMAS_MAX + 4


QUICK = (("retries.wait.ms", "1"), ("timeout", "5"))


@pytest.mark.parametrize("status", [400, 403, 410, 422, 429, 500, 503])
def test_an_id_that_the_registry_chokes_on_sets_its_record_aside_alone(registry: Registry, status: int) -> None:
    """Any sender can write four bytes in front of a record; these must not end the job for everyone."""
    server, settings = registry
    good = avro(client_of(settings), EVENTS[:2])
    client_of.cache_clear()
    server.answers = {number: [status] for number in range(1_000, 1_050)}
    made_up = [b"\x00" + number.to_bytes(4, "big") + good[0][5:] for number in server.answers]
    server.asked.clear()
    decoded = read(RecordFormat("avro", (*settings, *QUICK)), [*made_up, *good])
    assert decoded.event_id.to_pylist() == ["t0", "t1"]
    assert [poison.code for poison in decoded.poison] == ["unreadable"] * len(made_up)
    assert f"does not give schema 1000: odd (HTTP status code {status}" in decoded.poison[0].reason
    is_failure = status in (403, 429, 500, 503)
    assert len(server.asked) <= (4 * FAILING_SCHEMAS_MAX if is_failure else UNKNOWN_SCHEMAS_MAX) + 4


def test_a_registry_that_fails_once_or_is_away_for_a_while_loses_nothing(registry: Registry) -> None:
    server, settings = registry
    values = avro(client_of(settings), EVENTS[:2])
    form = RecordFormat("avro", (*settings, *QUICK))
    server.answers = {1: [500, 200]}
    assert read(form, values).event_id.to_pylist() == ["t0", "t1"]
    _shapes_of.cache_clear()
    client_of.cache_clear()
    server.failures_left = 6  # three requests for the schema, and three of the other kind
    assert read(form, values).event_id.to_pylist() == ["t0", "t1"]
    _shapes_of.cache_clear()
    client_of.cache_clear()
    server.failures_left, server.asked = 1_000, []
    with pytest.raises(SourceError, match="does not give schema 1: starting"):
        read(form, values)
    assert len(server.asked) == 8, "each of four tries asks for the schema and for something else"


def test_a_job_without_rights_ends_and_loses_nothing(registry: Registry) -> None:
    server, settings = registry
    values = avro(client_of(settings), EVENTS[:2])
    client_of.cache_clear()
    server.answers = {1: [403]}
    with pytest.raises(SourceError, match="does not give schema 1: odd"):
        read(RecordFormat("avro", (*settings, *QUICK)), values)


@pytest.mark.parametrize("url", ["http://ann:pass-word@127.0.0.1:1/", "http://127.0.0.1:1/?token=t0p"])
def test_a_registrys_address_with_a_secret_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match=r"\[events\.registry\]") as refused:
        RecordFormat("avro", (("url", url),))
    assert "pass-word" not in str(refused.value)
    assert "t0p" not in str(refused.value)


def test_fields_that_do_not_fit_are_null_alone(registry: Registry) -> None:
    _, settings = registry
    mixed = {
        **AVRO,
        "fields": [f if f["name"] != "retries" else {**f, "type": ["long", "string"]} for f in AVRO["fields"]],
    }
    events = [{**event(number), "retries": number} for number in range(6)]
    values = avro(client_of(settings), [*events[:3], {**events[3], "retries": "many"}, *events[4:]], mixed)
    decoded = read(RecordFormat("avro", settings), values)
    assert decoded.event_id.to_pylist() == [f"t{number}" for number in range(6)]
    assert decoded.columns["retries"].to_pylist() == [0, 1, 2, None, 4, 5]
    assert [poison.bad_values for poison in decoded.poison] == [(("wrong_value", "retries"),)]


def test_a_registry_that_gives_no_answer_ends_the_read(registry: Registry) -> None:
    server, settings = registry
    values = avro(client_of(settings), EVENTS[:1])
    client_of.cache_clear()
    server.is_broken = True
    with pytest.raises(SourceError, match=r"does not give schema 1: .*backend data store"):
        read(RecordFormat("avro", settings), values)
    wrong = (settings[0], ("basic.auth.user.info", "analyst:wrong"))
    with pytest.raises(SourceError, match="Unauthorized") as caught:
        read(RecordFormat("avro", wrong), values)
    assert "wrong" not in str(caught.value).replace("Unauthorized", "")
    assert "hunter2" not in repr(RecordFormat("avro", settings))
    gone = (("url", "http://127.0.0.1:1"), ("max.retries", "0"))
    with pytest.raises(SourceError, match=r"registry at http://127\.0\.0\.1:1 does not give schema 1"):
        read(RecordFormat("avro", gone), values)


@pytest.mark.parametrize("answer", [[], {"schema": 5}, {"schema": "{}", "references": ["x"]}, "text", {}])
def test_a_registry_whose_answer_is_no_schema(registry: Registry, answer: object) -> None:
    server, settings = registry
    values = avro(client_of(settings), EVENTS[:1])
    client_of.cache_clear()
    server.schemas[0] = answer  # type: ignore[call-overload]
    reason = ""
    try:
        reason = read(RecordFormat("avro", settings), values).poison[0].reason
    except SourceError as error:
        reason = str(error)
    assert reason


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"name": "xml"}, "json, avro, protobuf, not xml"),
        ({"name": "avro"}, "avro needs the url of a schema registry, or a schema file"),
        ({"name": "protobuf", "schema_file": "x"}, "protobuf needs"),
    ],
)
def test_formats_that_make_no_sense(form: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RecordFormat(**form)


def test_files_that_are_no_schemas(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read(RecordFormat("avro", schema_file=str(tmp_path / "none.avsc")), [b"x"])
    (tmp_path / "bad.avsc").write_text("{")
    with pytest.raises(UsageError, match="is no Avro schema"):
        read(RecordFormat("avro", schema_file=str(tmp_path / "bad.avsc")), [b"x"])


_JSON = st.recursive(
    st.none() | st.integers(0, 1) | st.sampled_from(["null", "long", "A", "n.A", "record", "array", "fixed"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "name", "fields", "items", "values", "size"]), inner, max_size=4)
    ),
    max_leaves=20,
)


def record(name: str, *types: object) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": f"f{n}", "type": t} for n, t in enumerate(types)]}


def array(items: object) -> dict[str, object]:
    return {"type": "array", "items": items}


@pytest.mark.parametrize(
    ("schema", "is_nested", "has_empty_items"),
    [
        (AVRO, False, False),
        (record("A", record("B", "long"), "B", array("B"), array("long")), False, False),
        (record("A", ["null", "A"]), True, False),
        (record("n.A", {"type": "map", "values": {"type": "n.A"}}), True, False),
        (record("A", record("B", array(record("C", ["null", "B"])))), True, False),
        (record("A", array("null")), False, True),
        (record("A", array({"type": "null"})), False, True),
        (record("A", array({"type": "fixed", "name": "F", "size": 0})), False, True),
        (record("A", array({"type": "fixed", "name": "F", "size": 1})), False, False),
        (record("A", record("E", record("F"), "null"), array(["null"]), {"type": "map", "values": "E"}), False, False),
        (record("A", record("E", record("F"), "null"), {"type": "map", "values": array("E")}), False, True),
        (array("A"), False, False),
    ],
)
def test_what_may_cost_without_end(schema: object, is_nested: bool, has_empty_items: bool) -> None:
    assert shape_of(schema) == Shape(is_nested, has_empty_items)


def test_types_of_other_schemas() -> None:
    others = [record("n.Empty"), record("n.Node", ["null", "Node"])]
    assert shape_of(record("A", array("n.Empty")), others) == Shape(is_nested=False, has_empty_items=True)
    assert shape_of(record("A", "n.Node"), others) == Shape(is_nested=True, has_empty_items=False)


def test_many_types_of_types_take_no_time() -> None:
    types = [record("R0"), *(record(f"R{n}", f"R{n - 1}", f"R{n - 1}") for n in range(1, 60))]
    assert shape_of(record("A", array("R59")), types) == Shape(is_nested=False, has_empty_items=True)


@given(_JSON)
def test_what_is_no_schema_has_a_shape_too(schema: object) -> None:
    assert isinstance(shape_of(schema), Shape)


__all__ = ["keys"]
NUMBERS = card_numbers(41, 20)
TEXTS = ("tx_id", "card", "email", "note")


def events() -> list[dict[str, Any]]:
    """Return payments with card numbers. Every fourth has a wrong number in `card` and the right one elsewhere."""
    return [
        {
            "tx_id": f"t{n}", "event_time": 1_767_225_600_000 + n, "card": number if n % 4 else wrong(number),
            "email": f"{number}@example.org", "amount": n + 0.5, "note": f"paid with {number}" if n % 4 == 0 else "",
        }
        for n, number in enumerate(NUMBERS)
    ]  # fmt: skip


def in_avro(folder: Path) -> tuple[RecordFormat, list[bytes]]:
    kinds = dict.fromkeys(TEXTS, "string") | {"event_time": "long", "amount": "double"}
    shape = {"type": "record", "name": "P", "fields": [{"name": n, "type": kind} for n, kind in kinds.items()]}
    (folder / "payment.avsc").write_bytes(orjson.dumps(shape))
    return RecordFormat("avro", schema_file=str(folder / "payment.avsc")), plain_avro(shape, events())


def in_protobuf(folder: Path) -> tuple[RecordFormat, list[bytes]]:
    file = descriptor_pb2.FileDescriptorProto(name="payment.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Payment")
    kinds = dict.fromkeys(TEXTS, 9) | {"event_time": 3, "amount": 1}
    for number, (name, kind) in enumerate(kinds.items(), start=1):
        message.field.add(name=name, number=number, type=kind, label=1)
    path = folder / "payment.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    settings = (("url", "mock://cards"),)
    message_class = _message_class(str(path), "shop.Payment")
    serializer = ProtobufSerializer(message_class, client_of(settings), {"use.deprecated.format": False})
    values = [serializer(message_class(**event), CONTEXT) for event in events()]
    return RecordFormat("protobuf", settings, str(path), "shop.Payment"), values


def letters(decoded: Decoded) -> list[str]:
    shown = [redact(CARDS, poison) for poison in decoded.poison]
    return [poison.reason + poison.record for poison in shown]


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("written", [in_avro, in_protobuf])
def test_tokens_are_those_of_json(written: Any, tmp_path: Path) -> None:
    form, values = written(tmp_path)
    decoded = decode(form, CARDS, pa.array(values, pa.binary()), TOPIC)
    expected = decode_json(CARDS, pa.array([orjson.dumps(event) for event in events()], pa.binary()))
    assert all(decoded.columns[name].equals(expected.columns[name]) for name in ("card", "email", "tx_id", "amount"))
    cards = decoded.columns["card"].drop_null().to_pylist()
    assert all(card.startswith("pan_k1_") for card in cards)
    assert len(cards) == len(decoded) - 5
    assert [poison.code for poison in decoded.poison] == ["no_card_number"] * 5
    broken = decode(form, CARDS, pa.array([value[:-9] for value in values], pa.binary()), TOPIC)
    assert broken.poison
    for text in (*letters(decoded), *letters(broken), *letters(expected)):
        assert not any(number in text or number.encode().hex() in text for number in map(str, NUMBERS))
