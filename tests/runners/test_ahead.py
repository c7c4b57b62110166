"""The second process compiles exactly the kernels that the first match calls; the match is the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numba import typeof

import cep
from cep.engine import advance
from cep.kernels import layout as y
from cep.runners import ahead
from cep.runners.ahead import compile_one, compiled_ahead
from tests.api.frames import EVENT, PATTERN, payments

NOT_PLAIN = PATTERN.replace("bait+ -> hit", "bait+ -> !hit").replace("hit.", "bait.")
# A match in a new process: prints the kernels that this process compiles itself, and the number of alerts.
FIRST_MATCH = """
import json
from numba.core import event
import cep
from tests.api.frames import EVENT, PATTERN, payments

class Compiled(event.Listener):
    names = []
    def on_start(self, e):
        self.names += [e.data["dispatcher"].__name__] if e.data else []
    def on_end(self, e):
        pass

event.register("numba:compile", Compiled())
alerts = cep.parse(EVENT + PATTERN).match(payments())
print(json.dumps([len(alerts), Compiled.names]))
"""


def types_of(monkeypatch: pytest.MonkeyPatch, number: int, work: Any) -> list[Any]:
    """Return the argument types with which a kernel of CARRIERS is called."""
    kernels: list[Any] = list(advance.CARRIERS)
    argument_types: list[Any] = []

    def call(*arguments: Any) -> int:
        argument_types.append(tuple(map(typeof, arguments)))
        return y.FULL_NOT

    call.__name__ = kernels[number].__name__
    kernels[number] = call
    with monkeypatch.context() as patch:
        patch.setattr(advance, "CARRIERS", tuple(kernels))
        patch.setattr(ahead, "CARRIERS", tuple(kernels))
        work()
    return argument_types


@pytest.mark.parametrize(("number", "pattern"), [(0, PATTERN), (1, NOT_PLAIN)])
def test_it_compiles_for_the_types_of_a_match(monkeypatch: pytest.MonkeyPatch, number: int, pattern: str) -> None:
    rules = cep.parse(EVENT + pattern)
    of_match = types_of(monkeypatch, number, lambda: rules.match(payments(), cores=1))
    of_ahead = types_of(monkeypatch, number, lambda: compile_one(advance.CARRIERS[number].__name__))
    assert len(of_ahead) == 1
    assert set(of_match) == set(of_ahead)


def test_nothing_is_started_for_what_is_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Stats:
        cache_path = str(tmp_path)

    class Kernel:
        __name__ = "carry"
        signatures: tuple[str, ...] = ()
        stats = Stats()

    begun: list[list[str]] = []
    monkeypatch.setattr(ahead, "_begun", begun.append)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    kernel = Kernel()
    with compiled_ahead([kernel, kernel, len]):
        pass
    (tmp_path / "rules.carry-7.py311.nbi").touch()
    with compiled_ahead([kernel]):
        pass
    assert begun == [["carry"]]


@pytest.mark.slow
def test_the_first_match_compiles_one_kernel_elsewhere(tmp_path: Path) -> None:
    environment = {**os.environ, "CEP_KERNEL_CACHE": str(tmp_path)}
    words = [sys.executable, "-c", FIRST_MATCH]
    process = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=900)
    assert process.returncode == 0, process.stderr
    alerts, compiled = json.loads(process.stdout)
    assert alerts == len(cep.parse(EVENT + PATTERN).match(payments()))
    assert "evaluate_blocks" in compiled
    assert "advance_plain_rules" not in compiled
