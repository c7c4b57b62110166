"""A checked file set → text that is allowed but probably not meant. Each lint has a code and a function in `LINTS`.

Tested by: tests/lang/golden/lints/, tests/lang/test_golden.py, tests/lang/test_functions.py
"""

from collections.abc import Callable, Iterator
from itertools import pairwise, permutations

from cep.base.schema import Kind
from cep.lang import ir, syntax
from cep.lang.check.order import order_of, spans_of
from cep.lang.diagnostics import Diagnostic, Span, warning
from cep.lang.field_names import Role, role_of
from cep.lang.lint.never_true import never, sides
from cep.lang.load import Checked
from cep.lang.show import show_duration, show_expr
from cep.lang.walk import conditions, histories, names_in, nodes, nodes_of


def _structure(checked: Checked, pattern: ir.PatternIR) -> syntax.SequenceSyntax:
    structure = checked.resolved.patterns[pattern.name].structure
    assert structure is not None, "a pattern without `seq` is an error"
    return structure


def _place_of(checked: Checked, pattern: ir.PatternIR, name: str) -> Span:
    where = next(w for w in checked.resolved.patterns[pattern.name].wheres if w.variable == name)
    return where.condition.span if where.condition is not None else where.span


def never_true(checked: Checked) -> Iterator[Diagnostic]:
    """Find conditions that cannot be true, and sides of an `or` that cannot and therefore add nothing."""
    for pattern in checked.patterns.values():
        for name, where in conditions(pattern):
            if never(where):
                message = f"no event fulfils the condition of `{name}`"
                help_line = "its parts contradict each other"
            elif any(never(part) for part in sides(where)):
                message = f"one side of the `or` in the condition of `{name}` is never true"
                help_line = "remove it, or correct it"
            else:
                continue
            yield warning("CEP701", message, _place_of(checked, pattern, name), help_line)


def dead_negation(checked: Checked) -> Iterator[Diagnostic]:
    """Find absences whose condition is never true, so that they exclude nothing."""
    for pattern in checked.patterns.values():
        where = dict(conditions(pattern))
        for variable, negated in order_of(_structure(checked, pattern)).variables:
            if negated and variable.name in where and never(where[variable.name]):
                message = f"the absence of `{variable.name}` excludes nothing: no event fulfils its condition"
                yield warning("CEP703", message, variable.span, "correct its condition")


def label_field(checked: Checked) -> Iterator[Diagnostic]:
    """Find conditions that read a field named like a label, such as `is_fraud`, which is known only afterwards."""
    for pattern in checked.patterns.values():
        for name, where in conditions(pattern):
            fields = {node.field for node in nodes(where) if isinstance(node, ir.CurrentField | ir.VarField)}
            for field in sorted(each for each in fields if role_of(each) is Role.LABEL):
                message = f"`{field}` looks like a label, which is known only after the event"
                help_line = "read a field that is known when the event comes, or say why it is known"
                yield warning("CEP712", message, _place_of(checked, pattern, name), help_line)


def unused(checked: Checked) -> Iterator[Diagnostic]:
    """Find parameters, definitions, lists and variables that nothing refers to."""
    taken = {param.type for pattern in checked.patterns.values() for param in pattern.params}
    # A list that a parameter may take counts as used, because a test or a rule may give it.
    used = {name for name, type_ in checked.resolved.list_types().items() if type_ in taken}
    for file in checked.files:
        for declaration in file.declarations:
            if isinstance(declaration, syntax.DefineSyntax):
                used |= names_in(declaration.body) - {declaration.name}  # a use in itself does not count
            elif isinstance(declaration, syntax.PatternSyntax):
                used |= names_in(declaration)
    # A declaration that only an unused one refers to counts as used, until that one is removed.
    for kind, declared in (("definition", checked.resolved.defines), ("list", checked.resolved.lists)):
        for name, one in declared.items():
            if name not in used:
                yield warning("CEP702", f"the {kind} `{name}` is not used", one.span, "leave it out")
    for pattern in checked.patterns.values():
        declared_params = checked.resolved.patterns[pattern.name].params
        params = {param.name for param in nodes_of(pattern, ir.Param)}  # the parameters that it uses
        for param in declared_params:
            if param.name not in params:
                help_line = "a rule that sets it would change nothing"
                yield warning("CEP702", f"the parameter `{param.name}` is not used", param.span, help_line)
        yield from _unused_variables(checked, pattern)


