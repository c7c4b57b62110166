"""Matches: write them, choose between them by the skip strategy, and read them from the tree of bound events.

Tested by: tests/engine/test_advance.py, tests/engine/test_against_oracle.py
"""

import numpy as np

from cep.kernels import layout as y
from cep.kernels.expressions.interpret import run_code
from cep.kernels.jit import bare
from cep.kernels.layout import Int32, Int64, UInt64, int64
from cep.kernels.records import Counts, Events, Rule, Work
from cep.kernels.siphash import begin, finish, take_word

_MATCHES, _WAITING_RUNS = False, True  # the kinds of rows that are sorted


@bare
def emit(rule: Rule, events: Events, row: int, work: Work, run: int, index: int, kind: int, detected_ms: int) -> None:
    """Write a match of a run as number `index`, with the KIND_* `kind`, at the time `detected_ms` (ms, UTC).

    `row` is the row of the last bound event, from which measures look back.
    """
    matches = work.matches
    matches[index, y.MATCH_RULE] = rule.words[y.R_NUMBER]
    matches[index, y.MATCH_KEY] = events.columns[y.COLUMN_KEY, row]
    matches[index, y.MATCH_NODE] = work.runs[run, y.RUN_NODE]
    matches[index, y.MATCH_DETECTED] = detected_ms
    matches[index, y.MATCH_START_ROW] = work.runs[run, y.RUN_START_ROW]
    matches[index, y.MATCH_KIND] = kind
    null_bits = int64(0)
    column = y.MATCH_HEADER
    null_bit = int64(1)
    for m in range(rule.words[y.R_MEASURES], rule.words[y.R_MEASURES_END], y.MEASURE_WIDTH):
        code, end, result = rule.image[m + y.M_CODE], rule.image[m + y.M_CODE_END], 2 * rule.image[m + y.M_RESULT]
        run_code(rule.image, code, end, events, row, work, run)
        matches[index, column] = work.registers[result]  # a value; its null flag follows
        if work.registers[result + 1] != 0:
            null_bits |= null_bit
        column += 1
        null_bit <<= int64(1)
    matches[index, y.MATCH_NULLS] = null_bits


@bare
def note_evicted(rule: Rule, key: int, work: Work, counters_before: Int64, full: int, count: int) -> tuple[int, int]:
    """Write a row after `count` matches that notes how many runs of the key were evicted at its limits, if any were.

    Shapes: counters_before int64[COUNTERS], as they were before the key. Returns: (`full`, or FULL_MATCHES if the row
    does not fit; the new count of matches).
    """
    matches = work.matches
    evicted = work.counters[y.COUNT_EVICTED] - counters_before[y.COUNT_EVICTED]
    if full != y.NOT_FULL or evicted == 0:
        return full, count
    if count >= matches.shape[0]:
        return y.FULL_MATCHES, count
    for c in range(matches.shape[1]):
        matches[count, c] = 0
    matches[count, y.MATCH_RULE] = rule.words[y.R_NUMBER]
    matches[count, y.MATCH_KEY] = key
    matches[count, y.MATCH_NODE] = -1
    matches[count, y.MATCH_KIND] = y.KIND_EVICTED
    matches[count, y.MATCH_COUNT] = evicted  # in a match this column counts its events
    return y.NOT_FULL, count + 1


@bare
def bound_count(nodes: Int64, node: int) -> int:
    """Return the number of events on the path that ends in this node."""
    count = 0
    while node >= 0:
        count += 1
        node = nodes[node, y.NODE_PREVIOUS]
    return count


@bare
def _resume_row(rule: Rule, work: Work, match: int) -> int:
    """Return the row from which runs may continue after a match. The skip strategy drops runs with earlier starts."""
    skip, node = rule.words[y.R_SKIP], work.matches[match, y.MATCH_NODE]
    if skip == y.SKIP_PAST_LAST:
        return work.nodes[node, y.NODE_ROW] + 1
    if skip == y.SKIP_TO_NEXT:
        return work.matches[match, y.MATCH_START_ROW] + 1
    resume_row = int64(-1)
    states = rule.image[y.HEADER_STATES]
    while node >= 0:  # from the last event back: for SKIP_TO_FIRST, the first event of the variable is found last
        nfa_state = states + work.nodes[node, y.NODE_STATE] * y.STATE_WIDTH
        if rule.image[nfa_state + y.S_VARIABLE] == rule.words[y.R_SKIP_VARIABLE]:
            resume_row = work.nodes[node, y.NODE_ROW]
            if skip == y.SKIP_TO_LAST:
                return resume_row
        node = work.nodes[node, y.NODE_PREVIOUS]
    return resume_row


