"""Kernels give the same answers as plain Python, and their cache notices every change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cep.kernels import jit

ROOT = Path(__file__).parents[2]
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


@pytest.mark.slow
@pytest.mark.always
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
