"""The matcher: carries the runs of one rule over the events of many keys.

States, transitions and the words are those of SASE (Agrawal et al., "Efficient Pattern Matching over Event Streams",
2008) as Flink CEP uses them, in another form: a run is in a position of the pattern (the last variable it took) and
has a set of open *waits*, one for each way to go on. An event that a wait takes makes a new run; a relaxed wait is
closed by that, an any-wait stays open, a strict wait is open for the very next event alone. So an event that no
condition names changes nothing, and is not looked at.

Bound events form a tree of nodes (row, state, previous): runs that share a prefix share its nodes.
The queue holds the rows that some condition of the rule may react to, by key and time; keys without any are only
visited if they have runs. Work on a key is restarted when an output array is full and has been enlarged.

While a key is worked on its runs are rows of `work`; row 0 is the start run, which has taken nothing and never closes.
Tested by: tests/kernels/test_advance.py, tests/engine/test_against_oracle.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cep.kernels import layout as y
from cep.kernels import opcodes as o
from cep.kernels.jit import bare

_FOREVER = np.int64(2**61)
_INT64_MIN = np.int64(-(2**63))


@bare
def _copy(source: Any, i: Any, target: Any, k: Any) -> None:
    """target[k] = source[i], row by row; a slice assignment would allocate."""
    for c in range(target.shape[1]):
        target[k, c] = source[i, c]


@bare
def _overflows(a: Any, b: Any) -> Any:
    """Whether a * b leaves int64."""
    if a == 0 or b == 0:
        return False
    if a == -1:
        return b == _INT64_MIN
    if b == -1:
        return a == _INT64_MIN
    product = a * b
    return product // b != a or product % b != 0


@bare
def _integer_step(op: Any, x: Any, z: Any, counters: Any) -> Any:
    """(value, is null) of an int64 instruction on two values that are not null."""
    value = np.int64(0)
    null = False
    if op == o.ADD:
        value = x + z
        null = ((x ^ value) & (z ^ value)) < 0
    elif op == o.SUB:
        value = x - z
        null = ((x ^ z) & (x ^ value)) < 0
    elif op == o.MUL or op == o.SCALE:
        value = x * z
        null = _overflows(x, z)
    elif op == o.NEG:
        value = -x
        null = x == _INT64_MIN
    elif op == o.ABS:
        value = abs(x)
        null = x == _INT64_MIN
    elif op == o.MIN:
        value = min(x, z)
    elif op == o.MAX:
        value = max(x, z)
    elif op == o.MOD:
        if z == 0:
            return value, True
        value = abs(x) % abs(z)
        value = -value if x < 0 else value
    elif op == o.LT:
        value = np.int64(x < z)
    elif op == o.LE:
        value = np.int64(x <= z)
    elif op == o.EQ:
        value = np.int64(x == z)
    elif op == o.NE:
        value = np.int64(x != z)
    if null:
        counters[y.COUNT_OVERFLOW] += 1
    return value, null


@bare
def _float_step(op: Any, x: Any, z: Any) -> Any:
    """(value, is null) of a float64 instruction that gives a float64."""
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
    inside = x >= -1.0 and x <= 1.0
    return np.arcsin(x if inside else 0.0), not inside


@bare
def _float_compare(op: Any, x: Any, z: Any) -> Any:
    if op == o.FLT:
        return np.int64(x < z)
    if op == o.FLE:
        return np.int64(x <= z)
    if op == o.FEQ:
        return np.int64(x == z)
    return np.int64(x != z)


@bare
def _count_distinct(program: Any, table: Any, node: Any, variable: Any, column: Any, nodes: Any) -> Any:
    """Different values, nulls left out, among the events bound to the variable. Cost: O(k squared) for k events."""
    count = 0
    while node >= 0:
        row = nodes[node, y.NODE_ROW]
        if program.state_variable[nodes[node, y.NODE_STATE]] == variable and table.nulls[column, row] == 0:
            earlier = nodes[node, y.NODE_PREVIOUS]
            new = 1
            while earlier >= 0 and new == 1:
                other = nodes[earlier, y.NODE_ROW]
                same_variable = program.state_variable[nodes[earlier, y.NODE_STATE]] == variable
                if same_variable and table.nulls[column, other] == 0 and table.columns[column, other] == table.columns[column, row]:
                    new = 0
                earlier = nodes[earlier, y.NODE_PREVIOUS]
            count += new
        node = nodes[node, y.NODE_PREVIOUS]
    return count


@bare
def _run_code(program: Any, first: Any, last: Any, table: Any, row: Any, run: Any, machine: Any, counters: Any) -> None:
    """The scalar interpreter: instructions [first, last) for the event in `row` and the run."""
    ints, floats, nulled = machine.ints, machine.floats, machine.nulled
    for pc in range(first, last):
        op = program.code[pc, 0]
        t, a, b = program.code[pc, 1], program.code[pc, 2], program.code[pc, 3]
        if op == o.COLUMN:
            ints[t] = table.columns[a, row]
            nulled[t] = table.nulls[a, row]
        elif op == o.CONST:
            ints[t] = program.constants[a]
            nulled[t] = b
        elif op == o.REGISTER:
            ints[t] = run[y.RUN_HEADER + a]
            nulled[t] = 0
        elif op == o.ROW:
            bound = run[y.RUN_HEADER + a]
            nulled[t] = 1 if bound < 0 else table.nulls[b, bound]
            ints[t] = 0 if bound < 0 else table.columns[b, bound]
        elif op == o.AND:
            false = (nulled[a] == 0 and ints[a] == 0) or (nulled[b] == 0 and ints[b] == 0)
            nulled[t] = np.uint8(not false and (nulled[a] | nulled[b]) != 0)
            ints[t] = np.int64(not false and nulled[t] == 0)
        elif op == o.OR:
            true = (nulled[a] == 0 and ints[a] != 0) or (nulled[b] == 0 and ints[b] != 0)
            nulled[t] = np.uint8(not true and (nulled[a] | nulled[b]) != 0)
            ints[t] = np.int64(true)
        elif op == o.NOT:
            ints[t] = np.int64(ints[a] == 0)
            nulled[t] = nulled[a]
        elif op == o.IS_NULL:
            ints[t] = np.int64(nulled[a] != 0)
            nulled[t] = 0
        elif op == o.NULL_IF_ZERO:
            ints[t] = ints[a]
            nulled[t] = np.uint8(nulled[a] != 0 or ints[b] == 0)
        elif op == o.DISTINCT:
            ints[t] = _count_distinct(program, table, run[y.RUN_NODE], a, b, machine.nodes)
            nulled[t] = 0
        elif op == o.SELECT:
            source = b if nulled[a] == 0 and ints[a] != 0 else program.code[pc, 4]
            ints[t] = ints[source]
            nulled[t] = nulled[source]
        elif op == o.TO_FLOAT:
            floats[t] = np.float64(ints[a]) / np.float64(program.constants[b])
            nulled[t] = nulled[a]
        elif op >= o.FLT:
            nulled[t] = nulled[a] | nulled[b]
            ints[t] = _float_compare(op, floats[a], floats[b])
        elif op >= o.FADD and op <= o.FASIN:
            unary = op == o.FNEG or op == o.FABS or op >= o.FSQRT
            value, null = _float_step(op, floats[a], floats[a] if unary else floats[b])
            nulled[t] = np.uint8(null or (nulled[a] | (0 if unary else nulled[b])) != 0)
            floats[t] = value
        else:
            unary = op == o.NEG or op == o.ABS or op == o.SCALE
            if (nulled[a] | (0 if unary else nulled[b])) != 0:
                nulled[t] = 1
                ints[t] = 0
            else:
                other = program.constants[b] if op == o.SCALE else (ints[a] if unary else ints[b])
                whole, missing = _integer_step(op, ints[a], other, counters)
                ints[t] = whole
                nulled[t] = np.uint8(missing)


@bare
def _bit(table: Any, predicate: Any, row: Any) -> Any:
    at = row - table.first_row
    return (table.bitmaps[predicate, at >> 6] >> np.uint64(at & 63)) & np.uint64(1) != 0


@bare
def _simple(program: Any, wait: Any, table: Any, row: Any, run: Any) -> Any:
    """The fast form of a cross-event condition; false if a side is null."""
    op = program.wait_simple[wait, 0]
    column, other = program.wait_simple[wait, 1], program.wait_simple[wait, 3]
    bound = run[y.RUN_HEADER + program.wait_simple[wait, 2]]
    if bound < 0 or table.nulls[column, row] != 0 or table.nulls[other, bound] != 0:
        return False
    x, z = table.columns[column, row], table.columns[other, bound]
    if op >= y.SIMPLE_FLOAT:
        fx, fz = np.int64(x).view(np.float64), np.int64(z).view(np.float64)
        op -= y.SIMPLE_FLOAT
        return (
            (op == y.SIMPLE_LT and fx < fz) or (op == y.SIMPLE_LE and fx <= fz) or (op == y.SIMPLE_GT and fx > fz)
            or (op == y.SIMPLE_GE and fx >= fz) or (op == y.SIMPLE_EQ and fx == fz) or (op == y.SIMPLE_NE and fx != fz)
        )  # fmt: skip
    return (
        (op == y.SIMPLE_LT and x < z) or (op == y.SIMPLE_LE and x <= z) or (op == y.SIMPLE_GT and x > z)
        or (op == y.SIMPLE_GE and x >= z) or (op == y.SIMPLE_EQ and x == z) or (op == y.SIMPLE_NE and x != z)
    )  # fmt: skip


@bare
def _takes(program: Any, wait: Any, table: Any, row: Any, run: Any, machine: Any, counters: Any) -> Any:
    """Whether the condition of the wait holds for the event and the run."""
    predicate = program.wait_predicate[wait]
    if predicate >= 0 and not _bit(table, predicate, row):
        return False
    if program.wait_simple[wait, 0] != y.SIMPLE_NONE:
        return _simple(program, wait, table, row, run)
    if program.wait_code[wait, 0] < 0:
        return True
    _run_code(program, program.wait_code[wait, 0], program.wait_code[wait, 1], table, row, run, machine, counters)
    result = program.wait_code[wait, 2]
    return machine.ints[result] != 0 and machine.nulled[result] == 0


@bare
def _guarded(program: Any, wait: Any, before: Any, table: Any, row: Any, run: Any, machine: Any, counters: Any) -> Any:
    """Whether a guard of the wait closes it: those that speak before the take, or all others."""
    for g in range(program.wait_first_guard[wait], program.wait_first_guard[wait + 1]):
        kind = program.guard_condition[g, 0]
        if (kind == y.GUARD_AFTER) == before:
            continue
        if kind == y.GUARD_NEXT and table.ordinal[row] != run[y.RUN_ORDINAL] + 1:
            continue
        if run[y.RUN_NODE] >= 0:
            gap = table.columns[1, row] - table.columns[1, machine.nodes[run[y.RUN_NODE], y.NODE_ROW]]
            if gap < program.guard_gap[g, 0] or gap >= program.guard_gap[g, 1]:
                continue
        predicate = program.guard_condition[g, 1]
        if predicate >= 0 and not _bit(table, predicate, row):
            continue
        first = program.guard_condition[g, 2]
        if first < 0:
            return True
        _run_code(program, first, program.guard_condition[g, 3], table, row, run, machine, counters)
        result = program.guard_condition[g, 4]
        if machine.ints[result] != 0 and machine.nulled[result] == 0:
            return True
    return False


@bare
def _within_bounds(program: Any, wait: Any, table: Any, row: Any, run: Any, nodes: Any) -> Any:
    """1: the gaps fit, 0: too early for the wait, -1: too late for ever."""
    verdict = 1
    for b in range(program.wait_first_bound[wait], program.wait_first_bound[wait + 1]):
        register = program.bound_register[b]
        base = nodes[run[y.RUN_NODE], y.NODE_ROW] if register < 0 else run[y.RUN_HEADER + register]
        gap = table.columns[1, row] - table.columns[1, base]
        if gap >= program.bound_ms[b, 1]:
            return -1
        if gap < program.bound_ms[b, 0]:
            verdict = 0
    return verdict


@bare
def _act(program: Any, target: Any, table: Any, row: Any, run: Any, counters: Any) -> None:
    """Bring the registers of the run up to the event it has taken."""
    for k in range(program.state_first_action[target], program.state_first_action[target + 1]):
        kind = program.action[k, 0]
        r = y.RUN_HEADER + program.action[k, 1]
        if kind == y.ACT_COUNT:
            run[r] += 1
        elif kind == y.ACT_LAST:
            run[r] = row
        elif kind == y.ACT_FIRST:
            if run[r] < 0:
                run[r] = row
        elif kind == y.ACT_PREVIOUS:
            run[r] = run[y.RUN_HEADER + program.action[k, 3]]
        else:
            column = program.action[k, 2]
            if table.nulls[column, row] != 0:
                continue
            value = table.columns[column, row]
            seen = run[y.RUN_HEADER + program.action[k, 3]] > 0
            old = run[r]
            if kind == y.ACT_COUNT_PRESENT:
                run[r] += 1
            elif kind == y.ACT_SUM:
                run[r] = old + value
                if ((old ^ run[r]) & (value ^ run[r])) < 0:
                    counters[y.COUNT_OVERFLOW] += 1
                    run[r] = old
            elif kind == y.ACT_MIN:
                run[r] = min(old, value) if seen else value
            elif kind == y.ACT_MAX:
                run[r] = max(old, value) if seen else value
            else:
                x, z = np.int64(old).view(np.float64), np.int64(value).view(np.float64)
                result = z
                if kind == y.ACT_FSUM:
                    result = x + z if seen else z
                elif kind == y.ACT_FSQUARES:
                    result = x + z * z if seen else z * z
                elif kind == y.ACT_FMIN:
                    result = min(x, z) if seen else z
                elif kind == y.ACT_FMAX:
                    result = max(x, z) if seen else z
                run[r] = np.float64(result).view(np.int64)


@bare
def _deadline(program: Any, rule: Any, wait: Any, table: Any, run: Any, nodes: Any) -> Any:
    """The time at which a wait of the run is over."""
    ends = table.columns[1, run[y.RUN_START_ROW]] + rule.within_ms
    for b in range(program.wait_first_bound[wait], program.wait_first_bound[wait + 1]):
        base = program.bound_register[b]
        since = nodes[run[y.RUN_NODE], y.NODE_ROW] if base < 0 else run[y.RUN_HEADER + base]
        ends = min(ends, table.columns[1, since] + program.bound_ms[b, 1])
    return min(ends, _FOREVER)


@bare
def _set_expiry(program: Any, rule: Any, table: Any, run: Any, nodes: Any) -> None:
    """When the run has to be looked at next: a deadline that fires something, else the last of all."""
    first = program.state_first_wait[run[y.RUN_STATE]]
    earliest, latest = _FOREVER, np.int64(-_FOREVER)
    for wait in range(first, program.state_first_wait[run[y.RUN_STATE] + 1]):
        if (run[y.RUN_WAITS] >> np.int64(wait - first)) & 1 != 0:
            ends = _deadline(program, rule, wait, table, run, nodes)
            latest = max(latest, ends)
            if program.wait_kind[wait] >= y.WAIT_ABSENCE or rule.report_timeouts != 0:
                earliest = min(earliest, ends)
    run[y.RUN_EXPIRY] = min(earliest, latest)


@bare
def _open_waits(program: Any, rule: Any, state: Any, table: Any, run: Any, nodes: Any) -> None:
    """Set the waits of a run that has just entered `state`, and its expiry."""
    waits = np.int64(0)
    first = program.state_first_wait[state]
    for wait in range(first, program.state_first_wait[state + 1]):
        register = program.wait_count[wait, 0]
        if register >= 0:
            count = run[y.RUN_HEADER + register]
            if count < program.wait_count[wait, 1] or count >= program.wait_count[wait, 2]:
                continue
        waits |= np.int64(1) << np.int64(wait - first)
    run[y.RUN_STATE] = state
    run[y.RUN_WAITS] = waits
    if waits != 0:
        _set_expiry(program, rule, table, run, nodes)


@bare
def _emit(program: Any, rule: Any, table: Any, key: Any, row: Any, run: Any, kind: Any, detected: Any, out: Any,
          measures: Any, measures_null: Any, at: Any, machine: Any, counters: Any) -> None:
    """Write match number `at`. Measures speak of bound events only, so `row` may be any row."""
    out[at, y.MATCH_RULE] = rule.rule
    out[at, y.MATCH_KEY] = key
    out[at, y.MATCH_NODE] = run[y.RUN_NODE]
    out[at, y.MATCH_DETECTED] = detected
    out[at, y.MATCH_START_ROW] = run[y.RUN_START_ROW]
    out[at, y.MATCH_KIND] = kind
    out[at, y.MATCH_BOUND] = 0
    for k in range(rule.measure_first, rule.measure_last):
        code = program.measure_code[k]
        _run_code(program, code[0], code[1], table, row, run, machine, counters)
        measures[at, k - rule.measure_first] = machine.ints[code[2]]
        measures_null[at, k - rule.measure_first] = machine.nulled[code[2]]


@bare
def _bound_count(nodes: Any, node: Any) -> Any:
    count = 0
    while node >= 0:
        count += 1
        node = nodes[node, y.NODE_PREVIOUS]
    return count


@bare
def _resume_row(rule: Any, program: Any, nodes: Any, match: Any) -> Any:
    """The skip strategy's cut: runs that started before this row are covered by the match."""
    if rule.skip_kind == y.SKIP_PAST_LAST:
        return nodes[match[y.MATCH_NODE], y.NODE_ROW] + 1
    if rule.skip_kind == y.SKIP_TO_NEXT:
        return match[y.MATCH_START_ROW] + 1
    found = np.int64(-1)
    node = match[y.MATCH_NODE]
    while node >= 0:
        if program.state_variable[nodes[node, y.NODE_STATE]] == rule.skip_variable:
            found = nodes[node, y.NODE_ROW]
            if rule.skip_kind == y.SKIP_TO_LAST:
                return found
        node = nodes[node, y.NODE_PREVIOUS]
    return found


