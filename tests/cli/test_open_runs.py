"""The open runs by rule: the job's counts equal its state, and the log reports how runs end."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest

from cep.cli.main import main
from cep.runners.job_lines import runs_text, tell_runs
from cep.runners.meanings import forget_open_runs, open_runs
from cep.runners.observe import Log
from tests.rulebook.carry_cases import drawn
from tests.rulebook.test_carried_runs import outcome_of


def test_a_job_counts_by_rule_and_says_what_becomes_of_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = next(seed for seed in range(100) if outcome_of(drawn(seed)) == "carried")
    case = drawn(seed)
    for folder in ("rules", "control", "events"):
        (tmp_path / folder).mkdir()
    (tmp_path / "rules" / "shape.cep").write_text(case.source)
    second = case.versions("carry")[1]
    params = [f"{name} = {orjson.dumps(value).decode()}" for name, value in case.before.items()]
    (tmp_path / "rules" / "shape.toml").write_text(
        'id = "shape"\nversion = 1\npattern = "shape"\nfile = "shape.cep"\nstatus = "live"\nseverity = "low"\n'
        'owner = "o"\nmessage = "{first} on {key}"\n[params]\n' + "\n".join(params) + "\n"
    )
    half = len(case.lines) // 2
    words = {"--rules": "rules", "--events": "events", "--control": "control", "--checkpoint": "job", "--alerts": "out"}
    job = ["run", "--available-now", *(word for flag, name in words.items() for word in (flag, str(tmp_path / name)))]

    def totals() -> dict[str, int]:
        return dict(orjson.loads((tmp_path / "job" / "progress.json").read_bytes())["totals"])

    (tmp_path / "events" / "0.jsonl").write_bytes(b"\n".join(case.lines[:half]))
    (tmp_path / "control" / "change.jsonl").write_bytes(second.to_json())
    assert main(job) == 0
    time = "2026-03-01T12:00:00.000Z"
    line = (
        f"shape version 2 begins at {time}: the runs of version 1 are carried (0 are open now): `on_update` is `carry`"
    )
    assert line in capsys.readouterr().err
    counts = open_runs(totals())
    assert counts.keys() == {"shape@1"}
    assert counts["shape@1"] <= totals()["runs"]
    (tmp_path / "events" / "1.jsonl").write_bytes(b"\n".join(case.lines[half:]))
    assert main(job) == 0
    assert open_runs(totals()).keys() == {"shape@2"}, "all went on as runs of the new version"
    assert all(count >= 0 for name, count in totals().items() if name.startswith("rule_runs"))


def test_a_line_for_each_new_successor_and_no_counts_of_versions_that_are_over() -> None:
    written = io.StringIO()
    runs = {"version": 1, "outcome": "drained", "why": "`on_update` is `drain`"}
    status: dict[str, Any] = {
        "rules": [{"rule_id": "a", "version": 2, "runs": runs}, {"rule_id": "b", "version": 1, "runs": None}]
    }
    tell_runs([], {**status, "open_runs": {"a@1": 1_200}}, Log("text", written))
    tell_runs(status["rules"], {**status, "open_runs": {}}, Log("text", written))
    assert written.getvalue() == (
        "a version 2 begins at once: the runs of version 1 are drained (1,200 are open now): `on_update` is `drain`\n"
    )
    assert "open now" not in runs_text(status["rules"][0], None)
    totals = Counter({"rule_runs[a@1]": 3, "rule_runs[a@2]": 4, "rule_runs[b@1]": -2, "runs": 9})
    forget_open_runs(totals, status)
    assert totals == Counter({"rule_runs[a@2]": 4, "rule_runs[b@1]": -2, "runs": 9})
    assert open_runs(totals) == {"a@2": 4}, "a state of an earlier build was not counted"
