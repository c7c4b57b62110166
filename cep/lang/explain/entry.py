"""One code of a diagnostic: its title and its long form.

Tested by: tests/lang/test_diagnostics.py
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One code. The explanation says why it is refused and what to write instead."""

    title: str
    explanation: str
