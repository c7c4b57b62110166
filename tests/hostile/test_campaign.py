"""A small campaign is clean, and one whose inputs go wrong says so."""

from __future__ import annotations

import json
from random import Random

import pytest

from tests.hostile.campaign import Tally, run
from tests.hostile.mutate import broken_bytes, broken_value


@pytest.mark.parametrize("seed", range(20))
def test_the_same_seed_makes_the_same_input(seed: int) -> None:
    tree = {"a": [1, {"b": "text"}], "c": None}
    assert broken_bytes(b"some bytes", Random(seed)) == broken_bytes(b"some bytes", Random(seed))
    before = json.dumps(tree)
    assert repr(broken_value(tree, Random(seed))) == repr(broken_value(tree, Random(seed)))
    assert json.dumps(tree) == before


def test_the_last_line_has_all_counts() -> None:
    tally = Tally()
    tally.add("accepted", "x", 5)
    assert tally.is_clean
    tally.add("hangs", "x")
    assert not tally.is_clean
    assert tally.line().startswith("6 inputs: 5 accepted, 0 refused, 0 tracebacks, 1 hangs, 0 memory")


@pytest.mark.slow
@pytest.mark.always
def test_a_few_thousand_inputs() -> None:
    tally = run(11, range(3_000), 2)
    assert tally.is_clean, "\n".join(tally.wrong)
    assert tally.done == 3_000
    assert tally.counts["accepted"] > 100
    assert len({kind for kind, _ in tally.by_kind}) > 15


@pytest.mark.slow
def test_many_inputs() -> None:
    tally = run(12, range(100_000), 2)
    assert tally.is_clean, "\n".join(tally.wrong)


@pytest.mark.slow
@pytest.mark.always
@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("raises", "tracebacks"),
        ("differs", "differences"),
        ("loops", "hangs"),
        ("allocates", "memory"),
        ("dies", "deaths"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_counted_and_the_campaign_goes_on(kind: str, outcome: str) -> None:
    tally = run(1, range(2), 1, (kind,), module="tests.hostile.bad_kinds")
    assert tally.counts == {outcome: 2}
    assert not tally.is_clean
    assert all(wrong.startswith(f"{outcome} 1/") for wrong in tally.wrong)
