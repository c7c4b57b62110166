"""Mistakes of rule authors as values: a stable code, a span, perhaps a second one, and a line of help.

Nothing in this floor raises for a mistake in a file: it is collected here, so that one run reports all of them. The
codes and their long forms are in `explain/catalogue.txt`, the text and JSON forms in `explain/render.py`.
Tested by: tests/lang/test_diagnostics.py, tests/lang/golden/diagnostics/
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from cep.base.limits import DIAGNOSTICS_MAX
from cep.base.text import nearest_name


class Severity(StrEnum):
    """An error keeps a pattern from being deployed, a warning does not."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(slots=True, unsafe_hash=True)  # not frozen: every token has one, and freezing doubles the cost of one
class Span:
    """The characters [start, end) of one file. Never changed."""

    file: str
    start: int
    end: int

    def to(self, other: Span) -> Span:
        """Return the span from the start of this one to the end of the other, in the file of this one."""
        return Span(self.file, self.start, max(self.end, other.end) if other.file == self.file else self.end)


@dataclass(frozen=True, slots=True)
class Label:
    """A second place that matters, with a few words."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Fix:
    """A change of the text that puts a mistake right: these characters become that text."""

    span: Span
    replacement: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding about a file or about the arguments of a rule. For an argument, `span` is None."""

    code: str  # such as CEP203
    message: str
    span: Span | None = None
    labels: tuple[Label, ...] = ()  # other places that matter, with a few words each
    help: str = ""  # how to put it right
    severity: Severity = Severity.ERROR
    fix: Fix | None = None  # a change of the text that puts it right

    @property
    def is_error(self) -> bool:
        return self.severity is Severity.ERROR


def place_of(diagnostic: Diagnostic, files: Sequence[str]) -> tuple[int, int]:
    """Return the place of a diagnostic, to sort by: its file among `files`, and its offset there."""
    span = diagnostic.span
    return (-1, 0) if span is None else (files.index(span.file), span.start)


def warning(code: str, message: str, span: Span | None, help_line: str) -> Diagnostic:
    """Return a warning."""
    return Diagnostic(code, message, span, (), help_line, Severity.WARNING)


@dataclass(slots=True)
class Collector:
    """Gathers diagnostics in the order in which they are found; says the same thing once, and not without end."""

    diagnostics: list[Diagnostic] = field(default_factory=list)
    dropped: int = 0
    error_count: int = 0  # every error reported, also one that was said before or dropped: none means a clean text
    _seen: set[Diagnostic] = field(default_factory=set)

    def add(
        self,
        code: str,
        message: str,
        span: Span | None = None,
        help_line: str = "",
        labels: Iterable[Label] = (),
        fix: Fix | None = None,
    ) -> None:
        self.put(Diagnostic(code, message, span, tuple(labels), help_line, fix=fix))

    def unknown(
        self,
        code: str,
        message: str,
        name: str,
        span: Span,
        candidates: Iterable[str],
        label: str = "known",  # the word before the valid names in the help line
        labels: Iterable[Label] = (),  # other places that matter
    ) -> None:
        """Add an error about an unknown name, which is all of `span`, with the nearest valid one as help and fix."""
        candidates = tuple(candidates)
        help_line, fix = did_you_mean(name, candidates, label), nearest_fix(name, candidates, span)
        self.add(code, message, span, help_line, labels, fix)

    def warn(self, code: str, message: str, span: Span | None = None, help_line: str = "") -> None:
        self.put(warning(code, message, span, help_line))

    def put(self, diagnostic: Diagnostic) -> None:
        self.error_count += diagnostic.is_error
        if diagnostic in self._seen:
            return
        if len(self.diagnostics) >= DIAGNOSTICS_MAX:
            self.dropped += 1
            return
        self._seen.add(diagnostic)
        self.diagnostics.append(diagnostic)


_LOOKALIKES = str.maketrans("oil", "011")  # letters and digits that are taken for each other


def _look(name: str) -> str:
    return name.lower().translate(_LOOKALIKES)


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that was probably meant, or None."""
    names = sorted(set(candidates))
    by_look = {_look(c): c for c in names}
    if _look(name) in by_look:
        return by_look[_look(name)]
    return nearest_name(name[:80], names)


def nearest_fix(name: str, candidates: Iterable[str], span: Span) -> Fix | None:
    """Return the change from an unknown name, which is all of `span`, to the nearest valid one."""
    close = nearest(name, candidates)
    return None if close is None else Fix(span, close)


def did_you_mean(name: str, candidates: Iterable[str], label: str = "known") -> str:
    """Return the help line for an unknown name: the nearest valid one, or the first few valid ones."""
    names = sorted(set(candidates))
    close = nearest(name, names)
    if close is not None:
        return f"did you mean `{close}`?"
    if not names:
        return ""
    shown = ", ".join(f"`{c}`" for c in names[:8])
    return f"{label}: {shown}{', …' if len(names) > 8 else ''}"
