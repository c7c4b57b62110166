"""Numbers as bytes: any numbers can be written and read again, and torn bytes are detected."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cep.columnar.batch import read_only
from cep.kernels.pages.packed import get_line, put_line

EXTREMES = (0, 1, -1, 255, 256, -128, 65_535, 65_536, 2**31, 2**61, 2**63 - 1, -(2**63), 1_700_000_000_000)
NUMBERS = st.one_of(st.sampled_from(EXTREMES), st.integers(-300, 300), st.integers(-(2**63), 2**63 - 1))
LINES = st.lists(st.lists(NUMBERS, max_size=5), min_size=1, max_size=4)
ROOM = 9 + 8 * 5


def written(lines: list[list[int]]) -> bytes:
    """Write columns one after the other."""
    out, offset = np.empty(ROOM * len(lines), np.uint8), 0
    for line in lines:
        offset = put_line(np.array([*line, 99], np.int64), len(line), out, offset)
    return out[:offset].tobytes()


def data_of(content: bytes) -> np.ndarray:
    return read_only(np.frombuffer(content, np.uint8))


@given(LINES)
def test_what_is_written_is_read(lines: list[list[int]]) -> None:
    content = written(lines)
    data, offset = data_of(content), 0
    for line in lines:
        numbers = np.zeros(len(line) + 2, np.int64)
        offset = get_line(data, offset, len(data), numbers, 1, len(line))
        assert numbers.tolist() == [0, *line, 0]
    assert offset == len(data)


@given(LINES, st.data())
def test_bytes_that_are_missing_are_told(lines: list[list[int]], draw: st.DataObject) -> None:
    content = written(lines)
    end = draw.draw(st.integers(0, len(content) - 1))
    data, offset = data_of(content), 0
    for line in lines:
        offset = get_line(data, offset, end, np.zeros(len(line), np.int64), 0, len(line))
    assert offset == -1


def test_a_width_that_no_number_has_is_told() -> None:
    for code in (9, 15, 16 * 9):
        assert get_line(data_of(bytes([code] * 60)), 0, 60, np.zeros(1, np.int64), 0, 1) == -1


def test_a_column_that_is_the_same_in_all_rows_takes_no_byte_a_row() -> None:
    assert put_line(np.full(1_000, 7), 1_000, np.empty(10_000, np.uint8), 0) == 2
