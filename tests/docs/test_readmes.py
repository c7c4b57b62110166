"""The patterns and commands in the READMEs of code folders work as the READMEs say."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cep.cli.main import main
from tests.docs.commands import ROOT, commands
from tests.docs.pages import blocks_of

READMES = {name: blocks_of((ROOT / name).read_text(encoding="utf-8")) for name in ("README.md", "patterns/README.md")}


def _pattern_of(name: str) -> str:
    (code,) = [block.code for block in READMES[name] if "\npattern " in block.code]
    return code


def test_the_pattern_of_the_first_page_has_no_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(ROOT / "patterns" / "events.cep", tmp_path)
    (tmp_path / "first.cep").write_text(f'import "events.cep"\n\n{_pattern_of("README.md")}')
    assert main(["check", str(tmp_path / "first.cep")]) == 0, capsys.readouterr().out


def test_the_first_pattern_passes_its_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "first.cep").write_text(_pattern_of("patterns/README.md"))
    assert main(["test", str(tmp_path / "first.cep")]) == 0, capsys.readouterr().out


def test_the_work_on_a_pattern_goes_as_it_says(tmp_path: Path) -> None:
    (work,) = [block.code for block in READMES["patterns/README.md"] if block.tag == "sh"]
    shutil.copytree(ROOT / "patterns", tmp_path / "patterns")
    with commands(tmp_path) as tools:
        path = os.pathsep.join([str(tools), os.environ["PATH"]])
        words = ["bash", "-euo", "pipefail", "-c", work]
        process = subprocess.run(
            words, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )
    assert process.returncode == 0, process.stdout + process.stderr
    assert (tmp_path / "patterns" / "tried_out.cep").exists()


def test_the_two_commands_are_there() -> None:
    (block,) = [block.code for block in READMES["README.md"] if block.tag == "sh"]
    files = [ROOT / line.split()[0] for line in block.splitlines()]
    assert [file.name for file in files] == ["run", "run"]
    assert all(os.access(file, os.X_OK) for file in files)
