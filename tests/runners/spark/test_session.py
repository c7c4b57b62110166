"""What Java writes to standard error: noise goes, everything else comes through, whatever the lines are cut into."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from cep.runners.spark.session import _pass_on

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
    """What comes out at the other end."""
    reading, writing = os.pipe()
    out, into = os.pipe()
    os.write(writing, data)
    os.close(writing)
    _pass_on(reading, into)
    with os.fdopen(out, "rb") as file:
        return file.read()


@given(st.lists(st.sampled_from(NOISE)), st.lists(st.sampled_from(TOLD[-4:-2])))
def test_noise_goes(noise: list[bytes], told: list[bytes]) -> None:
    mixed = b"".join(part for pair in zip(told, noise, strict=False) for part in pair)
    assert passed_on(mixed) == b"".join(told[: len(noise)])


@given(st.lists(st.sampled_from(TOLD)))
def test_everything_else_comes_through(told: list[bytes]) -> None:
    assert passed_on(b"".join(told)) == b"".join(told)