def _unused_variables(checked: Checked, pattern: ir.PatternIR) -> Iterator[Diagnostic]:
    """Find variables without a condition that nothing refers to. Such a variable binds any event: usually a mistake."""
    used = {node.variable for node in nodes(pattern) if isinstance(node, ir.VarField | ir.Aggregate)}
    used |= {v.name for v in pattern.variables if v.where is not None}
    spans = spans_of(_structure(checked, pattern))
    spans |= {where.variable: where.span for where in checked.resolved.patterns[pattern.name].wheres}
    for variable in pattern.variables if len(pattern.variables) > 1 else ():
        if variable.name not in used | {pattern.skip.variable}:
            message = f"the variable `{variable.name}` has no condition and nothing refers to it: any event fits"
            yield warning("CEP702", message, spans[variable.name], "add a condition")


def untested(checked: Checked) -> Iterator[Diagnostic]:
    """Find patterns without a test that expects a match, or without one that expects none. A `todo` test counts."""
    positive: set[str] = set()
    negative: set[str] = set()
    for test in checked.resolved.tests:
        for expect in test.expects:
            is_positive = expect.kind in ("match", "timeout") or (expect.kind == "matches" and expect.count > 0)
            (positive if is_positive else negative).add(test.pattern.name)
    for pattern in checked.resolved.patterns.values():
        expectations = (("expects a match", positive), ("expects none", negative))
        missing = [expectation for expectation, tested in expectations if pattern.name not in tested]
        if missing:
            message = f"the pattern `{pattern.name}` has no test that {' and none that '.join(missing)}"
            yield warning("CEP704", message, pattern.span, f'add `test "…" of {pattern.name} {{ … }}`')


def retention(checked: Checked) -> Iterator[Diagnostic]:
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
                    yield warning("CEP705", message, place, "raise `retain`, or look less far back")


def _spans(pattern: ir.PatternIR, all_types: tuple[str, ...]) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """Yield (subject, length in ms, event types) of each window of a pattern."""
    within = _amount(pattern, pattern.within_ms)  # a parameter counts with its default
    if within is not None:
        yield "the window", within, pattern.event_types
    for history in histories(pattern):
        if history.window is None:  # it looks back to all past events
            continue
        span = _amount(pattern, history.window.ms)
        if history.window.calendar is not None:
            span = ir.CALENDAR_MS_MAX[history.window.calendar]  # such as 25 h for a day
        if span is not None:  # a function that names no event type reads all types
            yield f"`{show_expr(history)}`", span, (history.event_type,) if history.event_type else all_types


def _amount(pattern: ir.PatternIR, amount: int | ir.Param | None) -> int | None:
    if not isinstance(amount, ir.Param):
        return amount
    default = next(p.default for p in pattern.params if p.name == amount.name)
    return default if isinstance(default, int) else None


def endless(checked: Checked) -> Iterator[Diagnostic]:
    """Find patterns without `within` whose steps may come at any time. CEP420 reports endless repetitions instead."""
    reported = [d.span for d in checked.diagnostics if d.code == "CEP420" and d.span is not None]
    for pattern in checked.patterns.values():
        place = _structure(checked, pattern).span
        is_bounded = pattern.within_ms is not None or pattern.within_events is not None
        is_reported = any(s.file == place.file and place.start <= s.start and s.end <= place.end for s in reported)
        if not is_bounded and not is_reported and _may_wait_for_ever(pattern.structure):
            message = f"a partial match of `{pattern.name}` may wait for ever, "
            message += "and an `in order` match behind it as well"
            yield warning("CEP707", message, place, "add `within 1 h` at the end of `seq`")


