"""Tokens to a pattern: its header and the clauses of its body.

Tested by: tests/lang/test_parser.py
"""

from dataclasses import dataclass, field

from cep.lang import syntax
from cep.lang.diagnostics import Label, Span, did_you_mean
from cep.lang.ir import SkipKind
from cep.lang.parse.expressions import parse_constant, parse_expression, parse_number
from cep.lang.parse.lexer import CLAUSE_WORDS, Cursor, Panic, TokenKind
from cep.lang.parse.structure import parse_structure

# Tokens that follow a field and never an event type: the `where` lacks the event type. (`-` may begin a condition.)
_AFTER_A_FIELD = ("==", "!=", "<", "<=", ">", ">=", "=", "<>", "+", "*", "/", "%", ".", "is", "in", "between", "like")
_SKIPS = {kind.value: kind for kind in SkipKind}


@dataclass(slots=True)
class _Parts:
    """The parts of a pattern that have been parsed so far."""

    params: list[syntax.ParamSyntax] = field(default_factory=list)
    key: tuple[syntax.NameRef, ...] = ()
    is_head_broken: bool = False  # parameters or key could not be read: names in the body are not checked
    clause_spans: dict[str, Span] = field(default_factory=dict)  # clause word → its first place, to report a second one
    structure: syntax.SequenceSyntax | None = None  # the steps after `seq`
    wheres: list[syntax.WhereSyntax] = field(default_factory=list)  # one entry for each variable
    skip: syntax.SkipSyntax | None = None
    measures: list[syntax.AssignSyntax] = field(default_factory=list)  # the values of `emit`
    over_all: bool = False  # `over all`: the pattern reads all events that have its key
    timeout_measures: list[syntax.AssignSyntax] | None = None  # the values of `on timeout emit`.
    timeout_span: Span | None = None  # the place of the word `on` in `on timeout emit`
    produces: syntax.NameRef | None = None  # the event type that a match becomes.
    broken: bool = False  # a clause could not be read, and therefore missing parts are not reported


def parse_pattern(cursor: Cursor) -> syntax.PatternSyntax:
    """Parse a whole pattern. The cursor is at the word `pattern`."""
    doc = cursor.take().doc
    name = cursor.name("the name of the pattern")
    parts = _Parts()
    try:
        _head(cursor, parts)
    except Panic:
        parts.is_head_broken = parts.broken = True
        _skip_to_body(cursor)
    cursor.expect("{", "at the start of the pattern")
    _body(cursor, parts)
    timeout = parts.timeout_measures
    return syntax.PatternSyntax(
        name=name.text,
        span=name.span,
        params=tuple(parts.params),
        key=parts.key,
        structure=None if parts.is_head_broken else parts.structure,  # without one, names are not checked
        wheres=tuple(parts.wheres),
        skip=parts.skip,
        measures=tuple(parts.measures),
        over_all=parts.over_all,
        timeout_measures=None if timeout is None else tuple(timeout),
        timeout_span=parts.timeout_span,
        produces=parts.produces,
        broken=parts.broken,
        doc=doc,
    )


def parse_type(cursor: Cursor) -> syntax.TypeSyntax:
    """Parse a type, such as `decimal(2)?`, `enum(a, b)`, `string` or `list of prefix`."""
    name = cursor.name("a type")
    if name.text == "list" and cursor.accept("of"):
        item_type = parse_type(cursor)
        return syntax.TypeSyntax(name.text, name.span.to(item_type.span), of=item_type)
    scale: int | None = None
    symbols: tuple[syntax.NameRef, ...] = ()
    if cursor.at("(") and cursor.token.line == name.line:  # a bracket on a later line does not belong to the type
        cursor.take()
        if name.text == "decimal":
            scale = cursor.integer("the number of decimals")
            if cursor.at(","):
                cursor.fail(
                    f"expected `)`, found {cursor.shown()}",
                    "a decimal names its digits after the point alone: `decimal(2)`",
                )
        else:  # the symbols of an enum
            symbols = cursor.separated(")", lambda: _symbol(cursor))
        if not cursor.at(")") and symbols:  # such as the minus in `enum(card-present)`
            message = f"expected `)`, found {cursor.shown()}"
            cursor.fail(message, 'a symbol that is no name stands in quotes: `enum("3DS", "card-present")`')
        cursor.expect(")")
    nullable = cursor.accept("?") is not None
    return syntax.TypeSyntax(name.text, name.span.to(cursor.previous_span), scale, symbols, nullable)


