"""Every notebook runs from its first cell to its last, and each last value of a cell can be shown."""

from __future__ import annotations

import json
from importlib import import_module
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


BAD_RECORDS = """
import cep
rows = [{"i": str(n), "event_time": "2026-01-01T00:00:00Z", "card": "c", "amount": "x"} for n in range(12)]
rules = cep.parse("event tx { i id  event_time time  card string  amount decimal(2) } "
                  "pattern p by card { seq a where a: tx amount > 1.00 }")
import pyarrow as pa
rules.match(pa.Table.from_pylist(rows))
"""


def test_a_real_kernel_shows_the_top_reason_of_rejected_records(tmp_path: Path) -> None:
    nbformat, nbclient = import_module("nbformat"), import_module("nbclient")  # both lack types
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(BAD_RECORDS)])
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = notebook.cells[0].outputs
    (shown,) = (output["data"] for output in outputs if output["output_type"] == "execute_result")
    message = "12 of 12 records (100.00%) were rejected, 12 of them as wrong_value: field `amount`"
    assert message in shown["text/plain"]
    assert message in shown["text/html"]
    assert any("RejectedRecordsWarning" in output.get("text", "") for output in outputs)


def test_there_are_some() -> None:
    assert len(NOTEBOOKS) > len(ON_SPARK) > 0
