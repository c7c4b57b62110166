"""Random scenarios: the same for a seed, expressible in the language, and with the intended features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.conformance.run import RefusedError, Subject, answer, check_pattern, without_limits
from tests.conformance.scenario import Scenario, scenario_of
from tests.conformance.structure import pattern_text
from tests.fuzz.examine import oracle_answer
from tests.fuzz.features import features, richest
from tests.fuzz.small import Json, nested, small
from tests.seeds import seeds

Drawn = Callable[[int, int], list[Json]]

COUNT = 300


def accepted(drafted: list[Json]) -> list[tuple[Scenario, Subject]]:
    """Return the scenarios whose patterns the language accepts."""
    pairs = []
    for draft in drafted:
        scenario = scenario_of({**draft, "expected": {"error": "unasked", "message": ""}}, draft["name"])
        try:
            pairs.append((scenario, check_pattern(pattern_text(scenario))))
        except RefusedError:
            continue
    return pairs


@pytest.mark.parametrize("drawn", [small, nested])
def test_a_seed_draws_the_same_again(drawn: Drawn) -> None:
    assert drawn(7, COUNT)[:20] == drawn(7, 20)
    assert drawn(7, 20) != drawn(8, 20)


@pytest.mark.parametrize("drawn", [small, nested])
def test_drawn_scenarios_say_what_the_language_knows(drawn: Drawn) -> None:
    assert COUNT * 3 / 4 < len(accepted(drawn(3, COUNT))) < COUNT


@pytest.mark.parametrize("drawn", [small, nested])
@pytest.mark.parametrize("seed", seeds(10))
@without_limits()
def test_the_engine_finds_in_them_what_the_oracle_finds(seed: int, drawn: Drawn) -> None:
    results = [
        scenario.name
        for scenario, subject in accepted(drawn(seed, 150))
        if answer(subject, scenario) != oracle_answer(subject, scenario)
    ]
    assert results == []


def test_small_scenarios_have_what_they_are_drawn_for() -> None:
    often = Counter(feature for draft in small(3, COUNT) for feature in features(draft))
    crowded = ("notNext", "notFollowedBy", "group", "optional", "until", "greedy", "skip-past_last", "skip-to_first")
    assert all(often[feature] >= COUNT / 20 for feature in (*crowded, "within-first_last", "within-prev_curr")), often


@without_limits()
def test_nested_scenarios_have_groups_in_groups_that_match() -> None:
    drawn = nested(3, COUNT)
    assert sum("nested-group" in features(draft) for draft in drawn) > COUNT / 2
    answers = [answer(subject, scenario) for scenario, subject in accepted(drawn)]
    assert sum(bool(one.matches) for one in answers) > len(answers) / 3


def test_the_richest_have_the_features_that_are_seldom() -> None:
    drafts = small(5, COUNT)
    often = Counter(feature for one in drafts for feature in features(one))
    chosen = richest(drafts, COUNT // 10)
    assert len(chosen) == COUNT // 10
    assert chosen == [one for one in drafts if one in chosen]
    seldom = [feature for feature, count in often.items() if count < COUNT / 5]
    among = Counter(feature for one in chosen for feature in features(one))
    assert sum(among[f] for f in seldom) / len(chosen) > 1.5 * sum(often[f] for f in seldom) / COUNT