@bare
def _choose(rule: Any, program: Any, nodes: Any, out: Any, measures: Any, measures_null: Any, first: Any, count: Any,
            work: Any, runs: Any) -> Any:
    """Apply the skip strategy to the matches [first, count) of one event or deadline; returns the new match count.

    Time-outs among them are no matches: they are kept and cover nothing.

    The earliest start wins, then the most events bound, then the older run. Runs that the winner covers lose all waits.
    """
    kept = first
    for m in range(first, count):
        out[m, y.MATCH_BOUND] = _bound_count(nodes, out[m, y.MATCH_NODE])
        if out[m, y.MATCH_KIND] == y.KIND_TIMEOUT:
            _swap(out, measures, measures_null, kept, m)
            kept += 1
    while kept < count:
        best = kept
        for m in range(kept + 1, count):
            if _preferred(nodes, out[m], out[best]):
                best = m
        _swap(out, measures, measures_null, kept, best)
        cut = _resume_row(rule, program, nodes, out[kept])
        kept += 1
        rest = kept
        for m in range(kept, count):
            if out[m, y.MATCH_START_ROW] >= cut:
                _swap(out, measures, measures_null, rest, m)
                rest += 1
        count = rest
        for i in range(1, runs):
            if work[i, y.RUN_START_ROW] < cut:
                work[i, y.RUN_WAITS] = 0
    return count


