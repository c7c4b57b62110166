"""The refusal of a pattern that cannot be compiled: an exception with a diagnostic code and the place.

Raised while a pattern becomes an automaton and tables, turned into a diagnostic by diagnose.py and into a reason by
`compile.problems`.
Tested by: tests/nfa/test_diagnose.py
"""

from __future__ import annotations


class CompileError(Exception):
    """A checked, bound pattern that does not become a program. `variable`: where in the structure, if at one place."""

    def __init__(self, message: str, code: str = "CEP425", variable: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.variable = variable
