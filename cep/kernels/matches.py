"""Matches: written down, chosen between by the skip strategy, and read back out of the tree of bound events.

Tested by: tests/engine/test_advance.py, tests/engine/test_against_oracle.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cep.kernels import layout as y
from cep.kernels.interpret import run_code
from cep.kernels.jit import bare


@bare
def emit(
    image: Any, rule: Any, columns: Any, nulls: Any, row: Any, runs: Any, run: Any, nodes: Any, kind: Any,
    detected: Any, out: Any, at: Any, machine: Any, counters: Any,
) -> None:  # fmt: skip
    """Write match number `at`. Measures speak of bound events only, so `row` may be any row of the key."""
    out[at, y.MATCH_RULE] = rule[y.R_NUMBER]
    out[at, y.MATCH_KEY] = columns[y.COLUMN_KEY, row]
    out[at, y.MATCH_NODE] = runs[run, y.RUN_NODE]
    out[at, y.MATCH_DETECTED] = detected
    out[at, y.MATCH_START_ROW] = runs[run, y.RUN_START_ROW]
    out[at, y.MATCH_KIND] = kind
    missing = np.int64(0)
    column = y.MATCH_HEADER
    flag = np.int64(1)
    for m in range(rule[y.R_MEASURES], rule[y.R_MEASURES_END], y.MEASURE_WIDTH):
        code, end, result = image[m + y.M_CODE], image[m + y.M_CODE_END], 2 * image[m + y.M_RESULT]
        run_code(image, code, end, columns, nulls, row, runs, run, nodes, machine, counters)
        out[at, column] = machine[result]
        if machine[result + 1] != 0:
            missing |= flag
        column += 1
        flag <<= np.int64(1)
    out[at, y.MATCH_NULLS] = missing


@bare
def bound_count(nodes: Any, node: Any) -> Any:
    """How many events end in this node."""
    count = 0
    while node >= 0:
        count += 1
        node = nodes[node, y.NODE_PREVIOUS]
    return count


@bare
def _resume_row(image: Any, rule: Any, nodes: Any, out: Any, match: Any) -> Any:
    """The skip strategy's cut: runs that started before this row are covered by the match."""
    skip, node = rule[y.R_SKIP], out[match, y.MATCH_NODE]
    if skip == y.SKIP_PAST_LAST:
        return nodes[node, y.NODE_ROW] + 1
    if skip == y.SKIP_TO_NEXT:
        return out[match, y.MATCH_START_ROW] + 1
    found = np.int64(-1)
    states = image[y.HEADER_STATES]
    while node >= 0:
        if image[states + nodes[node, y.NODE_STATE] * y.STATE_WIDTH + y.S_VARIABLE] == rule[y.R_SKIP_VARIABLE]:
            found = nodes[node, y.NODE_ROW]
            if skip == y.SKIP_TO_LAST:
                return found
        node = nodes[node, y.NODE_PREVIOUS]
    return found


@bare
def _swap(out: Any, i: Any, k: Any) -> None:
    if i != k:
        for c in range(out.shape[1]):
            out[i, c], out[k, c] = out[k, c], out[i, c]


@bare
def _preferred(image: Any, nodes: Any, out: Any, a: Any, b: Any) -> Any:
    """Whether match a comes before b: the earlier start, then the more events, then the earlier events one by one."""
    if out[a, y.MATCH_START_ROW] != out[b, y.MATCH_START_ROW]:
        return out[a, y.MATCH_START_ROW] < out[b, y.MATCH_START_ROW]
    if out[a, y.MATCH_BOUND] != out[b, y.MATCH_BOUND]:
        return out[a, y.MATCH_BOUND] > out[b, y.MATCH_BOUND]
    return _earlier_rows(image, nodes, out[a, y.MATCH_NODE], out[b, y.MATCH_NODE])


@bare
def _earlier_rows(image: Any, nodes: Any, x: Any, z: Any) -> Any:
    """Of two bindings of equal length: whether the one that ends in node x has the earlier events, one by one.

    With the same events, whether it has the earlier variables.
    """
    states = image[y.HEADER_STATES]
    before, before_by_variable, same_rows = False, False, True
    while x >= 0 and x != z:
        if nodes[x, y.NODE_ROW] != nodes[z, y.NODE_ROW]:
            before = nodes[x, y.NODE_ROW] < nodes[z, y.NODE_ROW]
            same_rows = False
        variable_x = image[states + nodes[x, y.NODE_STATE] * y.STATE_WIDTH + y.S_VARIABLE]
        variable_z = image[states + nodes[z, y.NODE_STATE] * y.STATE_WIDTH + y.S_VARIABLE]
        if variable_x != variable_z:
            before_by_variable = variable_x < variable_z
        x, z = nodes[x, y.NODE_PREVIOUS], nodes[z, y.NODE_PREVIOUS]
    return before_by_variable if same_rows else before


