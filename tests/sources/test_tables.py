"""Files of a folder, each read by its own names and types; pandas and DuckDB give the right values."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cep.base.errors import InputError, UsageError
from cep.base.schema import Schema
from cep.columnar.decode import Decoded, concat_decoded
from cep.columnar.mapping import FieldMapping, FileForm, mapping_of
from cep.columnar.times import times_us
from cep.lang.load import load_text
from cep.sources.check import check_records
from cep.sources.files import read_key
from cep.sources.inputs import Records, given_inputs
from cep.sources.pieces import FilePart, parts_of, read_part, read_pieces, shares_of
from cep.sources.tables import read_whole

SCHEMA = load_text("event n { i id  event_time time  h string  v decimal(2)?  part string? }").schema
T0 = datetime(2026, 3, 1, 10, tzinfo=UTC)


def decoded(paths: list[Path], schema: Schema = SCHEMA, mapping: FieldMapping = mapping_of()) -> Decoded:  # noqa: B008
    check_records(Records(tuple(paths), mapping), schema)
    return concat_decoded(schema, [piece.decode() for piece in read_pieces(paths, schema, mapping).pieces])


def parquet(path: Path, **columns: pa.Array) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    required = {
        "i": pa.array([path.stem]),
        "event_time": pa.array([T0], pa.timestamp("us", "UTC")),
        "h": pa.array(["x"]),
    }
    pq.write_table(pa.table(required | columns), path)
    return path


def values(decoded: Decoded) -> dict[str, object]:
    return dict(zip(decoded.event_id.to_pylist(), decoded.columns["v"].to_pylist(), strict=True))


def test_a_column_that_the_first_file_lacks(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet")
    parquet(tmp_path / "b.parquet", v=pa.array([2.5]))
    assert values(decoded([tmp_path])) == {"a": None, "b": 250}
    assert values(decoded(list(given_inputs([tmp_path / "*.parquet"])))) == {"a": None, "b": 250}


def test_types_that_change_from_file_to_file(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", v=pa.array([2], pa.int32()))
    parquet(tmp_path / "b.parquet", v=pa.array([2.25]))
    parquet(tmp_path / "c.parquet", v=pa.array(["7.5"]))
    parquet(tmp_path / "d.parquet", h=pa.array([5], pa.int8()))
    assert values(decoded([tmp_path])) == {"a": 200, "b": 225, "c": 750, "d": None}
    assert read_key(tmp_path, SCHEMA, ("h",), "5").batch.event_id.to_pylist() == ["d"]


def test_times_with_and_without_a_zone(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet")
    naive = pa.array([T0.replace(tzinfo=None)], pa.timestamp("us"))
    parquet(tmp_path / "b.parquet", event_time=naive)
    with pytest.raises(UsageError, match=r"b\.parquet: `event_time` is .*, a time without a zone"):
        decoded([tmp_path])
    zone = mapping_of(time=type(mapping_of().time)(zone="America/New_York"))
    moments = decoded([tmp_path], mapping=zone).time_ms
    assert (moments[1] - moments[0]) == 5 * 3_600_000
    assert moments[1] * 1_000 == times_us(naive, zone="America/New_York")[0].as_py()


def test_csv_whose_columns_differ(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("i,event_time,h\na,2026-03-01T10:00:00Z,x\n")
    (tmp_path / "b.csv").write_text("v,h,i,event_time\n1.5,x,b,2026-03-01T10:00:00Z\n")
    (tmp_path / "c.csv").write_text("h;i;event_time;v\nx;c;2026-03-01T10:00:00Z;1,5\n")
    (tmp_path / "d.csv").write_text("")
    assert values(decoded([tmp_path])) == {"a": None, "b": 150, "c": 150}


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("wildcard", ["", "*", "*/*"])
def test_a_folder_value_is_a_text_that_the_type_converts(kind: str, wildcard: str, tmp_path: Path) -> None:
    for value in ("01001", "x y", "7"):
        folder = tmp_path / f"part={value.replace(' ', '%20')}"
        path = parquet(folder / f"f{value[0]}.parquet")
        if kind != "parquet":
            path.unlink()
            text = "i,event_time,h\n{},2026-03-01T10:00:00Z,x\n" if kind == "csv" else (
                '{{"i": "{}", "event_time": "2026-03-01T10:00:00Z", "h": "x"}}\n'
            )  # fmt: skip
            path.with_suffix(f".{kind}").write_text(text.format(path.stem))
    paths = list(given_inputs([tmp_path / wildcard])) if wildcard else [tmp_path]
    all_ = decoded(paths)
    parts = dict(zip(all_.event_id.to_pylist(), all_.columns["part"].to_pylist(), strict=True))
    assert parts == {"f0": "01001", "fx": "x y", "f7": "7"}
    key = read_key(paths, SCHEMA, ("part",), "01001").batch
    assert key.event_id.to_pylist() == ["f0"]
    renamed = decoded(paths, mapping=mapping_of(["h=part"]))
    assert sorted(renamed.columns["h"].to_pylist()) == ["01001", "7", "x y"]


@pytest.mark.parametrize("name", ["b.parquet", "b.csv", "b.jsonl"])
def test_a_file_that_cannot_be_read_is_refused_by_its_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes({"b.jsonl": b'[{"i": ', "b.csv": b"i,h\0\n"}.get(name, b"PAR1"))
    with pytest.raises(InputError, match=rf"{name} cannot be read"):
        list(read_pieces(tmp_path, SCHEMA).pieces)


def test_a_line_with_too_few_fields_is_set_aside_alone(tmp_path: Path) -> None:
    lines = [f"e{n},2026-03-01T10:00:00Z,x" for n in range(1_000)]
    lines[700] = "e700,broken"
    lines[800] = 'e800,2026-03-01T10:00:00Z,"two\nlines"'
    (tmp_path / "a.csv").write_text("\n".join(["i,event_time,h", *lines]))
    all_ = decoded([tmp_path])
    assert len(all_) == 999
    assert [(p.code, p.record) for p in all_.poison] == [("unreadable", "e700,broken")]
    assert "2 fields" in all_.poison[0].reason


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize("share_bytes", [1, 700, 5_000])
def test_shares_of_a_file_have_each_record_once(kind: str, share_bytes: int, tmp_path: Path) -> None:
    mapping = mapping_of(["i=#row"]) if kind == "parquet" else mapping_of()
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        table = pa.table({"event_time": pa.array([T0] * 100, pa.timestamp("us", "UTC")), "h": ["x"] * 100})
        pq.write_table(table, path, row_group_size=9)
        ids = [f"a.parquet:{n + 1}" for n in range(100)]
    else:
        ids = [f"e{n}" for n in range(100)]
        path.write_text("\n".join(f'{{"i":"{i}","event_time":"2026-03-01T10:00:00Z","h":"x"}}' for i in ids))
    shares = [share for part in parts_of(path) for share in shares_of(part, share_bytes)]
    assert share_bytes > 1_000 or len(shares) > 3
    again = [FilePart.from_json(share.to_json()) for share in shares]
    pieces = [piece.decode() for share in again for piece in read_part(share, SCHEMA, mapping)]
    assert [i for piece in pieces for i in piece.event_id.to_pylist()] == ids


@pytest.mark.parametrize(
    ("texts", "type_"),
    [
        (["1", "-999999999999999999"], pa.int64()),
        (["1", "9223372036854775807"], pa.int64()),
        (["1", "9223372036854775808"], pa.string()),
        (["4539148803436467123", "12345678901234567890"], pa.string()),
        (["4539148803436467123", "1.5"], pa.float64()),
        (["01", "2"], pa.string()),
    ],
)
def test_no_number_of_many_digits_is_rounded(texts: list[str], type_: pa.DataType, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n" + "".join(f"x,{text}\n" for text in texts))
    (whole,) = read_whole(tmp_path / "a.csv", FileForm())
    assert whole.table["b"].type == type_
    if type_ != pa.float64():
        assert [str(value) for value in whole.table["b"].to_pylist()] == texts
