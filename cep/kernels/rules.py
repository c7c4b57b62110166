"""All rules of a call, one after the other, each with the matcher that will do for it (plain.py, advance.py).

A rule that no new event concerns and that has no runs costs a look at its conditions' bitmaps.
Tested by: tests/engine/test_advance.py, tests/engine/test_starts.py, tests/engine/test_against_oracle.py
"""

from __future__ import annotations

from typing import Any

from cep.kernels import layout as y
from cep.kernels.advance import advance_rule
from cep.kernels.arrange import count_ordinals, queue_rows
from cep.kernels.jit import bare
from cep.kernels.plain import advance_plain


@bare
def _number_stream(columns: Any, types: Any, first_row: Any, stream_count: Any) -> None:
    """Write the new events' positions in a stream into the table, and the counts by key."""
    for key in range(stream_count.shape[0]):
        stream_count[key] = 0
    count_ordinals(columns, types, first_row, stream_count)


@bare
def advance_rules(
    image: Any, rules: Any, relevance_first: Any, relevance: Any, streams: Any, start_runs: Any, columns: Any,
    nulls: Any, bitmaps: Any, first_row: Any, in_runs: Any, in_keys: Any, bounds: Any, watermark: Any, start_keys: Any,
    start_rows: Any, start_counts: Any, start_bits: Any, start_columns: Any, start_bounds: Any, stream_count: Any,
    queue: Any, work: Any, picked: Any, trail: Any, machine: Any, nodes: Any, out: Any, out_runs: Any, out_keys: Any,
    out_rules: Any, steps: Any, cursor: Any, counters: Any, held: Any,
) -> Any:  # fmt: skip
    """Carry each rule over the new events and close what is over by the watermark; see `advance.advance_rule`.

    Shapes: rules int64[R, RULE_WIDTH]; relevance_first int32[R + 1] and relevance as in nfa/program.py; streams
    uint8[streams, event types]; start_runs int64[R, W]; the runs of rule r are in_runs[bounds[r] : bounds[r + 1]]. Of
    what rules share of how they begin (`plain.advance_plain`) start_*[start_bounds[s] : start_bounds[s + 1]] is that of
    prefix s. Scratch are stream_count int32[keys] and queue int32[new rows]. Filled are out_rules int32, the rule of
    each row of out_runs, and steps int64[R], what each rule has added to COUNT_STEPS.
    Returns: FULL_NOT when all is done, else what to enlarge before the next call.
    """
    new_count = columns.shape[1] - first_row
    while cursor[y.CURSOR_RULE] < rules.shape[0]:
        number = cursor[y.CURSOR_RULE]
        rule, lo, hi = rules[number], bounds[number], bounds[number + 1]
        queued = queue_rows(
            bitmaps, relevance[relevance_first[number] : relevance_first[number + 1]], first_row, new_count, queue
        )
        if queued > 0 or lo < hi:
            if cursor[y.CURSOR_QUEUE] == 0 and cursor[y.CURSOR_RUN] == 0:
                cursor[y.CURSOR_FIRST_OUT], cursor[y.CURSOR_FIRST_STEP] = cursor[y.CURSOR_OUT], counters[y.COUNT_STEPS]
            stream = rule[y.R_COUNTS] - 1
            if stream >= 0 and stream + 1 != cursor[y.CURSOR_STREAM]:
                _number_stream(columns, streams[stream], first_row, stream_count)
                cursor[y.CURSOR_STREAM] = stream + 1
            if rule[y.R_PLAIN] != 0:
                first, end = start_bounds[0], start_bounds[0]
                if rule[y.R_SHARES] != 0:
                    first, end = start_bounds[rule[y.R_SHARES] - 1], start_bounds[rule[y.R_SHARES]]
                full = advance_plain(
                    image, rule, columns, nulls, bitmaps, first_row, queue[:queued], start_runs[number],
                    in_runs[lo:hi], in_keys[lo:hi], watermark, work, nodes, out, out_runs, out_keys, picked,
                    start_keys[first:end], start_rows[first:end], start_counts[first:end], start_bits,
                    start_columns[first:end], machine, cursor, counters, held,
                )  # fmt: skip
            else:
                full = advance_rule(
                    image, rule, columns, nulls, bitmaps, first_row, stream_count, queue[:queued], start_runs[number],
                    in_runs[lo:hi], in_keys[lo:hi], watermark, work, nodes, out, out_runs, out_keys, trail, machine,
                    cursor, counters, held,
                )  # fmt: skip
            if full != y.FULL_NOT:
                return full
            for i in range(cursor[y.CURSOR_FIRST_OUT], cursor[y.CURSOR_OUT]):
                out_rules[i] = number
            steps[number] = counters[y.COUNT_STEPS] - cursor[y.CURSOR_FIRST_STEP]
        cursor[y.CURSOR_RULE] += 1
        cursor[y.CURSOR_QUEUE] = cursor[y.CURSOR_RUN] = 0
    return y.FULL_NOT
