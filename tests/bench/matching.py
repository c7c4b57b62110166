"""Factors of the cost of matching: deployed rules, repetition, windows, hot keys; and the weight of a key's state.

    python -m tests.bench.matching [rules] [prefixes] [kleene] [windows] [hot] [state] [--events N]

It measures one core of engine.advance in processor seconds, the least of several repeats, which is the time without
disturbance. The ratios of one table come from one run. Events are generated, except for `state`, which has the peer's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from itertools import product
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from cep.columnar.batch import TEXT, EventBatch
from cep.engine.advance import Advanced, advance
from cep.engine.keyed_state import KeyedState
from cep.lang.check.bind import bind
from cep.lang.ir import PatternIR
from cep.lang.load import load_text
from cep.nfa.compile import compile_rules
from cep.nfa.deployed import DeployedRule
from cep.nfa.prefixes import LENGTH_MAX
from cep.nfa.program import Program
from cep.nfa.shared import SHARED_MIN
from cep.state.pages import encode_page
from tests.bench.peer_data import END_MS, NAMES, peer_batch, peer_columns, peer_program, show

REPEATS = 7
KEYS = 1_000
GAP_MS = 60  # in ms, so every key has an event a minute
SECOND_MS = 1_000

SOURCE = """
event tx {
  id          id
  event_time  time
  account     string
  amount      decimal(2)
  merchant    int
  channel     int
}
pattern reacts(small: decimal = 1.00, large: decimal = 500.00) by account {
  seq    small_one -> large_one  within 10 min
  where  small_one: tx  channel < 90 and amount < small
         large_one: tx  merchant > 0 and amount > large
  skip   none
}
pattern sleeps(small: decimal = 1.00, large: decimal = 500.00, shop: int = 0) by account {
  seq    small_one -> large_one  within 10 min
  where  small_one: tx  merchant == shop and amount < small
         large_one: tx  channel == 99 and amount > large
  skip   none
}
pattern waits(small: decimal = 1.00, large: decimal = 500.00) by account {
  seq    small_one -> large_one  within 10 min
  where  small_one: tx  channel < 90 and amount < small
         large_one: tx  channel == 99 and amount > large
  skip   none
}
pattern thrice(small: decimal = 1.00, large: decimal = 500.00) by account {
  seq    small_one{3} -> large_one  within 1 h
  where  small_one: tx  channel < 90 and amount < small
         large_one: tx  channel == 99 and amount > large
}
pattern deep(small: decimal = 1.00, large: decimal = 500.00) by account {
  seq    small_one -> middle_one -> large_one  within 10 min
  where  small_one:  tx  channel < 90 and amount < small
         middle_one: tx  channel == 2
         large_one:  tx  merchant > 0 and amount > large
  skip   none
}
pattern deep_waits(small: decimal = 1.00, large: decimal = 500.00) by account {
  seq    small_one -> middle_one -> large_one  within 10 min
  where  small_one:  tx  channel < 90 and amount < small
         middle_one: tx  channel == 2
         large_one:  tx  channel == 99 and amount > large
  skip   none
}
pattern window(limit: duration = 1 min) by account {
  seq    small_one -> next_one  within limit
  where  small_one: tx  amount < 5.00
         next_one:  tx  amount > 20.00
}
pattern every by account {
  seq    first -> up+ any -> end  within 30 d
  where  first: tx  channel == 0
         up:    tx  channel == 1
         end:   tx  channel == 2
  skip   none
  emit   total = sum(up.amount)
}
pattern relaxed by account {
  seq    first -> up* -> end  within 30 d
  where  first: tx  channel == 0
         up:    tx  channel == 1
         end:   tx  channel == 2
  skip   none
  emit   total = sum(up.amount)
}
pattern starts by account {
  seq    up+ any -> end  within 30 d
  where  up:  tx  channel == 1
         end: tx  channel == 2
  skip   none
  emit   total = sum(up.amount)
}
"""


def checked_pattern(name: str, **arguments: int | str) -> PatternIR:
    """Return a bound pattern of the text above."""
    pattern, diagnostics = bind(_CHECKED.patterns[name], arguments)
    assert pattern is not None, diagnostics
    return pattern


def program_of(*patterns: PatternIR) -> Program:
    """Compile the patterns to one program."""
    rules = [DeployedRule(f"r{i}", 1, 1, str(i), pattern) for i, pattern in enumerate(patterns)]
    return compile_rules(_CHECKED.schema, ("account",), rules)


_CHECKED = load_text(SOURCE)
assert _CHECKED.ok, _CHECKED.diagnostics


def events_of(accounts: np.ndarray, time_ms: np.ndarray, amount_minor: np.ndarray, channel: np.ndarray) -> EventBatch:
    """Return an EventBatch of generated columns, all of one length."""
    names = pa.array([f"a{number}" for number in range(int(accounts.max()) + 1)], TEXT)
    account = names.take(pa.array(accounts))
    ids = pa.array(np.arange(len(accounts))).cast(pa.string()).cast(TEXT)
    columns = {
        "id": ids,
        "account": account,
        "amount": pa.array(amount_minor),
        "merchant": pa.array(np.arange(len(accounts)) % 1_000 + 1),
        "channel": pa.array(channel),
    }
    return EventBatch(account, ids, np.zeros(len(accounts), np.int16), time_ms, columns)


def payments(count: int, accounts: np.ndarray | None = None) -> EventBatch:
    """Return payments over many accounts in turn: 2 % below 1.00, 3 % above 600.00, the others in between."""
    random = np.random.default_rng(7)
    share = random.random(count)
    amount = np.where(share < 0.02, 0.5, np.where(share > 0.97, 700.0, 2.0 + 300.0 * random.random(count)))
    chosen = random.integers(0, KEYS, count) if accounts is None else accounts
    minor = np.rint(amount * 100).astype(np.int64)
    return events_of(chosen, np.arange(count) * GAP_MS, minor, random.integers(1, 4, count))


def least_seconds(work: Callable[[], object]) -> float:
    """Return the least time of the work over several repeats, after an uncounted one."""
    work()
    times_s = []
    for _ in range(REPEATS):
        started = time.process_time()
        work()
        times_s.append(time.process_time() - started)
    return min(times_s)


def all_at_once(program: Program, events: EventBatch, watermark_ms: int = END_MS) -> Advanced:
    """Match all events in one call."""
    return advance(program, None, events, watermark_ms)


# ------------------------------------------------------------------------------------------------------ tables


def measure_rules(count: int) -> None:
    """Measure 1, 50 and 500 rules: at most five react to any event, the others to none or to the same first event."""
    events = payments(count)
    rows: list[tuple[str, ...]] = []
    first = 0.0
    asleep_are = {"sleeps": "", "waits": ", all begin alike", "thrice": ", the others with three of the same"}
    for deployed, name in (*((n, "sleeps") for n in (1, 5, 50, 500)), (50, "waits"), (500, "waits"), (500, "thrice")):
        reacting = [checked_pattern("reacts", large=500 + i) for i in range(min(deployed, 5))]
        shops = [{"shop": 2_000 + i} if name == "sleeps" else {} for i in range(deployed - len(reacting))]
        asleep = [checked_pattern(name, large=500 + i % 97, **shop) for i, shop in enumerate(shops)]
        program = program_of(*reacting, *asleep)
        seconds = least_seconds(lambda p=program: all_at_once(p, events))  # type: ignore[misc]
        first = first or seconds
        result = all_at_once(program, events, int(events.time_ms[-1]))
        title = f"{deployed} ({len(reacting)} react{asleep_are[name]})"
        page = f"{len(encode_page(result.keyed_state)):,}"
        rows.append((title, f"{seconds / count * 1e9:,.0f}", f"{seconds / first:.2f}", f"{len(result.matches)}", page))
    show(f"rules deployed, {count:,} events", ("rules", "ns/event", "time ÷ 1 rule", "matches", "page bytes"), rows)


def measure_prefixes(count: int) -> None:
    """Measure 1 and 500 rules that begin with the same two conditions, five of which match.

    The 500 rules run without sharing, with only the first condition shared, and with both shared.
    """
    events = payments(count)
    rows: list[tuple[str, ...]] = []
    first = 0.0
    cases = {
        "": (1, SHARED_MIN, LENGTH_MAX),
        ", nothing shared": (500, 10**6, LENGTH_MAX),
        ", the first shared": (500, SHARED_MIN, 1),
        ", both shared": (500, SHARED_MIN, LENGTH_MAX),
    }
    for how, (deployed, rules_min, length_max) in cases.items():
        reacting = [checked_pattern("deep", large=500 + i) for i in range(min(deployed, 5))]
        asleep = [checked_pattern("deep_waits", large=500 + i % 97) for i in range(deployed - len(reacting))]
        with patch("cep.nfa.shared.SHARED_MIN", rules_min), patch("cep.nfa.shared.LENGTH_MAX", length_max):
            program = program_of(*reacting, *asleep)
        seconds = least_seconds(lambda p=program: all_at_once(p, events))  # type: ignore[misc]
        first = first or seconds
        result = all_at_once(program, events, int(events.time_ms[-1]))
        title, page = f"{deployed} ({len(reacting)} react{how})", f"{len(encode_page(result.keyed_state)):,}"
        rows.append((title, f"{seconds / count * 1e9:,.0f}", f"{seconds / first:.2f}", f"{len(result.matches)}", page))
    head = ("rules", "ns/event", "time ÷ 1 rule", "matches", "page bytes")
    show(f"rules that begin with the same two conditions, {count:,} events", head, rows)


def repetition(length: int) -> EventBatch:
    """Return the events of one account: one of channel 0, `length` of channel 1, then one of channel 2."""
    channel = np.array([0] + [1] * length + [2])
    at_ms = np.arange(length + 2) * SECOND_MS
    return events_of(np.zeros(length + 2, np.int64), at_ms, np.full(length + 2, 100), channel)


def measure_kleene(_: int) -> None:
    """Measure repetition in every combination and relaxed: time by event, and the state before the last event."""
    rows = []
    titles = {"every": "s -> a+ any -> b", "relaxed": "s -> a* -> b", "starts": "a+ any -> b"}
    for name, length in (*product(titles, (10, 20, 30, 60, 120)), *(("starts", n) for n in (1_000, 2_000, 4_000))):
        program, events = program_of(checked_pattern(name)), repetition(length)
        before_end = events.take(np.arange(length + 1))
        state = all_at_once(program, before_end, length * SECOND_MS).keyed_state
        taking = least_seconds(lambda p=program, e=before_end: all_at_once(p, e, 0))  # type: ignore[misc]
        result = all_at_once(program, events)
        rows.append(
            (
                f"{titles[name]}, n = {length}",
                f"{taking / length * 1e6:.1f}",
                f"{len(state)}",
                f"{len(state.nodes)}",
                f"{len(state.nodes) / length:.1f}",
                f"{len(encode_page(state)) / length:,.0f}",
                f"{len(result.matches):,}",
                f"{result.counters.get('matches_dropped', 0):,}",
            )
        )
    head = ("pattern", "µs/event", "runs", "nodes", "nodes ÷ n", "page bytes ÷ n", "matches", "dropped")
    show("repetition on one key; calls are small, so their fixed cost shows", head, rows)


def measure_windows(count: int) -> None:
    """Measure the same pattern and events; only `within` grows."""
    events = payments(count)
    rows: list[tuple[str, ...]] = []
    first = 0.0
    for title, limit in (("1 min", "1 min"), ("1 h", "1 h"), ("1 day", "1 d"), ("30 days", "30 d")):
        program = program_of(checked_pattern("window", limit=limit))
        seconds = least_seconds(lambda p=program: all_at_once(p, events))  # type: ignore[misc]
        first = first or seconds
        result = all_at_once(program, events, int(events.time_ms[-1]))
        nanoseconds = f"{seconds / count * 1e9:,.0f}"
        rows.append(
            (title, nanoseconds, f"{seconds / first:.2f}", f"{len(result.matches):,}", f"{len(result.keyed_state):,}")
        )
    head = ("within", "ns/event", "time ÷ 1 min", "matches", "runs open at the end")
    show(f"windows, {count:,} events over {count * GAP_MS / 3_600_000:.1f} h", head, rows)


def measure_hot_key(count: int) -> None:
    """Measure uniform keys, and one key that has half of all events."""
    random = np.random.default_rng(11)
    uniform = random.integers(0, KEYS, count)
    hot = np.where(random.random(count) < 0.5, 0, uniform)
    programs = {
        "small then large, 10 min": checked_pattern("reacts"),
        "small then next, 30 days": checked_pattern("window", limit="30 d"),
    }
    rows = []
    for title, pattern in programs.items():
        program = program_of(pattern)
        seconds = []
        for accounts in (uniform, hot):
            events = payments(count, accounts)
            seconds.append(least_seconds(lambda p=program, e=events: all_at_once(p, e)))  # type: ignore[misc]
        even, skewed = (f"{s / count * 1e9:,.0f}" for s in seconds)
        rows.append((title, even, skewed, f"{seconds[1] / seconds[0]:.2f}"))
    show(f"one hot key, {count:,} events", ("pattern", "uniform ns/event", "hot ns/event", "hot ÷ uniform"), rows)


# ------------------------------------------------------------------------------------------------------- state


def array_bytes(state: KeyedState) -> int:
    """Return the bytes of the arrays of a keyed state, without the Python strings of its keys."""
    events = state.events
    arrays = (state.runs, state.run_rule, state.run_key, state.nodes, events.key, events.event_type, events.time_ms)
    columns = (state.keys, events.event_id, *events.columns.values())
    return int(sum(a.nbytes for a in arrays) + sum(c.nbytes for c in columns))


def measure_state(count: int) -> None:
    """Measure keyed state after the peer's events, in memory and as pages, and the size for 100 million keys."""
    events = peer_batch(peer_columns(count))
    keys = len(events.key.unique())
    rows = []
    for title, names in {**{name: (name,) for name in NAMES}, "all four": NAMES}.items():
        state = all_at_once(peer_program(names), events, int(events.time_ms.max())).keyed_state
        live = max(len(state.keys), 1)
        page = encode_page(state)
        in_memory, encoded = array_bytes(state), len(page)
        packed = len(pa.compress(page, codec="zstd", asbytes=True))
        rows.append(
            (
                title,
                f"{len(state):,}",
                f"{len(state.keys):,}",
                f"{in_memory / live:,.0f}",
                f"{encoded / live:,.0f}",
                f"{packed / live:,.0f}",
                f"{encoded / keys:,.1f}",
                f"{encoded / keys * 1e8 / 1e9:,.1f}",
                f"{packed / keys * 1e8 / 1e9:,.1f}",
            )
        )
    head = (
        "rules", "runs", "keys with runs", "bytes ÷ these", "page bytes ÷ these", "zstd", "page bytes ÷ keys",
        "GB for 100 M keys", "zstd",
    )  # fmt: skip
    show(f"keyed state after {count:,} events of {keys:,} keys; a key without runs is not kept", head, rows)


MEASURES: dict[str, Callable[[int], None]] = {
    "rules": measure_rules,
    "prefixes": measure_prefixes,
    "kleene": measure_kleene,
    "windows": measure_windows,
    "hot": measure_hot_key,
    "state": measure_state,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the named parts, or all by default, and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.matching", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MEASURES)}; all if none is named")
    parser.add_argument("--events", type=int, default=300_000)
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in MEASURES]
    if unknown:
        parser.error(f"there is no {unknown[0]}; there are {', '.join(MEASURES)}")
    for name in options.names or MEASURES:
        MEASURES[name](options.events)


if __name__ == "__main__":
    main()
