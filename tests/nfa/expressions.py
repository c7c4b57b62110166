"""A seed → typed expressions over one event or over the events of a run, and events with every kind of null."""

from collections.abc import Callable
from random import Random

from cep.base.schema import EventType, Field, Kind, Schema, Type
from cep.lang.ir import Binary, BinaryOp, Call, Cast, Const, CurrentField, Expr, If, In, Unary, VarField
from tests.oracle.expressions import Value
from tests.oracle.matcher import Event

INT, FLOAT = Type(Kind.INT, nullable=True), Type(Kind.FLOAT, nullable=True)
CENTS = Type(Kind.DECIMAL, nullable=True, scale=2)
BOOL, TEXT = Type(Kind.BOOL, nullable=True), Type(Kind.STRING, nullable=True)
TIME, DURATION = Type(Kind.TIME, nullable=True), Type(Kind.DURATION, nullable=True)
FIELDS = {
    "i": INT, "j": Type(Kind.INT), "d": CENTS, "f": FLOAT, "b": BOOL, "s": TEXT, "t": TEXT,
    "o": TIME, "event_time": Type(Kind.TIME),
}  # fmt: skip
SCHEMA = Schema(
    (
        EventType(
            "e",
            (
                Field("id", Type(Kind.ID)),
                Field("event_time", Type(Kind.TIME)),
                Field("key", Type(Kind.STRING)),
                *(Field(name, type_) for name, type_ in FIELDS.items() if name != "event_time"),
            ),
        ),
    )
)
WORDS = ("", "a", "ab", "abc", "b%", "é")
_COMPARISONS: tuple[BinaryOp, ...] = ("==", "!=", "<", "<=", ">", ">=")

Leaf = Callable[[str, Type], Expr]


def of_event(field: str, type_: Type) -> Expr:
    """Return the field of the event under test."""
    return CurrentField(field, type_)


def of_run(field: str, type_: Type) -> Expr:
    """Return the field of the event that the run has bound to `a`."""
    return VarField("a", "last", field, type_.as_nullable())


def random_events(random: Random, count: int) -> list[Event]:
    """Return events of one key, one a millisecond."""
    events = []
    for order in range(count):
        values: dict[str, Value] = {
            "i": random.choice((None, 0, 1, -1, random.randint(-9, 9))),
            "j": random.randint(-3, 3),
            "d": random.choice((None, 0, 100, random.randint(-1_000, 1_000))),
            "f": random.choice((None, 0.0, 1.0, random.randint(-40, 40) / 8)),
            "b": random.choice((None, True, False)),
            "s": random.choice((None, *WORDS)),
            "t": random.choice((None, *WORDS)),
            "o": random.choice((None, 0, random.randint(-5, 60))),
        }
        events.append(Event(order, "e", order, order, {"id": str(order), "event_time": order, "key": "x", **values}))
    return events


