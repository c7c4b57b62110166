"""Tokens to a test: its header, the events of each key, and the expectations.

Tested by: tests/lang/test_check_tests.py
"""

import re
from dataclasses import dataclass, field
from decimal import Decimal

from cep.lang import syntax
from cep.lang.diagnostics import Label, Span, did_you_mean
from cep.lang.parse.expressions import WORDS, parse_constant
from cep.lang.parse.lexer import NUMBERS, UNITS_MS, Cursor, Panic, TokenKind, duration_ms

_KINDS = ("match", "none", "timeout", "matches")
_TIMES = re.compile(r"x([0-9]{1,9})")


@dataclass(slots=True)
class _Body:
    """The parts of a test that have been read so far."""

    keys: list[syntax.ScriptedKeySyntax] = field(default_factory=list)
    expects: list[syntax.ExpectSyntax] = field(default_factory=list)
    todo: str | None = None
    todo_span: Span | None = None
    broken: bool = False


def parse_test(cursor: Cursor) -> syntax.PatternTestSyntax:
    """Parse a whole test. The cursor is at the word `test`."""
    start = cursor.take().span
    name = cursor.string("the name of the test")
    cursor.expect("of", "and the pattern that is tested")
    pattern = cursor.name_ref("a pattern")
    arguments: tuple[syntax.AssignSyntax, ...] = ()
    if cursor.accept("with"):
        arguments = _assignments(cursor, "the name of a parameter", "=", "()")
    cursor.expect("{", "at the start of the test")
    body = _body(cursor)
    return syntax.PatternTestSyntax(
        name=str(name.value),
        span=name.span,
        pattern=pattern,
        arguments=arguments,
        keys=tuple(body.keys),
        expects=tuple(body.expects),
        todo=body.todo,
        todo_span=body.todo_span,
        broken=body.broken,
        whole=start.to(cursor.previous_span),
    )


def _body(cursor: Cursor) -> _Body:
    """Parse the entries of a test. After a mistake, continue with the next entry."""
    body = _Body()
    while not cursor.at("}") and not cursor.at_end():
        start = cursor.index
        try:
            _entry(cursor, body)
        except Panic:
            body.broken = True
            _skip_to_entry(cursor, start)
            if cursor.at_declaration() or cursor.at_end():
                return body
    cursor.expect("}", "at the end of the test")
    return body


def _entry(cursor: Cursor, body: _Body) -> None:
    start = cursor.token.span  # of the entry: a key with its events, `expect …` or `todo …`
    if cursor.accept(";"):  # a separator that means nothing
        return
    if _at_label(cursor):  # such as `c1:`
        _key(cursor, body)
    elif cursor.accept("expect"):
        body.expects.append(_expect(cursor, start))
    elif cursor.accept("todo"):
        if body.todo_span is not None:
            labels = (Label(body.todo_span, "first given here"),)
            cursor.collector.add("CEP106", "`todo` is given twice", start, "join the two", labels)
        body.todo, body.todo_span = "", start  # a `todo` may stand without a text
        if cursor.token.kind is TokenKind.STRING:
            body.todo = str(cursor.take().value)
    else:
        help_line = "a test has keys with their events, `c1: 0s transaction amount=1.00`, and `expect …`"
        if cursor.token.kind is TokenKind.NAME:
            help_line = did_you_mean(cursor.token.text, ("expect", "todo"), "a label like `c1:`, or")
        cursor.fail(f"expected a key or what is expected, found {cursor.shown()}", help_line)


def _at_label(cursor: Cursor) -> bool:
    if cursor.token.kind not in (TokenKind.NAME, TokenKind.STRING, TokenKind.INT):
        return False
    return cursor.ahead().text in (":", "(") and cursor.ahead().kind is TokenKind.SYMBOL


def _skip_to_entry(cursor: Cursor, broken: int) -> None:
    """Skip to the next entry on a line of its own, the closing brace or a declaration; past the token at `broken`."""
    cursor.depth = 0
    while not cursor.at_end():
        if cursor.at_declaration() or cursor.at_closing_brace():
            return
        fresh = cursor.index > broken and cursor.token.first_on_line
        if fresh and (cursor.at("expect", "todo") or _at_label(cursor)):
            return
        cursor.take()


def _key(cursor: Cursor, body: _Body) -> None:
    label = _label(cursor)
    fields = _assignments(cursor, "a key field", "=", "()") if cursor.at("(") else ()
    cursor.expect(":", "after the label of a key")
    events: list[syntax.ScriptedEventSyntax] = []
    try:
        while cursor.token.kind in NUMBERS and not _at_label(cursor):
            events.append(_event(cursor))
            cursor.accept(",", ";")
    finally:
        body.keys.append(syntax.ScriptedKeySyntax(label, fields, tuple(events)))


def _label(cursor: Cursor) -> syntax.Literal | syntax.NameRef:
    token = cursor.token
    if token.kind in (TokenKind.STRING, TokenKind.INT):
        return syntax.Literal(cursor.take().value, token.span)
    return cursor.name_ref("the label of a key")


