"""Many pages at once: the runs of a KeyedState ↔ the bytes of each page, without an object or a call per page.

    | "CPP" | format u8 | shape u64 | counts | runs | nodes | events | keys | bytes of texts, column by column |

A page contains a few keys, and a micro-batch touches many pages. Their *shape*, the layout of their program and the
names and types of columns, is stored once under its hash. The rest is tables of integers, and each column of each page
takes as few bytes as possible (pages/packed.py): about ten bytes a run instead of eighty.

    counts  one row: keys, runs, nodes, events        events  key, type, time; for each column of numbers the bits, of
    runs    the row, rule, key                                texts the length, of booleans 0 or 1; of ids the length;
    nodes   the row                                           for each column whether it is null
    keys    the length                                texts   of keys, of ids, of each column of texts

The store adds checksums. Readers of single pages (cep job state, savepoints for Spark) use the form of past.py;
docs/inside/decisions/two-forms-of-a-page.md has the reasons.
Tested by: tests/state/test_pages.py
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from cep.base.errors import StateCorruptError, StateFormatError
from cep.base.limits import TIME_MS_MAX
from cep.columnar.batch import TEXT, null_flags, numbers, read_only, slot_values, text_buffers
from cep.engine.keyed_state import KeyedState, Layout, RetainedEvents, order_of
from cep.kernels.layout import NODE_WIDTH, Int32, Int64, UInt8
from cep.kernels.pages import packed as row_kinds
from cep.kernels.pages.packed import read_bounds, read_rows, read_texts, write_pages, write_texts
from cep.kernels.records import PageBytes, PageOutput, ReadRows, StateRows
from cep.state.past import layout_json, layout_of

PACKED_FORMAT = 3  # 1 had eight bytes for every number
EARLIER_PACKED_FORMAT = 2  # of 0.2.0: averages and spreads have other registers; the shape says so
_MAGIC = b"CPP"
_HEAD = struct.Struct("<3sBQ")
_PAGE_BYTES_MIN = 1 << 12  # room for a page that has more than others
_CODES = {pa.int64(): "i", pa.float64(): "f", pa.bool_(): "b", TEXT: "t"}
_TYPES = {code: type_ for type_, code in _CODES.items()}
_NUMBERS = {"i": np.int64, "f": np.float64}
_EVENT_TYPE, _EVENT_TIME, _EVENT_FIXED = 1, 2, 3  # columns of the table of events: key, type, time, then fields
Columns = tuple[tuple[str, str], ...]  # names and codes of types


@dataclass(frozen=True)
class Shape:
    """The layout of pages that one program wrote. `events` are the columns of bound events."""

    layout: Layout
    width: int
    events: Columns

    @staticmethod
    def of(keyed_state: KeyedState) -> Shape:
        events = tuple((name, _CODES[column.type]) for name, column in keyed_state.events.columns.items())
        return Shape(keyed_state.layout, keyed_state.runs.shape[1], events)

    def describes(self, keyed_state: KeyedState) -> bool:
        """Return True if this is the shape of a state; quicker than to make its own and compare."""
        columns = keyed_state.events.columns
        return (
            self.layout == keyed_state.layout
            and self.width == keyed_state.runs.shape[1]
            and tuple(columns) == self.names
            and all(
                column.type == _TYPES[code] for column, (_, code) in zip(columns.values(), self.events, strict=True)
            )
        )

    def to_bytes(self) -> bytes:
        body = {**layout_json(self.layout), "width": self.width, "events": self.events}
        return json.dumps(body, separators=(",", ":")).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Shape:
        try:
            about = orjson.loads(data)
            events = tuple((name, code) for name, code in about["events"])
            return Shape(layout_of(about), about["width"], events)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise StateCorruptError(f"the shape of pages cannot be read ({error!r}); restore a checkpoint") from error

    @cached_property
    def number(self) -> int:
        """The hash under which pages name it."""
        return int.from_bytes(hashlib.blake2b(self.to_bytes(), digest_size=8).digest(), "little")

    @cached_property
    def head(self) -> UInt8:
        return np.frombuffer(_HEAD.pack(_MAGIC, PACKED_FORMAT, self.number), np.uint8)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.events)

    @cached_property
    def event_width(self) -> int:
        return _EVENT_FIXED + len(self.events) + 1 + len(self.events)

    @cached_property
    def texts(self) -> Int64:
        """The columns of the table of events that are lengths of texts: first of ids, then of columns."""
        lengths = [_EVENT_FIXED + number for number, (_, code) in enumerate(self.events) if code == "t"]
        return np.array([_EVENT_FIXED + len(self.events), *lengths])


# ------------------------------------------------------------------------------------------------------- pages


def pack(
    keyed_state: KeyedState, part: Int64, parts_count: int, row_registers: np.ndarray, shape: Shape
) -> tuple[list[bytes], Int64]:
    """Encode the keyed state as one page (bytes) per part. Return the pages, and when the first run of each expires.

    `row_registers` marks the registers (stored values of a run) that are row numbers of events. Shapes: part int64[K]:
    the part of each key, in [0, P). The times are int64[P], ms UTC, TIME_MS_MAX for a part without runs. The page of a
    part without keys has no meaning. Cost: O(state), and less than a microsecond for each part."""
    order, most_rows = order_of(keyed_state, part, parts_count)  # rows sorted by part; the most of one kind in a part
    orders = order.keys, order.runs, order.nodes, order.events
    scratch, text_starts = np.empty(most_rows, np.int64), np.empty(parts_count, np.int64)
    texts = [(kind, *text_buffers(column)) for kind, column in _texts(keyed_state, shape)]
    events = _event_table(keyed_state, shape, [offsets for _, offsets, _ in texts[1:]])  # texts[0] has the keys
    starts, expiry_ms = np.zeros(parts_count + 1, np.int64), np.empty(parts_count, np.int64)
    data = np.empty(_estimated_bytes([len(rows) for rows in orders], texts, parts_count, shape), np.uint8)
    rows = StateRows(
        texts[0][1], read_only(keyed_state.runs), read_only(keyed_state.run_rule), read_only(keyed_state.run_key),
        row_registers, read_only(keyed_state.nodes), read_only(keyed_state.events.key), events,
    )  # fmt: skip
    page = 0  # the first page that is not written
    while True:  # write the pages, with room for their texts; if a page does not fit, enlarge `data` and go on with it
        out = PageOutput(expiry_ms, data, starts, text_starts)
        page = write_pages(shape.head, order, rows, shape.texts, scratch, TIME_MS_MAX, out, page)
        if page == parts_count:
            break
        data = np.concatenate([data[: starts[page]], np.empty(2 * len(data), np.uint8)])  # more room
    for kind, offsets, content in texts:  # fill the room in each page
        write_texts(content, offsets, order.bounds[kind], orders[kind], data, text_starts)
    page_array = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), parts_count, [None, pa.py_buffer(starts), pa.py_buffer(data)]
    )
    pages: list[bytes] = page_array.to_pylist()
    return pages, expiry_ms


def _texts(keyed_state: KeyedState, shape: Shape) -> list[tuple[int, pa.Array]]:
    events = keyed_state.events
    columns = [(row_kinds.EVENTS, events.columns[name]) for name, code in shape.events if code == "t"]
    return [(row_kinds.KEYS, keyed_state.keys), (row_kinds.EVENTS, events.event_id), *columns]


def _event_table(keyed_state: KeyedState, shape: Shape, offsets: Sequence[Int64]) -> Int64:
    """Build the table of the events that runs hold, int64[C, E]. First it has a row each for key (unset here), type and
    time. Then each field of `shape.events` has a row of values, or of lengths for texts (code "t"). Then come the
    lengths of ids, and for each field a row with 1 where it is null. `offsets`: of the texts of ids, then of fields."""
    events, count = keyed_state.events, len(shape.events)
    table = np.empty((shape.event_width, len(events)), np.int64)
    table[_EVENT_TYPE], table[_EVENT_TIME] = events.event_type, events.time_ms
    for row, bounds in zip(shape.texts.tolist(), offsets, strict=True):  # the rows of lengths
        np.subtract(bounds[1:], bounds[:-1], out=table[row])
    for field_number, (name, code) in enumerate(shape.events):
        column = events.columns[name]
        table[_EVENT_FIXED + count + 1 + field_number] = null_flags(column) if column.null_count else 0
        if code != "t":
            table[_EVENT_FIXED + field_number] = slot_values(column)  # each value as 64 bits
    return table


def _estimated_bytes(
    counts: Sequence[int], texts: Sequence[tuple[int, Int64, UInt8]], parts_count: int, shape: Shape
) -> int:
    columns = row_kinds.COUNTS + shape.width + shape.event_width
    numbers = (
        8 * counts[row_kinds.RUNS] + 4 * counts[row_kinds.NODES] + 2 * shape.event_width * counts[row_kinds.EVENTS]
    )
    content = sum(int(offsets[-1] - offsets[0]) for _, offsets, _ in texts)
    return numbers + content + 4 * columns * parts_count + _PAGE_BYTES_MIN


def shape_number(page: bytes) -> int:
    """Return the number of a page's shape (the layout of its columns). Raises: StateFormatError, StateCorruptError."""
    if len(page) < _HEAD.size:
        raise StateCorruptError(f"a page of {len(page)} bytes is shorter than its head of {_HEAD.size}")
    magic, format_, number = _HEAD.unpack_from(page)  # the first bytes of every page
    if magic != _MAGIC:
        raise StateCorruptError(f"a page begins with {magic!r}, not {_MAGIC!r}; the bytes are not ours")
    if format_ not in (PACKED_FORMAT, EARLIER_PACKED_FORMAT):
        raise StateFormatError(
            f"a page has format {format_}, this build reads {PACKED_FORMAT}; make a savepoint with the build that "
            "wrote it and restore that"
        )
    return int(number)


