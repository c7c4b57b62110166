"""Events matched in slices give the same result as in one call: alerts, counters, and keyed state."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from cep.engine import slices
from cep.engine.alerts import sort_alerts
from cep.engine.keyed_state import KeyedState
from cep.nfa.compile import problems
from cep.nfa.program import Program
from cep.step.match import MatchOutput, match_events
from tests.engine.bridge import Delivery, batch_of, program_of, split
from tests.engine.rules import batch, program, rule
from tests.histories.test_oracle import with_past
from tests.oracle.random_cases import SCHEMA, random_case

PAIRS = "seq a ->> b within 1 h\nwhere a: e\n b: e\nskip none"
# Work depends on the division of the events.
_OF_WORK = ("run_steps",)


def _matched(compiled: Program, deliveries: list[Delivery]) -> tuple[pa.Table, Counter[str]]:
    output = MatchOutput()
    state: KeyedState | None = None
    for events, watermark_ms in deliveries:
        state = match_events(compiled, state, events, watermark_ms, output)
    return sort_alerts(output.alert_table()), Counter({n: c for n, c in output.counters.items() if n not in _OF_WORK})


@pytest.mark.parametrize("level", [1, 2, 3])
def test_slices_change_nothing(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    subjects, sliced = [], 0
    for seed in range(300_000, 300_020):
        case = random_case(seed, level)
        case = with_past(case) if seed % 2 else case
        if not problems(case.pattern, SCHEMA):
            compiled = program_of(SCHEMA, case.pattern, case.pattern)
            subjects.append((compiled, split(batch_of(SCHEMA, case.events), Random(seed), cuts_max=2)))
    at_once = [_matched(compiled, deliveries) for compiled, deliveries in subjects]
    for name in ("MATCHES_AT_ONCE_MAX", "BINDINGS_AT_ONCE_MAX"):
        monkeypatch.setattr(f"cep.engine.slices.{name}", 1)
        for (compiled, deliveries), (alerts, counters) in zip(subjects, at_once, strict=True):
            again, counted = _matched(compiled, deliveries)
            assert again.equals(alerts)
            assert counted == counters
            sliced += alerts.num_rows > 1
    assert sliced > 10


@pytest.mark.parametrize("same_time", [False, True])
def test_no_part_has_many_more_matches_than_the_bound(same_time: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All events have one key, and in one case one time: then they are divided by their ids."""
    monkeypatch.setattr("cep.engine.slices.MATCHES_AT_ONCE_MAX", 500)
    monkeypatch.setattr("cep.engine.outputs._ROOM_MIN", 64)
    compiled = program(rule(PAIRS))
    rows = [f"x a@{1 if same_time else n}" for n in range(400)]
    events = batch(*rows).take(np.random.default_rng(1).permutation(400))
    parts = [len(part.matches) for part in slices.advance_in_slices(compiled, None, events, 0)]
    assert sum(parts) == sum(min(n, 100) for n in range(400))
    assert max(parts) <= 500
    assert len(parts) < 400, "halves, not single events"
