"""CEP705: a window, or a look back, beyond the time for which events are kept.

Tested by: tests/lang/golden/lints/, tests/lang/test_functions.py
"""

from __future__ import annotations

from collections.abc import Iterator

from cep.lang.diagnostics import Diagnostic, Severity
from cep.lang.ir import CALENDAR_MS_MAX, Param, PatternIR
from cep.lang.load import Checked
from cep.lang.show import show_duration, show_expr
from cep.lang.walk import histories

CODE = "CEP705"


def find(checked: Checked) -> Iterator[Diagnostic]:
    """Find windows longer than the `retain` of an event type that they look at. Parameters count with their default."""
    retained_ms = {e.name: e.retain_ms for e in checked.schema.event_types if e.retain_ms is not None}
    for pattern in checked.patterns.values():
        for subject, span_ms, names in _spans(pattern, tuple(retained_ms)):
            for name in names:
                if name in retained_ms and span_ms > retained_ms[name]:
                    message = (
                        f"{subject} of `{pattern.name}` is {show_duration(span_ms)}, but events of `{name}` are kept "
                        f"for {show_duration(retained_ms[name])}"
                    )
                    place = checked.resolved.patterns[pattern.name].span
                    help_line = "raise `retain`, or look less far back"
                    yield Diagnostic(CODE, message, place, (), help_line, Severity.WARNING)


def _spans(pattern: PatternIR, all_types: tuple[str, ...]) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """Yield (subject, length in ms, event types) of each window of a pattern."""
    within = _amount(pattern, pattern.within_ms)
    if within is not None:
        yield "the window", within, pattern.event_types
    for history in histories(pattern):
        if history.window is None:
            continue
        span = _amount(pattern, history.window.ms)
        if history.window.calendar is not None:
            span = CALENDAR_MS_MAX[history.window.calendar]
        if span is not None:
            yield f"`{show_expr(history)}`", span, (history.event_type,) if history.event_type else all_types


def _amount(pattern: PatternIR, amount: int | Param | None) -> int | None:
    if not isinstance(amount, Param):
        return amount
    default = next(p.default for p in pattern.params if p.name == amount.name)
    return default if isinstance(default, int) else None
