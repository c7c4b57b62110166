"""Parquet files give the same rows for any packing, in batches of bounded memory; bombs are refused."""

from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from random import Random
from unittest.mock import Mock, patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cep.base import limits
from cep.base.errors import InputError, UnreadableError
from cep.base.limits import PARQUET_PAGE_BYTES_MAX
from cep.columnar.decode import concat_decoded
from cep.sources import parquet
from cep.sources.parquet import opened_parquet, read_batches, rows_at_once
from cep.sources.pieces import pieces_of_table, read_pieces
from tests.columnar.common import GOOD, ONE
from tests.seeds import seeds

_LIMIT = 20_000


def random_table(random: Random) -> pa.Table:
    """Return columns of many kinds; some texts are long, and some long texts repeat."""
    rows = random.randrange(1, 600)
    few = ["a", "bb", "x" * random.choice((3, 900, 5_000)), None]
    texts = [random.choice(few) for _ in range(rows)]
    columns = {
        "few": pa.array(texts), "dictionary": pa.array(texts).dictionary_encode(),
        "many": pa.array([f"t{n}" for n in range(rows)]),
        "mixed": pa.array(["y" * random.randrange(300) if random.random() < 0.1 else f"{n}" for n in range(rows)]),
        "number": pa.array([random.randrange(5) for _ in range(rows)]),
        "bytes": pa.array([(text or "").encode() for text in texts], pa.large_binary()),
        "word": pa.array([b"12345678"] * rows, pa.binary(8)),
        "inner": pa.array([{"text": text, "dotted.name": 1} for text in texts]),
        "list": pa.array([[text] * random.randrange(3) for text in texts]),
        "with.dot": pa.array([True] * rows),
    }  # fmt: skip
    names = random.sample(list(columns), random.randrange(1, len(columns) + 1))
    return pa.table({name: columns[name] for name in names})


def written(table: pa.Table, path: Path, random: Random) -> None:
    """Write a table as one of several writers would."""
    encodings = {}
    if random.random() < 0.3:
        encodings = {"column_encoding": {n: random.choice(("DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY", "PLAIN"))
                                         for n in {"few", "many", "mixed"} & set(table.column_names)}}  # fmt: skip
    pq.write_table(
        table, path, compression=random.choice(("none", "snappy", "gzip", "brotli", "zstd", "lz4")),
        row_group_size=random.choice((7, 100, 10_000)), data_page_version=random.choice(("1.0", "2.0")),
        data_page_size=random.choice((100, 2_000, 1 << 20)), dictionary_pagesize_limit=random.choice((50, 1 << 20)),
        use_dictionary=not encodings and random.random() < 0.8, store_schema=random.random() < 0.5, **encodings,
    )  # fmt: skip


def in_memory(batch: pa.RecordBatch) -> int:
    """Return the bytes of the texts of a batch after dictionaries are expanded."""
    columns = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in batch.columns]
    return sum(len(value or "") for c in columns if not pa.types.is_nested(c.type) for value in c.cast("string")
               .to_pylist())  # fmt: skip


@pytest.mark.parametrize("seed", seeds(60))
def test_rows_are_those_of_arrow_in_batches_of_bounded_bytes(seed: int, tmp_path: Path) -> None:
    random, path = Random(seed), tmp_path / "a.parquet"
    table = random_table(random)
    written(table, path, random)
    columns: Sequence[str] | None = None
    if random.random() < 0.5:
        columns = random.sample(table.column_names, random.randrange(1, len(table.column_names) + 1))
    with patch.object(limits, "BATCH_BYTES_MAX", _LIMIT):
        batches = list(read_batches(path, columns, random.choice((1, 13, 1_000))))
    names = table.column_names if columns is None else columns
    expected = pq.read_table(path).select(names)
    joined = pa.Table.from_batches(batches)
    assert joined.schema.names == names
    for name in names:  # a list that may be too large is null
        values = zip(joined[name].to_pylist(), expected[name].to_pylist(), strict=True)
        assert all(one == other or (name == "list" and one is None) for one, other in values)
    # Long values may lie together in a page, and its header only gives their mean length.
    assert all(batch.num_rows == 1 or in_memory(batch) <= 10 * _LIMIT for batch in batches)


def one_text(rows: int, text: str) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.nulls(rows, pa.int32()).fill_null(0), pa.array([text]))


def event_table(rows: int, note: pa.Array) -> pa.Table:
    """Return payments that are all equal, with a text as a dictionary."""
    same = {name: one_text(rows, str(value)) for name, value in GOOD.items() if value is not None}
    return pa.table({**same, "card_id": note})


