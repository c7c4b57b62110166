"""Java's standard error: noise is dropped, every other line comes through, for every cut. Spark's Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import SparkContext

from cep.runners.spark import session
from cep.runners.spark.session import _PYTHON, _pass_on, _python_of_workers

DAEMON = b'  File "/x/pyspark.zip/pyspark/daemon.py", line 264, in manager\n'
NOISE = [
    b"Traceback (most recent call last):\n" + DAEMON + DAEMON + b"BrokenPipeError: [Errno 32] Broken pipe\n",
    b"Starting Streaming TransformWithStateInPandas Python worker.\n\n",
    b"Streaming TransformWithStateInPandas Python worker received parameters for UDF. State server port: 45251\n\n",
    b"WARNING: Using incubator modules: jdk.incubator.vector\n",
]
TRACEBACKS = [
    b"Traceback (most recent call last):\n" + DAEMON + b"OSError: [Errno 28] No space left on device\n",
    b'Traceback (most recent call last):\n  File "/x/a.py", line 1, in a\n    a()\nBrokenPipeError: [Errno 32]\n',
    b"Traceback (most recent call last):\n" + DAEMON,
]
TOLD = [
    *TRACEBACKS,
    b"2026-03-01 ERROR something: failed\n",
    b"\tat some.Class.method(Some.java:1)\n",
    b"\n",
    b"last words",
]


def passed_on(data: bytes) -> bytes:
    """Return the bytes that come out at the other end."""
    reading, writing = os.pipe()
    out, into = os.pipe()
    os.write(writing, data)
    os.close(writing)
    _pass_on(reading, into)
    with os.fdopen(out, "rb") as file:
        return file.read()


@given(st.lists(st.sampled_from(NOISE)), st.lists(st.sampled_from(TOLD[-4:-2])))
def test_noise_goes(noise: list[bytes], messages: list[bytes]) -> None:
    mixed = b"".join(part for pair in zip(messages, noise, strict=False) for part in pair)
    assert passed_on(mixed) == b"".join(messages[: len(noise)])


@given(st.lists(st.sampled_from(TOLD)))
def test_everything_else_comes_through(messages: list[bytes]) -> None:
    assert passed_on(b"".join(messages)) == b"".join(messages)


ARCHIVES = ["/a/python/lib/pyspark.zip", "/a/python/lib/py4j-0.10.9.9-src.zip", "/a/jars/spark-core_2.13-4.3.0.jar"]


@pytest.mark.parametrize(
    ("path", "rest"),
    [
        ([*ARCHIVES, "/b", "/c d"], ["/b", "/c d"]),
        ([*ARCHIVES, *ARCHIVES, "/b"], ["/b"]),
        (["/b", *ARCHIVES], ["/b", *ARCHIVES]),
        ([ARCHIVES[0], "/b", ARCHIVES[1]], ["/b", ARCHIVES[1]]),
        ([ARCHIVES[0]], [ARCHIVES[0]]),
        (["/b"], ["/b"]),
        ([], []),
    ],
)
def test_python_has_no_archives_in_front(path: list[str], rest: list[str]) -> None:
    """The launcher keeps the arguments and the exit code."""
    program = "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1:]); sys.exit(7)"
    environment = {"CEP_WORKER_PYTHON": sys.executable, "PYTHONPATH": ":".join(path)}
    words = [str(_PYTHON), "-c", program, "-m", "two words"]
    process = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert process.stdout == f"{':'.join(rest)} {['-m', 'two words']}\n", process.stderr
    assert process.returncode == 7


def test_it_is_for_the_package_that_is_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The launcher is not for another Spark, a Java of another caller, or a folder where it cannot run."""
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("CEP_WORKER_PYTHON", "")
    assert _python_of_workers() == str(_PYTHON)
    assert os.environ["CEP_WORKER_PYTHON"] == sys.executable
    monkeypatch.setenv("SPARK_HOME", str(Path(pyspark.__file__).parent))
    assert _python_of_workers() == str(_PYTHON)
    with monkeypatch.context() as patched:
        patched.setenv("SPARK_HOME", str(tmp_path))
        assert _python_of_workers() == sys.executable
    with monkeypatch.context() as patched:
        patched.setattr(SparkContext, "_gateway", object())
        assert _python_of_workers() == sys.executable
    (tmp_path / "python.sh").touch(0o644)
    monkeypatch.setattr(session, "_PYTHON", tmp_path / "python.sh")
    assert _python_of_workers() == sys.executable
