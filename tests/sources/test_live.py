"""Live sources: every record once in order, also when sent back to a position; lanes and ends."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cep.base.errors import SourceError, UsageError
from cep.sources.live import lines as lines_source
from cep.sources.live.base import Chunk, LiveSource, decode_chunks
from cep.sources.live.files import FilesSource
from cep.sources.live.lines import LinesSource
from tests.columnar.common import GOOD_MS, ONE, record

ROWS = [orjson.loads(record(tx_id=f"t{n}", event_time=GOOD_MS + n)) for n in range(500)]


def drain(source: LiveSource, records_max: int = 50) -> list[str]:
    """The ids of all that comes until nothing does."""
    found: list[str] = []
    while chunks := source.poll(records_max, 0.05):
        for part in decode_chunks(ONE, chunks).parts:
            assert not part.poison
            found += part.event_id.to_pylist()
    return found


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
    """As Spark has them, which knows no more of a file's time: control records come in the same order in both."""
    for number, name in enumerate(("b", "a", "c")):
        write(tmp_path, "jsonl", name, ROWS[100 * number : 100 * number + 100])
        os.utime(tmp_path / f"{name}.jsonl", ns=(0, 10**18 + 400_000 * number + 600_000 * (number == 2)))
    assert drain(FilesSource(tmp_path, follow=True)) == [
        row["tx_id"] for row in [*ROWS[100:200], *ROWS[:100], *ROWS[200:300]]
    ]


def test_no_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is nothing at"):
        FilesSource(tmp_path / "gone", follow=True)
    (tmp_path / "a.parquet").write_bytes(b"x")
    with pytest.raises(SourceError, match="cannot be read"):
        FilesSource(tmp_path, follow=False).poll(1, 0.0)


def test_lines_of_a_pipe_however_they_are_cut() -> None:
    reading, writing = os.pipe()
    text = b"\n".join(map(orjson.dumps, ROWS))

    def produce() -> None:
        for at in range(0, len(text), 777):
            os.write(writing, text[at : at + 777])
        os.close(writing)

    thread = threading.Thread(target=produce)
    thread.start()
    source = LinesSource(reading)
    found: list[str] = []
    while not source.ended:
        found += drain(source)
    thread.join()
    os.close(reading)
    assert found == [row["tx_id"] for row in ROWS]
    assert source.positions() == {"lines": 500}


def test_a_line_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_source, "RECORD_BYTES_MAX", 100)
    reading, writing = os.pipe()
    os.write(writing, b"x" * 200)
    with pytest.raises(SourceError, match="without a line end"):
        LinesSource(reading).poll(1, 1.0)
    os.close(reading)
    os.close(writing)


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
