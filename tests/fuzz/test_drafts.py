"""Random scenarios have the intended features; a difference under a skip strategy is proven from recorded answers."""

import copy
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.conformance.compare import Verdict
from tests.conformance.run import RefusedError, Subject, answer, check_pattern, without_limits
from tests.conformance.scenario import Scenario, scenario_of
from tests.conformance.structure import pattern_text
from tests.fuzz.examine import Finding, examine, oracle_answer
from tests.fuzz.small import Json, features, nested, richest, small
from tests.fuzz.strategy import beginnings, prove
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


# A scenario, the answers to its beginnings and to repeated questions, and the numbers of the difference.
RECORDED: list[Json] = json.loads((Path(__file__).parent / "recorded.json").read_text())
BY_NAME = {case["given"]["name"]: case for case in RECORDED}
FLOOR = "beginnings without an answer behind a floor"
AT_ONCE = "windows that the library sees close at once"
ONE_BY_ONE = "windows that a watermark shows one after the other"


def proven(case: Json) -> Finding:
    """Return the finding after the proof; the library's recorded answers are the only ones."""
    again = {answered["name"]: answered for answered in case["again"]}

    def ask(questions: Sequence[Json]) -> list[Json]:
        return [again[question["name"]] for question in questions]

    return prove(examine(case["given"]), case["given"], case["answers"], ask)


def changed(name: str) -> Json:
    """Return a copy of a recorded case, to be changed."""
    return copy.deepcopy(BY_NAME[name])


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["given"]["name"])
def test_a_difference_is_proven(case: Json) -> None:
    assert [q["name"] for q in beginnings(case["given"])] == [one["name"] for one in case["answers"]]
    finding = proven(case)
    assert (finding.doubt, finding.bug, finding.is_open) == ("", "", False)
    assert list(finding.outcome.numbers) == case["numbers"]
    assert finding.outcome.verdict is (Verdict.DIFFERS if case["numbers"] else Verdict.PASS)


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize("part", ["matches", "timeouts"])
def test_an_answer_that_the_strategy_does_not_give_is_open(name: str, part: str) -> None:
    case = changed(name)
    expected = case["given"]["expected"]
    if expected[part]:
        expected[part].pop()
    else:
        last = case["given"]["events"][-1]
        wrong = {case["given"]["pattern"][0]["name"]: [last["id"]]}
        expected[part].append({"m": wrong, "ts": last["ts"]} if part == "timeouts" else wrong)
    expected["match_ts"] = [case["given"]["events"][-1]["ts"] for _ in expected["matches"]]
    finding = proven(case)
    assert finding.is_open
    assert "the strategy does not give the library's answer" in finding.doubt


def test_a_watermark_is_not_taken_for_another() -> None:
    """The answer under watermarks is wrong without them."""
    case = changed(AT_ONCE)
    case["given"]["expected"] = changed(ONE_BY_ONE)["given"]["expected"]
    assert proven(case).is_open


def test_a_run_of_the_library_that_nothing_explains_is_open() -> None:
    case = changed(AT_ONCE)
    case["answers"][0]["expected"]["matches"] = [{"a": [0], "b": [0]}]
    case["answers"][0]["expected"]["match_ts"] = [1]
    assert "from 0 to 0: fail" in proven(case).doubt


def test_what_the_library_does_not_answer_is_open() -> None:
    without_floor = changed(FLOOR)
    without_floor["answers"][0]["expected"] = {"error": "Hang", "message": ""}
    assert "does not answer" in proven(without_floor).doubt
    still = changed(FLOOR)
    for answered in still["again"]:
        answered["expected"] = {"error": "TooMany", "message": ""}
    assert "does not answer" in proven(still).doubt
