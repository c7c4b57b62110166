"""CEP706: a pattern whose estimated keyed state is above the budget.

Not among the lints of the language: the estimate needs the compiled form.
Tested by: tests/report/test_plan.py
"""

from __future__ import annotations

from collections.abc import Iterator

from cep.base.limits import STATE_BYTES_PER_KEY_BUDGET
from cep.lang.diagnostics import Diagnostic, Severity
from cep.lang.load import Checked
from cep.report.plan import plan
from cep.report.plan_text import size_text

CODE = "CEP706"


def find(checked: Checked) -> Iterator[Diagnostic]:
    """Find patterns whose keyed state exceeds the budget with the defaults of their parameters."""
    for planned in plan(checked.patterns.values(), checked.schema, {}).patterns:
        if planned.state_bytes <= STATE_BYTES_PER_KEY_BUDGET:
            continue
        name = planned.pattern.name
        message = (
            f"a busy key of `{name}` needs about {size_text(planned.state_bytes)} of keyed state, "
            f"the budget is {size_text(STATE_BYTES_PER_KEY_BUDGET)}"
        )
        span = checked.resolved.patterns[name].span
        help_line = "use `->` where `->>` or `any` is not needed, or bound the repetition"
        yield Diagnostic(CODE, message, span, (), help_line, Severity.WARNING)
