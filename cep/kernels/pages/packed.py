"""A keyed state ↔ the bytes of many pages: each column of each page in as few bytes as possible.

    column of a page:  | width of a value + 16 × width of the base, u8 | base | value - base, for each row |

Numbers are little-endian; the base is the least value, with its sign in the lowest bit; a width is 0 to 8 bytes, so a
column with equal values in all rows of a page costs no byte per row. state/packed.py defines the content of a page and
its order. Other kernels here bring the rows of a keyed state into another order or numbering.

Pointers are adjusted: a run points to a node and to the row of its first event, and some of its registers point to
rows. A node points to a row, or as a union to another node, and to the previous node.

Shapes: P pages; `line` int64[rows of the largest page] is scratch; runs int64[n, W], run_rule int32[n], nodes int64[m,
NODE_WIDTH], events int64[C, E] by column, one of them the length of the id; row_registers uint8[rules, R] is not 0
where a rule's register holds a row.
Tested by: tests/kernels/test_packed.py, tests/state/test_pages.py, tests/engine/test_keyed_state.py.
"""

import numpy as np

from cep.kernels import layout as y
from cep.kernels.jit import bare, inlined
from cep.kernels.layout import Int32, Int64, UInt8, int64
from cep.kernels.records import PageBytes, PageOutput, PartOrder, ReadRows, StateRows

KEYS, RUNS, NODES, EVENTS = range(4)
COUNTS = 4


@bare
def order_rows(part: Int64, run_key: Int32, event_key: Int32, nodes: Int64, order: PartOrder, cursor: Int64) -> int:
    """Sort the rows of a state by part; within a part they keep their order. A part is a set of keys, such as a page's.

    Returns the most rows of one kind (keys, runs, nodes, events) in a part, at least 1. Shapes: part int64[K] of each
    key; `order` is filled, its bounds are zeros before; cursor int64[4, P] is scratch.
    """
    bounds = order.bounds
    parts = bounds.shape[1] - 1
    for k in range(part.shape[0]):
        bounds[KEYS, part[k] + 1] += 1
    for i in range(run_key.shape[0]):
        bounds[RUNS, part[run_key[i]] + 1] += 1
    for i in range(nodes.shape[0]):
        bounds[NODES, part[event_key[_row_of(nodes, i)]] + 1] += 1  # a node belongs to the key of its event
    for i in range(event_key.shape[0]):
        bounds[EVENTS, part[event_key[i]] + 1] += 1
    most = 1
    for kind in range(COUNTS):
        for p in range(parts):
            most = max(most, bounds[kind, p + 1])
            cursor[kind, p] = bounds[kind, p]
            bounds[kind, p + 1] += bounds[kind, p]
    for k in range(part.shape[0]):
        position = cursor[KEYS, part[k]]
        order.keys[position], order.key_place[k] = k, position - bounds[KEYS, part[k]]
        cursor[KEYS, part[k]] += 1
    for i in range(run_key.shape[0]):
        p = part[run_key[i]]
        order.runs[cursor[RUNS, p]] = i
        cursor[RUNS, p] += 1
    for i in range(nodes.shape[0]):
        p = part[event_key[_row_of(nodes, i)]]
        position = cursor[NODES, p]
        order.nodes[position], order.node_place[i] = i, position - bounds[NODES, p]
        cursor[NODES, p] += 1
    for i in range(event_key.shape[0]):
        p = part[event_key[i]]
        position = cursor[EVENTS, p]
        order.events[position], order.event_place[i] = i, position - bounds[EVENTS, p]
        cursor[EVENTS, p] += 1
    return most


@inlined
def _row_of(nodes: Int64, node: int) -> int:
    """Return the row of an event on a node's path: its own, or the row on one branch of a union."""
    node_index = node
    while nodes[node_index, y.NODE_ROW] < 0:
        node_index = nodes[node_index, y.NODE_STATE]
    return nodes[node_index, y.NODE_ROW]


