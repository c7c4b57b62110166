"""The one JSON form of an alert."""

from __future__ import annotations

import json

from cep.engine.alerts import ALERT_SCHEMA
from cep.sinks.json_form import json_lines
from tests.sinks.alerts import alert_table


def test_an_alert_in_full() -> None:
    (line,) = json_lines(alert_table(1, 1))
    assert line == (
        b'{"alert_id":"a1","rule_id":"card_testing","version":2,"epoch":5,"status":"live","severity":"high",'
        b'"priority":10,"score":80,"kind":"match","key":"c1","message":"Card c1: 3 probes",'
        b'"description":"Small declines, then a large approval.",'
        b'"measures":{"probes":3,"amount":"900.00"},'
        b'"events":[{"variable":"hit","event_id":"t1","event_time":"2026-03-01T00:00:01.500Z"}],'
        b'"match_start":"2026-03-01T00:00:00.000Z","match_end":"2026-03-01T00:00:01.500Z",'
        b'"detected_at":"2026-03-01T00:00:01.500Z","content_hash":"ff"}'
    )


def test_order_and_count_are_the_tables() -> None:
    ids = [json.loads(line)["alert_id"] for line in json_lines(alert_table(0, 2_500))]
    assert ids == [f"a{number}" for number in range(2_500)]


def test_no_alerts_no_lines() -> None:
    assert list(json_lines(ALERT_SCHEMA.empty_table())) == []
