"""The limits of one key: runs and nodes are bounded, the oldest runs are dropped, and no split changes which."""

from collections import Counter
from itertools import combinations, pairwise
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from cep.api.rules import load
from cep.base.limits import MATCHES_PER_EVENT_MAX, NODE_TEXT_BYTES, NODES_PER_KEY_MAX, RUNS_PER_KEY_MAX
from cep.engine.advance import Advanced, advance
from cep.engine.outputs import Outputs
from cep.kernels import layout as y
from cep.nfa.program import Program
from cep.state.past import decode_page, encode_page
from tests.bench.hostile_streams import PROBE, honest
from tests.engine.bridge import END_MS, in_calls
from tests.engine.rules import batch, program, rule

CHECKOUT = Path(__file__).parents[2]
# Loops of every sort, for the general matcher and the plain one, with runs that bind a varying number of events.
PATTERNS = {
    "greedy": "seq a{2,} greedy -> b within 300 s\nwhere a: e kind == a\n b: e kind == b",
    "loop": "seq a{2,} -> b within 300 s\nwhere a: e kind == a\n b: e kind == b",
    "plain loop": "seq a{9} -> b within 300 s\nwhere a: e kind == a\n b: e kind == b",
    "strict": "seq a{2,} strict -> b within 300 s\nwhere a: e kind == a\n b: e kind == b",
    "combinations": "seq a+ any -> b within 300 s\nwhere a: e kind == a\n b: e kind == b",
    "shared starts": "seq a ->> b ->> c within 300 s\nwhere a: e kind == a\n b: e kind != c\n c: e kind == c",
    "absence": "seq a{2,} -> !c -> b within 300 s\nwhere a: e kind == a\n b: e kind == b\n c: e amount > 8",
    "at most so many": "seq a+ -> b within 25 events\nwhere a: e kind == a\n b: e kind == b",
}
# The time of a match, and the ids of its events.
Found = tuple[int, tuple[str, ...]]
SKIPS = ("none", "past last", "to next")


def _bounded(name: str, skip: str, monkeypatch: pytest.MonkeyPatch, runs: int, nodes: int) -> Program:
    monkeypatch.setattr("cep.nfa.rule_tables.RUNS_PER_KEY_MAX", runs)
    monkeypatch.setattr("cep.nfa.rule_tables.NODES_PER_KEY_MAX", nodes)
    return program(rule(f"{PATTERNS[name]}\nskip {skip}\nemit n = count(a)"))


def _stream(random: Random, count: int) -> list[str]:
    second, lines = 0, []
    for _ in range(count):
        second += random.choice((0, 0, 1, 1, 2, 5, 30))
        lines.append(f"{random.choice('xxxy')} {random.choice('aaaaabc')}@{second}000 {random.randint(1, 9)}.00")
    return lines


def _carried(compiled: Program, lines: list[str], ends: list[int]) -> tuple[list[Found], Counter[str]]:
    """Match the events in calls that end at the numbers in `ends`. Return all matches, and the counters."""
    matches: list[Found] = []
    counters: Counter[str] = Counter()
    for result in in_calls(compiled, batch(*lines), ends):
        m, ids = result.matches, result.matches.event_id.to_pylist()
        matches += [(int(m.detected_ms[r]), tuple(ids[m.offsets[r] : m.offsets[r + 1]])) for r in range(len(m))]
        counters.update(result.counters)
    return sorted(matches), counters


@pytest.mark.parametrize("name", PATTERNS)
def test_no_split_changes_what_is_evicted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    evicted = 0
    for seed in range(3):
        random = Random(f"{name}/{seed}")
        bounds = random.choice(((6, 1_000), (1_000, 24), (8, 30), (5, 9)))
        compiled = _bounded(name, SKIPS[seed], monkeypatch, *bounds)
        lines = _stream(random, 80)
        at_once, counters = _carried(compiled, lines, [len(lines)])
        in_parts, of_parts = _carried(
            compiled, lines, [*sorted(random.sample(range(1, len(lines)), random.randint(5, 30))), len(lines)]
        )
        one_by_one, of_each = _carried(compiled, lines, list(range(1, len(lines) + 1)))
        assert at_once == in_parts == one_by_one
        assert counters["runs_evicted"] == of_parts["runs_evicted"] == of_each["runs_evicted"]
        assert counters["rule_runs_evicted[r@1]"] == counters["runs_evicted"]
        evicted += counters["runs_evicted"]
    assert evicted > 0, "streams that reach no limit show nothing"


HEAVY = "y" * 900  # stored for the comparison with `b`


