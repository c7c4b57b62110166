"""Tables of integers as bytes: whatever the numbers and pages, what was written is read, and what is torn is told."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cep.columnar.batch import read_only
from cep.kernels.packed import measure_columns, read_bytes, read_columns, write_bytes, write_columns

EXTREMES = (0, 1, -1, 255, 256, -128, 2**31, 2**61, 2**63 - 1, -(2**63), 1_700_000_000_000)
NUMBERS = st.one_of(st.sampled_from(EXTREMES), st.integers(-300, 300), st.integers(-(2**63), 2**63 - 1))


@st.composite
def tables(draw: st.DrawFn) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A table, and where the rows of each page begin and the last one's end."""
    lengths = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    width = draw(st.integers(1, 3))
    cells = sum(lengths) * width
    values = draw(st.lists(NUMBERS, min_size=cells, max_size=cells))
    return np.array(values, np.int64).reshape(-1, width), np.cumsum([0, *lengths])


def written(found: list[tuple[NDArray[np.int64], NDArray[np.int64]]]) -> list[bytes]:
    """Pages that hold a page of each table, and after those the row numbers of the first one as bytes."""
    pages_count = len(found[0][1]) - 1
    sizes = np.diff(found[0][1])
    measured = []
    for table, bounds in found:
        shape = (pages_count, table.shape[1])
        widths, bases = np.empty(shape, np.uint8), np.empty(shape, np.int64)
        measure_columns(table, bounds, widths, bases, sizes)
        measured.append((widths, bases))
    starts = np.cumsum([0, *sizes])
    out, cursor = np.empty(int(starts[-1]), np.uint8), starts[:-1].copy()
    for (table, bounds), (widths, bases) in zip(found, measured, strict=True):
        write_columns(table, bounds, widths, bases, out, cursor)
    write_bytes(read_only(np.arange(len(found[0][0])).astype(np.uint8)), found[0][1], out, cursor)
    assert cursor.tolist() == starts[1:].tolist()
    return [out[a:b].tobytes() for a, b in pairwise(starts)]


@given(tables(), st.integers(0, 3))
def test_what_is_written_is_read(first: tuple[NDArray[np.int64], NDArray[np.int64]], more: int) -> None:
    second = (first[0][:, :1] ^ more, first[1])
    pages = written([first, second])
    data, ends = np.frombuffer(b"".join(pages), np.uint8), np.cumsum([len(page) for page in pages])
    cursor = ends - [len(page) for page in pages]
    for table, bounds in (first, second):
        found = np.empty(table.shape, np.int64)
        assert read_columns(data, ends, cursor, bounds, found)
        assert found.tolist() == table.tolist()
    content = np.empty(len(first[0]), np.uint8)
    assert read_bytes(data, ends, cursor, first[1], content)
    assert content.tolist() == list(range(len(content)))
    assert cursor.tolist() == ends.tolist()


@given(tables(), st.data())
def test_bytes_that_are_missing_are_told(
    given_: tuple[NDArray[np.int64], NDArray[np.int64]], data: st.DataObject
) -> None:
    table, bounds = given_
    pages = written([(table, bounds)])
    rows = np.diff(bounds).tolist()
    page = data.draw(st.sampled_from(range(len(pages))))
    whole = pages[page][: len(pages[page]) - rows[page]]  # without the bytes behind the columns
    torn = whole[: data.draw(st.integers(0, len(whole) - 1))]
    found = np.empty((rows[page], table.shape[1]), np.int64)
    own, start, end = np.array([0, rows[page]]), np.zeros(1, np.int64), np.array([len(torn)])
    assert not read_columns(read_only(np.frombuffer(torn + b" ", np.uint8)[: len(torn)]), end, start, own, found)


def test_a_column_that_is_the_same_in_all_rows_takes_no_byte_a_row() -> None:
    table = np.full((1_000, 1), 7)
    sizes = np.zeros(1, np.int64)
    widths, bases = np.empty((1, 1), np.uint8), np.empty((1, 1), np.int64)
    measure_columns(table, np.array([0, 1_000]), widths, bases, sizes)
    assert sizes.tolist() == [2]
