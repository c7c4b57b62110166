"""The project's Python files, for the tidy tests."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Source:
    """One file. `name` is its path from the root, `module` its dotted name."""

    name: str
    text: str = field(repr=False)

    def parse(self) -> ast.Module:
        """Parsed at each call: the trees of all files would be a million objects in every process of a test run."""
        return ast.parse(self.text, self.name)

    @property
    def module(self) -> str:
        return self.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def module_docstring(source: Source) -> str:
    """Return the docstring of the module, "" if it is missing."""
    return ast.get_docstring(source.parse()) or ""


def statements(parent: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes below a node except expressions, which are most of a tree and contain no statement."""
    for node in ast.iter_child_nodes(parent):
        if not isinstance(node, ast.expr):
            yield node
            yield from statements(node)


@cache
def sources(folder: str) -> tuple[Source, ...]:
    """Return every Python file below the folder, in the order of their paths."""
    files = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        files.append(Source(str(path.relative_to(ROOT)), text))
    assert files, f"no Python files below {folder}"
    return tuple(files)
