"""Pages: numbers as bytes, which detect torn bytes, and rows in the order of their parts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.columnar.batch import read_only
from cep.kernels import layout as y
from cep.kernels.layout import Int32, Int64
from cep.kernels.pages.packed import COUNTS, KEYS, get_line, order_rows, put_line, renumber_pointers, shift_pointers
from cep.kernels.records import PartOrder

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


PARTS = 4
REGISTERS = np.array([[0, 1], [1, 0], [0, 0]], np.uint8)  # of three rules: which of their registers hold rows


def ordered(part: Int64) -> tuple[Int64, Int64, Int64]:
    """Return bounds, order and places of keys."""
    bounds, order, place = np.zeros((COUNTS, PARTS + 1), np.int64), np.empty_like(part), np.empty_like(part)
    none, nobody = np.empty(0, np.int64), read_only(np.empty(0, np.int32))
    nodes, cursor = read_only(np.empty((0, y.NODE_WIDTH), np.int64)), np.empty((COUNTS, PARTS), np.int64)
    order_rows(part, nobody, nobody, nodes, PartOrder(bounds, order, none, none, none, place, none, none), cursor)
    return bounds[KEYS], order, place


@given(st.lists(st.integers(0, PARTS - 1), max_size=30))
def test_rows_stand_part_by_part_in_their_order(drawn: list[int]) -> None:
    part = np.array(drawn, np.int64)
    bounds, order, place = ordered(part)
    assert order.tolist() == sorted(range(len(drawn)), key=lambda row: drawn[row])
    assert np.diff(bounds).tolist() == [drawn.count(p) for p in range(PARTS)]
    assert place.tolist() == [drawn[:row].count(p) for row, p in enumerate(drawn)]


def state(random: np.random.Generator, row_part: Int64) -> tuple[Int64, Int32, Int64, Int64, Int64]:
    """Return runs, their rules, nodes, and the parts of nodes and runs; references stay within a part."""
    nodes = np.zeros((40, y.NODE_WIDTH), np.int64)
    node_part = random.integers(0, PARTS, len(nodes))
    for n, p in enumerate(node_part.tolist()):
        before = np.flatnonzero(node_part[:n] == p)
        nodes[n, y.NODE_PREVIOUS] = random.choice(before) if len(before) and random.random() < 0.7 else -1
        if len(before) and random.random() < 0.3:
            nodes[n, y.NODE_ROW], nodes[n, y.NODE_STATE] = -1, random.choice(before)
        else:
            nodes[n, y.NODE_ROW], nodes[n, y.NODE_STATE] = random.choice(np.flatnonzero(row_part == p)), 7
    used = np.unique(node_part)
    run_part = random.choice(used, 30)
    runs = random.integers(-9, 9, (len(run_part), y.RUN_HEADER + 2))
    rule = random.integers(0, len(REGISTERS), len(run_part)).astype(np.int32)
    for r, p in enumerate(run_part.tolist()):
        rows = np.flatnonzero(row_part == p)
        runs[r, y.RUN_NODE], runs[r, y.RUN_START_ROW] = random.choice(np.flatnonzero(node_part == p)), rows[0]
        for k in np.flatnonzero(REGISTERS[rule[r]]).tolist():
            runs[r, y.RUN_HEADER + k] = random.choice(rows) if random.random() < 0.7 else -1
    return runs, rule, nodes, node_part, run_part


@pytest.mark.parametrize("seed", range(10))
def test_what_is_pointed_to_stays_the_same(seed: int) -> None:
    random = np.random.default_rng(seed)
    row_part = np.concatenate([np.arange(PARTS), random.integers(0, PARTS, 20)])
    runs, rule, nodes, node_part, run_part = state(random, row_part)
    row_bounds, row_order, row_place = ordered(row_part)
    node_bounds, node_order, node_place = ordered(node_part)
    run_bounds, run_order, _ = ordered(run_part)
    moved, moved_nodes, moved_rule = runs[run_order], nodes[node_order], rule[run_order]
    renumber_pointers(moved, moved_rule, moved_nodes, REGISTERS, row_place, node_place)
    bounds_of_run = (row_bounds[run_part[run_order]], node_bounds[run_part[run_order]])
    assert (row_order[moved[:, y.RUN_START_ROW] + bounds_of_run[0]] == runs[run_order, y.RUN_START_ROW]).all()
    assert shift_pointers(moved, moved_rule, moved_nodes, REGISTERS, run_bounds, node_bounds, row_bounds)
    # Rows and nodes are now numbered in the new order: `row_order` and `node_order` lead back.
    expected, expected_nodes = runs[run_order], nodes[node_order]
    assert (node_order[moved[:, y.RUN_NODE]] == expected[:, y.RUN_NODE]).all()
    assert (row_order[moved[:, y.RUN_START_ROW]] == expected[:, y.RUN_START_ROW]).all()
    for k in range(REGISTERS.shape[1]):
        now, then = moved[:, y.RUN_HEADER + k], expected[:, y.RUN_HEADER + k]
        holds = (REGISTERS[moved_rule, k] != 0) & (then >= 0)
        assert (row_order[now[holds]] == then[holds]).all()
        assert (now[~holds] == then[~holds]).all()
    single, has_previous = expected_nodes[:, y.NODE_ROW] >= 0, expected_nodes[:, y.NODE_PREVIOUS] >= 0
    assert (row_order[moved_nodes[single, y.NODE_ROW]] == expected_nodes[single, y.NODE_ROW]).all()
    assert (moved_nodes[single, y.NODE_STATE] == 7).all()
    assert (node_order[moved_nodes[~single, y.NODE_STATE]] == expected_nodes[~single, y.NODE_STATE]).all()
    previous = moved_nodes[:, y.NODE_PREVIOUS]
    assert (node_order[previous[has_previous]] == expected_nodes[has_previous, y.NODE_PREVIOUS]).all()
    assert (previous[~has_previous] == -1).all()


def test_a_run_of_no_rule_is_told() -> None:
    runs, nodes = np.zeros((1, y.RUN_HEADER + 2), np.int64), np.zeros((0, y.NODE_WIDTH), np.int64)
    bounds = np.array([0, 1])
    for rule in (len(REGISTERS), -1):
        assert not shift_pointers(runs, np.array([rule], np.int32), nodes, REGISTERS, bounds, 0 * bounds, bounds)
