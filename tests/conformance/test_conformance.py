"""Scenarios with the answers of the real Flink CEP, through the language and the engine."""

import gzip
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from cep.base.errors import UsageError
from tests.conformance.__main__ import main
from tests.conformance.compare import Disagreement, Outcome, Verdict, run_scenario
from tests.conformance.differences import REASONS, known_differences
from tests.conformance.judge import difference_lines, headline, is_clean, judge, summary
from tests.conformance.run import answer, check_pattern, deliveries
from tests.conformance.scenario import Scenario, read_scenarios, scenario_of
from tests.conformance.shared_differences import DIFFERENCES, NO_ANSWER
from tests.conformance.structure import UntranslatableError, pattern_text
from tests.output_of import OutputOf

HERE = Path(__file__).resolve().parent
ARGUED = HERE.parents[1] / "cep" / "docs" / "inside"
# The scenarios that several projects share lie next to the repository; a checkout without them has its own few.
SHARED = HERE.parents[1].parent / "shared" / "conformance"
OWN = HERE / "scenarios.json"
SCENARIOS = [scenario for path in sorted(SHARED.glob("*.json*")) for scenario in read_scenarios(path)]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_shared_scenario(scenario: Scenario) -> None:
    outcome = judge(scenario)
    verdict = Verdict.NO_ANSWER if scenario.name in NO_ANSWER else Verdict.PASS
    expected = Verdict.DIFFERS if scenario.name in DIFFERENCES else verdict
    report = "\n".join([headline(outcome), *difference_lines(outcome)])
    assert (outcome.verdict, outcome.numbers) == (expected, DIFFERENCES.get(scenario.name, ())), report


@pytest.mark.parametrize("scenario", read_scenarios(OWN), ids=lambda scenario: scenario.name)
def test_a_scenario_of_our_own(scenario: Scenario) -> None:
    outcome = judge(scenario)
    named = scenario.name.partition(":")[0].removeprefix("#")
    numbers = (int(named),) if named.isdigit() else ()
    assert (outcome.verdict, outcome.numbers) == (Verdict.DIFFERS if numbers else Verdict.PASS, numbers)


# ----------------------------------------------------------------------------------------------------- by hand


def stage(name: str, link: str | None = None, **more: Any) -> dict[str, Any]:
    letter = {"op": "==", "l": {"f": "name"}, "r": name[0]}
    return {"name": name, "where": letter, **({"link": link} if link else {}), **more}


def scenario(stages: list[dict[str, Any]], events: str, **more: Any) -> Scenario:
    """Return a scenario with events such as `a@1 b@2`, of one key; the peer's answer is empty without `matches`."""
    matches = more.pop("matches", [])
    expected = {"matches": matches, "match_ts": more.pop("times", [0] * len(matches)), "timeouts": []}
    listed = [
        {"id": place, "key": "k", "ts": int(word.partition("@")[2]), "f": {"name": word[0]}}
        for place, word in enumerate(events.split())
    ]
    raw = {"name": "by hand", "pattern": stages, "events": listed, "expected": expected, **more}
    return scenario_of(raw, "by hand")


def text_of(stages: list[dict[str, Any]], **more: Any) -> str:
    """Return the text after `seq`."""
    lines = pattern_text(scenario(stages, "a@1", **more)).text.splitlines()
    return next(line.removeprefix("  seq    ") for line in lines if line.startswith("  seq"))


def test_structures() -> None:
    a, b, c = stage("a"), stage("b", "followedBy"), stage("c", "next")
    assert text_of([a, b, c]) == "a -> b, c"
    greedy = stage("b", "followedByAny", times=[1, None], greedy=True)
    assert text_of([a, greedy, c]) == "a ->> b+ greedy, c"
    assert text_of([a, greedy]) == "a ->> b+", "the library ignores greed at the end, the language refuses it"
    assert text_of([a, stage("b", "notFollowedBy"), c]) == "a -> !b, c"
    assert text_of([a, stage("b", "followedBy", times=[2, 3], inner="combinations")]) == "a -> b{2,3} any"
    assert text_of([a, stage("b", "followedBy", times=[1, 3], optional=True)]) == "a -> b{0,3}"
    assert text_of([a, stage("b", "followedBy", times=[2, 2], optional=True)]) == "a -> (b{2})?"
    stop = {"op": "==", "l": {"f": "name"}, "r": "x"}
    assert text_of([stage("a", times=[2, None], until=stop), c]) == 'a{2,} until (name == "x"), c'
    assert text_of([{"group": [a, b], "times": [1, None], "inner": "consecutive"}, c]) == "(a -> b)+ strict, c"


