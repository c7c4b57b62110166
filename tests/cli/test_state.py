"""`cep job state` refuses other folders than checkpoints early, and shows the state of all levels of a job."""

from __future__ import annotations

import json
from pathlib import Path

import orjson
import pytest

from cep.base.exits import Exit
from cep.base.schema import Schema
from cep.base.utc import utc_text
from cep.cli.main import main
from cep.lang.load import load_text
from cep.runners.live_checkpoint import open_checkpoint
from cep.step.job import Job
from tests.cli.test_outage import metrics, status, wait_for
from tests.cli.test_run import free_port
from tests.engine.rules import EVENTS
from tests.runners.embedded.cases import morning
from tests.runners.embedded.test_run import ROOT, start

TOML = """\
id = "{name}"
pattern = "{name}"
file = "p.cep"
version = 1
status = "live"
severity = "low"
owner = "o"
message = "m"
"""
CHAIN = """
event payment { tx_id id  event_time time  card string }
event flag { flag_id id  event_time time  card string }
pattern flags by card { seq a where a: payment emit card = a.card produce flag }
pattern paid by card { seq a -> b within 2 h where a: payment b: payment count(payment over 1 d) > 99 }
pattern flagged by card { seq a -> b within 1 h where a: flag b: flag count(flag over 1 h) > 99 }
"""


def test_a_folder_without_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["job", "state", "--checkpoint", str(tmp_path)]) == Exit.USAGE
    assert "no checkpoint directory of a live job" in capsys.readouterr().err


def test_a_job_that_has_done_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema: Schema = load_text(EVENTS).schema
    open_checkpoint(tmp_path / "job", Job(schema, (("key",),)), ())
    assert main(["job", "state", "--checkpoint", str(tmp_path / "job")]) == Exit.USAGE
    assert "no finished micro-batch" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.always
def test_an_idle_job_and_its_folder_have_the_same_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last checkpoint of a job with a silent stream has the whole state."""
    port, events = free_port(), tmp_path / "events"
    events.mkdir()
    (events / "1.jsonl").write_bytes(b"\n".join(morning()))
    process = start(
        "--rules", str(ROOT / "rules"), "--events", str(events), "--checkpoint", str(tmp_path / "job"),
        "--alerts", str(tmp_path / "alerts"), "--listen", str(port), "--checkpoint-interval", "1 s",
    )  # fmt: skip

    def in_folder() -> float:
        capsys.readouterr()
        if main(["job", "state", "--checkpoint", str(tmp_path / "job"), "--json"]) != 0:  # no checkpoint yet
            return -1.0
        return float(sum(rule["runs"] for rule in json.loads(capsys.readouterr().out)["rules"]))

    try:
        wait_for(lambda: status(port, "/ready") == 200 and f"cep_events_total {len(morning())}.0" in metrics(port))
        wait_for(lambda: f"cep_runs {in_folder()}" in metrics(port))
        assert in_folder() > 0
    finally:
        process.kill()
        process.communicate()


def test_what_all_levels_keep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rule that reads derived events has runs and histories at its own level."""
    rules, events, job = (tmp_path / name for name in ("rules", "events.jsonl", "job"))
    rules.mkdir()
    (rules / "p.cep").write_text(CHAIN)
    for name in ("flags", "paid", "flagged"):
        (rules / f"{name}.toml").write_text(TOML.format(name=name))
    times = [utc_text(1_700_000_000_000 + 60_000 * number) for number in range(4)]
    lines = [
        orjson.dumps({"event_type": "payment", "tx_id": f"t{number}", "event_time": time, "card": "x"})
        for number, time in enumerate(times)
    ]
    events.write_bytes(b"\n".join(lines))
    inputs = ["--rules", str(rules), "--events", str(events), "--checkpoint", str(job), "--alerts", str(tmp_path / "a")]
    assert main(["run", *inputs, "--available-now"]) == 0
    capsys.readouterr()
    assert main(["job", "state", "--checkpoint", str(job), "--json"]) == 0
    whole_state = json.loads(capsys.readouterr().out)
    assert {rule["rule_id"]: rule["runs"] for rule in whole_state["rules"]} == {"paid": 4, "flagged": 3}
    rules_by_part = {part["of"]: part["rules"] for share in whole_state["histories"] for part in share["parts"]}
    assert rules_by_part["count(flag over 1 h)"] == ["flagged v1"]
    assert rules_by_part["count(payment over 1 d)"] == ["paid v1"]
    assert main(["job", "state", "--checkpoint", str(job), "--key", "x", "--json"]) == 0
    key_state = json.loads(capsys.readouterr().out)
    runs = [part["rule_id"] for part in key_state if "rule_id" in part]
    assert (runs.count("paid"), runs.count("flagged")) == (4, 3)
    counts = [tuple(map(tuple, part["tallies"])) for part in key_state if "tallies" in part]
    assert sorted(counts) == [(("count(flag over 1 h)", 3),), (("count(payment over 1 d)", 4),)], "each page once"
    assert main(["job", "state", "--checkpoint", str(job), "--key", "x"]) == 0
    assert "flagged v1 by card: waits for b" in capsys.readouterr().out