@bare
def _swap(out: Any, measures: Any, measures_null: Any, i: Any, k: Any) -> None:
    """Exchange two matches."""
    if i == k:
        return
    for c in range(y.MATCH_WIDTH):
        out[i, c], out[k, c] = out[k, c], out[i, c]
    for c in range(measures.shape[1]):
        measures[i, c], measures[k, c] = measures[k, c], measures[i, c]
        measures_null[i, c], measures_null[k, c] = measures_null[k, c], measures_null[i, c]


@bare
def _preferred(nodes: Any, a: Any, b: Any) -> Any:
    """Whether match a comes before b: the earlier start, then the more events, then the earlier events one by one."""
    if a[y.MATCH_START_ROW] != b[y.MATCH_START_ROW]:
        return a[y.MATCH_START_ROW] < b[y.MATCH_START_ROW]
    if a[y.MATCH_BOUND] != b[y.MATCH_BOUND]:
        return a[y.MATCH_BOUND] > b[y.MATCH_BOUND]
    x, z = a[y.MATCH_NODE], b[y.MATCH_NODE]
    before = False
    while x >= 0 and x != z:
        if nodes[x, y.NODE_ROW] != nodes[z, y.NODE_ROW]:
            before = nodes[x, y.NODE_ROW] < nodes[z, y.NODE_ROW]
        x, z = nodes[x, y.NODE_PREVIOUS], nodes[z, y.NODE_PREVIOUS]
    return before


