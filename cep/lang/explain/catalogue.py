"""Every code that a diagnostic can have: its title, the long form that `cep explain CODE` prints, and an example.

`catalogue.txt` has a line with the code and its title, then the long form, then the indented example: the text, the
place, the message. Examples of mistakes in files are excerpts of golden files, which a test compares.

    CEP1xx syntax    CEP2xx names    CEP3xx types    CEP4xx structure    CEP5xx parameters    CEP6xx tests
    CEP7xx lints     CEP8xx lists

A code keeps its meaning for ever, even after the last place that reports it is gone.
Tested by: tests/lang/test_diagnostics.py, tests/cli/test_authoring.py
"""

import re
from dataclasses import dataclass
from importlib.resources import files

_ENTRY = re.compile(r"^(CEP\d{3}) (.*)\n((?:\S.*\n)+)((?: .*\n)+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Entry:
    """One code. The explanation gives the reason for the refusal and the right way to write it."""

    title: str
    explanation: str
    example: str


_TEXT = files("cep.lang.explain").joinpath("catalogue.txt").read_text(encoding="utf-8")
CATALOGUE: dict[str, Entry] = {
    code: Entry(title, " ".join(lines.splitlines()), example) for code, title, lines, example in _ENTRY.findall(_TEXT)
}


def explain(code: str) -> str | None:
    """Return title and explanation of a code, None for an unknown code."""
    entry = CATALOGUE.get(code.upper())
    return None if entry is None else f"{code.upper()}: {entry.title}\n\n{entry.explanation}\n"
