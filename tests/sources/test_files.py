"""Paths and wildcards to files and their compression, and the records of one key out of Parquet, CSV and JSON lines."""

from __future__ import annotations

import gzip
import json
from datetime import datetime
from mmap import PAGESIZE
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

from cep.base.errors import SourceError
from cep.base.schema import EventType, Field, Kind, Schema, Type
from cep.columnar.mapping import mapping_of
from cep.sources.files import read_key
from cep.sources.inputs import given_inputs, kind_of, suffix_of
from cep.sources.pieces import read_pieces
from tests.columnar.common import GOOD, ONE, record

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


STATM = Path("/proc/self/statm")


def test_a_wildcard_stands_for_its_files_each_once(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl", "c.csv"):
        (tmp_path / name).write_text("")
    paths = given_inputs([tmp_path / "b.jsonl", tmp_path / "*.jsonl", tmp_path / "a.jsonl", tmp_path / "gone"])
    assert [path.name for path in paths] == ["b.jsonl", "a.jsonl", "gone"]
    with pytest.raises(SourceError, match="no file matches"):
        given_inputs([tmp_path / "*.parquet"])


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("a.jsonl.gz", ".jsonl"), ("a.CSV.zst", ".csv"), ("a.b.json", ".json"), ("a.parquet", ".parquet"), ("a.gz", "")],
)
def test_the_packing_is_no_form(name: str, suffix: str) -> None:
    assert suffix_of(Path(name)) == suffix


@pytest.mark.parametrize("packing", ["gz", "zst"])
def test_packed_files_are_read_like_others(tmp_path: Path, packing: str) -> None:
    text = record() + b"\n" + record(tx_id="t2", card_id="c2")
    packed = gzip.compress(text) if packing == "gz" else pa.compress(text, codec="zstd", asbytes=True)
    (tmp_path / f"a.jsonl.{packing}").write_bytes(packed)
    table = pa.table({name: [str(value)] for name, value in GOOD.items()})
    csv_path = tmp_path / "csv" / f"a.csv.{packing}"
    csv_path.parent.mkdir()
    with pa.output_stream(str(csv_path), compression={"gz": "gzip", "zst": "zstd"}[packing]) as file:
        pcsv.write_csv(table, file)
    assert kind_of(csv_path) == "csv"
    paths = given_inputs([tmp_path / f"a.jsonl.{packing}", csv_path])
    ids = [i for piece in read_pieces(paths, ONE).pieces for i in piece.decode().event_id.to_pylist()]
    assert ids == ["t1", "t2", "t1"]
    assert read_key(paths, ONE, ("card_id",), "c1").batch.event_id.to_pylist() == ["t1"] * len(paths)


@pytest.mark.skipif(not STATM.exists(), reason="the system does not say how many addresses a process has")
@pytest.mark.parametrize("packing", ["gz", "zst"])
def test_files_that_cannot_be_unpacked_leave_no_memory_behind(tmp_path: Path, packing: str) -> None:
    """Each file took sixteen megabytes of address space for ever: 200 of them 3.2 GB."""
    text = record() * 100
    packed = gzip.compress(text) if packing == "gz" else pa.compress(text, codec="zstd", asbytes=True)
    path = tmp_path / f"events.jsonl.{packing}"
    path.write_bytes(packed[: len(packed) // 2])

    def addresses() -> int:
        return int(STATM.read_text().split()[0]) * PAGESIZE

    def fail() -> None:
        with pytest.raises(SourceError, match="Truncated compressed stream"):
            list(read_pieces(path, ONE).pieces)

    fail()
    before = addresses()
    for _ in range(200):
        fail()
    assert addresses() - before < 1 << 30


def test_a_key_inside_of_another_value_is_looked_for_there(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [record(tx_id=f"t{n}", card_id=...)[:-1] + b',"card":{"no":"c%d"}}' % (n % 2) for n in range(6)]
    path.write_bytes(b"\n".join(lines))
    mapping = mapping_of(["card_id=card.no"])
    assert read_key(path, ONE, ("card_id",), "c1", mapping).batch.event_id.to_pylist() == ["t1", "t3", "t5"]
    fixed = mapping_of(fixed=["card_id=c7"])
    assert len(read_key(path, ONE, ("card_id",), "c7", fixed).batch) == 6