def pad(path: Path, size: int) -> None:
    """Add unused bytes before the footer of a file, so that its rows are not too many for its size."""
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    path.write_bytes(data[:footer] + bytes(size) + data[footer:])


@pytest.mark.parametrize("stores_schema", [True, False])
def test_a_small_file_with_gigabytes_of_texts_is_read_in_little_memory(stores_schema: bool, tmp_path: Path) -> None:
    path = tmp_path / "bomb.parquet"
    table = event_table(40_000, one_text(40_000, "x" * 60_000))
    pq.write_table(table, path, compression="zstd", store_schema=stores_schema)
    assert path.stat().st_size < 10_000
    pad(path, 10_000)
    count = most = 0
    for piece in read_pieces(path, ONE).pieces:
        assert piece.size < 2_000
        count += piece.size
        if count < 5_000:  # each takes its time with the same result
            assert len(piece.decode()) == piece.size
        most = max(most, pa.total_allocated_bytes())
    rows = pa.ListArray.from_arrays(pa.array([0, 40_000], pa.int32()), one_text(40_000, "x" * 60_000))
    pq.write_table(pa.table({"list": rows}), path, compression="zstd", store_schema=stores_schema)
    for _ in read_batches(path, ["list"], 10):  # a list that may be too large is left out, and nothing else is wanted
        most = max(most, pa.total_allocated_bytes())
    assert count == 40_000
    assert most < 1 << 30


def test_a_frame_with_gigabytes_of_texts_is_cut_into_small_pieces() -> None:
    table = event_table(40_000, one_text(40_000, "x" * 60_000))
    pieces = list(pieces_of_table(table, ONE, str).pieces)
    assert max(piece.size for piece in pieces) < 2_000
    assert sum(piece.size for piece in pieces) == 40_000
    assert len(pieces[0].decode()) == pieces[0].size
    assert rows_at_once(table.select(["tx_id"]), 1_000) == 1_000


def test_a_record_of_a_large_file_is_shown_without_the_whole_of_it(tmp_path: Path) -> None:
    table = event_table(3_000, one_text(3_000, "x" * 60_000)).rename_columns({"card_id": "long"})
    pq.write_table(table.append_column("other", pa.array(range(3_000))), tmp_path / "bad.parquet")
    with patch("cep.sources.pieces.PIECE_ROWS", 100):
        decoded = [piece.decode() for piece in read_pieces(tmp_path / "bad.parquet", ONE).pieces]
    shown = [poison.record for poison in concat_decoded(ONE, decoded).poison]
    assert [text.rpartition('"other": ')[2] for text in shown] == [f"{n}}}" for n in range(3_000)]


def test_files_beyond_the_limits_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": one_text(400_000, "x")}), path, row_group_size=400_000)
    with pytest.raises(InputError, match="more than 4 a byte"):
        list(read_pieces(path, ONE).pieces)
    pq.write_table(pa.table({"tx_id": ["x" * 5_000] * 10}), path, compression="zstd", use_dictionary=False)
    with patch.object(limits, "PARQUET_PAGE_BYTES_MAX", 10_000), pytest.raises(pa.ArrowInvalid, match="takes 50"):
        list(read_batches(path, None, 10))
    with patch.object(limits, "PARQUET_PAGES_MAX", 0), pytest.raises(pa.ArrowInvalid, match="may have 0 pages"):
        list(read_batches(path, None, 10))
    with pytest.raises(UnreadableError, match="no regular file"), opened_parquet(Path("/dev/zero")):
        pass


def test_texts_that_begin_as_the_one_before_are_few_at_a_time(tmp_path: Path) -> None:
    """With this encoding a page of some bytes holds thousands of long texts, without a dictionary."""
    path = tmp_path / "a.parquet"
    table = pa.table({"tx_id": ["x" * 60_000] * 2_000})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY")
    assert path.stat().st_size < 10_000
    pad(path, 1_000)
    assert max(batch.num_rows for batch in read_batches(path, None, 100_000)) < 1_500


@pytest.mark.parametrize("seed", seeds(300))
def test_damaged_headers_are_refused_and_read_no_more_than_there_is(seed: int, tmp_path: Path) -> None:
    random, path = Random(seed), tmp_path / "a.parquet"
    written(random_table(random), path, random)
    data = bytearray(path.read_bytes())
    for _ in range(random.randrange(1, 4)):
        place = random.randrange(4, min(len(data), 200))
        data[place] = random.randrange(256)
    path.write_bytes(data)
    with suppress(OSError, pa.ArrowException):
        list(read_batches(path, None, 1_000))


