"""If one of its windows reaches back further, an alert says since when events are known."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random

import numpy as np
import pytest

from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.engine.advance import advance
from cep.engine.alerts import alert_table
from cep.engine.reach import history_from_ms, reaches_ms
from cep.lang.ir import HistoryWindow
from tests.engine.rules import batch, program, rule
from tests.oracle.histories import in_window  # the definition of a window, event by event
from tests.oracle.matcher import Event

DAY_MS = 86_400_000


@pytest.mark.parametrize("unit", [None, "hour", "day", "week", "month"])
def test_the_earliest_time_of_a_window_is_the_last_that_it_holds(unit: str | None) -> None:
    random = Random(f"reach {unit}")
    for _ in range(20):
        zone = random.choice(["UTC", "Europe/Paris"])
        length_ms = random.randint(1, 3 * DAY_MS) if unit is None else None
        window = HistoryWindow(length_ms, unit, zone, previous=random.random() < 0.5)  # type: ignore[arg-type]
        now_ms = random.randint(1_700_000_000_000, 1_710_000_000_000)
        (first_ms,) = reaches_ms([window], np.array([now_ms])).tolist()
        now = Event("now", "e", now_ms, 2, {})
        before = [Event("then", "e", time_ms, 1, {}) for time_ms in (first_ms - 1, first_ms)]
        assert [in_window(window, event, now) for event in before] == [False, first_ms < now_ms or not window.previous]


def test_the_longest_window_decides_and_a_job_that_does_not_know_says_nothing() -> None:
    windows = [HistoryWindow(10, None, previous=False), HistoryWindow(100, None, previous=True)]
    times = np.array([1_050, 1_098, 1_099, 1_100])
    assert history_from_ms(windows, times, 1_000).tolist() == [1_000, 1_000, TIME_MS_MIN, TIME_MS_MIN]
    assert (history_from_ms(windows, times, TIME_MS_MIN) == TIME_MS_MIN).all()
    assert (history_from_ms([], times, 1_000) == TIME_MS_MIN).all()
    assert (history_from_ms([windows[0], None], times, 1_000) == 1_000).all(), "all of the past"


def test_an_alert_has_it_and_a_condition_on_all_of_the_past_always() -> None:
    text = "seq a\nwhere a: e count(e over 10 ms) >= 1\nskip none"
    lasting = "seq a\nwhere a: e not exists(e) or last(e).kind == a\nskip none"
    compiled = program(rule(text), rule(lasting, "l"), rule("seq a\nwhere a: e\nskip none", "n"))
    events = batch("x a@100", "x a@105", "x a@109", "x a@110")
    matches = advance(compiled, None, events, TIME_MS_MAX).matches
    records = alert_table(compiled, matches, 100).to_pylist()
    since = datetime.fromtimestamp(0.1, UTC)
    known_from = {(a["rule_id"], a["events"][0]["event_id"]): a["history_from"] for a in records}
    assert known_from == {
        **{("r", f"e{i}"): since if i < 2 else None for i in range(4)},
        **{("l", f"e{i}"): since for i in range(4)},
        **{("n", f"e{i}"): None for i in range(4)},
    }
    assert all(a["history_from"] is None for a in alert_table(compiled, matches).to_pylist())
