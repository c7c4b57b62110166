"""Text to the syntax tree of one file: its declarations.

After a mistake it goes on at the next field, entry, clause or declaration, so that one run reports several.
Tested by: tests/lang/test_parser.py, tests/lang/test_mutations.py
"""

from collections.abc import Callable
from dataclasses import replace

from cep.lang import syntax
from cep.lang.diagnostics import Collector, did_you_mean
from cep.lang.parse.expressions import parse_expression, parse_list, parse_number
from cep.lang.parse.lexer import DECLARATIONS, NUMBERS, Cursor, Panic, TokenKind, lex
from cep.lang.parse.pattern import parse_pattern, parse_type
from cep.lang.parse.tests import parse_test

_RESERVED_HELP = "name the field otherwise, and read it from its column: `--columns name=WORD`, or `columns` of a job"


def _import(cursor: Cursor) -> syntax.ImportSyntax:
    start = cursor.take().span
    path = cursor.string("a file")
    return syntax.ImportSyntax(str(path.value), start.to(path.span))


def _list(cursor: Cursor) -> syntax.ListSyntax:
    """Parse the declaration of a list: `list name = […]`, `list name: type`, or `… from "file"`."""
    doc = cursor.take().doc
    name = cursor.name("the name of the list")
    if not cursor.accept(":"):
        cursor.expect("=", "after the name of the list")
        return syntax.ListSyntax(name.text, name.span, parse_list(cursor), doc)
    item_type = parse_type(cursor)
    if cursor.accept("="):
        return syntax.ListSyntax(name.text, name.span, parse_list(cursor), doc, item_type)
    if not cursor.accept("from"):
        return syntax.ListSyntax(name.text, name.span, (), doc, item_type)
    return syntax.ListSyntax(name.text, name.span, (), doc, item_type, cursor.string("a file"))


def _define(cursor: Cursor) -> syntax.DefineSyntax:
    doc = cursor.take().doc
    name = cursor.name("the name of the definition")
    params: tuple[syntax.NameRef, ...] = ()
    if cursor.accept("("):
        params = cursor.name_refs("the name of a parameter")
        cursor.expect(")", "at the end of the parameters")
    cursor.expect("=", "before the expression")
    return syntax.DefineSyntax(name.text, name.span, params, parse_expression(cursor), doc)


def _event(cursor: Cursor) -> syntax.EventSyntax:
    """Parse the declaration of an event type. After a mistake in a field, continue with the next line."""
    doc = cursor.take().doc
    name = cursor.name("the name of the event type")
    cursor.expect("{", "at the start of the fields")
    fields: list[syntax.FieldSyntax] = []
    broken = False
    retain: syntax.DurationLiteral | None = None
    order: syntax.NameRef | None = None
    while not cursor.at("}") and not cursor.at_end():
        start = cursor.index  # the number of the first token of the field
        try:
            # `retain` may also be the name of a field: then a type follows, and not a number.
            if cursor.at("retain") and cursor.ahead().kind in NUMBERS:
                retain = _retain(cursor, retain)
                continue
            if cursor.at("order") and cursor.ahead().text == "by":
                order = _order(cursor, order)
                continue
            field_name = cursor.name("the name of a field", _RESERVED_HELP)
            cursor.accept(":")  # the colon before a type may be left out
            fields.append(syntax.FieldSyntax(field_name.text, field_name.span, _field_type(cursor)))
            cursor.accept(",", ";")
        except Panic:
            broken = True
            if cursor.at_declaration() and cursor.index > start:
                break  # the closing brace is missing
            _skip_line(cursor, start)
    if not (broken and cursor.at_declaration()):  # otherwise the first mistake is reported, which is enough
        cursor.expect("}", "at the end of the fields")
    return syntax.EventSyntax(name.text, name.span, tuple(fields), broken, doc, retain, order)


def _field_type(cursor: Cursor) -> syntax.TypeSyntax:
    """Parse a type, possibly followed by `sensitive`, which may also be the name of the next field."""
    written = parse_type(cursor)
    after = cursor.ahead()
    ends = after.first_on_line or after.text in (",", ";", "}") or after.kind is TokenKind.END
    if not cursor.at("sensitive") or cursor.token.first_on_line or not ends:
        return written
    word = cursor.take()
    return replace(written, sensitive=True, span=written.span.to(word.span))


def _retain(cursor: Cursor, before: syntax.DurationLiteral | None) -> syntax.DurationLiteral | None:
    """Parse `retain 30d` and return its duration. If it is wrong, return `before`, from an earlier `retain`."""
    word = cursor.take()
    amount = parse_number(cursor)
    cursor.accept(",", ";")
    if before is not None:
        cursor.collector.add("CEP106", "`retain` is given twice", word.span, "leave out one")
    if not isinstance(amount, syntax.DurationLiteral):
        help_line = f"write `retain {amount.value} d`"
        cursor.collector.add("CEP104", "how long events are kept needs a unit of time", amount.span, help_line)
        return before
    if amount.ms < 1:
        cursor.collector.add("CEP402", "events are kept longer than 0", amount.span)
        return before
    return amount


def _order(cursor: Cursor, before: syntax.NameRef | None) -> syntax.NameRef:
    word = cursor.take()
    cursor.take()
    field = cursor.name("the field that orders events of one time")
    cursor.accept(",", ";")
    if before is not None:
        cursor.collector.add("CEP106", "`order by` is given twice", word.span, "leave out one")
    return syntax.NameRef(field.text, field.span)


def _skip_line(cursor: Cursor, start: int) -> None:
    """Go to the next line, `}` or the end; always past the token at index `start`."""
    while not cursor.at_end() and not cursor.at("}"):
        if cursor.index > start and cursor.token.first_on_line:
            return
        cursor.take()


_FORMS: dict[str, Callable[[Cursor], syntax.Declaration]] = {
    "event": _event,
    "import": _import,
    "list": _list,
    "define": _define,
    "pattern": parse_pattern,
    "test": parse_test,
}


def _declaration(cursor: Cursor) -> syntax.Declaration:
    token = cursor.token
    if token.kind is not TokenKind.NAME or token.text not in _FORMS:
        message = f"expected a declaration, found {cursor.shown()}"
        cursor.fail(message, did_you_mean(token.text, DECLARATIONS, "declarations"), code="CEP109")
    return _FORMS[token.text](cursor)


def parse(text: str, name: str, collector: Collector) -> syntax.FileSyntax:
    """Parse the text of one file; unreadable parts are reported and left out."""
    return parse_tokens(Cursor(lex(text, name, collector).tokens, collector), name)


def parse_tokens(cursor: Cursor, name: str) -> syntax.FileSyntax:
    """Parse the declarations of one file, from the cursor on. After a mistake, go on with the next declaration."""
    declarations: list[syntax.Declaration] = []
    while not cursor.at_end():
        try:
            declarations.append(_declaration(cursor))
        except Panic:  # the mistake is reported
            cursor.depth = 0  # the level of nesting: the broken declaration is left
            if not cursor.at_declaration():
                cursor.take()
            while not cursor.at_end() and not cursor.at_declaration():
                cursor.take()
    return syntax.FileSyntax(name, tuple(declarations))
