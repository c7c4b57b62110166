"""Tokens to expressions, by precedence climbing (few Python frames for a level of nesting).

Weakest first: `or`, `and`, `not`, comparison (which does not chain), `+ -`, `* / %`, unary `-`, `.field`. A call over
past events goes on after its first argument: `over previous 30 d by a where b > 1`.
Tested by: tests/lang/test_parser.py, tests/lang/test_functions.py
"""

from collections.abc import Callable, Collection
from decimal import Decimal

from cep.lang import syntax
from cep.lang.diagnostics import Fix, Span
from cep.lang.parse.lexer import NTH_EVENT, NUMBERS, UNITS_MS, Cursor, Panic, Token, TokenKind, duration_ms

_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT = range(1, 7)
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=", "like", "matches")
_PRECEDENCE = {
    "or": _OR,
    "and": _AND,
    **dict.fromkeys((*_COMPARISONS, "in", "between", "is"), _COMPARISON),
    **dict.fromkeys(("+", "-"), _SUM),
    **dict.fromkeys(("*", "/", "%"), _PRODUCT),
}
_FOREIGN = {"=": "==", "<>": "!=", "&&": "and", "||": "or", "&": "and", "|": "or", "AND": "and", "OR": "or"}  # to ours
INTERVAL = "write the number and its unit: `1 h`, `30 min`"
_SQL = {  # words of SQL that begin a value, with the help of their message; they may be names of fields, too
    "case": "write `if condition then value else value`",
    "interval": INTERVAL,
    "running": "leave it out: a condition sees the events that are bound so far",
    "final": "leave it out: `emit` sees all events of the match",
}
_LOOK_TWICE = frozenset((*_FOREIGN, "matches", "not"))  # foreign spellings, and names that are not always operators
_OF_OPERATORS = (TokenKind.SYMBOL, TokenKind.NAME)
WORDS = {"true": True, "false": False, "null": None}


def parse_expression(cursor: Cursor) -> syntax.ExprSyntax:
    """Read one expression; it ends before the first token that cannot go on with it."""
    return _climb(cursor, _OR)


def _climb(cursor: Cursor, minimum: int) -> syntax.ExprSyntax:
    """Parse an expression whose operators bind at least as strongly as `minimum` (precedence climbing)."""
    with cursor.nested():
        left = _operand(cursor)
        compared = False  # whether `left` is a comparison
        while True:
            operator = _operator(cursor)
            precedence = _PRECEDENCE.get(operator, 0)  # 0: not an operator, so the expression ends
            if precedence < minimum:
                return left
            if precedence == _COMPARISON:
                if compared:
                    help_line = "write `a < b and b < c`, or `b between a and c`"
                    cursor.fail("comparisons do not chain", help_line)
                compared = True
                left = _comparison(cursor, operator, left)
            elif operator in ("and", "or"):
                left = _chain(cursor, operator, precedence, left)  # all operands of `a and b and c` at once
            else:
                left = _binary(cursor, operator, precedence, left)


def _operator(cursor: Cursor) -> str:
    """Return the operator here, "" if there is none. Spellings of other languages are accepted, but reported."""
    token = cursor.token
    if token.text not in _LOOK_TWICE:  # as most tokens: neither a foreign spelling, nor `matches`, nor `not`
        return token.text if token.kind in _OF_OPERATORS else ""
    if token.kind in _OF_OPERATORS and token.text in _FOREIGN:
        ours = _FOREIGN[token.text]
        message, fix = f"`{token.text}` is not an operator here", Fix(token.span, ours)
        texts = "; texts are not joined: emit each of them" if token.text == "||" else ""  # in SQL it joins
        cursor.collector.add("CEP111", message, token.span, f"write `{ours}`{texts}", fix=fix)
        return ours
    if token.text == "matches" and cursor.ahead().kind is not TokenKind.STRING and cursor.ahead().text in (":", "="):
        return ""  # not reserved: the name of the next entry or value
    if cursor.at("not") and cursor.ahead().text in ("in", "between", "like", "matches"):
        return cursor.ahead().text  # `in` for `not in`; `_comparison` takes the `not`
    return token.text if token.kind in _OF_OPERATORS else ""


def _chain(cursor: Cursor, operator: str, precedence: int, left: syntax.ExprSyntax) -> syntax.ExprSyntax:
    operands = [left]
    while _operator(cursor) == operator:
        cursor.take()
        operands.append(_climb(cursor, precedence + 1))
    return syntax.ChainSyntax(operator, tuple(operands), left.span.to(operands[-1].span))


def _binary(cursor: Cursor, operator: str, precedence: int, left: syntax.ExprSyntax) -> syntax.BinarySyntax:
    operator_span = cursor.take().span
    right = _climb(cursor, precedence + 1)
    return syntax.BinarySyntax(operator, operator_span, left, right, left.span.to(right.span))


