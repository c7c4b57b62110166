"""Expressions of one event, over blocks of events: the vector interpreter of the register machine.

    columns int64[C, N] ─┐
    nulls   uint8[C, N] ─┼─ code int32[I, 5] ─→ bitmaps uint64[P, words]   one bit an event, true and not null
    constants int64[K]  ─┘                   └→ derived columns int64[D, N] with nulls uint8[D, N]

Cost: about one pass over 256 events in cache per instruction; nothing is allocated per event.
Tested by: tests/kernels/test_machine.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cep.kernels import opcodes as o
from cep.kernels.checked import INT64_MIN, add_overflows, multiply_overflows, remainder, subtract_overflows
from cep.kernels.jit import kernel

BLOCK = 256  # events a block; a multiple of 64 so that bitmaps are written in whole words


@kernel
def _block_integer(op: Any, x: Any, y: Any, xn: Any, yn: Any, out: Any, outn: Any, n: Any, errors: Any) -> None:
    """ADD … MAX, LT … NE on int64 lanes."""
    if op == o.LT:
        for i in range(n):
            out[i] = np.int64(x[i] < y[i])
    elif op == o.LE:
        for i in range(n):
            out[i] = np.int64(x[i] <= y[i])
    elif op == o.EQ:
        for i in range(n):
            out[i] = np.int64(x[i] == y[i])
    elif op == o.NE:
        for i in range(n):
            out[i] = np.int64(x[i] != y[i])
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
                outn[i] = 1
                errors[0] += 1
            out[i] = x[i] + y[i]
    elif op == o.SUB:
        for i in range(n):
            if outn[i] == 0 and subtract_overflows(x[i], y[i]):
                outn[i] = 1
                errors[0] += 1
            out[i] = x[i] - y[i]
    elif op == o.MUL:
        for i in range(n):
            if outn[i] == 0 and multiply_overflows(x[i], y[i]):
                outn[i] = 1
                errors[0] += 1
            out[i] = x[i] * y[i]
    elif op == o.MOD:
        for i in range(n):
            if y[i] == 0 or outn[i] != 0:
                outn[i] = 1
            else:
                out[i] = remainder(x[i], y[i])


@kernel
def _block_float(op: Any, x: Any, y: Any, xn: Any, yn: Any, out: Any, flags: Any, outn: Any, n: Any) -> None:
    """FADD … FMAX into float64 lanes, FLT … FNE into int64 lanes (`flags` is the same memory as `out`)."""
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
    elif op == o.FLT:
        for i in range(n):
            flags[i] = np.int64(x[i] < y[i])
    elif op == o.FLE:
        for i in range(n):
            flags[i] = np.int64(x[i] <= y[i])
    elif op == o.FEQ:
        for i in range(n):
            flags[i] = np.int64(x[i] == y[i])
    elif op == o.FNE:
        for i in range(n):
            flags[i] = np.int64(x[i] != y[i])


@kernel
def _block_float_unary(op: Any, x: Any, xn: Any, out: Any, outn: Any, n: Any) -> None:
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
            else:  # of NaN too, as in the interpreter
                outn[i] = 1
                out[i] = 0.0
    elif op == o.FFLOOR:
        for i in range(n):
            out[i] = np.floor(x[i])


@kernel
def _block_integer_unary(
    op: Any, x: Any, xn: Any, factor: Any, out: Any, outf: Any, outn: Any, n: Any, errors: Any
) -> None:
    """NEG, ABS, SCALE, TO_FLOAT, QUOTIENT; `factor` is the constant of the last three."""
    for i in range(n):
        outn[i] = xn[i]
    if op == o.TO_FLOAT:
        for i in range(n):
            outf[i] = np.float64(x[i]) / np.float64(factor)
    elif op == o.SCALE:
        for i in range(n):
            if outn[i] == 0 and multiply_overflows(x[i], factor):
                outn[i] = 1
                errors[0] += 1
            out[i] = x[i] * factor
    elif op == o.QUOTIENT:
        for i in range(n):
            out[i] = x[i] // factor
    else:
        for i in range(n):
            if outn[i] == 0 and x[i] == INT64_MIN:
                outn[i] = 1
                errors[0] += 1
            out[i] = abs(x[i]) if op == o.ABS else -x[i]


@kernel
def _block_logic(op: Any, x: Any, y: Any, z: Any, xn: Any, yn: Any, zn: Any, out: Any, outn: Any, n: Any) -> None:
    if op == o.AND:
        for i in range(n):
            false = (xn[i] == 0 and x[i] == 0) or (yn[i] == 0 and y[i] == 0)
            outn[i] = np.uint8(not false and (xn[i] | yn[i]) != 0)
            out[i] = np.int64(not false and outn[i] == 0)
    elif op == o.OR:
        for i in range(n):
            true = (xn[i] == 0 and x[i] != 0) or (yn[i] == 0 and y[i] != 0)
            outn[i] = np.uint8(not true and (xn[i] | yn[i]) != 0)
            out[i] = np.int64(true)
    elif op == o.NOT:
        for i in range(n):
            out[i] = np.int64(x[i] == 0)
            outn[i] = xn[i]
    elif op == o.IS_NULL:
        for i in range(n):
            out[i] = np.int64(xn[i] != 0)
            outn[i] = 0
    elif op == o.NULL_IF_ZERO:
        for i in range(n):
            out[i] = x[i]
            outn[i] = np.uint8(xn[i] != 0 or y[i] == 0)
    else:
        for i in range(n):
            chosen = xn[i] == 0 and x[i] != 0
            out[i] = y[i] if chosen else z[i]
            outn[i] = yn[i] if chosen else zn[i]


@kernel
def _run_block(
    code: Any,
    columns: Any,
    nulls: Any,
    constants: Any,
    lo: Any,
    n: Any,
    ints: Any,
    floats: Any,
    nulled: Any,
    errors: Any,
) -> None:
    """All instructions on the n events from row `lo` on."""
    for pc in range(code.shape[0]):
        op, t, a, b, c = code[pc, 0], code[pc, 1], code[pc, 2], code[pc, 3], code[pc, 4]
        if op == o.COLUMN:
            for i in range(n):
                ints[t, i] = columns[a, lo + i]
                nulled[t, i] = nulls[a, lo + i]
        elif op == o.CONST:
            value = constants[a]
            for i in range(n):
                ints[t, i] = value
                nulled[t, i] = b
        elif op >= o.AND or op == o.NULL_IF_ZERO:
            _block_logic(op, ints[a], ints[b], ints[c], nulled[a], nulled[b], nulled[c], ints[t], nulled[t], n)
        elif op >= o.FLT or (op >= o.FADD and op <= o.FDIV) or op == o.FMIN or op == o.FMAX:
            _block_float(op, floats[a], floats[b], nulled[a], nulled[b], floats[t], ints[t], nulled[t], n)
        elif op >= o.FADD and op <= o.FFLOOR:
            _block_float_unary(op, floats[a], nulled[a], floats[t], nulled[t], n)
        elif op == o.SCALE or op == o.TO_FLOAT or op == o.QUOTIENT:
            _block_integer_unary(op, ints[a], nulled[a], constants[b], ints[t], floats[t], nulled[t], n, errors)
        elif op == o.NEG or op == o.ABS:
            _block_integer_unary(op, ints[a], nulled[a], np.int64(1), ints[t], floats[t], nulled[t], n, errors)
        else:
            _block_integer(op, ints[a], ints[b], nulled[a], nulled[b], ints[t], nulled[t], n, errors)


@kernel
def evaluate_blocks(
    code: Any,
    columns: Any,
    nulls: Any,
    constants: Any,
    first_row: Any,
    machine_size: Any,
    predicate_registers: Any,
    predicate_numbers: Any,
    bitmaps: Any,
    derived_registers: Any,
    derived_first: Any,
    errors: Any,
) -> None:
    """Run `code` over the events [first_row, N); fill bitmaps (bit 0 = first_row) and derived columns.

    Shapes: columns int64[C, N] (derived ones are rows derived_first…, filled here), machine_size registers,
    bitmaps uint64[P, words] with a bit for each new event. A derived column may be read by `advance`, not by this code.
    Returns: nothing. errors[0] counts overflows.
    """
    rows = columns.shape[1]
    ints = np.zeros((machine_size, BLOCK), np.int64)
    floats = ints.view(np.float64)
    nulled = np.zeros((machine_size, BLOCK), np.uint8)
    for lo in range(first_row, rows, BLOCK):
        n = min(BLOCK, rows - lo)
        _run_block(code, columns, nulls, constants, lo, n, ints, floats, nulled, errors)
        for p in range(predicate_registers.shape[0]):
            r = predicate_registers[p]
            for w in range((n + 63) // 64):
                word = np.uint64(0)
                for i in range(min(64, n - 64 * w)):
                    bit = np.uint64(ints[r, 64 * w + i] & (1 - np.int64(nulled[r, 64 * w + i])))
                    word |= bit << np.uint64(i)
                bitmaps[predicate_numbers[p], (lo - first_row) // 64 + w] = word
        for d in range(derived_registers.shape[0]):
            r = derived_registers[d]
            for i in range(n):
                columns[derived_first + d, lo + i] = ints[r, i]
                nulls[derived_first + d, lo + i] = nulled[r, i]
