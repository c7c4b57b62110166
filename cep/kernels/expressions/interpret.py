"""The scalar interpreter of the register machine: one event and one run.

    machine int64[2 * registers]: value of register r at 2r (float64 bits where the instruction says so), null at 2r + 1

Tested by: tests/kernels/test_machine.py
"""

from __future__ import annotations

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
from cep.kernels.layout import Int64, int64
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
    """Return (value, is null) of an int64 instruction on values that are not null."""
    value, is_over = int64(0), False
    if op == o.ADD:
        is_over = add_overflows(x, z)
        value = added(x, z)
    elif op == o.SUB:
        is_over = subtract_overflows(x, z)
        value = subtracted(x, z)
    elif op == o.MUL or op == o.SCALE:
        is_over = multiply_overflows(x, z)
        value = multiplied(x, z)
    elif op == o.QUOTIENT:
        value = x // z
    elif op == o.NEG:
        is_over = x == INT64_MIN
        value = INT64_MAX if is_over else -x
    elif op == o.ABS:
        is_over = x == INT64_MIN
        value = INT64_MAX if is_over else abs(x)
    elif op == o.MIN:
        value = min(x, z)
    elif op == o.MAX:
        value = max(x, z)
    elif op == o.MOD:
        if z == 0:
            return value, True
        value = remainder(x, z)
    if is_over:
        counters[y.COUNT_OVERFLOW] += 1
    return value, False


@bare
def _float_step(op: int, x: float, z: float) -> tuple[float, bool]:
    """Return (value, is null) of a float64 instruction that gives a float64."""
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
    if op == o.FADD_REST:
        return sum_rest(x, z), False
    if op == o.FMUL_REST:
        return product_rest(x, z), False
    if op == o.FSETTLE:
        return settled(x, z), False
    inside = x >= -1.0 and x <= 1.0
    return np.arcsin(x if inside else 0.0), not inside


@inlined
def _integer_compare(op: int, x: int, z: int) -> int:
    """Return 1 if the comparison holds, else 0."""
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
    """Count the distinct non-null values of the events bound to the variable. Cost: O(k squared), k events."""
    columns, nulls = events.columns, events.nulls
    states = image[y.HEADER_STATES]
    count = int64(0)
    while node >= 0:
        row = nodes[node, y.NODE_ROW]
        fits = image[states + nodes[node, y.NODE_STATE] * y.STATE_WIDTH + y.S_VARIABLE] == variable
        new = int64(fits and nulls[column, row] == 0)
        earlier = nodes[node, y.NODE_PREVIOUS]
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

    Values and null flags are left in work.registers; overflows are counted in work.counters.
    """
    columns, nulls, machine = events.columns, events.nulls, work.registers
    constants = image[y.HEADER_CONSTANTS]
    for pc in range(first, last, o.MACHINE_WIDTH):
        op, a, b = image[pc], 2 * image[pc + 2], 2 * image[pc + 3]
        t = 2 * image[pc + 1]
        if op == o.COLUMN:
            machine[t], machine[t + 1] = columns[image[pc + 2], row], nulls[image[pc + 2], row]
        elif op == o.CONST:
            machine[t], machine[t + 1] = image[constants + image[pc + 2]], image[pc + 3]
        elif op >= o.LT and op <= o.NE:
            machine[t + 1] = int64((machine[a + 1] | machine[b + 1]) != 0)
            machine[t] = 0 if machine[t + 1] != 0 else _integer_compare(op, machine[a], machine[b])
        elif op == o.REGISTER:
            machine[t], machine[t + 1] = work.runs[run, y.RUN_HEADER + image[pc + 2]], 0
        elif op == o.ROW:
            bound = work.runs[run, y.RUN_HEADER + image[pc + 2]]
            machine[t], machine[t + 1] = 0, 1
            if bound >= 0:
                machine[t], machine[t + 1] = columns[image[pc + 3], bound], nulls[image[pc + 3], bound]
        elif op == o.AND:
            false = (machine[a + 1] == 0 and machine[a] == 0) or (machine[b + 1] == 0 and machine[b] == 0)
            machine[t + 1] = int64(not false and (machine[a + 1] | machine[b + 1]) != 0)
            machine[t] = int64(not false and machine[t + 1] == 0)
        elif op == o.OR:
            true = (machine[a + 1] == 0 and machine[a] != 0) or (machine[b + 1] == 0 and machine[b] != 0)
            machine[t + 1] = int64(not true and (machine[a + 1] | machine[b + 1]) != 0)
            machine[t] = int64(true)
        elif op == o.NOT:
            machine[t], machine[t + 1] = int64(machine[a] == 0), machine[a + 1]
        elif op == o.IS_NULL:
            machine[t], machine[t + 1] = int64(machine[a + 1] != 0), 0
        elif op == o.NULL_IF_ZERO:
            machine[t], machine[t + 1] = machine[a], int64(machine[a + 1] != 0 or machine[b] == 0)
        elif op == o.DISTINCT:
            node = work.runs[run, y.RUN_NODE]
            machine[t] = _count_distinct(image, events, node, image[pc + 2], image[pc + 3], work.nodes)
            machine[t + 1] = 0
        elif op == o.SELECT:
            source = b if machine[a + 1] == 0 and machine[a] != 0 else 2 * image[pc + 4]
            machine[t], machine[t + 1] = machine[source], machine[source + 1]
        elif op == o.TO_FLOAT:
            machine[t] = as_bits(as_nearest_float(machine[a], image[constants + image[pc + 3]]))
            machine[t + 1] = machine[a + 1]
        elif op == o.TO_FLOAT_REST:
            machine[t] = as_bits(quotient(machine[a], image[constants + image[pc + 3]])[1])
            machine[t + 1] = machine[a + 1]
        elif op >= o.FLT:
            machine[t] = _float_compare(op, as_float(machine[a]), as_float(machine[b]))
            machine[t + 1] = machine[a + 1] | machine[b + 1]
        elif op >= o.FADD and op <= o.FSETTLE and op != o.QUOTIENT:
            if op == o.FNEG or op == o.FABS or (op >= o.FSQRT and op <= o.FFLOOR):
                b = a
            value, null = _float_step(op, as_float(machine[a]), as_float(machine[b]))
            machine[t], machine[t + 1] = as_bits(value), int64(null or (machine[a + 1] | machine[b + 1]) != 0)
        else:
            scales = op == o.SCALE or op == o.QUOTIENT
            unary = op == o.NEG or op == o.ABS or scales
            if (machine[a + 1] | (0 if unary else machine[b + 1])) != 0:
                machine[t], machine[t + 1] = 0, 1
            else:
                other = image[constants + image[pc + 3]] if scales else (machine[a] if unary else machine[b])
                whole, missing = _integer_step(op, machine[a], other, work.counters)
                machine[t], machine[t + 1] = whole, int64(missing)
