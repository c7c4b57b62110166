"""`python -m tests.conformance` as a command."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.conformance.__main__ import main

OWN = Path(__file__).resolve().parent / "scenarios.json"


def test_passes_and_known_differences_are_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(OWN)]) == 0
    out = capsys.readouterr().out
    assert "differs (#4)" in out
    assert "names that the language reserves" not in out
    assert out.splitlines()[-1].split() == ["scenarios", str(len(json.loads(OWN.read_bytes())["scenarios"]))]


def test_shows_the_text_of_each_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(OWN), "--show", "--only", "reserves"]) == 0
    out = capsys.readouterr().out
    assert "seq    where_ -> count_+ greedy, v2nd_step" in out
    assert out.splitlines()[-1].split() == ["scenarios", "1"]


def test_a_disagreement_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (case,) = [s for s in json.loads(OWN.read_text())["scenarios"] if s["name"] == "types that differ are unequal"]
    case["expected"] = {"matches": [{"a": [11]}], "match_ts": [2], "timeouts": []}
    path = tmp_path / "changed.json.gz"
    path.write_bytes(gzip.compress(json.dumps([case]).encode()))
    assert main([str(path)]) == 1
    out = capsys.readouterr().out
    assert "fail" in out
    assert "- match     a 11" in out
    assert "+ match     a 10  b 12" in out


def test_a_missing_file_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none.json")]) == 2
    assert "cannot be read as scenarios" in capsys.readouterr().err
