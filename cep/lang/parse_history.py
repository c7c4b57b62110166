"""Tokens to what stands behind the argument of a function of past events: `over previous 30 d by a where b > 1`.

Tested by: tests/lang/test_history.py
"""

from __future__ import annotations

from collections.abc import Callable

from cep.lang.cursor import Cursor
from cep.lang.lexer import Token, TokenKind
from cep.lang.syntax import (
    Bound,
    DurationLiteral,
    ExprSyntax,
    HistorySyntax,
    HistoryWindowSyntax,
    Literal,
    NameRef,
)

Parse = Callable[[Cursor], ExprSyntax]
ParseNumber = Callable[[Cursor], Literal | DurationLiteral]


def at_history(cursor: Cursor) -> bool:
    """Does what stands here make a call one of past events?"""
    return cursor.at("over", "by", "where")


def parse_history(
    cursor: Cursor, name: Token, argument: ExprSyntax, parse: Parse, parse_number: ParseNumber
) -> HistorySyntax:
    """The rest of the call; the cursor is behind its first argument. The parsers of expressions are given."""
    window = _window(cursor, parse_number) if cursor.at("over") else None
    by: tuple[NameRef, ...] = ()
    if cursor.accept("by"):
        by = _sub_key(cursor)
    where = parse(cursor) if cursor.accept("where") else None
    extra: list[ExprSyntax] = []
    while cursor.accept(",") and not cursor.at(")"):
        extra.append(parse(cursor))
    end = cursor.expect(")", "at the end of the arguments").span
    return HistorySyntax(name.text, name.span, argument, window, by, where, tuple(extra), name.span.to(end))


def _window(cursor: Cursor, parse_number: ParseNumber) -> HistoryWindowSyntax:
    start = cursor.expect("over").span
    previous = cursor.accept("previous") is not None
    bound: Bound
    if cursor.token.kind in (TokenKind.INT, TokenKind.DECIMAL, TokenKind.DURATION):
        bound = parse_number(cursor)
    else:
        token = cursor.name("a duration, or day, week, month")
        bound = NameRef(token.text, token.span)
    zone: Literal | None = None
    if cursor.accept("in"):
        if cursor.token.kind is not TokenKind.STRING:
            cursor.fail(f"expected a time zone in double quotes, found {cursor.shown()}", 'write `in "Europe/Paris"`')
        token = cursor.take()
        zone = Literal(str(token.value), token.span)
    return HistoryWindowSyntax(bound, previous, zone, start.to(cursor.previous_span))


def _sub_key(cursor: Cursor) -> tuple[NameRef, ...]:
    if not cursor.accept("("):
        token = cursor.name("a field of the sub-key")
        return (NameRef(token.text, token.span),)
    found: list[NameRef] = []
    while not cursor.at(")"):
        token = cursor.name("a field of the sub-key")
        found.append(NameRef(token.text, token.span))
        if not cursor.accept(","):
            break
    cursor.expect(")", "at the end of the sub-key")
    return tuple(found)
