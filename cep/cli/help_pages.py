"""An error, or the code of a diagnostic → the page that helps: the one place that decides it.

Tested by: tests/cli/test_main.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cep.base.errors import (
    CepError,
    LimitError,
    LinkedPathError,
    RecordError,
    SinkError,
    SourceError,
    StateError,
    StateFormatError,
    UsageError,
)
from cep.cli.verbs import VERBS

if TYPE_CHECKING:
    from cep.lang.diagnostics import Diagnostic

ERROR_PAGES: dict[type[CepError], str] = {  # class → its page; the nearest class in the tree of errors counts
    RecordError: "reference/files",
    LimitError: "reference/limits",
    StateFormatError: "guides/move",
    StateError: "guides/operate",
    SourceError: "reference/files",
    SinkError: "guides/operate",
    LinkedPathError: "guides/approve",
}
CODE_PAGES = {  # first digit of a diagnostic's code → its page
    "1": "reference/language/grammar",
    "2": "reference/language/declarations",
    "3": "reference/language/expressions",
    "4": "reference/language/structure",
    "5": "reference/language/declarations",
    "6": "reference/language/pattern-tests",
    "7": "reference/language/findings",
    "8": "reference/language/changing-lists",
}
RULE_FILES = "reference/rule-files"


def page_of_error(error: CepError, verb: str) -> str | None:
    """Return the page that helps with an error of a verb; None if the message says all."""
    if isinstance(error, UsageError):
        return VERBS[verb].page
    return next((ERROR_PAGES[class_] for class_ in type(error).__mro__ if class_ in ERROR_PAGES), None)


def page_of_code(code: str) -> str:
    """Return the page that explains the subject of a diagnostic's code."""
    return CODE_PAGES[code.removeprefix("CEP")[0]]


def with_page(message: str, page: str | None) -> str:
    """Return a message whose last line names the page, if there is one."""
    return message if page is None else f"{message}\nread on: `cep docs {page}`"


def read_on(diagnostics: Sequence[Diagnostic]) -> str | None:
    """Return a line that names the page about the first mistake; None without mistakes."""
    if not diagnostics:
        return None
    first = next((diagnostic for diagnostic in diagnostics if diagnostic.is_error), diagnostics[0])
    return f"read on: `cep explain {first.code}`, `cep docs {page_of_code(first.code)}`"
