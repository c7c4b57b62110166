"""VS Code's own parts from npm, for tests of the editor's extension, or a plain reason why they are missing."""

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

EDITOR = Path(__file__).parents[1] / "patterns" / "editor"
_FETCH_SECONDS = 180


class NoNodeError(Exception):
    """The reason why Node or a package is missing."""


def run(command: list[str], cwd: Path) -> str:
    """Return the output of a program of Node. Raises: NoNodeError if it is missing, AssertionError if it fails."""
    program = shutil.which(command[0])
    if program is None:
        raise NoNodeError(f"there is no {command[0]} on the path")
    process = subprocess.run(
        [program, *command[1:]], cwd=cwd, capture_output=True, text=True, check=False, timeout=_FETCH_SECONDS
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@functools.cache
def node_modules() -> Path:
    """Return the folder of the extension's packages, with those for its build and tests, fetched once.

    Raises: NoNodeError.
    """
    manifest = (EDITOR / "package.json").read_bytes()
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cep"
    folder = base / f"editor-{hashlib.sha256(manifest).hexdigest()[:16]}"
    modules = folder / "node_modules"
    if modules.is_dir():
        return modules
    base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=base, ignore_cleanup_errors=True) as name:
        work = Path(name) / "work"
        work.mkdir()
        (work / "package.json").write_bytes(manifest)
        try:
            run(["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"], work)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            raise NoNodeError(f"npm cannot fetch the packages of the extension: {str(error)[-300:]}") from error
        try:
            work.replace(folder)
        except OSError:
            assert modules.is_dir(), "another process has put it there meanwhile"
    return modules