@bare
def _close_gaps(work: Any, runs: Any) -> Any:
    """Drop the runs without waits, keep the order; returns how many are left."""
    kept = 1
    for i in range(1, runs):
        if work[i, y.RUN_WAITS] != 0:
            if kept != i:
                _copy(work, i, work, kept)
            kept += 1
    return kept


@bare
def _close_due(program: Any, rule: Any, table: Any, run: Any, nodes: Any, until: Any) -> Any:
    """Close the waits of the run whose time is up; returns (an absence was certain, another wait ran out)."""
    first = program.state_first_wait[run[y.RUN_STATE]]
    absent, ran_out = False, False
    for wait in range(first, program.state_first_wait[run[y.RUN_STATE] + 1]):
        bit = np.int64(1) << np.int64(wait - first)
        if run[y.RUN_WAITS] & bit != 0 and _deadline(program, rule, wait, table, run, nodes) <= until:
            run[y.RUN_WAITS] &= ~bit
            if program.wait_kind[wait] >= y.WAIT_ABSENCE:
                absent = True
            else:
                ran_out = True
    if run[y.RUN_WAITS] & ~y.TIMED_OUT == 0:
        run[y.RUN_WAITS] = 0
    else:
        _set_expiry(program, rule, table, run, nodes)
    return absent, ran_out


