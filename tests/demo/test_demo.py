"""The demo ends well: live and replay agree, and find the alerts in its file of expected alerts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from cep.demo.stream import StreamSize, build

ROOT = Path(__file__).parents[2]
EXPECTED = ROOT / "cep" / "demo" / "expected_alerts.json"


def run_demo(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the demo as a person starts it, but in the virtual environment."""
    return subprocess.run(
        [sys.executable, "-m", "demo", *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.mark.spark
def test_the_small_demo(tmp_path: Path) -> None:
    page = tmp_path / "made" / "day.html"
    process = run_demo("--size", "small", "--seconds", "4", "--report", str(page))
    assert process.returncode == 0, process.stdout + process.stderr
    assert "All 39 alerts are equal" in process.stdout
    assert "impossible_travel is published" in process.stdout
    assert process.stderr == ""
    assert_it_ends_with_a_report(process.stdout, page)


def assert_it_ends_with_a_report(printed: str, page: Path) -> None:
    """The line before the seconds says where the report is, and the report is there with its thresholds."""
    assert printed.splitlines()[-2] == f"what the rules found, what they missed and why: open {page} in a browser"
    assert "Just above and just below the line" in page.read_text(encoding="utf-8")
    numbers = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    assert {curve["rule"] for curve in numbers["thresholds"]} == {"card_testing"}


def test_the_expected_alerts_are_what_is_planted() -> None:
    expected = json.loads(EXPECTED.read_text(encoding="utf-8"))
    assert expected.keys() == {"default", "small"}
    planted = Counter(case.rule_id for case in build(7, StreamSize()).planted if case.fires)
    for ids in expected.values():
        for rule_id, count in planted.items():
            alerts_count = len(set(ids[rule_id]))
            # This rule is published at noon and sees half a day.
            assert (0 < alerts_count < count) if rule_id == "impossible_travel" else alerts_count == count


@pytest.mark.slow
@pytest.mark.always
def test_without_java_it_says_so_and_runs_in_one_process(tmp_path: Path) -> None:
    page = tmp_path / "day.html"
    process = run_demo("--size", "small", "--seconds", "1", "--report", str(page), JAVA_HOME=str(tmp_path))
    assert process.returncode == 0, process.stdout + process.stderr
    assert "no Java found" in process.stdout
    assert "All 39 alerts are equal" in process.stdout
    assert process.stderr == ""
    assert_it_ends_with_a_report(process.stdout, page)


@pytest.mark.slow
@pytest.mark.always
def test_spark_without_java_is_refused_in_one_line(tmp_path: Path) -> None:
    process = run_demo("--size", "small", "--engine", "spark", JAVA_HOME=str(tmp_path))
    assert process.returncode == 2
    (line,) = process.stderr.splitlines()
    assert "no Java found" in line
