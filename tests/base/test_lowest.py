"""The lowest versions that pyproject.toml allows: matching of frames runs with them, in its own environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.base.test_extras import PROJECT, ROOT

ALSO = ("vl-convert-python", "pandas", "pyspark", "confluent-kafka", "psycopg")  # of extras, needed by tests of frames
TOOLS = ("pytest", "pytest-xdist", "hypothesis", "polars", "duckdb")
TESTED = ("tests/api", "tests/corpus")
WAIT_S = 1_800.0


def lowest() -> list[str]:
    """Return each package at the lowest version of its range, or at the last version that corrects it.

    The tools of the tests keep their pinned versions.
    """
    extras = PROJECT["optional-dependencies"]
    ranges = [*PROJECT["dependencies"], *(line for lines in extras.values() for line in lines if _name(line) in ALSO)]
    packages = [re.sub(r">=([\d.]+)(?=,|$).*", r"==\1.*", line) for line in ranges]
    packages = [re.sub(r">=(.*)", r"==\1", line) for line in packages]  # a version that is not a series
    return packages + [line for line in extras["dev"] if _name(line) in TOOLS]


def _name(line: str) -> str:
    return re.split(r"[=>\[]", line)[0]


def test_the_lowest_versions_are_read() -> None:
    assert "numpy==2.0.*" in lowest()
    assert {*TOOLS, *ALSO} <= {_name(line) for line in lowest()}
    assert [line for line in lowest() if not re.fullmatch(r"[\w.\[\]-]+==[\w.]+(\.\*)?", line)] == []


@pytest.mark.slow
def test_frames_are_matched_with_the_lowest_versions(tmp_path: Path) -> None:
    """Frames whose texts are of type `string_view` are left out: with that pyarrow, polars and DuckDB crash on them."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=WAIT_S)
    python = str(tmp_path / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *lowest()]
    subprocess.run(pip, check=True, timeout=WAIT_S)
    words = [python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-m", "not spark and not slow", *TESTED]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    process = subprocess.run(
        [*words, "-k", "not string_view"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        timeout=WAIT_S,
    )  # fmt: skip
    assert process.returncode == 0, process.stdout[-5000:] + process.stderr[-2000:]
