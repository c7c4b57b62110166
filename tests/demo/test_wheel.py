"""Notebooks run from their first cell to their last, and the wheel works without the checkout."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

from cep import __version__
from tests.demo import cells
from tests.demo.cells import code_cells, run_cells

# Every notebook runs from its first cell to its last, and each last value of a cell can be shown.

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


# The wheel works without the checkout: installed by pip, run in an empty folder.
#
# Kernels in another folder are compiled again, which takes a minute. Therefore `tests/run` runs them uncompiled, and a
# release compiled too.

ROOT = Path(__file__).parents[2]
PIP: list[str | Path] = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
WAIT_S = 600
NOTEBOOK = ROOT / "demo" / "notebooks" / "first-alert.ipynb"
LINES_MAX = 10


def run_program(words: list[str | Path], folder: Path, **more: str) -> str:
    """Run a program in the folder, without the variables that would lead back to the checkout."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | more
    answer = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert answer.returncode == 0, f"{words}\n{answer.stdout}\n{answer.stderr}"
    return answer.stdout


def build_wheel(folder: Path) -> Path:
    """Build it from a copy of the sources, so that the build leaves nothing in the checkout."""
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, source / name)
    for name in ("cep", "patterns", "rules"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    run_program([*PIP, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, source], folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def first_picture(python: Path, folder: Path, **more: str) -> str:
    """Run the first notebook in a new user's folder, up to the picture of an alert; return the displayed values."""
    for path in (NOTEBOOK, Path(cells.__file__)):
        shutil.copy(path, folder)
    sources = code_cells(NOTEBOOK)
    count = next(number for number, source in enumerate(sources, 1) if ".timeline(" in source)
    lines = [line for source in sources[:count] for line in source.splitlines() if line and line[0] != "#"]
    assert len(lines) <= LINES_MAX
    return run_program([python, "cells.py", NOTEBOOK.name, str(count)], folder, **more)


@pytest.mark.slow
@pytest.mark.parametrize("no_jit", [pytest.param("1", id="uncompiled"), "0"])
def test_the_wheel_in_an_empty_folder(tmp_path: Path, no_jit: str) -> None:
    wheel = build_wheel(tmp_path)
    assert wheel.name.startswith(f"cep-{__version__}-")
    names = set(zipfile.ZipFile(wheel).namelist())
    carried = {name.split("library/")[1] for name in names if name.startswith("cep/demo/library/")}
    assert carried == {
        str(path.relative_to(ROOT))
        for pattern in ("patterns/*.cep", "rules/*.toml", "rules/*.lock")
        for path in ROOT.glob(pattern)
    }
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "demo/", "patterns/", "rules/")) for name in names)

    venv, empty = tmp_path / "venv", tmp_path / "empty"
    run_program([sys.executable, "-m", "venv", "--without-pip", venv], tmp_path)  # this process's pip serves both
    install = [*PIP, "--python", venv / "bin" / "python", "install", "-q", "--no-deps", "--no-index", "--no-compile"]
    run_program([*install, wheel], tmp_path)
    # The dependencies are already installed for this process, so pip need not fetch them. The package itself is the
    # wheel's.
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    empty.mkdir()
    cep = venv / "bin" / "cep"
    assert str(site) in run_program([venv / "bin" / "python", "-c", "import cep; print(cep.__file__)"], empty)
    assert run_program([cep, "--version"], empty) == f"cep {__version__}\n"
    output = run_program(
        [cep, "demo", "--size", "small", "--seconds", "0", "--into", "day"], empty, NUMBA_DISABLE_JIT=no_jit
    )
    assert "All 39 alerts are equal" in output
    assert "<svg" in first_picture(venv / "bin" / "python", empty, NUMBA_DISABLE_JIT=no_jit)
    assert f"wrote {Path('rapid_refunds.cep')}" in run_program([cep, "new", "pattern", "rapid_refunds"], empty)
    for path in ("rapid_refunds.cep", "day/patterns"):
        run_program([cep, "check", path], empty)
    for path in ("rapid_refunds.cep", "day/patterns" if no_jit == "0" else "day/patterns/cards.cep"):
        run_program([cep, "test", path], empty, NUMBA_DISABLE_JIT=no_jit)
    data: list[str | Path] = ["--rules", "day/rules", "--events", "day/payments.parquet"]
    run_program(
        [cep, "replay", "--engine", "embedded", *data, "--out", "alerts.jsonl"], empty, NUMBA_DISABLE_JIT=no_jit
    )
    assert "small_then_large" in (empty / "alerts.jsonl").read_text()
