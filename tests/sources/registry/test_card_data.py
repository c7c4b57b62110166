"""Card numbers in Avro and Protobuf records become the same tokens as in JSON; no dead letter contains one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from google.protobuf import descriptor_pb2

from cep.columnar.decode import Decoded, decode_json
from cep.columnar.redact import redact
from cep.sources.registry.form import RecordFormat
from cep.sources.registry.kafka import _message_class, client_of, decode
from tests.cli.test_erase import wrong
from tests.columnar.protected import CARDS, card_numbers, keys
from tests.plain_avro import plain_avro
from tests.sources.registry.test_registry import CONTEXT, TOPIC

__all__ = ["keys"]
pytestmark = pytest.mark.usefixtures("keys")
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


def assert_no_number(texts: Sequence[str]) -> None:
    for text in texts:
        assert not any(number in text or number.encode().hex() in text for number in map(str, NUMBERS))


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
    assert_no_number([*letters(decoded), *letters(broken), *letters(expected)])
