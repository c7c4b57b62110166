"""`cep plan`."""

from __future__ import annotations

from pathlib import Path

import pytest

from cep.cli.main import main
from tests.lang.common import EVENTS

TEXT = (
    EVENTS
    + "## Some,\n## then one.\npattern p(least: int) by card_id { seq a{least,} -> b within 1 h }\n"
    + "pattern q by card_id { seq a }"
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "p.cep"
    file.write_text(TEXT, encoding="utf-8")
    return str(file)


def test_a_pattern_with_its_picture(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg = tmp_path / "p.svg"
    assert main(["plan", path, "--pattern", "p", "--set", "least=2", "--svg", str(svg)]) == 0
    assert "pattern p by card_id\n  Some,\n  then one.\n" in capsys.readouterr().out
    drawn = svg.read_text(encoding="utf-8")
    assert drawn.startswith("<svg")
    assert "<desc>Some,\nthen one.</desc>" in drawn


def test_a_pattern_that_cannot_be_planned_is_a_finding(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", path]) == 1
    out = capsys.readouterr().out
    assert "cannot be compiled: the parameter `least` has no default" in out
    assert "pattern q by card_id" in out


@pytest.mark.parametrize(
    "options", [["--pattern", "pp"], ["--set", "least"], ["--events", "0"], ["--svg", "x.svg", "--set", "least=2"]]
)
def test_usage(path: str, options: list[str]) -> None:
    assert main(["plan", path, *options]) == 2


def test_mistakes_come_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "p.cep"
    file.write_text("pattern p", encoding="utf-8")
    assert main(["plan", str(file)]) == 1
    assert "error[" in capsys.readouterr().out