def _comparison(cursor: Cursor, operator: str, left: syntax.ExprSyntax) -> syntax.ExprSyntax:
    """Parse the rest of a comparison after its left side. The cursor is at `operator`, or at a `not` before it."""
    negated = cursor.accept("not") is not None  # such as `a not in [1, 2]`
    if operator == "is":
        cursor.take()
        negated = cursor.accept("not") is not None  # `is not null`: here alone the `not` comes after the operator
        end = cursor.expect("null", "after `is`")
        return syntax.IsNullSyntax(left, negated, left.span.to(end.span))
    if operator == "in":
        cursor.take()
        items = _items(cursor)
        return syntax.InSyntax(left, items, negated, left.span.to(cursor.previous_span))
    if operator == "between":
        cursor.take()
        low = _climb(cursor, _SUM)  # a bound ends before `and`, because `and` is weaker than a sum
        cursor.expect("and", "of `between`")
        high = _climb(cursor, _SUM)
        return syntax.BetweenSyntax(left, low, high, negated, left.span.to(high.span))
    compared = _binary(cursor, operator, _COMPARISON, left)
    return syntax.UnarySyntax("not", compared, compared.span) if negated else compared  # `a not like "x%"`


def _items(cursor: Cursor) -> tuple[syntax.ExprSyntax, ...] | syntax.NameRef:
    if cursor.at("["):
        return parse_list(cursor)
    if cursor.at("("):
        cursor.fail("a list stands in square brackets", 'write `in ["a", "b"]`')
    return cursor.name_ref("a list")


def parse_list(cursor: Cursor) -> tuple[syntax.ExprSyntax, ...]:
    """Parse `[a, b, c]`, with or without a comma at the end."""
    cursor.expect("[")
    items = cursor.separated("]", lambda: _climb(cursor, _SUM))
    cursor.expect("]", "at the end of the list")
    return items


def _operand(cursor: Cursor) -> syntax.ExprSyntax:
    """Parse an operand: a value, with `not` or signs before it and its fields (`.name`) after it."""
    token = cursor.token
    if token.text == "not" and token.kind is TokenKind.NAME:
        cursor.take()
        argument = _climb(cursor, _COMPARISON)  # `not a == b` means `not (a == b)`
        return syntax.UnarySyntax("not", argument, token.span.to(argument.span))
    if token.kind is TokenKind.SYMBOL and token.text == "!":
        cursor.fail("`!` is not an operator here", "write `not`", code="CEP111")
    if token.kind is TokenKind.SYMBOL and token.text == "-":
        cursor.take()
        with cursor.nested():  # a limit, because each sign is a recursion
            argument = _operand(cursor)
        return syntax.UnarySyntax("-", argument, token.span.to(argument.span))
    operand = _primary(cursor)
    if isinstance(operand, syntax.NameRef) and cursor.at("[") and not cursor.token.first_on_line:
        cursor.fail("the events of a loop have no numbers", NTH_EVENT)  # `x[1]`
    while cursor.at("."):
        cursor.take()
        field = cursor.name("a field after the dot")
        operand = syntax.Member(operand, field.text, field.span, operand.span.to(field.span))
    return operand


def _primary(cursor: Cursor) -> syntax.ExprSyntax:
    """Parse a value without operators: parentheses, a literal, `if`, a call or a name."""
    token = cursor.token
    if token.kind is TokenKind.SYMBOL and token.text == "(":
        cursor.take()
        inner = _climb(cursor, _OR)
        cursor.expect(")")
        return inner
    if token.kind in NUMBERS:
        return parse_number(cursor)
    if token.kind in (TokenKind.FLOAT, TokenKind.STRING):
        return syntax.Literal(cursor.take().value, token.span)
    if token.kind is TokenKind.NAME and token.text in WORDS:
        return syntax.Literal(WORDS[cursor.take().text], token.span)  # `true`, `false` or `null`
    if token.kind is TokenKind.NAME and token.text == "if":
        return _if(cursor)
    name = cursor.name("a value")
    _no_sql(cursor, name)  # gives up at a value of SQL, such as `case when`
    if cursor.at("(") and cursor.token.line == name.line:  # a bracket on a later line begins something else
        return _call(cursor, name)
    return syntax.NameRef(name.text, name.span)


def _no_sql(cursor: Cursor, name: Token) -> None:
    """Report a value of SQL such as `case when`, and give up. `name` is its first word, which is already taken."""
    word, after = name.text.lower(), cursor.token
    if word == "case":
        is_sql = after.text.lower() == "when"
    elif word == "interval":
        is_sql = after.kind is TokenKind.STRING
    else:
        is_sql = after.kind is TokenKind.NAME and cursor.ahead().text in ("(", ".")  # `running sum(x)`, `final a.x`
    if is_sql and word in _SQL and after.line == name.line:  # otherwise it is an ordinary name, such as a field
        message = f"`{name.text} {after.text}` is not a value here"
        cursor.collector.add("CEP111", message, name.span.to(after.span), _SQL[word])
        raise Panic


