"""Many pages at once: split and joined again, they equal one page per part."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from cep.base.errors import StateCorruptError, StateFormatError
from cep.base.limits import TIME_MS_MAX
from cep.columnar.batch import TEXT
from cep.engine.advance import advance
from cep.engine.keyed_state import KeyedState, concat_states, select_keys
from cep.engine.partition import partition_keys
from cep.nfa.compile import problems
from cep.nfa.program import Program
from cep.state.packed import Shape, pack, shape_number, unpack
from cep.state.pages import encode_page
from tests.engine.bridge import batch_of, program_of
from tests.oracle.random_cases import SCHEMA, random_case


def halfway(seed: int) -> tuple[Program, KeyedState] | None:
    """Return the state in the middle of a random case, with missing values in some columns."""
    patterns = [random_case(seed * 7 + i, 1 + i % 3).pattern for i in range(4)]
    chosen = [pattern for pattern in patterns if not problems(pattern, SCHEMA)]
    if not chosen:
        return None
    program = program_of(SCHEMA, *chosen)
    events = batch_of(SCHEMA, random_case(seed, 3).events)
    state = advance(program, None, events, int(np.median(events.time_ms))).keyed_state
    return program, _with_every_type(state, np.random.default_rng(seed))


def _with_every_type(state: KeyedState, random: np.random.Generator) -> KeyedState:
    def columns(rows: int) -> dict[str, pa.Array]:
        values = [random.random() for _ in range(rows)]
        missing = random.random(rows) < 0.3
        return {
            "number": pa.array([int(v * 100) for v in values], pa.int64(), mask=missing),
            "share": pa.array(values, pa.float64()),
            "text": pa.array(["é" * int(v * 4) for v in values], TEXT, mask=~missing),
            "truth": pa.array([v < 0.5 for v in values], pa.bool_(), mask=missing),
        }

    events = replace(state.events, columns={**state.events.columns, **columns(len(state.events))})
    return replace(state, events=events)


@pytest.mark.parametrize("seed", range(60))
def test_what_is_packed_comes_back_page_by_page_and_together(seed: int) -> None:
    case = halfway(seed)
    if case is None:
        return
    program, keyed_state = case
    random = np.random.default_rng(seed)
    parts_count = int(random.integers(1, 5))
    part = random.integers(0, parts_count, len(keyed_state.keys))
    registers = program.row_registers
    shape = Shape.of(keyed_state)
    assert Shape.from_bytes(shape.to_bytes()) == shape
    pages, over = pack(keyed_state, part, parts_count, registers, shape)
    cut = partition_keys(keyed_state, part, parts_count, registers)
    for page, expected in zip(pages, cut, strict=True):
        assert shape_number(page) == shape.number
        if len(expected.keys):
            assert encode_page(unpack([page], shape, registers)) == encode_page(expected)
    assert over.tolist() == [
        TIME_MS_MAX if (expiry_ms := each.expiry_min) is None else min(expiry_ms, TIME_MS_MAX - 1) for each in cut
    ]
    filled = [number for number, share in enumerate(cut) if len(share.keys)]
    if filled:
        chosen = random.permutation(filled).tolist()
        joined = unpack([pages[number] for number in chosen], shape, registers)
        assert encode_page(joined) == encode_page(concat_states([cut[number] for number in chosen], registers))


def test_pages_with_and_without_nulls_are_joined() -> None:
    program, keyed_state = next(case for case in map(halfway, range(60)) if case and len(case[1].keys) > 1)
    first = np.arange(len(keyed_state.keys)) == 0
    whole = replace(keyed_state, events=_filled(keyed_state))
    shape, registers = Shape.of(keyed_state), program.row_registers
    parts = [select_keys(keyed_state, first, registers), select_keys(whole, ~first, registers)]
    pages = [pack(part, np.zeros(len(part.keys), np.int64), 1, registers, shape)[0][0] for part in parts]
    assert encode_page(unpack(pages, shape, registers)) == encode_page(concat_states(parts, registers))


def _filled(keyed_state: KeyedState):  # type: ignore[no-untyped-def]
    fills = {pa.int64(): 1, pa.float64(): 1.0, pa.bool_(): True, TEXT: "x"}
    columns = {name: column.fill_null(fills[column.type]) for name, column in keyed_state.events.columns.items()}
    return replace(keyed_state.events, columns=columns)


def test_bytes_that_are_no_page_are_refused_by_name() -> None:
    program, keyed_state = next(case for case in map(halfway, range(60)) if case and len(case[1].keys))
    shape = Shape.of(keyed_state)
    part = np.zeros(len(keyed_state.keys), np.int64)
    (page,), _ = pack(keyed_state, part, 1, program.row_registers, shape)
    with pytest.raises(StateFormatError, match="format 9, this build reads 3"):
        shape_number(page[:3] + b"\x09" + page[4:])
    with pytest.raises(StateCorruptError, match="not ours"):
        shape_number(b"CEP" + page[3:])
    with pytest.raises(StateCorruptError, match="shorter than its head"):
        shape_number(page[:5])
    for torn in (page[:20], page[:-1], page + b"x"):
        with pytest.raises(StateCorruptError):
            unpack([torn], shape, program.row_registers)
    with pytest.raises(StateCorruptError):
        Shape.from_bytes(b'{"rules": 1}')