@bare
def renumber_run_pointers(runs: Int64, run_rule: Int32, row_registers: UInt8, new_row: Int64, new_node: Int64) -> None:
    """Change the pointers of runs to the new numbers of rows and nodes, in place."""
    for i in range(runs.shape[0]):
        runs[i, y.RUN_NODE] = new_node[runs[i, y.RUN_NODE]]
        runs[i, y.RUN_START_ROW] = new_row[runs[i, y.RUN_START_ROW]]
        for k in range(row_registers.shape[1]):
            if row_registers[run_rule[i], k] != 0 and runs[i, y.RUN_HEADER + k] >= 0:
                runs[i, y.RUN_HEADER + k] = new_row[runs[i, y.RUN_HEADER + k]]


@bare
def renumber_pointers(
    runs: Int64, run_rule: Int32, nodes: Int64, row_registers: UInt8, new_row: Int64, new_node: Int64
) -> None:
    """Change the pointers of runs and nodes (bound events), in place. new_row[old] and new_node[old] are new ones."""
    renumber_run_pointers(runs, run_rule, row_registers, new_row, new_node)
    for i in range(nodes.shape[0]):
        if nodes[i, y.NODE_ROW] >= 0:
            nodes[i, y.NODE_ROW] = new_row[nodes[i, y.NODE_ROW]]
        else:  # a union of two paths has no row; here its NODE_STATE is the node of the second path
            nodes[i, y.NODE_STATE] = new_node[nodes[i, y.NODE_STATE]]
        if nodes[i, y.NODE_PREVIOUS] >= 0:
            nodes[i, y.NODE_PREVIOUS] = new_node[nodes[i, y.NODE_PREVIOUS]]


@bare
def shift_pointers(
    runs: Int64, run_rule: Int32, nodes: Int64, row_registers: UInt8, run_bounds: Int64, node_bounds: Int64,
    row_bounds: Int64,
) -> bool:  # fmt: skip
    """Change pointers within a part to indexes among the rows of all parts, in place. The rows are sorted by part.

    A part is a set of keys, such as a page's. Its runs (partial matches) point to nodes (bound events) and event rows,
    which are counted from the part's first one. run_bounds, node_bounds and row_bounds int64[P + 1] are the starts of
    the parts. row_registers uint8[rules, R] marks registers that hold a row. Returns False for a run of no known rule.
    """
    for p in range(run_bounds.shape[0] - 1):
        rows, before = row_bounds[p], node_bounds[p]  # how many event rows and nodes precede the part
        for i in range(run_bounds[p], run_bounds[p + 1]):
            runs[i, y.RUN_NODE] += before
            runs[i, y.RUN_START_ROW] += rows
            if not 0 <= run_rule[i] < row_registers.shape[0]:
                return False
            for k in range(row_registers.shape[1]):
                if row_registers[run_rule[i], k] != 0 and runs[i, y.RUN_HEADER + k] >= 0:
                    runs[i, y.RUN_HEADER + k] += rows
        shift_node_pointers(nodes, before, node_bounds[p + 1], rows)
    return True


@bare
def shift_node_pointers(nodes: Int64, first: int, end: int, rows: int) -> None:
    """Change the pointers of a part's nodes, first <= i < end, to indexes among all; `rows` events precede the part."""
    for i in range(first, end):
        if nodes[i, y.NODE_ROW] >= 0:
            nodes[i, y.NODE_ROW] += rows
        else:
            nodes[i, y.NODE_STATE] += first
        if nodes[i, y.NODE_PREVIOUS] >= 0:
            nodes[i, y.NODE_PREVIOUS] += first


COUNT_MAX = 1 << 31  # maximum rows of a page that is read
_LINE_BYTES_MAX = 9  # of a column without its rows
_BYTE = np.uint64(255)
_EIGHT = np.uint64(8)
_ONE = np.uint64(1)


@inlined
def _width(number: np.uint64) -> int:
    """Return the number of bytes of an unsigned number; 0 for 0."""
    width, value = 0, number
    while value != np.uint64(0):
        value >>= _EIGHT
        width += 1
    return width


@inlined
def _zigzagged(value: int) -> np.uint64:
    """Map a signed number to an unsigned one that is small if the number is near 0."""
    return (np.uint64(value) << _ONE) ^ np.uint64(value >> 63)


