"""Cutting a keyed state into parts equals selecting each of them."""

from __future__ import annotations

import numpy as np
import pytest

from cep.engine.advance import advance
from cep.engine.keyed_state import select_keys
from cep.engine.partition import partition_keys
from cep.nfa.compile import problems
from cep.state.pages import encode_page
from tests.engine.bridge import batch_of, program_of
from tests.oracle.random_cases import SCHEMA, random_case


@pytest.mark.parametrize("seed", range(40))
def test_it_is_what_selecting_gives(seed: int) -> None:
    random = np.random.default_rng(seed)
    patterns = [random_case(seed * 7 + i, 1 + i % 3).pattern for i in range(4)]
    chosen = [pattern for pattern in patterns if not problems(pattern, SCHEMA)]
    if not chosen:
        return
    program = program_of(SCHEMA, *chosen)
    events = batch_of(SCHEMA, random_case(seed, 3).events)
    keyed_state = advance(program, None, events, int(np.median(events.time_ms))).keyed_state
    parts_count = int(random.integers(1, 5))
    part = random.integers(0, parts_count, len(keyed_state.keys))
    cut = partition_keys(keyed_state, part, parts_count, program.row_registers)
    for number, share in enumerate(cut):
        expected = select_keys(keyed_state, part == number, program.row_registers)
        assert encode_page(share) == encode_page(expected)