@bare
def _precedence(rule: Rule, nodes: Int64, node: int) -> int:
    """Compute the rank of a match among the matches of one start: more events come first.

    With `skip to` a variable, a match drops the matches that begin before the variable's event. A match without the
    variable drops nothing, but another match could drop it first. So FOREVER is added to its rank.
    """
    skips_to_variable = rule.words[y.R_SKIP] >= y.SKIP_TO_FIRST
    states = rule.image[y.HEADER_STATES]
    count, binds_variable = 0, not skips_to_variable
    while node >= 0:
        count += 1
        if skips_to_variable:
            nfa_state = states + nodes[node, y.NODE_STATE] * y.STATE_WIDTH
            binds_variable = binds_variable or rule.image[nfa_state + y.S_VARIABLE] == rule.words[y.R_SKIP_VARIABLE]
        node = nodes[node, y.NODE_PREVIOUS]
    return count if binds_variable else count + y.FOREVER


@bare
def _swap(rows: Int64, i: int, k: int) -> None:
    if i != k:
        for c in range(rows.shape[1]):
            rows[i, c], rows[k, c] = rows[k, c], rows[i, c]


@bare
def _preferred(image: Int64, nodes: Int64, matches: Int64, a: int, b: int) -> bool:
    """Return True if match a precedes b: earlier start, then _precedence, then earlier events one by one."""
    if matches[a, y.MATCH_START_ROW] != matches[b, y.MATCH_START_ROW]:
        return matches[a, y.MATCH_START_ROW] < matches[b, y.MATCH_START_ROW]
    if matches[a, y.MATCH_COUNT] != matches[b, y.MATCH_COUNT]:
        return matches[a, y.MATCH_COUNT] > matches[b, y.MATCH_COUNT]
    return _earlier_rows(image, nodes, matches[a, y.MATCH_NODE], matches[b, y.MATCH_NODE])


@bare
def _earlier_rows(image: Int64, nodes: Int64, node_a: int, node_b: int) -> bool:
    """Return True if the path to node_a has earlier events than the path to node_b, compared one by one from the first.

    A node is an event that a variable has bound, with a link to the previous node; the image (the compiled rules) tells
    the variable of a node's state. The paths have the same length. If their events are the same, the variables are
    compared instead. The loop goes back from the last event, and each earlier difference replaces the later one.
    """
    states = image[y.HEADER_STATES]
    before, before_by_variable, same_rows = False, False, True
    while node_a >= 0 and node_a != node_b:
        if nodes[node_a, y.NODE_ROW] != nodes[node_b, y.NODE_ROW]:
            before = nodes[node_a, y.NODE_ROW] < nodes[node_b, y.NODE_ROW]
            same_rows = False
        variable_a = image[states + nodes[node_a, y.NODE_STATE] * y.STATE_WIDTH + y.S_VARIABLE]
        variable_b = image[states + nodes[node_b, y.NODE_STATE] * y.STATE_WIDTH + y.S_VARIABLE]
        if variable_a != variable_b:
            before_by_variable = variable_a < variable_b
        node_a, node_b = nodes[node_a, y.NODE_PREVIOUS], nodes[node_b, y.NODE_PREVIOUS]
    return before_by_variable if same_rows else before


@bare
def same_bindings(image: Int64, nodes: Int64, node_a: int, node_b: int) -> bool:
    """Return True if the paths to node_a and node_b bind the same events to the same variables."""
    states = image[y.HEADER_STATES]
    while node_a != node_b:
        if node_a < 0 or node_b < 0 or nodes[node_a, y.NODE_ROW] != nodes[node_b, y.NODE_ROW]:
            return False
        variable_a = image[states + nodes[node_a, y.NODE_STATE] * y.STATE_WIDTH + y.S_VARIABLE]
        if variable_a != image[states + nodes[node_b, y.NODE_STATE] * y.STATE_WIDTH + y.S_VARIABLE]:
            return False
        node_a, node_b = nodes[node_a, y.NODE_PREVIOUS], nodes[node_b, y.NODE_PREVIOUS]
    return True


