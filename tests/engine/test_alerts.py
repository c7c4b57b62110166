"""Matches to alerts: ids, messages, measures, order."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from cep.engine.advance import advance
from cep.engine.alerts import ALERT_SCHEMA, alert_table, sort_alerts, sorted_together
from cep.nfa.deployed import DeployedRule
from tests.engine.rules import batch, program, rule

END_MS = 2**61 - 1
PAIR = "seq a -> b within 10 ms\nwhere a: e kind == a\n b: e kind == b\n"


def alerts(rows: list[str], *rules: DeployedRule) -> pa.Table:
    compiled = program(*rules)
    return alert_table(compiled, advance(compiled, None, batch(*rows), END_MS).matches)


def one(text: str, rows: list[str], **changes: Any) -> dict[str, Any]:
    (alert,) = alerts(rows, rule(text, **changes)).to_pylist()
    return dict(alert)


def test_an_alert_says_everything() -> None:
    alert = one(
        PAIR + "emit amount = b.amount, total = a.amount + b.amount",
        ["card c@0", "card a@1 10.00", "card b@5 0.05"],
        message="{amount} of {total} on {key}, {unknown}",
        severity="high", priority=3, score=7, epoch=9, status="shadow",
    )  # fmt: skip
    moment = datetime(1970, 1, 1, tzinfo=UTC)
    digest = hashlib.sha256(b"r 1 4:card2:e12:e2").hexdigest()[:32]
    assert alert == {
        "alert_id": digest,
        "rule_id": "r",
        "version": 1,
        "epoch": 9,
        "status": "shadow",
        "severity": "high",
        "priority": 3,
        "score": 7,
        "kind": "match",
        "key": "card",
        "message": "0.05 of 10.05 on card, {unknown}",
        "description": "",
        "measures": '{"amount":0.05,"total":10.05}',
        "events": [
            {"variable": "a", "event_id": "e1", "event_time": moment.replace(microsecond=1_000)},
            {"variable": "b", "event_id": "e2", "event_time": moment.replace(microsecond=5_000)},
        ],
        "origins": None,
        "history_cut": False,
        "history_folded": False,
        "history_from": None,
        "unconfirmed": False,
        "flawed": False,
        "match_start": moment.replace(microsecond=1_000),
        "match_end": moment.replace(microsecond=5_000),
        "detected_at": moment.replace(microsecond=5_000),
        "content_hash": alert["content_hash"],
    }


@pytest.mark.parametrize(
    ("measure", "expected", "in_message"),
    [
        ("a.amount", 12.3, "12.30"),
        ("a.note", 'say "é"', 'say "é"'),
        ("b.note", None, "null"),
        ("b.amount", None, "null"),
        ("a.kind", "a", "a"),
        ("a.event_time", "1970-01-01T00:00:00.001Z", "1970-01-01T00:00:00.001Z"),
        ("b.event_time - a.event_time", "4 ms", "4 ms"),
        ("count(a)", 1, "1"),
        ("a.amount / 3.0", 4.1, "4.1"),
        ("a.amount > 1", True, "true"),
        ("a.amount * a.amount", 151.29, "151.2900"),
    ],
)  # fmt: skip
def test_measures_of_every_kind(measure: str, expected: Any, in_message: str) -> None:
    events = batch("x a@1 12.30", "x b@5 - -")
    note = pa.array(['say "é"', None], pa.large_string())
    events = type(events)(
        events.key, events.event_id, events.event_type, events.time_ms, {**events.columns, "note": note}
    )
    compiled = program(rule(PAIR + f"emit m = {measure}", message="<{m}>"))
    (alert,) = alert_table(compiled, advance(compiled, None, events, END_MS).matches).to_pylist()
    measured = json.loads(alert["measures"])["m"]
    assert measured == (pytest.approx(expected) if isinstance(expected, float) else expected)
    assert alert["message"] == f"<{in_message}>"


def test_the_words_of_the_pattern_are_on_the_alert_in_one_line() -> None:
    deployed = rule(PAIR)
    documented = replace(deployed, pattern=replace(deployed.pattern, doc="An a, then a b.\n  Soon."))
    (alert,) = alerts(["card a@1", "card b@5"], documented).to_pylist()
    assert alert["description"] == "An a, then a b. Soon."


def test_a_pattern_without_measures_and_a_rule_without_message() -> None:
    alert = one(PAIR, ["x a@1", "x b@2"])
    assert (alert["measures"], alert["message"]) == ("{}", "")


def test_ids_cannot_be_made_to_collide() -> None:
    pattern = rule("seq a{2,3} -> b within 10 ms\nwhere a: e kind == a\n b: e kind == b\nskip none")
    compiled = program(pattern)
    events = batch("x a@1", "x a@2", "x a@3", "x b@4")
    ids = pa.array(["1:a", "1:b", "1:a1:b", "c"], pa.large_string())
    events = type(events)(events.key, ids, events.event_type, events.time_ms, events.columns)
    table = alert_table(compiled, advance(compiled, None, events, END_MS).matches)
    assert table.num_rows == len(set(table["alert_id"].to_pylist())) == 3


def test_alerts_come_in_the_order_of_detection_then_id() -> None:
    rows = [f"k{i % 5} {'ab'[i // 5 % 2]}@{i}" for i in range(60)]
    table = alerts(rows, rule(PAIR, "r1"), rule(PAIR, "r2"))
    keys = list(zip(table["detected_at"].to_pylist(), table["alert_id"].to_pylist(), strict=True))
    assert keys == sorted(keys)
    assert set(table["rule_id"].to_pylist()) == {"r1", "r2"}


def test_alerts_of_several_rules_between_each_other_keep_what_is_theirs() -> None:
    rows = [f"k{i % 5} {'ab'[i // 5 % 2]}@{i}" for i in range(60)]
    emit = "emit at = a.amount\n"
    rules = [
        rule(PAIR + emit, "r1", message="{key} one"),
        rule(PAIR, "r2", message="two"),
        rule(PAIR, "r3", message="3"),
    ]
    records = alerts(rows, *rules).to_pylist()
    alone = [alert for one in rules for alert in alerts(rows, one).to_pylist()]
    assert records == sorted(alone, key=lambda alert: (alert["detected_at"], alert["alert_id"]))
    assert len({alert["rule_id"] for alert in records[:4]}) > 1


def test_tables_that_follow_each_other_or_do_not_become_one_in_order() -> None:
    whole = alerts([f"k{i % 5} {'ab'[i // 5 % 2]}@{i // 2}" for i in range(60)], rule(PAIR, "r1"), rule(PAIR, "r2"))
    for cut in range(whole.num_rows + 1):
        parts = [whole.slice(0, cut), whole.slice(cut)]
        assert sorted_together(parts).equals(whole)
        assert sorted_together(parts[::-1]).equals(whole)
    assert sort_alerts(whole).equals(whole)


def test_no_match_gives_an_empty_table_of_the_same_shape() -> None:
    table = alerts(["x a@1"], rule(PAIR))
    assert table.num_rows == 0
    assert table.schema == ALERT_SCHEMA


def test_a_time_out_is_an_alert_of_its_kind() -> None:
    """It has the values, the time and the message of a time-out; a match in the same call stays unchanged."""
    text = PAIR + "emit amount = b.amount\non timeout emit waited = a.amount, amount = a.amount * 2"
    deployed = rule(text, message="{waited} and {amount} on {key}")
    rows = ["x a@1 3.00", "x c@50", "y a@1 1.00", "y b@5 2.00"]
    timeout, match = sorted(alerts(rows, deployed).to_pylist(), key=lambda alert: str(alert["kind"]), reverse=True)
    assert (timeout["kind"], match["kind"]) == ("timeout", "match")
    assert (timeout["measures"], match["measures"]) == ('{"waited":3.00,"amount":6.00}', '{"amount":2.00}')
    assert (timeout["message"], match["message"]) == ("3.00 and 6.00 on x", "{waited} and 2.00 on y")
    assert [event["variable"] for event in timeout["events"]] == ["a"]
    assert timeout["detected_at"] == datetime(1970, 1, 1, 0, 0, 0, 11_000, tzinfo=UTC)
    assert timeout["alert_id"] == hashlib.sha256(b"timeout r 1 1:x2:e0").hexdigest()[:32]


def test_an_absence_that_is_certain_when_its_run_times_out_gives_two_alerts() -> None:
    text = "seq a -> b? -> !c within 10 ms\nwhere a: e kind == a\n b: e kind == b\n c: e kind == c\n"
    table = alerts(["x a@1", "x c@50"], rule(text + "on timeout emit n = a.amount"))
    assert len(set(table["alert_id"].to_pylist())) == table.num_rows
    assert sorted(table["kind"].to_pylist()) == ["match", "timeout"]
