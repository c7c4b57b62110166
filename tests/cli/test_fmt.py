"""`cep fmt`."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from cep.cli.main import main

UNTIDY = "list l=[1,2]\n"
TIDY = "list l = [1, 2]\n"


def test_files_are_formatted_in_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep" / "a.cep"
    path.parent.mkdir()
    path.write_text(UNTIDY, encoding="utf-8")
    path.chmod(0o640)
    assert main(["fmt", str(tmp_path)]) == 0
    assert path.read_text(encoding="utf-8") == TIDY
    assert path.stat().st_mode & 0o777 == 0o640
    assert "1 file, 1 changed, 0 left alone" in capsys.readouterr().out
    assert [p.name for p in path.parent.iterdir()] == ["a.cep"]


def test_check_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.cep"
    path.write_text(UNTIDY, encoding="utf-8")
    assert main(["fmt", "--check", str(path)]) == 1
    assert path.read_text(encoding="utf-8") == UNTIDY
    assert f"would format {path}" in capsys.readouterr().out
    path.write_text(TIDY, encoding="utf-8")
    assert main(["fmt", "--check", str(path)]) == 0


def test_a_file_with_mistakes_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.cep"
    path.write_text("list l = [", encoding="utf-8")
    assert main(["fmt", str(path)]) == 1
    assert path.read_text(encoding="utf-8") == "list l = ["
    assert "error[CEP105]" in capsys.readouterr().out


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(UNTIDY))
    assert main(["fmt", "-"]) == 0
    assert capsys.readouterr().out == TIDY
    monkeypatch.setattr("sys.stdin", io.StringIO("list l = ["))
    assert main(["fmt", "-"]) == 1
    assert "error[CEP105]" in capsys.readouterr().err


def test_a_path_that_is_not_there_is_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fmt", str(tmp_path / "none.cep")]) == 2
    assert main(["fmt", str(tmp_path)]) == 2
    assert "no pattern files" in capsys.readouterr().err
