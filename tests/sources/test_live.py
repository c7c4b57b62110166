"""Live sources: every record once in order, also after a seek to a position; lanes and ends."""

from __future__ import annotations

import codecs
import io
import os
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import SourceError, UnreadableError, UsageError
from cep.columnar import parse_json
from cep.columnar.decode import UNREADABLE_FILE
from cep.sources import json_lines
from cep.sources.json_lines import LineCutter, whole_lines
from cep.sources.live.base import Chunk, LiveSource, decode_chunks
from cep.sources.live.files import FilesSource
from cep.sources.live.lines import LinesSource
from tests.columnar.common import GOOD_MS, ONE, record

ROWS = [orjson.loads(record(tx_id=f"t{n}", event_time=GOOD_MS + n)) for n in range(500)]


def drain(source: LiveSource, records_max: int = 50) -> list[str]:
    """Return the ids of all events until the source is empty."""
    event_ids: list[str] = []
    while chunks := source.poll(records_max, 0.05):
        for part in decode_chunks(ONE, chunks).parts:
            assert not part.poison
            event_ids += part.event_id.to_pylist()
    return event_ids


def write(folder: Path, kind: str, name: str, rows: list[dict[str, object]]) -> None:
    path = folder / f".{name}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    path.rename(folder / f"{name}.{kind}")


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_files_come_once_also_those_that_appear_later(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cep.sources.live.files._LOOK_S", 0.0)
    write(tmp_path, kind, "a", ROWS[:200])
    source = FilesSource(tmp_path, follow=True)
    assert drain(source) == [row["tx_id"] for row in ROWS[:200]]
    assert source.behind() == {"files": False}
    write(tmp_path, kind, "b", ROWS[200:])
    assert drain(source) == [row["tx_id"] for row in ROWS[200:]]
    assert not source.ended


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_file_is_read_in_large_blocks_although_a_few_records_are_asked_for(kind: str, tmp_path: Path) -> None:
    write(tmp_path, kind, "a", ROWS[:1])
    write(tmp_path, kind, "b", ROWS[1:])
    source = FilesSource(tmp_path, follow=False)
    one, many = [chunk for records_max in (500, 3) for chunk in source.poll(records_max, 0.0)]
    assert len(one) == 1
    assert len(many) >= len(ROWS) - 2


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_files_go_on_behind_a_position(kind: str, tmp_path: Path) -> None:
    write(tmp_path, kind, "a", ROWS[:300])
    write(tmp_path, kind, "b", ROWS[300:])
    whole = [row["tx_id"] for row in ROWS]
    for polls in range(0, 40, 3):
        first = FilesSource(tmp_path, follow=False)
        head = [
            i
            for _ in range(polls)
            for p in decode_chunks(ONE, first.poll(20, 0.0)).parts
            for i in p.event_id.to_pylist()
        ]
        second = FilesSource(tmp_path, follow=False)
        second.seek(first.positions())
        assert head + drain(second, 64) == whole
        assert second.ended
        first.close()


def test_files_of_one_millisecond_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    """Spark knows no more of a file's time, so control records come in the same order in both runners."""
    for number, name in enumerate(("b", "a", "c")):
        write(tmp_path, "jsonl", name, ROWS[100 * number : 100 * number + 100])
        os.utime(tmp_path / f"{name}.jsonl", ns=(0, 10**18 + 400_000 * number + 600_000 * (number == 2)))
    assert drain(FilesSource(tmp_path, follow=True)) == [
        row["tx_id"] for row in [*ROWS[100:200], *ROWS[:100], *ROWS[200:300]]
    ]


def test_no_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no file or folder at"):
        FilesSource(tmp_path / "gone", follow=True)
    write(tmp_path, "jsonl", "a", ROWS[:1])
    source = FilesSource(tmp_path, follow=False)
    with (
        patch("os.access", lambda *_: False),
        patch("cep.sources.live.files.open_file", side_effect=UnreadableError("permission denied")),
        pytest.raises(SourceError, match="permission denied; see that the job may read it"),
    ):
        source.poll(1, 0.0)
    assert drain(source) == [ROWS[0]["tx_id"]]
    (tmp_path / "later").mkdir()
    source = FilesSource(tmp_path / "later", follow=True)
    (tmp_path / "later").rmdir()
    with pytest.raises(SourceError, match="later cannot be read"):
        source.poll(1, 0.0)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(SourceError, match=r"cannot be read: .* directory"):
        LinesSource(descriptor).poll(1, 0.0)
    os.close(descriptor)


def test_a_file_that_cannot_be_read_is_set_aside_and_the_others_are_read(tmp_path: Path) -> None:
    folder, outside = tmp_path / "events", tmp_path / "secret.jsonl"
    folder.mkdir()
    outside.write_bytes(b"secret")
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 40, pa.int8()), pa.array(["x"]))
    pq.write_table(pa.table({"note": texts}), folder / "whole.parquet")
    whole = (folder / "whole.parquet").read_bytes()
    hostile = {
        "no.parquet": b"x", "cut.parquet": whole[:-20], "flipped.parquet": whole[:9] + b"\xff" * 9 + whole[18:],
        "wide.jsonl": b"\xff\xfe{\x00\x00\xd8", "open.json": b'[{"a": {"b": 1',
    }  # fmt: skip
    (folder / "whole.parquet").unlink()
    for name, data in hostile.items():
        (folder / name).write_bytes(data)
    (folder / "link.jsonl").symlink_to(outside)
    (folder / "\udcff.json").write_bytes(b'[{"a": {')  # a name may be any bytes
    (folder / "device.jsonl").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.jsonl")
    for place in folder.iterdir():
        os.utime(place, ns=(0, 10**18), follow_symlinks=False)
    write(folder, "jsonl", "good", ROWS[:200])
    source, letters, events = FilesSource(folder, follow=False), dict[str, str](), list[str]()
    while not source.ended:
        for part in decode_chunks(ONE, source.poll(50, 0.0)).parts:
            events += part.event_id.to_pylist()
            letters |= {poison.record: poison.reason for poison in part.poison if poison.code == UNREADABLE_FILE}
    assert events == [row["tx_id"] for row in ROWS[:200]]
    assert set(letters) == {*hostile, "link.jsonl", "\\xff.json"}
    assert orjson.dumps([source.positions(), letters]), "positions and letters are JSON"
    assert not any("secret" in reason for reason in letters.values())
    again = FilesSource(folder, follow=False)
    again.seek(source.positions())
    assert again.poll(50, 0.0) == []


