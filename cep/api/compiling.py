"""The first match after an installation → a line that says why it takes a minute.

Tested by: tests/api/test_compiling.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from numba.core import event

_LINE = "cep: compiling the matcher, once after an installation or a change: up to a minute"


class _Compiling(event.Listener):
    """Says once that a kernel is compiled."""

    def __init__(self) -> None:
        self._has_said = False

    def on_start(self, _: event.Event) -> None:
        if not self._has_said:
            self._has_said = True
            sys.stderr.write(_LINE + "\n")
            sys.stderr.flush()

    def on_end(self, _: event.Event) -> None:
        """Nothing: the match goes on."""


@contextmanager
def announced_compiling() -> Iterator[None]:
    """Say it if a kernel is compiled in the block. What a user compiles outside of it is none of our concern."""
    with event.install_listener("numba:compile", _Compiling()):
        yield
