"""The size of an installation: packages and megabytes of `pip install cep`, and the addition by each extra.

    python -m tests.bench.installed

It counts in this environment: the files of each required package, in turn.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.bench.peer_data import show

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
NOT_SHOWN = ("all", "dev", "docs", "bench")


def brought(requirements: Iterable[str]) -> set[str]:
    """Return the packages that these requirements bring, in turn, if they are installed."""
    waiting, visited = [Requirement(text) for text in requirements], set[tuple[str, str]]()
    packages: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in visited:
                continue
            visited.add((name, extra))
            try:
                requires = distribution(name).requires or []
            except PackageNotFoundError:
                continue
            packages.add(name)
            required = [Requirement(text) for text in requires]
            waiting += [each for each in required if each.marker is None or each.marker.evaluate({"extra": extra})]
    return packages


def size(package: str) -> int:
    """Return the bytes of a package's files."""
    paths = [Path(str(file.locate())) for file in distribution(package).files or []]
    return sum(path.stat().st_size for path in paths if path.is_file())


def main() -> None:
    """Print a line for the bare installation, and one for each extra."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    bare = brought(project["dependencies"])
    lines = [("cep", str(len(bare)), _megabytes(bare), _largest(bare))]
    for extra, requirements in sorted(project["optional-dependencies"].items()):
        if extra not in NOT_SHOWN:
            more = brought(requirements) - bare
            shown = (str(len(more)), _megabytes(more), _largest(more)) if more else ("not installed", "", "")
            lines.append((f"{extra} adds", *shown))
    show("what is installed", ("", "packages", "MB", "largest"), lines)


def _megabytes(packages: set[str]) -> str:
    return f"{sum(map(size, packages)) / 1e6:.0f}"


def _largest(packages: set[str]) -> str:
    return ", ".join(f"{name} {size(name) / 1e6:.0f}" for name in sorted(packages, key=size, reverse=True)[:3])


if __name__ == "__main__":
    main()