def test_lines_of_a_pipe_however_they_are_cut() -> None:
    reading, writing = os.pipe()
    text = codecs.BOM_UTF8 + b"\n".join(map(orjson.dumps, ROWS))

    def produce() -> None:
        for start in range(0, len(text), 777):
            os.write(writing, text[start : start + 777])
        os.close(writing)

    thread = threading.Thread(target=produce)
    thread.start()
    source = LinesSource(reading)
    event_ids: list[str] = []
    while not source.ended:
        event_ids += drain(source)
    thread.join()
    os.close(reading)
    assert event_ids == [row["tx_id"] for row in ROWS]
    assert source.positions() == {"lines": 500}


@given(st.lists(st.binary(max_size=9)), st.integers(1, 9))
def test_a_line_that_is_too_long_is_cut(lines: list[bytes], block_bytes: int) -> None:
    data, cutter = b"\n".join(lines), LineCutter(7)
    with patch.object(json_lines, "RECORD_BYTES_MAX", 4):
        pieces = [(piece, cutter.position) for piece in whole_lines(io.BytesIO(data), cutter, block_bytes)]
    assert all(piece.endswith(b"\n") and data[end - 8 : end - 7] == b"\n" for piece, end in pieces[:-1])
    assert cutter.position == 7 + len(data)
    cut = b"".join(piece for piece, _ in pieces).split(b"\n")
    for line, cut_line in zip(data.split(b"\n"), cut, strict=True):
        assert cut_line == line if len(line) <= 4 else line.startswith(cut_line) and len(cut_line) > 4


