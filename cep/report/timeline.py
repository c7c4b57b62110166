"""An alert → its events over time, a line for each variable: as an SVG picture, or as a chart in Vega-Lite.

Tested by: tests/report/test_plan.py
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.sax.saxutils import escape

_WIDTH, _LANE, _TOP, _BOTTOM = 760, 34, 56, 34
_LEFT, _RIGHT = 130, 60
_TICKS = 5
_EVENTS_MAX = 500  # more points than a picture of this width can tell apart
_COLORS = ("#35507a", "#b3541e", "#2c6e2c", "#7a3574", "#8a6d00", "#1b7a7a")
_STYLE = """\
text { font: 12px sans-serif; fill: #222 }
.title { font-size: 14px; font-weight: bold }
.alert { stroke: #b00; stroke-dasharray: 4 3 }
.time { font-size: 11px; fill: #666 }
.lane { stroke: #d8dee8 }
"""


def timeline(alert: Mapping[str, Any]) -> str:
    """Draw an alert, a row of the alert table, as an SVG time line with one lane per variable."""
    events = [event for event in alert["events"] if event["event_time"] is not None][:_EVENTS_MAX]
    variables = list(dict.fromkeys(event["variable"] for event in events))
    times = [*(event["event_time"] for event in events), alert["detected_at"]]
    first, last = min(times), max(times)
    height = _TOP + _LANE * len(variables) + _BOTTOM
    title = f"{alert['rule_id']}: {alert['message']}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text class="title" x="12" y="22">{escape(_cut(title))}</text>',
    ]
    for number, variable in enumerate(variables):
        y = _TOP + _LANE * number + _LANE // 2
        color = _COLORS[number % len(_COLORS)]
        parts.append(f'<line class="lane" x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}"/>')
        parts.append(f'<text x="12" y="{y + 4}">{escape(_cut(variable, 16))}</text>')
        points = [event for event in events if event["variable"] == variable]
        parts += [_point(event, _x(event["event_time"], first, last), y, color) for event in points]
    return "\n".join([*parts, *_axis(first, last, alert["detected_at"], height), "</svg>"]) + "\n"


def timeline_spec(alert: Mapping[str, Any]) -> dict[str, Any]:
    """Return the time line of an alert as a Vega-Lite specification, to change or to save."""
    events = [event for event in alert["events"] if event["event_time"] is not None][:_EVENTS_MAX]
    rows = [
        {"variable": event["variable"], "event": event["event_id"], "time": _utc(event["event_time"])}
        for event in events
    ]
    variables = list(dict.fromkeys(row["variable"] for row in rows))
    time = {"field": "time", "type": "temporal", "scale": {"type": "utc"}, "title": "event time (UTC)"}
    lane = {"field": "variable", "type": "nominal", "sort": variables, "title": None}
    color = {**lane, "scale": {"domain": variables, "range": list(_COLORS)}, "legend": None}
    events_layer = {
        "data": {"values": rows},
        "mark": {"type": "point", "filled": True, "size": 80, "tooltip": {"content": "data"}},
        "encoding": {"x": time, "y": lane, "color": color},
    }
    alert_layer = {
        "data": {"values": [{"time": _utc(alert["detected_at"])}]},
        "mark": {"type": "rule", "color": "#b00", "strokeDash": [4, 3]},
        "encoding": {"x": time},
    }
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": _cut(f"{alert['rule_id']}: {alert['message']}"),
        "width": _WIDTH - _LEFT - _RIGHT,
        "layer": [events_layer, alert_layer],
    }


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat()


def _point(event: Mapping[str, Any], x: int, y: int, color: str) -> str:
    title = escape(f"{event['event_id']} at {_time(event['event_time'])}")
    return f'<circle cx="{x}" cy="{y}" r="5" fill="{color}" fill-opacity="0.8"><title>{title}</title></circle>'


def _axis(first: datetime, last: datetime, detected: datetime, height: int) -> list[str]:
    """Draw the line of the alert, and the times below the lanes."""
    alert_x, y = _x(detected, first, last), height - _BOTTOM + 18
    parts = [
        f'<line class="alert" x1="{alert_x}" y1="{_TOP - 12}" x2="{alert_x}" y2="{height - _BOTTOM + 4}"/>',
        f'<text class="time" text-anchor="middle" x="{alert_x}" y="{_TOP - 16}">alert</text>',
    ]
    if first == last:
        return [*parts, f'<text class="time" text-anchor="middle" x="{alert_x}" y="{y}">{_time(first)}</text>']
    for number in range(_TICKS):
        moment = first + (last - first) * number / (_TICKS - 1)
        x = _x(moment, first, last)
        text = _time(moment) if number == 0 else f"+{_span(moment - first)}"
        parts.append(f'<text class="time" text-anchor="middle" x="{x}" y="{y}">{text}</text>')
    return parts


def _x(moment: datetime, first: datetime, last: datetime) -> int:
    share = (moment - first) / (last - first) if last > first else 0.5
    return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT))


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _span(span: timedelta) -> str:
    """Write a span with its two largest units."""
    seconds = round(span.total_seconds())
    for unit, size, smaller, part in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{span.total_seconds():.3g} s"


def _cut(text: str, chars: int = 96) -> str:
    return text if len(text) <= chars else text[: chars - 1] + "…"
