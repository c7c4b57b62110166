"""Files as programs and people write them: each is read by its own names and types, or refused by its name.

Tested by: tests/answers/test_answers.py
"""

import json
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cep.base.errors import CepError
from cep.columnar.decode import concat_decoded
from cep.columnar.mapping import mapping_of
from cep.lang.load import load_text
from cep.lists.entries import read_entries
from cep.sources.check import check_records
from cep.sources.inputs import Records, given_inputs
from cep.sources.pieces import read_pieces
from cep.sources.tables import read_json_table
from tests.answers import Row

_SCHEMA = load_text("event n { i id  event_time time  v decimal(2)?  part string? }").schema
_T = "2026-03-01T10:00:00Z"
_MOMENT = datetime(2026, 3, 1, 10, tzinfo=UTC)
_ROWS = [{"i": str(n), "event_time": _T, "v": n} for n in range(50)]
Write = Callable[[Path], object]


def _values(write: Write, pattern: str = "") -> object:
    """Return the values of `v` and `part` that files give, or the refusal without its folder."""
    with tempfile.TemporaryDirectory() as name:
        write(Path(name))
        try:
            paths = given_inputs([Path(name) / pattern])
            check_records(Records(paths, mapping_of()), _SCHEMA)
            decoded = concat_decoded(_SCHEMA, [piece.decode() for piece in read_pieces(paths, _SCHEMA).pieces])
        except CepError as error:
            return type(error).__name__, str(error).replace(name, "")[:40]
        parts = decoded.columns["part"].to_pylist()
        return [v if part is None else part for v, part in zip(decoded.columns["v"].to_pylist(), parts, strict=True)]


def _text(name: str, text: str, encoding: str = "utf-8") -> Write:
    return lambda folder: (folder / name).write_bytes(text.encode(encoding))


def _parquet(*files: tuple[str, pa.Array | None, str | None]) -> Write:
    def write(folder: Path) -> None:
        for name, values, zone in files:
            times = pa.array([_MOMENT if zone else _MOMENT.replace(tzinfo=None)], pa.timestamp("us", zone))
            table = pa.table({"i": [name], "event_time": times})
            (folder / name).parent.mkdir(exist_ok=True)
            pq.write_table(table if values is None else table.append_column("v", values), folder / name)

    return write


def _list() -> object:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "a.txt").write_bytes("c1\r\nc2".encode("utf-8-sig"))
        return read_entries(Path(name) / "a.txt", "a").to_pylist()


def _mixed() -> object:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "a.jsonl").write_text('{"v": 1}\n{"v": "x"}\n')
        return read_json_table(Path(name) / "a.jsonl")["v"].to_pylist()


_CSV = f"i;event_time;v\r\na;{_T};1.234,50\r\nb;{_T};12,5\r\n"
_ALL = [n * 100 for n in range(50)]
_FOLDERS = _parquet(("part=01001/a.parquet", None, "UTC"), ("part=x/a.parquet", None, "UTC"))
ROWS = [
    Row("B1", "naive and UTC Parquet in a folder", ("UsageError", "/b.parquet: `event_time` is 2026-03-01 1"),
        lambda: _values(_parquet(("a.parquet", None, "UTC"), ("b.parquet", None, None)))),
    Row("D", "folder part=01001 of a string", ["01001", "x"], lambda: _values(_FOLDERS)),
    Row("D", "the same with a wildcard", ["01001", "x"], lambda: _values(_FOLDERS, "*/*.parquet")),
    Row("D", "an optional column that the first file lacks", [None, 250],
        lambda: _values(_parquet(("a.parquet", None, "UTC"), ("b.parquet", pa.array([2.5]), "UTC")))),
    Row("D", "int32 first, then double", [200, 250],
        lambda: _values(_parquet(("a.parquet", pa.array([2], pa.int32()), "UTC"),
                                 ("b.parquet", pa.array([2.5]), "UTC")))),
    Row("E1", "a JSON array with one object a line", _ALL,
        lambda: _values(_text("a.json", "[\n" + ",\n".join(map(json.dumps, _ROWS)) + "\n]"))),
    Row("E1", "JSON objects with a comma after each", _ALL,
        lambda: _values(_text("a.jsonl", ",\n".join(map(json.dumps, _ROWS)) + ",\n"))),
    Row("E1", "JSON lines with a byte order mark", _ALL,
        lambda: _values(_text("a.jsonl", "\n".join(map(json.dumps, _ROWS)), "utf-8-sig"))),
    Row("E1", "a list file with a byte order mark", ["c1", "c2"], _list),
    Row("F2", "decimal comma, thousands and semicolons", [123450, 1250], lambda: _values(_text("a.csv", _CSV))),
    Row("F2", "the same in UTF-16", [123450, 1250], lambda: _values(_text("a.csv", _CSV, "utf-16"))),
    Row("F2", "one number with two meanings", ("InputError", "/a.csv: 1,200 is one number with a decim"),
        lambda: _values(_text("a.csv", f"i;event_time;v\na;{_T};1,200\n"))),
    Row("H", "a column that changes from number to string", ["1", "x"], _mixed),
    Row("H", "an empty folder", ("InputError", " holds no Parquet, CSV or JSON lines; na"),
        lambda: _values(lambda _: 0)),
    Row("H", "a wildcard without a file", ("InputError", "no file matches /*.csv; see which files "),
        lambda: _values(lambda _: 0, "*.csv")),
    Row("H", "a CSV that is no text", ("InputError", "/a.csv cannot be read as CSV: it holds z"),
        lambda: _values(_text("a.csv", "i,v\n1,\0\n"))),
]  # fmt: skip
