"""The library of patterns: its tests and tables, its decoys, and its silence on honest events."""

import re
from collections import Counter
from functools import cache
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from cep.base.schema import Kind
from cep.demo.stream import build
from cep.lang.ir import History
from cep.lang.load import Checked, load_files, load_text
from cep.lang.walk import nodes
from cep.model.rule import UpsertRecord
from cep.rulebook.files import read_rules
from cep.testing.harness import Outcome, Verdict, run_test
from cep.testing.journal import coverage_of
from tests.runners.embedded.cases import replayed_at
from tests.testing.evasion import DECOYS, evasions, row
from tests.testing.evasion import table as table_of_decoys
from tests.testing.evasion import written_table as written_table_of_decoys
from tests.testing.honest import honest_firms, honest_months
from tests.testing.library import (
    DOMAINS,
    README,
    Entry,
    entries,
    flips,
    flips_in_time,
    library,
    looks_back,
    rules_for,
    table,
    written_table,
)

# Each pattern of the library has full comments, four kinds of tests, and a row in the table.
#
# `honest.py` has honest events, on which it is silent.

ROOT = Path(__file__).parents[2]
ENTRIES = list(entries())
NAMES = [entry.name for entry in ENTRIES]
PATTERNS_MIN = 45
NUMBERS = (Kind.INT, Kind.DECIMAL, Kind.FLOAT, Kind.DURATION)


@cache
def checked() -> Checked:
    return library()


def test_there_are_enough_in_every_domain() -> None:
    assert set(NAMES) == set(checked().patterns)
    assert len(NAMES) >= PATTERNS_MIN
    files = [path for path in README.parent.glob("*.cep") if "\npattern " in path.read_text(encoding="utf-8")]
    assert {entry.domain for entry in entries()} == {DOMAINS[path.stem] for path in files}


@pytest.mark.parametrize("entry", ENTRIES, ids=NAMES)
def test_it_says_what_it_is_and_where_it_comes_from(entry: Entry) -> None:
    assert entry.detects
    assert set(entry.notes) == {"Source", "Defaults", "Measured"}


def test_every_number_has_bounds_and_a_default() -> None:
    """Bounds are part of the meaning of a rule, so patterns of deployed rules stay as they are."""
    deployed = {record.pattern for record in read_rules(ROOT / "rules")[0]}
    for name in set(NAMES) - deployed:
        for param in checked().patterns[name].params:
            if param.type.kind in NUMBERS:
                assert param.default is not None
                assert param.minimum is not None, f"{name}: {param.name}"
                assert param.maximum is not None, f"{name}: {param.name}"


@pytest.mark.parametrize("name", NAMES)
def test_it_has_the_four_kinds_of_tests(name: str) -> None:
    tests = [test for test in checked().tests if test.pattern.name == name]
    params = checked().patterns[name].params
    silent = [test for test in tests if test.nothing]
    assert any(test.expected or test.counts for test in tests)
    assert len(silent) >= 2
    if any(param.type.kind is Kind.DURATION for param in params):
        assert any(flips(checked(), test, durations=True) for test in tests), "no test stands at the edge of a window"
    elif looks_back(checked().patterns[name]):
        assert any(flips_in_time(checked(), test) for test in tests), "no test stands at the edge of the calendar"
    if any(param.type.kind in NUMBERS[:3] for param in params):
        assert any(flips(checked(), test, durations=False) for test in silent), "no test misses by a single step"


def test_a_pattern_with_a_window_has_its_edge_tested_whatever_the_window_is() -> None:
    """A window is a parameter, or of the calendar. A window that is written as a number would escape the test."""
    for pattern in checked().patterns.values():
        if any(param.type.kind is Kind.DURATION for param in pattern.params):
            continue
        assert not isinstance(pattern.within_ms, int), f"{pattern.name}: make its window a parameter"
        windows = [node.window for node in nodes(pattern) if isinstance(node, History) and node.window is not None]
        assert all(window.calendar is not None for window in windows), f"{pattern.name}: make its window a parameter"


def test_the_page_has_the_table() -> None:
    """`.venv/bin/python -m tests.testing.library` writes it."""
    assert written_table(README.read_text(encoding="utf-8")) == table()


# The tests of the project's own patterns pass, and so do the tests of the language reference.


PATTERNS = ROOT / "patterns"
LANGUAGE = ROOT / "cep" / "docs" / "reference"
PAGES = (LANGUAGE / "language.md", *sorted((LANGUAGE / "language").glob("*.md")), PATTERNS / "README.md")
CHECKED = load_files(sorted(PATTERNS.rglob("*.cep")))


def test_the_patterns_are_clean() -> None:
    assert CHECKED.ok
    assert not CHECKED.refused_tests


@cache
def verdict(number: int) -> Verdict:
    """Return the outcome of a test by its number: two tests here read it."""
    return run_test(CHECKED.schema, CHECKED.tests[number])


@pytest.mark.parametrize(
    "number", range(len(CHECKED.tests)), ids=[f"{test.pattern.name}: {test.name}" for test in CHECKED.tests]
)
def test_a_pattern_test_passes(number: int) -> None:
    tested = verdict(number)
    assert (tested.outcome, tested.differences) == (Outcome.PASSED, ())


def test_every_pattern_has_one_that_fires_and_two_that_do_not() -> None:
    fires = Counter(t.pattern.name for t in CHECKED.tests if t.expected or t.counts)
    silent = Counter(t.pattern.name for t in CHECKED.tests if t.nothing)
    for name in CHECKED.patterns:
        assert fires[name] >= 1
        assert silent[name] >= 2