@bare
def same_bindings(image: Any, nodes: Any, x: Any, z: Any) -> Any:
    """Whether the ways to nodes x and z bind the same events to the same variables."""
    states = image[y.HEADER_STATES]
    while x != z:
        if x < 0 or z < 0 or nodes[x, y.NODE_ROW] != nodes[z, y.NODE_ROW]:
            return False
        variable_x = image[states + nodes[x, y.NODE_STATE] * y.STATE_WIDTH + y.S_VARIABLE]
        if variable_x != image[states + nodes[z, y.NODE_STATE] * y.STATE_WIDTH + y.S_VARIABLE]:
            return False
        x, z = nodes[x, y.NODE_PREVIOUS], nodes[z, y.NODE_PREVIOUS]
    return True


@bare
def _completed_before(image: Any, nodes: Any, runs: Any, a: Any, b: Any) -> Any:
    """Order of complete matches that are held back: by start, by completing event or deadline, then as `_preferred`."""
    if runs[a, y.RUN_START_ROW] != runs[b, y.RUN_START_ROW]:
        return runs[a, y.RUN_START_ROW] < runs[b, y.RUN_START_ROW]
    if runs[a, y.RUN_ORDINAL] != runs[b, y.RUN_ORDINAL]:
        return runs[a, y.RUN_ORDINAL] < runs[b, y.RUN_ORDINAL]
    if runs[a, y.RUN_EXPIRY] != runs[b, y.RUN_EXPIRY]:
        return runs[a, y.RUN_EXPIRY] < runs[b, y.RUN_EXPIRY]
    count_a, count_b = bound_count(nodes, runs[a, y.RUN_NODE]), bound_count(nodes, runs[b, y.RUN_NODE])
    if count_a != count_b:
        return count_a > count_b
    return _earlier_rows(image, nodes, runs[a, y.RUN_NODE], runs[b, y.RUN_NODE])


@bare
def _comes_before(image: Any, nodes: Any, rows: Any, held: Any, a: Any, b: Any) -> Any:
    """Of matches, or of runs that are `held` back as complete matches."""
    if held:
        return _completed_before(image, nodes, rows, a, b)
    return _preferred(image, nodes, rows, a, b)


@bare
def _sink(image: Any, nodes: Any, rows: Any, held: Any, first: Any, at: Any, end: Any) -> None:
    """Bring a row of the heap [first, end) below those that come after it."""
    while True:
        last, child = at, first + 2 * (at - first) + 1
        for below in range(child, min(child + 2, end)):
            if _comes_before(image, nodes, rows, held, last, below):
                last = below
        if last == at:
            return
        _swap(rows, at, last)
        at = last


