"""The scalar interpreter of the register machine: one event and one run.

    machine int64[2 * registers]: value of register r at 2r (float64 bits where the instruction says so), null at 2r + 1

Tested by: tests/kernels/test_machine.py
"""

import numpy as np

from cep.kernels import layout as y
from cep.kernels.expressions import opcodes as o
from cep.kernels.expressions.checked import (
    INT64_MAX,
    INT64_MIN,
    add_overflows,
    added,
    multiplied,
    multiply_overflows,
    remainder,
    subtract_overflows,
    subtracted,
)
from cep.kernels.expressions.twofold import as_nearest_float, product_rest, quotient, settled, sum_rest
from cep.kernels.jit import bare, inlined
from cep.kernels.layout import Int64, int64, unsigned
from cep.kernels.records import Events, Work


@bare
def as_float(bits: int) -> float:
    """Return the float64 in a slot."""
    return np.int64(bits).view(np.float64)


@bare
def as_bits(value: float) -> int:
    """Return the slot of a float64: its bits as int64."""
    return int64(np.float64(value).view(np.int64))


@bare
def _integer_step(op: int, x: int, z: int, counters: Int64) -> tuple[int, bool]:
    """Execute an int64 instruction on values that are not null, and count an overflow. Return (value, is null)."""
    value, is_over = int64(0), False
    if op == o.ADD:
        is_over = add_overflows(x, z)
        value = added(x, z)
    elif op == o.SUB:
        is_over = subtract_overflows(x, z)
        value = subtracted(x, z)
    elif op == o.MUL or op == o.SCALE:  # SCALE multiplies by a constant
        is_over = multiply_overflows(x, z)
        value = multiplied(x, z)
    elif op == o.QUOTIENT:
        value = x // z  # z is a constant above 0
    elif op == o.NEG:
        is_over = x == INT64_MIN
        value = INT64_MAX if is_over else -x  # int64 has no 2^63
    elif op == o.ABS:
        is_over = x == INT64_MIN
        value = INT64_MAX if is_over else abs(x)
    elif op == o.MIN:
        value = min(x, z)
    elif op == o.MAX:
        value = max(x, z)
    elif op == o.MOD:
        if z == 0:  # the remainder is null, as in SQL
            return value, True
        value = remainder(x, z)
    if is_over:
        counters[y.COUNT_OVERFLOW] += 1
    return value, False


@bare
def _float_step(op: int, x: float, z: float) -> tuple[float, bool]:
    """Execute a float64 instruction that gives a float64. Return (value, is null)."""
    if op == o.FADD:
        return x + z, False
    if op == o.FSUB:
        return x - z, False
    if op == o.FMUL:
        return x * z, False
    if op == o.FDIV:
        return x / z, z == 0.0
    if op == o.FNEG:
        return -x, False
    if op == o.FABS:
        return abs(x), False
    if op == o.FMIN:
        return min(x, z), False
    if op == o.FMAX:
        return max(x, z), False
    if op == o.FSQRT:
        return np.sqrt(abs(x)), x < 0.0
    if op == o.FSIN:
        return np.sin(x), False
    if op == o.FCOS:
        return np.cos(x), False
    if op == o.FFLOOR:
        return np.floor(x), False
    if op == o.FADD_REST:  # the rounding error of x + z
        return sum_rest(x, z), False
    if op == o.FMUL_REST:  # the rounding error of x * z
        return product_rest(x, z), False
    if op == o.FSETTLE:  # 0 if the difference x is within the error of numbers of size z
        return settled(x, z), False
    inside = x >= -1.0 and x <= 1.0  # the remaining instruction is FASIN
    return np.arcsin(x if inside else 0.0), not inside


@inlined
def _integer_compare(op: int, x: int, z: int) -> int:
    holds = x < z
    if op == o.LE:
        holds = x <= z
    elif op == o.EQ:
        holds = x == z
    elif op == o.NE:
        holds = x != z
    return int64(holds)


@bare
def _float_compare(op: int, x: float, z: float) -> int:
    if op == o.FLT:
        return int64(x < z)
    if op == o.FLE:
        return int64(x <= z)
    if op == o.FEQ:
        return int64(x == z)
    return int64(x != z)


@bare
def _count_distinct(image: Int64, events: Events, node: int, variable: int, column: int, nodes: Int64) -> int:
    """Count the distinct non-null values of the events bound to the variable. Cost: O(k squared) for k bound events."""
    columns, nulls = events.columns, events.nulls
    states = image[y.HEADER_STATES]  # where the NFA states begin among the words of all rules
    count = int64(0)
    while node >= 0:
        row = nodes[node, y.NODE_ROW]
        fits = image[states + nodes[node, y.NODE_STATE] * y.STATE_WIDTH + y.S_VARIABLE] == variable
        new = int64(fits and nulls[column, row] == 0)
        earlier = nodes[node, y.NODE_PREVIOUS]  # the node of the event that was bound before
        while earlier >= 0 and new == 1:
            other = nodes[earlier, y.NODE_ROW]
            same = image[states + nodes[earlier, y.NODE_STATE] * y.STATE_WIDTH + y.S_VARIABLE] == variable
            if same and nulls[column, other] == 0 and columns[column, other] == columns[column, row]:
                new = int64(0)
            earlier = nodes[earlier, y.NODE_PREVIOUS]
        count += new
        node = nodes[node, y.NODE_PREVIOUS]
    return count


