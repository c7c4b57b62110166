"""No dead letter contains a protected value, for any fault of the record and any place of the value."""

from __future__ import annotations

import random
from dataclasses import replace

import orjson
import pyarrow as pa
import pytest

from cep.base.schema import Schema
from cep.base.secrets import secret_keys
from cep.columnar.decode import Poison, decode_json, decode_table
from cep.columnar.redact import redact
from tests.columnar.common import ONE
from tests.columnar.protected import CARDS, PAYMENT, VISA, card_numbers, keys

__all__ = ["keys"]
TWICE = Schema((PAYMENT, replace(PAYMENT, name="refund")))
PLACES = (
    '{"tx_id": "a", "event_time": "2026-01-01T00:00:00Z", "card": "%s", "amount": "much"}',
    '{"tx_id": "a", "event_time": "2026-01-01T00:00:00Z", "card": "%s1", "amount": 1}',
    '{"tx_id": "a", "event_time": "2026-01-01T00:00:00Z", "card": ["%s"], "amount": 1}',
    '{"tx_id": "a", "event_time": "%s", "card": "x", "amount": 1}',
    '{"tx_id": "a", "event_time": 1, "amount": %s}',
    '{"tx_id": "%s", "event_time": 1, "amount": "much"}',
    '{"tx_id": "a", "event_time": 1, "card_no": "%s", "amount": 1}',
    '{"%s": 1, "tx_id": "a"}',
    '{"tx_id": "a", "event_type": "%s"}',
    '{"tx_id": "a", "note": {"deep": ["%s"]}}',
    '{"tx_id": "a", "note": "paid with %s today"}',
    '{"tx_id": "a", "card": "%s',
    "%s",
    '["%s"]',
    '{"card": %s} {"card": 1}',
    '{"tx_id": "%s' + "a" * 70_000 + '", "event_time": 1, "amount": 1}',
    '{"tx_id": "a", "event_time": 1, "card": 99%s99999999999999}',
)


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("place", PLACES)
def test_no_letter_has_the_number(place: str) -> None:
    for number in (VISA, *card_numbers(7, 5), *card_numbers(8, 5, 13), *card_numbers(9, 3, 19)):
        for written in (number, " ".join(number), "-".join((number[:4], number[4:8], number[8:]))):
            record = (place % written).encode()
            for poison in decode_json(CARDS, pa.array([record], pa.large_binary())).poison:
                letter = repr(redact(CARDS, poison))
                assert number not in letter.replace(" ", "").replace("-", "")


@pytest.mark.usefixtures("keys")
def test_no_mutated_record_leaves_an_address() -> None:
    chosen = random.Random(3)
    good = orjson.dumps({"tx_id": "a", "event_time": 1, "card": VISA, "email": "jo@example.org", "amount": "much"})
    for _ in range(300):
        position, length = chosen.randrange(len(good)), chosen.randrange(4)
        record = (
            good[:position] + bytes(chosen.choices(b'{}[]",:\\x', k=chosen.randrange(4))) + good[position + length :]
        )
        for poison in decode_json(CARDS, pa.array([record], pa.large_binary())).poison:
            letter = redact(CARDS, poison)
            assert "jo@example" not in letter.record + letter.reason
            assert VISA not in letter.record + letter.reason


@pytest.mark.usefixtures("keys")
def test_a_letter_tells_what_is_wrong_and_can_be_mended() -> None:
    record = orjson.dumps({"tx_id": "a", "event_time": 1, "card": VISA, "amount": "much", "other": "x"})
    [poison] = decode_json(CARDS, pa.array([record], pa.large_binary())).poison
    letter = redact(CARDS, poison)
    assert letter.reason == "field `amount`: what it has is not a value of type decimal(2)"
    fields = orjson.loads(letter.record)
    token = secret_keys()[0].token("pan", VISA.encode())
    assert fields == {
        "tx_id": "a", "event_time": 1, "card": token, "amount": "much",
        "undeclared": "1 fields that the schema does not declare",
    }  # fmt: skip
    mended = decode_json(CARDS, pa.array([orjson.dumps(fields | {"amount": 1})], pa.large_binary()))
    assert mended.columns["card"].to_pylist() == [token]


@pytest.mark.usefixtures("keys")
def test_a_reason_quotes_no_value() -> None:
    table = pa.table({"tx_id": ["a"], "event_time": [VISA + "x"], "card": [VISA], "amount": ["1"]})
    [poison] = decode_table(CARDS, table, lambda _: "{}").poison
    assert redact(CARDS, poison).reason == "field `event_time`: what it has is not a value of type time"
    [poison] = decode_table(TWICE, table.append_column("event_type", [[VISA]]), lambda _: "{}").poison
    assert redact(TWICE, poison).reason == "the event type is not one of the schema's"


@pytest.mark.usefixtures("keys")
def test_equal_records_have_one_digest() -> None:
    letters = {redact(CARDS, Poison("unreadable", "why", text)).record for text in ("{", "{", "[")}
    assert len(letters) == 2


def test_a_schema_that_protects_nothing_changes_no_letter() -> None:
    poison = Poison("unreadable", "why", VISA)
    assert redact(ONE, poison) is poison
