"""Explanations in words of a run's end: one planted case for each way in which a wait can end."""

from __future__ import annotations

import pytest

from cep.testing.explain import Explainer
from cep.testing.report import clock
from tests.testing.common import verdict_of


def story(pattern: str, events: str, header: str = "pattern p by card") -> list[str]:
    """Return the lines for the key c1."""
    verdict = verdict_of(pattern, f"c1: {events} expect matches 0", header=header)
    return Explainer(verdict.traces["c1"], clock).lines()


WHERE = "where a: pay amount < 10  b: pay amount > 100"


@pytest.mark.parametrize(
    ("pattern", "events", "lines"),
    [
        pytest.param(
            f"seq a -> b within 5 min {WHERE}",
            "0s pay amount=1  1m pay amount=99.99",
            [
                "a 0 s · then waited for b",
                "  1 min e00002 is no b: amount > 100.00 is not true (amount = 99.99)",
                "  the window was over at 5 min (within 5 min)",
            ],
            id="a condition that does not hold",
        ),
        pytest.param(
            f"seq a -> b {WHERE} and note == a.note",
            "0s pay amount=1  1m pay amount=200",
            [
                "a 0 s · then waited for b",
                "  1 min e00002 is no b: note == a.note is not known (note = null, a.note = null)",
                "  nothing more came",
            ],
            id="a condition on null",
        ),
        pytest.param(
            f"seq a, !b {WHERE}",
            "0s pay amount=1",
            ["a 0 s · match at the end of the events"],
            id="an absence that only the end makes certain",
        ),
        pytest.param(
            f"seq a, b {WHERE}",
            "0s pay amount=1  1m pay amount=50  2m pay amount=200",
            [
                "a 0 s · then waited for b",
                "  1 min e00002 is no b: amount > 100.00 is not true (amount = 50.00)",
                "  b had to be the very next event",
            ],
            id="the next event does not fit",
        ),
        pytest.param(
            f"seq a, b {WHERE} over all",
            "0s pay amount=1  1m login  2m pay amount=200",
            ["a 0 s · then waited for b", "  b had to be the very next event, which was e00002 at 1 min"],
            id="the next event is of another type",
        ),
        pytest.param(
            f"seq a ->[1 min] b within 1 h {WHERE}",
            "0s pay amount=1  1m pay amount=200",
            [
                "a 0 s · then waited for b",
                "  the time for the step to b was up at 1 min (less than 1 min)",
                "  e00002 at 1 min is b, 0 s too late",
            ],
            id="the time of a step",
        ),
        pytest.param(
            f"seq a, b within 5 min {WHERE}",
            "0s pay amount=1  7m pay amount=200",
            [
                "a 0 s · then waited for b",
                "  the window was over at 5 min (within 5 min)",
                "  e00002 at 7 min is b, 2 min too late",
            ],
            id="an event after the window",
        ),
        pytest.param(
            f"seq a -> !n -> b {WHERE} n: pay ok == true",
            "0s pay amount=1  1m pay amount=50 ok=true  2m pay amount=200",
            [
                "a 0 s · then waited for b",
                "  1 min e00002 is no b: amount > 100.00 is not true (amount = 50.00)",
                "  e00002 at 1 min is n, which must not come (ok = true)",
            ],
            id="an absence in the middle",
        ),
        pytest.param(
            "seq a -> !n within 5 min where a: pay amount < 10  n: login",
            "0s pay amount=1  1m login",
            ["a 0 s · then waited for no n", "  e00002 at 1 min is n, which must not come"],
            id="an absence at the end",
        ),
        pytest.param(
            "seq a+ greedy, b where a: pay amount < 100  b: pay amount > 50",
            "0s pay amount=1  1m pay amount=75",
            [
                "a 0 s, 1 min · then waited for another a or b",
                "  nothing more came",
            ],
            id="a greedy loop goes on",
        ),
        pytest.param(
            "seq a+ until (ok == true) -> b within 5 min where a: pay amount < 10  b: pay amount > 100",
            "0s pay amount=1  1m pay amount=50 ok=true",
            [
                "a 0 s · then waited for another a or b",
                "  1 min e00002 is no b: amount > 100.00 is not true (amount = 50.00)",
                "  e00002 at 1 min stopped the loop",
                "  the window was over at 5 min (within 5 min)",
            ],
            id="until",
        ),
        pytest.param(
            "seq a{3} -> b where a: pay amount < 10  b: pay amount > 100",
            "0s pay amount=1  1m pay amount=2  2m pay amount=200",
            [
                "a 0 s, 1 min · then waited for another a",
                "  b is waited for after 3 a, there were 2",
                "  2 min e00003 is no a: amount < 10.00 is not true (amount = 200.00)",
                "  nothing more came",
            ],
            id="a loop that is too short",
        ),
        pytest.param(
            f"seq a -> b within 3 events {WHERE}",
            "0s pay amount=1  1m pay amount=50 x3 every 1m",
            [
                "a 0 s · then waited for b",
                "  2 min e00003 is no b: amount > 100.00 is not true (amount = 50.00)",
                "  the window of 3 events was over at 3 min",
            ],
            id="a window in events",
        ),
        pytest.param(
            f"seq a -> b {WHERE}",
            "0s pay amount=200",
            ["no run started", "  0 s e00001 is no a: amount < 10.00 is not true (amount = 200.00)"],
            id="no event starts a run",
        ),
        pytest.param(
            f"seq a -> b {WHERE}", "0s login", ["no run started: no event is a pay"], id="events of other types"
        ),
    ],
)
def test_what_stopped_a_run(pattern: str, events: str, lines: list[str]) -> None:
    assert story(pattern, events)[: len(lines)] == lines


def test_a_match_covers_others() -> None:
    verdict = verdict_of(
        f"seq a -> b ->> c {WHERE} c: pay ok == true skip to next", "c1: 0s pay amount=1 expect matches 0"
    )
    assert verdict.traces["c1"].emitted() == []
    verdict = verdict_of(
        f"seq a -> b {WHERE} skip past last", "c1: 0s pay amount=1 1s pay amount=2 2s pay amount=200 expect match"
    )
    explainer = Explainer(verdict.traces["c1"], clock)
    assert [s.reached for s in explainer.furthest()] == [
        "a 0 s → b 2 s · match at 2 s",
        "a 1 s → b 2 s · then nothing more",
    ]
    assert explainer.furthest()[1].reasons == ("the match at 2 s covers it (skip past last)",)


def test_long_runs_and_many_runs_are_cut() -> None:
    lines = story(f"seq a+ -> b within 1 h {WHERE}", "0s pay amount=1 x20 every 1s")
    assert lines[0] == "a 0 s, 1 s, … 19 s (20 events) · then waited for another a or b"
    assert lines[-1] == "and 17 more runs that came less far"


def test_the_path_of_a_match() -> None:
    verdict = verdict_of(
        """seq a -> b where a: pay amount < 10  b: pay amount > 10 * a.amount and kind == web
           emit s = a.amount + b.amount""",
        "c1: 0s pay amount=1 2s pay amount=200 kind=web expect match",
    )
    explainer = Explainer(verdict.traces["c1"], clock)
    (match,) = verdict.traces["c1"].emitted()
    assert explainer.path(match.run) == [
        ("0 s", "e00001", "a", "amount = 1.00"),
        ("2 s", "e00002", "b", "amount = 200.00, 10 * a.amount = 10.00, kind = web"),
    ]
    assert explainer.measures(match.run) == [("s", "201.00")]
