"""The project's Python files, parsed once, for the tidy tests."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Source:
    """One file. `name` is its path from the root, `module` its dotted name."""

    name: str
    text: str = field(repr=False)
    tree: ast.Module = field(repr=False)

    @property
    def module(self) -> str:
        return self.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def sources(folder: str) -> tuple[Source, ...]:
    """Every Python file below the folder, in the order of their paths."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found.append(Source(str(path.relative_to(ROOT)), text, ast.parse(text, str(path))))
    assert found, f"no Python files below {folder}"
    return tuple(found)
