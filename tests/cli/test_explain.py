"""`cep explain`."""

from __future__ import annotations

from pathlib import Path

import pytest

from cep.cli.main import main
from cep.lang.explain.catalogue import CATALOGUE
from cep.lang.explain.examples import examples

GOLDEN = Path(__file__).parents[1] / "lang" / "golden"


def test_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "cep401"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("CEP401: absence without a window")
    assert "Example:\n\n    seq" in out


def test_an_unknown_code_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "CEP40l"]) == 2
    assert "did you mean `CEP4" in capsys.readouterr().err


def test_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(CATALOGUE)


def test_every_code_has_an_example() -> None:
    assert examples().keys() == CATALOGUE.keys()


def test_examples_are_what_the_golden_files_show() -> None:
    """The text above the carets is a line from one of the code's golden files."""
    for code, example in examples().items():
        files = [*GOLDEN.glob(f"*/{code}_*.cep"), *GOLDEN.glob("diagnostics/parts/*.cep")]
        lines = {line.strip() for file in files for line in file.read_text("utf-8", "replace").splitlines()}
        shown = example.splitlines()
        if len(shown) > 1 and set(shown[1].strip()) == {"^"}:
            assert shown[0].strip() in lines, code