def by_shape(pages: Sequence[bytes]) -> dict[int, list[bytes]]:
    """Group pages by the number of their shape. Raises: StateFormatError, StateCorruptError."""
    if not pages:
        return {}
    head = pages[0][: _HEAD.size]
    if all(map(head.__eq__, [page[: _HEAD.size] for page in pages])):  # nearly always
        return {shape_number(pages[0]): list(pages)}
    groups: dict[int, list[bytes]] = {}
    for page in pages:
        groups.setdefault(shape_number(page), []).append(page)
    return groups


def unpack(pages: Sequence[bytes], shape: Shape, row_registers: np.ndarray) -> KeyedState:
    """Decode pages of one shape, with disjoint keys, to one keyed state. Its keys are sorted by page.

    `row_registers` bool[rules, registers] marks the registers (stored values of a run) that are row numbers of events,
    in the program that wrote the pages. Raises: StateCorruptError for inconsistent bytes."""
    reader = _Reader(pages)
    keys_count, runs_count, nodes_count, events_count = reader.pages.bounds[:, -1].tolist()
    # A stored run has two columns more: its rule and its key.
    runs, run_scratch = np.empty((runs_count, shape.width), np.int64), np.empty((runs_count, shape.width + 2), np.int64)
    run_rule, run_key = np.empty(runs_count, np.int32), np.empty(runs_count, np.int32)
    nodes, event_key = np.empty((nodes_count, NODE_WIDTH), np.int64), np.empty(events_count, np.int32)
    events, has_values = np.empty(shape.event_width * events_count, np.int64), np.zeros(shape.event_width, np.uint8)
    key_lengths, rule_ends = np.empty(keys_count, np.int64), np.zeros(len(row_registers) + 1, np.int64)
    rows = ReadRows(runs, run_rule, run_key, nodes, event_key, events, has_values, key_lengths)  # filled below
    if not read_rows(reader.pages, row_registers, reader.scratch, run_scratch, rows, rule_ends):
        raise _inconsistent_error()
    keys = reader.texts(row_kinds.KEYS, key_lengths, None)
    retained = _retained(reader, event_key, events.reshape(shape.event_width, -1), has_values.tolist(), shape)
    reader.check_end()
    return KeyedState(shape.layout, keys, runs, run_rule, run_key, nodes, retained)