@inlined
def _signed(value: np.uint64) -> int:
    """Invert `_zigzagged`."""
    return int64(value >> _ONE) ^ -int64(value & _ONE)


@bare
def put_line(line: Int64, count: int, out: UInt8, position: int) -> int:
    """Write line[:count] at out[position]: byte widths, least value, each value minus the least. Return the end."""
    least = most = line[0] if count > 0 else int64(0)
    for i in range(1, count):
        least = min(least, line[i])
        most = max(most, line[i])
    # Modulo 2**64 the difference is right for any two values. The base is the least value, its sign in the lowest bit.
    width, base, bottom = _width(np.uint64(most) - np.uint64(least)), _zigzagged(least), np.uint64(least)
    base_width = _width(base)
    out[position] = width + 16 * base_width  # both are at most 8
    position += 1
    for _ in range(base_width):
        out[position] = np.uint8(base & _BYTE)
        base >>= _EIGHT
        position += 1
    if width == 0:
        return position
    # The slice has indexes from 0, so that the compiler knows that they are not negative.
    content = out[position : position + width * count]
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
    return position + width * count


@bare
def get_line(data: UInt8, position: int, end: int, line: Int64, first: int, count: int) -> int:
    """Read a column, written by `put_line`, into line[first:first + count]; return the end.

    It is -1, with undefined values, if the column does not end before data[end], or if `position` is -1 already.
    """
    if position < 0 or position >= end:
        return -1
    width, base_width = int64(data[position]) & 15, int64(data[position]) >> 4
    position += 1
    if width > 8 or base_width > 8 or position + base_width + width * count > end:
        return -1
    zigzagged, shift = np.uint64(0), np.uint64(0)
    for _ in range(base_width):
        zigzagged |= np.uint64(data[position]) << shift
        shift += _EIGHT
        position += 1
    least = np.uint64(_signed(zigzagged))
    values, content = line[first : first + count], data[position : position + width * count]
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
    return position + width * count


@inlined
def _run_column(column: int, first: int, count: int, order: PartOrder, rows: StateRows, line: Int64) -> None:
    """Copy a column of a page's runs (a word, rule or key) into line. Row numbers become positions within the page."""
    runs, run_order = rows.runs, order.runs
    rule_column, register = runs.shape[1], column - y.RUN_HEADER  # a run has a header, registers, the rule and the key
    if column == rule_column:
        for i in range(count):
            line[i] = rows.rules[run_order[first + i]]
    elif column == rule_column + 1:  # the key
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
    if 0 <= register < rows.row_registers.shape[1]:  # a register may hold the row of an event
        for i in range(count):
            if line[i] >= 0 and rows.row_registers[rows.rules[run_order[first + i]], register] != 0:
                line[i] = order.event_place[line[i]]


@inlined
def _node_column(column: int, first: int, count: int, order: PartOrder, nodes: Int64, line: Int64) -> None:
    """Copy a column of a page's nodes into line; pointers become places in the page."""
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
    for position in range(order.bounds[KEYS, p], order.bounds[KEYS, p + 1]):
        size += key_offsets[order.keys[position] + 1] - key_offsets[order.keys[position]]
    for t in range(texts.shape[0]):
        for position in range(order.bounds[EVENTS, p], order.bounds[EVENTS, p + 1]):
            size += events[texts[t], order.events[position]]
    return size