def test_windows() -> None:
    a, whole = stage("a"), {"ms": 9, "type": "first_last"}
    step = {"ms": 4, "type": "prev_curr"}
    assert text_of([a, stage("b", "next")], within=whole) == "a, b  within 9 ms"
    assert text_of([a, stage("b", "next")], within=step) == "a,[4 ms] b"
    assert text_of([a, stage("b", "next", within=step)], within={"ms": 0, "type": "first_last"}) == "a,[4 ms] b"
    assert text_of([stage("a", within=step), stage("b", "next")]) == "a, b"
    assert text_of([a, stage("b", "next", within=whole), stage("c", "next")]) == "a, b, c  within 9 ms"
    assert text_of([a, {"link": "next", "group": [stage("b", within=whole)]}]) == "a, (b  within 9 ms)"
    assert text_of([a, stage("b", "notFollowedBy", within=step), stage("c", "next")]) == "a -> !b, c"
    assert text_of([a, stage("b", "notFollowedBy")], within=step) == "a ->[4 ms] !b"


def test_conditions() -> None:
    def condition(where: Any) -> str:
        lines = pattern_text(scenario([{"name": "a", "where": where, "times": [1, None]}], "a@1")).text.splitlines()
        return next(line for line in lines if line.startswith("  where")).removeprefix("  where  a: record").strip()

    name, price = {"f": "name"}, {"f": "price"}
    is_a = {"op": "==", "l": name, "r": "a"}
    last = {"agg": "last", "stage": "a", "f": "price"}
    assert condition(True) == ""
    assert condition({"and": [is_a, {"or": [is_a, {"not": is_a}]}]}) == (
        'name == "a" and (name == "a" or not name == "a")'
    )
    assert condition({"not": {"op": ">", "l": price, "r": last}}) == (
        "not (if price > last(a).price then true else false)"
    )
    assert condition({"op": "<", "l": {"mul": [{"add": [price, 1]}, 2.5]}, "r": {"abs": last}}) == (
        "(price + 1) * 2.5 < abs(last(a).price)"
    )
    assert condition({"op": "in", "l": name, "r": ['"', 3]}) == 'name in ["\\""]'
    assert condition({"op": "!=", "l": name, "r": 3}) == ""
    assert condition({"op": "!=", "l": price, "r": "x"}) == "price is not null"
    assert condition({"op": "==", "l": {"agg": "sum", "stage": "z", "f": "price"}, "r": 0}) == "0 == 0"
    assert condition({"op": "==", "l": {"agg": "max", "stage": "z", "f": "price"}, "r": 0}) == "false"
    assert condition({"op": "startswith", "l": name, "r": "a"}) == 'starts_with(name, "a")'


@pytest.mark.parametrize(
    ("stages", "reason"),
    [
        ([{"name": "a", "where": {"op": "<", "l": {"f": "name"}, "r": "b"}}], "order among values of type string"),
        ([{"name": "a", "where": {"op": "~", "l": {"f": "name"}, "r": "b"}}], "the operator '~'"),
        ([stage("a"), stage("b", "sometimes")], "the link 'sometimes'"),
    ],
)
def test_what_has_no_word(stages: list[dict[str, Any]], reason: str) -> None:
    case = scenario(stages, "a@1")
    with pytest.raises(UntranslatableError, match=reason):
        pattern_text(case)
    outcome = judge(case)
    assert (outcome.verdict, outcome.reason) == (Verdict.UNSUPPORTED, f"no word for {reason}")
    assert not is_clean([outcome])


def test_late_events_are_dropped_and_early_ones_wait() -> None:
    case = scenario([stage("a")], "a@5 a@3 a@9 a@4 a@9", watermarks=[[2, 4]])
    released = [([event.id for _, event in events], watermark_ms) for events, watermark_ms in deliveries(case)]
    assert released[0] == ([1], 4)
    assert released[1][0] == [0, 2, 4]