@bare
def _expire(program: Any, rule: Any, table: Any, key: Any, until: Any, work: Any, runs: Any, nodes: Any, out: Any,
            measures: Any, measures_null: Any, matches: Any, machine: Any, counters: Any) -> Any:
    """Close what is over by `until`, deadline after deadline: absences match, other waits time out.

    Returns (matches, full). Runs that are closed have no waits left.
    """
    while True:
        due_ms = _FOREVER
        for i in range(1, runs):
            if work[i, y.RUN_WAITS] != 0:
                due_ms = min(due_ms, work[i, y.RUN_EXPIRY])
        if due_ms > until or due_ms >= _FOREVER:
            return matches, False
        before = matches
        for i in range(1, runs):
            run = work[i]
            if run[y.RUN_WAITS] == 0 or run[y.RUN_EXPIRY] > due_ms:
                continue
            if matches >= out.shape[0]:
                return matches, True
            reported = run[y.RUN_WAITS] & y.TIMED_OUT != 0
            absent, ran_out = _close_due(program, rule, table, run, nodes, due_ms)
            if run[y.RUN_WAITS] == 0:
                counters[y.COUNT_EXPIRED] += 1
            fresh = ran_out and rule.report_timeouts != 0 and not reported
            if fresh and run[y.RUN_WAITS] != 0:
                run[y.RUN_WAITS] |= y.TIMED_OUT
            last = nodes[run[y.RUN_NODE], y.NODE_ROW]
            if absent:
                kind = y.KIND_BOTH if fresh else y.KIND_MATCH
                _emit(program, rule, table, key, last, run, kind, due_ms, out, measures, measures_null, matches, machine,
                      counters)
                matches += 1
            elif fresh:
                _emit(program, rule, table, key, last, run, y.KIND_TIMEOUT, due_ms, out, measures, measures_null, matches,
                      machine, counters)
                matches += 1
        if rule.skip_kind != y.SKIP_NONE:
            matches = _choose(rule, program, nodes, out, measures, measures_null, before, matches, work, runs)


