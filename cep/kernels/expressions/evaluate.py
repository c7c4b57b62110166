"""Expressions of one event, over blocks of events: the vector interpreter of the register machine.

    columns int64[C, N] ─┐
    nulls   uint8[C, N] ─┼─ code int32[I, 5] ─→ bitmaps uint64[P, words]   one bit an event, true and not null
    constants int64[K]  ─┘                   └→ derived columns int64[D, N] with nulls uint8[D, N]

Cost: about one pass over 256 events in cache per instruction; nothing is allocated per event.
Tested by: tests/kernels/test_machine.py
"""

from typing import NamedTuple

import numpy as np

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
from cep.kernels.jit import kernel
from cep.kernels.layout import Float64, Int64, UInt8, int64
from cep.kernels.records import BlockCode, Events

BLOCK = 256  # events per block; a multiple of 64 so that bitmaps are written in whole words


class _Lane(NamedTuple):
    """A register's values of a block: int64[BLOCK], null flags uint8[BLOCK]."""

    values: Int64
    nulls: UInt8


class _FloatLane(NamedTuple):
    """A register's values of a block as float64[BLOCK], null flags uint8[BLOCK]."""

    values: Float64
    nulls: UInt8


class _Machine(NamedTuple):
    """The registers of a block: int64[registers, BLOCK], the same memory as float64, null flags uint8."""

    ints: Int64
    floats: Float64
    nulls: UInt8


@kernel
def _block_integer(op: int, first: _Lane, second: _Lane, result: _Lane, n: int, errors: Int64) -> None:
    """Run ADD … MAX or LT … NE on the first n values of int64 lanes; errors[0] counts overflows."""
    x, y, out = first.values, second.values, result.values
    xn, yn, outn = first.nulls, second.nulls, result.nulls
    if op == o.LT:
        for i in range(n):
            out[i] = int64(x[i] < y[i])
    elif op == o.LE:
        for i in range(n):
            out[i] = int64(x[i] <= y[i])
    elif op == o.EQ:
        for i in range(n):
            out[i] = int64(x[i] == y[i])
    elif op == o.NE:
        for i in range(n):
            out[i] = int64(x[i] != y[i])
    elif op == o.MIN:
        for i in range(n):
            out[i] = min(x[i], y[i])
    elif op == o.MAX:
        for i in range(n):
            out[i] = max(x[i], y[i])
    for i in range(n):
        outn[i] = xn[i] | yn[i]
    if op == o.ADD:
        for i in range(n):
            if outn[i] == 0 and add_overflows(x[i], y[i]):
                errors[0] += 1
            out[i] = added(x[i], y[i])
    elif op == o.SUB:
        for i in range(n):
            if outn[i] == 0 and subtract_overflows(x[i], y[i]):
                errors[0] += 1
            out[i] = subtracted(x[i], y[i])
    elif op == o.MUL:
        for i in range(n):
            if outn[i] == 0 and multiply_overflows(x[i], y[i]):
                errors[0] += 1
            out[i] = multiplied(x[i], y[i])
    elif op == o.MOD:
        for i in range(n):
            if y[i] == 0 or outn[i] != 0:
                outn[i] = 1
            else:
                out[i] = remainder(x[i], y[i])


@kernel
def _block_float(op: int, first: _FloatLane, second: _FloatLane, result: _FloatLane, flags: Int64, n: int) -> None:
    """Run FADD … FMAX or FADD_REST … FSETTLE into a float64 lane, or FLT … FNE into its memory as int64, `flags`."""
    x, y, out = first.values, second.values, result.values
    xn, yn, outn = first.nulls, second.nulls, result.nulls
    for i in range(n):
        outn[i] = xn[i] | yn[i]
    if op == o.FADD:
        for i in range(n):
            out[i] = x[i] + y[i]
    elif op == o.FSUB:
        for i in range(n):
            out[i] = x[i] - y[i]
    elif op == o.FMUL:
        for i in range(n):
            out[i] = x[i] * y[i]
    elif op == o.FDIV:
        for i in range(n):
            if y[i] == 0.0:
                outn[i] = 1
            out[i] = x[i] / y[i]
    elif op == o.FMIN:
        for i in range(n):
            out[i] = min(x[i], y[i])
    elif op == o.FMAX:
        for i in range(n):
            out[i] = max(x[i], y[i])
    elif op == o.FADD_REST:
        for i in range(n):
            out[i] = sum_rest(x[i], y[i])
    elif op == o.FMUL_REST:
        for i in range(n):
            out[i] = product_rest(x[i], y[i])
    elif op == o.FSETTLE:
        for i in range(n):
            out[i] = settled(x[i], y[i])
    elif op == o.FLT:
        for i in range(n):
            flags[i] = int64(x[i] < y[i])
    elif op == o.FLE:
        for i in range(n):
            flags[i] = int64(x[i] <= y[i])
    elif op == o.FEQ:
        for i in range(n):
            flags[i] = int64(x[i] == y[i])
    elif op == o.FNE:
        for i in range(n):
            flags[i] = int64(x[i] != y[i])


