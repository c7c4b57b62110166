"""The alerts and the stored state of the warm-up's rules do not depend on the content of new memory.

Kernels get scratch memory that is not set. If a word of it reached a page, two runs of one job would store different
bytes, and a page might keep a value of another card. Each process here fills new memory with one byte.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np

from cep.runners import warm
from cep.sinks.json_form import json_lines
from cep.state.packed import Shape, pack
from cep.state.past import encode_whole
from cep.step.match import MatchOutput, match_events

ROOT = Path(__file__).parents[2]
_EMPTY = np.empty


def _filled(byte: int) -> Any:
    def empty(shape: Any, dtype: Any = float, **options: Any) -> Any:
        array = _EMPTY(shape, dtype, **options)
        if array.dtype.kind in "iuf" and array.size:
            array.view(np.uint8).reshape(-1)[:] = byte
        return array

    return empty


def _digests() -> list[str]:
    """Return a digest of the alerts, the page and the packed page of each rule after each micro-batch."""
    job, programs = warm._build_job()
    states: list[Any] = [None] * len(programs)
    digests = []
    for step in range(warm._STEPS):
        batch = warm._sample_events(job, step)
        watermark_ms = int(batch.time_ms.max())
        for number, program in enumerate(programs):
            output = MatchOutput()
            after = match_events(program, states[number], batch, watermark_ms, output)
            stored = [b"\n".join(json_lines(output.alert_table())), encode_whole(after)]
            if len(after.keys):
                slots = np.arange(len(after.keys))
                stored += pack(after, slots, len(slots), program.row_registers, Shape.of(after))[0]
            digests += [f"rule {number}, step {step}: {hashlib.sha256(part).hexdigest()}" for part in stored]
            states[number] = after if step % 2 else warm._store_and_read(program, after)
    return digests


def test_bytes_are_the_same_for_any_content_of_new_memory() -> None:
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-W", "ignore", "-m", "tests.engine.test_unset_memory"]
    processes = [
        subprocess.Popen([*words, byte], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        for byte in ("0", "165")
    ]
    first, second = (process.communicate()[0].splitlines() for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert len(first) > 100
    assert [line for line in second if line not in first] == []


if __name__ == "__main__":
    assert numba.config.DISABLE_JIT  # type: ignore[attr-defined]
    np.empty = _filled(int(sys.argv[1]))  # type: ignore[misc]
    print("\n".join(_digests()))
