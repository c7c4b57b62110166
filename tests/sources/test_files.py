"""The records of one key out of Parquet, CSV and JSON lines."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

from cep.base.errors import SourceError
from cep.base.schema import EventType, Field, Kind, Schema, Type
from cep.sources.files import read_key
from cep.sources.inputs import kind_of

SCHEMA = Schema(
    (
        EventType(
            "t",
            (
                Field("id", Type(Kind.ID)),
                Field("event_time", Type(Kind.TIME)),
                Field("card", Type(Kind.STRING)),
                Field("account", Type(Kind.INT)),
                Field("amount", Type(Kind.DECIMAL, scale=2)),
            ),
        ),
    )
)
CARDS = ["c1", "c10", 'c"1', "c1\x1f7", "é", "c1"]
ROWS = [
    {"id": f"e{n}", "event_time": f"1970-01-01T00:00:0{n}Z", "card": card, "account": n % 2, "amount": f"{n}.50"}
    for n, card in enumerate(CARDS)
]


def written(tmp_path: Path, kind: str) -> Path:
    folder = tmp_path / kind
    folder.mkdir()
    if kind == "json":
        (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:3]) + "\n", encoding="utf-8")
        lines = [json.dumps(row, ensure_ascii=False) for row in ROWS[3:]]
        (folder / "b.jsonl").write_text("\n".join(lines), encoding="utf-8")
        return folder
    table = pa.Table.from_pylist(ROWS)
    if kind == "csv":
        pcsv.write_csv(table, folder / "a.csv")
    else:
        pq.write_table(table, folder / "a.parquet", row_group_size=2)
        (folder / "_SUCCESS").touch()
    return folder


def ids(path: Path, domain: tuple[str, ...], key: str) -> list[str]:
    batch = read_key(path, SCHEMA, domain, key).batch
    return sorted(batch.event_id.to_pylist())


@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
def test_one_key_and_no_other(tmp_path: Path, kind: str) -> None:
    path = written(tmp_path, kind)
    assert kind_of(path) == kind
    assert ids(path, ("card",), "c1") == ["e0", "e5"]
    assert ids(path, ("card",), 'c"1') == ["e2"]
    assert ids(path, ("card",), "é") == ["e4"]
    assert ids(path, ("card",), "c2") == []
    assert ids(path, ("account",), "1") == ["e1", "e3", "e5"]
    assert ids(path, ("account",), "x") == []
    assert ids(path, ("card", "account"), "c1\x1f1") == ["e5"]
    assert ids(path, ("card", "account"), "c1\x1e17\x1f1") == ["e3"]


def test_columns_have_their_types(tmp_path: Path) -> None:
    for kind in ("parquet", "csv", "json"):
        batch = read_key(written(tmp_path, kind), SCHEMA, ("card",), "c1").batch
        assert batch.columns["amount"].to_pylist() == [50, 550]
        assert batch.time_ms.tolist() == [0, 5_000]


def test_records_that_cannot_be_decoded_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps(ROWS[0]), json.dumps({**ROWS[0], "amount": "much"}), '{"card": "c1", ', '{"card": "c2", ']
    path.write_text("\n".join(lines), encoding="utf-8")
    records = read_key(path, SCHEMA, ("card",), "c1")
    assert len(records.batch) == 2
    assert sorted(p.code for p in records.poison) == ["unreadable", "wrong_value"]


def test_what_cannot_be_read_is_an_operating_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no events"):
        read_key(tmp_path / "gone", SCHEMA, ("card",), "c1")
    (tmp_path / "a.parquet").write_bytes(b"not parquet")
    with pytest.raises(SourceError, match="cannot be read"):
        read_key(tmp_path / "a.parquet", SCHEMA, ("card",), "c1")
    (tmp_path / "b.csv").touch()
    with pytest.raises(SourceError, match="several kinds"):
        kind_of(tmp_path)


def test_times_of_old_parquet_are_exact_and_far_ones_stay_far(tmp_path: Path) -> None:
    moments = [datetime(2026, 3, 1, 10, 0, 0, 123456), datetime(8999, 12, 31)]  # noqa: DTZ001 these times have no zone
    table = pa.table({"i": ["a", "b"], "k": ["k", "k"], "event_time": pa.array(moments, pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "old.parquet", use_deprecated_int96_timestamps=True)
    fields = (Field("i", Type(Kind.ID)), Field("k", Type(Kind.STRING)), Field("event_time", Type(Kind.TIME)))
    history = read_key(tmp_path, Schema((EventType("e", fields),)), ("k",), "k")
    assert history.batch.time_ms.tolist() == [1_772_359_200_123, 221_845_305_600_000]