@kernel
def _block_float_unary(op: int, operand: _FloatLane, result: _FloatLane, n: int) -> None:
    """Run a float instruction with one operand, such as FNEG or FSQRT, on n events."""
    x, xn, out, outn = operand.values, operand.nulls, result.values, result.nulls
    for i in range(n):
        outn[i] = xn[i]
    if op == o.FNEG:
        for i in range(n):
            out[i] = -x[i]
    elif op == o.FABS:
        for i in range(n):
            out[i] = abs(x[i])
    elif op == o.FSQRT:
        for i in range(n):
            if x[i] < 0.0:
                outn[i] = 1
            out[i] = np.sqrt(abs(x[i]))
    elif op == o.FSIN:
        for i in range(n):
            out[i] = np.sin(x[i])
    elif op == o.FCOS:
        for i in range(n):
            out[i] = np.cos(x[i])
    elif op == o.FASIN:
        for i in range(n):
            if x[i] >= -1.0 and x[i] <= 1.0:
                out[i] = np.arcsin(x[i])
            else:  # also for NaN, as in the interpreter
                outn[i] = 1
                out[i] = 0.0
    elif op == o.FFLOOR:
        for i in range(n):
            out[i] = np.floor(x[i])


@kernel
def _block_integer_unary(
    op: int, operand: _Lane, factor: int, result: _Lane, floats: Float64, n: int, errors: Int64
) -> None:
    """Run an instruction with one integer operand on n values: NEG, ABS, SCALE, TO_FLOAT, TO_FLOAT_REST or QUOTIENT.

    SCALE multiplies by `factor`. The last three divide by it: TO_FLOAT gives the nearest float, TO_FLOAT_REST the
    rounding error of that float. `floats` is the memory of the result as float64[BLOCK]. errors[0] counts overflows.
    """
    x, xn, out, outf, outn = operand.values, operand.nulls, result.values, floats, result.nulls
    for i in range(n):
        outn[i] = xn[i]
    if op == o.TO_FLOAT:
        for i in range(n):
            outf[i] = as_nearest_float(x[i], factor)
    elif op == o.TO_FLOAT_REST:
        for i in range(n):
            outf[i] = quotient(x[i], factor)[1]
    elif op == o.SCALE:
        for i in range(n):
            if outn[i] == 0 and multiply_overflows(x[i], factor):
                errors[0] += 1
            out[i] = multiplied(x[i], factor)
    elif op == o.QUOTIENT:
        for i in range(n):
            out[i] = x[i] // factor
    else:
        for i in range(n):
            if x[i] == INT64_MIN:  # int64 has no 2^63
                errors[0] += int64(outn[i] == 0)  # the value of a null is ignored
                out[i] = INT64_MAX
            else:
                out[i] = abs(x[i]) if op == o.ABS else -x[i]


@kernel
def _block_logic(op: int, first: _Lane, second: _Lane, third: _Lane, result: _Lane, n: int) -> None:
    """Run a logic instruction, such as AND or IS_NULL, on n events. Null is the unknown of three-valued logic."""
    x, y, z, out = first.values, second.values, third.values, result.values
    xn, yn, zn, outn = first.nulls, second.nulls, third.nulls, result.nulls
    if op == o.AND:
        for i in range(n):
            is_false = (xn[i] == 0 and x[i] == 0) or (yn[i] == 0 and y[i] == 0)  # one false operand decides
            outn[i] = np.uint8(not is_false and (xn[i] | yn[i]) != 0)
            out[i] = int64(not is_false and outn[i] == 0)
    elif op == o.OR:
        for i in range(n):
            is_true = (xn[i] == 0 and x[i] != 0) or (yn[i] == 0 and y[i] != 0)  # one true operand decides
            outn[i] = np.uint8(not is_true and (xn[i] | yn[i]) != 0)
            out[i] = int64(is_true)
    elif op == o.NOT:
        for i in range(n):
            out[i] = int64(x[i] == 0)
            outn[i] = xn[i]
    elif op == o.IS_NULL:
        for i in range(n):
            out[i] = int64(xn[i] != 0)
            outn[i] = 0
    elif op == o.NULL_IF_ZERO:
        for i in range(n):
            out[i] = x[i]
            outn[i] = np.uint8(xn[i] != 0 or y[i] == 0)
    else:  # SELECT: y if x is true, otherwise z
        for i in range(n):
            chosen = xn[i] == 0 and x[i] != 0
            out[i] = y[i] if chosen else z[i]
            outn[i] = yn[i] if chosen else zn[i]