@pytest.mark.parametrize("seed", seeds(400))
def test_a_damaged_footer_does_not_end_the_process(seed: int, tmp_path: Path) -> None:
    """Arrow aborts if Python reads a column of a footer whose sizes do not fit. cep must not read it."""
    random, path = Random(seed), tmp_path / "a.parquet"
    written(random_table(random), path, random)
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[-8:-4], "little")
    for _ in range(random.randrange(1, 4)):
        data[len(data) - 8 - random.randrange(1, length)] = random.randrange(256)
    path.write_bytes(data)
    with suppress(OSError, pa.ArrowException, UnicodeDecodeError):
        list(read_batches(path, None, 1_000))


def test_lists_without_end_in_a_header_are_refused() -> None:
    """A list of one list of one list … needs a byte a level."""
    header = bytes([0x19, *[0x19] * 100_000])
    with pytest.raises(pa.ArrowInvalid, match="nested too deep"):
        parquet._header_at(BytesIO(header), 0)


@pytest.mark.parametrize("seed", seeds(40))
@pytest.mark.parametrize("codec", [0, 1, 2, 6, 99])
def test_the_longest_text_of_a_dictionary_is_never_underestimated(seed: int, codec: int) -> None:
    random = Random(seed)
    lengths = [random.choice((0, 0, 1, 9, 300)) for _ in range(random.randrange(30))]
    page = b"".join(length.to_bytes(4, "little") + b"x" * length for length in lengths)
    count, longest = len(lengths), max(lengths, default=0)
    packed = bytes(pa.compress(page, parquet._CODECS[codec], asbytes=True)) if codec in parquet._CODECS else page
    texts_max = random.choice((3, 1_000))
    with patch.object(limits, "PARQUET_DICTIONARY_TEXTS_MAX", texts_max):
        estimate = parquet._longest_text_of(packed, len(page), count, codec)
    if count <= min(texts_max, 8 * len(packed)) and codec != 99:
        assert estimate == longest
    assert longest <= estimate <= len(page) - 4 * count


def test_a_dictionary_of_many_empty_texts_is_not_counted_text_by_text() -> None:
    """A page of some kilobytes unpacks to the maximum of zeros, and each four zeros are an empty text."""
    zeros = bytes(PARQUET_PAGE_BYTES_MAX // 64)
    packed = bytes(pa.compress(zeros, "zstd", asbytes=True))
    with patch.object(parquet, "_LENGTH", Mock(wraps=parquet._LENGTH, size=4)) as lengths:
        assert parquet._longest_text_of(packed, len(zeros), len(zeros) // 4, 6) == 0
        assert (
            parquet._longest_text_of(packed, len(zeros), 200_000, 6) == len(zeros) - 800_000
        )  # too many for its bytes
        assert lengths.unpack_from.call_count == 0
        assert parquet._longest_text_of(packed, len(zeros), 9, 6) == 0  # only this many texts are read
        assert lengths.unpack_from.call_count == 9


def test_a_page_that_ends_after_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"tx_id": ["x"] * 10}), path)
    header = {2: 10, 3: 1 << 62, 7: {1: 1}}
    with patch.object(parquet, "_header_at", lambda *_: (header, 9)), pytest.raises(pa.ArrowInvalid, match="after the"):
        list(read_batches(path, None, 10))


def test_pages_that_row_groups_share_are_refused(tmp_path: Path) -> None:
    """A footer can name one page a thousand times. A file whose row groups do not overlap has each byte once."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"tx_id": ["x" * 900, "y" * 900] * 10}), path, row_group_size=4, compression="none")
    assert sum(batch.num_rows for batch in read_batches(path, None, 10)) == 20
    with path.open("rb") as file:
        first, *others = parquet._column_chunks(file)
    chunks = [first] * (1 + len(others))
    with patch.object(parquet, "_column_chunks", lambda _: chunks), pytest.raises(pa.ArrowInvalid, match="overlap"):
        list(read_batches(path, ["tx_id"], 10, [0] * 20))


def test_a_second_dictionary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"tx_id": ["x"] * 10}), path)
    header = {2: 10, 3: 1, 7: {1: 1}}
    patched = patch.object(parquet, "_header_at", lambda _, place: (header, place))
    with patched, pytest.raises(pa.ArrowInvalid, match="is not its first page"):
        list(read_batches(path, None, 10))
