"""Runs stored by 0.2.0, with averages and standard deviations in registers → runs of this build.

Sums of decimals are exact in both. A standard deviation continues from the rounded sums of 0.2.0, so it is as exact as
in that build until the run ends.

Tested by: tests/engine/test_keyed_state.py, tests/upgrade/test_upgrade.py
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np

from cep.engine.keyed_state import KeyedState, Layout
from cep.kernels import layout as y
from cep.kernels.layout import Int64
from cep.nfa.earlier_registers import Registers, as_float, changed_registers
from cep.nfa.program import Program
from cep.nfa.rule_tables import ROW_KINDS, RegisterKey

_HALF_BITS = 32
_LEVEL = 2.0**-48  # possible error of rounded sums: below it, all values are equal
_PROGRAMS_CACHED = 16
_CHANGES: OrderedDict[tuple[str, str], dict[int, Registers]] = OrderedDict()


def with_current_registers(keyed_state: KeyedState, program: Program) -> KeyedState:
    """Translate the registers of runs that version 0.2.0 stored to the registers of this build."""
    changes = _changes(keyed_state.layout, program)
    counts = [len(registers.current) for registers in changes.values()]
    stored = keyed_state.runs
    runs = np.zeros((len(stored), max(stored.shape[1], y.RUN_HEADER + max(counts, default=0))), np.int64)
    runs[:, : stored.shape[1]] = stored
    for slot, registers in changes.items():
        of_rule = np.flatnonzero(keyed_state.run_rule == slot)
        earlier = {key: stored[of_rule, y.RUN_HEADER + index] for index, key in enumerate(registers.earlier)}
        runs[of_rule, y.RUN_HEADER :] = 0
        for index, key in enumerate(registers.current):
            runs[of_rule, y.RUN_HEADER + index] = _translated(key, earlier)
    return replace(keyed_state, runs=runs, layout=replace(keyed_state.layout, is_earlier=False))


def earlier_row_registers(row_registers: np.ndarray, layout: Layout, program: Program) -> np.ndarray:
    """Return a table that marks the registers of 0.2.0 that hold rows, given the table of this build.

    Shapes: uint8[rules, registers], the rules as the layout numbers them.
    """
    marked = row_registers.copy()
    for slot, registers in _changes(layout, program).items():
        kinds = [kind in ROW_KINDS for kind, _, _ in registers.earlier]
        marked[slot] = 0
        marked[slot, : len(kinds)] = kinds
    return marked


def _changes(layout: Layout, program: Program) -> dict[int, Registers]:
    """Return the registers of both builds by the number of the rule in the layout, computed once for all pages."""
    programs = layout.fingerprint, program.fingerprint
    if programs in _CHANGES:
        return _CHANGES[programs]
    slots = program.rules.slots
    changes = {}
    for slot, (identity, _, _) in enumerate(layout.rules):
        rule = program.rules[slots[identity]] if identity in slots else None
        registers = None if rule is None else changed_registers(rule.deployed.pattern, program.schema)
        if registers is not None:
            changes[slot] = registers
    _CHANGES[programs] = changes
    while len(_CHANGES) > _PROGRAMS_CACHED:
        _CHANGES.popitem(last=False)
    return changes


def _translated(key: RegisterKey, earlier: dict[RegisterKey, Int64]) -> Int64:
    """Compute one register of this build from the stored ones: int64[runs]."""
    kind, variable, argument = key
    if key in earlier:
        return earlier[key]
    assert argument is not None, "only averages and spreads have changed"
    if kind in ("high", "low"):
        whole = earlier["sum", variable, argument]
        return whole >> _HALF_BITS if kind == "high" else whole & ((1 << _HALF_BITS) - 1)
    if kind == "rest":
        return np.zeros_like(earlier["sum", variable, argument])
    counts = earlier["present", variable, argument].astype(np.longdouble)
    total, sum_of_squares = (
        np.ascontiguousarray(earlier[part, variable, as_float(argument)]).view(np.float64).astype(np.longdouble)
        for part in ("sum", "squares")
    )
    unit = 10**argument.type.scale
    with np.errstate(all="ignore"):  # floats may be infinite
        mean = total * unit / np.maximum(counts, 1)
        if argument.type.is_float:
            center, slots = mean, _slots(mean)
        else:
            center = np.rint(mean)
            slots = center.astype(np.int64)
        if kind == "base":
            return slots
        center = center.astype(np.float64).astype(np.longdouble)
        distance = total * unit - counts * center
        if kind == "offset":
            return _slots(distance)
        least = distance * distance / np.maximum(counts, 1)
        squares: np.ndarray = sum_of_squares * unit * unit
        number = squares - center * (2 * total * unit - counts * center)
        return _slots(np.where(number - least > squares * _LEVEL, number, least))


def _slots(numbers: np.ndarray) -> Int64:
    """Return the slots of floats."""
    slots: Int64 = numbers.astype(np.float64).view(np.int64)
    return slots
