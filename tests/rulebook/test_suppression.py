"""Sent and suppressed alerts."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from cep.engine.alerts import ALERT_SCHEMA, sort_alerts
from cep.rulebook.outcome import SnoozeReport
from cep.rulebook.suppression import (
    SEVERITIES,
    Fired,
    LastAlerts,
    Policies,
    count_suppressed,
    fired_from_json,
    fired_json,
    suppress_alerts,
)
from tests.rulebook.records import new_book, upsert


def alert(number: int, time_ms: int, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "alert_id": f"{number:04}", "rule_id": "a", "version": 1, "epoch": 1, "status": "live", "severity": "low",
        "priority": 100, "score": 0, "key": "c", "message": "", "measures": "{}", "content_hash": "f",
        "match_start": time_ms, "match_end": time_ms, "detected_at": time_ms, "last": f"t{time_ms}", **changes,
    }  # fmt: skip
    fields["events"] = [{"variable": "v", "event_id": fields.pop("last"), "event_time": time_ms}]
    return {
        **{name: "" for name in ALERT_SCHEMA.names if name not in fields},
        "origins": None,
        "history_cut": False,
        "history_folded": False,
        "history_from": None,
        "unconfirmed": False,
        "flawed": False,
        **fields,
    }


def table(*alerts: dict[str, Any]) -> pa.Table:
    return sort_alerts(pa.Table.from_pylist(list(alerts), schema=ALERT_SCHEMA))


def divided(alerts: pa.Table, policies: Policies, memory: Fired | None = None) -> tuple[list[str], dict[str, str]]:
    result = suppress_alerts(alerts, policies, memory or {})
    return result.alerts["alert_id"].to_pylist(), dict(
        zip(result.suppressed["alert_id"].to_pylist(), result.reasons, strict=True)
    )


def test_a_rule_fires_again_on_a_key_when_its_time_is_over() -> None:
    policies = Policies({("a", 1): (None, 1_000)})
    alerts = table(
        alert(1, 5_000), alert(2, 5_999), alert(3, 6_000), alert(4, 6_500), alert(5, 5_500, key="d"),
        alert(6, 5_500, rule_id="b"),
    )  # fmt: skip
    assert divided(alerts, policies) == (["0001", "0005", "0006", "0003"], {"0002": "suppressed", "0004": "suppressed"})


def test_only_the_first_of_a_group_fires_on_an_event() -> None:
    policies = Policies({("a", 1): ("cards", 0), ("b", 1): ("cards", 0), ("c", 1): ("others", 0)})
    alerts = table(
        alert(1, 5_000, priority=9), alert(2, 5_000, rule_id="b", priority=5), alert(3, 5_000, rule_id="c"),
        alert(4, 6_000, priority=9), alert(5, 6_000, rule_id="b", priority=5, last="another"),
    )  # fmt: skip
    assert divided(alerts, policies) == (["0002", "0003", "0004", "0005"], {"0001": "excluded"})


def test_a_snooze_holds_back_a_rule_or_a_key_until_its_date() -> None:
    policies = Policies({}, (SnoozeReport("a", None, 5_000, 6_000), SnoozeReport("b", "c", 0, 9_000)))
    alerts = table(
        alert(1, 4_999), alert(2, 5_000), alert(3, 6_000), alert(4, 5_000, rule_id="b"),
        alert(5, 5_000, rule_id="b", key="d"),
    )  # fmt: skip
    assert divided(alerts, policies) == (["0001", "0005", "0003"], {"0002": "snoozed", "0004": "snoozed"})


def test_a_large_fraud_is_not_hidden_behind_a_small_one() -> None:
    policies = Policies({("a", 1): (None, 1_000), ("a", 2): (None, 1_000)}, escalations={("a", 1): "amount"})
    alerts = table(
        alert(1, 5_000, measures='{"amount":5.10}'), alert(2, 5_100, measures='{"amount":5.10}'),
        alert(3, 5_200, measures='{"amount":900.00}'), alert(4, 5_300, measures='{"amount":899.99}'),
        alert(5, 5_400, measures='{"amount":null}'), alert(6, 6_100, measures='{"amount":1.00}'),
        alert(7, 6_200, measures='{"amount":1.00}'), alert(8, 6_200, measures='{"amount":2.00}', key="d"),
        alert(9, 6_150, severity="high", version=2), alert(10, 7_100, severity="high", version=2),
        alert(11, 7_200, severity="high", version=2), alert(12, 7_300, severity="critical", version=2),
    )  # fmt: skip
    sent, suppressed = divided(alerts, policies)
    assert sent == ["0001", "0003", "0009", "0008", "0011", "0012"]
    assert set(suppressed.values()) == {"suppressed"}
    assert Policies.from_json(json.loads(json.dumps(policies.to_json()))) == policies


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4), st.integers(0, 3)), max_size=25), st.integers(1, 25))
def test_each_alert_that_is_greater_than_all_before_goes_out(
    given_alerts: list[tuple[int, int, int]], suppress_ms: int
) -> None:
    """The oracle looks at all alerts since the suppression began; the stream is cut anywhere and goes through JSON."""
    policies = Policies({("a", 1): (None, suppress_ms)}, escalations={("a", 1): "n"})
    rows = [
        alert(number, ms, measures=f'{{"n":{value}}}', severity=SEVERITIES[rank])
        for number, (ms, value, rank) in enumerate(sorted(given_alerts))
    ]
    memory: Fired = {}
    sent: list[str] = []
    for row in rows:
        result = suppress_alerts(table(row), policies, memory)
        memory = fired_from_json(json.loads(json.dumps(fired_json({**memory, **result.fired}))))
        sent += result.alerts["alert_id"].to_pylist()
    expected, last, most = [], -(10**9), -1
    rank_before = 0
    for row, (ms, value, rank) in zip(rows, sorted(given_alerts), strict=True):
        is_within = ms < last + suppress_ms
        if is_within and value <= most and rank <= rank_before:
            continue
        most = max(value, most) if is_within else value
        last, rank_before = ms, rank
        expected.append(row["alert_id"])
    assert sent == expected == divided(table(*rows), policies)[0]


def test_what_is_snoozed_or_in_shadow_takes_no_place_and_begins_no_time() -> None:
    versions: dict[tuple[str, int], tuple[str | None, int]] = {("a", 1): ("g", 1_000), ("b", 1): ("g", 0)}
    policies = Policies(versions, (SnoozeReport("a", None, 0, 5_500),))
    alerts = table(
        alert(1, 5_000), alert(2, 5_000, rule_id="b"), alert(3, 5_600, status="shadow"), alert(4, 5_700),
        alert(5, 5_800),
    )  # fmt: skip
    expected = {"0001": "snoozed", "0003": "shadow", "0005": "suppressed"}
    assert divided(alerts, policies) == (["0002", "0004"], expected)
    assert count_suppressed(suppress_alerts(alerts, policies, {})) == {
        "held[shadow@a]": 1, "held[snoozed@a]": 1, "held[suppressed@a]": 1, "alerts[a@1]": -3,
    }  # fmt: skip


@given(
    st.lists(
        st.tuples(
            st.integers(0, 30), st.sampled_from("ab"), st.sampled_from("cd"), st.sampled_from(["live", "shadow"])
        ),
        max_size=30,
    ),
    st.integers(0, 30),
    st.integers(0, 12),
)
def test_alerts_in_two_portions_are_divided_like_all_at_once(
    drawn: list[tuple[int, str, str, str]], cut_ms: int, suppress_ms: int
) -> None:
    policies = Policies({("a", 1): ("g", suppress_ms), ("b", 1): ("g", 5)}, (SnoozeReport("b", "c", 3, 9),))
    alerts = [alert(n, ms, rule_id=r, key=k, status=s) for n, (ms, r, k, s) in enumerate(drawn)]
    whole = suppress_alerts(table(*alerts), policies, {})
    first = suppress_alerts(table(*(a for a in alerts if a["match_end"] < cut_ms)), policies, {})
    memory = LastAlerts(fired_from_json(fired_json(first.fired)))
    assert memory.forget(cut_ms) == 0
    second = suppress_alerts(table(*(a for a in alerts if a["match_end"] >= cut_ms)), policies, memory.last)
    assert pa.concat_tables([first.alerts, second.alerts]).equals(whole.alerts)
    assert (*first.reasons, *second.reasons) == whole.reasons
    assert whole.alerts.num_rows + whole.suppressed.num_rows == len(alerts)
    memory.put(second.fired)
    memory.forget(10**6)
    assert memory.last == {}


@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from("cd")), max_size=30),
    st.lists(st.integers(0, 40), min_size=3, max_size=3),
    st.lists(st.integers(1, 59), min_size=2, max_size=2, unique=True),
    st.sets(st.integers(1, 60)),
)
def test_versions_with_other_times_are_divided_alike_however_alerts_come(
    drawn: list[tuple[int, str]], times: list[int], starts: list[int], cuts: set[int]
) -> None:
    """A version suppresses for its own time, and no longer than the version that fired promised."""
    at_ms = [0, *sorted(starts)]
    alerts = [
        {**alert(n, ms, key=key), "version": 1 + sum(ms >= start for start in at_ms[1:])}
        for n, (ms, key) in enumerate(sorted(drawn))
    ]
    versions: dict[tuple[str, int], tuple[str | None, int]] = {
        ("a", 1 + n): (None, ms) for n, ms in enumerate(times) if ms
    }
    whole = suppress_alerts(table(*alerts), Policies(versions), {})
    memory, parts, reasons = LastAlerts(), [], list[str]()
    bounds = [0, *sorted(cuts), 61]
    for first, end in pairwise(bounds):
        # The versions of the micro-batch's alerts exist, and maybe already the next one.
        ends = [*at_ms[1:], 61]
        active = {
            identity: window
            for identity, window in versions.items()
            if first < ends[identity[1] - 1] and at_ms[identity[1] - 1] < end
        }
        part = suppress_alerts(
            table(*(a for a in alerts if first <= a["match_end"] < end)), Policies(active), memory.last
        )
        memory.put(part.fired)
        memory.forget(end)
        parts.append(part.alerts)
        reasons += part.reasons
    assert pa.concat_tables(parts).equals(whole.alerts)
    assert reasons == list(whole.reasons)
    last: dict[str, tuple[int, int]] = {}
    for one in alerts:
        suppress_ms, (before_ms, for_ms) = times[one["version"] - 1], last.get(one["key"], (0, 0))
        is_held = one["match_end"] < before_ms + min(suppress_ms, for_ms)
        assert (one["alert_id"] in whole.suppressed["alert_id"].to_pylist()) == is_held
        if suppress_ms and not is_held:
            last[one["key"]] = one["match_end"], suppress_ms


def test_policies_are_those_of_the_rulebook() -> None:
    book = new_book()
    book.apply(upsert(1, suppress="2 min", exclusive="g"), None)
    book.apply(upsert(1, "plain"), None)
    policies = Policies.of(book)
    assert policies == Policies({("r", 1): ("g", 120_000)}, keys={("r", 1): "card_id", ("plain", 1): "card_id"})
    assert Policies.from_json(policies.to_json()) == policies
