"""Records to packed rows: every event once for each key that it has, records that are set aside, and counters."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cep.columnar.codec import decode_batch
from cep.columnar.decode import Poison, decode_json
from cep.columnar.mapping import PLAIN, FieldMapping, mapping_of
from cep.columnar.route import key_groups
from cep.engine.alerts import ALERT_SCHEMA
from cep.runners.output import decode_alerts, encode_alerts
from cep.runners.spark.kafka import parse_options
from cep.runners.spark.packed import (
    BY_ID,
    COUNTERS,
    DEAD,
    EVENTS,
    NO_ORDER,
    PART_COLUMN,
    DecodedPart,
    pack_parts,
    packer,
    part_packer,
    task_order,
)
from cep.sources.pieces import parts_of, shares_of
from cep.sources.registry.form import RecordFormat
from cep.sources.registry.kafka import decode
from cep.step.dead_letters import dead_letter
from cep.step.event_time import NOTHING_READ
from cep.step.job import Job
from tests.columnar.common import GOOD_MS, TWO, record

JOB = Job(TWO, (("card_id",), ("device",)), 4)
RECORDS = [
    record(event_type="payment", tx_id="t1", card_id="c1"),
    record(event_type="payment", tx_id="t2", card_id="c2", event_time="2026-03-01T00:00:01Z"),
    record(event_type="login", login_id="l1", card_id="c1", device="d1"),
    record(event_type="login", login_id="l2", card_id=None, device="d2"),
    b"no record",
]


def packed(records: list[bytes], batches: int = 1) -> list[dict[str, Any]]:
    """Return the packed rows of records that come in one or more batches."""
    size = -(-len(records) // batches)
    parts = [decoded(records[i : i + size]) for i in range(0, len(records), size)]
    rows: list[dict[str, Any]] = pack_parts(JOB, parts).to_pylist()
    return rows


def decoded(values: list[bytes], mapping: FieldMapping = PLAIN) -> DecodedPart:
    return DecodedPart("source", decode_json(JOB.schema, pa.array(values, pa.binary()), mapping))


@pytest.mark.parametrize("batches", [1, 2])
def test_an_event_is_routed_once_to_each_key_that_it_has(batches: int) -> None:
    ids_by_domain: dict[int, list[str]] = {0: [], 1: []}
    for row in packed(RECORDS, batches):
        if row["kind"] == EVENTS:
            share = decode_batch(row["payload"])
            ids_by_domain[row["domain"]] += share.event_id.to_pylist()
            assert set(key_groups(share.key, JOB.groups_count).tolist()) == {row["key_group"]}
    assert {domain: sorted(ids) for domain, ids in ids_by_domain.items()} == {0: ["l1", "t1", "t2"], 1: ["l1", "l2"]}


def test_what_cannot_be_read_is_set_aside_and_all_is_counted() -> None:
    rows = packed(RECORDS)
    letters = [json.loads(row["payload"]) for row in rows if row["kind"] == DEAD]
    assert [letter["record"] for letter in letters] == ["no record"]
    counters: Counter[str] = Counter()
    for row in rows:
        if row["kind"] == COUNTERS:
            counters.update(json.loads(row["payload"]))
    assert (counters["records"], counters["events"]) == (5, 4)
    assert (counters["unkeyed[card_id]"], counters["unkeyed[device]"]) == (1, 2)
    assert counters[f"poison[{letters[0]['code']}]"] == 1


def test_nothing_is_packed_for_no_records() -> None:
    empty = pa.record_batch([pa.array([], pa.string())], names=["tx_id"])
    assert list(packer(JOB)(iter([empty]))) == []


def test_columns_are_packed_like_records() -> None:
    table = pa.table({
        "event_type": ["payment"], "tx_id": ["t1"], "card_id": ["c1"], "amount": [1.5], "status": ["approved"],
        "event_time": pa.array([GOOD_MS], pa.timestamp("ms", "UTC")),
    })  # fmt: skip
    rows = [row for batch in packer(JOB)(iter(table.to_batches())) for row in batch.to_pylist()]
    (events,) = [row for row in rows if row["kind"] == EVENTS]
    assert decode_batch(events["payload"]).event_id.to_pylist() == ["t1"]


def test_a_long_record_is_cut_in_its_dead_letter() -> None:
    letter = json.loads(dead_letter(Poison("unreadable", "why", "x" * 10_000)))
    assert (letter["code"], letter["reason"], len(letter["record"])) == ("unreadable", "why", 2_000)


def test_alerts_come_back_from_their_bytes() -> None:
    assert decode_alerts(encode_alerts(ALERT_SCHEMA.empty_table())).equals(ALERT_SCHEMA.empty_table())


def test_mapped_records_are_packed_like_plain_ones_from_folders_and_topics(tmp_path: Path) -> None:
    plain = [record(event_type="payment", tx_id=f"t{n}", card_id=f"c{n}") for n in range(5)]
    nested = [json.dumps({"after": json.loads(value), "op": "c"}).encode() for value in plain]
    mapping = mapping_of(["*=after"])
    source_options = {"bootstrap.servers": "x", "topic": "t", "mapping": mapping.to_json()}
    form = parse_options(source_options).form
    assert form == RecordFormat(mapping=mapping)

    expected = pack_parts(JOB, [decoded(plain)], order=task_order(0)).to_pylist()
    of_topic = DecodedPart("source", decode(form, JOB.schema, pa.array(nested, pa.binary()), "t"))
    assert pack_parts(JOB, [of_topic], order=task_order(0)).to_pylist() == expected
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(nested))
    names = pa.array([share.to_json() for part in parts_of(tmp_path) for share in shares_of(part)])
    of_folder = part_packer(JOB, NOTHING_READ, mapping)(iter([pa.record_batch([names], names=[PART_COLUMN])]))
    assert [row for batch in of_folder for row in batch.to_pylist()] == expected
    table = pa.Table.from_pylist([json.loads(value) for value in nested])
    packs = packer(JOB, mapping=mapping)(iter(table.to_batches()))
    by_id = [{**row, "order": BY_ID if row["kind"] == EVENTS else NO_ORDER} for row in expected]
    assert [row for batch in packs for row in batch.to_pylist()] == by_id, "a frame has no order of rows"