@kernel
def _lane(machine: _Machine, register: int) -> _Lane:
    return _Lane(machine.ints[register], machine.nulls[register])


@kernel
def _float_lane(machine: _Machine, register: int) -> _FloatLane:
    return _FloatLane(machine.floats[register], machine.nulls[register])


@kernel
def _run_block(code: BlockCode, events: Events, lo: int, n: int, machine: _Machine, errors: Int64) -> None:
    """Run all instructions on n events from row `lo` on. errors int64[I] counts overflows by instruction.

    An instruction is (opcode, target register t, operands a, b, c). Opcodes whose operands have the same types are
    adjacent (opcodes.py), so each branch tests a range of opcodes. A lane is the values and null flags of one register.
    """
    ints, floats, nulled = machine.ints, machine.floats, machine.nulls
    for pc in range(code.instructions.shape[0]):
        op, t, a = code.instructions[pc, 0], code.instructions[pc, 1], code.instructions[pc, 2]
        b, c = code.instructions[pc, 3], code.instructions[pc, 4]
        if op == o.COLUMN:
            for i in range(n):
                ints[t, i] = events.columns[a, lo + i]
                nulled[t, i] = events.nulls[a, lo + i]
        elif op == o.CONST:
            value = code.constants[a]
            for i in range(n):
                ints[t, i] = value
                nulled[t, i] = b
        elif op >= o.AND or op == o.NULL_IF_ZERO:  # three-valued logic
            _block_logic(op, _lane(machine, a), _lane(machine, b), _lane(machine, c), _lane(machine, t), n)
        elif (  # two floats: comparisons, arithmetic, and rounding errors (twofold.py)
            op >= o.FLT
            or (op >= o.FADD and op <= o.FDIV)
            or op == o.FMIN
            or op == o.FMAX
            or (op >= o.FADD_REST and op <= o.FSETTLE)
        ):
            _block_float(op, _float_lane(machine, a), _float_lane(machine, b), _float_lane(machine, t), ints[t], n)
        elif op >= o.FADD and op <= o.FFLOOR:  # one float
            _block_float_unary(op, _float_lane(machine, a), _float_lane(machine, t), n)
        elif op == o.SCALE or op == o.TO_FLOAT or op == o.QUOTIENT or op == o.TO_FLOAT_REST:
            factor = code.constants[b]
            _block_integer_unary(op, _lane(machine, a), factor, _lane(machine, t), floats[t], n, errors[pc : pc + 1])
        elif op == o.NEG or op == o.ABS:
            _block_integer_unary(op, _lane(machine, a), int64(1), _lane(machine, t), floats[t], n, errors[pc : pc + 1])
        else:  # two integers
            _block_integer(op, _lane(machine, a), _lane(machine, b), _lane(machine, t), n, errors[pc : pc + 1])


@kernel
def evaluate_blocks(code: BlockCode, events: Events, errors: Int64) -> None:
    """Run `code` for the new events. Fill their derived columns and bitmaps. The bitmaps have room for whole blocks.

    Only the matcher reads derived columns, this code does not. errors int64[I] counts overflows by instruction.
    """
    rows, first_row = events.columns.shape[1], events.first_row
    ints = np.zeros((code.registers_count, BLOCK), np.int64)
    nulled = np.zeros((code.registers_count, BLOCK), np.uint8)
    machine = _Machine(ints, ints.view(np.float64), nulled)
    for lo in range(first_row, rows, BLOCK):
        n = min(BLOCK, rows - lo)
        _run_block(code, events, lo, n, machine, errors)
        for p in range(code.predicate_registers.shape[0]):
            r = code.predicate_registers[p]  # has the predicate's value for each event
            for w in range((n + 63) // 64):
                word = np.uint64(0)
                for i in range(min(64, n - 64 * w)):
                    bit = np.uint64(ints[r, 64 * w + i] & (1 - int64(nulled[r, 64 * w + i])))  # true and not null
                    word |= bit << np.uint64(i)
                events.bitmaps[code.predicate_numbers[p], (lo - first_row) // 64 + w] = word
        for d in range(code.derived_registers.shape[0]):
            r = code.derived_registers[d]
            for i in range(n):
                events.columns[code.derived_first + d, lo + i] = ints[r, i]
                events.nulls[code.derived_first + d, lo + i] = nulled[r, i]
