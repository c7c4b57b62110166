"""Keyed state as bytes; keys are taken out of it and put together again."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from cep.base.errors import StateCorruptError, StateFormatError
from cep.columnar.batch import EventBatch
from cep.columnar.codec import decode_table, encode_table
from cep.engine.advance import advance
from cep.engine.keyed_state import KeyedState, concat_states, empty_state, select_keys
from cep.engine.migrate import migrate_state
from cep.nfa.compile import problems
from cep.nfa.program import Program
from cep.state.pages import EARLIER_PAGE_FORMAT, PAGE_FORMAT, decode_page, encode_page
from tests.engine.bridge import Answers, Delivery, batch_of, engine_answers, program_of
from tests.engine.rules import batch, program, rule
from tests.oracle.random_cases import SCHEMA, random_case

SEEDS = range(120)


def facts(state: KeyedState) -> list[object]:
    """Return all contents of a keyed state, for a comparison."""
    events = state.events
    return [
        state.layout,
        state.keys.to_pylist(),
        state.runs.tolist(),
        state.run_rule.tolist(),
        state.run_key.tolist(),
        state.nodes.tolist(),
        events.key.tolist(),
        events.event_id.to_pylist(),
        events.event_type.tolist(),
        events.time_ms.tolist(),
        {name: column.to_pylist() for name, column in events.columns.items()},
    ]


def halfway(seed: int) -> tuple[Program, KeyedState, Delivery] | None:
    """Return the state in the middle of a random case, and the events that follow; None for a refused pattern."""
    case = random_case(seed, 3)
    if problems(case.pattern, SCHEMA):
        return None
    others = [random_case(10_000 + seed + i, 1).pattern for i in range(2)]
    program = program_of(SCHEMA, case.pattern, *others)
    batch = batch_of(SCHEMA, case.events)
    cut = len(batch) // 2
    before, after = batch.take(np.arange(cut)), batch.take(np.arange(cut, len(batch)))
    state = advance(program, None, before, -(2**60)).keyed_state
    return program, state, (after, 2**61 - 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_page_comes_back(seed: int) -> None:
    case = halfway(seed)
    if case is not None:
        assert facts(decode_page(encode_page(case[1]))) == facts(case[1])


@pytest.mark.parametrize("seed", SEEDS)
def test_keys_taken_apart_and_joined_go_on_as_one(seed: int) -> None:
    case = halfway(seed)
    if case is None:
        return
    program, state, (batch, watermark_ms) = case
    random = Random(seed)
    share = np.array([random.random() < 0.5 for _ in state.keys], bool)
    parts = [select_keys(state, share, program.row_registers), select_keys(state, ~share, program.row_registers)]
    assert sum(len(part) for part in parts) == len(state)
    joined = concat_states(parts, program.row_registers)
    if share.all():
        assert facts(parts[0]) == facts(state)
    assert _goes_on(program, joined, batch, watermark_ms) == _goes_on(program, state, batch, watermark_ms)


def _goes_on(program: Program, state: KeyedState, batch: EventBatch, watermark_ms: int) -> Answers:
    return engine_answers(program, [(batch, watermark_ms)], keyed_state=state)


def test_the_empty_state_comes_back() -> None:
    program = program_of(SCHEMA, random_case(1, 1).pattern)
    state = empty_state(program)
    assert facts(decode_page(encode_page(state))) == facts(state)


def test_another_page_format_is_refused_by_name() -> None:
    table = decode_table(encode_page(empty_state(program_of(SCHEMA, random_case(1, 1).pattern))))
    meta = json.loads(table.schema.metadata[b"page"]) | {"format": PAGE_FORMAT + 1}
    foreign = encode_table(table.replace_schema_metadata({"page": json.dumps(meta)}))
    with pytest.raises(StateFormatError, match=f"a page has format {PAGE_FORMAT + 1}, this build reads {PAGE_FORMAT}"):
        decode_page(foreign)


def test_a_block_that_is_no_page_is_refused_by_name() -> None:
    with pytest.raises(StateFormatError, match="a page has format None"):
        decode_page(encode_table(pa.record_batch({"x": [1]})))


def test_damaged_bytes_are_noticed() -> None:
    good = encode_page(empty_state(program_of(SCHEMA, random_case(1, 1).pattern)))
    with pytest.raises(StateCorruptError, match="checksum"):
        decode_page(good[:-1] + bytes([good[-1] ^ 1]))


STORED = sorted(Path(__file__).with_name("stored").glob("page-*.bin"))
CHAIN = "seq x -> y -> z within 1 min\nwhere x: e kind == a\ny: e kind == b\nz: e kind == c and amount > x.amount"


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_pages_that_builds_have_written(path: Path) -> None:
    """Bytes of every format: this build and 0.2.0 are accepted, the others are refused by name."""
    written_format = int(path.stem.removeprefix("page-"))
    if written_format not in (PAGE_FORMAT, EARLIER_PAGE_FORMAT):
        with pytest.raises(StateFormatError, match=f"a page has format {written_format}"):
            decode_page(path.read_bytes())
        return
    rules = program(rule(CHAIN, "chain"))
    state, orphans = migrate_state(decode_page(path.read_bytes()), rules)
    assert (len(state), orphans, state.keys.to_pylist()) == (2, 0, ["k", "other"])
    matches = advance(rules, state, batch("k c@4000 1.51", "other b@5000", "other c@6000 2.00"), 0).matches
    assert matches.event_id.to_pylist()[:2] == ["e0", "e1"], "bound before, completed now"
    assert int(matches.completed.sum()) == 1, "2.00 is not more than 2.00"


def test_the_format_that_is_written_is_among_the_stored_ones() -> None:
    assert f"page-{PAGE_FORMAT}" in [path.stem for path in STORED], "keep bytes of every format"
