"""Every code that a diagnostic can have, with the long form that `cep explain CODE` prints; the words of the language.

`catalogue.txt` has a line with the code and its title, then the long form, then the indented example: the text, the
place, the message. Examples of mistakes in files are excerpts of golden files, which a test compares. `words.txt` has a
line for each word of the language.

    CEP1xx syntax    CEP2xx names    CEP3xx types    CEP4xx structure    CEP5xx parameters    CEP6xx tests
    CEP7xx lints     CEP8xx lists

A code keeps its meaning for ever, even after the last place that reports it is gone.
Tested by: tests/lang/test_diagnostics.py, tests/cli/test_authoring.py
"""

import re
from dataclasses import dataclass
from importlib.resources import files

from cep.lang.functions import FUNCTIONS

_ENTRY = re.compile(r"^(CEP\d{3}) (.*)\n((?:\S.*\n)+)((?: .*\n)+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Entry:
    """One code. The explanation gives the reason for the refusal and the right way to write it."""

    title: str
    explanation: str
    example: str


_FOLDER = files("cep.lang.explain")
_TEXT = _FOLDER.joinpath("catalogue.txt").read_text(encoding="utf-8")
CATALOGUE: dict[str, Entry] = {
    code: Entry(title, " ".join(lines.splitlines()), example) for code, title, lines, example in _ENTRY.findall(_TEXT)
}
# The meaning of each word of the language, as Markdown of one paragraph.
WORDS: dict[str, str] = dict(
    line.split(" | ", 1) for line in _FOLDER.joinpath("words.txt").read_text(encoding="utf-8").splitlines()
)


def explain(name: str) -> str | None:
    """Return title and explanation of a code, or the meaning of a word or function; None for an unknown name."""
    entry, function = CATALOGUE.get(name.upper()), FUNCTIONS.get(name)
    if entry is not None:
        return f"{name.upper()}: {entry.title}\n\n{entry.explanation}\n"
    texts = [*([function.shown] if function else []), *([WORDS[name]] if name in WORDS else [])]
    return f"{name}\n\n{chr(10).join(texts)}\n" if texts else None
