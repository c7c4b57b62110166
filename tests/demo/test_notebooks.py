"""Every notebook runs from its first cell to its last, and each last value of a cell can be shown."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "demo" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
ON_SPARK = [path for path in NOTEBOOKS if "pyspark" in path.read_text()]


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell as a notebook does; return the value of its last expression, None without one."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # type: ignore[attr-defined]


def shown(value: Any) -> str:
    """Return what a notebook shows of a value: its pictures, HTML and text."""
    parts = [repr(value)]
    if hasattr(value, "_repr_mimebundle_"):
        parts += map(str, value._repr_mimebundle_().values())
    if hasattr(value, "_repr_html_"):
        parts.append(value._repr_html_())
    return "\n".join(parts)


def run_notebook(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] for cell in cells), "outputs are not committed; clear them"
    monkeypatch.chdir(FOLDER)
    names: dict[str, Any] = {}
    texts = [shown(run_cell("".join(cell["source"]), names)) for cell in cells]
    assert any("<svg" in text for text in texts)
    assert any("alerts of" in text for text in texts)


@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path not in ON_SPARK], ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_notebook(path, monkeypatch)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_the_notebook_on_spark_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = ON_SPARK
    run_notebook(path, monkeypatch)


def test_there_are_some() -> None:
    assert len(NOTEBOOKS) > len(ON_SPARK) > 0
