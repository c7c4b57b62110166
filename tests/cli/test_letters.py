"""`cep letters replay`: the alerts that late events would have given are those of a job that did not have them late."""

from __future__ import annotations

from pathlib import Path

import pytest

from cep.cli.main import main
from tests.runners.embedded.test_future import PAST_MS, fraud, payment, rules_folder, written
from tests.step.contract import MINUTE_MS


def test_late_and_repaired_events_give_the_alerts_that_would_have_been(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of card 1 the large payment is late, of card 2 it could not be read, card 3 has all in time."""
    monkeypatch.chdir(tmp_path)
    rules_folder(tmp_path)
    (tmp_path / "events").mkdir()
    small, large = fraud(1, PAST_MS)
    unread, mended = fraud(2, PAST_MS + 10)
    first = [small, unread, *fraud(3, PAST_MS + 20), payment("later", "z", PAST_MS + 5 * MINUTE_MS, 1)]
    (tmp_path / "events" / "1.jsonl").write_bytes(b"\n".join(first))
    run = ["run", "--rules", "rules", "--events", "events", "--checkpoint", "job", "--alerts", "alerts"]
    assert main([*run, "--available-now"]) == 0
    (tmp_path / "events" / "2.jsonl").write_bytes(b"\n".join([large, mended[:-5]]))
    assert main([*run, "--available-now"]) == 0
    assert [alert["key"] for alert in written(tmp_path / "alerts")] == ["c3"]
    (tmp_path / "mended.jsonl").write_bytes(mended)
    capsys.readouterr()
    again = ["letters", "replay", "job/dead_letters", "--events", "events"]
    assert main(again) == 1
    said = capsys.readouterr().out
    assert "1 late" in said
    assert "1 events come back" in said
    assert "kept 1, gained 1, lost 0" in said
    assert "[small1, large1]" in said
    assert main([*again, "--repaired", "mended.jsonl"]) == 1
    said = capsys.readouterr().out
    assert "kept 1, gained 2, lost 0" in said
    assert "[small2, large2]" in said


def test_what_is_no_letter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "letters.jsonl"
    path.write_bytes(b'{"code": "late"}\n[1]\n')
    assert main(["letters", "replay", str(path), "--events", str(path)]) == 2
    assert "no dead letter" in capsys.readouterr().err
    assert main(["letters", "replay", str(tmp_path / "none"), "--events", str(path)]) == 2
