"""Recorded answers of the library → verdicts: differences under a skip strategy that are proven, and unproven ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.compare import Verdict
from tests.fuzz.examine import Finding, examine
from tests.fuzz.strategy import beginnings, prove

Json = Any

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
