"""A small schema with every kind of field, and records for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa

from cep.base.schema import EventType, Field, Kind, Schema, Type
from cep.columnar.decode import Decoded, decode_json

PAYMENT = EventType(
    "payment",
    (
        Field("tx_id", Type(Kind.ID)),
        Field("event_time", Type(Kind.TIME)),
        Field("card_id", Type(Kind.STRING)),
        Field("amount", Type(Kind.DECIMAL, scale=2)),
        Field("status", Type(Kind.ENUM, symbols=("approved", "declined"))),
        Field("lat", Type(Kind.FLOAT, nullable=True)),
        Field("retries", Type(Kind.INT, nullable=True)),
        Field("online", Type(Kind.BOOL, nullable=True)),
        Field("took", Type(Kind.DURATION, nullable=True)),
    ),
)
LOGIN = EventType(
    "login",
    (
        Field("login_id", Type(Kind.ID)),
        Field("event_time", Type(Kind.TIME)),
        Field("card_id", Type(Kind.STRING, nullable=True)),
        Field("device", Type(Kind.STRING)),
    ),
)
ONE = Schema((PAYMENT,))
TWO = Schema((PAYMENT, LOGIN))

GOOD: dict[str, Any] = {
    "tx_id": "t1",
    "event_time": "2026-03-01T00:00:00Z",
    "card_id": "c1",
    "amount": 12.34,
    "status": "declined",
    "lat": 48.5,
    "retries": 2,
    "online": True,
    "took": 1500,
}
GOOD_MS = 1_772_323_200_000


def record(**changes: Any) -> bytes:
    """Return a good record with some fields changed; a field that is `...` is left out."""
    return orjson.dumps({name: value for name, value in {**GOOD, **changes}.items() if value is not ...})


def decode(records: Sequence[bytes | None], schema: Schema = ONE) -> Decoded:
    return decode_json(schema, pa.array(records, pa.binary()))
