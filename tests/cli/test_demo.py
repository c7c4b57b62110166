"""`cep demo`: the day in one process. The commands that it prints for the next step work."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from cep.base.exits import Exit
from cep.cli.main import main

DAY = ["demo", "--size", "small", "--seconds", "0"]


def offered(text: str) -> list[list[str]]:
    """Return the commands after `What next`."""
    lines = text.split("What next")[1].splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("  cep ")]


@pytest.mark.slow
@pytest.mark.always
def test_the_day_and_what_comes_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(DAY) == 0
    text = capsys.readouterr().out
    assert "All 39 alerts are equal" in text
    assert "impossible_travel is published" in text
    assert list(tmp_path.iterdir()) == []
    commands = offered(text)
    assert [words[0] for words in commands] == ["demo", "test", "replay", "report", "why-not", "new"]
    assert commands[0] == ["demo", "--into", "day"]
    assert main([*DAY, "--into", "day"]) == 0
    assert offered(capsys.readouterr().out) == commands[1:]
    for words in commands[1:]:
        assert main(words) == 0, words
        capsys.readouterr()
    assert main(["check", "day/patterns"]) == 0
    assert len((tmp_path / "day" / "alerts.jsonl").read_text().splitlines()) > 39  # the late rule sees the whole day


def test_a_folder_that_has_rules_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rules").mkdir()
    assert main([*DAY, "--into", str(tmp_path)]) == Exit.USAGE
    assert "choose another folder" in capsys.readouterr().err
    assert main([*DAY, "--cores", "0"]) == Exit.USAGE
