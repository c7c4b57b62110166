"""Paths and wildcards → files and their compression."""

from __future__ import annotations

import gzip
from mmap import PAGESIZE
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pcsv
import pytest

from cep.base.errors import SourceError
from cep.columnar.mapping import mapping_of
from cep.sources.files import read_key
from cep.sources.inputs import given_inputs, kind_of, suffix_of
from cep.sources.pieces import read_pieces
from tests.columnar.common import GOOD, ONE, record

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
