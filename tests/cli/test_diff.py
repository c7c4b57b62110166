"""Two sets of rules over one history, and a version in shadow next to the live one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import orjson
import pytest

from cep.cli.main import main
from cep.rulebook.suppression import Policies, suppress_alerts
from cep.runners.live_checkpoint import write_progress
from cep.runners.rule_output import RuleOutput
from cep.sinks.files import FileSink
from cep.step.rule_status import rule_status
from tests.rulebook.records import new_book, upsert
from tests.rulebook.test_suppression import alert, table

ROOT = Path(__file__).parents[2]


def payment(number: int, second: int, amount: float, bad: int) -> str:
    fields = {
        "tx_id": f"t{number}", "event_time": f"2026-03-01T10:00:{second:02}Z", "card_id": "c1", "account_id": "a1",
        "amount": amount, "status": "approved", "channel": "ecom", "country": "FR", "is_fraud": bad,
    }  # fmt: skip
    return json.dumps(fields)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        shutil.copytree(ROOT / "patterns", tmp_path / name / "patterns")
        (tmp_path / name / "rules").mkdir()
        shutil.copy(ROOT / "rules" / "small_then_large.toml", tmp_path / name / "rules")
    lines = [payment(1, 0, 0.50, 0), payment(2, 30, 640.00, 1), payment(3, 40, 0.50, 0), payment(4, 50, 560.00, 0)]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def diff(folder: Path, *more: str) -> int:
    rules = [str(folder / name / "rules") for name in ("old", "new")]
    return main(["diff", *rules, "--events", str(folder / "events.jsonl"), *more])


@pytest.mark.slow
@pytest.mark.always
def test_a_stricter_rule_loses_an_alert_and_is_more_precise(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diff(folder) == 0
    assert "kept 2, gained 0, lost 0" in capsys.readouterr().out
    path = folder / "new" / "rules" / "small_then_large.toml"
    path.write_text(path.read_text().replace("large = 500.00", "large = 600.00"))
    assert diff(folder, "--label", "is_fraud") == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "kept 1, gained 0, lost 1" in printed
    assert "lost 1 of small_then_large" in printed
    assert "[t3, t4]" in printed
    assert "precision 0.500 1.000" in printed
    assert "recall 1.000 1.000" in printed


def test_what_is_sent_comes_before_all_matches(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "new" / "rules" / "small_then_large.toml"
    path.write_text(path.read_text().replace("priority = 20", 'priority = 20\nsuppress = "1 d"'))
    assert diff(folder, "--label", "is_fraud") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "alerts sent 2 1 precision 0.500 1.000 recall 1.000 1.000 all matches 2 2 precision 0.500 0.500" in printed


def test_each_rule_has_its_sent_alerts_before_its_matches(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "new" / "rules" / "small_then_large.toml"
    text = path.read_text()
    (path.parent / "other.toml").write_text(text.replace('id = "small_then_large"', 'id = "other"'))
    path.write_text(text.replace("priority = 20", 'priority = 20\nsuppress = "1 d"'))
    assert diff(folder, "--label", "is_fraud") == 1
    sent, matches = " ".join(capsys.readouterr().out.split()).split("all matches")
    assert "other – 2 precision – 0.500 recall – 1.000 small_then_large 2 1 precision 0.500 1.000" in sent
    assert "other – 2 precision – 0.500 recall – 1.000 small_then_large 2 2 precision 0.500 0.500" in matches


def test_a_label_that_is_not_there_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert diff(folder, "--label", "nobody") == 2
    assert "have no column nobody" in capsys.readouterr().err


def test_a_shadow_is_compared_with_the_live_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = new_book()
    book.apply(upsert(1, "a"), None)
    book.apply(upsert(2, "a", status="shadow", effective_ms=2_000), None)
    output = RuleOutput(tmp_path, rule_status(book))
    alerts = table(
        alert(1, 1_000), alert(2, 3_000), alert(3, 4_000), alert(4, 3_000, version=2, status="shadow"),
        alert(5, 5_000, version=2, status="shadow"),
    )  # fmt: skip
    sent, _ = output.take(alerts, orjson.dumps(rule_status(book)), 0)
    assert sent.equals(suppress_alerts(alerts, Policies(), {}).alerts)
    FileSink(tmp_path / "alerts").write(sent, 0)
    costs = {"rule_events[a@1]": 1_000, "rule_steps[a@1]": 250, "rule_events[a@2]": 800, "rule_steps[a@2]": 1_600}
    write_progress(tmp_path, 0, costs)
    report = ["rules", "shadow", "report", "a", "--checkpoint", str(tmp_path), "--alerts", str(tmp_path / "alerts")]
    assert main(report) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "a: shadow version 2 2 alerts, live 2" in printed
    assert "kept 1, gained 1, lost 1" in printed
    assert "1 1,000 250 0.250 2 800 1,600 2.000" in printed
    assert main([*report[:3], "b", *report[4:]]) == 2
