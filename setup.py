"""Puts `patterns/` and `rules/` into the wheel, for `cep.demo.library`. All else about the build is in pyproject.toml.

They stay where they are in a checkout and in an editable installation, so the repository has them once.
Tested by: tests/demo/test_wheel.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

_ROOT = Path(__file__).parent
_LIBRARY = Path("cep", "demo", "library")
_CARRIED = ("patterns/*.cep", "rules/*.toml", "rules/*.lock")


def _carried_files() -> list[str]:
    return sorted(str(path.relative_to(_ROOT)) for pattern in _CARRIED for path in _ROOT.glob(pattern))


class BuildWithLibrary(build_py):
    """The usual build, and the files of the library behind it."""

    def run(self) -> None:
        """Build. An editable installation reads the checkout and gets no copy."""
        super().run()
        if self.editable_mode:
            return
        for name in _carried_files():
            target = Path(self.build_lib) / _LIBRARY / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_ROOT / name, target)

    def get_source_files(self) -> list[str]:
        """Name them as sources too, so that a source distribution has them."""
        return [*super().get_source_files(), *_carried_files()]


setup(cmdclass={"build_py": BuildWithLibrary})
