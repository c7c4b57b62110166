"""Run the cells of a notebook as a notebook server does, and return the displayed values.

    python cells.py NOTEBOOK [COUNT]      run the first COUNT cells of code, or all; print the displayed values

It imports only other packages, so that it runs with an installed wheel.
Tested by: tests/demo/test_wheel.py
"""

import ast
import json
import sys
from pathlib import Path
from typing import Any


def code_cells(path: Path) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell as a notebook does; return the value of its last expression, None without one."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # type: ignore[attr-defined]


def shown(value: Any) -> str:
    """Return the display of a value in a notebook: its pictures, HTML and text."""
    parts = [repr(value)]
    if hasattr(value, "_repr_mimebundle_"):
        parts += map(str, value._repr_mimebundle_().values())
    if hasattr(value, "_repr_html_"):
        parts.append(value._repr_html_())
    return "\n".join(parts)


def run_cells(sources: list[str]) -> list[str]:
    """Run cells one after the other; return the displayed value of each."""
    names: dict[str, Any] = {}
    return [shown(run_cell(source, names)) for source in sources]


if __name__ == "__main__":
    count = int(sys.argv[2]) if len(sys.argv) > 2 else None
    print("\n".join(run_cells(code_cells(Path(sys.argv[1]))[:count])))
