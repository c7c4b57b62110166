"""The structure of a pattern: from syntax to nodes, with the rules for each place.

Tested by: tests/lang/test_structure.py, tests/lang/golden/diagnostics/
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cep.base.limits import REPETITIONS_MAX
from cep.base.schema import Kind, Type, valueclass
from cep.lang import ir, syntax
from cep.lang.check.clauses import Draft
from cep.lang.check.order import body_can_be_empty, can_be_empty, is_loop
from cep.lang.diagnostics import Collector, Label, Span, did_you_mean, nearest_fix
from cep.lang.show import show_duration

_ITERATION_LINKS = {  # how an iteration of a repeated group follows the one before it
    ir.Inner.RELAXED: ir.Link.FOLLOWED_BY,
    ir.Inner.STRICT: ir.Link.NEXT,
    ir.Inner.ANY: ir.Link.FOLLOWED_BY_ANY,
}


@valueclass(frozen=True, slots=True)
class Around:
    """The surroundings of an element."""

    window: bool  # there is a time window
    rest_may_be_empty: bool  # everything after the element can match nothing
    may_complete: bool  # the last event of the element may complete the match: no absence follows


def check_structure(draft: Draft) -> None:
    """Turn the structure into nodes, with its windows."""
    assert draft.pattern.structure is not None, "without `seq` no pass runs"
    checker = _StructureChecker(draft.collector, draft.param_types, draft.untils)
    draft.structure = checker.check(draft.pattern.structure)
    draft.within_ms, draft.within_events = checker.within_ms, checker.within_events
    draft.has_window = checker.has_window


class _StructureChecker:
    """Turns one structure into nodes. `untils` holds the checked conditions by the span of their `until`."""

    def __init__(self, collector: Collector, params: Mapping[str, Type], untils: Mapping[Span, ir.Expr | None]) -> None:
        self.collector = collector
        self.params = params
        self.untils = untils
        self.within_ms: int | ir.Param | None = None
        self.within_events: int | ir.Param | None = None
        self.within_span: Span | None = None
        self.unbounded_span: Span | None = None
        self.has_window = False

    def check(self, structure: syntax.SequenceSyntax) -> ir.SequenceNode:
        """Check the whole structure and return its nodes. Set `within_ms` and `within_events`, its windows."""
        self._whole_windows(structure.windows)
        around = Around(window=self.within_ms is not None, rest_may_be_empty=True, may_complete=True)  # nothing follows
        steps = self._steps(structure, around, ir.Link.FOLLOWED_BY)
        if body_can_be_empty(structure):
            help_line = (
                "a match of nothing is never given, so any one event that fits is a match: require the one that matters"
            )
            self.collector.warn("CEP412", "no element of this pattern is required", structure.span, help_line)
        if self.unbounded_span is not None and self.within_span is None:  # found by `_steps`
            message = "this repetition has no end and no window bounds it"
            self.collector.warn("CEP420", message, self.unbounded_span, "add `within` or a maximum")
        return ir.SequenceNode(steps)

    def _whole_windows(self, windows: tuple[syntax.WindowSyntax, ...]) -> None:
        for window in windows:
            if window.in_events:
                self._once(self.within_events, window)
                self.within_events = self.count(window.bound, "a window", least=1)
            else:
                self._once(self.within_ms, window)
                self.within_ms = self.duration(window.bound, "a window")
            self.within_span = window.span

    def _once(self, earlier: object, window: syntax.WindowSyntax) -> None:
        if earlier is not None:
            self.collector.add("CEP416", "this window is given twice", window.span, "leave out one")

    def _inner_window(self, windows: tuple[syntax.WindowSyntax, ...]) -> int | ir.Param | None:
        amount: int | ir.Param | None = None
        for window in windows:
            if window.in_events:
                message = "a window in events belongs to the whole pattern"
                self.collector.add("CEP416", message, window.span, "move it to the end of `seq`")
                continue
            self._once(amount, window)
            amount = self.duration(window.bound, "a window")
        return amount

    def duration(self, bound: syntax.Bound, noun: str, least: int = 1) -> int | ir.Param | None:
        """Return the length of a window or gap: ms, or a parameter of type duration. Return None after a report."""
        self.has_window = True  # `on timeout` needs one
        if isinstance(bound, syntax.NameRef):
            return self._param(bound.name, bound.span, Kind.DURATION)
        if isinstance(bound, syntax.DurationLiteral) and bound.ms >= least:
            return bound.ms
        if isinstance(bound, syntax.DurationLiteral) or (bound.value == 0 and least):  # too short, or 0 without a unit
            self.collector.add("CEP402", f"{noun} must be longer than 0", bound.span)
        else:
            help_line = "write `5 min`" if bound.value else "write `0 s`"
            if noun == "a window":
                help_line = f"write `{bound.value} min` or `{bound.value} events`"
            self.collector.add("CEP104", f"{noun} needs a unit of time", bound.span, help_line)
        return None

    def count(self, bound: syntax.Bound, noun: str, least: int) -> int | ir.Param | None:
        """Return a number of events or a parameter of type int, None after a report."""
        if isinstance(bound, syntax.NameRef):
            return self._param(bound.name, bound.span, Kind.INT)
        if not (isinstance(bound, syntax.Literal) and isinstance(bound.value, int)):
            self.collector.add("CEP409", f"{noun} is a whole number here", bound.span)
        elif least <= bound.value <= REPETITIONS_MAX:
            return bound.value
        else:
            code = "CEP402" if noun == "a window" else "CEP409"
            self.collector.add(code, f"{noun} must be between {least} and {REPETITIONS_MAX}", bound.span)
        return None

    def _param(self, name: str, span: Span, kind: Kind) -> ir.Param | None:
        """Return the parameter that stands for a count or a duration, None after a report."""
        param_type = self.params.get(name)
        if param_type is None:
            help_line = did_you_mean(name, (n for n, t in self.params.items() if t.kind is kind), "parameters")
            fix = nearest_fix(name, self.params, span)
            self.collector.add("CEP201", f"`{name}` is not a parameter of the pattern", span, help_line, fix=fix)
            return None
        if param_type.kind is not kind:
            message = f"a parameter of type {kind.value} is needed here, `{name}` is {param_type}"
            self.collector.add("CEP301", message, span)
            return None
        return ir.Param(name, param_type)

    def _steps(self, body: syntax.SequenceSyntax, around: Around, first_link: ir.Link) -> tuple[ir.Step, ...]:
        """Check the steps of a sequence from the last to the first, because a step needs to know what may follow it."""
        steps: list[ir.Step] = []
        rest_may_be_empty = around.rest_may_be_empty  # the steps after this one can match nothing
        may_complete = around.may_complete  # and none of them is an absence
        for index in reversed(range(len(body.steps))):
            step = body.steps[index]
            link = step.link if index else first_link  # nothing is written before the first step
            # The time of an absence, as in `->[5 min] !x`, ends the wait for x, except next to a `, !y` without time.
            has_own_window = step.negated and step.gap_max is not None and not _is_next_to_not_next(body.steps, index)
            inside = Around(around.window or has_own_window, rest_may_be_empty, may_complete)
            steps.append(self._step(step, link, inside, is_first=index == 0))
            is_optional = not step.negated and can_be_empty(step.element)
            rest_may_be_empty = rest_may_be_empty and (step.negated or is_optional)
            may_complete = may_complete and is_optional
        return tuple(reversed(steps))

    def _step(self, step: syntax.StepSyntax, link: ir.Link, around: Around, *, is_first: bool) -> ir.Step:
        if step.negated:
            self._absence(step, link, around, is_first=is_first)
        gap_min = self.duration(step.gap_min, "the least time of a step", 0) if step.gap_min is not None else None
        gap_max = self.duration(step.gap_max, "the time of a step") if step.gap_max is not None else None
        if isinstance(gap_min, int) and isinstance(gap_max, int) and gap_min >= gap_max:
            self.collector.add("CEP422", "the first time of this step is not below the second", step.span)
        node = self._element(step.element, around)
        return ir.Step(link, node, step.negated, gap_min, gap_max)

    def _absence(self, step: syntax.StepSyntax, link: ir.Link, around: Around, *, is_first: bool) -> None:
        """Report an absence (`!b`) where it cannot stand, or where no later event or window could confirm it."""
        element = step.element
        if is_first:
            help_line = "put an event before it: `a -> !b`"
            self.collector.add("CEP410", "a sequence cannot begin with an absence", step.span, help_line)
        if isinstance(element, syntax.GroupSyntax):
            help_line = "give each variable its own `!`"
            self.collector.add("CEP411", "only a single variable can be absent", step.span, help_line)
        elif element.suffix.first_span is not None:
            message = "an absence has no repetition"
            self.collector.add("CEP411", message, element.suffix.first_span, f"write `!{element.name}`")
        if link is not ir.Link.NEXT and around.rest_may_be_empty and not around.window and not is_first:
            message = "this absence would never be certain: nothing has to follow it, and no window ends the wait"
            self.collector.add("CEP401", message, step.span, "add `within 5 min` at the end")

    def _element(self, element: syntax.ElementSyntax, around: Around) -> ir.Node:
        if isinstance(element, syntax.VariableSyntax):
            self._loop_rules(element)
            if around.may_complete:
                self._greed_at_end(element)
            return ir.VarNode(element.name, self._quantifier(element.suffix))
        return self._group(element, around)

    def _group(self, group: syntax.GroupSyntax, around: Around) -> ir.Node:
        """Turn a group in parentheses into a node, with its repetition, its windows and the link between iterations."""
        self._loop_rules(group)
        body = group.body
        repeat = group.suffix.repeat
        if is_loop(repeat) and body_can_be_empty(body) and repeat is not None:
            labels = (Label(group.span, "this can match nothing"),)
            help_line = "drop the `?` or `*` inside, or the repetition outside"
            message = "this repetition has no end: what it repeats can match nothing"
            self.collector.add("CEP403", message, repeat.span, help_line, labels)
        within = self._inner_window(body.windows)  # in the parentheses: for each iteration
        outer = self._inner_window((group.within,)) if group.within is not None else None  # for all together
        around = replace(around, window=around.window or within is not None or outer is not None)
        quantifier = self._quantifier(group.suffix)
        if isinstance(body, syntax.SequenceSyntax):
            node = ir.SequenceNode(self._steps(body, around, _ITERATION_LINKS[quantifier.inner]), quantifier, within)
        else:
            choice = self._choice(body, around)
            if group.suffix.first_span is None and within is None and outer is None:  # without repetition and window
                return choice
            node = ir.SequenceNode((ir.Step(_ITERATION_LINKS[quantifier.inner], choice),), quantifier, within)
        if outer is None:
            return node
        if repeat is None and within is None:
            return replace(node, within_ms=outer)
        # The window of all iterations needs a node of its own around the repeated one.
        return ir.SequenceNode((ir.Step(ir.Link.FOLLOWED_BY, node),), within_ms=outer)

    def _choice(self, body: syntax.ChoiceSyntax, around: Around) -> ir.Node:
        for item in body.items:
            if can_be_empty(item):
                message = f"each element of `{body.op}` has to match an event"
                self.collector.add("CEP421", message, item.span, f"write `(a {body.op} b)?`")
        nodes = tuple(self._element(item, around) for item in body.items)
        return ir.AlternativeNode(nodes) if body.op == "|" else ir.AnyOrderNode(nodes)

    def _quantifier(self, suffix: syntax.SuffixSyntax) -> ir.Quantifier:
        """Return how often an element repeats, and by which rules; once if no repetition is written."""
        minimum: int | ir.Param | None = 1
        maximum: int | ir.Param | None = 1
        repeat = suffix.repeat
        if repeat is not None:
            exactly = repeat.maximum is repeat.minimum  # for `a{3}` the parser stores one object twice
            minimum = self.count(repeat.minimum, "a repetition", 1 if exactly else 0)
            maximum = minimum if exactly else None
            if repeat.maximum is not None and not exactly:
                maximum = self.count(repeat.maximum, "the most of a repetition", 1)
            if isinstance(minimum, int) and isinstance(maximum, int) and maximum < minimum:
                self.collector.add("CEP409", "the maximum of this repetition is below its minimum", repeat.span)
            if repeat.maximum is None and suffix.until is None:
                self.unbounded_span = self.unbounded_span or repeat.span
        gap = self.duration(suffix.gap, "a gap") if suffix.gap is not None else None
        until = self.untils.get(suffix.until_span) if suffix.until_span is not None else None
        return ir.Quantifier(
            min_count=1 if minimum is None else minimum,
            max_count=maximum,
            inner=suffix.inner,
            greedy=suffix.greedy_span is not None,
            until=until,
            gap_ms=gap,
        )

    def _loop_rules(self, element: syntax.ElementSyntax) -> None:
        """Report `greedy`, `strict`, `until` or a gap that is used without a repetition that it can belong to."""
        suffix, add = element.suffix, self.collector.add
        loops = is_loop(suffix.repeat)
        if suffix.greedy_span is not None:
            if isinstance(element, syntax.GroupSyntax) and loops:
                add("CEP404", "`greedy` cannot stand on a repeated group", suffix.greedy_span, "put it on a variable")
            elif suffix.inner is ir.Inner.ANY:
                add("CEP404", "`greedy` and `any` exclude each other", suffix.greedy_span, "leave out one")
            elif suffix.repeat is None:
                add("CEP404", "`greedy` needs a repetition", suffix.greedy_span, "write `a+ greedy`")
        if suffix.inner_span is not None and not loops:
            add("CEP414", f"`{suffix.inner.value}` needs a repetition", suffix.inner_span, "write `a+ strict`")
        if suffix.until_span is not None and (suffix.repeat is None or suffix.repeat.maximum is not None):
            help_line = "write `a+ until (…)` or `a{2,} until (…)`"
            add("CEP405", "`until` needs a repetition without a maximum", suffix.until_span, help_line)
        if suffix.gap is not None and not loops:
            help_line = "for the time between two steps write `a ->[5 min] b`"
            add("CEP413", "a gap needs a repetition", suffix.gap.span, help_line)

    def _greed_at_end(self, element: syntax.VariableSyntax) -> None:
        """Refuse `greedy` on a loop that may complete the match: no later event ends it. Suggest `a+ -> !other`."""
        suffix = element.suffix
        if suffix.greedy_span is None or suffix.repeat is None or suffix.repeat.maximum is suffix.repeat.minimum:
            return  # not greedy, or an exact count such as `a{3}`: its two bounds are one object
        step = "," if suffix.inner is ir.Inner.STRICT else f" ->[{_amount(suffix.gap)}]" if suffix.gap else " ->"
        window = "" if suffix.inner is ir.Inner.STRICT or suffix.gap else " within 1 h"
        message = f"`greedy` has no effect here: each event of `{element.name}` may complete the match"
        help_line = (
            f"leave out `greedy`, or wait until no more can come: give another variable the condition of "
            f"`{element.name}` and write `{element.name}…{step} !other{window}`"
        )
        self.collector.add("CEP428", message, suffix.greedy_span, help_line)


def _amount(bound: syntax.Bound) -> str:
    """Write a duration or the name of a parameter."""
    return (
        show_duration(bound.ms) if isinstance(bound, syntax.DurationLiteral) else str(getattr(bound, "name", "5 min"))
    )


def _is_next_to_not_next(steps: Sequence[syntax.StepSyntax], index: int) -> bool:
    """Return True for an absence in a row with a `, !x` without step time: no time of its own makes it certain."""
    first, last = index, index
    while first > 0 and steps[first - 1].negated:
        first -= 1
    while last + 1 < len(steps) and steps[last + 1].negated:
        last += 1
    return any(step.link is ir.Link.NEXT and step.gap_max is None for step in steps[first : last + 1])
