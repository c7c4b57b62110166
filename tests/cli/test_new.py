"""`cep new pattern`."""

from __future__ import annotations

from pathlib import Path

import pytest

from cep.cli.main import main


def test_the_skeleton_passes_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "pattern", "rapid_refunds", "--folder", str(tmp_path)]) == 0
    path = str(tmp_path / "rapid_refunds.cep")
    assert f"wrote {path}" in capsys.readouterr().out
    assert main(["check", path]) == 0
    assert main(["lint", path]) == 0
    assert main(["fmt", "--check", path]) == 0
    assert main(["test", path]) == 0


def test_event_types_from_a_file(tmp_path: Path) -> None:
    assert main(["new", "pattern", "first", "--folder", str(tmp_path)]) == 0
    assert main(["new", "pattern", "second", "--folder", str(tmp_path), "--events", "first.cep"]) == 0
    assert main(["check", str(tmp_path / "second.cep")]) == 0
    assert 'import "first.cep"' in (tmp_path / "second.cep").read_text(encoding="utf-8")


def test_no_file_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.cep").write_text("# mine\n", encoding="utf-8")
    assert main(["new", "pattern", "mine", "--folder", str(tmp_path)]) == 2
    assert (tmp_path / "mine.cep").read_text(encoding="utf-8") == "# mine\n"
    assert "already" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["Big", "a-b", "where", "", "1st", "../up"])
def test_names(name: str, tmp_path: Path) -> None:
    assert main(["new", "pattern", name, "--folder", str(tmp_path)]) == 2


def test_the_event_types_of_the_folder_are_taken(tmp_path: Path) -> None:
    assert main(["new", "pattern", "first", "--folder", str(tmp_path)]) == 0
    (tmp_path / "first.cep").rename(tmp_path / "events.cep")
    assert main(["new", "pattern", "second", "--folder", str(tmp_path)]) == 0
    assert 'import "events.cep"' in (tmp_path / "second.cep").read_text()
    assert main(["check", str(tmp_path)]) == 0
    assert main(["test", str(tmp_path)]) == 0
