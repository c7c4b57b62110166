"""The start of a session where the machine's name is unknown, and its message if Java ends at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark
_PROGRAM = """
import os
import sys
import pyspark
from cep.base.errors import UsageError
from cep.runners.spark.session import create_session
try:
    session = create_session("start", 1, java_options=sys.argv[1])
    of_worker = session.range(1).rdd.map(lambda _: pyspark.__file__).first()
    assert "PYTHONSAFEPATH" not in os.environ
    print(session.range(3).count(), "rows", "the same" if of_worker == pyspark.__file__ else of_worker)
except UsageError as error:
    print("refused:", error)
"""


def _start(java_options: str = "", **environment: str) -> str:
    """Return the output of a new process, which starts its own Java."""
    command = [sys.executable, "-c", _PROGRAM, java_options]
    inherited = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}
    return subprocess.run(
        command, env={**inherited, **environment}, capture_output=True, text=True, timeout=120, check=True
    ).stdout


def test_a_machine_that_does_not_know_its_own_name(tmp_path: Path) -> None:
    """The workers load the compiled package of this process, in place of Spark's archive."""
    nobody = tmp_path / "hosts"
    nobody.touch()
    assert _start(JAVA_TOOL_OPTIONS=f"-Djdk.net.hosts.file={nobody}") == "3 rows the same\n"


def test_workers_run_no_module_of_the_current_folder(tmp_path: Path) -> None:
    """The ports of Java refuse a client without its secret."""
    for name in ("numpy", "pandas", "json", "cep"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').write({name!r})\n")
    program = _PROGRAM.replace("print(session", "print(session.conf.get('spark.authenticate'), session")
    command = [sys.executable, "-P", "-c", program, ""]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")]))
    process = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=240,
        check=True,
    )  # fmt: skip
    assert process.stdout.startswith("true 3 rows")
    assert not (tmp_path / "ran").exists()


def test_a_java_that_ends_at_once_is_no_bug_of_ours() -> None:
    output = _start("-agentlib:nothing")
    assert "Could not find agent library" in output
    assert "\nrefused: Java has ended before Spark was there; its own lines stand above." in output
