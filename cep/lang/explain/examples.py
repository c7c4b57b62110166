"""An example of every diagnostic, as `cep explain` shows it: the text, the place, the message.

`examples.txt` has a code on a line and its example indented below. Examples of mistakes in files are excerpts of golden
files, which a test compares.
Tested by: tests/cli/test_authoring.py
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def examples() -> dict[str, str]:
    """Code to example."""
    examples: dict[str, list[str]] = {}
    code = ""
    for line in files("cep.lang.explain").joinpath("examples.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith(" "):
            code = line
            examples[code] = []
        elif line:
            examples[code].append(line)
    return {code: "\n".join(lines) + "\n" for code, lines in examples.items()}
