"""A version of Spark → its folder in the user's cache, for tests of the versions that cep runs on.

    CEP_SPARK=4.1.4 .venv/bin/python -m pytest -m spark …      these tests on that Spark
    .venv/bin/python -m tests.spark_versions                   the versions besides the installed one
    .venv/bin/python -m tests.spark_versions 4.1.4             fetch it, and print its folder

pip installs it there once without dependencies, which are already installed. The folder is on the path before the
installed Spark, so this process and all its processes see that version. The repository and .venv stay unchanged.
Tested by: tests/runners/spark/test_other_sparks.py
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.tidy.source import ROOT

# The latest of each minor version before the installed one.
OLDER = ("4.1.4", "4.2.1")
# These can match a finite history, and no stream.
OLDEST = ("3.5.9", "4.0.5")
_PY4J = "py4j<0.11"
_FETCH_S = 900.0


class NoSparkError(Exception):
    """A version of Spark is not available here; the message says why."""


def spark_folder(version: str) -> Path:
    """Return the folder of a version, fetched if it is not there. Raises: NoSparkError."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "cep" / f"spark-{version}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, ignore_cleanup_errors=True) as work:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        words = [*pip, "--no-build-isolation", "--target", f"{work}/spark", f"pyspark=={version}", _PY4J]
        try:
            process = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_FETCH_S)
        except subprocess.TimeoutExpired as error:
            raise NoSparkError(f"pip has not fetched Spark {version} in {_FETCH_S:.0f} s") from error
        if process.returncode != 0:
            raise NoSparkError(f"pip cannot fetch Spark {version}: {process.stderr[-500:]}")
        try:
            Path(work, "spark").replace(folder)
        except OSError:
            assert folder.is_dir(), "another process has put it there meanwhile"
    return folder


def on_spark(version: str) -> dict[str, str]:
    """Return the environment of a process on this version. Raises: NoSparkError."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(spark_folder(version)), *_paths()])}
    return {name: value for name, value in environment.items() if name not in ("SPARK_HOME", "PYSPARK_PYTHON")}


def on_this_spark() -> dict[str, str]:
    """Return the environment of a process with the modules of this checkout and the Spark of this process."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*_paths(), str(ROOT)])}


def _paths() -> list[str]:
    return [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def use(version: str) -> None:
    """Let this process, and those that it starts, see this version. Raises: NoSparkError."""
    assert "pyspark" not in sys.modules, "another Spark is loaded already"
    os.environ.update(on_spark(version))
    sys.path.insert(0, str(spark_folder(version)))


if __name__ == "__main__":
    print(*[spark_folder(version) for version in sys.argv[1:]] or OLDER, sep="\n")
