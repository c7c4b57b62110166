"""The plan: states, conditions split and shared, estimates, and the budget."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from cep.lang.load import load_text
from cep.report import budget
from cep.report.picture import picture
from cep.report.plan import Plan, plan
from cep.report.plan_text import plan_text, size_text
from tests.lang.common import EVENTS, shown
from tests.lang.generate import random_file

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
    (finding,) = budget.find(load_text(text))
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
