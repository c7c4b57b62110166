"""Typed expressions → instructions of the register machine, for single events and for an event with a run.

    Expr over the event under test          ──VectorCode──▶ predicates (bitmaps) and derived columns
    Expr that also reads bound events       ──ScalarCode──▶ instructions with run registers

Tested by: tests/nfa/test_code.py
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import numpy as np

from cep.base.schema import Kind, Type
from cep.kernels.expressions import opcodes as o
from cep.kernels.layout import Int32, Int64
from cep.kernels.records import BlockCode
from cep.lang.functions import COLUMN_FUNCTIONS, ROUNDING
from cep.lang.ir import Aggregate, Binary, Call, Cast, Const, CurrentField, Expr, History, If, In, Unary, VarField
from cep.nfa.columns import ColumnMap
from cep.nfa.twofold import Twofold, compare_twofold, divided, exact, has_average, sum_of

Instruction = tuple[int, int, int, int, int]
EARTH_RADIUS_KM = 6371.0088  # mean radius, IUGG
FLOAT = Type(Kind.FLOAT)


class Constants:
    """The constants of a program. Each has a slot: a number, or for a text its code, which differs in each batch."""

    def __init__(self) -> None:
        self.slots: list[int] = []  # a float as its 64 bits; -1 for a text
        self.texts: list[tuple[int, str]] = []  # slot, text: each batch of events replaces -1 by the text's code
        self._slot_of: dict[tuple[str, object], int] = {}

    def add(self, value: float | bool | str, is_float: bool) -> int:
        key = ("text" if isinstance(value, str) else "float" if is_float else "int", value)
        if key not in self._slot_of:
            self._slot_of[key] = len(self.slots)
            if isinstance(value, str):
                self.texts.append((len(self.slots), value))
                self.slots.append(-1)
            else:
                # -0.0 becomes 0.0, which has the same key.
                self.slots.append(int(np.float64(value + 0.0).view(np.int64)) if is_float else int(value))
        return self._slot_of[key]


_UNARY = {"not": (o.NOT, o.NOT), "is_null": (o.IS_NULL, o.IS_NULL), "neg": (o.NEG, o.FNEG), "abs": (o.ABS, o.FABS)}
_EXTREMES = {"least": (o.MIN, o.FMIN), "greatest": (o.MAX, o.FMAX)}
_INTEGER = {"+": o.ADD, "-": o.SUB, "*": o.MUL, "%": o.MOD, "<": o.LT, "<=": o.LE, "==": o.EQ, "!=": o.NE}
_INTEGER |= {"and": o.AND, "or": o.OR}
_FLOATING = {
    "+": o.FADD, "-": o.FSUB, "*": o.FMUL, "/": o.FDIV, "<": o.FLT, "<=": o.FLE, "==": o.FEQ, "!=": o.FNE,
}  # fmt: skip
_MIRRORED = {">": "<", ">=": "<="}
_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
_FLOAT_FUNCTIONS = {"sqrt": o.FSQRT, "sin": o.FSIN, "cos": o.FCOS, "asin": o.FASIN}  # a single instruction each


class Lowering(ABC):
    """The common part of both kinds of code: everything except the leaves that name events."""

    def __init__(self, constants: Constants, columns: ColumnMap) -> None:
        self.constants = constants
        self.columns = columns

    @abstractmethod
    def emit(self, op: int, a: int = 0, b: int = 0, c: int = 0) -> int:
        """Append an instruction and return its target register."""

    @abstractmethod
    def lower(self, expr: Expr) -> int:
        """Return the register that holds the expression's value."""

    def unit(self, expr: Expr) -> int:
        """Return the constant by which the slot of a decimal or an integer is divided."""
        return self.constants.add(10**expr.type.scale, False)

    def average(self, expr: Expr) -> Twofold:
        """Return the registers of an average: the nearest float and its rounding error."""
        assert isinstance(expr, History), "events alone have no other average"
        rest = self.columns.history(replace(expr, fn="avg_rest"))
        return exact(self, self.lower(expr), self.emit(o.COLUMN, rest))

    def constant(self, value: float | bool | str | None, is_float: bool = False) -> int:
        if value is None:
            return self.emit(o.CONST, self.constants.add(0, False), 1)
        return self.emit(o.CONST, self.constants.add(value, is_float), 0)

    def _lower_node(self, expr: Expr) -> int:
        """Emit an expression by its kind, except bound events (see `lower`). Return the register of its value."""
        if isinstance(expr, Const):
            return self.constant(expr.value, expr.type.is_float)
        if isinstance(expr, CurrentField):
            return self.emit(o.COLUMN, self.columns.number(expr.field))
        if isinstance(expr, History):
            return self.emit(o.COLUMN, self.columns.history(expr))
        if isinstance(expr, Unary):
            return self.emit(_UNARY[expr.op][expr.type.is_float], self.lower(expr.argument))  # opcodes: integer, float
        if isinstance(expr, Binary):
            return self._binary(expr)
        if isinstance(expr, Cast):
            return self._cast(self.lower(expr.argument), expr.argument.type, expr.type)
        if isinstance(expr, In):
            return self._in(expr)
        if isinstance(expr, If):
            condition, then, otherwise = self.lower(expr.condition), self.lower(expr.then), self.lower(expr.otherwise)
            return self.emit(o.SELECT, condition, then, otherwise)
        assert isinstance(expr, Call), f"no code for {expr!r}"
        return self._call(expr)

    def _compare_averages(self, expr: Binary) -> int:
        return compare_twofold(self, expr)

    def _binary(self, expr: Binary) -> int:
        """Emit a comparison, `and`, `or` or arithmetic. Return the register of its value."""
        op, left, right = expr.op, expr.left, expr.right
        if op in _COMPARISONS and has_average(expr):
            return self._compare_averages(expr)
        if op in _MIRRORED:
            op, left, right = _MIRRORED[op], right, left  # type: ignore[assignment]
        if op == "/" and (counts := same_units(left, right)) is not None:
            # Both sides are integer counts of one unit, such as cents: divided as they are, they are rounded only once.
            one = self.constants.add(1, is_float=False)  # TO_FLOAT divides by it
            return self.emit(o.FDIV, *(self.emit(o.TO_FLOAT, self.lower(count), one) for count in counts))
        left_value, right_value = self.lower(left), self.lower(right)
        if op == "/" or left.type.is_float or right.type.is_float:
            return self.emit(_FLOATING[op], self._float(left_value, left.type), self._float(right_value, right.type))
        return self.emit(_INTEGER[op], left_value, right_value)

    def _float(self, register: int, source: Type) -> int:
        return register if source.is_float else self._cast(register, source, FLOAT)

    def _cast(self, register: int, source: Type, target: Type) -> int:
        if target.is_float:
            if source.is_float or source.kind is Kind.NULL:
                return register
            return self.emit(o.TO_FLOAT, register, self.constants.add(10**source.scale, False))
        digits = target.scale - source.scale
        assert digits >= 0, "a cast loses nothing"
        return register if digits == 0 else self.emit(o.SCALE, register, self.constants.add(10**digits, False))

    def _in(self, expr: In) -> int:
        argument = self.lower(expr.argument)
        op = o.FEQ if expr.argument.type.is_float else o.EQ
        result = self.constant(False)
        for item in expr.items:
            result = self.emit(o.OR, result, self.emit(op, argument, self.lower(item)))
        return result

    def _call(self, expr: Call) -> int:
        """Emit a call of a function. Return the register of its value."""
        if expr.fn in COLUMN_FUNCTIONS:  # computed as a column of the event table before the code runs
            return self.emit(o.COLUMN, self.columns.computed(expr))
        if expr.fn in ROUNDING:
            return self._round(expr)
        arguments = [self.lower(a) for a in expr.arguments]
        if expr.type.is_float:
            arguments = [self._float(r, a.type) for r, a in zip(arguments, expr.arguments, strict=True)]
        if expr.fn in _EXTREMES:
            return reduce(partial(self.emit, _EXTREMES[expr.fn][expr.type.is_float]), arguments)
        if expr.fn == "distance_km":
            return self._distance(arguments)
        return self.emit(_FLOAT_FUNCTIONS[expr.fn], arguments[0])

    def _round(self, expr: Call) -> int:
        """Emit `round`, `floor` or `ceil`. A decimal is stored as an integer, 1.50 as 150, so a division rounds it."""
        value, source = self.lower(expr.arguments[0]), expr.arguments[0].type
        if source.is_float:
            digits = expr.arguments[1] if expr.fn == "round" else None
            return self._round_float(expr.fn, value, int(digits.value or 0) if isinstance(digits, Const) else 0)
        step = 10 ** (source.scale - expr.type.scale)  # 100 for an amount in cents, rounded to whole euros
        if expr.fn == "floor" or step == 1:
            return self._quotient(value, step)
        if expr.fn == "ceil":
            return self._quotient_up(value, step)
        # `round` counts half steps, here of 50: floor((floor(value / 50) + 1) / 2), so 150 → 4 / 2 = 2, and 149 → 1.
        # A half of a negative number goes down: floor(ceil(value / 50) / 2), so -150 → floor(-3 / 2) = -2.
        halves_above = self.emit(o.ADD, self._quotient(value, step // 2), self.constant(1))
        is_negative = self.emit(o.LT, value, self.constant(0))
        halves = self.emit(o.SELECT, is_negative, self._quotient_up(value, step // 2), halves_above)
        return self._quotient(halves, 2)

    def _quotient(self, register: int, divisor: int) -> int:
        return self.emit(o.QUOTIENT, register, self.constants.add(divisor, is_float=False))

    def _quotient_up(self, register: int, divisor: int) -> int:
        rest = self.emit(o.MOD, register, self.constant(divisor))
        return self.emit(o.ADD, self._quotient(register, divisor), self.emit(o.NE, rest, self.constant(0)))

    def _round_float(self, fn: str, value: int, digits: int) -> int:
        """Emit `floor`, `ceil` or `round` (half away from zero, to `digits` decimal places) of a float."""
        if fn == "floor":
            return self.emit(o.FFLOOR, value)
        if fn == "ceil":
            return self.emit(o.FNEG, self.emit(o.FFLOOR, self.emit(o.FNEG, value)))
        units = self.constant(10.0**digits, is_float=True)
        size = self.emit(o.FMUL, self.emit(o.FABS, value), units)
        # The fractional part is exact, size + 0.5 is not: it would round the greatest number below a half up to 1.
        whole = self.emit(o.FFLOOR, size)
        half = self.constant(0.5, is_float=True)
        reaches_half = self.emit(o.FLE, half, self.emit(o.FSUB, size, whole))
        above = self.emit(o.FADD, whole, self.constant(1.0, is_float=True))
        nearest = self.emit(o.FDIV, self.emit(o.SELECT, reaches_half, above, whole), units)
        negative = self.emit(o.FLT, value, self.constant(0.0, is_float=True))
        return self.emit(o.SELECT, negative, self.emit(o.FNEG, nearest), nearest)

    def _distance(self, degrees: list[int]) -> int:
        """Emit the great-circle distance in km of lat1, lon1, lat2, lon2 in degrees: the haversine formula (Sinnott,
        "Virtues of the Haversine", 1984).
        """
        factor = self.constant(math.pi / 180.0, is_float=True)
        half = self.constant(0.5, is_float=True)
        lat1, lon1, lat2, lon2 = (self.emit(o.FMUL, d, factor) for d in degrees)

        def squared_half_sine(low: int, high: int) -> int:
            sine = self.emit(o.FSIN, self.emit(o.FMUL, self.emit(o.FSUB, high, low), half))
            return self.emit(o.FMUL, sine, sine)

        cosines = self.emit(o.FMUL, self.emit(o.FCOS, lat1), self.emit(o.FCOS, lat2))
        chord = self.emit(
            o.FADD, squared_half_sine(lat1, lat2), self.emit(o.FMUL, cosines, squared_half_sine(lon1, lon2))
        )
        bounded = self.emit(o.FMIN, chord, self.constant(1.0, is_float=True))  # rounding may give more than 1
        angle = self.emit(o.FASIN, self.emit(o.FSQRT, bounded))
        return self.emit(o.FMUL, angle, self.constant(2.0 * EARTH_RADIUS_KM, is_float=True))


def same_units(left: Expr, right: Expr) -> tuple[Expr, Expr] | None:
    """Return the integers on both sides of a division, if they count the same unit."""
    sides = [side.argument if isinstance(side, Cast) and side.type.is_float else side for side in (left, right)]
    kinds = {(side.type.is_float, side.type.scale) for side in sides}
    return (sides[0], sides[1]) if kinds == {(False, sides[0].type.scale)} else None


class VectorCode(Lowering):
    """Code over blocks of events. Equal sub-expressions of all rules of a program become one instruction."""

    def __init__(self, constants: Constants, columns: ColumnMap) -> None:
        super().__init__(constants, columns)
        self._instructions: list[Instruction] = []
        self._number_of: dict[tuple[int, int, int, int], int] = {}
        self._of_expr: dict[int, tuple[Expr, int]] = {}  # keyed by id, because a hash would visit the whole expression
        self._predicates: list[int] = []
        self._derived: dict[int, int] = {}

    def emit(self, op: int, a: int = 0, b: int = 0, c: int = 0) -> int:
        key = (op, a, b, c)
        number = self._number_of.setdefault(key, len(self._instructions))
        if number == len(self._instructions):
            self._instructions.append((op, number, a, b, c))
        return number

    def lower(self, expr: Expr) -> int:
        lowered = self._of_expr.get(id(expr))
        if lowered is None:  # an equal expression becomes the same instructions
            lowered = self._of_expr[id(expr)] = expr, self._lower_node(expr)
        return lowered[1]

    def predicate(self, conjuncts: list[Expr], event_type_code: int | None) -> None:
        """Add the predicate "is of this event type, and all conjuncts are true" to the results."""
        result = -1
        if event_type_code is not None:
            type_column = self.emit(o.COLUMN, 0)
            result = self.emit(o.EQ, type_column, self.constant(event_type_code))
        for conjunct in conjuncts:
            register = self.lower(conjunct)
            result = register if result < 0 else self.emit(o.AND, result, register)
        assert result >= 0, "a predicate without any condition needs no bitmap"
        self._predicates.append(result)

    def derived(self, expr: Expr) -> int:
        """Return the number of the derived column that holds the expression."""
        register = self.lower(expr)
        if expr.type.is_float:  # -0.0 becomes 0.0, as in fields, because some comparisons use the bits
            register = self.emit(o.FADD, register, self.constant(0.0, is_float=True))
        return self._derived.setdefault(register, len(self._derived))

    def finish(self) -> VectorProgram:
        return allocate(self._instructions, self._predicates, list(self._derived))

    def predicate_code(self, number: int) -> list[Instruction]:
        """Return the instructions that the predicate needs, in order; the last one computes its value."""
        return self._needed(self._predicates[number])

    def derived_code(self, number: int) -> list[Instruction]:
        """Return the instructions that the derived column needs, in order; the last one computes its value."""
        return self._needed(list(self._derived)[number])

    def _needed(self, result: int) -> list[Instruction]:
        needed: set[int] = set()
        waiting = [result]
        while waiting:
            register = waiting.pop()
            if register not in needed:
                needed.add(register)
                op, _, *operands = self._instructions[register]
                waiting += _register_operands(op, operands)
        return [self._instructions[register] for register in sorted(needed)]


def allocate(instructions: Sequence[Instruction], predicates: Sequence[int], derived: Sequence[int]) -> VectorProgram:
    """Assign machine registers to instructions, so that a register is reused after the last instruction that reads it.

    Each instruction's target is its own index before. `predicates` and `derived` are the indexes of the instructions
    whose values are results. Cost: a loop over the instructions.
    """
    last_use = dict.fromkeys((*predicates, *derived), len(instructions))
    read = [tuple(dict.fromkeys(_register_operands(op, operands))) for op, _, *operands in instructions]
    for index, operands_read in enumerate(read):
        for operand in operands_read:
            last_use[operand] = max(last_use.get(operand, 0), index)
    free_registers: list[int] = []
    size = 0
    register_of: list[int] = []
    code: list[Instruction] = []
    for index, (op, _target, *operands) in enumerate(instructions):
        for position in register_positions(op):
            operands[position] = register_of[operands[position]]
        if free_registers:
            register_of.append(free_registers.pop())
        else:
            register_of.append(size)
            size += 1
        code.append((op, register_of[index], operands[0], operands[1], operands[2]))
        free_registers.extend(register_of[x] for x in read[index] if last_use[x] == index)
    return VectorProgram(
        np.array(code, np.int32).reshape(-1, o.MACHINE_WIDTH),
        max(size, 1),
        np.array([register_of[r] for r in predicates], np.int32),
        np.array([register_of[r] for r in derived], np.int32),
    )


@dataclass(frozen=True, slots=True)
class VectorProgram:
    """Code for a block of events: the conditions of one event (predicates) and derived columns (other expressions)."""

    code: np.ndarray  # int32[I, MACHINE_WIDTH] instructions
    machine_size: int  # the number of registers
    predicate_registers: np.ndarray  # for each predicate, the register that has its value after all instructions
    derived_registers: np.ndarray  # the same for each derived column

    def sums_by_result(self, instruction_counts: Int64) -> tuple[list[int], list[int]]:  # int64[I], such as overflows
        """Return for each predicate and each derived column the sum of the counts of the instructions that it needs."""
        needed: dict[int, frozenset[int]] = {}  # by register (which may be reused): the instructions of its value
        for index, (op, target, *operands) in enumerate(self.code.tolist()):
            needed[target] = frozenset({index}).union(
                *(needed[register] for register in _register_operands(op, operands))
            )
        predicate_sums, derived_sums = (
            [sum(int(instruction_counts[index]) for index in needed[register]) for register in registers.tolist()]
            for registers in (self.predicate_registers, self.derived_registers)
        )
        return predicate_sums, derived_sums

    def block_code(self, constants: Int64, bitmap_numbers: Int32, derived_first: int) -> BlockCode:
        """Return the code for kernels: constants, the numbers of predicates' bitmaps, and the first derived column."""
        return BlockCode(
            self.code, constants, self.machine_size, self.predicate_registers, bitmap_numbers, self.derived_registers,
            derived_first,
        )  # fmt: skip


# the operand that is the number of a constant or a column
CONSTANT_OPERAND = {o.CONST: 0, o.SCALE: 1, o.TO_FLOAT: 1, o.TO_FLOAT_REST: 1, o.QUOTIENT: 1}
COLUMN_OPERAND = {o.COLUMN: 0, o.ROW: 1, o.DISTINCT: 1}
# the operands among a, b, c that are registers, unless they are a and b
_REGISTERS = {
    **dict.fromkeys((o.CONST, o.COLUMN, o.REGISTER, o.ROW, o.DISTINCT), ()),
    **dict.fromkeys(
        (
            o.NEG, o.ABS, o.SCALE, o.TO_FLOAT, o.TO_FLOAT_REST, o.FNEG, o.FABS, o.FSQRT, o.FSIN, o.FCOS, o.FASIN,
            o.FFLOOR, o.QUOTIENT, o.NOT, o.IS_NULL,
        ),
        (0,),
    ),
    o.SELECT: (0, 1, 2),
}  # fmt: skip


def register_positions(op: int) -> tuple[int, ...]:
    """Return the positions of the operands a, b, c that are registers."""
    return _REGISTERS.get(op, (0, 1))


def _register_operands(op: int, operands: list[int]) -> list[int]:
    return [operands[position] for position in register_positions(op)]


# The register of a run for (kind, variable, argument) of an aggregate. A predicate of the event alone needs none.
RunRegister = Callable[[str, str, Expr | None], int]


class ScalarCode(Lowering):
    """Code for one event and one run: all conditions and measures of all rules, in one list."""

    def __init__(self, constants: Constants, columns: ColumnMap) -> None:
        super().__init__(constants, columns)
        self.instructions: list[Instruction] = []
        self.machine_size = 1
        self._registers_count, self._register_of = 0, dict[Expr, int]()
        self._register: RunRegister | None = None
        self._variable_number: Callable[[str], int] | None = None

    def compile(
        self, expr: Expr, register: RunRegister | None = None, variable: Callable[[str], int] | None = None
    ) -> tuple[int, int, int]:
        """Append code for `expr`; return its first instruction, its end, and the register of the result."""
        self._registers_count, self._register_of = 0, {}
        self._register, self._variable_number = register, variable
        first = len(self.instructions)
        result = self.lower(expr)
        self.machine_size = max(self.machine_size, self._registers_count)
        return first, len(self.instructions), result

    def emit(self, op: int, a: int = 0, b: int = 0, c: int = 0) -> int:
        target = self._registers_count
        self._registers_count += 1
        self.instructions.append((op, target, a, b, c))
        return target

    def lower(self, expr: Expr) -> int:
        """Emit an expression once. An equal expression has the same register."""
        registers = self._register_of
        register = registers.get(expr)  # a look-up hashes the whole expression
        if register is None:
            if isinstance(expr, VarField):
                run_register = self._run_register(expr.which, expr.variable)
                register = self.emit(o.ROW, run_register, self.columns.number(expr.field))
            elif isinstance(expr, Aggregate):
                register = self._aggregate(expr)
            else:
                register = self._lower_node(expr)
            registers[expr] = register
        return register

    def _run_register(self, kind: str, variable: str, argument: Expr | None = None) -> int:
        assert self._register is not None, "a predicate of the event alone reads no run"
        return self._register(kind, variable, argument)

    def _aggregate(self, expr: Aggregate) -> int:
        """Emit an aggregate of a variable's bound events, such as `sum(b.amount)`. Registers of the run keep it."""
        argument = expr.argument
        if expr.fn == "count" and argument is None:
            return self.emit(o.REGISTER, self._run_register("count", expr.variable))
        assert argument is not None, "only count has no argument"
        if expr.fn == "distinct":  # without a register: the instruction goes through the run's bound events
            assert isinstance(argument, CurrentField), "checked before"
            assert self._variable_number is not None, "a predicate of the event alone reads no run"
            return self.emit(o.DISTINCT, self._variable_number(expr.variable), self.columns.number(argument.field))
        values_count = self.emit(o.REGISTER, self._run_register("present", expr.variable, argument))  # without nulls
        if expr.fn == "count":
            return values_count
        if expr.fn in ("sum", "min", "max"):
            value = self.emit(o.REGISTER, self._run_register(expr.fn, expr.variable, argument))
            # Without values, a sum is 0, but the least and the greatest value are null.
            return value if expr.fn == "sum" else self.emit(o.NULL_IF_ZERO, value, values_count)
        if expr.fn == "avg":
            return self.average(expr).high  # the nearest float; its rounding error is left out
        float_count = self.emit(o.TO_FLOAT, values_count, self.constants.add(1, is_float=False))  # TO_FLOAT divides
        return self._standard_deviation(expr.variable, argument, float_count)

    def average(self, expr: Expr) -> Twofold:
        """Emit an average (a float and its rounding error) from the exact sum, which the run keeps in two registers."""
        if not isinstance(expr, Aggregate):
            return super().average(expr)
        argument = expr.argument
        assert argument is not None, "avg has an argument"

        def register(kind: str) -> int:
            return self.emit(o.REGISTER, self._run_register(kind, expr.variable, argument))

        unit = self.constants.add(1, is_float=False)  # TO_FLOAT divides by it
        count = self.emit(o.TO_FLOAT, register("present"), unit)
        if argument.type.is_float:
            return divided(self, sum_of(self, register("sum"), register("rest")), exact(self, count))
        high, low = (self.emit(o.TO_FLOAT, register(kind), unit) for kind in ("high", "low"))  # sums of 32-bit halves
        high = self.emit(o.FMUL, high, self.constant(2.0**32, is_float=True))
        mean = divided(self, sum_of(self, high, low), exact(self, count))
        scale: int = 10**argument.type.scale  # 100 for an amount, which is stored in cents
        return divided(self, mean, exact(self, self.constant(float(scale), is_float=True))) if scale > 1 else mean

    def _standard_deviation(self, variable: str, argument: Expr, count: int) -> int:
        """Return √(n Σd² − (Σd)²) / n, where d is the distance of a value from the first one: 0 for equal values."""
        kinds = ("offset", "offset squared")
        total, squares = (self.emit(o.REGISTER, self._run_register(kind, variable, argument)) for kind in kinds)
        number = self.emit(o.FSUB, self.emit(o.FMUL, count, squares), self.emit(o.FMUL, total, total))
        root = self.emit(o.FSQRT, self.emit(o.FMAX, number, self.constant(0.0, is_float=True)))
        spread = self.emit(o.FDIV, root, count)
        scale: int = 10**argument.type.scale
        return self.emit(o.FDIV, spread, self.constant(float(scale), is_float=True)) if scale > 1 else spread
