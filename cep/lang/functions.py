"""The functions of the language, one row each: arguments, result, and texts for editors.

Each family is computed in one or two other places, and a new function needs a row there, too:

| family | computed by |
| --- | --- |
| TEXT, of one field | cep/functions/columns.py, over the distinct texts of a column |
| TIME | cep/functions/calendar.py, over a column of times |
| FLOAT | cep/nfa/code.py, as instructions; cep/testing/values.py, in plain Python |
| AGGREGATE, PAST over past events | cep/histories/kinds/, chosen in choose.py there |
| others | as FLOAT, after a separate check in cep/lang/check/expressions.py, or composed of others there |

`tests/oracle/expressions.py` computes each function once more. `cep/docs/reference/language/expressions.md` describes
it.
Tested by: tests/lang/test_functions.py, tests/lang/test_editor.py
"""

from dataclasses import dataclass
from enum import Enum

from cep.base.schema import Kind, Type

INT, FLOAT, STRING, BOOL, TIME = (Type(k) for k in (Kind.INT, Kind.FLOAT, Kind.STRING, Kind.BOOL, Kind.TIME))
# Some functions have no value for some arguments: the root of a negative number, the network of an invalid address.
MAYBE_FLOAT, MAYBE_BOOL = FLOAT.as_nullable(), BOOL.as_nullable()


class Family(Enum):
    """The functions that are checked and computed in the same way."""

    AGGREGATE = "over the events of a variable, or over past events"
    CHOICE = "one of the events of a variable"
    PAST = "over past events alone"
    NUMBER = "of numbers, in their own type"
    FLOAT = "of numbers as floats"
    ROUNDING = "to fewer digits"
    TEXT = "of a text of the event under test"
    TIME = "of a time of the event under test"


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the language. `family`: how it is checked and computed. `shown`: its signature, for an editor.

    `takes` are the types of its arguments, of which the first `least` are required; None: all. `gives` is the type of
    its value. `takes` is empty and `gives` None where both depend on how the function is used.
    """

    family: Family
    shown: str
    takes: tuple[Type, ...] = ()
    least: int | None = None
    gives: Type | None = None

    @property
    def arguments(self) -> tuple[int, int]:
        """The least and the greatest number of arguments."""
        return len(self.takes) if self.least is None else self.least, len(self.takes)


FUNCTIONS: dict[str, Function] = {
    "count": Function(
        Family.AGGREGATE, "count(x): events bound to x; of past events `count(transaction over 1 h where …)`"
    ),
    "sum": Function(Family.AGGREGATE, "sum(x.field): 0 of no events, where SQL has null"),
    "avg": Function(
        Family.AGGREGATE,
        "avg(x.field): mean of the events bound to x, without the event under test; of past events "
        "`avg(transaction.amount over 1 h)`",
    ),
    "min": Function(Family.AGGREGATE, "min(x.field), or the lesser of min(a, b)"),
    "max": Function(Family.AGGREGATE, "max(x.field), or the greater of max(a, b)"),
    "distinct": Function(Family.AGGREGATE, "distinct(x.field): different values"),
    "stddev": Function(Family.AGGREGATE, "stddev(x.field): standard deviation of the population"),
    "first": Function(
        Family.CHOICE,
        "first(x).field: of the first event bound to x; `first(transaction).field`: of the first past event",
    ),
    "last": Function(
        Family.CHOICE, "last(x).field: of the last event bound to x; `last(transaction).field`: of the last past event"
    ),
    "prev": Function(Family.CHOICE, "prev(x).field: of the event before the last one bound to x"),
    "exists": Function(Family.PAST, "exists(transaction over previous 100 d): is there such a past event?"),
    "first_seen": Function(Family.PAST, "first_seen(field): time since the key first had this value"),
    "median": Function(Family.PAST, "median(transaction.amount over 30 d)"),
    "percentile": Function(Family.PAST, "percentile(transaction.amount over 30 d, 95)"),
    "approx_distinct": Function(
        Family.PAST, "approx_distinct(transaction.merchant_id over 90 d): different values, 3 % off, in little state"
    ),
    "approx_percentile": Function(
        Family.PAST, "approx_percentile(transaction.amount over 90 d, 95): 1 % off, in little state"
    ),
    "abs": Function(Family.NUMBER, "abs(x): without its sign", (FLOAT,)),
    "least": Function(Family.NUMBER, "least(a, b, …)"),
    "greatest": Function(Family.NUMBER, "greatest(a, b, …)"),
    "sqrt": Function(Family.FLOAT, "sqrt(x): null below 0", (FLOAT,), gives=MAYBE_FLOAT),
    "sin": Function(Family.FLOAT, "sin(x): x in radians", (FLOAT,), gives=FLOAT),
    "cos": Function(Family.FLOAT, "cos(x): x in radians", (FLOAT,), gives=FLOAT),
    "asin": Function(Family.FLOAT, "asin(x): in radians, null beyond 1", (FLOAT,), gives=MAYBE_FLOAT),
    "distance_km": Function(
        Family.FLOAT, "distance_km(lat1, lon1, lat2, lon2): great-circle distance", (FLOAT,) * 4, gives=FLOAT
    ),
    "round": Function(Family.ROUNDING, "round(x) or round(x, digits): halves away from zero", (FLOAT, INT), least=1),
    "floor": Function(Family.ROUNDING, "floor(x): the greatest whole number that is not above x", (FLOAT,)),
    "ceil": Function(Family.ROUNDING, "ceil(x): the least whole number that is not below x", (FLOAT,)),
    "lower": Function(Family.TEXT, "lower(text)", (STRING,), gives=STRING),
    "upper": Function(Family.TEXT, "upper(text)", (STRING,), gives=STRING),
    "substring": Function(
        Family.TEXT, "substring(text, first, length): counts from 1", (STRING, INT, INT), least=2, gives=STRING
    ),
    "length": Function(Family.TEXT, "length(text): in characters", (STRING,), gives=INT),
    "starts_with": Function(Family.TEXT, 'starts_with(text, "start")', (STRING, STRING), gives=BOOL),
    "ends_with": Function(Family.TEXT, 'ends_with(text, "end")', (STRING, STRING), gives=BOOL),
    "contains": Function(Family.TEXT, 'contains(text, "part")', (STRING, STRING), gives=BOOL),
    "in_cidr": Function(
        Family.TEXT, 'in_cidr(ip, "10.0.0.0/8"): is the address in the network?', (STRING, STRING), gives=MAYBE_BOOL
    ),
    "hour": Function(Family.TIME, 'hour(event_time, "Europe/Paris"): 0 to 23', (TIME, STRING), gives=INT),
    "weekday": Function(Family.TIME, 'weekday(event_time, "Europe/Paris"): 1 is Monday', (TIME, STRING), gives=INT),
    "date": Function(
        Family.TIME, 'date(event_time, "Europe/Paris"): the start of the day there', (TIME, STRING), gives=TIME
    ),
}


def _names_of(*families: Family) -> frozenset[str]:
    return frozenset(name for name, function in FUNCTIONS.items() if function.family in families)


ROUNDING = _names_of(Family.ROUNDING)
TIME_FUNCTIONS = _names_of(Family.TIME)
# The operators over text and lists are computed like functions of text, but are not called by name.
TEXT_OPERATORS = ("like", "matches")
IN_LIST = "in_list"
# The engine computes a column for each of these before any code runs.
COLUMN_FUNCTIONS = _names_of(Family.TEXT, Family.TIME).union(TEXT_OPERATORS, (IN_LIST,))
