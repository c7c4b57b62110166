"""The plan of a pattern, and an alert drawn over time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import vl_convert

from cep.lang.load import load_text
from cep.report.picture import picture, timeline, timeline_spec
from cep.report.plan import Plan, find_large_states, plan, plan_text, size_text
from tests.lang.common import EVENTS, shown
from tests.lang.generate import random_file

# The plan: states, conditions split and shared, estimates, and the budget.

TWO = (
    EVENTS
    + """
pattern one(least: int = 3) by card_id {
  seq    a{least,} -> b  within 10 min
  where  a: transaction  status == declined and amount < 2
         b: transaction  status == approved and amount > a.amount
}
pattern two by card_id {
  seq    a -> !b  within 1 h
  where  a: transaction  status == approved
         b: transaction  status == declined
}
"""
)


def planned(text: str, arguments: dict[str, object] | None = None) -> Plan:
    checked = load_text(text)
    assert checked.ok, shown(checked)
    return plan(checked.patterns.values(), checked.schema, arguments or {})


def test_conditions_are_split_and_shared() -> None:
    report = planned(TWO)
    b = report.patterns[0].variables[1]
    assert (len(b.alone), len(b.with_run)) == (1, 1)
    assert dict(report.shared)["status == approved"] == ("one.b", "two.a")
    assert (report.conditions_written, report.conditions_evaluated) == (5, 3)


def test_text() -> None:
    text = plan_text(planned(TWO, {"least": 4}))
    assert "→ 2 b" in text
    assert "taken 4 times or more" in text
    assert "→ ◉ complete   when the window closes, unless b comes first" in text
    assert "run    amount > a.amount" in text


def test_a_pattern_that_needs_an_argument_is_refused_with_the_reason() -> None:
    text = EVENTS + "pattern p(least: int) by card_id { seq a{least,} -> b within 1 h }"
    assert "has no default" in planned(text).refused[0][1]
    assert planned(text, {"least": 2}).refused == ()


def test_what_branches_costs_more() -> None:
    def size(seq: str) -> int:
        return planned(EVENTS + f"pattern p by card_id {{ seq {seq} within 1 h }}").patterns[0].state_bytes

    assert size("a -> b") < size("a ->> b -> c")
    assert size("a+ -> b") < size("a+ any -> b")


def test_the_budget() -> None:
    text = (
        EVENTS + "pattern p by card_id { seq a+ any -> b within 1 h }\npattern q by card_id { seq a -> b within 1 h }"
    )
    (finding,) = find_large_states(load_text(text))
    assert finding.code == "CEP706"
    assert "`p`" in finding.message


@pytest.mark.parametrize(("size", "text"), [(999, "999 bytes"), (1_500, "1.5 kB"), (2_000_000, "2.0 MB")])
def test_sizes(size: int, text: str) -> None:
    assert size_text(size) == text


def test_pictures_are_well_formed_and_nothing_lies_outside() -> None:
    for seed in range(12):
        for pattern_plan in planned(random_file(seed)).patterns:
            root = ET.fromstring(picture(pattern_plan))
            width, height = int(root.attrib["width"]), int(root.attrib["height"])
            boxes = [e for e in root.iter() if e.attrib.get("class", "").startswith("box")]
            assert len(boxes) >= len(pattern_plan.automaton.positions)
            for box in boxes:
                assert 0 <= int(box.attrib["x"]) <= width - int(box.attrib["width"])
                assert 0 <= int(box.attrib["y"]) <= height - int(box.attrib["height"])


def test_boxes_do_not_overlap() -> None:
    for pattern_plan in planned(TWO).patterns:
        root = ET.fromstring(picture(pattern_plan))
        corners = [(e.attrib["x"], e.attrib["y"]) for e in root.iter() if e.attrib.get("rx") == "8"]
        assert len(corners) == len(set(corners))


def test_what_is_kept_of_the_past() -> None:
    text = (
        EVENTS
        + """
pattern often by card_id {
  seq    a
  where  a: transaction  count(transaction over 1 h) > 3 and avg(transaction.amount over previous 90 d) < amount
                         and count(transaction over previous 1 h) < 9 and last(transaction).amount < amount
}
"""
    )
    (often,) = planned(text).patterns
    assert often.past is not None
    assert (often.past.events, often.past.pinned, often.past.tallies) == (100, 1, 2), "an hour is counted once"
    assert often.past.carried_bytes == 2 * 3 * 8
    (ranks,) = planned(text.replace("avg(transaction.amount", "median(transaction.amount")).patterns
    assert ranks.past is not None
    assert ranks.past.tallies == 1
    assert often.past.carried_bytes < ranks.past.carried_bytes < ranks.past.events * ranks.past.event_bytes
    (without, _) = planned(TWO).patterns
    assert without.past is None
    line = next(line for line in plan_text(planned(text)).splitlines() if "past  " in line)
    assert "100 events of" in line
    assert often.state_bytes > 100 * often.past.event_bytes
    (rank,) = planned(text.replace("count(transaction over 1 h)", "approx_percentile(transaction.amount over 90 d, 95)")
                      .replace("avg(transaction.amount over previous 90 d)", "1")
                      .replace("count(transaction over previous 1 h)", "2")).patterns  # fmt: skip
    assert rank.past is not None
    assert (rank.past.events, rank.past.pane_rows) == (0, 100), "no event of the 90 days"


# An alert drawn over time.

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
