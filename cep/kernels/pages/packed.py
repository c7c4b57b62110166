"""A keyed state ↔ the bytes of many pages: each column of each page in as few bytes as it needs.

    column of a page:  | width of a value + 16 × width of the base, u8 | base | value - base, for each row |

Numbers are little-endian; the base is the least value, with its sign in the lowest bit; a width is 0 to 8 bytes, so
that a column that is the same in all rows of a page costs no byte a row. Columns of a page stand one after the other.
state/packed.py says what a page holds, and in which order.

Shapes, throughout: P pages; `line` int64[rows of the largest page] is scratch. Rows are as layout.py has them; events
are int64[C, E] by column, one of them the length of the id.
Tested by: tests/kernels/test_packed.py, tests/state/test_packed.py
"""

from __future__ import annotations

import numpy as np

from cep.kernels import layout as y
from cep.kernels.jit import bare, inlined
from cep.kernels.layout import Int64, UInt8, int64
from cep.kernels.pages.parts import COUNTS, EVENTS, KEYS, NODES, RUNS, move_nodes
from cep.kernels.records import PageBytes, PageOutput, PartOrder, ReadRows, StateRows

COUNT_MAX = 1 << 31  # of the rows of a page, whose bytes say anything at all
_LINE_BYTES_MAX = 9  # of a column without its rows
_BYTE = np.uint64(255)
_EIGHT = np.uint64(8)
_ONE = np.uint64(1)


@inlined
def _width(number: np.uint64) -> int:
    """Return how many bytes an unsigned number needs; none for 0."""
    width, value = 0, number
    while value != np.uint64(0):
        value >>= _EIGHT
        width += 1
    return width


@inlined
def _folded(value: int) -> np.uint64:
    """Return a signed number as an unsigned one, near 0 where it is near 0."""
    return (np.uint64(value) << _ONE) ^ np.uint64(value >> 63)


@inlined
def _unfolded(value: np.uint64) -> int:
    """Return the number that `_folded` was given."""
    return int64(value >> _ONE) ^ -int64(value & _ONE)


@bare
def put_line(line: Int64, count: int, out: UInt8, at: int) -> int:
    """Write a column, line[:count], into out uint8[bytes] from `at` on; return where it ends."""
    least = most = line[0] if count > 0 else int64(0)
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
    content = out[at : at + width * count]  # numbered from 0, so that the compiler sees that no number is negative
    if width == 1:
        for i in range(count):
            content[i] = np.uint8(np.uint64(line[i]) - bottom)
    elif width == 2:
        for i in range(count):
            value = np.uint64(line[i]) - bottom
            content[2 * i], content[2 * i + 1] = np.uint8(value & _BYTE), np.uint8((value >> _EIGHT) & _BYTE)
    else:
        for i in range(count):
            value = np.uint64(line[i]) - bottom
            for k in range(width):
                content[i * width + k] = np.uint8(value & _BYTE)
                value >>= _EIGHT
    return at + width * count


@bare
def get_line(data: UInt8, at: int, end: int, line: Int64, first: int, count: int) -> int:
    """Read a column that `put_line` has written into line[first:first + count]; return where it ends.

    It is -1 if the column does not end before data[end], or if `at` is -1 already: what was read then means nothing.
    """
    if at < 0 or at >= end:
        return -1
    width, base_width = int64(data[at]) & 15, int64(data[at]) >> 4
    at += 1
    if width > 8 or base_width > 8 or at + base_width + width * count > end:
        return -1
    folded, shift = np.uint64(0), np.uint64(0)
    for _ in range(base_width):
        folded |= np.uint64(data[at]) << shift
        shift += _EIGHT
        at += 1
    least = np.uint64(_unfolded(folded))
    values, content = line[first : first + count], data[at : at + width * count]
    if width == 0:
        for i in range(count):
            values[i] = int64(least)
    elif width == 1:
        for i in range(count):
            values[i] = int64(least + np.uint64(content[i]))
    elif width == 2:
        for i in range(count):
            values[i] = int64(least + (np.uint64(content[2 * i]) | np.uint64(content[2 * i + 1]) << _EIGHT))
    else:
        for i in range(count):
            value, shift = np.uint64(0), np.uint64(0)
            for k in range(width):
                value |= np.uint64(content[i * width + k]) << shift
                shift += _EIGHT
            values[i] = int64(least + value)
    return at + width * count


# -------------------------------------------------------------------------------------------------------- write


