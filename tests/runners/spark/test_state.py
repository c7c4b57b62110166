"""`cep job state` reads from Spark's checkpoint the same as the job has matched."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import orjson
import pytest
from pyspark.sql import SparkSession

from cep.base.errors import StateCorruptError, StateFormatError, UsageError
from cep.cli import state
from cep.runners.live_checkpoint import open_checkpoint
from cep.runners.spark.group_parts import VARIABLE, prepare_query
from cep.runners.spark.group_ports import GroupProgress
from tests.runners.spark.live_cases import ROOT, LiveRun, make_job, rules

pytestmark = pytest.mark.spark


BUSY = """
pattern busy by card_id {
  seq    a
  where  a: transaction  count(transaction over 1 d) > 5 and amount > max(transaction.amount over previous 2 d)
  emit   amount = a.amount
}
"""


def payment(number: int, card: str, second: int, amount: float) -> bytes:
    event = {"tx_id": f"t{number}", "event_time": f"2026-03-01T10:00:{second:02}Z", "card_id": card}
    rest = {"account_id": "a1", "amount": amount, "status": "approved", "channel": "ecom", "country": "FR"}
    return orjson.dumps({**event, **rest})


def test_state_of_an_older_build_is_refused_by_name(tmp_path: Path) -> None:
    """Spark would silently drop state that is no longer declared."""
    folder = tmp_path / "query" / "state" / "0" / "_metadata" / "v2"
    folder.mkdir(parents=True)

    def written(*names: str) -> None:
        properties = {"stateVariables": [{"stateName": name, "stateVariableType": "MapState"} for name in names]}
        (folder / "0").write_text(f"v2\n{json.dumps({'operatorPropertiesJson': json.dumps(properties)})}")

    written("progress", "pages", "past")
    with pytest.raises(UsageError, match="progress, pages, past apart, as an older build did"):
        prepare_query(tmp_path / "query")
    written(VARIABLE)
    prepare_query(tmp_path / "query")
    (folder / "0").write_text("v2\nnonsense")
    with pytest.raises(StateCorruptError, match="does not say what the job keeps"):
        prepare_query(tmp_path / "query")
    prepare_query(tmp_path / "none")
    values = json.loads(GroupProgress().to_bytes())
    earlier = "a build before had no gap", "one before that counted no ties", "one before that had no waiting heartbeat"
    for count, reason in enumerate(earlier, start=1):
        assert GroupProgress.from_bytes(json.dumps(values[:-count]).encode()) == GroupProgress(), reason
    with pytest.raises(StateFormatError, match="of a build that kept other things of a key group"):
        GroupProgress.from_bytes(json.dumps(values[:-4]).encode())


def test_runs_of_a_job(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = rules("small_then_large")["small_then_large"]
    events = (ROOT / "patterns" / "events.cep").read_text()
    looking_back = {"id": "busy", "pattern": "busy", "source": events + BUSY, "params": {}, "message": "busy"}
    rules_of_test = [small, small.model_copy(update=looking_back)]
    initial = tuple(record.to_json() for record in rules_of_test)
    live = LiveRun(spark, tmp_path, make_job(rules_of_test), initial)
    checkpoint = live.checkpoint.parent
    open_checkpoint(checkpoint, live.job, initial)
    live.phase([[payment(1, "c1", 0, 0.5), payment(2, "c2", 10, 0.6), payment(3, "c2", 20, 700.0)]])
    # The verb starts and stops its own session; here it gets the session of the tests.
    monkeypatch.setattr(spark, "stop", lambda: None)

    def told(*words: str) -> tuple[int, object]:
        parser = argparse.ArgumentParser()
        state.add_arguments(parser)
        code = state.run(parser.parse_args(["--checkpoint", str(checkpoint), "--json", *words]))
        return code, json.loads(capsys.readouterr().out)

    # Spark's report of a real job is read correctly.
    prepare_query(live.checkpoint)
    code, whole = told()
    assert code == 0
    assert isinstance(whole, dict)
    assert (whole["runs"], whole["pages"]) == (1, 1)
    assert [(r["rule_id"], r["version"], r["runs"], r["keys"]) for r in whole["rules"]] == [
        ("small_then_large", 1, 1, 1)
    ]
    (past,) = whole["histories"]
    assert {part["kind"]: part["rows"] for part in past["parts"]} == {
        "kept events": 3, "pinned events": 2, "carried": 2,
    }  # fmt: skip
    assert [part["rules"] for part in past["parts"]] == [["busy v1"]] * 3
    code, key_runs = told("--key", "c2")
    assert code == 0
    assert isinstance(key_runs, list)
    (run,) = key_runs
    assert [event["amount"] for event in run["events"]] == [0.6, 700.0]
    assert run["tallies"] == [["count(transaction over 1 d)", 2]]
    code, key_runs = told("--key", "c1")
    assert code == 0
    assert isinstance(key_runs, list)
    runs = key_runs[:1]
    assert [[(e["event_id"], e["time"]) for e in r["bound"]] for r in runs] == [[("t1", "2026-03-01T10:00:00.000Z")]]
    assert runs[0]["expires"] == "2026-03-01T10:01:00.000Z"
    assert told("--key", "nobody") == (1, [])
