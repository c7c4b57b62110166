"""Every code that a diagnostic can have: its title and the long form that `cep explain CODE` prints.

CEP1xx to CEP4xx are in `mistakes.py`, CEP5xx to CEP8xx in `findings.py`. A code keeps its meaning for ever. One that is
no longer given is not used again.
Tested by: tests/lang/test_diagnostics.py
"""

from __future__ import annotations

from cep.lang.explain.entry import Entry
from cep.lang.explain.findings import FINDINGS
from cep.lang.explain.mistakes import MISTAKES

CATALOGUE: dict[str, Entry] = MISTAKES | FINDINGS


def explain(code: str) -> str | None:
    """Return title and explanation of a code, None for an unknown code."""
    entry = CATALOGUE.get(code.upper())
    return None if entry is None else f"{code.upper()}: {entry.title}\n\n{entry.explanation}\n"
