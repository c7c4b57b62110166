"""Paths to files, and their pieces: all records in their order, for every kind of file and every cut, or of one key."""

import gzip
import io
import json
import tracemalloc
from collections import Counter
from datetime import datetime
from decimal import Decimal
from mmap import PAGESIZE
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import orjson
import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import InputError, SourceError
from cep.base.schema import EventType, Field, Kind, Schema, Type
from cep.columnar.decode import route
from cep.columnar.mapping import PLAIN, mapping_of
from cep.lang.load import load_text
from cep.sources import json_lines, pieces
from cep.sources.check import first_records
from cep.sources.files import read_key
from cep.sources.inputs import files_of, given_inputs, kind_of, suffix_of
from cep.sources.json_lines import json_values
from cep.sources.pieces import read_pieces
from tests.columnar.common import GOOD, ONE, record

SCHEMA = load_text("event t { id id  event_time time  card string  account int  amount decimal(2) }").schema
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


@pytest.mark.parametrize(
    ("type_", "suffix", "values"),
    [
        ("int", "csv", ["500", "0500", "500.0", "5e2", "-7", "-07"]),
        ("int", "jsonl", ["500", "5e2", '"5E2"', "50e1", "-7", '"-07"']),
        ("string", "jsonl", ['"500"', "500.0", "5e2", '"c"']),
        ("decimal(2)", "csv", ["5", "5.00", "5.0"]),
        ("decimal(2)", "jsonl", ["5", "5.00", '"5"']),
        ("bool", "csv", ["true", "TRUE", "1", "0"]),
        ("bool", "jsonl", ["true", "1", '"True"', "0"]),
        ("enum(pos, atm)", "csv", ["pos", "POS", "atm"]),
        ("enum(pos, atm)", "jsonl", ['"pos"', '"Pos"', '"atm"']),
        ("int", "parquet", [5, 6]),
        ("int", "parquet", [Decimal("5.00"), Decimal("6.00")]),
        ("string", "parquet", [Decimal("5.00"), Decimal("6.00")]),
    ],
)
def test_a_key_has_all_the_events_that_are_decoded_with_it(
    type_: str, suffix: str, values: list[Any], tmp_path: Path
) -> None:
    schema = load_text(f"event t {{ id id  event_time time  k {type_} }}").schema
    path, time = tmp_path / f"a.{suffix}", "1970-01-01T00:00:00Z"
    if suffix == "parquet":
        ids = pa.array(["e"] * len(values), pa.string_view())
        pq.write_table(pa.table({"id": ids, "event_time": [time] * len(values), "k": values}), path)
    elif suffix == "csv":
        path.write_text("id,event_time,k\n" + "".join(f"e,{time},{value}\n" for value in values))
    else:
        path.write_text("".join(f'{{"id":"e","event_time":"{time}","k":{value}}}\n' for value in values))
    (piece,) = read_pieces(path, schema).pieces
    keys = route(piece.decode(), ("k",), schema.columns())[0].key.to_pylist()
    assert len(keys) == len(values)
    assert {key: len(read_key(path, schema, ("k",), key).batch) for key in keys} == Counter(keys)


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


def test_hidden_names_are_left_out_of_a_folder(tmp_path: Path) -> None:
    for name in (".a", "_a", ".checkpoints/a", "_temporary/0/a", "day=1/_tmp/a", "day=1/a", "_day=2/a", "b/a"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.jsonl").touch()
    names = ["_day=2/a.jsonl", "b/a.jsonl", "day=1/a.jsonl"]
    assert [str(path.relative_to(tmp_path)) for path in files_of(tmp_path)] == names
    assert files_of(tmp_path / "_temporary" / "0" / "a.jsonl") == [tmp_path / "_temporary" / "0" / "a.jsonl"]
    assert kind_of(tmp_path) == "json"
    (tmp_path / "b" / "_delta_log").mkdir()
    with pytest.raises(InputError, match=r"b is a table whose log \(_delta_log\)"):  # it names files that do not count
        kind_of(tmp_path)


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


PAYMENTS = [
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


def ids_of(path: Path) -> list[str]:
    pieces = read_pieces(path, ONE)
    decoded = [piece.decode() for piece in pieces.pieces]
    assert all(not part.poison for part in decoded)
    return [i for part in decoded for i in part.event_id.to_pylist()]


@pytest.mark.parametrize("block", [100, 1_000, 1 << 24])
@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_every_record_once_in_order(kind: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "READ_BYTES", block)
    monkeypatch.setattr(pieces, "PIECE_ROWS", block)
    for number, rows in enumerate((PAYMENTS[:400], PAYMENTS[400:])):
        path = tmp_path / f"part-{number}.{kind}"
        if kind == "jsonl":
            path.write_bytes(b"\n".join(map(orjson.dumps, rows)) + (b"\n" if number else b""))
        elif kind == "csv":
            pc_csv.write_csv(pa.Table.from_pylist(rows), path)
        else:
            pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=90)
    assert ids_of(tmp_path) == [row["tx_id"] for row in PAYMENTS]


@given(st.lists(st.sampled_from([b"", b" ", b"\t\r", b'{"a": 1}', b" {} ", b"{", b"x", b"\xff{"])), st.booleans())
def test_lines_are_those_that_hold_something(lines: list[bytes], has_end: bool) -> None:
    block = b"\n".join(lines) + (b"\n" if has_end else b"")
    full_lines = [line for line in io.BytesIO(block).read().split(b"\n") if line.strip()]
    assert json_values(block).to_pylist() == full_lines


def test_a_record_set_aside_is_shown_with_all_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_ROWS", 100)
    for number in range(2):
        rows = [{**row, "amount": None if row["tx_id"] in ("t3", "t950") else row["amount"]} for row in PAYMENTS]
        pq.write_table(pa.Table.from_pylist(rows[500 * number : 500 * (number + 1)]), tmp_path / f"{number}.parquet")
    poison = [p for piece in read_pieces(tmp_path, ONE).pieces for p in piece.decode().poison]
    assert [(orjson.loads(p.record)["tx_id"], orjson.loads(p.record)["note"]) for p in poison] == [
        ("t3", "x"),
        ("t950", "x"),
    ]


class CountedFile(io.BytesIO):
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
