"""A line that is not an alert is refused, and the message names the wrong field."""

from __future__ import annotations

from typing import Any

import pytest

from cep.cli.alert_shape import checked_alert

FIELDS = ("rule_id", "version", "events", "detected_at")
GOOD = {"rule_id": "a", "version": 1, "events": [{"event_id": "e"}], "detected_at": "2026-03-01T10:00:00Z", "more": []}


def test_an_alert_is_returned_as_it_is() -> None:
    assert checked_alert(GOOD, FIELDS) is GOOD


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("value", [None, 1.5, True, {}, [1], [{}], [{"event_id": 1}]])
def test_a_field_of_another_shape_is_named(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"`{field}` is not"):
        checked_alert({**GOOD, field: value}, FIELDS)
    with pytest.raises(ValueError, match=f"`{field}` is missing"):
        checked_alert({name: good_value for name, good_value in GOOD.items() if name != field}, FIELDS)


@pytest.mark.parametrize("value", [None, 1, "alert", [GOOD]])
def test_what_is_no_object_is_no_alert(value: Any) -> None:
    with pytest.raises(ValueError, match="no object"):
        checked_alert(value, FIELDS)
