"""The passes from text to checked IR, in order. A new check is a function of the same shape and a line here.

    text ──lex──▶ tokens ──parse──▶ syntax ──check_files──▶ names, patterns (IR), tests
                                                              │
                 cep/nfa/diagnose.py: does not compile      ◀─┴─▶ cep/lang/lint/run.py: allowed, but not meant

`load.py` reads the texts and follows imports, `parse/file.py` parses each. A mistake is never raised: each pass reports
to a `Collector`, and the next pass works on the sound parts.
Tested by: tests/lang/test_check.py, tests/lang/golden/
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cep.lang.check.bind import bind
from cep.lang.check.clauses import check_conditions, check_measures, check_skip, check_timeout, check_untils
from cep.lang.check.draft import Draft
from cep.lang.check.expressions import ExpressionChecker
from cep.lang.check.params import check_params
from cep.lang.check.produced import check_circles, check_produced
from cep.lang.check.resolve import Resolved, resolve
from cep.lang.check.structure import check_structure
from cep.lang.check.tests import check_tests
from cep.lang.check.variables import check_event_types, check_hidden_fields, check_key, check_places
from cep.lang.diagnostics import Collector
from cep.lang.ir import PatternIR, Variable
from cep.lang.ir_tests import PatternTest, RefusedTest
from cep.lang.syntax import FileSyntax, PatternSyntax

# Each pass reads the draft, fills a part of it, and reports mistakes. The order counts: later passes read that part.
PATTERN_PASSES: tuple[Callable[[Draft], None], ...] = (
    check_places,         # `seq`: the variables, and those bound before each           CEP406, 415
    check_event_types,    # `where`: the event type of each variable, the stream        CEP202, 204, 207, 216
    check_key,            # `by`: every event type of the stream has the key            CEP207, 417
    check_hidden_fields,  # parameters: none has the name of a field                    CEP508
    check_conditions,     # `where`: typed conditions                                   CEP201 to 319, 407, 408
    check_untils,         # `until`: typed conditions                                   the same
    check_structure,      # `seq`: nodes with counts and windows                        CEP401 to 422
    check_timeout,        # `on timeout emit`: typed values                             CEP201 to 319, 419, 423
    check_measures,       # `emit`: typed values                                        CEP201 to 319, 423
    check_produced,       # `produce`: the values make an event of that type            CEP202, 426
    check_skip,           # `skip`: the variable that it names                          CEP418
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Passed:
    """The sound part of a set of files.

    `by_default` has the patterns with their defaults in place, where every parameter has one.
    """

    resolved: Resolved
    patterns: dict[str, PatternIR]
    by_default: dict[str, PatternIR]
    tests: tuple[PatternTest, ...]
    refused_tests: tuple[RefusedTest, ...]


def check_files(files: Sequence[FileSyntax], collector: Collector) -> Passed:
    """Check parsed files as one set of names."""
    resolved = resolve(files, collector)  # declarations → names: CEP207 to 215, 313
    patterns, by_default = check_patterns(resolved, collector)  # each pattern → IR: PATTERN_PASSES
    check_circles(patterns, resolved, collector)  # no pattern feeds itself: CEP427
    tests, refused = check_tests(resolved, patterns, collector)  # tests → events and expectations: CEP6xx
    return Passed(resolved, patterns, by_default, tests, refused)


def check_patterns(resolved: Resolved, collector: Collector) -> tuple[dict[str, PatternIR], dict[str, PatternIR]]:
    """Check every pattern. Return those without errors, and `by_default` of them."""
    patterns: dict[str, PatternIR] = {}
    by_default: dict[str, PatternIR] = {}
    for pattern in resolved.patterns.values():
        errors = collector.error_count
        ir = check_pattern(pattern, resolved, collector)
        if ir is None:
            continue
        bound = _with_defaults(ir, pattern, collector)
        if collector.error_count == errors:
            patterns[ir.name] = ir
            if bound is not None:
                by_default[ir.name] = bound
    return patterns, by_default


def check_pattern(pattern: PatternSyntax, resolved: Resolved, collector: Collector) -> PatternIR | None:
    """Run all passes over a pattern. Return None after an error."""
    errors = collector.error_count
    draft = Draft(pattern, resolved, collector, ExpressionChecker(collector))
    check_params(draft)
    if pattern.structure is None:
        if not pattern.broken:
            message = f"the pattern `{pattern.name}` has no `seq`"
            collector.add("CEP112", message, pattern.span, "add `seq a -> b`")
        return None
    for check in PATTERN_PASSES:
        check(draft)
    has_faulty_events = any(e.name in resolved.faulty for e in draft.stream)
    if pattern.broken or has_faulty_events or collector.error_count > errors:
        return None
    return _ir(draft)


def _ir(draft: Draft) -> PatternIR:
    """Combine the results of the passes."""
    pattern = draft.pattern
    assert draft.structure is not None, "a pass has filled it"
    return PatternIR(
        name=pattern.name,
        params=draft.params,
        key=tuple(k.name for k in pattern.key),
        structure=draft.structure,
        variables=tuple(
            Variable(v.name, draft.event_types[v.name].name, draft.conditions.get(v.name)) for v in draft.variables
        ),
        measures=draft.measures,
        event_types=tuple(e.name for e in draft.stream),
        skip=draft.skip,
        within_ms=draft.within_ms,
        within_events=draft.within_events,
        timeout_measures=draft.timeout_measures,
        doc=pattern.doc,
        produces=None if pattern.produces is None else pattern.produces.name,
    )


def _with_defaults(ir: PatternIR, pattern: PatternSyntax, collector: Collector) -> PatternIR | None:
    """Bind the defaults, if all parameters have one: they must make a sound pattern."""
    if any(p.default is None for p in ir.params):
        return None
    bound, mistakes = bind(ir, {})
    for mistake in mistakes:
        span = next((p.span for p in pattern.params if f"`{p.name}`" in mistake.message), pattern.span)
        collector.add(mistake.code, mistake.message, span, mistake.help)
    return bound
