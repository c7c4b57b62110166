"""Functions of one event's text and time, and rounding: `lower(country)`, `hour(event_time, "Europe/Paris")`.

The engine evaluates them over columns, once for each distinct text. So their subject is a field of the event under
test, or another text function of one. The other arguments are constants or parameters.
Tested by: tests/lang/test_functions.py
"""

import ipaddress
from functools import cache
from zoneinfo import available_timezones

import pyarrow as pa
import pyarrow.compute as pc

from cep.base.limits import DECIMAL_SCALE_MAX, REGEX_CHARS_MAX
from cep.base.schema import Kind, Type, list_kind
from cep.lang.check.scope import Checker, Scope, each
from cep.lang.check.types import BOOL, INT, STRING
from cep.lang.diagnostics import Fix, Span, did_you_mean, nearest_fix
from cep.lang.functions import FUNCTIONS, IN_LIST, ROUNDING, TEXT_OPERATORS, TIME_FUNCTIONS, Family
from cep.lang.ir import Call, Const, CurrentField, Expr, Param
from cep.lang.syntax import CallSyntax, ExprSyntax

# The functions of text that give a text, which another function of text may take.
_GIVE_TEXT = tuple(name for name, f in FUNCTIONS.items() if f.family is Family.TEXT and f.gives == STRING)


def call(checker: Checker, node: CallSyntax, scope: Scope) -> Expr:
    """Check a call of a function of text or of time, or of `round`, `floor`, `ceil`."""
    check_count(checker, node, *FUNCTIONS[node.name].arguments)
    values = each(lambda argument: checker.check(argument, scope), node.arguments)
    if node.name in ROUNDING:
        return _rounded(checker, node, values, scope)
    if node.name in TIME_FUNCTIONS:
        return _of_time(checker, node, values, scope)
    return text_test(checker, node.name, values, node.arguments, scope)


def check_count(checker: Checker, node: CallSyntax, least: int, most: int) -> None:
    """Refuse a call with too few or too many arguments."""
    if not least <= len(node.arguments) <= most:
        count = f"{least}" if least == most else f"{least} or {most}"
        message = f"`{node.name}` takes {count} argument{'' if count == '1' else 's'}, here are {len(node.arguments)}"
        checker.refuse("CEP307", message, node.span)


def in_list(checker: Checker, value: Expr, named: Const | Param, argument: ExprSyntax, scope: Scope) -> Expr:
    """Check `value in name` for a list that may change. The result is null before the list's first version."""
    kind = list_kind(named.type)
    if kind in ("string", "prefix", "cidr"):  # whole texts, starts of texts, networks: they are looked up by text
        _check_event_text(checker, f"in {named.type}", value, argument, scope)
    elif kind != str(value.type.as_nullable(nullable=False)):
        message = f"this is {value.type}, the list is of {kind}"
        checker.refuse("CEP301", message, argument.span, labels=scope.labels())
    elif not isinstance(value, CurrentField):
        message = f"`in {named.type}` looks at a field of the event under test"
        checker.refuse("CEP314", message, argument.span, labels=scope.labels())
    return Call(IN_LIST, (value, named), BOOL.as_nullable())


def text_test(checker: Checker, name: str, values: list[Expr], arguments: tuple[ExprSyntax, ...], scope: Scope) -> Expr:
    """Check a text function, `like` or `matches` over checked arguments."""
    _check_event_text(checker, name, values[0], arguments[0], scope)
    is_operator = name in TEXT_OPERATORS  # `like` or `matches`
    takes = (STRING, STRING) if is_operator else FUNCTIONS[name].takes[: len(values)]
    for value, argument, value_type in zip(values[1:], arguments[1:], takes[1:], strict=True):  # after the text
        if not (value.type.is_text if value_type == STRING else value.type.kind is value_type.kind):
            noun = "text" if value_type == STRING else "a whole number"
            message = f"`{name}` needs {noun} here, this is {value.type}"
            checker.refuse("CEP301", message, argument.span, labels=scope.labels())
        if not isinstance(value, Const | Param):
            message = f"`{name}` takes a constant or a parameter here"
            checker.refuse("CEP301", message, argument.span, labels=scope.labels())
        if isinstance(value, Const):
            _check_constant(checker, name, value, argument.span, scope)
    gives = BOOL if is_operator else FUNCTIONS[name].gives
    assert gives is not None, "a function of text always gives the same type"
    return Call(name, tuple(values), gives.as_nullable(values[0].type.nullable or gives.nullable))


def _check_event_text(checker: Checker, name: str, value: Expr, argument: ExprSyntax, scope: Scope) -> None:
    """Refuse a value that is not text of the event under test, or is a token (keyed hash) of a protected text."""
    if not value.type.is_text:
        message = f"`{name}` needs text, this is {value.type}"
        checker.refuse("CEP301", message, argument.span, labels=scope.labels())
    if value.type.protected and name != "in list of string":  # such a list may hold tokens
        message = f"`{name}` cannot look into a value of type {value.type}: it is a token"
        help_line = "send what the rule needs of it as a field of its own, such as the first digits"
        checker.refuse("CEP321", message, argument.span, help_line, scope.labels())
    if not (isinstance(value, CurrentField) or (isinstance(value, Call) and value.fn in _GIVE_TEXT)):
        message = f"`{name}` looks at a field of the event under test"
        in_condition = scope.fields is not None
        help_line = "test it in the condition of that variable" if in_condition else "emit the field itself"
        checker.refuse("CEP314", message, argument.span, help_line, scope.labels())


