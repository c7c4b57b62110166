"""The verb `cep check` as a function."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cep.cli.check import run
from tests.lang.common import EVENTS


def test_clean_files_and_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "p.cep").write_text(EVENTS + "pattern p by card_id { seq a }", encoding="utf-8")
    assert run([str(tmp_path)], as_json=False, color=False) == 0
    assert capsys.readouterr().out == "1 pattern, no mistakes\n"


def test_mistakes_are_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.cep"
    path.write_text(EVENTS + "pattern p by card { seq a }", encoding="utf-8")
    assert run([str(path)], as_json=False, color=False) == 1
    out = capsys.readouterr().out
    assert "error[CEP417]" in out
    assert "0 patterns, 1 error" in out


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.cep"
    path.write_text(EVENTS + "pattern p by card_id { seq a+ }", encoding="utf-8")
    assert run([str(path)], as_json=True, color=False) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert found["patterns"] == ["p"]
    assert [d["severity"] for d in found["diagnostics"]] == ["warning"]