@bare
def write_pages(
    head: UInt8, order: PartOrder, rows: StateRows, texts: Int64, line: Int64, never: int, out: PageOutput, first: int
) -> int:
    """Write the pages from `first` on into out.data: head, counts, rows and lengths; then leave room for the texts.

    A page is a part of `order`. texts int64[T] are the rows of rows.events that are lengths of texts. A page without
    runs expires at `never`, every other page before (ms, UTC). Returns the first page without room; P if all fit.
    """
    bounds, data, width = order.bounds, out.data, rows.runs.shape[1]
    for p in range(first, bounds.shape[1] - 1):
        position = out.starts[p]
        sizes = bounds[KEYS, p + 1] - bounds[KEYS, p], bounds[RUNS, p + 1] - bounds[RUNS, p]
        more = bounds[NODES, p + 1] - bounds[NODES, p], bounds[EVENTS, p + 1] - bounds[EVENTS, p]
        text_bytes = _text_bytes(p, order, rows.key_offsets, rows.events, texts)
        lines = COUNTS + width + 2 + y.NODE_WIDTH + rows.events.shape[0] + 1
        numbers = COUNTS + sizes[0] + sizes[1] * (width + 2) + more[0] * y.NODE_WIDTH + more[1] * rows.events.shape[0]
        if position + head.shape[0] + _LINE_BYTES_MAX * lines + 8 * numbers + text_bytes > data.shape[0]:
            return p
        for k in range(head.shape[0]):
            data[position + k] = head[k]
        position += head.shape[0]
        for count in (sizes[0], sizes[1], more[0], more[1]):
            line[0] = count
            position = put_line(line, 1, data, position)
        out.over[p] = never
        for column in range(width + 2):
            _run_column(column, bounds[RUNS, p], sizes[1], order, rows, line)
            position = put_line(line, sizes[1], data, position)
            if column == y.RUN_EXPIRY:
                for i in range(sizes[1]):
                    out.over[p] = min(out.over[p], line[i], never - 1)
        for column in range(y.NODE_WIDTH):
            _node_column(column, bounds[NODES, p], more[0], order, rows.nodes, line)
            position = put_line(line, more[0], data, position)
        for column in range(rows.events.shape[0]):
            for i in range(more[1]):
                row = order.events[bounds[EVENTS, p] + i]
                line[i] = order.key_place[rows.event_keys[row]] if column == 0 else rows.events[column, row]
            position = put_line(line, more[1], data, position)
        for i in range(sizes[0]):
            key = order.keys[bounds[KEYS, p] + i]
            line[i] = rows.key_offsets[key + 1] - rows.key_offsets[key]
        out.cursor[p] = put_line(line, sizes[0], data, position)
        out.starts[p + 1] = out.cursor[p] + text_bytes
    return bounds.shape[1] - 1


@bare
def write_texts(content: UInt8, offsets: Int64, bounds: Int64, order: Int64, out: UInt8, cursor: Int64) -> None:
    """Write the text of each row into its page. cursor[p], the write position of page p, advances.

    A page is the stored bytes of a group of keys. Page p has the rows order[bounds[p]:bounds[p + 1]], int64. The text
    of row i is content[offsets[i]:offsets[i + 1]].
    """
    for p in range(bounds.shape[0] - 1):
        to = cursor[p]
        for position in range(bounds[p], bounds[p + 1]):
            for i in range(offsets[order[position]], offsets[order[position] + 1]):
                out[to] = content[i]
                to += 1
        cursor[p] = to


@bare
def read_bounds(pages: PageBytes, line: Int64) -> int:
    """Read how many keys, runs, nodes and events each page has. A page is the stored bytes of a group of keys.

    pages.bounds[kind, p] becomes the number in all pages before p. pages.cursor, the read positions, advance.
    Returns the largest number of one kind in a page, at least 1; -1 for invalid bytes. `line` int64[1] is scratch.
    """
    most = 1
    for p in range(pages.ends.shape[0]):
        position = pages.cursor[p]
        for kind in range(COUNTS):
            position = get_line(pages.data, position, pages.ends[p], line, 0, 1)  # reads one number into line[0]
            if position < 0 or not 0 <= line[0] <= COUNT_MAX:
                return -1
            pages.bounds[kind, p + 1] = pages.bounds[kind, p] + line[0]
            most = max(most, line[0])
        pages.cursor[p] = position
    return most


