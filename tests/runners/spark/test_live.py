"""Replay and live give the same alerts for every cut of the stream; bad records are set aside and reported."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from pyspark.sql import SparkSession

from cep.base.utc import utc_text
from cep.model.rule import RetireRecord, UpsertRecord
from cep.runners.spark.group_parts import PAGES
from cep.runners.spark.state import stored_part
from tests.runners.spark.live_cases import (
    END,
    LiveRun,
    disordered,
    make_job,
    payments,
    replayed,
    rows,
    rules,
    split,
    time_ms,
)
from tests.seeds import RELEASE

pytestmark = pytest.mark.spark
LATENESS_MS = 90_000


def as_records(*records: UpsertRecord) -> tuple[bytes, ...]:
    return tuple(record.to_json() for record in records)


@pytest.mark.parametrize(
    ("files", "partitions", "pages", "lateness_ms"),
    [(1, 1, 4, 0), (4, 4, 1, 0), (3, 4, 4, LATENESS_MS), (6, 1, 1, LATENESS_MS)],
)
def test_replay_and_live_agree(
    spark: SparkSession, tmp_path: Path, files: int, partitions: int, pages: int, lateness_ms: int
) -> None:
    rules_by_id = rules()
    lines = payments(21)
    arriving = disordered(lines, lateness_ms, 4) if lateness_ms else lines
    job = make_job(rules_by_id.values(), lateness_ms, pages)
    live = LiveRun(spark, tmp_path, job, as_records(*rules_by_id.values()), partitions)
    live.phase(split(arriving, files))
    live.phase([], [END])
    replay_result = replayed(spark, tmp_path / "events", job, rules_by_id.values())
    assert replay_result.alerts.num_rows == 44, "what the stream has planted"
    assert live.alerts() == rows(replay_result.alerts)
    assert live.totals["events"] == len(lines)
    assert live.totals["late_events"] == 0
    assert live.letters == []


@pytest.mark.parametrize("lateness_ms", [pytest.param(0, marks=RELEASE), LATENESS_MS])
def test_rules_that_are_added_changed_and_retired_midway(spark: SparkSession, tmp_path: Path, lateness_ms: int) -> None:
    rules_by_id = rules()
    initial = [rule for name, rule in rules_by_id.items() if name != "small_then_large"]
    lines = payments(22)
    parts = split(lines, 6)
    job = make_job(rules_by_id.values(), lateness_ms, 2)
    added = rules_by_id["small_then_large"].model_copy(update={"effective_at": utc_text(time_ms(parts[3][0]))})
    stricter = rules_by_id["card_testing"].model_copy(
        update={"version": 2, "params": {"tries": 4}, "effective_at": utc_text(time_ms(parts[4][0]))}
    )
    retired = RetireRecord(id="rising_amounts", version=2, effective_at=utc_text(time_ms(parts[4][300])))
    live = LiveRun(spark, tmp_path, job, as_records(*initial))
    live.phase([disordered(part, lateness_ms, 1) for part in parts[:2]])
    live.phase([], [added.to_json(), retired.to_json()])
    live.phase(parts[2:3], [stricter.to_json()])
    live.phase(parts[3:])
    live.phase([], [END])
    replay_result = replayed(spark, tmp_path / "events", job, [*initial, added, retired, stricter])
    assert live.alerts() == rows(replay_result.alerts)
    by_rule = {(a["rule_id"], a["version"]) for a in replay_result.alerts.to_pylist()}
    assert {("small_then_large", 1), ("card_testing", 1), ("card_testing", 2), ("rising_amounts", 1)} <= by_rule
    assert (live.totals["control_applied"], live.totals["control_heartbeat"]) == (3, 1)
    assert live.totals["rule_late_ms"] == 0


def test_bad_records_are_set_aside_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    rules_by_id = rules("card_testing", "small_then_large")
    lines = payments(23)
    job = make_job(rules_by_id.values())
    good = orjson.loads(lines[len(lines) // 2])
    bad = [
        b"{broken",
        orjson.dumps({**good, "event_type": "refund"}),
        orjson.dumps({name: value for name, value in good.items() if name != "amount"}),
        orjson.dumps({**good, "event_time": "soon"}),
    ]
    flawed = orjson.dumps({**good, "tx_id": "FLAWED", "card_id": "other", "amount": "much"})
    middle = len(lines) // 2
    broken_rule = rules_by_id["card_testing"].model_copy(update={"version": 2, "source": "pattern card_testing {"})
    live = LiveRun(spark, tmp_path, job, as_records(*rules_by_id.values()))
    live.phase(
        split([*lines[:middle], *bad, flawed, *lines[middle:]], 3), [b'{"kind": "nonsense"}', broken_rule.to_json()]
    )
    early = orjson.dumps({**good, "tx_id": "EARLY"})
    live.phase([[early]])
    clean = tmp_path / "clean"
    clean.mkdir()
    (clean / "events.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    assert live.alerts() == rows(replayed(spark, clean, job, rules_by_id.values()).alerts)
    assert live.totals["events"] == len(lines) + 2
    assert live.totals["records"] == len(lines) + 2 + len(bad)
    assert (live.totals["flawed_events"], live.totals["bad_values[wrong_value@amount]"]) == (1, 1)
    assert [letter["null_fields"] for letter in live.letters if "null_fields" in letter] == [["amount"]]
    assert sum(count for name, count in live.totals.items() if name.startswith("poison[")) == len(bad)
    assert live.totals["late_events"] == 1
    assert (live.totals["control_unreadable"], live.totals["control_refused"]) == (1, 1)
    reasons = {str(letter["code"]): str(letter.get("reason", letter.get("event_id"))) for letter in live.letters}
    assert len(live.letters) == len(bad) + 4
    assert "amount" in reasons["missing_field"]
    assert "CEP" in reasons["control_refused"]
    assert reasons["late"] == "EARLY"
    assert {"control_unreadable", "unreadable"} <= reasons.keys()


def test_a_key_that_loses_partial_matches_is_named(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules_by_id = rules("card_testing")
    one = orjson.loads(payments(23)[0])
    dust = {**one, "status": "declined", "amount": "0.50", "card_id": "hot"}
    lines = [
        orjson.dumps({**dust, "tx_id": f"t{n}", "event_time": f"2026-03-01T10:00:00.{n // 1_000:03}{n % 1_000:03}Z"})
        for n in range(1_100)
    ]
    live = LiveRun(spark, tmp_path, make_job(rules_by_id.values()), as_records(*rules_by_id.values()))
    live.phase([lines])
    (letter,) = live.letters
    assert (letter["code"], letter["rule_id"], letter["key"]) == ("runs_evicted", "card_testing", "hot")
    assert letter["runs"] == live.totals["runs_evicted"] > 0


def test_partial_matches_expire_when_their_key_never_comes_back(spark: SparkSession, tmp_path: Path) -> None:
    rules_by_id = rules("card_testing", "small_then_large", "impossible_travel")
    live = LiveRun(spark, tmp_path, make_job(rules_by_id.values()), as_records(*rules_by_id.values()))
    live.phase([payments(24)])

    def pages() -> int:
        return stored_part(spark, live.checkpoint.parent, PAGES, 0).count()

    assert pages() == 8, "one for each key group"
    live.phase([], [END])
    assert pages() == 0


def test_runs_are_dropped_when_a_key_loses_its_last_rule(spark: SparkSession, tmp_path: Path) -> None:
    rules_by_id = rules("card_testing", "dormant_then_large")
    live = LiveRun(spark, tmp_path, make_job(rules_by_id.values()), as_records(*rules_by_id.values()))
    account = live.job.domains.index(("account_id",))

    def account_pages() -> int:
        return stored_part(spark, live.checkpoint.parent, PAGES, 0).where(f"at >> 16 = {account}").count()

    lines = split(payments(25), 2)
    live.phase(lines[:1])
    assert account_pages() == 8
    gone = RetireRecord(id="dormant_then_large", version=2, effective_at=None)
    live.phase([], [gone.to_json()])
    live.phase(split(lines[1], 4))
    assert live.totals["alerts[card_testing@1]"] == 12
    assert live.totals["events_without_rule"] > 0
    assert account_pages() == 0
