"""Alerts gained and lost."""

from __future__ import annotations

from cep.rulebook.difference import compare
from tests.rulebook.test_suppression import alert, table


def test_versions_do_not_make_a_difference_and_events_do() -> None:
    before = table(alert(1, 1_000), alert(2, 2_000), alert(3, 3_000, key="d"))
    after = table(alert(7, 1_000, version=2), alert(8, 2_000, version=2, last="another"))
    result = compare(before, after)
    assert result.kept_count == 1
    assert [a["alert_id"] for a in result.gained] == ["0008"]
    assert [a["alert_id"] for a in result.lost] == ["0002", "0003"]
