"""A live folder takes files of every form that a replay reads, and sets aside the unreadable parts of a file."""

import gzip
import json
from collections.abc import Callable
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
from tests.columnar.common import GOOD, ONE
from tests.sources.test_csv_form import FORMS

Rows = list[dict[str, Any]]


def rows(first: int, count: int = 20) -> Rows:
    """Return records with ids from `first` on; if `first` is even, they have an optional field."""
    extra = {"note": "a"} if first % 2 == 0 else {}
    return [{**GOOD, **extra, "tx_id": f"t{first + n:04}", "card_id": f"c{n % 3}"} for n in range(count)]


def csv_text(records: Rows, delimiter: str = ",") -> str:
    names = list(records[0])
    lines = [delimiter.join(names), *(delimiter.join(str(record[name]) for name in names) for record in records)]
    return "\n".join(lines) + "\n"


def _text(text: Callable[[Rows], str], encoding: str = "utf-8") -> Callable[[Rows], bytes]:
    return lambda records: text(records).encode(encoding)


def _parquet(records: Rows) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(records), sink)
    return bytes(sink.getvalue())


# The name of a file and its bytes.
GOOD_FORMS: dict[str, Callable[[Rows], bytes]] = {
    "lines.jsonl": _text(FORMS["lines"]),
    "e%20f +[m].jsonl": _text(FORMS["lines"], "utf-8-sig"),
    "wide.json": _text(FORMS["an array that is indented"], "utf-16"),
    "array.json": _text(FORMS["an array with an object a line"]),
    "commas.ndjson": _text(FORMS["a comma after each"]),
    "{100%}.jsonl.gz": lambda records: gzip.compress(FORMS["lines"](records).encode()),
    "array.json.gz": lambda records: gzip.compress(json.dumps(records).encode()),
    "a.csv": _text(csv_text),
    "semicolons.csv": _text(lambda records: csv_text(records, ";"), "utf-16"),
    "packed.csv.gz": lambda records: gzip.compress(csv_text(records).encode()),
    "a.parquet": _parquet,
}
# The same, with the number of its 20 records that can be read.
BROKEN_FORMS: dict[str, tuple[Callable[[Rows], bytes], int]] = {
    "cut.json": (lambda records: json.dumps(records, indent=1).encode()[:-30], 19),
    "brace.json": (lambda records: (json.dumps(records[:5]) + "}" + json.dumps(records[5:])).encode(), 5),
    "cut.jsonl": (lambda records: FORMS["lines"](records).encode()[:-30], 19),
    "cut.parquet": (lambda records: _parquet(records)[:-30], 0),
    "none.parquet": (lambda _: b"no", 0),
    "none.csv.gz": (lambda _: b"no gzip", 0),
    "cut.jsonl.gz": (lambda records: gzip.compress(FORMS["lines"](records).encode())[:20], 0),
    "zero.csv": (lambda records: csv_text(records).encode() + b"\0\n", 20),
    "odd.json": (lambda records: json.dumps(records).encode("utf-16")[:-1], 20),
    "picture.png": (lambda _: b"PNG", 0),
}


def write(folder: Path, name: str, data: bytes) -> None:
    """Write a file that appears whole."""
    (folder / f".{name}").write_bytes(data)
    (folder / f".{name}").rename(folder / name)


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


def test_bad_lines_of_a_file_come_once_also_after_a_restart(tmp_path: Path) -> None:
    lines = [f"t{n},1" if n % 1_000 < 2 else f"t{n},1,{'x' * 100}" for n in range(20_000)]
    write(tmp_path, "a.csv", "\n".join(["a,b,c", *lines]).encode())
    first, again = FilesSource(tmp_path, follow=False), FilesSource(tmp_path, follow=False)
    chunks = first.poll(7, 0.0)
    again.seek(first.positions())
    while not again.ended:
        chunks += again.poll(7, 0.0)
    assert len(chunks) > 2
    assert [bad.record for chunk in chunks for bad in chunk.bad_lines] == [line for line in lines if "x" not in line]


@pytest.mark.parametrize("name", BROKEN_FORMS)
def test_what_cannot_be_read_of_a_file_is_set_aside_alone(name: str, tmp_path: Path) -> None:
    make, count = BROKEN_FORMS[name]
    write(tmp_path, name, make(rows(0)))
    write(tmp_path, "later.jsonl", GOOD_FORMS["lines.jsonl"](rows(100)))
    ids, poison = ids_and_poison(FilesSource(tmp_path, follow=False))
    assert sorted(ids) == [row["tx_id"] for row in (*rows(0)[:count], *rows(100))]
    (one,) = poison
    assert one.code == ("unreadable" if name in ("cut.jsonl", "zero.csv") else "unreadable_file")
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
