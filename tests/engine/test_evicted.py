"""Every matcher names each key that loses runs to a limit, with the rule and the number of the runs."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import cep
from cep.base.limits import RUNS_PER_KEY_MAX
from cep.engine.advance import advance
from tests.engine.bridge import END_MS
from tests.engine.rules import batch, program, rule

PLAIN = "seq a -> b within 300 s\nwhere a: e kind == a\n b: e kind == b"
GENERAL = "seq a{2,} greedy -> b within 300 s\nwhere a: e kind == a\n b: e kind == b"
SHARED = "seq a -> c within 300 s\nwhere a: e kind == a\n c: e kind == c and amount > {}"
LINES = [f"{key} a@{second}000 1.00" for second, key in enumerate("xyxxyxxzxxy")]  # seven of x, three of y, one of z


@pytest.mark.parametrize("texts", [[PLAIN], [GENERAL], [PLAIN, GENERAL], [SHARED.format(n) for n in range(4)]])
@pytest.mark.parametrize("cut", [len(LINES), 6])
def test_each_key_is_named(texts: list[str], cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for room in ("cep.nfa.rule_tables", "cep.engine.starts"):
        monkeypatch.setattr(f"{room}.RUNS_PER_KEY_MAX", 2)
    compiled = program(*(rule(text, f"r{number}") for number, text in enumerate(texts)))
    events, keyed_state = batch(*LINES), None
    lost: Counter[tuple[str, str]] = Counter()
    counted: Counter[str] = Counter()
    matched = 0
    for start, end in ((0, cut), (cut, len(LINES))):
        watermark = int(events.time_ms[end]) if end < len(LINES) else int(events.time_ms[-1])
        result = advance(compiled, keyed_state, events.take(np.arange(start, end)), watermark)
        keyed_state = result.keyed_state
        matched += len(result.matches)
        for evicted in result.evicted:
            lost[evicted.rule.rule_id, evicted.key] += evicted.runs_count
        counted.update(result.counters)
    assert matched == 0, "a note of evicted runs is no match"
    assert lost == {(f"r{n}", key): count for n in range(len(texts)) for key, count in (("x", 5), ("y", 1))}
    by_rule = {name: count for name, count in counted.items() if name.startswith("rule_runs_evicted")}
    assert by_rule == {f"rule_runs_evicted[r{n}@1]": 6 for n in range(len(texts))}
    assert advance(compiled, keyed_state, events.take(np.arange(0)), END_MS).evicted == []


def test_dust_from_many_addresses_hides_no_poisoned_address() -> None:
    """A pattern with a run for each deposit would lose the first one; a history by address keeps them all."""
    start, many = datetime(2026, 3, 1, tzinfo=UTC), RUNS_PER_KEY_MAX + 200
    moves = [("deposited", "bait", 0.01), *(("deposited", f"dust{n}", 0.01) for n in range(many))]
    rows = [
        {"wallet_event_id": f"e{n}", "event_time": start + timedelta(minutes=n), "event_type": "wallet_event",
         "wallet_id": "w", "move": move, "address": address, "worth": worth}
        for n, (move, address, worth) in enumerate([*moves, ("withdrawn", "bait", 1_000.0)])
    ]  # fmt: skip
    rules = cep.load(Path(__file__).parents[2] / "patterns" / "crypto.cep")
    result = rules.match(pa.Table.from_pylist(rows))
    assert result.table["rule_id"].to_pylist() == ["address_poisoning"]
