"""The order of events: microseconds, the declared field, the partition, arrival; the same in every form."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cep.base.schema import EventType, Field, Kind, Schema, Type
from cep.columnar.batch import ORDER_ORIGIN, EventBatch, concat_batches, decode_batch, encode_batch, no_order
from cep.columnar.decode import Decoded, decode_json, decode_table, in_partition, route, slice_batch, split_by_group
from cep.columnar.mapping import PLAIN, FieldMapping, mapping_of
from cep.columnar.order import order_of_derived, ordered_by_id, rows_in_order

FIELDS = (
    Field("tx_id", Type(Kind.ID)),
    Field("event_time", Type(Kind.TIME)),
    Field("card_id", Type(Kind.STRING)),
    Field("seq_no", Type(Kind.INT, nullable=True)),
)
SCHEMA = Schema((EventType("tx", FIELDS, order_field="seq_no"),))
WITHOUT = Schema((EventType("tx", FIELDS),))
START = datetime(2026, 3, 1, 10, tzinfo=UTC)
Row = dict[str, Any]


def rows_of(random: Random, count: int) -> list[Row]:
    return [
        {
            "tx_id": f"{random.choice(['', 'a', 'B'])}{number}",
            "event_time": START + timedelta(microseconds=random.choice([0, 1, 999, 1_000, 1_001, 5_000])),
            "card_id": "c",
            "seq_no": random.choice([None, -1, 0, 7, 2**62]),
        }
        for number in range(count)
    ]


def key_of(row: Row, *, by_field: bool) -> tuple[Any, ...]:
    """Return the sort key of a row in Python's own terms. Rows of one key stay in their order of arrival."""
    return row["event_time"], row["seq_no"] if by_field and row["seq_no"] is not None else float("-inf")


def from_json(schema: Schema, rows: list[Row], mapping: FieldMapping = PLAIN) -> Decoded:
    texts = [json.dumps({**row, "event_time": row["event_time"].isoformat()}).encode() for row in rows]
    return decode_json(schema, pa.array(texts, pa.large_binary()), mapping)


def from_table(type_: pa.DataType) -> Callable[[Schema, list[Row]], Decoded]:
    def read(schema: Schema, rows: list[Row]) -> Decoded:
        columns = {name: pa.array([row[name] for row in rows]) for name in ("tx_id", "card_id", "seq_no")}
        times = pa.array([row["event_time"] for row in rows], pa.timestamp("us", "UTC"))
        if type_ == pa.string():
            times = pa.array([row["event_time"].isoformat() for row in rows])
        return decode_table(schema, pa.table({**columns, "event_time": times.cast(type_)}), str)

    return read


def batch_of(schema: Schema, decoded: Decoded) -> EventBatch:
    assert not decoded.poison
    return route(decoded, ("card_id",), schema.columns())[0]


def ids_in_order(batch: EventBatch) -> list[str]:
    ids: list[str] = batch.event_id.take(pa.array(rows_in_order(batch))).to_pylist()
    return ids


FORMS: dict[str, Callable[[Schema, list[Row]], Decoded]] = {
    "json": from_json,
    "text": from_table(pa.string()),
    "microseconds": from_table(pa.timestamp("us", "UTC")),
    "nanoseconds": from_table(pa.timestamp("ns", "UTC")),
}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("form", FORMS)
def test_events_are_in_order_in_every_form(form: str, seed: int) -> None:
    random = Random(f"{form} {seed}")
    rows = rows_of(random, 40)
    for schema, by_field in ((SCHEMA, True), (WITHOUT, False)):
        batch = batch_of(schema, FORMS[form](schema, rows))
        expected = [row["tx_id"] for row in sorted(rows, key=lambda row: key_of(row, by_field=by_field))]
        assert ids_in_order(batch) == expected


@pytest.mark.parametrize("seed", range(4))
def test_whatever_carries_a_batch_carries_its_order(seed: int) -> None:
    random = Random(seed)
    batch = batch_of(SCHEMA, from_json(SCHEMA, rows_of(random, 30)))
    expected = ids_in_order(batch)
    cut = random.randint(0, 30)
    parts = [slice_batch(batch, 0, cut), batch.take(np.arange(cut, 30))]
    assert ids_in_order(concat_batches(parts)) == expected
    assert ids_in_order(decode_batch(encode_batch(batch))) == expected
    assert ids_in_order(concat_batches([share for _, share in split_by_group(batch, 8)])) == expected


