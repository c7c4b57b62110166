"""An automaton → an SVG picture. An alert → its events over time, as an SVG picture or as a chart in Vega-Lite.

States are in columns from left to right, ways to go on are curves between them. The layout is the simple form of
Sugiyama's ("Methods for visual understanding of hierarchical system structures", 1981): columns by longest path, then a
few sweeps that put a state at the mean height of its neighbours. No outside program.
Tested by: tests/report/test_report.py
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.sax import saxutils

from cep.base.text import visible
from cep.nfa.positions import Automaton
from cep.report.plan import PatternPlan, state_name, wait_text

_BOX_WIDTH, _BOX_HEIGHT = 130, 44
_COLUMN, _ROW = 330, 110
_MARGIN, _TITLE = 40, 60
_LIFT_PER_COLUMN = 110  # a way over a column passes above its boxes and their loops
_LINE = 13
_SWEEPS = 6
_LABEL_CHARS_MAX, _LABEL_LINES_MAX = 32, 4
_STYLE = """\
text { font: 13px sans-serif; fill: #222 }
.title { font-size: 16px; font-weight: bold }
.label { font-size: 11px; fill: #444; paint-order: stroke; stroke: #fff; stroke-width: 4px }
.box { fill: #eef3fa; stroke: #35507a; stroke-width: 1.5 }
.done { fill: #e6f4e6; stroke: #2c6e2c }
.way { fill: none; stroke: #35507a; stroke-width: 1.3 }
.absence { stroke-dasharray: 5 4 }
"""
_TIP = (
    '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 L10 5 L0 10 z" fill="#35507a"/></marker></defs>'
)


@dataclass(frozen=True, slots=True)
class _Way:
    source: int
    target: int
    text: str
    is_absence: bool


def picture(planned: PatternPlan) -> str:
    """Draw the automaton of a pattern as SVG."""
    automaton = planned.automaton
    end = len(automaton.positions)  # the number of the box "nothing came", which is drawn for an awaited absence
    arrows = [
        _Way(source, end if wait.target is None else wait.target, wait_text(wait), wait.target is None)
        for source, position in enumerate(automaton.positions)
        for wait in position.waits
    ]
    count = end + any(arrow.is_absence for arrow in arrows)  # boxes
    places = _places(count, arrows)
    width = max(x for x, _ in places) + _BOX_WIDTH + 2 * _MARGIN
    below = sum(1 for way in arrows if places[way.target][0] < places[way.source][0])  # arrows that go back
    height = max(y for _, y in places) + _BOX_HEIGHT + 2 * _MARGIN + 30 * below
    title = f"{planned.pattern.name} by {', '.join(planned.pattern.key)}"
    about = [f"<desc>{_escaped(planned.pattern.doc)}</desc>"] if planned.pattern.doc else []
    about += [f"<style>{_STYLE}</style>", _TIP]
    parts = [f'<text class="title" x="{_MARGIN}" y="32">{_escaped(title)}</text>', *_draw_ways(arrows, places)]
    parts += [_box(automaton, number, places[number]) for number in range(count)]
    return _svg(width, height, title, about, parts)


def _svg(width: int, height: int, title: str, about: list[str], parts: list[str]) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', f"<title>{_escaped(title)}</title>", *about]
    return "\n".join([*head, '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>\n"])


def _places(count: int, ways: list[_Way]) -> list[tuple[int, int]]:
    """Compute the upper left corner (x, y) of every box, in pixels. A column is the distance from the start; the rows
    of a column are ordered to avoid crossings."""
    columns = _columns(count, ways)
    heights = [0.0] * count
    for column in sorted(set(columns)):
        members = [n for n in range(count) if columns[n] == column]
        for row, number in enumerate(members):
            heights[number] = row - (len(members) - 1) / 2  # in rows, 0 in the middle
    for _ in range(_SWEEPS):  # each sweep moves boxes to the mean height of their neighbours
        for column in sorted(set(columns)):
            _sweep([n for n in range(count) if columns[n] == column], ways, heights)
    columns_crossed_max = max((columns[way.target] - columns[way.source] - 1 for way in ways), default=0)
    top = _TITLE + 2 * _MARGIN + (3 * _LIFT_PER_COLUMN * max(columns_crossed_max, 0)) // 4  # a curve: 3/4 of its lift
    lowest = min(heights)
    return [(_MARGIN + columns[n] * _COLUMN, top + round((heights[n] - lowest) * _ROW)) for n in range(count)]


def _columns(count: int, ways: list[_Way]) -> list[int]:
    """Measure the longest way from the start, without ways that go back (positions are numbered from left to right)."""
    columns = [0] * count
    for number in range(count):
        for way in ways:
            if way.source == number and way.target > number:
                columns[way.target] = max(columns[way.target], columns[number] + 1)
    return columns


def _sweep(members: list[int], ways: list[_Way], heights: list[float]) -> None:
    """Move each box of a column to the mean of its neighbours, keeping one row between two."""
    height_by_member: dict[int, float] = {}
    for number in members:
        near = [heights[w.source] for w in ways if w.target == number and w.source != number]
        near += [heights[w.target] for w in ways if w.source == number and w.target != number]
        height_by_member[number] = sum(near) / len(near) if near else heights[number]
    ordered = sorted(members, key=lambda n: (height_by_member[n], n))
    middle = sum(height_by_member.values()) / len(height_by_member)
    for row, number in enumerate(ordered):
        heights[number] = middle + row - (len(ordered) - 1) / 2


def _box(automaton: Automaton, number: int, place: tuple[int, int]) -> str:
    """Draw the box of one state of a pattern's automaton, with a double border if a match may end there."""
    x, y = place
    is_end = number == len(automaton.positions)  # the box after the states: the awaited absence has lasted long enough
    name = "nothing came" if is_end else state_name(automaton, number)
    loops = not is_end and automaton.positions[number].loops
    accepts = is_end or automaton.positions[number].accepts
    style = "box done" if accepts else "box"
    shapes = [f'<rect class="{style}" x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="8"/>']
    if accepts:
        inner = f'x="{x + 4}" y="{y + 4}" width="{_BOX_WIDTH - 8}" height="{_BOX_HEIGHT - 8}" rx="5"'
        shapes.append(f'<rect class="{style}" {inner} fill-opacity="0"/>')
    text = f"{name}{' ⟳' if loops else ''}"
    shapes.append(f'<text x="{x + _BOX_WIDTH // 2}" y="{y + 27}" text-anchor="middle">{_escaped(text)}</text>')
    return "".join(shapes)


def _draw_ways(ways: list[_Way], places: list[tuple[int, int]]) -> list[str]:
    """Draw arrows with their labels. Arrows between the same boxes, and arrows across a column, are bent apart."""
    drawn, back = list[str](), 0
    bottom, mid = max(y for _, y in places) + _BOX_HEIGHT, _BOX_WIDTH // 2
    used: dict[tuple[int, int], int] = {}
    for way in ways:
        (x1, y1), (x2, y2) = places[way.source], places[way.target]
        nth = used.setdefault((way.source, way.target), 0)  # earlier arrows between these boxes
        used[way.source, way.target] += 1
        middle1, middle2 = y1 + _BOX_HEIGHT // 2, y2 + _BOX_HEIGHT // 2
        if way.source == way.target:  # a loop on top of the box, above earlier loops
            top = y1 - 34 - 18 * nth  # pixels: the height of a loop, and the distance to the next
            path = f"M{x1 + 40} {y1} C{x1 + 30} {top} {x1 + 100} {top} {x1 + 90} {y1}"
            label = (x1 + mid, top + 6)
        elif x2 <= x1:  # back to the left, below all boxes and earlier arrows
            back += 1
            low = bottom + 30 * back
            path = f"M{x1 + mid} {y1 + _BOX_HEIGHT} C{x1 + mid} {low} {x2 + mid} {low} {x2 + mid} {y2 + _BOX_HEIGHT}"
            label = ((x1 + x2) // 2 + mid, (low * 3 + y1 + _BOX_HEIGHT) // 4)  # a curve reaches 3/4 of its depth
        else:  # forward, in a bend if there are several or it passes over boxes
            start, end = x1 + _BOX_WIDTH, x2
            bend = (end - start) // 2
            lift = 26 * nth + _LIFT_PER_COLUMN * ((x2 - x1) // _COLUMN - 1)
            path = f"M{start} {middle1} C{start + bend} {middle1 - lift} {end - bend} {middle2 - lift} {end} {middle2}"
            label = ((start + end) // 2, (middle1 + middle2) // 2 - (3 * lift) // 4 - 6)
        style = "way absence" if way.is_absence else "way"
        drawn.append(f'<path class="{style}" d="{path}" marker-end="url(#tip)"/>')
        drawn.append(_label(way.text, label))
    return drawn


def _label(text: str, place: tuple[int, int]) -> str:
    """Write the text above a place, one part a line. All of it shows when the mouse rests on it."""
    x, y = place
    parts = text.split(", ")
    shown = [*parts[: _LABEL_LINES_MAX - 1], "…"] if len(parts) > _LABEL_LINES_MAX else parts
    cut = [_cut(part, _LABEL_CHARS_MAX) for part in shown]
    first = y - _LINE * (len(cut) - 1)
    spans = [f'<tspan x="{x}" y="{first + _LINE * row}">{_escaped(part)}</tspan>' for row, part in enumerate(cut)]
    return f'<text class="label" text-anchor="middle">{"".join(spans)}<title>{_escaped(text)}</title></text>'


_WIDTH, _LANE, _TOP, _BOTTOM = 760, 34, 56, 34
_LEFT, _RIGHT = 130, 60
_TICKS = 5
_EVENTS_MAX = 500  # more points than a picture of this width can tell apart
_COLORS = ("#35507a", "#b3541e", "#2c6e2c", "#7a3574", "#8a6d00", "#1b7a7a")
_TIMELINE_STYLE = """\
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
    parts = [f'<text class="title" x="12" y="22">{_escaped(_cut(title))}</text>']
    for number, variable in enumerate(variables):
        y = _TOP + _LANE * number + _LANE // 2
        color = _COLORS[number % len(_COLORS)]
        parts.append(f'<line class="lane" x1="{_LEFT}" y1="{y}" x2="{_WIDTH - _RIGHT}" y2="{y}"/>')
        parts.append(f'<text x="12" y="{y + 4}">{_escaped(_cut(variable, 16))}</text>')
        points = [event for event in events if event["variable"] == variable]
        parts += [_point(event, _x(event["event_time"], first, last), y, color) for event in points]
    parts += _axis(first, last, alert["detected_at"], height)
    return _svg(_WIDTH, height, title, [f"<style>{_TIMELINE_STYLE}</style>"], parts)


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
    title = _escaped(f"{event['event_id']} at {_time(event['event_time'])}")
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


def _escaped(text: str) -> str:
    """Return the text for SVG. Characters that XML does not allow become escapes, as in `visible`."""
    return saxutils.escape(visible(text), {"\ufffe": "\\ufffe", "\uffff": "\\uffff"})


def _cut(text: str, chars: int = 96) -> str:
    return text if len(text) <= chars else text[: chars - 1] + "…"