def _text_program(name: str, runs: int, nodes: int, monkeypatch: pytest.MonkeyPatch, rules: int = 1) -> Program:
    monkeypatch.setattr("cep.nfa.rule_tables.RUNS_PER_KEY_MAX", runs)
    monkeypatch.setattr("cep.nfa.rule_tables.NODES_PER_KEY_MAX", nodes)
    monkeypatch.setattr("cep.engine.starts.NODES_PER_KEY_MAX", nodes)
    text = f"{PATTERNS[name]}\nemit n = count(a), note = first(a).note"
    return program(*(rule(text, f"r{number}" if number else "r") for number in range(rules)))


@pytest.mark.parametrize("name", [*PATTERNS, "shared by four"])
def test_no_split_changes_what_long_texts_evict(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    evicted = 0
    for seed in range(2):
        random = Random(f"{name}/{seed}")
        rules = 4 if name == "shared by four" else 1
        compiled = _text_program("shared starts" if rules > 1 else name, 1_000, 30, monkeypatch, rules)
        lines = [f"{line} {random.choice((HEAVY, 'y', HEAVY[:400], '-'))}" for line in _stream(random, 60)]
        at_once, counters = _carried(compiled, lines, [len(lines)])
        cuts = [*sorted(random.sample(range(1, len(lines)), random.randint(5, 20))), len(lines)]
        in_parts, of_parts = _carried(compiled, lines, cuts)
        one_by_one, of_each = _carried(compiled, lines, list(range(1, len(lines) + 1)))
        assert at_once == in_parts == one_by_one
        if rules == 1:
            assert counters["runs_evicted"] == of_parts["runs_evicted"] == of_each["runs_evicted"]
        assert counters["rule_runs_evicted[r@1]"] > 0 or not counters["runs_evicted"]
        evicted += counters["runs_evicted"]
    assert evicted > 0, "streams that reach no limit show nothing"


def test_long_texts_of_a_key_are_bounded_in_bytes() -> None:
    """A thousand runs that have each bound an event of 60 kB would not limit memory."""
    compiled = program(rule("seq a -> b within 900 s\nwhere a: e kind == a\n b: e kind == b\nemit c = a.note"))
    text = "y" * 60_000
    keyed_state, most, evicted = None, 0, 0
    for first in range(0, 300, 50):
        events = batch(*(f"x a@{second}000 1.00 {text}" for second in range(first, first + 50)))
        result = advance(compiled, keyed_state, events, first * 1_000)
        keyed_state = result.keyed_state
        most = max(most, sum(map(len, keyed_state.events.columns["note"].to_pylist())))
        evicted += result.counters.get("rule_runs_evicted[r@1]", 0)
    assert most <= 2 * NODE_TEXT_BYTES * NODES_PER_KEY_MAX
    assert evicted == 300 - len(keyed_state)  # type: ignore[arg-type]  # there is one
    assert len(keyed_state) >= NODES_PER_KEY_MAX // 2 // (1 + 60_000 // NODE_TEXT_BYTES)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PATTERNS)
def test_no_key_has_more_than_the_limits_after_any_event(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = _bounded(name, "none", monkeypatch, 12, 40)
    lines = [f"x {kind}@{second}000" for second, kind in enumerate(Random(name).choices("aaaaaab", k=70))]
    events, keyed_state = batch(*lines), None
    most = 0
    for end in range(1, len(lines) + 1):
        result = advance(compiled, keyed_state, events.take(np.arange(end - 1, end)), int(events.time_ms[end - 1]))
        keyed_state = result.keyed_state
        assert len(keyed_state) <= 12
        assert len(keyed_state.nodes) <= 40
        most = max(most, len(keyed_state.nodes))
    assert most > 8


def test_the_latest_start_is_the_last_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each take of a greedy loop writes the run again, after younger runs: the start of a run decides."""
    compiled = _bounded("greedy", "none", monkeypatch, 3, 1_000)
    result = advance(compiled, None, batch(*(f"x a@{second}" for second in range(9))), 8)
    starts = sorted(result.keyed_state.events.event_id.to_pylist())
    assert result.counters["runs_evicted"] == 6
    assert starts == ["e6", "e7", "e8"]


def test_what_is_evicted_does_not_end_detection(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = _bounded("greedy", "past last", monkeypatch, 1_000, 60)
    lines = [f"x a@{second}" for second in range(200)] + ["x b@200"]
    result = advance(compiled, None, batch(*lines), END_MS)
    assert len(result.matches) == 1
    assert result.counters["runs_evicted"] > 100
    assert result.matches.event_id.to_pylist()[-2:] == ["e199", "e200"]


@pytest.mark.parametrize(("name", "events_count"), [("greedy", 6_000), ("combinations", 2_000)])
def test_a_hot_key_takes_no_more_memory_than_its_limits(
    name: str, events_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is counted in rows of the arrays. They never shrink in a call, so the size at its end is the peak."""
    created: list[Outputs] = []
    real = Outputs.__init__

    def noted(self: Outputs, *arguments: object) -> None:
        created.append(self)
        real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Outputs, "__init__", noted)
    monkeypatch.setattr("cep.engine.outputs._ROOM_MAX", 1_024)
    compiled = program(rule(f"{PATTERNS[name]}\nskip none"))
    result = advance(compiled, None, batch(*(f"x a@{second}" for second in range(events_count))), 1)
    (outputs,) = created
    # In use at one time: live nodes, as many not yet dropped, and the ones since the last count; then doubled.
    assert len(outputs.work.nodes) <= 2 * 4 * NODES_PER_KEY_MAX
    assert len(outputs.work.runs) <= 4 * RUNS_PER_KEY_MAX
    assert len(result.keyed_state.nodes) <= NODES_PER_KEY_MAX
    assert len(result.keyed_state) <= RUNS_PER_KEY_MAX
    assert result.counters["runs_evicted"] > 0
    row_bytes = 8 * compiled.width
    assert len(result.keyed_state) * row_bytes + 8 * y.NODE_WIDTH * len(result.keyed_state.nodes) <= 2_000_000


def test_the_deployed_rules_have_as_much_work_with_each_event_of_a_hot_card() -> None:
    """Each event begins runs that never end. Without a limit, twice the events would be four times the work."""
    rules, steps = load(CHECKOUT / "rules"), {}
    for count in (2_000, 4_000):
        events = [{**event, **PROBE} for event in honest(count)]
        steps[count] = rules.match(pa.Table.from_pylist(events)).counters["run_steps"]
    assert steps[4_000] <= 2.2 * steps[2_000]
    assert steps[4_000] <= 4_000 * RUNS_PER_KEY_MAX


def test_many_matches_stay_whole_while_nodes_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matches refer to nodes that no run needs any more, until the end of the call."""
    compiled = _bounded("greedy", "past last", monkeypatch, 100, 20)
    lines = [f"x {'b' if second % 4 == 3 else 'a'}@{second}" for second in range(400)]
    result = advance(compiled, None, batch(*lines), END_MS)
    ids, offsets = result.matches.event_id.to_pylist(), result.matches.offsets.tolist()
    bound = sorted((ids[first:end] for first, end in pairwise(offsets)), key=lambda events: int(events[0][1:]))
    assert bound == [
        [f"e{second}", f"e{second + 1}", f"e{second + 2}", f"e{second + 3}"] for second in range(0, 400, 4)
    ]


PATTERN = (
    "seq a+ any -> b within 1 h\nwhere a: e kind == a\n b: e kind == b\nskip none\nemit n = count(a), s = sum(a.amount)"
)


def _payments(count: int) -> list[str]:
    return [f"x a@{number} {number}.00" for number in range(1, count + 1)]


def _measures_by_ids(advanced: Advanced) -> dict[tuple[str, ...], tuple[int, int]]:
    matches = advanced.matches
    measures = {}
    for row in range(len(matches)):
        ids = matches.event_id[matches.offsets[row] : matches.offsets[row + 1]].to_pylist()
        measures[tuple(ids)] = (int(matches.measures[row, 0]), int(matches.measures[row, 1]))
    return measures


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 12])
def test_every_combination_is_a_match_with_its_own_measures(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cep.nfa.rule_tables.MATCHES_PER_EVENT_MAX", 10_000)
    compiled = program(rule(PATTERN))
    first = advance(compiled, None, batch(*_payments(count)), 0)
    state = decode_page(encode_page(first.keyed_state))
    assert len(state) == count, "one run for each start"
    measures = _measures_by_ids(advance(compiled, state, batch(f"x b@{count + 1}"), 0))
    ids = state.events.event_id.to_pylist()
    amounts = {event: 100 * (number + 1) for number, event in enumerate(ids)}
    chosen = [c for size in range(1, count + 1) for c in combinations(ids, size)]
    assert {key[:-1] for key in measures} == set(chosen)
    assert all(measured == (len(key) - 1, sum(amounts[i] for i in key[:-1])) for key, measured in measures.items())


def test_thirty_repetitions_take_linear_memory_and_end_at_the_limit() -> None:
    compiled = program(rule(PATTERN))
    sizes = {}
    for count in (15, 30):
        state = advance(compiled, None, batch(*_payments(count)), 0).keyed_state
        sizes[count] = len(state.nodes) / count
        assert len(state) == count
    assert sizes[30] <= 2.1 * sizes[15], "nodes grow with starts times events, not with combinations"
    result = advance(compiled, state, batch("x b@31"), 0)
    assert len(result.matches) == MATCHES_PER_EVENT_MAX
    assert result.counters["matches_dropped"] > 0