@bare
def read_rows(
    pages: PageBytes, row_registers: UInt8, line: Int64, raw: Int64, rows: ReadRows, rule_ends: Int64
) -> bool:
    """Read the rows of all pages; their pointers become indexes among the rows of all pages.

    Shapes: raw int64[n, W + 2] scratch; rule_ends int64[rules + 1], zeros before. Returns True if the bytes are valid.
    """
    data, bounds = pages.data, pages.bounds
    width, columns, rows_count = rows.runs.shape[1], rows.nonzero_columns.shape[0], rows.event_keys.shape[0]
    for p in range(pages.ends.shape[0]):
        position, end = pages.cursor[p], pages.ends[p]
        first, count = bounds[RUNS, p], bounds[RUNS, p + 1] - bounds[RUNS, p]
        for column in range(width + 2):
            position = get_line(data, position, end, line, 0, count)
            for i in range(count):
                raw[first + i, column] = line[i]
        first_node, nodes_count = bounds[NODES, p], bounds[NODES, p + 1] - bounds[NODES, p]
        for column in range(y.NODE_WIDTH):
            position = get_line(data, position, end, line, 0, nodes_count)
            for i in range(nodes_count):
                rows.nodes[first_node + i, column] = line[i]
        first_event, events_count = bounds[EVENTS, p], bounds[EVENTS, p + 1] - bounds[EVENTS, p]
        for column in range(columns):
            start = column * rows_count + first_event
            position = get_line(data, position, end, rows.events, start, events_count)
            for i in range(start, start + events_count):
                rows.nonzero_columns[column] |= rows.events[i] != 0
        position = get_line(data, position, end, rows.lengths, bounds[KEYS, p], bounds[KEYS, p + 1] - bounds[KEYS, p])
        if position < 0 or not _shift_page_pointers(p, bounds, row_registers, raw, width, rows.nodes, rule_ends):
            return False
        for i in range(first_event, first_event + events_count):
            rows.event_keys[i] = rows.events[i] + bounds[KEYS, p]
        pages.cursor[p] = position
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
def _shift_page_pointers(
    p: int, bounds: Int64, row_registers: UInt8, raw: Int64, width: int, nodes: Int64, rule_ends: Int64
) -> bool:
    """Convert the pointers of page p's runs and nodes to indexes among the rows of all pages. Count each rule's runs.

    A page is the stored bytes of a group of keys. Its pointers count from its own first row. A row of `raw` has the
    `width` numbers of a run (partial match), then its rule and its key. row_registers marks the registers (values that
    a run keeps) that hold the row of an event. Returns False for a run of no known rule.
    """
    node, row = bounds[NODES, p], bounds[EVENTS, p]  # the first node and the first event row of the page
    for i in range(bounds[RUNS, p], bounds[RUNS, p + 1]):
        rule = raw[i, width]
        if not 0 <= rule < row_registers.shape[0]:
            return False
        rule_ends[rule + 1] += 1
        raw[i, y.RUN_NODE] += node
        raw[i, y.RUN_START_ROW] += row
        raw[i, width + 1] += bounds[KEYS, p]  # the key
        for k in range(row_registers.shape[1]):
            if row_registers[rule, k] != 0 and raw[i, y.RUN_HEADER + k] >= 0:
                raw[i, y.RUN_HEADER + k] += row
    shift_node_pointers(nodes, node, bounds[NODES, p + 1], row)
    return True


@bare
def read_texts(pages: PageBytes, kind: int, lengths: Int64, offsets: Int64, content: UInt8) -> bool:
    """Read the texts of the rows of a kind (KEYS or EVENTS), as `write_texts` has written them, page after page.

    The texts of page p begin at its read position, pages.cursor[p], which advances. Shapes: lengths int64[rows]; out
    offsets int64[rows + 1], content uint8[bytes]. Returns True if the bytes are valid.
    """
    data, ends, cursor, bounds = pages.data, pages.ends, pages.cursor, pages.bounds[kind]
    to = 0
    offsets[0] = 0
    for p in range(ends.shape[0]):
        position = cursor[p]
        for row in range(bounds[p], bounds[p + 1]):
            length = lengths[row]
            if length < 0 or position + length > ends[p] or to + length > content.shape[0]:
                return False
            for i in range(length):
                content[to + i] = data[position + i]
            to += length
            position += length
            offsets[row + 1] = to
        cursor[p] = position
    return True