class Maker:
    """Makes random expressions. `leaf` returns the expression of a field."""

    def __init__(self, random: Random, leaf: Leaf) -> None:
        self.random = random
        self.leaf = leaf
        self._makers = {
            Kind.INT: self._int,
            Kind.DECIMAL: self._cents,
            Kind.FLOAT: self._float,
            Kind.BOOL: self._bool,
            Kind.STRING: self._text,
            Kind.TIME: self._time,
            Kind.DURATION: self._duration,
        }

    def make(self, type_: Type, depth: int) -> Expr:
        """Return an expression of the type with this depth at most."""
        if depth > 0 and self.random.random() < 0.12:
            return If(self.make(BOOL, depth - 1), self.make(type_, depth - 1), self.make(type_, depth - 1), type_)
        return self._makers[type_.kind](depth)

    def _field(self, type_: Type) -> Expr:
        names = [name for name, field_type in FIELDS.items() if field_type.kind is type_.kind]
        name = self.random.choice(names)
        return self.leaf(name, FIELDS[name])

    def _numeric(self, type_: Type, ops: tuple[BinaryOp, ...], depth: int) -> Expr:
        if self.random.random() < 0.25:
            return Unary(self.random.choice(("neg", "abs")), self.make(type_, depth - 1), type_)
        sides = (self.make(type_, depth - 1), self.make(type_, depth - 1))
        if self.random.random() < 0.2:
            return Call(self.random.choice(("least", "greatest")), sides, type_)
        return Binary(self.random.choice(ops), *sides, type_)

    def _int(self, depth: int) -> Expr:
        if depth <= 0 or self.random.random() < 0.3:
            return self._field(INT) if self.random.random() < 0.7 else Const(self.random.randint(-4, 4), Type(Kind.INT))
        return self._numeric(INT, ("+", "-", "*", "%"), depth)

    def _rounded(self, value: Expr, type_: Type) -> Expr:
        fn = self.random.choice(("round", "floor", "ceil"))
        return Call(fn, (value, Const(0, Type(Kind.INT))) if fn == "round" else (value,), type_)

    def _cents(self, depth: int) -> Expr:
        if depth <= 0 or self.random.random() < 0.3:
            constant = Const(self.random.randint(-500, 500), Type(Kind.DECIMAL, scale=2))
            return self._field(CENTS) if self.random.random() < 0.7 else constant
        if self.random.random() < 0.2:
            return Cast(self.make(INT, depth - 1), CENTS)
        if self.random.random() < 0.15:
            return Cast(self._rounded(self.make(CENTS, depth - 1), INT), CENTS)
        return self._numeric(CENTS, ("+", "-", "%"), depth)

    def _float(self, depth: int) -> Expr:
        if depth <= 0 or self.random.random() < 0.3:
            constant = Const(self.random.randint(-20, 20) / 4, Type(Kind.FLOAT))
            return self._field(FLOAT) if self.random.random() < 0.7 else constant
        shape = self.random.random()
        if shape < 0.2:
            return Cast(self.make(self.random.choice((INT, CENTS)), depth - 1), FLOAT)
        if shape < 0.3:
            return Call("sqrt", (self.make(FLOAT, depth - 1),), FLOAT)
        if shape < 0.35:
            return self._rounded(self.make(FLOAT, depth - 1), FLOAT)
        if shape < 0.5:
            type_ = self.random.choice((INT, CENTS))
            return Binary("/", self.make(type_, depth - 1), self.make(type_, depth - 1), FLOAT)
        return self._numeric(FLOAT, ("+", "-", "*", "/"), depth)

    def _bool(self, depth: int) -> Expr:
        if depth <= 0:
            return self._field(BOOL)
        shape = self.random.random()
        if shape < 0.35:
            op: BinaryOp = self.random.choice(("and", "or"))
            return Binary(op, self.make(BOOL, depth - 1), self.make(BOOL, depth - 1), BOOL)
        if shape < 0.45:
            return Unary("not", self.make(BOOL, depth - 1), BOOL)
        type_ = self.random.choice((INT, CENTS, FLOAT, TEXT, TIME, DURATION))
        if shape < 0.55:
            return Unary("is_null", self.make(type_, depth - 1), Type(Kind.BOOL))
        if shape < 0.65:
            return In(self.make(type_, depth - 1), tuple(self._constant(type_) for _ in range(3)), BOOL)
        ops = ("==", "!=") if type_ is TEXT else _COMPARISONS
        return Binary(self.random.choice(ops), self.make(type_, depth - 1), self.make(type_, depth - 1), BOOL)

    def _time(self, depth: int) -> Expr:
        if depth <= 0 or self.random.random() < 0.7:
            return self._field(TIME)
        return Binary(self.random.choice(("+", "-")), self.make(TIME, depth - 1), self.make(DURATION, depth - 1), TIME)

    def _duration(self, depth: int) -> Expr:
        if depth <= 0 or self.random.random() < 0.3:
            return Const(self.random.randint(-9, 9), Type(Kind.DURATION))
        if self.random.random() < 0.5:
            return Binary("-", self.make(TIME, depth - 1), self.make(TIME, depth - 1), DURATION)
        return Binary(
            self.random.choice(("+", "-")), self.make(DURATION, depth - 1), self.make(DURATION, depth - 1), DURATION
        )

    def _text(self, depth: int) -> Expr:
        return self._field(TEXT) if self.random.random() < 0.7 else self._constant(TEXT)

    def _constant(self, type_: Type) -> Const:
        value: Value = self.random.choice(WORDS)
        if type_ is not TEXT:
            value = self.random.randint(-4, 4) * (100 if type_ is CENTS else 1)
            value = float(value) if type_ is FLOAT else value
        return Const(value, type_.as_nullable(nullable=False))