@bare
def run_code(image: Int64, first: int, last: int, events: Events, row: int, work: Work, run: int) -> None:
    """Run the instructions in image[first:last] for the event in `row` and row `run` of work.runs.

    Values and null flags are left in work.registers; overflows are counted in work.counters. Indices are unsigned (see
    `unsigned`), because each instruction reads up to ten array elements.
    """
    columns, nulls, machine = events.columns, events.nulls, work.registers
    constants, event = image[y.HEADER_CONSTANTS], unsigned(row)
    for pc in range(first, last, o.MACHINE_WIDTH):
        op = image[unsigned(pc)]
        target, a, b = image[unsigned(pc + 1)], image[unsigned(pc + 2)], image[unsigned(pc + 3)]
        t, t_null = unsigned(2 * target), unsigned(2 * target + 1)
        x, x_null = unsigned(2 * a), unsigned(2 * a + 1)
        z, z_null = unsigned(2 * b), unsigned(2 * b + 1)
        if op == o.COLUMN:
            machine[t], machine[t_null] = columns[unsigned(a), event], nulls[unsigned(a), event]
        elif op == o.CONST:
            machine[t], machine[t_null] = image[unsigned(constants + a)], b
        elif op >= o.LT and op <= o.NE:
            machine[t_null] = int64((machine[x_null] | machine[z_null]) != 0)
            machine[t] = 0 if machine[t_null] != 0 else _integer_compare(op, machine[x], machine[z])
        elif op == o.REGISTER:
            machine[t], machine[t_null] = work.runs[run, y.RUN_HEADER + a], 0
        elif op == o.ROW:
            bound = work.runs[run, y.RUN_HEADER + a]
            machine[t], machine[t_null] = 0, 1
            if bound >= 0:
                bound_row = unsigned(bound)
                machine[t], machine[t_null] = columns[unsigned(b), bound_row], nulls[unsigned(b), bound_row]
        elif op == o.AND:
            false = (machine[x_null] == 0 and machine[x] == 0) or (machine[z_null] == 0 and machine[z] == 0)
            machine[t_null] = int64(not false and (machine[x_null] | machine[z_null]) != 0)
            machine[t] = int64(not false and machine[t_null] == 0)
        elif op == o.OR:
            true = (machine[x_null] == 0 and machine[x] != 0) or (machine[z_null] == 0 and machine[z] != 0)
            machine[t_null] = int64(not true and (machine[x_null] | machine[z_null]) != 0)
            machine[t] = int64(true)
        elif op == o.NOT:
            machine[t], machine[t_null] = int64(machine[x] == 0), machine[x_null]
        elif op == o.IS_NULL:
            machine[t], machine[t_null] = int64(machine[x_null] != 0), 0
        elif op == o.NULL_IF_ZERO:
            machine[t], machine[t_null] = machine[x], int64(machine[x_null] != 0 or machine[z] == 0)
        elif op == o.DISTINCT:
            node = work.runs[run, y.RUN_NODE]
            machine[t] = _count_distinct(image, events, node, a, b, work.nodes)
            machine[t_null] = 0
        elif op == o.SELECT:
            source = b if machine[x_null] == 0 and machine[x] != 0 else image[unsigned(pc + 4)]
            machine[t], machine[t_null] = machine[unsigned(2 * source)], machine[unsigned(2 * source + 1)]
        elif op == o.TO_FLOAT:
            machine[t] = as_bits(as_nearest_float(machine[x], image[unsigned(constants + b)]))
            machine[t_null] = machine[x_null]
        elif op == o.TO_FLOAT_REST:
            machine[t] = as_bits(quotient(machine[x], image[unsigned(constants + b)])[1])
            machine[t_null] = machine[x_null]
        elif op >= o.FLT:
            machine[t] = _float_compare(op, as_float(machine[x]), as_float(machine[z]))
            machine[t_null] = machine[x_null] | machine[z_null]
        elif op >= o.FADD and op <= o.FSETTLE and op != o.QUOTIENT:
            if op == o.FNEG or op == o.FABS or (op >= o.FSQRT and op <= o.FFLOOR):
                z, z_null = x, x_null
            value, null = _float_step(op, as_float(machine[x]), as_float(machine[z]))
            machine[t], machine[t_null] = as_bits(value), int64(null or (machine[x_null] | machine[z_null]) != 0)
        else:
            scales = op == o.SCALE or op == o.QUOTIENT
            unary = op == o.NEG or op == o.ABS or scales
            if (machine[x_null] | (0 if unary else machine[z_null])) != 0:
                machine[t], machine[t_null] = 0, 1
            else:
                other = image[unsigned(constants + b)] if scales else (machine[x] if unary else machine[z])
                whole, missing = _integer_step(op, machine[x], other, work.counters)
                machine[t], machine[t_null] = whole, int64(missing)
