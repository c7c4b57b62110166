"""The line about the first match: once, and only while something is matched."""

from __future__ import annotations

import pytest
from numba.core import event

from cep.api.compiling import announced_compiling


def compile_something() -> None:
    with event.trigger_event("numba:compile"):
        pass


def test_it_is_said_once_and_only_inside(capsys: pytest.CaptureFixture[str]) -> None:
    compile_something()
    with announced_compiling():
        assert capsys.readouterr().err == ""
        compile_something()
        compile_something()
    compile_something()
    assert capsys.readouterr().err.count("cep: compiling the matcher") == 1