def _symbol(cursor: Cursor) -> syntax.NameRef:
    """Parse a symbol of an enum. A symbol that is not a name, like `"3DS"`, is quoted."""
    token = cursor.token
    if token.kind is TokenKind.STRING:
        return syntax.NameRef(str(cursor.take().value), token.span)
    return cursor.name_ref("a symbol")


def _head(cursor: Cursor, parts: _Parts) -> None:
    """Parse the parameters and the key of a pattern, up to its brace: `(n: int) by card`."""
    if cursor.accept("("):
        cursor.separated(")", lambda: _param(cursor, parts))
        cursor.expect(")", "at the end of the parameters")
    cursor.expect("by", "and the key of the pattern")
    parts.key = _key(cursor)
    if cursor.at(","):
        names = f"{parts.key[-1].name}, {cursor.ahead().text}"
        cursor.fail("a key of several fields stands in parentheses", f"write `by ({names})`")
    if cursor.at("(", "."):  # such as `by lower(card)`
        help_line = "write the value into a field of its own where the records are made, and name that field here"
        cursor.fail("a key is a field, and is not computed", help_line)
    if not cursor.at("{"):  # `expect` reports the missing brace; a brace that is there is taken by the caller
        cursor.expect("{", "at the start of the pattern")


def _skip_to_body(cursor: Cursor) -> None:
    """Go to the brace that opens the body. Raises: Panic if the next declaration comes first."""
    cursor.depth = 0
    while not cursor.at("{"):
        if cursor.at_end() or cursor.at_declaration():
            raise Panic
        cursor.take()


def _param(cursor: Cursor, parts: _Parts) -> None:
    """Parse one parameter. After a mistake behind its type, it has only the parts that were read before the mistake."""
    name = cursor.name("the name of a parameter")
    cursor.expect(":", "and the type of the parameter")
    type_syntax = parse_type(cursor)
    default = low = high = None
    try:
        while default is None or low is None:
            if cursor.at(",") and cursor.ahead().text == "in":
                cursor.take()  # the comma in `n: int = 3, in 1..5`, which may be left out
            if default is None and cursor.accept("="):
                default = _constant(cursor)
            elif low is None and cursor.accept("in"):
                low = _constant(cursor)
                cursor.expect("..", "between the bounds")
                high = _constant(cursor)
            else:
                break
        if not cursor.at(",", ")"):
            help_line = "a parameter is `name: type = default in low..high`"
            cursor.fail(f"expected `)` at the end of the parameters, found {cursor.shown()}", help_line)
    except Panic:
        parts.broken = True
        cursor.depth = 0  # the level of nesting: the broken expression is left
        while not (cursor.at(",", ")", "by", "{") or cursor.at_end() or cursor.at_declaration()):  # skip the rest
            cursor.take()
    parts.params.append(syntax.ParamSyntax(name.text, name.span, type_syntax, default, low, high))


def _constant(cursor: Cursor) -> syntax.ExprSyntax:
    return parse_constant(cursor, "a constant", ("true", "false"), parse_number)


def _key(cursor: Cursor) -> tuple[syntax.NameRef, ...]:
    if not cursor.accept("("):
        return (cursor.name_ref("a key field"),)
    fields = [cursor.name_ref("a key field")]
    while cursor.accept(","):
        fields.append(cursor.name_ref("a key field"))
    cursor.expect(")", "at the end of the key")
    return tuple(fields)


def _body(cursor: Cursor, parts: _Parts) -> None:
    """Parse the clauses of a pattern. After a mistake, continue with the next clause."""
    while not cursor.at("}") and not cursor.at_end():
        try:
            _clause(cursor, parts)
        except Panic:
            parts.broken = True
            _skip_to_clause(cursor)
            if cursor.at_declaration() or cursor.at_end():
                return
    cursor.expect("}", "at the end of the pattern")


def _at_clause(cursor: Cursor) -> bool:
    return cursor.at(*CLAUSE_WORDS) or cursor.at_words("over", "all") or cursor.at_words("on", "timeout")


def _at_entry(cursor: Cursor) -> bool:
    return cursor.token.kind is TokenKind.NAME and cursor.ahead().text == ":"


def _skip_to_clause(cursor: Cursor, broken_entry: int | None = None) -> None:
    """Skip to a clause, a closing brace or a declaration; after a broken entry (its index) to the next one as well."""
    cursor.depth = 0
    while not cursor.at_end():
        if _at_clause(cursor) or cursor.at_declaration() or cursor.at_closing_brace():
            return
        if broken_entry is not None and cursor.index > broken_entry and _at_entry(cursor):
            return
        cursor.take()


