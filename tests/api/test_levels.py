"""Questions about rules that read derived events: answered from the events of the source alone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import cep
from cep.api.given import GivenRules
from cep.api.levels import produce
from cep.api.rules import Rules
from cep.cli import main as cli
from cep.columnar.route import KEY_SEPARATOR
from cep.sinks.json_form import json_lines
from cep.sources.pieces import read_pieces
from tests.runners.laundering import NAMES, SOURCE, circles, transfers

RULE = """id = "{id}"
pattern = "{id}"
file = "p.cep"
version = 1
status = "live"
severity = "high"
owner = "me"
message = "m"
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("levels")
    (folder / "rules").mkdir()
    (folder / "rules" / "p.cep").write_text(SOURCE, encoding="utf-8")
    for name in NAMES:
        (folder / "rules" / f"{name}.toml").write_text(RULE.format(id=name), encoding="utf-8")
    pq.write_table(transfers(1, 120), folder / "transfers.parquet")
    return folder


@pytest.fixture(scope="module")
def rules(place: Path) -> Rules:
    return cep.load(str(place / "rules"))


def test_the_events_behind_an_alert_are_those_of_the_circle(place: Path, rules: Rules) -> None:
    """Three transfers form the circle: each starts at the account that the one before paid, and the last returns."""
    table = transfers(1, 120)
    by_id = {row["tx_id"]: row for row in table.to_pylist()}
    rules_of_job = GivenRules.read(place / "rules", None)
    produced = produce(rules_of_job, read_pieces(place / "transfers.parquet", rules_of_job.deployment.schema))
    alerts = rules.match(table)
    assert len(alerts) >= len(circles(table)) > 0
    for alert in alerts.table.to_pylist():
        origin, target = alert["key"].split(KEY_SEPARATOR)
        origins = [o for e in alert["events"] for o in produced.origins(e["event_id"], (e["variable"],))]
        assert [(o.level, ".".join(o.variables)) for o in origins] == [(3, "h.c.t"), (3, "h.d.t"), (2, "b.t")]
        listed = [
            (o["level"], tuple(o["variable"].split(".")), o["event_id"], o["event_time"]) for o in alert["origins"]
        ]
        assert listed == [(o.level, o.variables, o.event_id, o.event_time) for o in origins], "as `cep why` finds them"
        assert [o["place"] for o in alert["origins"]] == [0, 0, 1]
        first, second, third = (by_id[o.event_id] for o in origins)
        assert [o.event_time for o in origins] == [first["event_time"], second["event_time"], third["event_time"]]
        assert (first["payer"], second["payee"], third["payee"]) == (origin, target, origin)
        assert first["payee"] == second["payer"]
        assert third["payer"] == target


def test_members_have_the_origins_behind_each_event(rules: Rules) -> None:
    alerts = rules.match(transfers(1, 120))
    expected = []
    for alert in alerts.table.to_pylist():
        for place, event in enumerate(alert["events"]):
            expected.append((alert["alert_id"], place, 1, event["variable"], event["event_id"]))
            expected += [
                (alert["alert_id"], place, o["level"], o["variable"], o["event_id"])
                for o in alert["origins"]
                if o["place"] == place
            ]
    names = ["alert_id", "place", "level", "variable", "event_id"]
    assert [tuple(row.values()) for row in alerts.members.select(names).to_pylist()] == expected
    assert b'"origins":[{"place":0,"level":3,"variable":"h.c.t",' in next(json_lines(alerts.table))


def test_why_and_why_not_of_a_chain(place: Path, rules: Rules, capsys: pytest.CaptureFixture[str]) -> None:
    events = ["--events", str(place / "transfers.parquet"), "--rules", str(place / "rules")]
    assert cli.main(["replay", *events, "--out", str(place / "alerts.jsonl")]) == 0
    alerts = rules.match(transfers(1, 120))
    alert = alerts.table.slice(0, 1).to_pylist()[0]
    command = ["why", "--alerts", str(place / "alerts.jsonl"), "--alert", alert["alert_id"]]
    capsys.readouterr()
    assert cli.main([*command, *events]) == 0
    printed = capsys.readouterr().out
    assert "made of the events of the source:" in printed
    assert "h.c.t" in printed
    assert "made of the events of the source:" in str(alerts.why(0))
    keys = [word for part in alert["key"].split(KEY_SEPARATOR) for word in ("--key", part)]
    assert cli.main(["why-not", "--rule", "circle", *keys, *events]) == 1
    assert "h.c.t" in capsys.readouterr().out
    assert cli.main(["why-not", "--rule", "circle", "--key", "a", "--key", "zz", *events]) == 0
    printed = capsys.readouterr().out
    assert "hop, back: produced by closing, passed_on, of which this can be asked, too" in printed


def test_a_rule_without_levels_reads_one_key(place: Path, rules: Rules) -> None:
    """A rule that reads no derived events needs no replay of the whole history."""
    table = pa.concat_tables([transfers(1, 120).slice(0, 5)])
    assert "produced by" not in str(rules.why_not("incoming", "a", table))
