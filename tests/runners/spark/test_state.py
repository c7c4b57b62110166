"""What `cep state` reads from Spark's checkpoint is what the job has matched."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import orjson
import pytest
from pyspark.sql import SparkSession

from cep.cli import state
from cep.runners.live_checkpoint import open_checkpoint
from tests.runners.spark.live_cases import LiveRun, make_job, rules

pytestmark = pytest.mark.spark


def payment(number: int, card: str, second: int, amount: float) -> bytes:
    event = {"tx_id": f"t{number}", "event_time": f"2026-03-01T10:00:{second:02}Z", "card_id": card}
    rest = {"account_id": "a1", "amount": amount, "status": "approved", "channel": "ecom", "country": "FR"}
    return orjson.dumps({**event, **rest})


def test_runs_of_a_job(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = rules("small_then_large")
    initial = tuple(record.to_json() for record in given.values())
    live = LiveRun(spark, tmp_path, make_job(given.values()), initial)
    checkpoint = live.checkpoint.parent
    open_checkpoint(checkpoint, live.job, initial)
    live.phase([[payment(1, "c1", 0, 0.5), payment(2, "c2", 10, 0.6), payment(3, "c2", 20, 700.0)]])
    # The verb starts and stops a session of its own; here it is given the one of the tests.
    monkeypatch.setattr(spark, "stop", lambda: None)

    def told(*words: str) -> tuple[int, object]:
        parser = argparse.ArgumentParser()
        state.add_arguments(parser)
        code = state.run(parser.parse_args(["--checkpoint", str(checkpoint), "--json", *words]))
        return code, json.loads(capsys.readouterr().out)

    code, whole = told()
    assert code == 0
    assert isinstance(whole, dict)
    assert (whole["runs"], whole["pages"]) == (1, 1)
    assert [(r["rule_id"], r["version"], r["runs"], r["keys"]) for r in whole["rules"]] == [
        ("small_then_large", 1, 1, 1)
    ]
    code, runs = told("--key", "c1")
    assert code == 0
    assert isinstance(runs, list)
    assert [[(e["event_id"], e["time"]) for e in r["bound"]] for r in runs] == [[("t1", "2026-03-01T10:00:00.000Z")]]
    assert runs[0]["expires"] == "2026-03-01T10:01:00.000Z"
    assert told("--key", "nobody") == (1, [])
