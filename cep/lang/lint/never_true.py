"""A condition → whether no event can satisfy it.

Reads comparisons with constants that are joined by `and`, and computes the remaining range of a value. Other conditions
count as possible, so no lint complains about a condition that can be true.
Tested by: tests/lang/golden/lints/
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from cep.lang.ir import Binary, Const, Expr, In, Unary

_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
Value = int | float | bool | str


def never(expr: Expr) -> bool:
    """Return True if it is certain that the expression is never true."""
    if isinstance(expr, Binary) and expr.op == "or":
        return never(expr.left) and never(expr.right)
    ranges: dict[Expr, _Range] = {}
    for part in _conjuncts(expr):
        if isinstance(part, Binary) and part.op == "or" and never(part):
            return True
        if not _may_hold(part, ranges):
            return True
    return any(value.is_empty for value in ranges.values())


@dataclass(slots=True)
class _Range:
    """The values of one expression that conditions leave. A bound is (value, is it included?)."""

    low: tuple[float, bool] | None = None
    high: tuple[float, bool] | None = None
    allowed: set[Value] | None = None
    excluded: set[Value] = field(default_factory=set)
    is_null: bool | None = None
    contradicts: bool = False

    @property
    def is_empty(self) -> bool:
        if self.contradicts:
            return True
        if self.allowed is not None:
            return not any(self._fits(value) for value in self.allowed - self.excluded)
        if self.low is None or self.high is None:
            return False
        return self.low[0] > self.high[0] or (self.low[0] == self.high[0] and not (self.low[1] and self.high[1]))

    def _fits(self, value: Value) -> bool:
        if isinstance(value, str):
            return True
        above = self.low is None or value > self.low[0] or (value == self.low[0] and self.low[1])
        below = self.high is None or value < self.high[0] or (value == self.high[0] and self.high[1])
        return above and below

    def narrow_nullness(self, is_null: bool) -> None:
        self.contradicts = self.contradicts or (self.is_null is not None and self.is_null != is_null)
        self.is_null = is_null

    def narrow_to(self, values: set[Value]) -> None:
        self.narrow_nullness(is_null=False)
        self.allowed = values if self.allowed is None else self.allowed & values

    def compared(self, op: str, value: Value) -> None:
        """Leave only the values for which `expression op value` holds. A comparison with null never holds."""
        self.narrow_nullness(is_null=False)
        if op == "==":
            self.narrow_to({value})
        elif op == "!=":
            self.excluded.add(value)
        elif not isinstance(value, str):  # texts are not ordered here
            bound = (value, op in ("<=", ">="))  # the limit, and whether it is included
            if op in (">", ">="):  # keep the narrower limit: of two equal ones, the one that is not included
                self.low = bound if self.low is None else max(self.low, bound, key=lambda b: (b[0], not b[1]))
            else:
                self.high = bound if self.high is None else min(self.high, bound, key=lambda b: (b[0], b[1]))


def _may_hold(part: Expr, ranges: dict[Expr, _Range]) -> bool:
    """Narrow the ranges (possible values) of expressions by one part of an `and`. Return False if no value fits it."""
    if isinstance(part, Const):
        return part.value is True
    positive = True  # False under one `not`
    while isinstance(part, Unary) and part.op == "not":
        part, positive = part.argument, not positive
    if isinstance(part, Unary) and part.op == "is_null":
        ranges.setdefault(part.argument, _Range()).narrow_nullness(is_null=positive)
    elif isinstance(part, In) and positive and all(isinstance(i, Const) for i in part.items):
        values = {i.value for i in part.items if isinstance(i, Const) and i.value is not None}
        ranges.setdefault(part.argument, _Range()).narrow_to(values)
    elif isinstance(part, Binary) and part.op in _MIRRORED and positive:  # a comparison
        return _compared(part, ranges)
    elif part.type.kind.value == "bool" and not isinstance(part, Binary):  # such as a field of type bool
        ranges.setdefault(part, _Range()).narrow_to({positive})
    return True


def _compared(part: Binary, ranges: dict[Expr, _Range]) -> bool:
    """Narrow the range (possible values) of one side by a comparison with a constant. Return False if none is left."""
    op: str = part.op
    left, right = part.left, part.right
    if isinstance(left, Const):
        op, left, right = _MIRRORED[op], right, left  # `5 < x` becomes `x > 5`
    if not isinstance(right, Const):
        # Without a constant, only a comparison such as x < x is never true: it is false, or null if x is null.
        return not (left == right and (op in ("<", ">") or (op == "!=" and not left.type.is_float)))  # NaN != NaN
    if right.value is None:
        return False  # a comparison with null is null
    if isinstance(left, Const) and left.value is not None:  # two constants: compare with a range of one value
        single_value = _Range()
        single_value.narrow_to({left.value})
        single_value.compared(op, right.value)
        return not single_value.is_empty
    ranges.setdefault(left, _Range()).compared(op, right.value)
    return True


def _conjuncts(expr: Expr) -> Iterator[Expr]:
    waiting = [expr]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Binary) and part.op == "and":
            waiting += [part.right, part.left]
        else:
            yield part


def sides(expr: Expr) -> Iterator[Expr]:
    """Yield the sides of every `or` outside of a `not`."""
    waiting = [expr]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Binary) and part.op in ("and", "or"):
            waiting += [part.right, part.left]
            if part.op == "or":
                yield from (part.left, part.right)
