"""The page of patterns says which decoys evade which pattern. A pattern that was hardened against a decoy stops it."""

from __future__ import annotations

from random import Random

import pytest

from tests.testing.evasion import DECOYS, evasions, row, table, written_table
from tests.testing.library import README, library

WRITTEN = written_table(README.read_text(encoding="utf-8"))
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
def test_the_page_has_the_table() -> None:
    """`.venv/bin/python -m tests.testing.evasion` writes it."""
    assert table() == WRITTEN


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
