"""A keyed state ↔ the bytes of many pages: each column of each page in as few bytes as it needs.

    column of a page:  | width of a value + 16 × width of the base, u8 | base | value - base, for each row |

Numbers are little-endian; the base is the least value, with its sign in the lowest bit; a width is 0 to 8 bytes, so
that a column that is the same in all rows of a page costs no byte a row. Columns of a page stand one after the other.
What a page holds, and in which order, is said in state/packed.py.

Shapes, throughout: P pages; bounds int64[4, P + 1] say where the keys, runs, nodes and events of each page begin among
those of all pages, and where the last ones end. Rows as layout.py has them: runs int64[n, W], nodes int64[m, 3]; events
int64[C, E] by column, one of them the length of its id; `line` int64[as many as the rows of any page], scratch.
Tested by: tests/kernels/test_packed.py, tests/state/test_packed.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cep.kernels import layout as y
from cep.kernels.jit import bare, inlined
from cep.kernels.parts import COUNTS, EVENTS, KEYS, NODES, RUNS, move_nodes

COUNT_MAX = 1 << 31  # of the rows of a page, whose bytes say anything at all
_LINE_BYTES_MAX = 9  # of a column without its rows
_BYTE = np.uint64(255)
_EIGHT = np.uint64(8)
_ONE = np.uint64(1)


@inlined
def _width(number: Any) -> Any:
    """How many bytes an unsigned number needs; none for 0."""
    width, value = 0, number
    while value != np.uint64(0):
        value >>= _EIGHT
        width += 1
    return width


@inlined
def _folded(value: Any) -> Any:
    """A signed number as an unsigned one, near 0 where it is near 0."""
    return (np.uint64(value) << _ONE) ^ np.uint64(value >> 63)


@inlined
def _unfolded(value: Any) -> Any:
    """What `_folded` was given."""
    return np.int64(value >> _ONE) ^ -np.int64(value & _ONE)


@bare
def put_line(line: Any, count: Any, out: Any, at: Any) -> Any:
    """Write a column, line[:count], into out uint8[bytes] from `at` on; returns where it ends."""
    least = most = line[0] if count > 0 else np.int64(0)
    for i in range(1, count):
        least = min(least, line[i])
        most = max(most, line[i])
    # Modulo 2**64 the difference is right however far apart the two are.
    width, base, bottom = _width(np.uint64(most) - np.uint64(least)), _folded(least), np.uint64(least)
    base_width = _width(base)
    out[at] = width + 16 * base_width
    at += 1
    for _ in range(base_width):
        out[at] = np.uint8(base & _BYTE)
        base >>= _EIGHT
        at += 1
    if width == 0:
        return at
    own = out[at : at + width * count]  # numbered from 0, so that the compiler sees that no number is negative
    if width == 1:
        for i in range(count):
            own[i] = np.uint8(np.uint64(line[i]) - bottom)
    elif width == 2:
        for i in range(count):
            value = np.uint64(line[i]) - bottom
            own[2 * i], own[2 * i + 1] = np.uint8(value & _BYTE), np.uint8((value >> _EIGHT) & _BYTE)
    else:
        for i in range(count):
            value = np.uint64(line[i]) - bottom
            for k in range(width):
                own[i * width + k] = np.uint8(value & _BYTE)
                value >>= _EIGHT
    return at + width * count


@bare
def get_line(data: Any, at: Any, end: Any, line: Any, first: Any, count: Any) -> Any:
    """Read what `put_line` has written into line[first:first + count]; returns where it ends.

    -1 if it does not end before data[end], or `at` is -1 already: what was read then means nothing.
    """
    if at < 0 or at >= end:
        return -1
    width, base_width = np.int64(data[at]) & 15, np.int64(data[at]) >> 4
    at += 1
    if width > 8 or base_width > 8 or at + base_width + width * count > end:
        return -1
    folded, shift = np.uint64(0), np.uint64(0)
    for _ in range(base_width):
        folded |= np.uint64(data[at]) << shift
        shift += _EIGHT
        at += 1
    least = np.uint64(_unfolded(folded))
    found, own = line[first : first + count], data[at : at + width * count]
    if width == 0:
        for i in range(count):
            found[i] = np.int64(least)
    elif width == 1:
        for i in range(count):
            found[i] = np.int64(least + np.uint64(own[i]))
    elif width == 2:
        for i in range(count):
            found[i] = np.int64(least + (np.uint64(own[2 * i]) | np.uint64(own[2 * i + 1]) << _EIGHT))
    else:
        for i in range(count):
            value, shift = np.uint64(0), np.uint64(0)
            for k in range(width):
                value |= np.uint64(own[i * width + k]) << shift
                shift += _EIGHT
            found[i] = np.int64(least + value)
    return at + width * count


# -------------------------------------------------------------------------------------------------------- write


@bare
def write_pages(
    head: Any, bounds: Any, key_order: Any, run_order: Any, node_order: Any, event_order: Any,
    key_place: Any, node_place: Any, event_place: Any, key_offsets: Any, runs: Any, run_rule: Any, run_key: Any,
    row_registers: Any, nodes: Any, event_key: Any, events: Any, texts: Any,
    line: Any, over: Any, never: Any, out: Any, starts: Any, cursor: Any, first: Any,
) -> Any:  # fmt: skip
    """Write the pages from `first` on into out uint8[bytes]: head, counts, rows and lengths; then room for the texts.

    Orders, places and row_registers are as in parts.py, of which each page is a part. key_offsets int64[K + 1];
    events int64[C, E], whose first column is not looked at: it is event_key int32[E]; texts int64[T] the columns of
    events that are lengths of texts.
    Out: over int64[P] when the first run of each page is over, ms UTC, before `never`, which it is without runs; starts
    int64[P + 1] where each page begins, the first one 0 before; cursor int64[P] where its texts do.
    Returns the page that there was no room for; P if none.
    """
    width = runs.shape[1]
    for p in range(first, bounds.shape[1] - 1):
        at = starts[p]
        sizes = bounds[KEYS, p + 1] - bounds[KEYS, p], bounds[RUNS, p + 1] - bounds[RUNS, p]
        more = bounds[NODES, p + 1] - bounds[NODES, p], bounds[EVENTS, p + 1] - bounds[EVENTS, p]
        text_bytes = _text_bytes(p, bounds, key_order, key_offsets, event_order, events, texts)
        lines = COUNTS + width + 2 + y.NODE_WIDTH + events.shape[0] + 1
        numbers = COUNTS + sizes[0] + sizes[1] * (width + 2) + more[0] * y.NODE_WIDTH + more[1] * events.shape[0]
        if at + head.shape[0] + _LINE_BYTES_MAX * lines + 8 * numbers + text_bytes > out.shape[0]:
            return p
        for k in range(head.shape[0]):
            out[at + k] = head[k]
        at += head.shape[0]
        for count in (sizes[0], sizes[1], more[0], more[1]):
            line[0] = count
            at = put_line(line, 1, out, at)
        over[p] = never
        for column in range(width + 2):
            _run_column(
                column, bounds[RUNS, p], sizes[1], run_order, runs, run_rule, run_key, row_registers,
                key_place, node_place, event_place, line,
            )  # fmt: skip
            at = put_line(line, sizes[1], out, at)
            if column == y.RUN_EXPIRY:
                for i in range(sizes[1]):
                    over[p] = min(over[p], line[i], never - 1)
        for column in range(y.NODE_WIDTH):
            _node_column(column, bounds[NODES, p], more[0], node_order, nodes, node_place, event_place, line)
            at = put_line(line, more[0], out, at)
        for column in range(events.shape[0]):
            for i in range(more[1]):
                row = event_order[bounds[EVENTS, p] + i]
                line[i] = key_place[event_key[row]] if column == 0 else events[column, row]
            at = put_line(line, more[1], out, at)
        for i in range(sizes[0]):
            key = key_order[bounds[KEYS, p] + i]
            line[i] = key_offsets[key + 1] - key_offsets[key]
        cursor[p] = put_line(line, sizes[0], out, at)
        starts[p + 1] = cursor[p] + text_bytes
    return bounds.shape[1] - 1


@bare
def _text_bytes(
    p: Any, bounds: Any, key_order: Any, key_offsets: Any, event_order: Any, events: Any, texts: Any
) -> Any:
    """The bytes of all texts of a page."""
    found = 0
    for at in range(bounds[KEYS, p], bounds[KEYS, p + 1]):
        found += key_offsets[key_order[at] + 1] - key_offsets[key_order[at]]
    for t in range(texts.shape[0]):
        for at in range(bounds[EVENTS, p], bounds[EVENTS, p + 1]):
            found += events[texts[t], event_order[at]]
    return found


@bare
def _run_column(
    column: Any, first: Any, count: Any, run_order: Any, runs: Any, run_rule: Any, run_key: Any, row_registers: Any,
    key_place: Any, node_place: Any, event_place: Any, line: Any,
) -> None:  # fmt: skip
    """A column of the runs of a page, then their rule and key; what points to something, to its place in the page."""
    width, register = runs.shape[1], column - y.RUN_HEADER
    if column == width:
        for i in range(count):
            line[i] = run_rule[run_order[first + i]]
    elif column == width + 1:
        for i in range(count):
            line[i] = key_place[run_key[run_order[first + i]]]
    elif column == y.RUN_NODE:
        for i in range(count):
            line[i] = node_place[runs[run_order[first + i], column]]
    elif column == y.RUN_START_ROW:
        for i in range(count):
            line[i] = event_place[runs[run_order[first + i], column]]
    else:
        for i in range(count):
            line[i] = runs[run_order[first + i], column]
    if 0 <= register < row_registers.shape[1]:
        for i in range(count):
            if line[i] >= 0 and row_registers[run_rule[run_order[first + i]], register] != 0:
                line[i] = event_place[line[i]]


@bare
def _node_column(
    column: Any, first: Any, count: Any, node_order: Any, nodes: Any, node_place: Any, event_place: Any, line: Any
) -> None:
    """A column of the nodes of a page, with what they point to by its place in the page."""
    for i in range(count):
        node = node_order[first + i]
        value = nodes[node, column]
        if column == y.NODE_STATE:
            line[i] = value if nodes[node, y.NODE_ROW] >= 0 else node_place[value]
        elif value < 0:
            line[i] = value
        else:
            line[i] = event_place[value] if column == y.NODE_ROW else node_place[value]


@bare
def write_texts(content: Any, offsets: Any, bounds: Any, order: Any, out: Any, cursor: Any) -> None:
    """Write a text for each row of each page, from its cursor on, which moves on: content[offsets[i]:offsets[i + 1]].

    Shapes: bounds int64[P + 1] and order int64[rows] of the rows that have the text.
    """
    for p in range(bounds.shape[0] - 1):
        to = cursor[p]
        for at in range(bounds[p], bounds[p + 1]):
            for i in range(offsets[order[at]], offsets[order[at] + 1]):
                out[to] = content[i]
                to += 1
        cursor[p] = to


# --------------------------------------------------------------------------------------------------------- read


@bare
def read_bounds(data: Any, ends: Any, cursor: Any, bounds: Any, line: Any) -> Any:
    """Read how many rows each page has. Page p ends before data[ends[p]]; its cursor, behind the head, moves on.

    Shapes: line int64[1] scratch; out bounds, the first of each kind 0 before. Returns how many rows of a kind a page
    has at most, at least 1; -1 if the bytes do not say it.
    """
    most = 1
    for p in range(ends.shape[0]):
        at = cursor[p]
        for which in range(COUNTS):
            at = get_line(data, at, ends[p], line, 0, 1)
            if at < 0 or not 0 <= line[0] <= COUNT_MAX:
                return -1
            bounds[which, p + 1] = bounds[which, p] + line[0]
            most = max(most, line[0])
        cursor[p] = at
    return most


@bare
def read_rows(
    data: Any, ends: Any, cursor: Any, bounds: Any, row_registers: Any, line: Any, raw: Any, runs: Any, run_rule: Any,
    run_key: Any, nodes: Any, event_key: Any, events: Any, has: Any, lengths: Any, rule_ends: Any,
) -> Any:  # fmt: skip
    """Read the rows of all pages, and let them point to each other among those of all pages.

    Shapes: raw int64[n, W + 2] scratch; out runs int64[n, W], run_rule and run_key int32[n], by rule, then page;
    event_key int32[E]; events int64[C · E], column by column; has uint8[C] which columns are not 0 everywhere; lengths
    int64[K] of the keys; rule_ends int64[rules + 1], zeros before. Returns whether the bytes add up.
    """
    width, columns, rows_count = runs.shape[1], has.shape[0], event_key.shape[0]
    for p in range(ends.shape[0]):
        at, end = cursor[p], ends[p]
        first, count = bounds[RUNS, p], bounds[RUNS, p + 1] - bounds[RUNS, p]
        for column in range(width + 2):
            at = get_line(data, at, end, line, 0, count)
            for i in range(count):
                raw[first + i, column] = line[i]
        first_node, nodes_count = bounds[NODES, p], bounds[NODES, p + 1] - bounds[NODES, p]
        for column in range(y.NODE_WIDTH):
            at = get_line(data, at, end, line, 0, nodes_count)
            for i in range(nodes_count):
                nodes[first_node + i, column] = line[i]
        first_event, events_count = bounds[EVENTS, p], bounds[EVENTS, p + 1] - bounds[EVENTS, p]
        for column in range(columns):
            start = column * rows_count + first_event
            at = get_line(data, at, end, events, start, events_count)
            for i in range(start, start + events_count):
                has[column] |= events[i] != 0
        at = get_line(data, at, end, lengths, bounds[KEYS, p], bounds[KEYS, p + 1] - bounds[KEYS, p])
        if at < 0 or not _point_on(p, bounds, row_registers, raw, width, nodes, rule_ends):
            return False
        for i in range(first_event, first_event + events_count):
            event_key[i] = events[i] + bounds[KEYS, p]
        cursor[p] = at
    for rule in range(rule_ends.shape[0] - 1):
        rule_ends[rule + 1] += rule_ends[rule]
    for i in range(raw.shape[0]):
        rule = raw[i, width]
        to = rule_ends[rule]
        rule_ends[rule] += 1
        for column in range(width):
            runs[to, column] = raw[i, column]
        run_rule[to], run_key[to] = rule, raw[i, width + 1]
    return True


@bare
def _point_on(p: Any, bounds: Any, row_registers: Any, raw: Any, width: Any, nodes: Any, rule_ends: Any) -> Any:
    """Let runs and nodes of a page point to rows and nodes among those of all; count the runs of each rule, behind it.

    Returns whether every run is of one of the rules.
    """
    node, row = bounds[NODES, p], bounds[EVENTS, p]
    for i in range(bounds[RUNS, p], bounds[RUNS, p + 1]):
        rule = raw[i, width]
        if not 0 <= rule < row_registers.shape[0]:
            return False
        rule_ends[rule + 1] += 1
        raw[i, y.RUN_NODE] += node
        raw[i, y.RUN_START_ROW] += row
        raw[i, width + 1] += bounds[KEYS, p]
        for k in range(row_registers.shape[1]):
            if row_registers[rule, k] != 0 and raw[i, y.RUN_HEADER + k] >= 0:
                raw[i, y.RUN_HEADER + k] += row
    move_nodes(nodes, node, bounds[NODES, p + 1], row)
    return True


@bare
def read_texts(data: Any, ends: Any, cursor: Any, bounds: Any, lengths: Any, offsets: Any, content: Any) -> Any:
    """Read what `write_texts` has written.

    Shapes: lengths int64[rows]; out offsets int64[rows + 1], content uint8[bytes]. Returns whether the bytes add up.
    """
    to = 0
    offsets[0] = 0
    for p in range(ends.shape[0]):
        at = cursor[p]
        for row in range(bounds[p], bounds[p + 1]):
            length = lengths[row]
            if length < 0 or at + length > ends[p] or to + length > content.shape[0]:
                return False
            for i in range(length):
                content[to + i] = data[at + i]
            to += length
            at += length
            offsets[row + 1] = to
        cursor[p] = at
    return True
