"""Step 9: the alerts that go out, and how long the alerts before them are remembered."""

from __future__ import annotations

import orjson

from cep.base.limits import TIME_MS_MIN
from cep.engine.alerts import NO_ALERTS
from cep.rulebook.suppression import NO_MEASURE, LastAlerts, Policies
from cep.step.suppress import filter_alerts
from tests.rulebook.test_suppression import alert, table

POLICIES = Policies({("a", 1): (None, 1_000)})


def test_9_a_suppressed_alert_is_a_line_and_is_counted() -> None:
    memory = LastAlerts()
    first = filter_alerts(table(alert(1, 5_000)), POLICIES, memory, 5_000)
    assert (first.alerts.num_rows, first.suppressed, first.counters) == (1, (), {})
    second = filter_alerts(table(alert(2, 5_400), alert(3, 6_100)), POLICIES, memory, 6_100)
    assert second.alerts["alert_id"].to_pylist() == ["0003"]
    (line,) = map(orjson.loads, second.suppressed)
    assert (line["held"], line["alert"]["alert_id"]) == ("suppressed", "0002")
    assert second.counters == {"held[suppressed@a]": 1, "alerts[a@1]": -1}


def test_9_an_alert_far_ahead_makes_nobody_forget_what_the_watermark_has_not_passed() -> None:
    """In order of arrival, a fast partition alerts before a slow one has passed the time of the alert before."""
    memory = LastAlerts()
    filter_alerts(table(alert(1, 5_000, key="slow")), POLICIES, memory, 4_000)
    filter_alerts(table(alert(2, 9_000, key="fast")), POLICIES, memory, 4_000)
    later = filter_alerts(table(alert(3, 5_500, key="slow")), POLICIES, memory, 4_000)
    assert later.counters == {"held[suppressed@a]": 1, "alerts[a@1]": -1}
    filter_alerts(table(alert(4, 9_500, key="fast")), POLICIES, memory, 9_000)
    assert list(memory.last) == [("a", "fast")], "what is over at the watermark is forgotten"


def test_9_nothing_is_remembered_or_forgotten_without_alerts() -> None:
    memory = LastAlerts({("a", "k"): (1, 1, 0, NO_MEASURE)})
    assert filter_alerts(NO_ALERTS, POLICIES, memory, 9).counters == {}
    assert memory.last == {("a", "k"): (1, 1, 0, NO_MEASURE)}
    assert memory.changed() == {}
    assert filter_alerts(table(alert(1, 5_000)), Policies(), memory, TIME_MS_MIN).counters == {}