def runs_count(pages: Sequence[bytes]) -> int:
    """Count the runs in these pages. Raises: StateCorruptError."""
    return int(_Reader(pages).pages.bounds[row_kinds.RUNS, -1]) if pages else 0


def _retained(
    reader: _Reader, event_key: Int32, table: Int64, has_values: Sequence[int], shape: Shape
) -> RetainedEvents:
    """Build events from `table`. It has a row each for key (unused: `event_key` counts over all pages), type and time.
    Then each field has a row of values, or of lengths for texts. Then come the lengths of ids, and for each field a row
    with 1 where it is null. `has_values` has 0 for each row of the table that is all 0."""
    count = len(shape.events)
    event_id = reader.texts(row_kinds.EVENTS, table[_EVENT_FIXED + count], None)
    columns: dict[str, pa.Array] = {}
    for field_number, (name, code) in enumerate(shape.events):
        field_values, flags_row = table[_EVENT_FIXED + field_number], _EVENT_FIXED + count + 1 + field_number
        nulls = table[flags_row].astype(bool) if has_values[flags_row] else None  # 0: no null
        if code == "t":  # text: the values are lengths
            columns[name] = reader.texts(row_kinds.EVENTS, field_values, nulls)
        elif code == "b":  # bool
            columns[name] = pa.array(field_values.astype(bool), mask=nulls)
        else:
            columns[name] = numbers(field_values.view(_NUMBERS[code]), _TYPES[code], nulls)  # int64 or float64
    return RetainedEvents(event_key, event_id, table[_EVENT_TYPE], table[_EVENT_TIME], columns)