@bare
def _drop_expired(work: Any, runs: Any, until: Any, counters: Any) -> Any:
    """Like _expire where nothing fires: returns whether any run was closed."""
    any_closed = False
    for i in range(1, runs):
        if work[i, y.RUN_EXPIRY] <= until and work[i, y.RUN_WAITS] != 0:
            work[i, y.RUN_WAITS] = 0
            counters[y.COUNT_EXPIRED] += 1
            any_closed = True
    return any_closed


@bare
def _take(program: Any, rule: Any, wait: Any, table: Any, row: Any, parent: Any, child: Any, nodes: Any,
          node_count: Any, counters: Any) -> None:
    """Make `child` the run that `parent` becomes by taking the event; its node is number node_count."""
    target = program.wait_target[wait]
    for c in range(child.shape[0]):
        child[c] = parent[c]
    if child[y.RUN_NODE] < 0:
        child[y.RUN_START_ROW] = row
        child[y.RUN_START_ORDINAL] = table.ordinal[row]
        counters[y.COUNT_STARTED] += 1
    nodes[node_count, y.NODE_ROW] = row
    nodes[node_count, y.NODE_STATE] = target
    nodes[node_count, y.NODE_PREVIOUS] = child[y.RUN_NODE]
    child[y.RUN_NODE] = node_count
    child[y.RUN_ORDINAL] = table.ordinal[row]
    if program.wait_reset[wait] >= 0:
        child[y.RUN_HEADER + program.wait_reset[wait]] = 0
    for k in range(program.wait_first_mark[wait], program.wait_first_mark[wait + 1]):
        child[y.RUN_HEADER + program.mark_register[k]] = row
    _act(program, target, table, row, child, counters)
    _open_waits(program, rule, target, table, child, nodes)


@bare
def _accepts(program: Any, run: Any) -> Any:
    target = run[y.RUN_STATE]
    if program.state_accept[target] == y.ACCEPT_NO:
        return False
    register = program.state_accept_register[target]
    return register < 0 or run[y.RUN_HEADER + register] >= program.state_accept_min[target]


@bare
def _offer(program: Any, rule: Any, table: Any, key: Any, row: Any, i: Any, work: Any, runs: Any, nodes: Any,
           node_count: Any, out: Any, measures: Any, measures_null: Any, matches: Any, machine: Any,
           counters: Any) -> Any:
    """Offer the event in `row` to run i: children go behind row `runs`, waits that are over are closed.

    Returns (runs, node count, matches, FULL_*).
    """
    run = work[i]
    waits = run[y.RUN_WAITS]
    first = program.state_first_wait[run[y.RUN_STATE]]
    for wait in range(first, program.state_first_wait[run[y.RUN_STATE] + 1]):
        bit = np.int64(1) << np.int64(wait - first)
        if waits & bit == 0:
            continue
        kind = program.wait_kind[wait]
        guards = program.wait_first_guard[wait + 1] > program.wait_first_guard[wait]
        if kind == y.WAIT_STRICT and table.ordinal[row] != run[y.RUN_ORDINAL] + 1:
            waits &= ~bit
            continue
        fits = 1
        if i > 0 and program.wait_first_bound[wait + 1] > program.wait_first_bound[wait]:
            fits = _within_bounds(program, wait, table, row, run, nodes)
        if fits < 0 or (guards and _guarded(program, wait, True, table, row, run, machine, counters)):
            waits &= ~bit
            continue
        if kind == y.WAIT_ABSENCE_NEXT:
            if matches >= out.shape[0]:
                return runs, node_count, matches, y.FULL_MATCHES
            _emit(program, rule, table, key, row, run, y.KIND_MATCH, table.columns[1, row], out, measures,
                  measures_null, matches, machine, counters)
            matches += 1
            waits &= ~bit
        elif fits > 0 and kind != y.WAIT_ABSENCE and _takes(program, wait, table, row, run, machine, counters):
            if runs >= work.shape[0]:
                return runs, node_count, matches, y.FULL_WORK
            if node_count >= nodes.shape[0]:
                return runs, node_count, matches, y.FULL_NODES
            child = work[runs]
            _take(program, rule, wait, table, row, run, child, nodes, node_count, counters)
            node_count += 1
            if _accepts(program, child):
                if matches >= out.shape[0]:
                    return runs, node_count, matches, y.FULL_MATCHES
                _emit(program, rule, table, key, row, child, y.KIND_MATCH, table.columns[1, row], out, measures,
                      measures_null, matches, machine, counters)
                matches += 1
            if child[y.RUN_WAITS] != 0:
                runs += 1
            if kind != y.WAIT_ANY:
                waits &= ~bit
        elif kind == y.WAIT_STRICT:
            waits &= ~bit
        if guards and waits & bit != 0 and _guarded(program, wait, False, table, row, run, machine, counters):
            waits &= ~bit
    if i > 0:
        run[y.RUN_WAITS] = 0 if waits == y.TIMED_OUT else waits
    return runs, node_count, matches, y.FULL_NOT