@pytest.mark.parametrize("name", CHECKED.patterns)
def test_every_state_transition_and_outcome_is_covered(name: str) -> None:
    tested = [verdict(number) for number, test in enumerate(CHECKED.tests) if test.pattern.name == name]
    coverage = coverage_of(CHECKED.patterns[name], (trace for t in tested for trace in t.traces.values()))
    assert coverage.states.missing() == []
    assert coverage.transitions.missing() == []
    assert coverage.outcomes.missing() == []


def test_the_tests_of_the_reference_pass() -> None:
    blocks = (re.findall(r"```(?:cep)?\n(event.*?)```", page.read_text(encoding="utf-8"), re.DOTALL) for page in PAGES)
    checked = [load_text(block) for page in blocks for block in page]
    assert len(checked) >= 3
    outcomes = [run_test(c.schema, test).outcome for c in checked for test in c.tests]
    assert len(outcomes) >= 6
    assert set(outcomes) == {Outcome.PASSED}


# The page of patterns says which decoys evade which pattern. A pattern that was hardened against a decoy stops it.

WRITTEN = written_table_of_decoys(README.read_text(encoding="utf-8"))
# One or two patterns of each sort: strict and relaxed steps, loops, absences, the past alone.
SOME = (
    "small_then_large",
    "rapid_retry",
    "whole_takeover",
    "new_country_large",
    "first_payment_default",
    "split_transfer",
)
# An attacker cannot get these events for a cent: the code of the customer, many sales. Other patterns belong to
# deployed rules and are strict by design.
EVADED_BY_CHEAP_EVENTS = {
    "dormant_then_large", "small_then_large", "rising_amounts", "card_enumeration", "payment_without_code",
}  # fmt: skip
# Dust from more than a month ago, and devices that were all used before.
EVADED_BY_PRIMING = {"address_poisoning", "device_hopping"}


def evaded_by(decoy: str) -> set[str]:
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in WRITTEN.splitlines()[2:]]
    column = 1 + list(DECOYS).index(decoy)
    return {line[0].strip("`") for line in cells if line[column] == "evades"}


@pytest.mark.parametrize("name", SOME)
def test_the_page_has_the_row(name: str) -> None:
    assert row(name, evasions(library(), name)) in WRITTEN.splitlines()


@pytest.mark.slow
def test_the_page_has_the_table_of_decoys() -> None:
    """`.venv/bin/python -m tests.testing.evasion` writes it."""
    assert table_of_decoys() == WRITTEN


def test_no_cheap_event_and_no_cent_before_evades_more_patterns() -> None:
    assert evaded_by("cheap events") == EVADED_BY_CHEAP_EVENTS
    assert evaded_by("priming") == EVADED_BY_PRIMING


def test_a_small_fraud_hides_a_large_one_only_where_the_alert_has_no_number() -> None:
    checked = library()
    for name in evaded_by("small first"):
        assert not any(measure.value.type.is_number for measure in checked.patterns[name].measures)


def test_decoys_are_a_function_of_the_seed() -> None:
    assert evasions(library(), "card_testing") == evasions(library(), "card_testing")
    assert Random("20 card_testing ties").random() == Random("20 card_testing ties").random()


# On honest events the library is nearly silent: a simulated day of card payments, and two months of a small bank.

SEED = 11
# Limits per million honest events: for one pattern, and for all of them together.
ALERTS_OF_ONE_MAX = 50
ALERTS_MAX = 150


def alerts_by_pattern(events: pa.Table, rules: list[UpsertRecord], folder: Path) -> Counter[str]:
    pq.write_table(events, folder / "events.parquet")
    replayed = replayed_at(folder / "events.parquet", rules, 1)
    assert replayed.dead_letters == ()
    return Counter(replayed.alerts["rule_id"].to_pylist())


def check(events: pa.Table, rules: list[UpsertRecord], folder: Path) -> None:
    alerts, millions = alerts_by_pattern(events, rules, folder), events.num_rows / 1e6
    assert max(alerts.values(), default=0) <= max(1, ALERTS_OF_ONE_MAX * millions), alerts
    assert alerts.total() <= max(1, ALERTS_MAX * millions), alerts


def test_on_a_day_of_card_payments(tmp_path: Path) -> None:
    stream = build(SEED)
    planted = pa.array([tx_id for case in stream.planted for tx_id in case.tx_ids])
    honest = stream.payments.filter(pc.invert(pc.is_in(stream.payments["tx_id"], planted)))
    rules = rules_for({"transaction"})
    assert len(rules) >= 16
    check(honest.append_column("event_type", pa.array(["transaction"] * honest.num_rows)), rules, tmp_path)


@pytest.mark.parametrize("event_type", ["money", "account_event", "login"])
def test_in_two_months_of_a_bank(tmp_path: Path, event_type: str) -> None:
    months = honest_months(SEED)
    events = months.filter(pc.equal(months["event_type"], event_type))
    assert events.num_rows > 10_000
    rules = rules_for({event_type})
    assert len(rules) >= 5
    check(events, rules, tmp_path)


def test_around_a_bank(tmp_path: Path) -> None:
    """Sessions, staff, loans, wallets, merchants; each event type has thousands, except the changes of shops."""
    events = honest_firms(SEED)
    counts = Counter(events["event_type"].to_pylist())
    shops = counts.pop("merchant_event")
    assert shops >= 5
    assert min(counts.values()) > 2_000, counts
    rules = rules_for({*counts, "merchant_event"})
    assert len(rules) >= 30
    check(events, rules, tmp_path)
