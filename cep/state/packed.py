"""Many pages at once: the runs of a KeyedState ↔ the bytes of each page, without an object or a call for each of them.

    | "CPP" | format u8 | shape u64 | counts | runs | nodes | events | keys | bytes of texts, column by column |

A page here is a few keys, and a micro-batch touches many of them. So what all of them have in common, their *shape*
(the layout of their program, names and types of columns), is said once under its hash and not in every page. All else
is tables of integers, of which each column of each page takes as few bytes as it needs (kernels/packed.py): a run is
some ten bytes in place of eighty, and what is small is quick to copy, to write and to keep in memory.

    counts  one row: keys, runs, nodes, events        events  key, type, time; for each column of numbers the bits, of
    runs    the row, rule, key                                texts the length, of truth 0 or 1; of ids the length; for
    nodes   the row                                           each column whether it is null
    keys    the length                                texts   of keys, of ids, of each column of texts

Checksums are those of the store. What reads single pages (cep state, savepoints for Spark) takes pages.py's form.
Tested by: tests/state/test_packed.py
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cep.base.errors import StateCorruptError, StateFormatError
from cep.base.limits import TIME_MS_MAX
from cep.columnar.batch import TEXT, read_only, slots, text_buffers
from cep.engine.keyed_state import KeyedState, Layout, RetainedEvents
from cep.engine.partition import order_of
from cep.kernels.layout import NODE_WIDTH, Int32, Int64, UInt8
from cep.kernels.packed import read_bounds, read_rows, read_texts, write_pages, write_texts
from cep.kernels.parts import COUNTS, EVENTS, KEYS, NODES, RUNS

PACKED_FORMAT = 2  # 1 had eight bytes for every number
_MAGIC = b"CPP"
_HEAD = struct.Struct("<3sBQ")
_PAGE_BYTES_MIN = 1 << 12  # room for a page that has more than others
_CODES = {pa.int64(): "i", pa.float64(): "f", pa.bool_(): "b", TEXT: "t"}
_TYPES = {code: type_ for type_, code in _CODES.items()}
_NUMBERS = {"i": np.int64, "f": np.float64}
_EVENT_FIXED = 3  # key, type, time
Columns = tuple[tuple[str, str], ...]  # names and codes of types


@dataclass(frozen=True)
class Shape:
    """What pages have in common. `events`: the columns of bound events."""

    layout: Layout
    width: int
    events: Columns

    @staticmethod
    def of(keyed_state: KeyedState) -> Shape:
        def columns(found: Mapping[str, pa.Array]) -> Columns:
            return tuple((name, _CODES[column.type]) for name, column in found.items())

        return Shape(keyed_state.layout, keyed_state.runs.shape[1], columns(keyed_state.events.columns))

    def to_bytes(self) -> bytes:
        body = {"fingerprint": self.layout.fingerprint, "rules": self.layout.rules, "width": self.width}
        return json.dumps(body | {"events": self.events}, separators=(",", ":")).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Shape:
        """Raises: StateCorruptError."""
        try:
            found = json.loads(data)
            rules = tuple(((i[0], i[1], i[2]), first, count) for i, first, count in found["rules"])
            events = tuple((name, code) for name, code in found["events"])
            return Shape(Layout(found["fingerprint"], rules), found["width"], events)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise StateCorruptError(f"the shape of pages cannot be read ({error!r}); restore a checkpoint") from error

    @cached_property
    def number(self) -> int:
        """The hash under which pages name it."""
        return int.from_bytes(hashlib.blake2b(self.to_bytes(), digest_size=8).digest(), "little")

    @cached_property
    def head(self) -> UInt8:
        """What every page of this shape begins with."""
        return np.frombuffer(_HEAD.pack(_MAGIC, PACKED_FORMAT, self.number), np.uint8)

    @cached_property
    def event_width(self) -> int:
        """The columns of the table of events."""
        return _EVENT_FIXED + len(self.events) + 1 + len(self.events)

    @cached_property
    def texts(self) -> Int64:
        """Which columns of the table of events are lengths of texts, in their order: of ids, then of columns."""
        own = [_EVENT_FIXED + at for at, (_, code) in enumerate(self.events) if code == "t"]
        return np.array([_EVENT_FIXED + len(self.events), *own])


# ------------------------------------------------------------------------------------------------------- pages


def pack(
    keyed_state: KeyedState, part: Int64, parts_count: int, row_registers: np.ndarray, shape: Shape
) -> tuple[list[bytes], Int64]:
    """The bytes of a page for each part of the state; and when the first of its runs is over, ms UTC: int64[P].

    `part` int64[K] says for each key its part in [0, P). A part without runs is never over (TIME_MS_MAX), the bytes of
    one without keys mean nothing.
    Cost: O(state), and less than a microsecond for each part.
    """
    ordered = order_of(keyed_state, part, parts_count)
    bounds, orders = ordered.bounds, ordered.orders
    line, cursor = np.empty(ordered.most, np.int64), np.empty(parts_count, np.int64)
    texts = [(which, *text_buffers(column)) for which, column in _texts(keyed_state, shape)]
    events = _event_table(keyed_state, shape, [offsets for _, offsets, _ in texts[1:]])
    starts, over = np.zeros(parts_count + 1, np.int64), np.empty(parts_count, np.int64)
    data = np.empty(_guessed_bytes([len(own) for own in orders], texts, parts_count, shape), np.uint8)
    at = 0
    while True:
        at = write_pages(
            shape.head, bounds, orders[KEYS], orders[RUNS], orders[NODES], orders[EVENTS],
            ordered.key_place, ordered.node_place, ordered.event_place, texts[0][1],
            read_only(keyed_state.runs), read_only(keyed_state.run_rule), read_only(keyed_state.run_key), row_registers,
            read_only(keyed_state.nodes), read_only(keyed_state.events.key), events, shape.texts, line, over,
            TIME_MS_MAX, data, starts, cursor, at,
        )  # fmt: skip
        if at == parts_count:
            break
        data = np.concatenate([data[: starts[at]], np.empty(2 * len(data), np.uint8)])  # more room
    for which, offsets, content in texts:
        write_texts(content, offsets, bounds[which], orders[which], data, cursor)
    whole = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), parts_count, [None, pa.py_buffer(starts), pa.py_buffer(data)]
    )
    pages: list[bytes] = whole.to_pylist()
    return pages, over


def _texts(keyed_state: KeyedState, shape: Shape) -> list[tuple[int, pa.Array]]:
    """Every column of texts, with what has it: keys, ids of events, then as `Shape.texts`."""
    events = keyed_state.events
    columns = [(EVENTS, events.columns[name]) for name, code in shape.events if code == "t"]
    return [(KEYS, keyed_state.keys), (EVENTS, events.event_id), *columns]


def _event_table(keyed_state: KeyedState, shape: Shape, offsets: Sequence[Int64]) -> Int64:
    """Events by column: int64[C, E], but for the first one, the keys. `offsets` are those of `Shape.texts`."""
    events, count = keyed_state.events, len(shape.events)
    table = np.empty((shape.event_width, len(events)), np.int64)
    table[1], table[2] = events.event_type, events.time_ms
    for at, own in zip(shape.texts.tolist(), offsets, strict=True):
        np.subtract(own[1:], own[:-1], out=table[at])
    for at, (name, code) in enumerate(shape.events):
        column, flags = events.columns[name], _EVENT_FIXED + count + 1 + at
        if code == "t":
            table[flags] = np.asarray(column.is_null()) if column.null_count else 0
        else:
            table[_EVENT_FIXED + at], table[flags] = slots(column)
    return table


def _guessed_bytes(
    counts: Sequence[int], texts: Sequence[tuple[int, Int64, UInt8]], parts_count: int, shape: Shape
) -> int:
    """Room for pages as they are apart from rare ones."""
    columns = COUNTS + shape.width + shape.event_width
    numbers = 8 * counts[RUNS] + 4 * counts[NODES] + 2 * shape.event_width * counts[EVENTS]
    content = sum(int(offsets[-1] - offsets[0]) for _, offsets, _ in texts)
    return numbers + content + 4 * columns * parts_count + _PAGE_BYTES_MIN


def shape_number(page: bytes) -> int:
    """The shape that a page names. Raises: StateFormatError, StateCorruptError."""
    if len(page) < _HEAD.size:
        raise StateCorruptError(f"a page of {len(page)} bytes is shorter than its head of {_HEAD.size}")
    magic, format_, number = _HEAD.unpack_from(page)
    if magic != _MAGIC:
        raise StateCorruptError(f"a page begins with {magic!r}, not {_MAGIC!r}; the bytes are not ours")
    if format_ != PACKED_FORMAT:
        raise StateFormatError(
            f"a page has format {format_}, this build reads {PACKED_FORMAT}; make a savepoint with the build that "
            "wrote it and restore that"
        )
    return int(number)


def by_shape(pages: Sequence[bytes]) -> dict[int, list[bytes]]:
    """The pages by the number of their shape. Raises: StateFormatError, StateCorruptError."""
    if not pages:
        return {}
    head = pages[0][: _HEAD.size]
    if all(map(head.__eq__, [page[: _HEAD.size] for page in pages])):  # all but ever
        return {shape_number(pages[0]): list(pages)}
    found: dict[int, list[bytes]] = {}
    for page in pages:
        found.setdefault(shape_number(page), []).append(page)
    return found


def unpack(pages: Sequence[bytes], shape: Shape, row_registers: np.ndarray) -> KeyedState:
    """The state of all these pages, which have this shape and no key in common; its keys stand page by page.

    `row_registers` are those of the program that wrote them. Raises: StateCorruptError for bytes that do not add up.
    """
    reader = _Reader(pages)
    keys_count, runs_count, nodes_count, events_count = reader.bounds[:, -1].tolist()
    runs, raw = np.empty((runs_count, shape.width), np.int64), np.empty((runs_count, shape.width + 2), np.int64)
    run_rule, run_key = np.empty(runs_count, np.int32), np.empty(runs_count, np.int32)
    nodes, event_key = np.empty((nodes_count, NODE_WIDTH), np.int64), np.empty(events_count, np.int32)
    events, has = np.empty(shape.event_width * events_count, np.int64), np.zeros(shape.event_width, np.uint8)
    lengths, rule_ends = np.empty(keys_count, np.int64), np.zeros(len(row_registers) + 1, np.int64)
    if not read_rows(
        reader.data, reader.ends, reader.cursor, reader.bounds, row_registers, reader.line, raw, runs, run_rule,
        run_key, nodes, event_key, events, has, lengths, rule_ends,
    ):  # fmt: skip
        raise _torn()
    keys = reader.texts(KEYS, lengths, None)
    retained = _retained(reader, event_key, events.reshape(shape.event_width, -1), has.tolist(), shape)
    reader.end()
    return KeyedState(shape.layout, keys, runs, run_rule, run_key, nodes, retained)


def runs_count(pages: Sequence[bytes]) -> int:
    """How many runs are in these pages. Raises: StateCorruptError."""
    return int(_Reader(pages).bounds[RUNS, -1]) if pages else 0


def _retained(reader: _Reader, event_key: Int32, table: Int64, has: Sequence[int], shape: Shape) -> RetainedEvents:
    """The events of all pages; `has` says which columns of their table are not 0 everywhere."""
    count = len(shape.events)
    event_id = reader.texts(EVENTS, table[_EVENT_FIXED + count], None)
    columns: dict[str, pa.Array] = {}
    for at, (name, code) in enumerate(shape.events):
        values, flags = table[_EVENT_FIXED + at], _EVENT_FIXED + count + 1 + at
        nulls = table[flags].astype(bool) if has[flags] else None
        if code == "t":
            columns[name] = reader.texts(EVENTS, values, nulls)
        else:
            own = values.astype(bool) if code == "b" else values.view(_NUMBERS[code])
            columns[name] = pa.array(own, _TYPES[code], mask=nulls)
    return RetainedEvents(event_key, event_id, table[1], table[2], columns)


class _Reader:
    """Reads from all pages at once what `pack` has written to each, in the same order. `bounds` as in the kernels.

    Everything raises StateCorruptError where bytes are missing.
    """

    def __init__(self, pages: Sequence[bytes]) -> None:
        self.data = np.frombuffer(b"".join(pages), np.uint8)
        sizes = np.fromiter(map(len, pages), np.int64, len(pages))
        self.ends = np.cumsum(sizes)
        self.cursor = self.ends - sizes + _HEAD.size
        self.bounds = np.zeros((COUNTS, len(pages) + 1), np.int64)
        most = read_bounds(self.data, self.ends, self.cursor, self.bounds, np.empty(1, np.int64))
        if most < 0:
            raise _torn()
        self.line = np.empty(most, np.int64)

    def texts(self, which: int, lengths: Int64, nulls: NDArray[np.bool_] | None) -> pa.Array:
        """The next column of texts, of these lengths: one for each row of a kind."""
        size = int(lengths.sum())
        if not 0 <= size <= len(self.data):
            raise _torn()
        offsets, content = np.empty(len(lengths) + 1, np.int64), np.empty(size, np.uint8)
        if not read_texts(self.data, self.ends, self.cursor, self.bounds[which], lengths, offsets, content):
            raise _torn()
        valid = None if nulls is None else pa.array(~nulls).buffers()[1]
        return pa.LargeStringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(content), valid)

    def end(self) -> None:
        """All has been read."""
        if (self.cursor != self.ends).any():
            raise _torn()


def _torn() -> StateCorruptError:
    return StateCorruptError("what a page holds does not add up to its bytes; restore a checkpoint")
