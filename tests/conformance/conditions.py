"""A scenario's condition → the text of an expression.

In a scenario a comparison with an undefined value is false, and its opposite true; in the language it is unknown. The
two differ only below `not`, where the condition is made definite. Numbers are floats.
Tested by: tests/conformance/test_conformance.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cep.base.schema import Kind
from tests.conformance.names import Names, UntranslatableError
from tests.conformance.scenario import Json

_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
_TEXT_TESTS = {"contains": "contains", "startswith": "starts_with"}
_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
# The precedence of a text; a part with a lower precedence than its whole goes into parentheses.
_OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _ATOM = range(1, 8)
_LEVEL = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT}


@dataclass(frozen=True, slots=True)
class _Text:
    """A piece of the expression: its text, its precedence, its type, and whether it may be null."""

    text: str
    level: int
    kind: Kind
    nullable: bool = False

    def inside(self, level: int) -> str:
        return self.text if self.level >= level else f"({self.text})"


_TRUE, _FALSE = _Text("true", _ATOM, Kind.BOOL), _Text("false", _ATOM, Kind.BOOL)
_NULL = _Text("null", _ATOM, Kind.NULL, nullable=True)


@dataclass(frozen=True, slots=True)
class ConditionWriter:
    """Writes conditions. `bound` are the stages with events when the condition is tested; other stages are empty."""

    names: Names
    bound: frozenset[str]

    def text(self, raw: Json) -> str:
        """Return the condition, "" if it is always true. Raises: UntranslatableError."""
        written = self._condition(raw).text
        return "" if written == _TRUE.text else written

    def _condition(self, raw: Json) -> _Text:
        if isinstance(raw, bool):
            return _TRUE if raw else _FALSE
        if "and" in raw:
            return self._joined("and", _AND, [self._condition(one) for one in raw["and"]], _TRUE)
        if "or" in raw:
            return self._joined("or", _OR, [self._condition(one) for one in raw["or"]], _FALSE)
        if "not" in raw:
            test = self._condition(raw["not"])
            definite = f"(if {test.text} then true else false)" if test.nullable else test.inside(_NOT)
            return _Text(f"not {definite}", _NOT, Kind.BOOL)
        left = self._value(raw["l"])
        if raw["op"] == "in":
            return self._membership(left, raw["r"])
        right = self._value(raw["r"])
        if raw["op"] in _TEXT_TESTS:
            return self._text_test(raw["op"], left, raw["r"])
        if raw["op"] not in _COMPARISONS:
            raise UntranslatableError(f"the operator {raw['op']!r}")
        return self._comparison(raw["op"], left, right)

    @staticmethod
    def _joined(word: str, level: int, parts: Sequence[_Text], empty: _Text) -> _Text:
        if len(parts) < 2:
            return parts[0] if parts else empty
        nullable = any(part.nullable for part in parts)
        return _Text(f" {word} ".join(part.inside(level) for part in parts), level, Kind.BOOL, nullable)

    def _comparison(self, op: str, left: _Text, right: _Text) -> _Text:
        if Kind.NULL in (left.kind, right.kind):
            return _FALSE
        if left.kind is not right.kind:
            # Values of different types are defined and unequal.
            there = [f"{part.inside(_SUM)} is not null" for part in (left, right) if part.nullable]
            if op != "!=":
                return _FALSE
            return _Text(" and ".join(there), _AND, Kind.BOOL) if there else _TRUE
        if left.kind is not Kind.FLOAT and op not in ("==", "!="):
            raise UntranslatableError(f"order among values of type {left.kind.value}")
        text = f"{left.inside(_SUM)} {op} {right.inside(_SUM)}"
        return _Text(text, _COMPARE, Kind.BOOL, left.nullable or right.nullable)

    def _membership(self, left: _Text, raw: Sequence[Json]) -> _Text:
        items = [item for item in (self._value(one) for one in raw) if item.kind is left.kind]
        if not items or left.kind is Kind.NULL:
            return _FALSE
        listed = ", ".join(item.text for item in items)
        return _Text(f"{left.inside(_SUM)} in [{listed}]", _COMPARE, Kind.BOOL, left.nullable)

    @staticmethod
    def _text_test(op: str, left: _Text, raw: Json) -> _Text:
        if left.kind is Kind.NULL or raw is None:
            return _FALSE
        if left.kind is not Kind.STRING or not isinstance(raw, str):
            raise UntranslatableError(f"{op!r} of anything but a text field and a constant")
        return _Text(f"{_TEXT_TESTS[op]}({left.text}, {_quoted(raw)})", _ATOM, Kind.BOOL, left.nullable)

    # ------------------------------------------------------------------------------------------------------ values

    def _value(self, raw: Json) -> _Text:
        if raw is None:
            return _NULL
        if isinstance(raw, bool):
            return _TRUE if raw else _FALSE
        if isinstance(raw, str):
            return _Text(_quoted(raw), _ATOM, Kind.STRING)
        if isinstance(raw, int | float):
            return _number(float(raw))
        if "agg" in raw:
            return self._aggregate(raw)
        if "f" in raw:
            field = raw["f"]
            return _Text(self.names.fields[field], _ATOM, self.names.kinds[field], field in self.names.missing)
        if "abs" in raw:
            inner = self._value(raw["abs"])
            return _Text(f"abs({inner.text})", _ATOM, Kind.FLOAT, inner.nullable)
        for word, op in _ARITHMETIC.items():
            if word in raw:
                return self._computed(op, [self._value(one) for one in raw[word]])
        raise UntranslatableError(f"the expression {raw}")

    def _computed(self, op: str, parts: Sequence[_Text]) -> _Text:
        if any(part.kind is not Kind.FLOAT for part in parts):
            return _NULL
        level = _LEVEL[op]
        first, *others = parts
        text = first.inside(level)
        for part in others:
            text += f" {op} {part.inside(level + 1)}"
        nullable = op == "/" or any(part.nullable for part in parts)
        return _Text(text, level if others else first.level, Kind.FLOAT, nullable)

    def _aggregate(self, raw: Json) -> _Text:
        fn, stage = raw["agg"], raw["stage"]
        if stage not in self.bound:
            return _number(0.0) if fn in ("count", "sum") else _NULL
        variable = self.names.variables[stage]
        if fn == "count":
            return _Text(f"count({variable})", _ATOM, Kind.FLOAT)
        field, kind = self.names.fields[raw["f"]], self.names.kinds[raw["f"]]
        if fn in ("first", "last"):
            return _Text(f"{fn}({variable}).{field}", _ATOM, kind, nullable=True)
        if fn not in ("sum", "avg", "min", "max"):
            raise UntranslatableError(f"the aggregate {fn!r}")
        return _Text(f"{fn}({variable}.{field})", _ATOM, Kind.FLOAT, nullable=fn != "sum")


def _number(value: float) -> _Text:
    text = str(int(value)) if value.is_integer() else repr(value)
    return _Text(text, _ATOM if value >= 0 else _PRODUCT, Kind.FLOAT)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'