def _may_wait_for_ever(node: ir.Node) -> bool:
    """Return True if a match may wait for an event of this part of a pattern without a limit, and skip all others."""
    if isinstance(node, ir.AnyOrderNode):
        return len(node.items) > 1
    if isinstance(node, ir.AlternativeNode):
        return any(_may_wait_for_ever(option) for option in node.options)
    quantifier = node.quantifier
    if quantifier.max_count != 1 and quantifier.gap_ms is None and quantifier.inner is not ir.Inner.STRICT:
        return True
    if not isinstance(node, ir.SequenceNode) or node.within_ms is not None:
        return False
    later = (step for step in node.steps[1:] if not step.negated)  # a match does not wait for an absence
    has_endless = any(step.link is not ir.Link.NEXT and step.gap_max_ms is None for step in later)  # NEXT skips none
    return has_endless or any(_may_wait_for_ever(step.node) for step in node.steps)


def evasion(checked: Checked) -> Iterator[Diagnostic]:
    """Find patterns that an attacker evades with one event of a small amount, sent between the steps or before them."""
    cheap_types = {e.name for e in checked.schema.event_types if any(f.type.kind is Kind.DECIMAL for f in e.fields)}
    for pattern in checked.patterns.values():
        if cheap_types.isdisjoint(pattern.event_types):
            continue
        if _is_strict(pattern.structure):  # another event between two steps ends a match
            message = (
                f"a cheap event between the steps of `{pattern.name}` ends the match, and an attacker can send one"
            )
            help_line = "write `->` for `,` and leave `strict` out, or say why it is fine"
            yield warning("CEP708", message, _structure(checked, pattern).span, help_line)
        for name, where in conditions(pattern):
            for history in _first_times(where, cheap_types):  # a condition such as `not exists(payment by shop)`
                message = f"one cheap event makes `{history.by[0]}` known, and an attacker can send it before"
                help_line = "let past events of a smallest amount count alone: `where amount >= 5.00`"
                yield warning("CEP709", message, _place_of(checked, pattern, name), help_line)


def _is_strict(node: ir.Node) -> bool:
    """Return True if in this part of a pattern one event must follow another directly, without events in between."""
    if isinstance(node, ir.AlternativeNode):
        return any(_is_strict(option) for option in node.options)
    if isinstance(node, ir.AnyOrderNode):
        return any(_is_strict(item) for item in node.items)
    repeats = node.quantifier.max_count != 1
    if not isinstance(node, ir.SequenceNode):
        return repeats and node.quantifier.inner is ir.Inner.STRICT
    steps = node.steps if repeats else node.steps[1:]  # only in a repetition, the first step follows another one
    follows = any(step.link is ir.Link.NEXT and not step.negated for step in steps)
    return follows or any(_is_strict(step.node) for step in node.steps)


def _first_times(where: object, cheap_types: set[str]) -> Iterator[ir.History]:
    """Yield the functions of past events that ask if a value of a field comes for the first time, at any amount."""
    for unary in nodes_of(where, ir.Unary):
        history = unary.argument
        if unary.op != "not" or not isinstance(history, ir.History) or history.fn != "exists" or not history.by:
            continue
        has_amount = any(field.type.kind is Kind.DECIMAL for field in nodes_of(history.where, ir.CurrentField))
        if history.event_type in cheap_types and not has_amount:
            yield history


def first_skip(checked: Checked) -> Iterator[Diagnostic]:
    """Find patterns that skip to the variable with which each match begins, which skips nothing."""
    for pattern in checked.patterns.values():
        written = checked.resolved.patterns[pattern.name].skip
        skip, first = pattern.skip, pattern.structure.steps[0].node
        begins = isinstance(first, ir.VarNode) and first.variable == skip.variable and first.quantifier.min_count != 0
        if written is not None and skip.kind is ir.SkipKind.TO_FIRST and begins:
            message = f"each match of `{pattern.name}` begins with `{skip.variable}`, so this acts like `skip to next`"
            yield warning("CEP711", message, written.span, "write `skip to next`, or `skip past last`")


def greedy_step(checked: Checked) -> Iterator[Diagnostic]:
    """Find steps that never take an event, because the greedy loop before them takes each event that fits them."""
    for pattern in checked.patterns.values():
        spans = spans_of(_structure(checked, pattern))
        sequences = (s for s in nodes_of(pattern.structure, ir.SequenceNode) if s.within_ms is None)  # no window
        for first, second in (pair for sequence in sequences for pair in pairwise(sequence.steps)):
            if not isinstance(first.node, ir.VarNode) or not isinstance(second.node, ir.VarNode):
                continue
            loop, step = first.node.variable, second.node.variable  # the names of two steps in a row
            if _is_endless(first, first.node) and _is_required(second, second.node) and _fits(pattern, step, loop):
                message = f"`{step}` never takes an event: each one that fits it fits the greedy loop `{loop}`, too"
                help_line = f"leave out `greedy`, or exclude the events of `{step}` in the condition of `{loop}`"
                yield warning("CEP713", message, spans.get(step), help_line)