@bare
def _on_event(program: Any, rule: Any, table: Any, key: Any, row: Any, work: Any, runs: Any, nodes: Any,
              node_count: Any, out: Any, measures: Any, measures_null: Any, matches: Any, machine: Any,
              counters: Any, fires: Any) -> Any:
    """One event of a key: expire, offer to every run and the start run, apply the skip strategy, tidy up.

    Returns (runs, node count, matches, FULL_*).
    """
    time = table.columns[1, row]
    if fires:
        matches, full = _expire(program, rule, table, key, time, work, runs, nodes, out, measures, measures_null,
                                matches, machine, counters)
        closed = True
        if full:
            return runs, node_count, matches, y.FULL_MATCHES
    else:
        closed = _drop_expired(work, runs, time, counters)
    before, live = matches, runs
    starts = time >= rule.from_ms and time < rule.starts_until_ms
    for i in range(0 if starts else 1, live):
        if work[i, y.RUN_WAITS] == 0:
            continue
        if i > 0 and table.ordinal[row] - work[i, y.RUN_START_ORDINAL] >= rule.within_events:
            work[i, y.RUN_WAITS] = 0
            counters[y.COUNT_EXPIRED] += 1
            closed = True
            continue
        counters[y.COUNT_STEPS] += 1
        runs, node_count, matches, full_what = _offer(program, rule, table, key, row, i, work, runs, nodes, node_count,
                                                      out, measures, measures_null, matches, machine, counters)
        if full_what != y.FULL_NOT:
            return runs, node_count, matches, full_what
        closed = closed or work[i, y.RUN_WAITS] == 0
    if matches > before:
        if rule.skip_kind != y.SKIP_NONE:
            matches = _choose(rule, program, nodes, out, measures, measures_null, before, matches, work, runs)
            closed = True
        if matches - before > rule.matches_max:
            counters[y.COUNT_DROPPED] += matches - before - rule.matches_max
            matches = before + rule.matches_max
    if closed:
        runs = _close_gaps(work, runs)
    if runs - 1 > rule.runs_max:
        surplus = runs - 1 - rule.runs_max
        counters[y.COUNT_EVICTED] += surplus
        for i in range(1, runs - surplus):
            _copy(work, i + surplus, work, i)
        runs -= surplus
    return runs, node_count, matches, y.FULL_NOT


@bare
def _save(rule: Any, table: Any, program: Any, key: Any, work: Any, runs: Any, out_runs: Any, out_keys: Any,
          out_count: Any) -> Any:
    """Write the key's runs behind row out_count; returns the new count, or -1 if they do not fit.

    Ordinals become relative to the key's next event; strict waits that have missed their event are closed.
    """
    if out_count + runs - 1 > out_runs.shape[0]:
        return -1
    seen = table.stream_count[key]
    for i in range(1, runs):
        run = work[i]
        if seen > run[y.RUN_ORDINAL] + 1:
            first = program.state_first_wait[run[y.RUN_STATE]]
            for wait in range(first, program.state_first_wait[run[y.RUN_STATE] + 1]):
                if program.wait_kind[wait] == y.WAIT_STRICT:
                    run[y.RUN_WAITS] &= ~(np.int64(1) << np.int64(wait - first))
        if run[y.RUN_WAITS] & ~y.TIMED_OUT == 0 or seen - run[y.RUN_START_ORDINAL] >= rule.within_events:
            continue
        _copy(work, i, out_runs, out_count)
        out_runs[out_count, y.RUN_ORDINAL] -= seen
        out_runs[out_count, y.RUN_START_ORDINAL] -= seen
        out_keys[out_count] = key
        out_count += 1
    return out_count


