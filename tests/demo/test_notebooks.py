"""Every notebook runs from its first cell to its last, and each last value of a cell can be shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.demo.cells import code_cells, run_cells

FOLDER = Path(__file__).parents[2] / "demo" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
ON_SPARK = [path for path in NOTEBOOKS if "pyspark" in path.read_text()]


def run_notebook(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] for cell in cells), "outputs are not committed; clear them"
    monkeypatch.chdir(folder)
    texts = run_cells(code_cells(path))
    assert any("<svg" in text for text in texts)
    assert any("alerts of" in text for text in texts)


@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path not in ON_SPARK], ids=lambda path: path.stem)
def test_a_notebook_runs_in_an_empty_folder(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_notebook(path, tmp_path, monkeypatch)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_the_notebook_on_spark_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = ON_SPARK
    run_notebook(path, tmp_path, monkeypatch)


def test_there_are_some() -> None:
    assert len(NOTEBOOKS) > len(ON_SPARK) > 0
