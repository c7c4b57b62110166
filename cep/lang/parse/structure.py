"""Tokens to the structure of a pattern: sequences, groups, choices, repetition and windows.

A window at the end of a sequence is the sequence's; after a group that goes on, it is the group's:
`(a -> b) within 1 min -> c within 5 min`.
Tested by: tests/lang/test_parser.py
"""

from dataclasses import replace

from cep.lang import syntax
from cep.lang.diagnostics import Span
from cep.lang.ir import Inner, Link
from cep.lang.parse.expressions import INTERVAL, parse_expression, parse_number
from cep.lang.parse.lexer import NUMBERS, RESERVED, Cursor, TokenKind

_LINKS = {link.value: link for link in Link}
_REPEATS = {"?": (0, 1), "*": (0, None), "+": (1, None)}
_INNER = {"strict": Inner.STRICT, "any": Inner.ANY}


def parse_structure(cursor: Cursor) -> syntax.SequenceSyntax:
    """Parse the structure after `seq`. A choice at the top is one step."""
    body = _body(cursor)
    _refuse_first_time(cursor, body)
    if isinstance(body, syntax.SequenceSyntax):
        return body
    group = syntax.GroupSyntax(replace(body, windows=()), body.span)
    step = syntax.StepSyntax(Link.FOLLOWED_BY, group, body.span)
    return syntax.SequenceSyntax((step,), body.windows, body.span)


def _body(cursor: Cursor) -> syntax.SequenceSyntax | syntax.ChoiceSyntax:
    """Parse a sequence (`a -> b`) or a choice (`a | b`), and the windows (`within 5 min`) at its end."""
    with cursor.nested():
        start = cursor.token.span
        first = _step(cursor, Link.FOLLOWED_BY, start)  # the first step follows nothing, and its link is not used
        if cursor.at("|", "&"):
            return _choice(cursor, first)
        steps = [first]
        while cursor.token.text in _LINKS and cursor.token.kind is TokenKind.SYMBOL:
            arrow = cursor.take()
            steps.append(_step(cursor, _LINKS[arrow.text], arrow.span))
        _refuse_mixed_operators(cursor, "|", "&")
        _refuse_missing_operator(cursor)
        windows = _windows(cursor)
        return syntax.SequenceSyntax(tuple(steps), windows, start.to(cursor.previous_span))


def _choice(cursor: Cursor, first: syntax.StepSyntax) -> syntax.ChoiceSyntax:
    """Parse the rest of `a | b` or `a & b` after its first element."""
    op = cursor.token.text
    steps = [first]
    while cursor.at(op):
        steps.append(_step(cursor, Link.FOLLOWED_BY, cursor.take().span))  # this link is not used
    _refuse_mixed_operators(cursor, "|", "&", *_LINKS)  # such as `a | b & c`
    for step in steps:
        if step.negated:  # `!a`, the absence of an event
            message = f"an absence cannot stand in `{op}`"
            cursor.collector.add("CEP411", message, step.span, "put the absence after the parentheses")
        elif step.gap_max is not None:
            message = f"a step of `{op}` has no time of its own"
            help_line = "write `(a & b) within 5 min`" if op == "&" else "write `a ->[5 min] (b | c)`"
            cursor.collector.add("CEP105", message, step.gap_max.span, help_line)
    windows = _windows(cursor)
    elements = tuple(step.element for step in steps)
    return syntax.ChoiceSyntax(op, elements, windows, first.span.to(cursor.previous_span))


def _refuse_first_time(cursor: Cursor, body: syntax.SequenceSyntax | syntax.ChoiceSyntax) -> None:
    """Report a time before the first step of the pattern, as in `[5 min] a -> b`, also inside of its first group."""
    elements: tuple[syntax.ElementSyntax, ...] = ()  # each may have the first event
    if isinstance(body, syntax.ChoiceSyntax):
        elements = body.items if body.op == "|" else ()  # in `&`, the time counts if another item came before
    else:
        elements, time = (body.steps[0].element,), body.steps[0].gap_max
        if time is not None:
            message = "no step comes before this one, from which its time could count"
            cursor.collector.add("CEP105", message, time.span, "write `a ->[5 min] b`, or `within 5 min` at the end")
    for element in elements:
        if isinstance(element, syntax.GroupSyntax) and element.suffix.repeat is None:  # else it is the time of a round
            _refuse_first_time(cursor, element.body)


def _refuse_mixed_operators(cursor: Cursor, *texts: str) -> None:
    if cursor.at(*texts):
        cursor.fail(
            f"`{cursor.token.text}` beside another operator needs parentheses",
            "write `(a | b) -> c` or `a -> (b | c)`",
            code="CEP107",
        )


def _refuse_missing_operator(cursor: Cursor) -> None:
    """Report two steps without an operator between them, as SQL has them."""
    token, after = cursor.token, cursor.ahead()
    is_step = token.kind is TokenKind.NAME and token.text not in RESERVED and after.text not in (":", "all", "timeout")
    if (is_step or cursor.at("(")) and not token.first_on_line:
        help_line = "write `a -> b`, or `a, b` where `b` comes directly after `a`"
        cursor.fail("two steps need an operator between them", help_line)


