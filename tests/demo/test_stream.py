"""The demo's stream: the same for a seed, planted as planned, and without accidental frauds."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cep.columnar.decode import decode_json
from cep.demo.stream import CHANNELS, SCHEMA, STATUSES, Stream, StreamSize, build, json_lines, planted
from cep.lang.load import load_files

ROOT = Path(__file__).parents[2]
SMALL = StreamSize(cards_count=200, payments_per_card=12)


@pytest.fixture(scope="module")
def stream() -> Stream:
    return build(7)


def test_it_has_the_size_that_was_asked_for(stream: Stream) -> None:
    assert 55_000 <= stream.payments.num_rows <= 62_000
    assert stream.payments.schema == SCHEMA
    assert pc.count_distinct(stream.payments["tx_id"]).as_py() == stream.payments.num_rows
    assert set(stream.payments["status"].unique().to_pylist()) == set(STATUSES)
    assert set(stream.payments["channel"].unique().to_pylist()) == set(CHANNELS)


def test_it_is_in_event_time_order(stream: Stream) -> None:
    times = stream.payments["event_time"].to_numpy().astype(np.int64)
    assert bool((np.diff(times) >= 0).all())


def test_cases_are_as_planned(stream: Stream) -> None:
    fires = Counter(case.rule_id for case in stream.planted if case.fires)
    misses = Counter(case.rule_id for case in stream.planted if not case.fires)
    assert dict(fires) == StreamSize().counts()
    assert set(misses.values()) == {StreamSize().near_misses_count}


def test_the_ids_of_a_case_are_those_of_its_payments(stream: Stream) -> None:
    rows = {row["tx_id"]: row for row in stream.payments.select([0, 1, 2, 3]).to_pylist()}
    for case in stream.planted:
        case_rows = [rows[tx_id] for tx_id in case.tx_ids]
        assert {case.key} <= {name for row in case_rows for name in (row["card_id"], row["account_id"])}
        assert [row["event_time"] for row in case_rows] == sorted(row["event_time"] for row in case_rows)
        assert int(case_rows[-1]["event_time"].timestamp() * 1_000) == case.last_ms


def test_everyday_payments_are_never_tiny_and_never_near_a_case(stream: Stream) -> None:
    fraud = {tx_id for case in stream.planted for tx_id in case.tx_ids}
    tiny = stream.payments.filter(pc.less(stream.payments["amount"], 3))["tx_id"].to_pylist()
    assert tiny
    assert set(tiny) <= fraud


def test_a_seed_gives_the_same_stream_and_another_seed_another() -> None:
    assert build(1, SMALL).payments.equals(build(1, SMALL).payments)
    assert planted(1, SMALL) == build(1, SMALL).planted
    assert not build(1, SMALL).payments.equals(build(2, SMALL).payments)


def test_json_lines_say_what_the_table_says() -> None:
    payments = build(3, SMALL).payments
    lines = [json.loads(line) for line in json_lines(payments)]
    assert len(lines) == payments.num_rows
    first = payments.slice(0, 1).to_pylist()[0]
    assert lines[0]["tx_id"] == first["tx_id"]
    assert lines[0]["amount"] == float(first["amount"])
    assert lines[0]["event_time"] == first["event_time"].isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert all(value is not None for value in lines[0].values())


def test_every_line_is_a_good_record_for_the_schema_of_the_patterns() -> None:
    payments = build(3, SMALL).payments
    schema = load_files([ROOT / "patterns" / "events.cep"]).schema
    decoded = decode_json(schema, pa.array(json_lines(payments), pa.binary()))
    assert decoded.poison == ()
    assert decoded.event_id.to_pylist() == payments["tx_id"].to_pylist()
    assert decoded.time_ms.tolist() == payments["event_time"].cast(pa.int64()).to_pylist()
    assert decoded.columns["amount"].to_pylist() == [int(a.scaleb(2)) for a in payments["amount"].to_pylist()]
