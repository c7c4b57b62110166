"""Marks of keys: a job that is cut anywhere marks the alerts that the definition marks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.rulebook.suppression import LastAlerts, Policies, fired_from_json, fired_json, mark_name
from cep.step import marks as marks_module
from cep.step.marks import Marks, joined_marks, marks_bytes, marks_from_bytes, remember_marks, with_marks
from cep.step.suppress import filter_alerts
from tests.rulebook.test_suppression import alert, table

SPAN_MS = 10
KEYS = {("a", 1): "card_id", ("b", 1): "account_id"}
POLICIES = Policies(keys=KEYS)
TIMES = st.lists(st.tuples(st.sampled_from(("card_id", "account_id")), st.sampled_from("cd"), st.integers(0, 60)))
ALERTS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("cd"), st.integers(0, 60)), min_size=1)


def marks_at(events: Iterable[tuple[str, str, int]]) -> Marks:
    """The marks of events, each with the field and the value of its key, and its time."""
    return joined_marks({(mark_name(fields), key): [time_ms]} for fields, key, time_ms in events)


def flawed_ids(alerts: pa.Table) -> set[str]:
    return {row["alert_id"] for row in alerts.to_pylist() if row["flawed"]}


@given(TIMES, ALERTS, st.lists(st.integers(0, 70), max_size=5), st.booleans())
def test_a_job_marks_what_the_definition_marks(
    events: list[tuple[str, str, int]], fired: list[tuple[str, str, int]], cuts: list[int], is_moved: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(marks_module, "MARK_MS", SPAN_MS)
        rows = [alert(n, time_ms, rule_id=rule, key=key) for n, (rule, key, time_ms) in enumerate(fired)]
        expected = {
            f"{n:04}" for n, (rule, key, time_ms) in enumerate(fired)
            if any((f, k) == (KEYS[rule, 1], key) and t <= time_ms < t + SPAN_MS for f, k, t in events)
        }  # fmt: skip
        assert flawed_ids(with_marks(table(*rows), KEYS, marks_at(events))) == expected
        memory, flawed = LastAlerts(), set[str]()
        bounds = sorted({-1, *cuts, 100})
        for first, last in pairwise(bounds):
            here = [row for row in rows if first < row["detected_at"] <= last]
            marks = marks_at(event for event in events if first < event[2] <= last)
            marks = marks_from_bytes(marks_bytes(marks))
            flawed |= flawed_ids(filter_alerts(table(*here), POLICIES, memory, last, marks).alerts)
            if is_moved:
                memory = LastAlerts(fired_from_json(fired_json(memory.last)))
        assert flawed == expected
        memory.forget(100)
        assert (memory.last, memory.marks_count) == ({}, 0)


def test_a_noisy_producer_takes_no_room_of_rules_that_suppress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks_module, "MARKS_MAX", 3)
    memory = LastAlerts()
    noise = marks_at(("card_id", f"c{number}", 5) for number in range(5))
    sent = filter_alerts(table(), POLICIES, memory, 5, noise)
    assert sent.counters == {"fired_forgotten": 2}
    assert (memory.marks_count, len(memory.last)) == (3, 3)
    assert remember_marks(memory, marks_at([("card_id", "c0", 9)])) == 0, "a key that is known keeps its mark"