@bare
def advance_rule(program: Any, rule: Any, table: Any, queue: Any, start_run: Any, in_runs: Any, in_keys: Any,
                 watermark: Any, work: Any, nodes: Any, out: Any, measures: Any, measures_null: Any, out_runs: Any,
                 out_keys: Any, machine: Any, cursor: Any, counters: Any, held: Any) -> Any:
    """Carry one rule over the queued events and close what is over by the watermark.

    Shapes: queue int32[Q] rows, ascending; in_runs int64[n, W] with in_keys int32[n], by key; start_run int64[W];
    cursor int64[CURSOR_WIDTH] says where to begin and is left where to go on; outputs are written from the cursor's
    counts on. Returns: FULL_NOT when all is done, else what to enlarge before the next call.
    Cost: O(queued events x open runs of their key).
    """
    fires = rule.fires != 0
    for c in range(start_run.shape[0]):
        work[0, c] = start_run[c]
    while cursor[y.CURSOR_QUEUE] < queue.shape[0] or cursor[y.CURSOR_RUN] < in_keys.shape[0]:
        at, run_at = cursor[y.CURSOR_QUEUE], cursor[y.CURSOR_RUN]
        node_count, matches = cursor[y.CURSOR_NODES], cursor[y.CURSOR_MATCHES]
        key = np.int64(2**62)
        if at < queue.shape[0]:
            key = np.int64(table.key[queue[at]])
        if run_at < in_keys.shape[0]:
            key = min(key, np.int64(in_keys[run_at]))
        for c in range(y.COUNTERS):
            held[c] = counters[c]
        runs = 1
        full = y.FULL_NOT
        while run_at < in_keys.shape[0] and in_keys[run_at] == key:
            if runs >= work.shape[0]:
                return y.FULL_WORK
            _copy(in_runs, run_at, work, runs)
            runs += 1
            run_at += 1
        while at < queue.shape[0] and table.key[queue[at]] == key and full == y.FULL_NOT:
            row = queue[at]
            at += 1
            time = table.columns[1, row]
            if time < rule.until_ms and (runs > 1 or (time >= rule.from_ms and time < rule.starts_until_ms)):
                runs, node_count, matches, full = _on_event(
                    program, rule, table, key, row, work, runs, nodes, node_count, out, measures, measures_null,
                    matches, machine, counters, fires)  # fmt: skip
        if full == y.FULL_NOT and runs > 1:
            if fires:
                matches, stuck = _expire(program, rule, table, key, watermark, work, runs, nodes, out, measures,
                                         measures_null, matches, machine, counters)
                full = y.FULL_MATCHES if stuck else y.FULL_NOT
            else:
                _drop_expired(work, runs, watermark, counters)
            out_count = _save(rule, table, program, key, work, runs, out_runs, out_keys, cursor[y.CURSOR_OUT])
            if out_count < 0 and full == y.FULL_NOT:
                full = y.FULL_OUT
        else:
            out_count = cursor[y.CURSOR_OUT]
        if full != y.FULL_NOT:
            for c in range(y.COUNTERS):
                counters[c] = held[c]
            return full
        cursor[y.CURSOR_QUEUE], cursor[y.CURSOR_RUN] = at, run_at
        cursor[y.CURSOR_NODES], cursor[y.CURSOR_MATCHES], cursor[y.CURSOR_OUT] = node_count, matches, out_count
    return y.FULL_NOT


@bare
def match_lengths(matches: Any, nodes: Any, lengths: Any) -> None:
    """Fill lengths int64[M] with the number of events that each match has bound."""
    for m in range(matches.shape[0]):
        lengths[m] = _bound_count(nodes, matches[m, y.MATCH_NODE])


@bare
def match_bindings(matches: Any, nodes: Any, state_variable: Any, offsets: Any, rows: Any, variables: Any) -> None:
    """Walk each match back through its nodes: rows and variables [offsets[m], offsets[m + 1]) in binding order."""
    for m in range(matches.shape[0]):
        at = offsets[m + 1]
        node = matches[m, y.MATCH_NODE]
        while node >= 0:
            at -= 1
            rows[at] = nodes[node, y.NODE_ROW]
            variables[at] = state_variable[nodes[node, y.NODE_STATE]]
            node = nodes[node, y.NODE_PREVIOUS]


@bare
def compact(runs: Any, nodes: Any, row_registers: Any, run_rule: Any, node_map: Any, row_map: Any) -> Any:
    """Keep what live runs can reach: renumber nodes and rows in place.

    Shapes: runs int64[n, W], row_registers uint8[rules, registers] marks registers that hold rows,
    node_map int64[nodes] and row_map int64[N] come in as -1.
    Returns: (nodes kept, rows kept); row_map[row] is the new row. Order is unchanged.
    """
    for i in range(runs.shape[0]):
        node_map[runs[i, y.RUN_NODE]] = 0
    for k in range(nodes.shape[0] - 1, -1, -1):
        if node_map[k] >= 0:
            row_map[nodes[k, y.NODE_ROW]] = 0
            if nodes[k, y.NODE_PREVIOUS] >= 0:
                node_map[nodes[k, y.NODE_PREVIOUS]] = 0
    rows_kept = 0
    for row in range(row_map.shape[0]):
        if row_map[row] >= 0:
            row_map[row] = rows_kept
            rows_kept += 1
    nodes_kept = 0
    for k in range(nodes.shape[0]):
        if node_map[k] >= 0:
            node_map[k] = nodes_kept
            previous = nodes[k, y.NODE_PREVIOUS]
            nodes[nodes_kept, y.NODE_ROW] = row_map[nodes[k, y.NODE_ROW]]
            nodes[nodes_kept, y.NODE_STATE] = nodes[k, y.NODE_STATE]
            nodes[nodes_kept, y.NODE_PREVIOUS] = node_map[previous] if previous >= 0 else -1
            nodes_kept += 1
    for i in range(runs.shape[0]):
        runs[i, y.RUN_NODE] = node_map[runs[i, y.RUN_NODE]]
        runs[i, y.RUN_START_ROW] = row_map[runs[i, y.RUN_START_ROW]]
        for r in range(row_registers.shape[1]):
            if row_registers[run_rule[i], r] != 0 and runs[i, y.RUN_HEADER + r] >= 0:
                runs[i, y.RUN_HEADER + r] = row_map[runs[i, y.RUN_HEADER + r]]
    return nodes_kept, rows_kept
