"""Fixes of diagnostics → the changed texts.

Tested by: tests/lang/test_golden.py
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cep.lang.diagnostics import Diagnostic


def fixed(diagnostics: Iterable[Diagnostic], sources: Mapping[str, str]) -> dict[str, str]:
    """Apply the fixes of diagnostics. Return the texts of the files that change.

    Of two fixes that overlap only the first one is applied, so run it again.
    """
    texts: dict[str, str] = {}
    by_file: dict[str, dict[tuple[int, int], str]] = {}
    for diagnostic in diagnostics:
        if diagnostic.fix is not None and diagnostic.fix.span.file in sources:
            span = diagnostic.fix.span
            by_file.setdefault(span.file, {}).setdefault((span.start, span.end), diagnostic.fix.replacement)
    for file, changes in by_file.items():
        text = sources[file]
        parts: list[str] = []
        position = 0
        for (start, end), replacement in sorted(changes.items()):
            if start < position:
                continue
            parts += [text[position:start], replacement]
            position = end
        texts[file] = "".join([*parts, text[position:]])
    return texts