@inlined
def _run_column(column: int, first: int, count: int, order: PartOrder, rows: StateRows, line: Int64) -> None:
    """Put a column of a page's runs, then their rule and key, into line; pointers become places in the page."""
    runs, run_order = rows.runs, order.runs
    width, register = runs.shape[1], column - y.RUN_HEADER
    if column == width:
        for i in range(count):
            line[i] = rows.rules[run_order[first + i]]
    elif column == width + 1:
        for i in range(count):
            line[i] = order.key_place[rows.keys[run_order[first + i]]]
    elif column == y.RUN_NODE:
        for i in range(count):
            line[i] = order.node_place[runs[run_order[first + i], column]]
    elif column == y.RUN_START_ROW:
        for i in range(count):
            line[i] = order.event_place[runs[run_order[first + i], column]]
    else:
        for i in range(count):
            line[i] = runs[run_order[first + i], column]
    if 0 <= register < rows.row_registers.shape[1]:
        for i in range(count):
            if line[i] >= 0 and rows.row_registers[rows.rules[run_order[first + i]], register] != 0:
                line[i] = order.event_place[line[i]]


@inlined
def _node_column(column: int, first: int, count: int, order: PartOrder, nodes: Int64, line: Int64) -> None:
    """Put a column of a page's nodes into line; pointers become places in the page."""
    for i in range(count):
        node = order.nodes[first + i]
        value = nodes[node, column]
        if column == y.NODE_STATE:
            line[i] = value if nodes[node, y.NODE_ROW] >= 0 else order.node_place[value]
        elif value < 0:
            line[i] = value
        else:
            line[i] = order.event_place[value] if column == y.NODE_ROW else order.node_place[value]


@bare
def _text_bytes(p: int, order: PartOrder, key_offsets: Int64, events: Int64, texts: Int64) -> int:
    """Return the bytes of all texts of a page; texts int64[T] are the rows of events that are lengths."""
    size = 0
    for at in range(order.bounds[KEYS, p], order.bounds[KEYS, p + 1]):
        size += key_offsets[order.keys[at] + 1] - key_offsets[order.keys[at]]
    for t in range(texts.shape[0]):
        for at in range(order.bounds[EVENTS, p], order.bounds[EVENTS, p + 1]):
            size += events[texts[t], order.events[at]]
    return size


@bare
def write_pages(
    head: UInt8, order: PartOrder, rows: StateRows, texts: Int64, line: Int64, never: int, out: PageOutput, first: int
) -> int:
    """Write the pages from `first` on into out.data: head, counts, rows and lengths; then leave room for the texts.

    A page is a part of `order`. texts int64[T] are the rows of rows.events that are lengths of texts. A page without
    runs is over at `never`, every other before (ms, UTC).
    Returns the page that there was no room for; P if none.
    """
    bounds, data, width = order.bounds, out.data, rows.runs.shape[1]
    for p in range(first, bounds.shape[1] - 1):
        at = out.starts[p]
        sizes = bounds[KEYS, p + 1] - bounds[KEYS, p], bounds[RUNS, p + 1] - bounds[RUNS, p]
        more = bounds[NODES, p + 1] - bounds[NODES, p], bounds[EVENTS, p + 1] - bounds[EVENTS, p]
        text_bytes = _text_bytes(p, order, rows.key_offsets, rows.events, texts)
        lines = COUNTS + width + 2 + y.NODE_WIDTH + rows.events.shape[0] + 1
        numbers = COUNTS + sizes[0] + sizes[1] * (width + 2) + more[0] * y.NODE_WIDTH + more[1] * rows.events.shape[0]
        if at + head.shape[0] + _LINE_BYTES_MAX * lines + 8 * numbers + text_bytes > data.shape[0]:
            return p
        for k in range(head.shape[0]):
            data[at + k] = head[k]
        at += head.shape[0]
        for count in (sizes[0], sizes[1], more[0], more[1]):
            line[0] = count
            at = put_line(line, 1, data, at)
        out.over[p] = never
        for column in range(width + 2):
            _run_column(column, bounds[RUNS, p], sizes[1], order, rows, line)
            at = put_line(line, sizes[1], data, at)
            if column == y.RUN_EXPIRY:
                for i in range(sizes[1]):
                    out.over[p] = min(out.over[p], line[i], never - 1)
        for column in range(y.NODE_WIDTH):
            _node_column(column, bounds[NODES, p], more[0], order, rows.nodes, line)
            at = put_line(line, more[0], data, at)
        for column in range(rows.events.shape[0]):
            for i in range(more[1]):
                row = order.events[bounds[EVENTS, p] + i]
                line[i] = order.key_place[rows.event_keys[row]] if column == 0 else rows.events[column, row]
            at = put_line(line, more[1], data, at)
        for i in range(sizes[0]):
            key = order.keys[bounds[KEYS, p] + i]
            line[i] = rows.key_offsets[key + 1] - rows.key_offsets[key]
        out.cursor[p] = put_line(line, sizes[0], data, at)
        out.starts[p + 1] = out.cursor[p] + text_bytes
    return bounds.shape[1] - 1


