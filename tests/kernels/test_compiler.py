"""Each kernel is compiled once, by one process, with the functions that it calls as a part of it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core import codegen, dispatcher, options
from numba.core import compiler as numba_compiler
from numba.core.caching import FunctionCache
from packaging.requirements import Requirement

from cep.kernels import compiler

# The parts of numba that compiler.py and jit.py override, call or replace, and that numba may change at any time.
CLASSES = [
    (FunctionCache, ("load_overload", "save_overload", "cache_path")),
    (codegen.JITCodeLibrary, (
        "_optimize_final_module", "_finalize_final_module", "_finalize_dynamic_globals", "_finalize_specific",
    )),
    (codegen.JITCPUCodegen, ("_add_module", "_create_empty_module")),
    (dispatcher.Dispatcher, ("get_call_template", "get_overload")),
    (numba_compiler.Compiler, ("compile_extra",)),
    (numba_compiler.Flags, ("copy", "__hash__", "__eq__", "no_cpython_wrapper", "no_cfunc_wrapper", "nrt")),
    (options.DefaultOptions, ("_nrt", "forceinline", "no_cfunc_wrapper", "no_cpython_wrapper")),
]  # fmt: skip
OBJECTS = {
    "state of a compiler": ("flags", "library", "targetctx"),
    "library": ("_codegen", "_final_module"),
    "cache": ("cache_path", "_impl"),
    "cache's _impl": ("filename_base",),
}

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


def _missing(part: str) -> str:
    return f"numba {numba.__version__} has no {part}: change cep/kernels/compiler.py, then the cap in pyproject.toml"


@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner, names in CLASSES for name in names])
def test_numba_has_each_part_that_is_changed(owner: type, name: str) -> None:
    assert hasattr(owner, name), _missing(f"{owner.__module__}.{owner.__qualname__}.{name}")


def test_the_objects_of_a_compilation_have_the_parts_that_are_used() -> None:
    compilers: list[Any] = []

    class Recorder(numba_compiler.Compiler):
        def compile_extra(self, function: Any) -> Any:
            compilers.append(self)
            return super().compile_extra(function)  # type: ignore[no-untyped-call]

    assert numba.njit(pipeline_class=Recorder)(lambda number: number + 1)(1) == 2
    (state,) = [compiled.state for compiled in compilers]
    cache = compiler.SharedCache(_missing)  # type: ignore[no-untyped-call]
    objects = {"state of a compiler": state, "library": state.library, "cache": cache, "cache's _impl": cache._impl}
    for owner, names in OBJECTS.items():
        for name in names:
            assert hasattr(objects[owner], name), _missing(f"{name} in the {owner}")
    assert any("NumbaEnv" in variable.name for variable in state.library._final_module.global_variables)


def test_only_tested_versions_of_numba_are_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (allowed,) = [r.specifier for r in map(Requirement, project["dependencies"]) if r.name == "numba"]
    installed = version("numba")
    next_minor = f"0.{int(installed.split('.')[1]) + 1}"
    assert installed in allowed
    assert next_minor not in allowed, "a version that these tests have not run with"


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
