"""Situations from public bug reports, each with the answer that cep must give: `python -m tests.answers` prints all.

One module per section has `ROWS: list[Row]`. A row is computed in the process and is cheap.
Tested by: tests/answers/test_answers.py
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One situation: the section it belongs to, its name, the right answer, and a call that computes the answer."""

    section: str
    name: str
    expected: object
    actual: Callable[[], object]
