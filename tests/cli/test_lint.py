"""`cep lint`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cep.cli.main import main
from tests.lang.common import EVENTS

CLEAN = (
    EVENTS
    + """
pattern p by card_id { seq a where a: transaction amount > 500 }
test "fires" of p { c: 0s transaction amount=900  expect matches 1 }
test "does not" of p { c: 0s transaction amount=1  expect none }
"""
)


def lint(tmp_path: Path, text: str, *options: str) -> int:
    path = tmp_path / "p.cep"
    path.write_text(text, encoding="utf-8")
    return main(["lint", *options, str(path)])


def test_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(tmp_path, CLEAN) == 0
    assert capsys.readouterr().out == "no mistakes\n"


def test_findings_and_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(tmp_path, CLEAN + "list l = [1]\npattern q by card { seq a }") == 1
    out = capsys.readouterr().out
    assert "error[CEP417]" in out
    assert "warning[CEP702]" in out


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lint(tmp_path, CLEAN + "list l = [1]", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert [d["code"] for d in report["findings"]] == ["CEP702"]


def test_fix_applies_what_a_machine_can(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = CLEAN.replace("amount > 500", "amont > 500 && status = 'x'").replace("'x'", '"approved"')
    assert lint(tmp_path, broken, "--fix") == 0
    text = (tmp_path / "p.cep").read_text(encoding="utf-8")
    assert "amount > 500 and status == approved" in text
    assert "fixed" in capsys.readouterr().out


def test_fix_leaves_imported_files_alone(tmp_path: Path) -> None:
    other = tmp_path / "events.cep"
    other.write_text(EVENTS + "define big = amont > 1", encoding="utf-8")
    assert lint(tmp_path, 'import "events.cep"\npattern p by card_id { seq a where a: transaction big }', "--fix") == 1
    assert "amont" in other.read_text(encoding="utf-8")
