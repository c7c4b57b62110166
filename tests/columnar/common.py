"""A small schema with every kind of field, records for it, and texts that collide in Arrow's own hash."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from cep.base.schema import EventType, Field, Kind, Schema, Type
from cep.columnar.batch import text_buffers
from cep.columnar.decode import Decoded, decode_json
from cep.kernels.arrange import hash_texts

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


COUNT = 12_000


def colliding_texts(count: int) -> list[str]:
    """Return texts of 16 letters that have the same value in Arrow's own hash, which has no key.

    The hash multiplies both halves by constants, reverses the bytes and takes the exclusive or.
    """
    first, second = np.uint64(11400714785074694791), np.uint64(14029467366897019727)
    inverse, target = np.uint64(pow(int(first), -1, 2**64)), np.uint64(0x123456789ABCDEF0)
    drawn, parts, size = np.random.default_rng(1), list[np.ndarray](), 0
    while size < count:
        halves = drawn.integers(48, 123, (1_000_000, 8), dtype=np.uint8)
        others = (target ^ (halves.view(np.uint64).ravel() * second).byteswap()).byteswap() * inverse
        is_ascii = (others & np.uint64(0x8080808080808080)) == 0
        parts.append(np.concatenate([halves[is_ascii], others[is_ascii].view(np.uint8).reshape(-1, 8)], axis=1))
        size += len(parts[-1])
    return [bytes(row).decode("ascii") for row in np.concatenate(parts)[:count]]


def assert_crafted_cost_what_others_do(use: Callable[[pa.Array], object]) -> None:
    """Fail if crafted texts take ten times as much processor time as other texts. Without a key it is 300 times."""

    def cost_s(texts: pa.Array) -> float:
        begin_s = time.process_time()
        use(texts)
        return time.process_time() - begin_s

    crafted, honest = (
        pa.array(texts, pa.large_string())
        for texts in (colliding_texts(COUNT), [f"abcdefgh{number:08}" for number in range(COUNT)])
    )
    cost_s(honest)  # compiles kernels
    assert min(cost_s(crafted) for _ in range(3)) < 10 * max(cost_s(honest) for _ in range(3))


def key_hashes(keys: pa.Array) -> np.ndarray:
    """Hash each key as the groups and pages of keys do: uint64[N]."""
    hashes = np.empty(len(keys), np.uint64)
    hash_texts(*text_buffers(keys), 0, hashes)
    return hashes
