"""Alerts gained and lost, precision and recall."""

from __future__ import annotations

from cep.rulebook.compare import compare, quality
from tests.rulebook.test_suppression import alert, table


def test_versions_do_not_make_a_difference_and_events_do() -> None:
    before = table(alert(1, 1_000), alert(2, 2_000), alert(3, 3_000, key="d"))
    after = table(alert(7, 1_000, version=2), alert(8, 2_000, version=2, last="another"))
    found = compare(before, after)
    assert found.kept_count == 1
    assert [a["alert_id"] for a in found.gained] == ["0008"]
    assert [a["alert_id"] for a in found.lost] == ["0002", "0003"]


def test_quality_by_labels() -> None:
    alerts = table(alert(1, 1_000, last="bad"), alert(2, 2_000, last="good"), alert(3, 3_000, last="bad"))
    found = quality(alerts, {"bad", "missed"})
    assert (found.precision, found.recall) == (2 / 3, 1 / 2)
    nothing = quality(table(), set())
    assert (nothing.precision, nothing.recall) == (None, None)