@bare
def _completed_before(rule: Rule, nodes: Int64, runs: Int64, a: int, b: int) -> bool:
    """Return True if held-back run a is emitted before b. Both are complete, and wait for runs that started earlier.

    The order is by start, then by the event that completed the run (RUN_ORDINAL), then by the deadline that completed
    it (RUN_EXPIRY; FOREVER if none did), then by rank (the longer match first), then by events (the earlier first).
    """
    if runs[a, y.RUN_START_ROW] != runs[b, y.RUN_START_ROW]:
        return runs[a, y.RUN_START_ROW] < runs[b, y.RUN_START_ROW]
    if runs[a, y.RUN_ORDINAL] != runs[b, y.RUN_ORDINAL]:
        return runs[a, y.RUN_ORDINAL] < runs[b, y.RUN_ORDINAL]
    if runs[a, y.RUN_EXPIRY] != runs[b, y.RUN_EXPIRY]:
        return runs[a, y.RUN_EXPIRY] < runs[b, y.RUN_EXPIRY]
    rank_a = _precedence(rule, nodes, runs[a, y.RUN_NODE])
    rank_b = _precedence(rule, nodes, runs[b, y.RUN_NODE])
    if rank_a != rank_b:
        return rank_a > rank_b
    return _earlier_rows(rule.image, nodes, runs[a, y.RUN_NODE], runs[b, y.RUN_NODE])


@bare
def _comes_before(rule: Rule, nodes: Int64, rows: Int64, are_held_back: bool, a: int, b: int) -> bool:
    """Return True if row a precedes b. Rows are matches, or with are_held_back complete runs."""
    if are_held_back:
        return _completed_before(rule, nodes, rows, a, b)
    return _preferred(rule.image, nodes, rows, a, b)


@bare
def _sink(rule: Rule, nodes: Int64, rows: Int64, are_held_back: bool, first: int, index: int, end: int) -> None:
    """Move row `index` of the heap [first, end) below the rows that follow it in the order."""
    while True:
        last, child = index, first + 2 * (index - first) + 1
        for below in range(child, min(child + 2, end)):
            if _comes_before(rule, nodes, rows, are_held_back, last, below):
                last = below
        if last == index:
            return
        _swap(rows, index, last)
        index = last


