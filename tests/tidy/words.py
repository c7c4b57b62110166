"""The parts of names over `cep/`, counted: `python -m tests.tidy.words` prints parts that the glossary must explain.

A part is a word between underscores or capitals: `WatermarkTracker` has two. `plain_words.txt` has the frequent ones
that mean the same in any English text or any program. All others need a row in the glossary.

Tested by: tests/tidy/test_english.py
"""

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache

from tests.tidy.english import bound_names
from tests.tidy.source import ROOT, Source, sources

FREQUENT = 40  # bindings; a name counts once for each line that binds it
PAGES = tuple(ROOT / "cep" / "docs" / "reference" / f"{name}.md" for name in ("glossary", "glossary-code"))
PLAIN = ROOT / "tests" / "tidy" / "plain_words.txt"
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_ROW = re.compile(r"^- \*\*(.+?)\*\*: \S", re.MULTILINE)
_PLURALS = (("ies", "y"), ("sses", "ss"), ("xes", "x"), ("ches", "ch"), ("ses", "s"), ("s", ""))


def parts_of(name: str) -> list[str]:
    """Return the words of a name in lower case. Single letters are left out."""
    return [part.lower() for part in _PART.findall(name) if len(part) > 1]


def frequent_words(files: Iterable[Source], least: int = FREQUENT) -> Counter[str]:
    """Count the parts of all names that the files bind. A plural counts as its singular if that occurs."""
    counts: Counter[str] = Counter()
    for source in files:
        for _, name in set(bound_names(source)):
            counts.update(parts_of(name))
    together: Counter[str] = Counter()
    for word, count in counts.items():
        together[singular(word, counts)] += count
    return Counter({word: count for word, count in together.items() if count >= least})


def singular(word: str, known_words: Iterable[str]) -> str:
    """Return the singular if it is a known word, otherwise the word itself."""
    for ending, instead in _PLURALS:
        if word.endswith(ending) and not word.endswith("ss") and word.removesuffix(ending) + instead in known_words:
            return word.removesuffix(ending) + instead
    return word


@cache
def explained() -> frozenset[str]:
    rows = [row for page in PAGES for row in _ROW.findall(page.read_text(encoding="utf-8"))]
    return frozenset(word for row in rows for word in re.findall(r"[a-z]+", row.lower()))


@cache
def plain() -> tuple[str, ...]:
    """Return the frequent words that need no row, as the file has them."""
    return tuple(PLAIN.read_text(encoding="utf-8").split())


if __name__ == "__main__":
    for word, count in frequent_words(sources("cep")).most_common():
        if word not in explained() and word not in plain():
            print(f"{count:5} {word}")