def test_a_disagreement_is_told_apart() -> None:
    stages = [stage("a"), stage("b", "followedBy")]
    failed = judge(scenario(stages, "a@1 b@2 b@3", matches=[{"a": [0], "b": [2]}], times=[3]))
    assert failed.verdict is Verdict.FAIL
    assert difference_lines(failed) == ["- match     a 0  b 2", "+ match     a 0  b 1"]
    late = judge(scenario(stages, "a@1 b@2", matches=[{"a": [0], "b": [1]}], times=[7]))
    assert difference_lines(late) == ["~ match     a 0  b 1  at 7 with the peer, 2 here"]
    assert not is_clean([failed, late])
    assert summary([failed, late]) == [("fail", 2), ("scenarios", 2)]


def test_a_difference_explains_only_what_fits_its_shape() -> None:
    greedy = stage("b", "followedBy", times=[1, 2], greedy=True)
    case = scenario([stage("a"), greedy, stage("c", "followedBy")], "a@1 b@2 b@3 b@4 c@5")
    assert judge(case).numbers == (5,)
    short = Disagreement(extra=frozenset({(("a", (0,)), ("b", (1,)), ("c", (4,)))}))
    assert known_differences(case, short) == ()


def test_a_forgotten_absence_needs_a_forbidden_event() -> None:
    """17: it comes after the first bound event; for a remembered absence, after the event that ended the wait."""
    group = {"link": "followedBy", "group": [stage("d")], "optional": True}
    case = scenario([stage("a"), stage("b", "notFollowedBy"), group, stage("c", "followedBy")], "b@1 a@2 b@3 d@4 c@5")
    whole, without = (("a", (1,)), ("c", (4,)), ("d", (3,))), (("a", (1,)), ("c", (4,)))
    assert known_differences(case, Disagreement(missing=frozenset({whole, without}))) == (17,)
    assert known_differences(case, Disagreement(extra=frozenset({whole}))) == ()
    before = scenario(list(case.stages), "b@1 a@2 d@4 c@5")
    assert known_differences(before, Disagreement(missing=frozenset({(("a", (1,)), ("c", (3,)))}))) == ()


def test_a_loop_that_begins_what_may_be_left_out_forgets_the_absence_behind_it() -> None:
    """17: from the second repetition on, once an event is skipped; also if the loop is unbounded."""

    def numbers(least: int, *, optional: bool, events: str = "p@1 b@2 x@3 n@4 b@5 c@6") -> tuple[int, ...]:
        absence, last = stage("n", "notFollowedBy"), stage("c", "followedBy")
        group = {"link": "followedBy", "group": [stage("b", times=[least, None]), absence, last], "optional": optional}
        case = scenario([stage("p"), group], events)
        return known_differences(case, Disagreement(missing=frozenset({(("p", (0,)), ("b", (1, 4)), ("c", (5,)))})))

    assert numbers(2, optional=True) == (17,)
    assert numbers(2, optional=True, events="p@1 b@2 x@3 y@4 b@5 c@6") == ()
    assert numbers(2, optional=False) == numbers(1, optional=True) == ()


def test_greed_behind_a_round_is_forgotten_only_of_what_came_between() -> None:
    """13: we lack a match without the loop, if one of its events came between the group and the next stage."""
    loop, c = stage("b", "followedBy", times=[1, None], optional=True, greedy=True), stage("c", "followedBy")
    round_ = {"group": [stage("a")], "times": [1, None]}
    without, with_loop = (("a", (1,)), ("c", (4,))), (("a", (1,)), ("b", (2,)), ("c", (4,)))
    apart = (("a", (1,)), ("c", (4,)), ("d", (3,)))

    def numbers(stages: list[dict[str, Any]], events: str, *missing: Any) -> tuple[int, ...]:
        return known_differences(scenario(stages, events), Disagreement(missing=frozenset(missing)))

    came, early = "b@1 a@2 b@3 d@4 c@5 b@6", "b@1 a@2 d@3 d@4 c@5 b@6"
    assert numbers([round_, loop, c], came, without) == (13,)
    assert numbers([round_, loop, c], early, without) == ()
    assert numbers([round_, loop, c], came, without, with_loop) == ()
    assert known_differences(scenario([round_, loop, c], came), Disagreement(extra=frozenset({without}))) == ()
    assert numbers([round_, stage("d", "followedBy", optional=True), loop, c], came, apart) == ()
    assert numbers([round_, {**loop, "greedy": False}, c], came, without) == ()
    opens_empty = [stage("d", optional=True), stage("a", "followedBy")]
    for other in ({**round_, "times": [2, 2]}, {**round_, "inner": "consecutive"}, {**round_, "group": opens_empty}):
        assert numbers([other, loop, c], came, without) == ()
    last = {"group": [{**round_, "times": [2, 2]}, {"link": "next", **round_}]}
    assert numbers([last, loop, c], came, without) == (13,)
    first = stage("b", times=[1, None], optional=True, greedy=True)
    rounds = {"group": [first, {"link": "followedBy", **round_}], "times": [2, None]}
    assert numbers([rounds, c], "a@1 b@2 a@3 c@4", (("a", (0, 2)), ("c", (3,)))) == (13,)
    assert numbers([rounds, c], "a@1 d@2 a@3 c@4", (("a", (0, 2)), ("c", (3,)))) == ()