def test_a_line_without_an_end_is_joined_once() -> None:
    """A block without a line end costs its own length, for any amount of text before it."""

    class Counted(bytes):
        copied = 0

        def __add__(self, other: Any) -> Counted:
            Counted.copied += len(self) + len(other)
            return Counted(bytes.__add__(self, other))

        __radd__ = __add__

        def __getitem__(self, place: Any) -> Any:
            return (
                Counted(bytes.__getitem__(self, place)) if isinstance(place, slice) else bytes.__getitem__(self, place)
            )

    cutter = LineCutter()
    for _ in range(300):
        assert cutter.take(Counted(b"x" * 100)) == b""
    assert Counted.copied == 0
    assert cutter.last() == b"x" * 30_000


def test_a_line_without_an_end_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (json_lines, parse_json):
        monkeypatch.setattr(module, "RECORD_BYTES_MAX", 1_000)
    long = b'{"tx_id": "' + b"x" * 5_000
    (tmp_path / "a.jsonl").write_bytes(record() + b"\n" + long + b"\n" + record(tx_id="t2") + b"\n" + long)
    reading, writing = os.pipe()
    os.write(writing, (tmp_path / "a.jsonl").read_bytes())
    os.close(writing)
    for source in (LinesSource(reading), FilesSource(tmp_path, follow=False)):
        chunks = [chunk for _ in range(5) for chunk in source.poll(1, 0.0)]
        decoded = decode_chunks(ONE, chunks)
        assert [e for part in decoded.parts for e in part.event_id.to_pylist()] == ["t1", "t2"]
        poison = [p for part in decoded.parts for p in part.poison]
        assert [p.code for p in poison] == ["unreadable"] * 2
        assert all("more than" in p.reason for p in poison)
        assert source.ended
    os.close(reading)


def test_what_is_no_file_is_passed_over(tmp_path: Path) -> None:
    """Anyone who may write into the folder may put other things there: a pipe would make the job wait for ever."""
    os.mkfifo(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").mkdir()
    (tmp_path / "c.jsonl").symlink_to(tmp_path / "gone")
    (tmp_path / "d.jsonl").symlink_to("/dev/zero")
    write(tmp_path, "jsonl", "e", ROWS[:3])
    assert drain(FilesSource(tmp_path, follow=True)) == [row["tx_id"] for row in ROWS[:3]]
    with pytest.raises(UsageError, match="no file or folder"):
        FilesSource(tmp_path / "a.jsonl", follow=False)
    twice = pa.table([["t1"], ["t2"]], names=["tx_id", "tx_id"])
    pq.write_table(twice, tmp_path / "f.parquet")
    (chunk,) = FilesSource(tmp_path / "f.parquet", follow=False).poll(1, 0.0)
    assert chunk.unreadable is not None
    assert "two of its columns have one name" in chunk.unreadable.reason


def test_the_latest_time_of_each_lane_whatever_is_poisoned() -> None:
    def chunk(lane: str, *times: int, bad: bool = False) -> Chunk:
        values = [record(event_time=GOOD_MS + t) for t in times] + ([b"{"] if bad else [])
        return Chunk(lane, pa.array(values, pa.large_binary()))

    clean = [chunk("a", 5, 1), chunk("b", 2), chunk("a", 3)]
    assert decode_chunks(ONE, clean).latest_ms == {"a": GOOD_MS + 5, "b": GOOD_MS + 2}
    poisoned = decode_chunks(ONE, [*clean, chunk("b", 9, bad=True), chunk("c", bad=True)])
    assert poisoned.latest_ms == {"a": GOOD_MS + 5, "b": GOOD_MS + 9}
    assert sum(len(part.poison) for part in poisoned.parts) == 2
    table = Chunk("t", pa.Table.from_pylist([ROWS[7]]))
    assert decode_chunks(ONE, [table]).latest_ms == {"t": GOOD_MS + 7}
