"""A Parquet file → batches of rows in limited memory, for any content.

    a dictionary    one text of 60 kB and 40 000 rows that refer to it: 3 kB of a file, 2.4 GB of texts
    packed pages    a gigabyte of zeros is some kB
    few bits a row  20 million equal rows are some bytes

The headers of pages contain the size of each page, and Arrow's reader trusts the same headers. So they are read before
the rows: the longest value of a dictionary and the fullest page decide how many rows are read at once. A page, or a
number of rows, beyond the limits is refused. A column of lists that may be too large is null: no field is in one.
Tested by: tests/sources/test_parquet.py
"""

import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cep.base import limits
from cep.base.files import open_file
from cep.columnar.times import INT96_UNIT

# Numbers of parquet.thrift: codecs, types, and fields of the footer.
_UNCOMPRESSED, _CODECS = 0, {1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4_raw"}
_TEXT, _SAME_LENGTH = 6, 7
_GROUPS, _COLUMNS, _ABOUT, _TYPE, _CODEC = 4, 1, 3, 1, 4
_VALUES_COUNT, _CHUNK_BYTES, _DATA_OFFSET, _DICTIONARY_OFFSET = 5, 7, 9, 11
_TEXTS_A_BYTE = 8  # of a packed dictionary, at most; numbers in order take a byte or two each
_WORD_BYTES = 16  # of a number, a time or a decimal, at most
_LENGTH = struct.Struct("<I")
# Fields of a page's header (parquet.thrift).
_PAGE_BYTES, _COMPRESSED_BYTES, _DATA, _DICTIONARY, _DATA_V2 = 2, 3, 5, 7, 8
_VALUES, _ENCODING, _ENCODING_V2 = 1, 2, 4
_DELTA_TEXTS = 7  # each value begins as the one before: a page of few bytes may hold many long ones
_HEADER_LOOK = 512
_THRIFT_DEPTH_MAX = 12
_BOOLS = (1, 2)
_BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(3, 13)


@contextmanager
def opened_parquet(path: Path, root: Path | None = None) -> Iterator[pq.ParquetFile]:
    """Open a regular file, with a root only one below it. Raises: UnreadableError, OSError, ArrowException."""
    with open_file(path, root) as file, pq.ParquetFile(file, coerce_int96_timestamp_unit=INT96_UNIT) as opened:
        size, rows = os.fstat(file.fileno()).st_size, opened.metadata.num_rows
        if rows > size * limits.PARQUET_ROWS_PER_BYTE_MAX:
            raise pa.ArrowInvalid(
                f"{rows} rows in {size} bytes are more than {limits.PARQUET_ROWS_PER_BYTE_MAX} a byte"
            )
        yield opened


def read_batches(
    path: Path, columns: Sequence[str] | None, rows_max: int, groups: Sequence[int] | None = None,
    root: Path | None = None,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Yield the rows of a Parquet file in order: `rows_max` at a time, or fewer if memory does not allow as many.

    `columns` are the names to read, in this order; None: all. An unknown name gives no column. `groups` are the row
    groups to read; None: all. Raises: UnreadableError, OSError; ArrowException, also for a file beyond the limits.
    """
    with open_file(path, root) as raw, opened_parquet(path, root) as file:
        names = file.schema_arrow.names
        if len(set(names)) < len(names):
            raise pa.ArrowInvalid("two of its columns have one name; rename one")
        chunks = _column_chunks(raw)
        existing_names = frozenset(names)
        column_names = names if columns is None else [name for name in columns if name in existing_names]
        bytes_left = os.fstat(raw.fileno()).st_size
        for group in range(file.metadata.num_row_groups) if groups is None else groups:
            rows, names_to_read, pages_bytes = _plan(file, raw, chunks[group], column_names, rows_max)
            bytes_left -= pages_bytes
            if bytes_left < 0:  # groups that name the same pages again: a small file could take hours to read
                raise pa.ArrowInvalid("its column chunks overlap")
            for batch in file.iter_batches(rows, [group], names_to_read):
                yield _completed(batch, column_names, file.schema_arrow)


def _completed(batch: pa.RecordBatch, column_names: Sequence[str], types: pa.Schema) -> pa.RecordBatch:
    """Return the columns in their order; one that was left out is null."""
    places = {name: place for place, name in enumerate(batch.schema.names)}
    arrays = [
        batch.column(places[name]) if name in places else pa.nulls(batch.num_rows, types.field(name).type)
        for name in column_names
    ]
    return pa.RecordBatch.from_arrays(arrays, list(column_names))


def rows_at_once(batch: pa.RecordBatch | pa.Table, rows_max: int) -> int:
    """Return how many rows of a table in memory take bounded bytes once its dictionaries are written out."""
    bytes_a_row = sum(_longest_of(column) for column in batch.columns)
    return max(1, min(rows_max, limits.BATCH_BYTES_MAX // bytes_a_row)) if bytes_a_row else rows_max


def _longest_of(column: pa.Array | pa.ChunkedArray) -> int:
    """Return the bytes of the longest value of a column's dictionaries; 0 without one, as its values lie there."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    dictionaries = [chunk.dictionary for chunk in chunks if pa.types.is_dictionary(chunk.type)]
    return max((each.nbytes for each in dictionaries if len(each) == 1), default=0) or max(
        (_longest_text(each) for each in dictionaries), default=0
    )


def _longest_text(texts: pa.Array) -> int:
    type_ = texts.type
    if not (pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_binary(type_)):
        return int(texts.nbytes)
    longest = pc.max(pc.binary_length(texts)).as_py()
    return int(longest or 0)


# -------------------------------------------------------------------------------------------------------------- plan


def _plan(
    file: pq.ParquetFile, raw: BinaryIO, chunks: Sequence[dict[int, Any]], column_names: Sequence[str], rows_max: int
) -> tuple[int, list[str], int]:
    """Return how many rows of a row group to read at once, the columns to read, and the bytes of their pages. `chunks`
    describe its leaf columns (a column of structs has several). A list column whose values could exceed the limit is
    left out, because one row may hold all its values. Raises: ArrowInvalid for a page beyond the limits."""
    schema, requested_names = file.schema, frozenset(column_names)
    bytes_a_row, file_bytes, left_out = 0, 0, set[str]()
    for number, chunk in enumerate(chunks):
        leaf = schema.column(number)
        outer_name = leaf.path.partition(".")[0] if leaf.path not in requested_names else leaf.path  # `a` of `a.b`
        if outer_name not in requested_names and leaf.path not in requested_names:
            continue  # the leaf is not requested, not even as a part of a column
        longest_value_bytes, values_count, page_bytes = _pages_of(raw, chunk, leaf.path, leaf.length)
        file_bytes += page_bytes
        if leaf.max_repetition_level and values_count * longest_value_bytes > limits.BATCH_BYTES_MAX:  # a list
            left_out.add(outer_name)
            continue
        bytes_a_row += longest_value_bytes
    rows = max(1, min(rows_max, limits.BATCH_BYTES_MAX // max(bytes_a_row, 1)))
    return rows, [name for name in column_names if name not in left_out], file_bytes


def _column_chunks(raw: BinaryIO) -> list[list[dict[int, Any]]]:
    """Read the footer of a Parquet file: the fields of each column chunk, by row group. Raises: ArrowInvalid.

    Arrow can read it, too, but a footer with wrong sizes ends the process when Python asks Arrow for it.
    """
    size = os.fstat(raw.fileno()).st_size
    raw.seek(max(size - 8, 0))
    length = int.from_bytes(raw.read(4), "little")
    if not 0 < length <= min(size - 8, limits.PARQUET_PAGE_BYTES_MAX):
        raise pa.ArrowInvalid("the footer has a wrong size")
    raw.seek(size - 8 - length)
    try:
        footer, _ = _struct(raw.read(length), 0, 0)
        return [[column[_ABOUT] for column in group[_COLUMNS]] for group in footer[_GROUPS]]
    except (IndexError, KeyError, TypeError, struct.error) as error:
        raise pa.ArrowInvalid("the footer cannot be read") from error


def _pages_of(raw: BinaryIO, chunk: dict[int, Any], path: str, value_bytes: int) -> tuple[int, int, int]:
    """Read the headers of all pages of a column chunk, and check them against the limits before Arrow unpacks them: a
    small file could fill the memory. Return an upper bound of the bytes of the longest value, the number of values, and
    the bytes of the pages. Raises: ArrowInvalid for a page beyond the limits."""
    offset, dictionary_offset = _number(chunk, _DATA_OFFSET), chunk.get(_DICTIONARY_OFFSET)
    if isinstance(dictionary_offset, int) and 0 < dictionary_offset < offset:
        offset = dictionary_offset
    chunk_start = offset
    chunk_end, values_count = offset + _number(chunk, _CHUNK_BYTES), _number(chunk, _VALUES_COUNT)
    values_read, longest, pages_count = 0, _WORD_BYTES, 0  # longest: the bound of a value's bytes
    is_text, file_bytes = chunk.get(_TYPE) == _TEXT, os.fstat(raw.fileno()).st_size
    longest = max(longest, value_bytes) if chunk.get(_TYPE) == _SAME_LENGTH else longest  # all have `value_bytes`
    while offset < chunk_end and values_read < values_count:
        pages_count += 1
        header, begin = _header_at(raw, offset)
        compressed_bytes = _number(header, _COMPRESSED_BYTES)
        page_bytes = max(compressed_bytes, _number(header, _PAGE_BYTES))  # a false header may tell fewer
        if begin + compressed_bytes > file_bytes:
            raise pa.ArrowInvalid(f"a page of the column {path} ends after the file")
        if page_bytes > limits.PARQUET_PAGE_BYTES_MAX or pages_count > limits.PARQUET_PAGES_MAX:
            raise pa.ArrowInvalid(
                f"a page of the column {path} takes {page_bytes} bytes, and one may take "
                f"{limits.PARQUET_PAGE_BYTES_MAX}; a column chunk may have {limits.PARQUET_PAGES_MAX} pages"
            )
        dictionary, data = header.get(_DICTIONARY), header.get(_DATA) or header.get(_DATA_V2)
        if isinstance(dictionary, dict) and pages_count > 1:
            raise pa.ArrowInvalid(f"a dictionary of the column {path} is not its first page")
        if isinstance(dictionary, dict) and is_text:
            raw.seek(begin)
            texts_count, page = _number(dictionary, _VALUES), raw.read(compressed_bytes)
            longest = max(longest, _longest_text_of(page, page_bytes, texts_count, chunk.get(_CODEC)))
        elif isinstance(data, dict):
            page_values = _number(data, _VALUES)
            encoding = data.get(_ENCODING if _DATA in header else _ENCODING_V2)
            longest_in_page = page_bytes if encoding == _DELTA_TEXTS else -(-page_bytes // max(page_values, 1))
            values_read += page_values
            longest = max(longest, longest_in_page) if is_text else longest  # with deltas, one text may fill the page
        offset = begin + compressed_bytes
    return longest, max(values_read, values_count), offset - chunk_start  # the footer may count too few values


def _longest_text_of(page: bytes, unpacked: int, texts_count: int, codec: Any) -> int:
    """Return an upper bound, in bytes, of the longest text in a dictionary page.

    The page has `texts_count` texts, each after its length, and takes `unpacked` bytes when it is unpacked. If it has
    too many texts to read each length, or cannot be unpacked, the bound is all of its bytes without the lengths. Texts
    of a dictionary differ, so a page with many texts in a few packed bytes is malicious.
    """
    upper_bound = max(0, unpacked - _LENGTH.size * texts_count)
    texts_max = min(limits.PARQUET_DICTIONARY_TEXTS_MAX, _TEXTS_A_BYTE * len(page))
    if texts_count > texts_max or (codec != _UNCOMPRESSED and codec not in _CODECS):
        return upper_bound
    if codec in _CODECS:
        try:
            page = pa.Codec(_CODECS[codec]).decompress(page, unpacked, asbytes=True)
        except (OSError, ValueError, pa.ArrowException):
            return upper_bound
    offset, longest, end = 0, 0, len(page)
    read = _LENGTH.unpack_from
    for _ in range(texts_count):
        if offset + _LENGTH.size > end:
            break
        (length,) = read(page, offset)
        offset += _LENGTH.size + length
        longest = max(longest, length)
    return min(longest, upper_bound)


def _number(fields: dict[int, Any], name: int) -> int:
    value = fields.get(name) if isinstance(fields, dict) else None
    if not isinstance(value, int) or value < 0:
        raise pa.ArrowInvalid("the header of a page lacks a size")
    return value


# ------------------------------------------------------------------------------------------------------------ thrift


def _header_at(raw: BinaryIO, offset: int) -> tuple[dict[int, Any], int]:
    """Read the header of the page at `offset`. Return its fields by number, and the offset after it. Raises:
    ArrowInvalid."""
    size = _HEADER_LOOK
    while True:
        raw.seek(offset)
        data = raw.read(size)
        try:
            fields, end = _struct(data, 0, 0)
        except (IndexError, struct.error):
            if len(data) < size or size >= limits.PARQUET_HEADER_BYTES_MAX:
                raise pa.ArrowInvalid("the header of a page cannot be read") from None
            size = min(size * 16, limits.PARQUET_HEADER_BYTES_MAX)
        else:
            return fields, offset + end


def _struct(data: bytes, offset: int, depth: int) -> tuple[dict[int, Any], int]:
    """Parse a struct of Thrift's compact protocol. Return its fields by number, and the offset after it. Raises:
    IndexError where the bytes end, ArrowInvalid."""
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head = data[offset]  # of a field: four bits of `step`, four of its kind
        offset += 1
        if head == 0:  # the end of the struct
            return fields, offset
        kind, step = head & 15, head >> 4
        if step:  # how much the field's number is above the one before
            number += step
        else:  # the number itself follows
            number, offset = _zigzag(data, offset)
        fields[number], offset = (kind == 1, offset) if kind in _BOOLS else _value(data, offset, kind, depth)  # 1: true


def _value(data: bytes, offset: int, kind: int, depth: int) -> tuple[Any, int]:
    """Parse a value of Thrift's compact protocol; texts are skipped (None). Return it and the offset after it."""
    if depth > _THRIFT_DEPTH_MAX:
        raise pa.ArrowInvalid("the header of a page is nested too deep")
    if kind in (_I16, _I32, _I64):
        return _zigzag(data, offset)
    if kind == _STRUCT:
        return _struct(data, offset, depth + 1)
    if kind == _BINARY:
        size, offset = _varint(data, offset)
        return None, _within(data, offset + size)
    if kind in (_BYTE, *_BOOLS, _DOUBLE):
        return None, _within(data, offset + (8 if kind == _DOUBLE else 1))
    if kind in (_LIST, _SET):
        size, kind = data[offset] >> 4, data[offset] & 15  # of the items, in four bits each
        offset += 1
        if size == 15:  # 15 or more: the size follows
            size, offset = _varint(data, offset)
        items = []
        for _ in range(min(size, len(data))):  # each item takes a byte or more
            item, offset = _value(data, offset, kind, depth + 1)
            items.append(item)
        return items, _within(data, offset)
    raise pa.ArrowInvalid("the header of a page has a field of an unknown kind")


def _within(data: bytes, offset: int) -> int:
    if offset > len(data):
        raise IndexError
    return offset


def _zigzag(data: bytes, offset: int) -> tuple[int, int]:
    value, offset = _varint(data, offset)
    return (value >> 1) ^ -(value & 1), offset


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, offset
        shift += 7
    raise pa.ArrowInvalid("the header of a page has a number of more than 64 bits")