def _step(cursor: Cursor, link: Link, start: Span) -> syntax.StepSyntax:
    gap_min: syntax.Bound | None = None
    gap_max: syntax.Bound | None = None
    if cursor.accept("["):
        gap_max = _bound(cursor)
        if cursor.accept(".."):
            gap_min, gap_max = gap_max, _bound(cursor)
        cursor.expect("]", "after the time of the step")
    negated = cursor.accept("!") is not None
    element = _element(cursor)
    return syntax.StepSyntax(link, element, start.to(cursor.previous_span), negated, gap_min, gap_max)


def _element(cursor: Cursor) -> syntax.ElementSyntax:
    if cursor.at("("):
        start = cursor.take().span
        body = _body(cursor)
        end = cursor.expect(")", "at the end of the group").span
        return syntax.GroupSyntax(body, start.to(end), _suffix(cursor), _inner_window(cursor))
    name = cursor.name("a variable")
    if cursor.at("("):
        help_line = "write `a & b` for both in any order" if name.text.lower() == "permute" else "write `a -> (b | c)`"
        cursor.fail(f"`{name.text}` is a variable, and takes no arguments", help_line)
    return syntax.VariableSyntax(name.text, name.span, _suffix(cursor))


def _inner_window(cursor: Cursor) -> syntax.WindowSyntax | None:
    """Parse the window of a group that something follows. One at the end is left for the sequence."""
    if not cursor.at("within"):
        return None
    mark = cursor.index
    window = _window(cursor)
    if cursor.token.text in (*_LINKS, "|", "&"):
        return window
    cursor.go_back(mark)
    return None


def _windows(cursor: Cursor) -> tuple[syntax.WindowSyntax, ...]:
    windows: list[syntax.WindowSyntax] = []
    while cursor.at("within"):
        windows.append(_window(cursor))
    if windows and cursor.token.text in _LINKS and cursor.token.kind is TokenKind.SYMBOL:
        cursor.fail(
            "a window stands at the end of a sequence, or after a group",
            "for the time of one step write `a ->[5 min] b`",
        )
    return tuple(windows)


def _window(cursor: Cursor) -> syntax.WindowSyntax:
    start = cursor.expect("within").span
    bound = _bound(cursor)
    in_events = cursor.accept("events", "event") is not None
    return syntax.WindowSyntax(bound, in_events, start.to(cursor.previous_span))


def _bound(cursor: Cursor) -> syntax.Bound:
    """Parse the bound of a window, a step or a repetition: a number, a duration or the name of a parameter."""
    token = cursor.token
    if token.kind in NUMBERS:
        return parse_number(cursor)
    if token.kind is TokenKind.NAME and token.text.lower() == "interval" and cursor.ahead().kind is TokenKind.STRING:
        cursor.fail(f"`{token.text}` is not a length of time here", INTERVAL, code="CEP111")  # it is SQL
    name = cursor.name_ref("a number, a duration or a parameter")
    if cursor.at("."):  # such as `a.limit`, a field of an event
        field = f"{name.name}.{cursor.ahead().text}"
        help_line = f"write the longest time here, and in `where`: `event_time - {name.name}.event_time < {field}`"
        cursor.fail("a field cannot say how long to wait", help_line)
    return name


def _suffix(cursor: Cursor) -> syntax.SuffixSyntax:
    """Parse a suffix such as `{2,5}[1 h] greedy until (amount > 9)`: a repetition, and words on how it goes on."""
    repeat = _repeat(cursor)
    suffix = syntax.NO_SUFFIX if repeat is None else syntax.SuffixSyntax(repeat)
    if repeat is not None and cursor.at("?"):  # `a+?`, which takes few events in other languages
        help_line = "leave out the `?`: only a loop with the word `greedy` takes as many as it can"
        cursor.fail("`?` does not stand after a repetition", help_line)
    while True:
        token = cursor.token
        if cursor.at("[") and suffix.gap is None:  # the gap: the longest time between two repetitions
            cursor.take()
            suffix = replace(suffix, gap=_bound(cursor))
            cursor.expect("]", "after the gap")
        elif cursor.at("greedy"):
            cursor.take()
            suffix = replace(suffix, greedy_span=token.span)
        elif cursor.at("strict", "any"):  # whether other events may come between the repetitions
            cursor.take()
            if suffix.inner_span is not None:
                cursor.collector.add("CEP414", "`strict` and `any` exclude each other", token.span)
            suffix = replace(suffix, inner=_INNER[token.text], inner_span=token.span)
        elif cursor.at("until") and suffix.until is None:
            cursor.take()
            cursor.expect("(", "after `until`")
            until = parse_expression(cursor)
            cursor.expect(")", "after the condition")
            suffix = replace(suffix, until=until, until_span=token.span.to(cursor.previous_span))
        else:
            return suffix


def _repeat(cursor: Cursor) -> syntax.RepeatSyntax | None:
    """Parse `?`, `*`, `+` or `{2,5}`. Return None if none of them comes next."""
    token = cursor.token
    if cursor.at(*_REPEATS):
        least, most = _REPEATS[cursor.take().text]  # the smallest and the largest number of events
        bound = None if most is None else syntax.Literal(most, token.span)  # None: any number of events
        return syntax.RepeatSyntax(syntax.Literal(least, token.span), bound, token.span)
    if not cursor.accept("{"):
        return None
    minimum = _bound(cursor)
    maximum: syntax.Bound | None = minimum  # `{3}` means exactly three
    if cursor.accept(","):
        maximum = None if cursor.at("}") else _bound(cursor)  # `{2,}` has no maximum
    end = cursor.expect("}", "at the end of the repetition").span
    return syntax.RepeatSyntax(minimum, maximum, token.span.to(end))