def parse_number(cursor: Cursor) -> syntax.Literal | syntax.DurationLiteral:
    """Parse a number. A unit of time after it on the same line makes it a duration."""
    token = cursor.take()
    if token.kind is TokenKind.DURATION:
        assert isinstance(token.value, int)
        return syntax.DurationLiteral(token.value, token.span)
    assert isinstance(token.value, int | Decimal)
    unit = cursor.token
    # In `amount > 10  m: login`, `m` is not a unit: it begins the next entry of a `where`. And `min(` begins a call.
    is_unit = unit.kind is TokenKind.NAME and unit.text in UNITS_MS and unit.line == token.line
    if is_unit and cursor.ahead().text not in (":", "("):
        cursor.take()
        span = token.span.to(unit.span)
        return syntax.DurationLiteral(duration_ms(Decimal(token.value), unit.text, span, cursor.collector), span)
    return syntax.Literal(token.value, token.span)


def parse_constant(
    cursor: Cursor, noun: str, words: Collection[str], number: Callable[[Cursor], syntax.ExprSyntax]
) -> syntax.ExprSyntax:
    """Parse a constant: a text, a symbol, one of the `words` such as `true`, or a number, which `number` parses."""
    token = cursor.token
    if cursor.accept("-"):
        with cursor.nested():
            argument = parse_constant(cursor, noun, words, number)
        return syntax.UnarySyntax("-", argument, token.span.to(argument.span))
    if token.kind in NUMBERS:
        return number(cursor)
    if token.kind in (TokenKind.FLOAT, TokenKind.STRING):
        return syntax.Literal(cursor.take().value, token.span)
    if cursor.at(*words):
        return syntax.Literal(WORDS[cursor.take().text], token.span)
    return cursor.name_ref(noun)  # a symbol of an enum; the message says `noun` if none comes


def _if(cursor: Cursor) -> syntax.ExprSyntax:
    start = cursor.expect("if").span
    condition = _climb(cursor, _OR)
    cursor.expect("then", "after the condition")
    then = _climb(cursor, _OR)
    cursor.expect("else", "because every `if` needs one")
    otherwise = _climb(cursor, _OR)
    return syntax.IfSyntax(condition, then, otherwise, start.to(otherwise.span))


def _call(cursor: Cursor, name: Token) -> syntax.ExprSyntax:
    cursor.expect("(")
    arguments: list[syntax.ExprSyntax] = []
    while not cursor.at(")"):
        arguments.append(_climb(cursor, _OR))
        if len(arguments) == 1 and cursor.at("over", "by", "where"):
            return _history(cursor, name, arguments[0])
        if not cursor.accept(","):
            break
    end: Span = cursor.expect(")", "at the end of the arguments").span
    return syntax.CallSyntax(name.text, name.span, tuple(arguments), name.span.to(end))


def _history(cursor: Cursor, name: Token, argument: syntax.ExprSyntax) -> syntax.HistorySyntax:
    """Parse a history such as `count(payment over 1 h by merchant where …)`, after its first argument."""
    window = _window(cursor) if cursor.at("over") else None
    by = _sub_key(cursor) if cursor.accept("by") else ()
    where = parse_expression(cursor) if cursor.accept("where") else None
    extra: list[syntax.ExprSyntax] = []
    while cursor.accept(",") and not cursor.at(")"):
        extra.append(parse_expression(cursor))
    end = cursor.expect(")", "at the end of the arguments").span
    return syntax.HistorySyntax(name.text, name.span, argument, window, by, where, tuple(extra), name.span.to(end))


def _window(cursor: Cursor) -> syntax.HistoryWindowSyntax:
    """Parse `over 1 h`, `over previous 1 h`, or `over day in "Europe/Paris"`."""
    start = cursor.expect("over").span
    previous = cursor.accept("previous") is not None
    bound: syntax.Bound
    if cursor.token.kind in NUMBERS:
        bound = parse_number(cursor)
    else:
        token = cursor.name("a duration, or day, week, month")  # or a parameter: the check tells them apart
        bound = syntax.NameRef(token.text, token.span)
    zone = cursor.string("a time zone", 'write `in "Europe/Paris"`') if cursor.accept("in") else None
    return syntax.HistoryWindowSyntax(bound, previous, zone, start.to(cursor.previous_span))


def _sub_key(cursor: Cursor) -> tuple[syntax.NameRef, ...]:
    if not cursor.accept("("):
        return (cursor.name_ref("a field of the sub-key"),)
    names = cursor.name_refs("a field of the sub-key")
    cursor.expect(")", "at the end of the sub-key")
    return names
