"""Tokens to the part after the argument of a function of past events: `over previous 30 d by a where b > 1`.

Tested by: tests/lang/test_functions.py
"""

from __future__ import annotations

from collections.abc import Callable

from cep.lang.parse.cursor import Cursor
from cep.lang.parse.lexer import Token, TokenKind
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
    """Return True if the words here make the call one over past events."""
    return cursor.at("over", "by", "where")


def parse_history(
    cursor: Cursor, name: Token, argument: ExprSyntax, parse: Parse, parse_number: ParseNumber
) -> HistorySyntax:
    """Parse a history such as `count(payment over 1 h by merchant where …)`, after its first argument.

    `parse` and `parse_number` are the parsers of expressions and numbers.
    """
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
    """Parse `over 1 h`, `over previous 1 h`, or `over day in "Europe/Paris"`."""
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
        zone = cursor.string("a time zone", 'write `in "Europe/Paris"`')
    return HistoryWindowSyntax(bound, previous, zone, start.to(cursor.previous_span))


def _sub_key(cursor: Cursor) -> tuple[NameRef, ...]:
    if not cursor.accept("("):
        return (cursor.name_ref("a field of the sub-key"),)
    names = cursor.name_refs("a field of the sub-key")
    cursor.expect(")", "at the end of the sub-key")
    return names
