"""CEP704: a pattern without a test that expects a match, or without one that expects none.

Tested by: tests/lang/golden/lints/
"""

from __future__ import annotations

from collections.abc import Iterator

from cep.lang.diagnostics import Diagnostic, Severity
from cep.lang.load import Checked

CODE = "CEP704"


def find(checked: Checked) -> Iterator[Diagnostic]:
    """Find patterns that lack a test with a match or a test without one. A test that is a known gap counts."""
    positive: set[str] = set()
    negative: set[str] = set()
    for test in checked.resolved.tests:
        for expect in test.expects:
            is_positive = expect.kind in ("match", "timeout") or (expect.kind == "matches" and expect.count > 0)
            (positive if is_positive else negative).add(test.pattern.name)
    for pattern in checked.resolved.patterns.values():
        missing = [
            expectation
            for expectation, tested in (("expects a match", positive), ("expects none", negative))
            if pattern.name not in tested
        ]
        if missing:
            message = f"the pattern `{pattern.name}` has no test that {' and none that '.join(missing)}"
            help_line = f'add `test "…" of {pattern.name} {{ … }}`'
            yield Diagnostic(CODE, message, pattern.span, (), help_line, Severity.WARNING)
