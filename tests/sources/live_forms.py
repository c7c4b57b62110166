"""Files in every form that a replay reads, and broken ones, for the tests of live folders."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.columnar.common import GOOD
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
    "mark.jsonl": _text(FORMS["lines"], "utf-8-sig"),
    "wide.json": _text(FORMS["an array that is indented"], "utf-16"),
    "array.json": _text(FORMS["an array with an object a line"]),
    "commas.ndjson": _text(FORMS["a comma after each"]),
    "packed.jsonl.gz": lambda records: gzip.compress(FORMS["lines"](records).encode()),
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
    "zero.csv": (lambda records: csv_text(records).encode() + b"\0\n", 0),
    "odd.json": (lambda records: json.dumps(records).encode("utf-16")[:-1], 20),
    "picture.png": (lambda _: b"PNG", 0),
}


def write(folder: Path, name: str, data: bytes) -> None:
    """Write a file that appears whole."""
    (folder / f".{name}").write_bytes(data)
    (folder / f".{name}").rename(folder / name)
