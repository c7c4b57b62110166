"""The refusal of a pattern that cannot be compiled: an exception with a diagnostic code and the place.

It is raised while a pattern becomes an automaton and tables. compile.py turns it into a diagnostic, and
`compile.problems` into a reason.

Tested by: tests/nfa/test_compile.py
"""

from __future__ import annotations


class CompileError(Exception):
    """A checked, bound pattern that does not become a program. `variable` is the place in the structure, if there is
    one.
    """

    def __init__(self, message: str, code: str = "CEP425", variable: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.variable = variable
