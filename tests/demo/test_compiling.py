"""Whoever waits for the compiler sees that it works."""

from __future__ import annotations

import io

import numba
from rich.console import Console

from cep.demo.compiling import compiling_shown


def shown(*, is_terminal: bool, compiles: bool) -> str:
    file = io.StringIO()
    with compiling_shown(Console(file=file, force_terminal=is_terminal, width=120)):
        if compiles:
            numba.njit(lambda number: number + 1)(1)
    return file.getvalue()


def test_a_terminal_has_a_clock_and_a_count() -> None:
    text = shown(is_terminal=True, compiles=True)
    assert "parts done" in text
    assert "0:00:0" in text


def test_without_a_terminal_it_is_one_line() -> None:
    assert shown(is_terminal=False, compiles=True).strip().splitlines()[0].startswith("compiling the matcher")
    assert "compiling" not in shown(is_terminal=False, compiles=False)