def _clause(cursor: Cursor, parts: _Parts) -> None:
    """Parse one clause, from its word on: `seq`, `where`, `skip`, `emit`, `produce`, `over all`, `on timeout emit`."""
    start = cursor.token.span
    if cursor.accept(";"):  # a separator that means nothing
        return
    if not _at_clause(cursor):
        names = (*CLAUSE_WORDS, "over all", "on timeout emit")
        help_line = did_you_mean(cursor.token.text, names, "clauses")
        if cursor.at("within"):
            help_line = "a window stands at the end of `seq`, before the other clauses"
        if cursor.token.kind is TokenKind.NAME and cursor.ahead().text == "=":  # the next value of an `emit`
            help_line = f"values are separated by commas: `, {cursor.token.text} = …`"
        cursor.fail(f"expected a clause, found {cursor.shown()}", help_line)
    word = cursor.take().text
    if word in parts.clause_spans:
        labels = (Label(parts.clause_spans[word], "first given here"),)
        cursor.collector.add("CEP106", f"`{word}` is given twice", start, "join the two", labels)
    parts.clause_spans.setdefault(word, start)
    if word == "seq":
        parts.structure = parse_structure(cursor)
    elif word == "where":
        _wheres(cursor, parts)
    elif word == "skip":
        parts.skip = _skip(cursor, start)
    elif word == "emit":
        _measures(cursor, parts.measures)
    elif word == "produce":
        event_type = cursor.name("the event type that a match becomes")
        parts.produces = syntax.NameRef(event_type.text, event_type.span)
    elif word == "over":
        cursor.expect("all")
        parts.over_all = True
    else:  # the word is `on`
        cursor.expect("timeout")
        cursor.expect("emit", "after `on timeout`")
        parts.timeout_span = start
        parts.timeout_measures = []
        _measures(cursor, parts.timeout_measures)


def _wheres(cursor: Cursor, parts: _Parts) -> None:
    """Parse the entries of a `where`. After a mistake, continue with the next entry or clause."""
    while True:
        start = cursor.index  # the number of the first token of the entry
        try:
            parts.wheres.append(_where(cursor))
            cursor.accept(",")
        except Panic:
            parts.broken = True
            _skip_to_clause(cursor, start)
        # After a mistake, a clause word may stand before a colon. It looks like an entry, but begins the next clause.
        if _at_clause(cursor) or not _at_entry(cursor):
            return


def _where(cursor: Cursor) -> syntax.WhereSyntax:
    variable = cursor.name("a variable and its condition")  # the entry is `variable: event_type condition`
    cursor.expect(":", "after the variable")
    event_type = cursor.name("an event type")
    if cursor.at(*_AFTER_A_FIELD):  # such as `a: amount > 5`, which lacks the event type
        help_line = f"the event type comes first: `{variable.text}: transaction  {event_type.text} …`"
        message = f"expected an event type, but `{event_type.text}` begins a condition"
        cursor.fail(message, help_line, code="CEP202")
    condition: syntax.ExprSyntax | None = None  # an entry may have only an event type
    if not (_at_clause(cursor) or _at_entry(cursor) or cursor.at("}", ",", ";")):
        condition = parse_expression(cursor)
    return syntax.WhereSyntax(variable.text, variable.span, syntax.NameRef(event_type.text, event_type.span), condition)


def _measures(cursor: Cursor, measures: list[syntax.AssignSyntax]) -> None:
    while True:
        name = cursor.name("the name of a value to emit")
        if cursor.at("."):
            cursor.fail("a value to emit needs a name", f"write `name = {name.text}.…`")
        cursor.expect("=", "after the name of the value")
        measures.append(syntax.AssignSyntax(name.text, name.span, parse_expression(cursor)))
        if not cursor.accept(","):
            return


def _skip(cursor: Cursor, start: Span) -> syntax.SkipSyntax:
    """Parse where matching resumes after a match, such as `skip to first x in order`."""
    first = cursor.take()
    kind = _SKIPS.get(first.text if first.text == "none" else f"{first.text} {cursor.token.text}")  # one or two words
    if kind is None:
        cursor.fail(
            "expected where matching resumes", "write `skip none`, `to next`, `past last`, `to first x` or `to last x`"
        )
    variable: syntax.NameRef | None = None
    if kind is not SkipKind.NONE:
        cursor.take()  # the second word, such as `next`
    if kind in (SkipKind.TO_FIRST, SkipKind.TO_LAST):
        variable = cursor.name_ref("a variable")
    in_order = False
    if cursor.at("in") and cursor.ahead().text == "order":
        cursor.take()
        cursor.take()
        in_order = True
    return syntax.SkipSyntax(kind, variable, in_order, start.to(cursor.previous_span))
