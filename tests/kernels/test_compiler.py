"""Each kernel is compiled once, by one process, with the functions that it calls as a part of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cep.kernels import compiler

ROOT = Path(__file__).parents[2]
CALLS = """
import numpy as np
from numba.core import event
from cep.kernels.groups import group_pairs

class Names(event.Listener):
    def on_start(self, begun): print(begun.data["dispatcher"].py_func.__name__, flush=True)
    def on_end(self, ended): pass

event.register("numba:compile", Names())
numbers = np.arange(4)
places = np.full(8, -1, np.int32)
assert group_pairs(numbers, numbers, np.zeros(2, np.uint64), places, numbers.copy(), numbers.copy()) == 4
"""


@pytest.mark.slow
@pytest.mark.always
def test_processes_that_begin_together_compile_each_kernel_once(tmp_path: Path) -> None:
    environment = {**os.environ, "CEP_KERNEL_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}

    def begin() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", CALLS], env=environment, stdout=subprocess.PIPE, text=True)

    together = [begin(), begin()]
    compiled = "".join(process.communicate()[0] for process in together).split()
    assert [process.returncode for process in together] == [0, 0]
    assert compiled.count("group_pairs") == compiled.count("_place") == 1
    # Functions that other kernels call are a part of them, without separate files on disk.
    assert {path.name.split(".")[1].split("-")[0] for path in tmp_path.rglob("*.nbc")} == {"group_pairs"}
    after = begin()
    assert (after.communicate()[0], after.returncode) == ("", 0)


def test_a_process_that_is_stopped_while_it_compiles_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compiler, "_WAIT_S", 0.05)
    claims = [compiler.claimed(tmp_path / "new" / "kernel.lock") for _ in range(2)]
    for claim in claims:
        assert claim is not None
        os.close(claim)


def test_where_there_are_no_locks_kernels_are_compiled_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert compiler.claimed(tmp_path / "file" / "kernel.lock") is None