@bare
def write_texts(content: UInt8, offsets: Int64, bounds: Int64, order: Int64, out: UInt8, cursor: Int64) -> None:
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
def read_bounds(pages: PageBytes, line: Int64) -> int:
    """Fill pages.bounds, of which the first of each kind is 0 before; the cursors, behind the heads, move on.

    Shapes: line int64[1] scratch. Returns how many rows of a kind a page has at most, at least 1; -1 if the bytes do
    not say it.
    """
    most = 1
    for p in range(pages.ends.shape[0]):
        at = pages.cursor[p]
        for which in range(COUNTS):
            at = get_line(pages.data, at, pages.ends[p], line, 0, 1)
            if at < 0 or not 0 <= line[0] <= COUNT_MAX:
                return -1
            pages.bounds[which, p + 1] = pages.bounds[which, p] + line[0]
            most = max(most, line[0])
        pages.cursor[p] = at
    return most


@bare
def read_rows(
    pages: PageBytes, row_registers: UInt8, line: Int64, raw: Int64, rows: ReadRows, rule_ends: Int64
) -> bool:
    """Read the rows of all pages, and let them point to each other among those of all pages.

    Shapes: raw int64[n, W + 2] scratch; rule_ends int64[rules + 1], zeros before. Returns True if the bytes add up.
    """
    data, bounds = pages.data, pages.bounds
    width, columns, rows_count = rows.runs.shape[1], rows.has.shape[0], rows.event_keys.shape[0]
    for p in range(pages.ends.shape[0]):
        at, end = pages.cursor[p], pages.ends[p]
        first, count = bounds[RUNS, p], bounds[RUNS, p + 1] - bounds[RUNS, p]
        for column in range(width + 2):
            at = get_line(data, at, end, line, 0, count)
            for i in range(count):
                raw[first + i, column] = line[i]
        first_node, nodes_count = bounds[NODES, p], bounds[NODES, p + 1] - bounds[NODES, p]
        for column in range(y.NODE_WIDTH):
            at = get_line(data, at, end, line, 0, nodes_count)
            for i in range(nodes_count):
                rows.nodes[first_node + i, column] = line[i]
        first_event, events_count = bounds[EVENTS, p], bounds[EVENTS, p + 1] - bounds[EVENTS, p]
        for column in range(columns):
            start = column * rows_count + first_event
            at = get_line(data, at, end, rows.events, start, events_count)
            for i in range(start, start + events_count):
                rows.has[column] |= rows.events[i] != 0
        at = get_line(data, at, end, rows.lengths, bounds[KEYS, p], bounds[KEYS, p + 1] - bounds[KEYS, p])
        if at < 0 or not _point_on(p, bounds, row_registers, raw, width, rows.nodes, rule_ends):
            return False
        for i in range(first_event, first_event + events_count):
            rows.event_keys[i] = rows.events[i] + bounds[KEYS, p]
        pages.cursor[p] = at
    for rule in range(rule_ends.shape[0] - 1):
        rule_ends[rule + 1] += rule_ends[rule]
    for i in range(raw.shape[0]):
        rule = raw[i, width]
        to = rule_ends[rule]
        rule_ends[rule] += 1
        for column in range(width):
            rows.runs[to, column] = raw[i, column]
        rows.rules[to], rows.keys[to] = rule, raw[i, width + 1]
    return True


@bare
def _point_on(
    p: int, bounds: Int64, row_registers: UInt8, raw: Int64, width: int, nodes: Int64, rule_ends: Int64
) -> bool:
    """Let runs and nodes of a page point to rows and nodes among those of all; count the runs of each rule, behind it.

    Returns True if every run is of one of the rules.
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
def read_texts(pages: PageBytes, which: int, lengths: Int64, offsets: Int64, content: UInt8) -> bool:
    """Read the texts that `write_texts` has written for rows of kind `which`.

    Shapes: lengths int64[rows]; out offsets int64[rows + 1], content uint8[bytes]. Returns True if the bytes add up.
    """
    data, ends, cursor, bounds = pages.data, pages.ends, pages.cursor, pages.bounds[which]
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
