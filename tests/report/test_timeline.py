"""An alert drawn over time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import vl_convert

from cep.report.timeline import timeline, timeline_spec

SVG = "{http://www.w3.org/2000/svg}"
START = datetime(2026, 3, 1, tzinfo=UTC)


def alert(*times_s: float, detected_s: float) -> dict[str, Any]:
    events = [
        {"variable": f"v{n % 2}", "event_id": f"e{n}", "event_time": START + timedelta(seconds=s)}
        for n, s in enumerate(times_s)
    ]
    return {"rule_id": "r", "message": "a & b", "events": events, "detected_at": START + timedelta(seconds=detected_s)}


def test_each_event_stands_at_its_time_on_the_line_of_its_variable() -> None:
    drawing = ET.fromstring(timeline(alert(0, 30, 60, detected_s=60)))
    circles = drawing.findall(f".//{SVG}circle")
    assert [circle.find(f"{SVG}title").text for circle in circles] == [  # type: ignore[union-attr]
        "e0 at 2026-03-01 00:00:00", "e2 at 2026-03-01 00:01:00", "e1 at 2026-03-01 00:00:30",
    ]  # fmt: skip
    first, right, middle = (int(circle.get("cx", "")) for circle in circles)
    assert (first + right) // 2 == middle
    assert len({circle.get("cy") for circle in circles}) == 2


def test_the_chart_has_what_the_picture_has() -> None:
    spec = timeline_spec(alert(0, 30, 60, detected_s=60))
    events, detected = spec["layer"]
    assert [(row["variable"], row["event"], row["time"]) for row in events["data"]["values"]] == [
        ("v0", "e0", "2026-03-01T00:00:00+00:00"), ("v1", "e1", "2026-03-01T00:00:30+00:00"),
        ("v0", "e2", "2026-03-01T00:01:00+00:00"),
    ]  # fmt: skip
    assert detected["data"]["values"] == [{"time": "2026-03-01T00:01:00+00:00"}]
    drawing = ET.fromstring(vl_convert.vegalite_to_svg(spec))
    texts = {text.text for text in drawing.iter(f"{SVG}text")}
    assert {"v0", "v1", "r: a & b"} <= texts


@pytest.mark.parametrize(
    ("span_s", "last"), [(0.25, "+0.25 s"), (90, "+1 min 30 s"), (7_200, "+2 h"), (200_000, "+2 d 7 h")]
)
def test_the_axis_ends_with_the_span(span_s: float, last: str) -> None:
    drawing = ET.fromstring(timeline(alert(0, span_s, detected_s=span_s)))
    assert [text.text for text in drawing.findall(f"{SVG}text")][-1] == last


def test_an_alert_of_one_moment() -> None:
    drawing = ET.fromstring(timeline(alert(5, detected_s=5)))
    assert [text.text for text in drawing.findall(f"{SVG}text")][-1] == "2026-03-01 00:00:05"