@bare
def _sort(rule: Rule, nodes: Int64, rows: Int64, are_held_back: bool, first: int, end: int) -> None:
    """Sort rows [first, end), in O(n log n) comparisons: one event may complete thousands."""
    for index in range(first + (end - first) // 2 - 1, first - 1, -1):
        _sink(rule, nodes, rows, are_held_back, first, index, end)
    for last in range(end - 1, first, -1):
        _swap(rows, first, last)
        _sink(rule, nodes, rows, are_held_back, first, first, last)


@bare
def _close_before(runs: Int64, end: int, resume_row: int) -> int:
    """Close the runs of rows [1, end) that started before resume_row; return the earliest remaining start."""
    earliest = int64(y.FOREVER)
    for i in range(1, end):
        if runs[i, y.RUN_START_ROW] < resume_row:
            runs[i, y.RUN_OPEN_WAITS] = 0
        elif runs[i, y.RUN_OPEN_WAITS] != 0:
            earliest = min(earliest, runs[i, y.RUN_START_ROW])
    return earliest


@bare
def choose_matches(rule: Rule, work: Work, first: int, count: int, runs_count: int) -> int:
    """Apply the skip strategy to the matches [first, count) of one event or deadline; return the new match count.

    After a match, matching goes on at resume_row: other matches and runs that begin before that row are dropped.
    Time-outs stay, and drop nothing. Rows that stay are swapped to [first, end). MATCH_COUNT gets a rank, to sort by.
    """
    matches = work.matches
    end = first
    for m in range(first, count):
        matches[m, y.MATCH_COUNT] = _precedence(rule, work.nodes, matches[m, y.MATCH_NODE])
        if matches[m, y.MATCH_KIND] == y.KIND_TIMEOUT:
            _swap(matches, end, m)
            end += 1
    _sort(rule, work.nodes, matches, _MATCHES, end, count)
    resume_row = int64(-1)
    for m in range(end, count):
        if matches[m, y.MATCH_START_ROW] >= resume_row:
            _swap(matches, end, m)
            resume_row = max(resume_row, _resume_row(rule, work, end))
            end += 1
        elif matches[m, y.MATCH_KIND] == y.KIND_BOTH:  # no longer a match, but still a time-out
            matches[m, y.MATCH_KIND] = y.KIND_TIMEOUT
            _swap(matches, end, m)
            end += 1
    _close_before(work.runs, runs_count, resume_row)
    return end


@bare
def emit_in_order(rule: Rule, events: Events, detected_ms: int, work: Work, counts: Counts) -> Counts:
    """Emit complete matches for `skip … in order`: earliest start first, as long as no open run started earlier.

    RUN_OPEN_WAITS of a run is 0 if it is closed, and HELD_BACK if it is a match that waits to be emitted. The matches
    are first moved after all other runs and sorted. A match ends runs and matches that begin before its resume_row.
    """
    runs, matches = work.runs, counts.matches
    first, earliest = 1, int64(y.FOREVER)  # row 0 is the start run; held-back matches move to the rows from `first` on
    for i in range(1, counts.runs):
        if runs[i, y.RUN_OPEN_WAITS] != int64(y.HELD_BACK):
            if runs[i, y.RUN_OPEN_WAITS] != 0:
                earliest = min(earliest, runs[i, y.RUN_START_ROW])
            _swap(runs, first, i)
            first += 1
    _sort(rule, work.nodes, runs, _WAITING_RUNS, first, counts.runs)
    resume_row = int64(-1)
    for best in range(first, counts.runs):
        if runs[best, y.RUN_START_ROW] < resume_row:
            runs[best, y.RUN_OPEN_WAITS] = 0
            continue
        if earliest < runs[best, y.RUN_START_ROW]:
            break  # an open run that started earlier may still match
        if matches >= work.matches.shape[0]:
            return Counts(counts.runs, counts.nodes, matches, y.FULL_MATCHES)
        last = work.nodes[runs[best, y.RUN_NODE], y.NODE_ROW]
        emit(rule, events, last, work, best, matches, y.KIND_MATCH, detected_ms)
        resume_row = max(resume_row, _resume_row(rule, work, matches))
        matches += 1
        runs[best, y.RUN_OPEN_WAITS] = 0
        if earliest < resume_row:
            earliest = _close_before(runs, first, resume_row)  # the earliest start of the runs that stay open
    return Counts(counts.runs, counts.nodes, matches, y.NOT_FULL)


@bare
def match_lengths(matches: Int64, nodes: Int64, lengths: Int64) -> None:
    """Fill lengths int64[M] with the number of events that each match has bound."""
    for m in range(matches.shape[0]):
        lengths[m] = bound_count(nodes, matches[m, y.MATCH_NODE])


@bare
def match_hashes(matches: Int64, offsets: Int64, rows: Int64, variables: Int32, key: UInt64, hashes: UInt64) -> None:
    """Fill hashes uint64[M]: equal for matches of one rule that bind the same rows to the same variables.

    The hash has a key (siphash.py), so that a sender cannot craft a match that looks like a repeat of another one.
    """
    for m in range(matches.shape[0]):
        sip = take_word(begin(key), np.uint64(matches[m, y.MATCH_RULE]))
        for k in range(offsets[m], offsets[m + 1]):
            sip = take_word(sip, np.uint64(rows[k]) << np.uint64(24) | np.uint64(variables[k]))
        hashes[m] = finish(take_word(sip, np.uint64(offsets[m + 1] - offsets[m])))


@bare
def match_bindings(image: Int64, matches: Int64, nodes: Int64, offsets: Int64, rows: Int64, variables: Int32) -> None:
    """Walk each match back through its nodes: fill rows and variables [offsets[m], offsets[m + 1]) in binding order."""
    states = image[y.HEADER_STATES]
    for m in range(matches.shape[0]):
        index = offsets[m + 1]
        node = matches[m, y.MATCH_NODE]
        while node >= 0:
            index -= 1
            rows[index] = nodes[node, y.NODE_ROW]
            variables[index] = image[states + nodes[node, y.NODE_STATE] * y.STATE_WIDTH + y.S_VARIABLE]
            node = nodes[node, y.NODE_PREVIOUS]
