"""The wheel works without the checkout: installed by pip, run in an empty folder.

Kernels in another folder are compiled again, which takes a minute. Therefore `tests/run` runs them uncompiled, and a
release compiled too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from cep import __version__
from tests.demo import cells
from tests.demo.cells import code_cells

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