def _is_endless(step: ir.Step, node: ir.VarNode) -> bool:
    loop = node.quantifier
    is_open = loop.max_count is None and loop.until is None and loop.gap_ms is None
    return not step.negated and loop.greedy and is_open and loop.inner is ir.Inner.RELAXED


def _is_required(step: ir.Step, node: ir.VarNode) -> bool:
    has_gap = step.gap_min_ms is not None or step.gap_max_ms is not None
    return node.quantifier.min_count != 0 and not step.negated and not has_gap


def _fits(pattern: ir.PatternIR, narrow: str, wide: str) -> bool:
    """Return True if each event of a variable fits another one: its condition has all parts of the other condition."""
    one, other = pattern.variable(narrow), pattern.variable(wide)
    return one.event_type == other.event_type and set(_parts_of(other.where)) <= set(_parts_of(one.where))


def _parts_of(expr: ir.Expr | None) -> Iterator[str]:
    """Yield the parts of a condition that must all hold, as texts."""
    if isinstance(expr, ir.Binary) and expr.op == "and":
        yield from _parts_of(expr.left)
        yield from _parts_of(expr.right)
    elif expr is not None:
        yield show_expr(expr)


def shorter_option(checked: Checked) -> Iterator[Diagnostic]:
    """Find options of a whole pattern that begin with the steps of a shorter option, which matches before them."""
    for pattern in checked.patterns.values():
        spans = spans_of(_structure(checked, pattern))
        for shorter, longer in _hidden_options(pattern):
            message = f"the alternative that ends with `{longer}` never matches: the one that ends with `{shorter}` is "
            message += "complete before it, on the same events"
            help_line = f"leave it out, or exclude its events in the condition of `{shorter}`"
            yield warning("CEP714", message, spans.get(longer), help_line)


def _hidden_options(pattern: ir.PatternIR) -> Iterator[tuple[str, str]]:
    """Yield the last variables of a shorter option and of each longer one that fits only events of the shorter one."""
    first, *others = pattern.structure.steps
    if others or pattern.skip.kind is not ir.SkipKind.PAST_LAST or not isinstance(first.node, ir.AlternativeNode):
        return
    options = [_steps_of_single_events(option) for option in first.node.options]
    for shorter, longer in permutations(options, 2):
        pairs = zip(shorter, longer, strict=False)
        if 0 < len(shorter) < len(longer) and all(a[0] == b[0] and _fits(pattern, b[1], a[1]) for a, b in pairs):
            yield shorter[-1][1], longer[-1][1]


def _steps_of_single_events(option: ir.Node) -> list[tuple[ir.Link, str]]:
    """Return (link, variable) of each step of one alternative; [] unless each step is only a link and a variable."""
    match option:
        case ir.VarNode():
            steps: tuple[ir.Step, ...] = (ir.Step(ir.Link.FOLLOWED_BY, option),)
        case ir.SequenceNode() if option.quantifier == ir.ONCE and option.within_ms is None:
            steps = option.steps
        case _:
            return []
    single_events = [  # steps without repetition, absence and time, which can be compared one by one
        (ir.Link.FOLLOWED_BY if number == 0 else step.link, step.node.variable)  # the link of the first means nothing
        for number, step in enumerate(steps)
        if isinstance(step.node, ir.VarNode) and step == ir.Step(step.link, ir.VarNode(step.node.variable))
    ]
    return single_events if len(single_events) == len(steps) else []


# Of two findings about one place, the one of the earlier lint comes first.
LINTS: tuple[Callable[[Checked], Iterator[Diagnostic]], ...] = (
    never_true,
    unused,
    dead_negation,
    untested,
    retention,
    endless,
    evasion,
    first_skip,
    greedy_step,
    label_field,
    shorter_option,
)