def _check_constant(checker: Checker, name: str, value: Const, span: Span, scope: Scope) -> None:
    """Refuse a constant that has not the form that the function needs, like a network."""
    problem = constant_problem(name, value.value)
    if problem is None:
        return
    code = "CEP315" if name == "matches" else "CEP316"
    network = _network(str(value.value)) if name == "in_cidr" else None
    fix = None if network is None else Fix(span, f'"{network}"')
    checker.refuse(code, problem, span, "" if fix is None else f"write {fix.replacement}", scope.labels(), fix)


def constant_problem(name: str, value: object) -> str | None:
    """Return why a constant cannot be an argument of a function, None if it can. `bind` calls this for parameters."""
    if name == "matches":
        return regex_problem(str(value))
    if name == "in_cidr":
        try:
            ipaddress.ip_network(str(value))
        except ValueError as error:
            return f"this is not a network: {error}"
    if name == "substring" and isinstance(value, int) and value < 1:
        return "places and lengths of text count from 1"
    if name in TIME_FUNCTIONS and str(value) not in _zones():
        return f"`{str(value)[:60]}` is not a time zone"
    return None


def regex_problem(pattern: str) -> str | None:
    """Return why RE2 refuses the pattern, None if it does not. RE2 runs in time linear in the text."""
    if len(pattern) > REGEX_CHARS_MAX:
        return f"this regular expression has {len(pattern)} characters, more than {REGEX_CHARS_MAX}"
    try:
        pc.match_substring_regex(pa.array(["x"]), pattern)
    except pa.ArrowInvalid as error:
        return str(error).split("\n")[0].replace("Invalid regular expression", "this regular expression cannot be used")
    return None


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def _network(text: str) -> str | None:
    """Return the network that an address with a prefix length lies in."""
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        return None


def _of_time(checker: Checker, node: CallSyntax, values: list[Expr], scope: Scope) -> Expr:
    """Check a call of `hour`, `weekday` or `date` with a time field and a time zone."""
    moment, zone = values
    place, zone_place = (argument.span for argument in node.arguments)
    if moment.type.kind is not Kind.TIME:
        message = f"`{node.name}` needs a time, this is {moment.type}"
        checker.refuse("CEP301", message, place, labels=scope.labels())
    if not isinstance(moment, CurrentField):  # a field of the event that the condition tests
        message = f"`{node.name}` looks at a field of the event under test"
        checker.refuse("CEP314", message, place, labels=scope.labels())
    if not (isinstance(zone, Const | Param) and zone.type.is_text):
        message = f"`{node.name}` takes the zone as a constant text"
        help_line = 'write `hour(event_time, "Europe/Paris")`'
        checker.refuse("CEP316", message, zone_place, help_line, scope.labels())
    problem = constant_problem(node.name, zone.value) if isinstance(zone, Const) else None
    if isinstance(zone, Const) and problem is not None:
        name = str(zone.value)
        fix = nearest_fix(name, _zones(), zone_place)
        quoted = None if fix is None else Fix(zone_place, f'"{fix.replacement}"')
        help_line = did_you_mean(name, _zones(), "zones") if quoted is not None else 'like "Europe/Paris" or "UTC"'
        checker.refuse("CEP316", problem, zone_place, help_line, scope.labels(), quoted)
    gives = FUNCTIONS[node.name].gives  # the type of the result
    assert gives is not None, "a function of time always gives the same type"
    return Call(node.name, (moment, zone), gives.as_nullable(moment.type.nullable))


def _rounded(checker: Checker, node: CallSyntax, values: list[Expr], scope: Scope) -> Expr:
    """Check `round(x)`, `round(x, 1)`, `floor(x)`, `ceil(x)`. For a decimal they return an int or a coarser decimal."""
    value = values[0]
    digits = values[1] if len(values) == 2 else Const(0, INT)
    if not value.type.is_number:
        message = f"`{node.name}` needs a number, this is {value.type}"
        checker.refuse("CEP301", message, node.arguments[0].span, labels=scope.labels())
    count = digits.value if isinstance(digits, Const) and digits.type == INT else None  # decimals are ints, too
    if not (isinstance(count, int) and 0 <= count <= DECIMAL_SCALE_MAX):
        message = f"`round` takes the digits as a whole number from 0 to {DECIMAL_SCALE_MAX}"
        checker.refuse("CEP301", message, node.arguments[1].span, labels=scope.labels())
    if value.type.kind is Kind.INT or (value.type.kind is Kind.DECIMAL and count >= value.type.scale):
        return value  # every digit of it may stay
    result = value.type
    if value.type.kind is Kind.DECIMAL:
        nullable = value.type.nullable
        result = Type(Kind.DECIMAL, nullable, count) if count else INT.as_nullable(nullable)
    arguments = (value, digits) if node.name == "round" else (value,)
    return Call(node.name, arguments, result)
