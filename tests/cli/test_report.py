"""`cep report` on files: the page, the numbers beside it, and what it refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import pytest

from cep.cli.main import main
from tests.cli.test_backtest import write_folder


def report(folder: Path, out: Path, *more: str) -> int:
    given = ["--rules", str(folder / "rules"), "--events", str(folder / "events.parquet"), "--labels", "is_fraud"]
    return main(["report", *given, "--out", str(out), *more])


def test_a_page_and_its_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_folder(tmp_path / "new", "large", "small_large")
    old = write_folder(tmp_path / "old", "large")
    out = tmp_path / "report.html"
    assert report(folder, out, "--against", str(old / "rules")) == 0
    assert capsys.readouterr().out.split() == ["wrote", str(out), "wrote", str(out.with_suffix(".json"))]
    numbers = orjson.loads(out.with_suffix(".json").read_bytes())
    assert [each["rule"] for each in numbers["against"]["rules"]] == ["large"]
    assert "<h2>4. Beside the other rules</h2>" in out.read_text()


def test_what_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path, "large")
    assert report(folder, tmp_path / "report.pdf") == 2
    assert "name it *.html" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert report(folder, tmp_path / "report.html") == 2
    assert "pip install 'cep[charts]'" in capsys.readouterr().err