@bare
def _sort(image: Any, nodes: Any, rows: Any, held: Any, first: Any, end: Any) -> None:
    """Bring rows [first, end) into their order, in O(n log n) comparisons: one event may complete thousands."""
    for at in range(first + (end - first) // 2 - 1, first - 1, -1):
        _sink(image, nodes, rows, held, first, at, end)
    for last in range(end - 1, first, -1):
        _swap(rows, first, last)
        _sink(image, nodes, rows, held, first, first, last)


@bare
def _close_before(runs: Any, end: Any, cut: Any) -> Any:
    """Close the runs of rows [1, end) that started before the cut; the start of the earliest that is left."""
    earliest = np.int64(y.FOREVER)
    for i in range(1, end):
        if runs[i, y.RUN_START_ROW] < cut:
            runs[i, y.RUN_WAITS] = 0
        elif runs[i, y.RUN_WAITS] != 0:
            earliest = min(earliest, runs[i, y.RUN_START_ROW])
    return earliest


@bare
def choose(image: Any, rule: Any, nodes: Any, out: Any, first: Any, count: Any, runs: Any, runs_count: Any) -> Any:
    """Apply the skip strategy to the matches [first, count) of one event or deadline; returns the new match count.

    Time-outs among them are no matches: they are kept and cover nothing. Runs that a match covers lose all waits.
    """
    kept = first
    for m in range(first, count):
        out[m, y.MATCH_BOUND] = bound_count(nodes, out[m, y.MATCH_NODE])
        if out[m, y.MATCH_KIND] == y.KIND_TIMEOUT:
            _swap(out, kept, m)
            kept += 1
    _sort(image, nodes, out, False, kept, count)
    cut = np.int64(-1)
    for m in range(kept, count):
        if out[m, y.MATCH_START_ROW] >= cut:
            _swap(out, kept, m)
            cut = max(cut, _resume_row(image, rule, nodes, out, kept))
            kept += 1
        elif out[m, y.MATCH_KIND] == y.KIND_BOTH:  # no match any more, but a time-out all the same
            out[m, y.MATCH_KIND] = y.KIND_TIMEOUT
            _swap(out, kept, m)
            kept += 1
    _close_before(runs, runs_count, cut)
    return kept


@bare
def settle(
    image: Any, rule: Any, columns: Any, nulls: Any, runs: Any, runs_count: Any, nodes: Any, detected: Any, out: Any,
    matches: Any, machine: Any, counters: Any,
) -> Any:  # fmt: skip
    """`skip … in order`: hand out complete matches, earliest start first, as long as no open run started earlier.

    They come to stand behind the open runs, in order. Returns (matches, full).
    """
    first, earliest = 1, np.int64(y.FOREVER)
    for i in range(1, runs_count):
        if runs[i, y.RUN_WAITS] != np.int64(y.COMPLETE):
            if runs[i, y.RUN_WAITS] != 0:
                earliest = min(earliest, runs[i, y.RUN_START_ROW])
            _swap(runs, first, i)
            first += 1
    _sort(image, nodes, runs, True, first, runs_count)
    cut = np.int64(-1)
    for best in range(first, runs_count):
        if runs[best, y.RUN_START_ROW] < cut:
            runs[best, y.RUN_WAITS] = 0
            continue
        if earliest < runs[best, y.RUN_START_ROW]:
            return matches, False
        if matches >= out.shape[0]:
            return matches, True
        last = nodes[runs[best, y.RUN_NODE], y.NODE_ROW]
        emit(
            image, rule, columns, nulls, last, runs, best, nodes, y.KIND_MATCH, detected, out, matches, machine,
            counters,
        )  # fmt: skip
        cut = max(cut, _resume_row(image, rule, nodes, out, matches))
        matches += 1
        runs[best, y.RUN_WAITS] = 0
        if earliest < cut:
            earliest = _close_before(runs, first, cut)
    return matches, False


@bare
def match_lengths(matches: Any, nodes: Any, lengths: Any) -> None:
    """Fill lengths int64[M] with the number of events that each match has bound."""
    for m in range(matches.shape[0]):
        lengths[m] = bound_count(nodes, matches[m, y.MATCH_NODE])


@bare
def match_hashes(matches: Any, offsets: Any, rows: Any, variables: Any, hashes: Any) -> None:
    """Fill hashes uint64[M]: equal for matches of one rule that bind the same rows to the same variables."""
    prime = np.uint64(0x100000001B3)
    for m in range(matches.shape[0]):
        h = np.uint64(0xCBF29CE484222325) ^ np.uint64(matches[m, y.MATCH_RULE])
        h *= prime
        for k in range(offsets[m], offsets[m + 1]):
            h = (h ^ np.uint64(rows[k])) * prime
            h = (h ^ np.uint64(variables[k])) * prime
        hashes[m] = h ^ (h >> np.uint64(29))


@bare
def match_bindings(image: Any, matches: Any, nodes: Any, offsets: Any, rows: Any, variables: Any) -> None:
    """Walk each match back through its nodes: rows and variables [offsets[m], offsets[m + 1]) in binding order."""
    states = image[y.HEADER_STATES]
    for m in range(matches.shape[0]):
        at = offsets[m + 1]
        node = matches[m, y.MATCH_NODE]
        while node >= 0:
            at -= 1
            rows[at] = nodes[node, y.NODE_ROW]
            variables[at] = image[states + nodes[node, y.NODE_STATE] * y.STATE_WIDTH + y.S_VARIABLE]
            node = nodes[node, y.NODE_PREVIOUS]