def test_whole_milliseconds_cost_no_table() -> None:
    rows = [{**row, "event_time": START, "seq_no": None} for row in rows_of(Random(1), 5)]
    plain = batch_of(SCHEMA, from_json(SCHEMA, rows))
    assert plain.order is None
    assert encode_batch(plain)[3] == 1  # a build without the order can read it
    ordered = batch_of(SCHEMA, from_json(SCHEMA, [{**rows[0], "tx_id": "x", "seq_no": 3}]))
    assert encode_batch(ordered)[3] == 2
    assert ids_in_order(concat_batches([ordered, plain]))[-1] == "x"  # events without the field come first


@pytest.mark.parametrize(("first", "second"), [("received", "sent"), ("sent", "received"), ("s", "r"), ("r", "s")])
def test_views_of_a_record_are_in_the_order_of_the_mapping(first: str, second: str) -> None:
    """Names of views and ids do not affect the order: all views of a record come before those of the next record."""
    mapping = mapping_of([f"{first}/card_id=from", f"{second}/card_id=to"])
    rows = [{"tx_id": i, "event_time": START.isoformat(), "from": "c", "to": "c"} for i in ("91", "100", "90")]
    texts = pa.array([json.dumps(row).encode() for row in rows])
    table = pa.Table.from_pylist(rows)
    for decoded in (decode_json(SCHEMA, texts, mapping), decode_table(SCHEMA, table, str, mapping)):
        batch = batch_of(SCHEMA, decoded)
        assert ids_in_order(batch) == [f"{i}#{view}" for i in ("91", "100", "90") for view in (first, second)]
        by_id = ordered_by_id(batch).event_id.to_pylist()
        assert by_id == [f"{i}#{view}" for i in ("90", "91", "100") for view in (first, second)]


@pytest.mark.parametrize("seed", range(4))
def test_partitions_decide_between_events_of_one_place(seed: int) -> None:
    random = Random(seed)
    rows = rows_of(random, 40)
    partitions = np.array([random.choice([0, 1, 2, 300]) for _ in rows])
    batch = batch_of(SCHEMA, in_partition(from_json(SCHEMA, rows), partitions))
    expected = sorted(range(40), key=lambda row: (*key_of(rows[row], by_field=True), partitions[row]))
    assert rows_in_order(batch).tolist() == expected
    assert in_partition(plain := from_json(SCHEMA, rows), 0) is plain, "the first partition costs nothing"


def test_derived_events_of_one_place_are_in_the_order_of_their_records_and_views() -> None:
    order = order_of_derived(no_order(6), 33)
    names = ["10~b", "9#y~c", "9#xx~d", "9~b", "9~a", "10#xx~a"]
    views = [0, 2, 1, 0, 0, 1]
    order[:, ORDER_ORIGIN] = [(view << 8) + len(name) - len(name.split("#")[0].split("~")[0])
                              for name, view in zip(names, views, strict=True)]  # fmt: skip
    ids = pa.array(names, pa.large_string())
    nothing = np.zeros(6, np.int64)
    batch = EventBatch(ids, ids, nothing.astype(np.int16), nothing, {}, order)
    assert ids_in_order(batch) == ["9~a", "9~b", "9#xx~d", "9#y~c", "10~b", "10#xx~a"]


def test_derived_events_stand_behind_the_events_of_their_millisecond() -> None:
    rows = [{"tx_id": i, "event_time": START + timedelta(microseconds=us), "card_id": "c", "seq_no": None}
            for i, us in (("b", 900), ("a", 100))]  # fmt: skip
    decoded = from_json(WITHOUT, rows)
    assert decoded.order is not None
    once = order_of_derived(decoded.order, 33)
    assert (once == order_of_derived(once, 33)).all()
    batch = batch_of(WITHOUT, decoded)
    tails = pa.array([f"{i}~{'0' * 32}" for i in batch.event_id.to_pylist()], pa.large_string())
    derived = EventBatch(batch.key, tails, batch.event_type, batch.time_ms, batch.columns, once)
    assert [i[0] for i in ids_in_order(concat_batches([derived, batch]))] == ["a", "b", "a", "b"]
