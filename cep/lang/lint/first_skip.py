"""CEP711: `skip to first x` where x is the first event of each match, so that it skips nothing.

Tested by: tests/lang/golden/lints/
"""

from __future__ import annotations

from collections.abc import Iterator

from cep.lang.diagnostics import Diagnostic, Severity
from cep.lang.ir import SkipKind, VarNode
from cep.lang.load import Checked

CODE = "CEP711"


def find(checked: Checked) -> Iterator[Diagnostic]:
    """Find patterns that skip to the variable with which each match begins."""
    for pattern in checked.patterns.values():
        syntax = checked.resolved.patterns[pattern.name].skip
        first = pattern.structure.steps[0].node
        if (
            syntax is not None
            and pattern.skip.kind is SkipKind.TO_FIRST
            and isinstance(first, VarNode)
            and first.variable == pattern.skip.variable
            and first.quantifier.min_count != 0
        ):
            message = f"each match of `{pattern.name}` begins with `{first.variable}`, so this acts like `skip to next`"
            help_ = "write `skip to next`, or `skip past last`"
            yield Diagnostic(CODE, message, syntax.span, (), help_, Severity.WARNING)
