"""Diagnostics to text with the line and carets, for people, and to JSON values, for tools.

Tested by: tests/lang/test_diagnostics.py, tests/lang/golden/diagnostics/
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from cep.base.text import visible
from cep.lang.diagnostics import Diagnostic, Severity, Span
from cep.lang.explain.catalogue import CATALOGUE

_LINE_WIDTH_MAX = 160  # longer lines are cut around the span: a report must stay readable
_TAB = "    "
_COLORS = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m", "place": "\x1b[34m", "label": "\x1b[36m", "help": "\x1b[32m"}
_OF_VALUES = ("CEP320",)  # their places have values that should be tokens
_NOT_SPACE = re.compile(r'[^\s"]')
_PLAIN = "\x1b[0m"


class Lines:
    """Converts offsets of a text to lines and columns, both counted from 1."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = [0, *(i + 1 for i, c in enumerate(text) if c == "\n")]  # the offset of each line

    def position(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self.starts, min(offset, len(self.text)))  # past the end counts as the end
        return line, min(offset, len(self.text)) - self.starts[line - 1] + 1

    def line(self, number: int) -> str:
        """Return the text of a line without its end."""
        end = self.starts[number] - 1 if number < len(self.starts) else len(self.text)  # [number] is the next line
        return self.text[self.starts[number - 1] : end].rstrip("\r")


@lru_cache(maxsize=16)
def lines_of(text: str) -> Lines:
    """Return the lines of a text. They are cached, because many diagnostics are about few texts."""
    return Lines(text)


def render_text(diagnostics: Iterable[Diagnostic], sources: Mapping[str, str], color: bool = False) -> str:
    """Format all diagnostics as text with excerpts of the source; "" if there are none.

    error[CEP203]: `transaction` has no field `amont`
      --> cards.cep:12:30
       |
    12 |   where  hit: transaction  amont > 2
       |                            ^^^^^
       = help: did you mean `amount`?
    """
    diagnostics = list(diagnostics)
    texts = {name: lines_of(text) for name, text in _masked(diagnostics, sources).items()}  # secrets are asterisks
    return "\n".join(_one(diagnostic, texts, color=color) for diagnostic in diagnostics)


def _masked(diagnostics: Iterable[Diagnostic], sources: Mapping[str, str]) -> Mapping[str, str]:
    """Return the texts with asterisks in place of each value that should be a token: a log is not to have it."""
    spans = {d.span for d in diagnostics if d.code in _OF_VALUES and d.span is not None and d.span.file in sources}
    masked = dict(sources)
    for span in spans:
        text = masked[span.file]
        value = _NOT_SPACE.sub("*", text[span.start : span.end])
        masked[span.file] = text[: span.start] + value + text[span.end :]
    return masked


def to_json(diagnostic: Diagnostic, sources: Mapping[str, str]) -> dict[str, Any]:
    """Convert a diagnostic to JSON values. Lines and columns count from 1, the end is exclusive."""
    fix = diagnostic.fix
    return {
        "code": diagnostic.code,
        "severity": diagnostic.severity.value,
        "title": CATALOGUE[diagnostic.code].title,
        "message": diagnostic.message,
        "span": _json_span(diagnostic.span, sources),
        "labels": [{"text": label.text, "span": _json_span(label.span, sources)} for label in diagnostic.labels],
        "help": diagnostic.help,
        "fix": None if fix is None else {"span": _json_span(fix.span, sources), "replacement": fix.replacement},
    }


def _json_span(span: Span | None, sources: Mapping[str, str]) -> dict[str, Any] | None:
    if span is None:
        return None
    lines = lines_of(sources.get(span.file, ""))
    line, column = lines.position(span.start)
    end_line, end_column = lines.position(span.end)
    return {"file": span.file, "line": line, "column": column, "end_line": end_line, "end_column": end_column}


def _paint(text: str, role: str, *, color: bool) -> str:
    return f"{_COLORS[role]}{text}{_PLAIN}" if color else text


def _one(diagnostic: Diagnostic, texts: Mapping[str, Lines], *, color: bool) -> str:
    """Format one diagnostic: its message, the source lines of its span and its labels with carets, and its help."""
    severity = diagnostic.severity
    head = _paint(f"{severity.value}[{diagnostic.code}]", severity.value, color=color)
    parts = [f"{head}: {_printable(diagnostic.message)}"]
    marks = [] if diagnostic.span is None else [(diagnostic.span, "", severity.value)]
    marks += [(label.span, label.text, "label") for label in diagnostic.labels]  # (place, words, kind of mark)
    numbers = [texts[span.file].position(span.start)[0] if span.file in texts else 0 for span, _, _ in marks]
    margin = max((len(str(line)) for line in numbers), default=1)  # the width of the longest line number
    before: tuple[str, list[str]] | None = None  # the file of the last excerpt, and its line as shown
    for span, note, role in marks:
        excerpt = _excerpt(span, note, role, texts, margin, color=color)
        # A second mark on the line just shown adds only its carets, the last line of the excerpt.
        shown = (span.file, excerpt[-2:-1])  # a long line may be cut at another place
        parts += excerpt[-1:] if before == shown else excerpt
        before = shown
    if diagnostic.help:
        parts.append(f"{' ' * margin} {_paint('= help:', 'help', color=color)} {_printable(diagnostic.help)}")
    return "\n".join(parts) + "\n"


def _excerpt(span: Span, note: str, role: str, texts: Mapping[str, Lines], margin: int, *, color: bool) -> list[str]:
    """Format the line of a span with its place above and carets below. Of several lines, the first is shown."""
    lines = texts.get(span.file)
    if lines is None:  # the text of the file is unknown
        return [f"{' ' * margin}--> {span.file}"]
    number, column = lines.position(span.start)
    line = lines.line(number)
    width = max(1, min(span.end - span.start, len(line) - column + 1))  # of the span, on this line
    cut = max(0, column - _LINE_WIDTH_MAX // 2) if len(line) > _LINE_WIDTH_MAX else 0  # not shown at the left
    before, marked = line[cut : column - 1], line[column - 1 : column - 1 + width]
    shown = _printable(line[cut : cut + _LINE_WIDTH_MAX])
    caret = "-" if role == "label" else "^"
    width = min(max(1, len(_printable(marked))), _LINE_WIDTH_MAX)  # of the carets: a tab is printed as four spaces
    underline = " " * len(_printable(before)) + _paint((caret * width + " " + note).rstrip(), role, color=color)
    bar = _paint("|", "place", color=color)
    arrow = _paint("-->", "place", color=color)
    return [
        f"{' ' * margin}{arrow} {_printable(span.file)}:{number}:{column}",
        f"{' ' * margin} {bar}",
        f"{number:>{margin}} {bar} {shown}".rstrip(),
        f"{' ' * margin} {bar} {underline}",
    ]


def _printable(text: str) -> str:
    """Write tabs as spaces, and hidden characters and line feeds as escapes."""
    return visible(text).replace("\t", _TAB).replace("\n", "\\n")


def summary(diagnostics: Iterable[Diagnostic], dropped: int = 0) -> str:
    """Return one line with the counts: `2 errors, 1 warning`."""
    listed = list(diagnostics)
    errors = dropped + sum(1 for d in listed if d.severity is Severity.ERROR)
    warnings = sum(1 for d in listed if d.severity is Severity.WARNING)
    parts = [f"{n} {word}{'' if n == 1 else 's'}" for n, word in ((errors, "error"), (warnings, "warning")) if n]
    return ", ".join(parts) or "no mistakes"