def test_a_step_time_is_over_only_where_it_was_waited_for() -> None:
    """10: in a round or a match that leaves the stage out, and from the stage to itself by a round."""
    a, c = stage("a"), stage("c", "followedBy")
    b = stage("b", "followedBy", optional=True, within={"ms": 4, "type": "prev_curr"})

    def numbers(stages: list[dict[str, Any]], events: str, missing: Any) -> tuple[int, ...]:
        return known_differences(scenario(stages, events), Disagreement(missing=frozenset({missing})))

    twice, whole = (("a", (0, 2)), ("b", (1,)), ("c", (3,))), (("a", (0, 3)), ("b", (1, 4)), ("c", (2, 5)))
    last, inside = [{"group": [a, b], "times": [2, 2]}, c], [{"group": [a, b, c], "times": [2, 2]}]
    assert numbers(last, "a@1 b@2 a@3 c@7", twice) == (10,)
    assert numbers(last, "a@1 b@2 a@3 c@6", twice) == ()
    assert numbers(last, "a@1 b@5 a@6 c@7", twice) == (10,)
    assert numbers(last, "a@1 b@2 a@7 c@8", twice) == ()
    assert numbers(inside, "a@1 b@2 c@3 a@9 b@10 c@19", whole) == ()
    assert numbers([a, b, c], "a@1 c@5", (("a", (0,)), ("c", (1,)))) == (10,)
    assert numbers([a, b, c], "a@1 c@4", (("a", (0,)), ("c", (1,)))) == ()
    step, both = {**c, "within": b["within"]}, (("a", (0,)), ("c", (1, 2)))
    assert numbers([a, {"group": [b, step], "times": [2, 2], "link": "followedBy"}], "a@1 c@2 c@6", both) == (10,)
    assert numbers([a, {**step, "times": [2, 2]}, stage("d", "followedBy")], "a@1 c@2 c@6", both) == ()


def test_a_time_out_that_both_have_earlier_is_only_repeated() -> None:
    """8: the library times out two runs with the same events; we have the first of these times."""
    stages = [stage("a"), stage("b", "followedBy", optional=True), stage("c", "followedBy")]
    expected = {"matches": [], "timeouts": [{"m": {"a": [0]}, "ts": ms} for ms in (7, 11)]}
    case = scenario(stages, "a@1 x@20", expected=expected, within={"ms": 10, "type": "first_last"})
    run = (("a", (0,)),)
    assert known_differences(case, Disagreement(missing_timeouts=frozenset({(run, 11)}))) == (8,)
    assert known_differences(case, Disagreement(missing_timeouts=frozenset({(run, 7)}))) == ()
    assert known_differences(case, Disagreement(missing_timeouts=frozenset({(run, 7), (run, 11)}))) == ()


def test_a_tie_may_be_resolved_either_way_but_not_otherwise() -> None:
    stages = [stage("a", times=[1, None], inner="combinations"), stage("b", "followedBy")]
    rival, wrong = [{"a": [0, 2], "b": [3]}], [{"a": [1, 2], "b": [3]}]
    for matches, verdict in ((rival, Verdict.PASS), (wrong, Verdict.FAIL)):
        case = scenario(
            stages, "a@1 a@2 a@3 b@4", matches=matches, times=[4], skip={"type": "past_last"}, tags=["skip-tie"]
        )
        assert run_scenario(case).verdict is verdict


