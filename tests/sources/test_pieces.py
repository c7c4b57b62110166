"""Pieces of files: all records, in their order, for every kind of file and every cut."""

from __future__ import annotations

import gzip
import io
import tracemalloc
from pathlib import Path
from random import Random
from unittest.mock import patch

import orjson
import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import SourceError
from cep.columnar.mapping import PLAIN
from cep.sources import json_lines, pieces
from cep.sources.check import first_records
from cep.sources.json_lines import json_values
from cep.sources.pieces import read_pieces
from tests.columnar.common import ONE, record

ROWS = [
    {
        "tx_id": f"t{n}",
        "event_time": 1_700_000_000_000 + n,
        "card_id": f"c{n % 7}",
        "amount": n / 4,
        "status": "approved",
        "note": "x",
    }
    for n in range(1_000)
]


def ids(path: Path) -> list[str]:
    pieces = read_pieces(path, ONE)
    decoded = [piece.decode() for piece in pieces.pieces]
    assert all(not part.poison for part in decoded)
    return [i for part in decoded for i in part.event_id.to_pylist()]


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize("block", [100, 1_000, 1 << 24])
@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_every_record_once_in_order(kind: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "READ_BYTES", block)
    monkeypatch.setattr(pieces, "PIECE_ROWS", block)
    for number, rows in enumerate((ROWS[:400], ROWS[400:])):
        path = tmp_path / f"part-{number}.{kind}"
        if kind == "jsonl":
            path.write_bytes(b"\n".join(map(orjson.dumps, rows)) + (b"\n" if number else b""))
        elif kind == "csv":
            pc_csv.write_csv(pa.Table.from_pylist(rows), path)
        else:
            pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=90)
    assert ids(tmp_path) == [row["tx_id"] for row in ROWS]


@given(st.lists(st.sampled_from([b"", b" ", b"\t\r", b'{"a": 1}', b" {} ", b"{", b"x", b"\xff{"])), st.booleans())
def test_lines_are_those_that_hold_something(lines: list[bytes], has_end: bool) -> None:
    block = b"\n".join(lines) + (b"\n" if has_end else b"")
    full_lines = [line for line in io.BytesIO(block).read().split(b"\n") if line.strip()]
    assert json_values(block).to_pylist() == full_lines


def test_a_record_set_aside_is_shown_with_all_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_ROWS", 100)
    for number in range(2):
        rows = [{**row, "amount": None if row["tx_id"] in ("t3", "t950") else row["amount"]} for row in ROWS]
        pq.write_table(pa.Table.from_pylist(rows[500 * number : 500 * (number + 1)]), tmp_path / f"{number}.parquet")
    poison = [p for piece in read_pieces(tmp_path, ONE).pieces for p in piece.decode().poison]
    assert [(orjson.loads(p.record)["tx_id"], orjson.loads(p.record)["note"]) for p in poison] == [
        ("t3", "x"),
        ("t950", "x"),
    ]


class CountedFile(io.BytesIO):
    """A file that counts the bytes that are read."""

    count = 0

    def read(self, size: int | None = -1) -> bytes:
        block = super().read(size)
        self.count += len(block)
        return block

    def readline(self, size: int | None = -1) -> bytes:
        line = super().readline(size)
        self.count += len(line)
        return line


@given(st.lists(st.integers(0, 30), max_size=20), st.integers(1, 50), st.integers(1, 40))
def test_shares_have_each_line_once_and_read_no_line_twice(lengths: list[int], share: int, longest: int) -> None:
    data = b"\n".join(b"%d" % (number % 10) * length for number, length in enumerate(lengths))
    with patch.object(json_lines, "RECORD_BYTES_MAX", longest):
        counts, read = [], []
        for start in range(0, len(data), share):
            file = CountedFile(data)
            read.append(json_lines.lines_between(file, start, min(start + share, len(data))))
            counts.append(file.count)
    lines, cut = data.split(b"\n"), b"".join(part if part.endswith(b"\n") else part + b"\n" for part in read if part)
    for line, cut_line in zip(
        [line for line in lines if line], [line for line in cut.split(b"\n") if line], strict=True
    ):
        assert cut_line == line if len(line) <= longest else line.startswith(cut_line) and len(cut_line) > longest
    assert all(count <= share + 1 + longest + 1 for count in counts)


def test_blank_lines_are_left_out_whatever_they_are_made_of() -> None:
    blank = [b"", b" ", b"\t\r", b"\x0b\x0c"] * 50
    lines = [b'{"a": 1}', b"x", b"\xa0", b"\xff\xfe", "\u2003".encode()]
    random = Random(1)
    mixed = [*blank, *lines]
    random.shuffle(mixed)
    values = json_values(b"\n".join(mixed)).to_pylist()
    assert values == [line for line in mixed if line.strip()]


def test_the_first_records_behind_a_line_without_an_end_take_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wb", 1) as file:
        for _ in range(96):
            file.write(b"x" * (1 << 20))
        file.write(b"\n" + record(tx_id="t2"))
    tracemalloc.start()
    try:
        with patch.object(json_lines, "RECORD_BYTES_MAX", 1 << 20):
            assert [row["tx_id"] for row in first_records(path, ONE, PLAIN)] == ["t2"]
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"no parquet")
    with pytest.raises(SourceError, match="cannot be read"):
        list(read_pieces(tmp_path, ONE).pieces)


@pytest.mark.parametrize("name", ["events.csv", "events.parquet"])
def test_columns_whose_names_are_no_text_are_an_error_of_ours(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if path.suffix == ".csv":
        path.write_bytes(b"tx_id,\xe3x\0\n1,2\n")
    else:
        pq.write_table(pa.table({"tx_id": ["1"], "xxyyzz": ["2"]}), path)
        path.write_bytes(path.read_bytes().replace(b"xxyyzz", b"\x8cxyyzz"))
    with pytest.raises(SourceError, match="cannot be read"):
        [piece.decode() for piece in read_pieces(path, ONE).pieces]
