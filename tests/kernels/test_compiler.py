"""Each kernel is compiled once, by one process, with the functions that it calls as a part of it."""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.core import codegen, dispatcher, options
from numba.core import compiler as numba_compiler
from numba.core.caching import FunctionCache
from packaging.requirements import Requirement

from cep.columnar.batch import read_only
from cep.kernels import compiler, jit
from cep.kernels.jit import bare, inlined, kernel
from cep.kernels.layout import Int64
from cep.kernels.records import Counts, Texts

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


def test_processes_that_begin_together_compile_each_kernel_once(tmp_path: Path) -> None:
    environment = {**os.environ, "CEP_KERNEL_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}

    def begin() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", CALLS], env=environment, stdout=subprocess.PIPE, text=True)

    together = [begin(), begin()]
    compiled = "".join(process.communicate()[0] for process in together).split()
    assert [process.returncode for process in together] == [0, 0]
    assert compiled.count("group_pairs") == compiled.count("_first_place") == 1
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


# Few cases: without JIT a kernel is a thousand times slower.
PLAIN = """
from tests.engine.bridge import batch_of, engine_answers, oracle_answers, program_of, whole
from tests.oracle.random_cases import SCHEMA, random_case
from cep.nfa import rule_tables
from cep.nfa.compile import problems
import numba

rule_tables.MATCHES_PER_EVENT_MAX = 1_000  # what is compared is the meaning

assert numba.config.DISABLE_JIT
for level in (1, 2, 3):
    for seed in range(20):
        case = random_case(seed, level)
        if not problems(case.pattern, SCHEMA):
            found = engine_answers(program_of(SCHEMA, case.pattern), whole(batch_of(SCHEMA, case.events)))
            assert found == oracle_answers(case.pattern, case.events), (level, seed)

# Sums of floats, which histories carry.
import numpy as np
from cep.kernels.histories.exact_sums import CHUNKS, accumulate, rounded
sums = np.zeros(CHUNKS, np.int64)
for value in (0.1, 0.2, -1e16, 5e-324):
    accumulate(sums, int(np.float64(value).view(np.int64)), 1)
assert rounded(sums) == -1e16 + 0.3, rounded(sums)
"""


def test_without_jit_the_answers_are_the_same() -> None:
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", PLAIN], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_cache_is_where_the_user_wants_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CEP_KERNEL_CACHE", str(tmp_path))
    assert jit._cache_folder().parent == tmp_path / "cep"


def test_the_cache_changes_with_any_kernel_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sources = tmp_path / "kernels"
    sources.mkdir()
    (sources / "one.py").write_text("a = 1")
    monkeypatch.setattr(jit, "__file__", str(sources / "jit.py"))
    before = jit._cache_folder()
    assert jit._cache_folder() == before
    (sources / "one.py").write_text("a = 2")
    assert jit._cache_folder() != before


def test_a_folder_that_cannot_be_made_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CEP_KERNEL_CACHE", str(tmp_path / "file" / "below"))
    assert not jit._cache_folder().is_relative_to(tmp_path)


def test_a_folder_that_others_write_to_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another user who may write to the folder could have replaced our machine code."""
    monkeypatch.setenv("CEP_KERNEL_CACHE", str(tmp_path))
    monkeypatch.setattr(jit, "_remove", lambda *_: None)
    planted = jit._cache_folder()
    planted.chmod(0o777)
    cache_folder = jit._cache_folder()
    assert not cache_folder.is_relative_to(tmp_path)
    assert f"{planted} cannot be written, or others may write to it" in capsys.readouterr().err
    assert jit._cache_folder() == cache_folder, "the processes that this one starts share its folder"


@pytest.mark.parametrize("text", ["disable_jit: 1\ncache_dir: here\n", "{{{{"])
def test_a_file_in_the_current_folder_changes_no_setting(text: str, tmp_path: Path) -> None:
    (tmp_path / ".numba_config.yaml").write_text(text)
    code = "import cep.runners.ahead, cep.kernels.jit, numba, yaml; print(numba.config.DISABLE_JIT)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = [sys.executable, "-c", code]
    result = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr, result.returncode) == ("0\n", "", 0)


@inlined
def _longer(counts: Counts, by: int) -> Counts:
    return Counts(counts.runs + by, counts.nodes, counts.matches, counts.full_array)


@bare
def _count_bytes(texts: Texts, counts: Counts) -> Counts:
    for row in range(texts.offsets.shape[0] - 1):
        counts = _longer(counts, texts.offsets[row + 1] - texts.offsets[row])
    return counts


@kernel
def _ends(texts: Texts) -> tuple[Int64, int]:
    counts = _count_bytes(texts, Counts(0, 0, 0, 0))
    return texts.offsets[1:].copy(), counts.runs


@pytest.mark.parametrize("is_read_only", [False, True])
def test_a_record_is_taken_by_every_sort_of_kernel(*, is_read_only: bool) -> None:
    texts = Texts(np.array([0, 2, 5]), np.frombuffer(b"abcde", np.uint8).copy())
    if is_read_only:
        texts = Texts(read_only(texts.offsets), read_only(texts.data))
    assert _count_bytes(texts, Counts(1, 2, 3, 4)) == Counts(6, 2, 3, 4)
    ends, size = _ends(texts)
    assert (ends.tolist(), size) == ([2, 5], 5)