def test_keys_are_apart_and_ties_keep_their_order() -> None:
    case = {
        "name": "keys",
        "pattern": [stage("a"), stage("b", "next")],
        "events": [
            {"id": 7, "key": "x", "ts": 1, "f": {"name": "a"}},
            {"id": 3, "key": "y", "ts": 1, "f": {"name": "a"}},
            {"id": 5, "key": "x", "ts": 1, "f": {"name": "b"}},
        ],
        "expected": {"matches": [{"a": [7], "b": [5]}], "match_ts": [1], "timeouts": []},
    }
    parsed = scenario_of(case, "keys")
    assert answer(check_pattern(pattern_text(parsed)), parsed) == parsed.expected


def test_files(tmp_path: Path) -> None:
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(OWN.read_bytes()))
    assert read_scenarios(packed) == read_scenarios(OWN)
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(json.loads(OWN.read_text())["scenarios"]))
    assert [s.events for s in read_scenarios(bare)] == [s.events for s in read_scenarios(OWN)]


@pytest.mark.parametrize("text", ["", "{", '{"scenario": []}', '{"scenarios": [{"pattern": []}]}', "[1]"])
def test_a_file_that_is_no_scenario_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"wrong\.json"):
        read_scenarios(path)


def test_every_number_has_a_reason_that_is_argued() -> None:
    argued = "".join(path.read_text() for path in sorted(ARGUED.glob("differences*.md")))
    assert [number for number in REASONS if f"\n**{number}." not in argued and f"\n| {number} |" not in argued] == []


def test_a_refusal_of_both_is_a_pass() -> None:
    case = scenario([stage("a", inner="consecutive")], "a@1")
    refused = scenario_of(
        {"pattern": case.stages, "events": [], "expected": {"error": "Malformed", "message": "no"}}, "refused"
    )
    outcome: Outcome = judge(refused)
    assert outcome.verdict is Verdict.PASS
    assert outcome.code


def test_the_limit_of_matches_is_a_bound_and_no_failure() -> None:
    loop = stage("a", times=[1, None], inner="combinations")
    subsets = [list(ids) for count in range(1, 10) for ids in combinations(range(9), count)]
    case = scenario(
        [loop], " ".join(f"a@{number}" for number in range(9)), matches=[{"a": ids} for ids in subsets],
        times=[ids[-1] for ids in subsets],
    )  # fmt: skip
    assert judge(case).verdict is Verdict.BOUND
    wrong = scenario(
        [{**loop, "where": {"op": "==", "l": {"f": "name"}, "r": "a"}}],
        "a@0 b@1",
        matches=[{"a": [0]}, {"a": [1]}],
        times=[0, 1],
    )
    assert judge(wrong).verdict is Verdict.FAIL


def test_passes_and_known_differences_are_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(OWN)]) == 0
    out = capsys.readouterr().out
    assert "differs (#4)" in out
    assert "names that the language reserves" not in out
    assert out.splitlines()[-1].split() == ["scenarios", str(len(json.loads(OWN.read_bytes())["scenarios"]))]


def test_shows_the_text_of_each_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(OWN), "--show", "--only", "reserves"]) == 0
    out = capsys.readouterr().out
    assert "seq    where_ -> count_+ greedy, v2nd_step" in out
    assert out.splitlines()[-1].split() == ["scenarios", "1"]


def test_a_disagreement_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (case,) = [s for s in json.loads(OWN.read_text())["scenarios"] if s["name"] == "types that differ are unequal"]
    case["expected"] = {"matches": [{"a": [11]}], "match_ts": [2], "timeouts": []}
    path = tmp_path / "changed.json.gz"
    path.write_bytes(gzip.compress(json.dumps([case]).encode()))
    assert main([str(path)]) == 1
    out = capsys.readouterr().out
    assert "fail" in out
    assert "- match     a 11" in out
    assert "+ match     a 10  b 12" in out


def test_a_missing_file_is_a_usage_error(tmp_path: Path, output_of: OutputOf) -> None:
    assert "cannot be read as scenarios" in output_of(main([str(tmp_path / "none.json")]), 2).err