class _Reader:
    """Reads all pages (the stored bytes of a few keys each) together, column by column: first integers, then texts. For
    each kind of rows (keys, runs, nodes, events), `bounds` says at which row of all pages each page begins. Each page
    has a `cursor`, the position to read next, and an end. Raises: StateCorruptError."""

    def __init__(self, pages: Sequence[bytes]) -> None:
        sizes = np.fromiter(map(len, pages), np.int64, len(pages))
        ends, bounds = np.cumsum(sizes), np.zeros((row_kinds.COUNTS, len(pages) + 1), np.int64)
        self.pages = PageBytes(np.frombuffer(b"".join(pages), np.uint8), ends, ends - sizes + _HEAD.size, bounds)
        most_rows = read_bounds(self.pages, np.empty(1, np.int64))  # of one kind in a page
        if most_rows < 0:
            raise _inconsistent_error()
        self.scratch = np.empty(most_rows, np.int64)

    def texts(self, row_kind: int, lengths: Int64, nulls: NDArray[np.bool_] | None) -> pa.Array:
        """Return the next column of texts, one for each row of a kind (KEYS or EVENTS). `lengths` are in bytes."""
        size = int(np.add.reduce(lengths))
        if not 0 <= size <= len(self.pages.data):  # before memory is allocated for a damaged length
            raise _inconsistent_error()
        offsets, content = np.empty(len(lengths) + 1, np.int64), np.empty(size, np.uint8)
        if not read_texts(self.pages, row_kind, lengths, offsets, content):
            raise _inconsistent_error()
        valid = None if nulls is None else pa.array(~nulls).buffers()[1]
        return pa.LargeStringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(content), valid)

    def check_end(self) -> None:
        if np.count_nonzero(self.pages.cursor != self.pages.ends):  # a page has unread bytes
            raise _inconsistent_error()


def _inconsistent_error() -> StateCorruptError:
    return StateCorruptError("the counts of a page do not add up to its bytes; restore a checkpoint")