def _event(cursor: Cursor) -> syntax.ScriptedEventSyntax:
    """Parse an event of a test: a time, a type, fields, and repetitions such as `x5 every 20s`."""
    time = _time(cursor)
    if cursor.at_declaration():
        cursor.fail(f"expected an event type after the time, found {cursor.shown()}")
    event_type = cursor.name_ref("an event type after the time")
    fields: list[syntax.AssignSyntax] = []
    while cursor.token.kind is TokenKind.NAME and cursor.ahead().text == "=":
        fields.append(_assignment(cursor, "the name of a field", "="))
        cursor.accept(",")
    count, every = 1, None
    repeats = _TIMES.fullmatch(cursor.token.text) if cursor.token.kind is TokenKind.NAME else None  # such as `x5`
    if repeats is not None and cursor.ahead().text != ":":  # `x5:` would be the label of the next key
        cursor.take()
        count = int(repeats[1])
        cursor.expect("every", "and the time between repetitions, like `x5 every 20s`")
        every = _time(cursor)
    elif _is_stray(cursor):  # a word on this line that can begin nothing
        cursor.fail(f"expected `field=value`, found {cursor.shown()}", "repeat an event with `x5 every 20s`")
    span = time.span.to(cursor.previous_span)
    return syntax.ScriptedEventSyntax(time, event_type, tuple(fields), count, every, span)


def _is_stray(cursor: Cursor) -> bool:
    """Return True if a word follows on the line of an event that can begin nothing."""
    token = cursor.token
    if token.kind is not TokenKind.NAME or token.first_on_line:
        return False
    return not cursor.at("expect", "todo") and not _at_label(cursor)


def _time(cursor: Cursor) -> syntax.DurationLiteral:
    """Parse a time such as `5m`, `0 s` or `1 h 30 min`: numbers with units, each unit smaller than the one before."""
    start = cursor.token.span
    total, unit_ms = 0, 0
    while True:
        token = cursor.token
        if token.kind not in NUMBERS:
            cursor.fail(f"expected a time like `20s`, found {cursor.shown()}")
        own_unit_ms = _unit_ms(cursor)  # the unit of this number; 0: it has none
        if not own_unit_ms:
            help_line = f"write `{token.text}s` or `{token.text} min`"
            cursor.fail("a time of a test needs a unit", help_line, code="CEP104")
        total, unit_ms = total + _part(cursor), own_unit_ms
        has_more = cursor.token.line == token.line and cursor.token.kind in NUMBERS
        if not has_more or not 0 < _unit_ms(cursor) < unit_ms:  # after `30s`, a `40s` is the time of the next event
            return syntax.DurationLiteral(total, start.to(cursor.previous_span))


def _unit_ms(cursor: Cursor) -> int:
    """Return the unit of the number here, 0 if it has none."""
    token, unit = cursor.token, cursor.ahead()
    if token.kind is TokenKind.DURATION:
        return UNITS_MS.get(token.text.lstrip("0123456789._"), 1)
    return UNITS_MS.get(unit.text, 0) if unit.kind is TokenKind.NAME and unit.line == token.line else 0


def _part(cursor: Cursor) -> int:
    """Take one number with its unit; milliseconds."""
    token = cursor.take()
    if token.kind is TokenKind.DURATION:
        assert isinstance(token.value, int)
        return token.value
    unit = cursor.take()
    assert isinstance(token.value, int | Decimal)
    return duration_ms(Decimal(token.value), unit.text, token.span.to(unit.span), cursor.collector)


def _expect(cursor: Cursor, start: Span) -> syntax.ExpectSyntax:
    """Parse an expectation: `match`, `matches`, `timeout` or `none`, with its key, time and values."""
    if not cursor.at(*_KINDS):
        help_line = did_you_mean(cursor.token.text, _KINDS, "write one of")
        cursor.fail(f"expected `match`, `matches`, `timeout` or `none`, found {cursor.shown()}", help_line)
    kind = cursor.take().text
    count = cursor.integer("the number of matches") if kind == "matches" else 0  # the other kinds have no number
    key = time = None
    measures: tuple[syntax.AssignSyntax, ...] = ()
    if _is_stray(cursor) and not cursor.at("on", "at"):  # a word follows that has no meaning here
        cursor.fail(f"expected `on` before the key, found {cursor.shown()}", f"write `on {cursor.token.text}`")
    if cursor.accept("on"):
        key = _label(cursor)
    if kind in ("match", "timeout") and cursor.accept("at"):
        time = _time(cursor)
    if kind in ("match", "timeout") and cursor.at("{"):
        measures = _assignments(cursor, "the name of an emitted value", ":", "{}")
    return syntax.ExpectSyntax(kind, key, time, count, measures, start.to(cursor.previous_span))


def _assignments(cursor: Cursor, noun: str, between: str, brackets: str) -> tuple[syntax.AssignSyntax, ...]:
    end = brackets[1]
    cursor.expect(brackets[0])
    assignments = cursor.separated(end, lambda: _assignment(cursor, noun, between))
    cursor.expect(end, "at the end of the list")
    return assignments


def _assignment(cursor: Cursor, noun: str, between: str) -> syntax.AssignSyntax:
    name = cursor.name(noun)
    cursor.expect(between, "and a value")
    return syntax.AssignSyntax(name.text, name.span, parse_constant(cursor, "a value", WORDS, _number))


def _number(cursor: Cursor) -> syntax.ExprSyntax:
    """Parse a number. A unit of time belongs to it, unless the unit names the next field."""
    token = cursor.token
    if token.kind is TokenKind.DURATION or (_unit_ms(cursor) > 0 and cursor.ahead(2).text != "="):
        return syntax.DurationLiteral(_part(cursor), token.span.to(cursor.previous_span))
    return syntax.Literal(cursor.take().value, token.span)
