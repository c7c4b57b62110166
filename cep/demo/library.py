"""The installation → the folder with this project's patterns and rules.

The repository has them once, in `patterns/` and `rules/`. The build of a wheel (`setup.py`) copies them.
Tested by: tests/demo/test_demo.py, tests/demo/test_wheel.py
"""

import shutil
from pathlib import Path

from cep.base.errors import CepError, UsageError

FOLDERS = ("patterns", "rules")
_IN_WHEEL = Path(__file__).with_name("library")
_IN_CHECKOUT = Path(__file__).parents[2]
_COPIED = ("*.cep", "*.toml", "*.lock")


def library_folder() -> Path:
    """Return the folder with `patterns` and `rules` in it. Raises: CepError if the installation lacks them."""
    for folder in (_IN_WHEEL, _IN_CHECKOUT):
        if all((folder / name).is_dir() for name in FOLDERS):
            return folder
    raise CepError(f"this installation has no {' and '.join(FOLDERS)} at {_IN_WHEEL}; install the package again")


def copy_library(folder: Path) -> None:
    """Copy patterns and rules into `folder`. Raises: UsageError if the folder has either already."""
    for name in FOLDERS:
        if (folder / name).exists():
            raise UsageError(f"there is a {folder / name} already; choose another folder")
    for name in FOLDERS:
        (folder / name).mkdir(parents=True)
        for pattern in _COPIED:
            for path in sorted((library_folder() / name).glob(pattern)):
                shutil.copyfile(path, folder / name / path.name)
