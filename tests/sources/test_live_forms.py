"""A live folder takes files of every form that a replay reads, and sets aside the unreadable parts of a file."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cep.base.errors import InputError
from cep.columnar.decode import Poison, concat_decoded
from cep.columnar.mapping import mapping_of
from cep.lang.load import load_text
from cep.sources.live.base import decode_chunks
from cep.sources.live.files import FilesSource
from cep.sources.pieces import read_pieces
from tests.columnar.common import ONE
from tests.sources.live_forms import BROKEN_FORMS, GOOD_FORMS, rows, write


def ids_and_poison(source: FilesSource, records_max: int = 7) -> tuple[list[str], list[Poison]]:
    """Return the ids and the rejected records of all chunks."""
    ids, poison = list[str](), list[Poison]()
    while not source.ended:
        for part in decode_chunks(ONE, source.poll(records_max, 0.0)).parts:
            ids += part.event_id.to_pylist()
            poison += part.poison
    return ids, poison


@pytest.mark.parametrize("name", GOOD_FORMS)
def test_a_job_reads_what_a_replay_reads_and_goes_on_in_it(name: str, tmp_path: Path) -> None:
    write(tmp_path, name, GOOD_FORMS[name](rows(0)))
    replayed = concat_decoded(ONE, [piece.decode() for piece in read_pieces(tmp_path / name, ONE).pieces])
    assert ids_and_poison(FilesSource(tmp_path, follow=False)) == (replayed.event_id.to_pylist(), [])
    first = FilesSource(tmp_path, follow=False)
    before = [i for part in decode_chunks(ONE, first.poll(7, 0.0)).parts for i in part.event_id.to_pylist()]
    again = FilesSource(tmp_path, follow=False)
    again.seek(first.positions())
    assert before + ids_and_poison(again)[0] == [row["tx_id"] for row in rows(0)]


@pytest.mark.parametrize("name", BROKEN_FORMS)
def test_what_cannot_be_read_of_a_file_is_set_aside_alone(name: str, tmp_path: Path) -> None:
    make, count = BROKEN_FORMS[name]
    write(tmp_path, name, make(rows(0)))
    write(tmp_path, "later.jsonl", GOOD_FORMS["lines.jsonl"](rows(100)))
    ids, poison = ids_and_poison(FilesSource(tmp_path, follow=False))
    assert sorted(ids) == [row["tx_id"] for row in (*rows(0)[:count], *rows(100))]
    (one,) = poison
    assert one.code == ("unreadable" if name == "cut.jsonl" else "unreadable_file")
    assert one.code == "unreadable" or one.reason.startswith(f"{name}, or what is left of it, cannot be read: ")


@pytest.mark.parametrize("name", ["cut.json", "odd.json", "brace.json", "cut.parquet"])
def test_a_source_of_control_records_goes_on_too(name: str, tmp_path: Path) -> None:
    write(tmp_path, name, BROKEN_FORMS[name][0](rows(0)))
    write(tmp_path, "b.jsonl", b'{"kind": "heartbeat"}')
    source, values = FilesSource(tmp_path, follow=False, takes_events=False), list[Any]()
    while not source.ended:
        values += [value for chunk in source.poll(100, 0.0) for value in chunk.values]
    assert b'{"kind": "heartbeat"}' in values
    assert any(name.encode() in value for value in values) == (name != "cut.parquet"), "which is no file of its own"


def test_a_replay_refuses_such_a_file_by_its_name(tmp_path: Path) -> None:
    write(tmp_path, "cut.json", BROKEN_FORMS["cut.json"][0](rows(0)))
    with pytest.raises(InputError, match=r"cut\.json cannot be read"):
        [piece.decode() for piece in read_pieces(tmp_path, ONE).pieces]


def test_files_with_wider_numbers_and_a_new_field(tmp_path: Path) -> None:
    """A producer may change these without a change of the event type: int32 becomes int64, decimals get more digits."""
    schema = load_text("event e { i id  event_time time  n int  amount decimal(2)  rate float  device string? }").schema
    old = {"n": (pa.int32(), 7), "amount": (pa.decimal128(7, 2), Decimal("1.25")), "rate": (pa.float32(), 0.5)}
    new = {
        "n": (pa.int64(), 2**40), "amount": (pa.decimal128(18, 2), Decimal("12345678901.25")),
        "rate": (pa.float64(), 0.1), "device": (pa.string(), "d"),
    }  # fmt: skip
    for number, columns in enumerate((old, new)):
        table = pa.table({column: pa.array([value], type_) for column, (type_, value) in columns.items()})
        times = pa.array([number], pa.timestamp("ms", "UTC"))
        table = table.append_column("i", pa.array([str(number)])).append_column("event_time", times)
        pq.write_table(table, tmp_path / f"{number}.parquet")
    source = FilesSource(tmp_path, follow=False)
    decoded = [part for _ in range(3) for part in decode_chunks(schema, source.poll(9, 0.0)).parts]
    values = {name: [v for part in decoded for v in part.columns[name].to_pylist()] for name in new}
    assert values == {"n": [7, 2**40], "amount": [125, 1234567890125], "rate": [0.5, 0.1], "device": [None, "d"]}


def test_columns_are_named_and_made_as_in_a_replay(tmp_path: Path) -> None:
    write(tmp_path, "a.csv", b"a;b;event_time\n1;x;2026-01-01T00:00:00Z\n2;y;2026-01-01T00:00:01Z\n")
    schema = load_text("event e { i id  event_time time  both string }").schema
    mapping = mapping_of(["i=#row", "both=a + b"])
    source = FilesSource(tmp_path, follow=False, mapping=mapping)
    (part,) = decode_chunks(schema, source.poll(9, 0.0), mapping=mapping).parts
    replayed = concat_decoded(schema, [piece.decode() for piece in read_pieces(tmp_path, schema, mapping).pieces])
    assert part.event_id.to_pylist() == replayed.event_id.to_pylist()
    assert part.columns["both"].to_pylist() == ["1 x", "2 y"]
