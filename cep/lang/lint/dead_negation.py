"""CEP703: an absence of something that never comes, so that it excludes nothing.

Tested by: tests/lang/golden/lints/
"""

from __future__ import annotations

from collections.abc import Iterator

from cep.lang.check.order import order_of
from cep.lang.diagnostics import Diagnostic, Severity
from cep.lang.lint.never_true import never
from cep.lang.load import Checked
from cep.lang.walk import conditions

CODE = "CEP703"


def find(checked: Checked) -> Iterator[Diagnostic]:
    """Absences whose condition is never true."""
    for pattern in checked.patterns.values():
        structure = checked.resolved.patterns[pattern.name].structure
        if structure is None:
            continue
        where = dict(conditions(pattern))
        for variable, negated in order_of(structure).places:
            if negated and variable.name in where and never(where[variable.name]):
                message = f"the absence of `{variable.name}` excludes nothing: no event fulfils its condition"
                yield Diagnostic(CODE, message, variable.span, (), "correct its condition", Severity.WARNING)
