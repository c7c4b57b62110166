"""One code of a diagnostic: its title and its long form.

Tested by: tests/lang/test_diagnostics.py
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One code. The explanation gives the reason for the refusal and the right way to write it."""

    title: str
    explanation: str
