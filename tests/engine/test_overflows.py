"""Losses are named by rule: sums that stop at the bounds of 64 bits, and runs that a key loses to a limit."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest

import cep
from cep.base.limits import RUNS_PER_KEY_MAX
from cep.engine.advance import advance
from cep.nfa.program import Program
from tests.engine.bridge import END_MS
from tests.engine.rules import batch, program, rule

LEAST, GREATEST = -(2**63), 2**63 - 1
ABSURD = "92233720368547758.07"  # the largest decimal(2)


def _carried(compiled: Program, rows: list[str], cuts: list[int]) -> tuple[list[tuple[str, list[int]]], Counter[str]]:
    """Return the rule and the measures of each match, of rows `key kind@ms amount` in batches that end at the cuts."""
    state, counters, results = None, Counter[str](), []
    for first, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        here = rows[first:end]
        last_ms = END_MS if end == len(rows) else int(here[-1].split("@")[1].split()[0]) - 1 if here else 0
        result = advance(compiled, state, batch(*here), last_ms)
        state = result.keyed_state
        counters += Counter(result.counters)
        for row in range(len(result.matches)):
            values = result.matches.measures[row].tolist()
            results.append((compiled.rules[result.matches.rule[row]].deployed.rule_id, values))
            assert not result.matches.measures_null[row].any()
    return results, counters


def _at(compiled: Program, rows: list[str], cuts: list[int]) -> tuple[dict[str, set[int]], Counter[str]]:
    """Return the times of the events for which each rule holds, and the counters."""
    state, counters, times_by_rule = None, Counter[str](), dict[str, set[int]]()
    for first, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        result = advance(compiled, state, batch(*rows[first:end]), END_MS if end == len(rows) else 0)
        state = result.keyed_state
        counters += Counter(result.counters)
        for row, number in enumerate(result.matches.rule.tolist()):
            times = times_by_rule.setdefault(compiled.rules[number].deployed.rule_id, set())
            times.add(int(result.matches.event_time_ms[result.matches.offsets[row]]))
    return times_by_rule, counters


def test_one_absurd_payment_hides_none_and_is_forgotten_with_its_window() -> None:
    rows = [
        f"x a@{second} {amount}"
        for second, amount in [(1, "5.00"), (2, ABSURD), (3, "5.00"), (8, "5.00"), (20, "7.00")]
    ]
    compiled = program(
        rule("seq a\nwhere a: e sum(e.amount over 10 ms) > 4.00", "above"),
        rule(f"seq a\nwhere a: e sum(e.amount over 10 ms) == {ABSURD}", "bound"),
        rule("seq a\nwhere a: e sum(e.amount over 10 ms) == 7.00", "right again"),
    )
    for cuts in ([], [1], [2, 3], [1, 2, 3, 4]):
        times, counters = _at(compiled, rows, cuts)
        assert times == {"above": {1, 2, 3, 8, 20}, "bound": {2, 3, 8}, "right again": {20}}
        assert counters["arithmetic_overflows"] == counters["rule_overflows[above@1]"] == 3


def test_a_loop_goes_on_above_its_limit() -> None:
    emitted = "s = sum(a.amount), m = max(a.amount - 1.00), n = min(a.amount - 2.00)"
    compiled = program(
        rule(f"seq a+ -> b\nwhere a: e kind == a\n b: e kind == b and sum(a.amount) > 1000.00\nemit {emitted}")
    )
    rows = [f"x a@1 {ABSURD}", f"x a@2 {ABSURD}", "x a@3 1.00", "x b@4 1.00"]
    results, counters = _carried(compiled, rows, [2])
    assert max(values[0] for _, values in results) == GREATEST
    assert counters["rule_overflows[r@1]"] > 0


def test_each_rule_that_uses_it_is_named_and_no_other() -> None:
    shared = "amount * amount > 3.0000"
    compiled = program(
        rule(f"seq a\nwhere a: e {shared} and kind == a", "one"),
        rule(f"seq a -> b\nwhere a: e {shared}\n b: e kind == b", "two"),
        rule("seq a\nwhere a: e sum(e.amount over 1 h) > 3.00", "past"),
        rule("seq a\nwhere a: e sum(e.amount * 1000 over 1 h where kind == a) > 3.00", "argument"),
        rule("seq a -> b\nwhere a: e kind == a\n b: e kind == b\nemit m = a.amount * 3", "measure"),
        rule("seq a\nwhere a: e amount > 3.00", "none"),
        *(rule(f"seq a\nwhere a: e amount == {n}.07 and amount * 7 > 1.00", f"indexed-{n}") for n in range(1, 12)),
        rule(f"seq a\nwhere a: e amount == {ABSURD} and amount * 7 > 1.00", "indexed"),
    )
    _, counters = _carried(compiled, [f"x a@1 {ABSURD}", "x a@2 5.00", "x b@3 5.00"], [])
    named = {name.partition("[")[2][:-3] for name in counters if name.startswith("rule_overflows[")}
    assert named == {"one", "two", "past", "argument", "measure", "indexed"}
    assert counters["arithmetic_overflows"] >= len(named) - 1


def _text(units: int) -> str:
    return f"{'-' if units < 0 else ''}{abs(units) // 100}.{abs(units) % 100:02d}"


def _amounts(random: Random) -> list[int]:
    near = [GREATEST, LEAST + 1, 2**62, -(2**62), 2**31, 100, -100, 1, 0]
    return [max(LEAST + 1, min(random.choice(near) + random.randint(-3, 3), GREATEST)) for _ in range(14)]


@pytest.mark.parametrize("seed", range(12))
def test_sums_are_those_of_whole_numbers_with_bounds(seed: int) -> None:
    """Sums are exact within a history, and one after the other in a loop; in any cut of the events into batches."""
    random = Random(f"saturation {seed}")
    amounts = _amounts(random)
    rows = [f"x a@{number} {_text(amount)}" for number, amount in enumerate(amounts, 1)]
    limits = [0, 2**62, GREATEST - 1, LEAST + 1]
    history = program(
        *(rule(f"seq a\nwhere a: e sum(e.amount over 5 ms) > {_text(limit)}", f"{limit}") for limit in limits)
    )
    loop = program(rule("seq a+ -> b\nwhere a: e kind == a\n b: e kind == b\nskip past last\nemit s = sum(a.amount)"))
    windows = {number + 1: sum(amounts[max(number - 4, 0) : number + 1]) for number in range(len(amounts))}
    cuts = sorted(random.sample(range(1, len(rows)), random.randint(0, 5)))
    times, counters = _at(history, rows, cuts)
    for limit in limits:
        assert times.get(f"{limit}", set()) == {number for number, total in windows.items() if total > limit}
    assert counters["rule_overflows[0@1]"] == sum(not LEAST <= total <= GREATEST for total in windows.values())
    total = 0
    for amount in amounts:
        total = max(LEAST, min(total + amount, GREATEST))
    assert total in [values[0] for _, values in _carried(loop, [*rows, "x b@99 1.00"], cuts)[0]]


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
