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
from cep.columnar.batch import TEXT, read_only
from cep.engine.keyed_state import KeyedState, Layout, RetainedEvents
from cep.engine.partition import Arranged
from cep.kernels.layout import NODE_WIDTH, Int64
from cep.kernels.packed import measure_columns, read_bytes, read_columns, write_bytes, write_columns
from cep.kernels.parts import point_among_all

PACKED_FORMAT = 2  # 1 had eight bytes for every number
_MAGIC = b"CPP"
_HEAD = struct.Struct("<3sBQ")
_KEYS, _RUNS, _NODES, _EVENTS = range(4)
_COUNTS = 4
_COUNT_MAX = 1 << 31  # of the rows of a page, whose bytes say anything at all
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
    def head(self) -> bytes:
        """What every page of this shape begins with."""
        return _HEAD.pack(_MAGIC, PACKED_FORMAT, self.number)

    @property
    def event_width(self) -> int:
        """The columns of the table of events."""
        return _EVENT_FIXED + len(self.events) + 1 + len(self.events)


# ------------------------------------------------------------------------------------------------------- pages


def pack(arranged: Arranged, shape: Shape) -> list[bytes]:
    """The bytes of each part; those of a part without keys mean nothing.

    Cost: O(state), and less than a microsecond for each part.
    """
    bounds = (arranged.keys, arranged.runs, arranged.nodes, arranged.events)
    counts = np.stack([np.diff(own) for own in bounds], axis=1)
    each = np.arange(len(counts) + 1)
    tables = [(counts, each), *_tables(arranged, shape)]
    texts = [(content, offsets[bounds[which]]) for which, content, offsets in _texts(arranged.whole, shape)]
    sizes = np.full(len(counts), len(shape.head), np.int64)
    measured = [_measured(table, own, sizes) for table, own in tables]
    for _, own in texts:
        sizes += np.diff(own)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    data = np.empty(int(starts[-1]), np.uint8)
    cursor = starts[:-1] + len(shape.head)
    data[starts[:-1, None] + np.arange(len(shape.head))] = np.frombuffer(shape.head, np.uint8)
    for (table, own), (widths, bases) in zip(tables, measured, strict=True):
        write_columns(table, own, widths, bases, data, cursor)
    for content, own in texts:
        write_bytes(content, own, data, cursor)
    whole = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(counts), [None, pa.py_buffer(starts), pa.py_buffer(data)]
    )
    pages: list[bytes] = whole.to_pylist()
    return pages


def _measured(table: Int64, bounds: Int64, sizes: Int64) -> tuple[NDArray[np.uint8], Int64]:
    """How the columns of each page are written, widths and bases; `sizes` grow by the bytes of each page."""
    shape = (len(sizes), table.shape[1])
    widths, bases = np.empty(shape, np.uint8), np.empty(shape, np.int64)
    measure_columns(table, bounds, widths, bases, sizes)
    return widths, bases


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


def unpack(pages: Sequence[bytes], shape: Shape, row_registers: np.ndarray | None) -> KeyedState:
    """The state of all these pages, which have this shape and no key in common; its keys stand page by page.

    `row_registers` are those of the program that wrote them; None if the pages are one.
    Raises: StateCorruptError for bytes that do not add up.
    """
    reader = _Reader(pages)
    counts = reader.counts
    before = np.cumsum(counts, axis=0) - counts
    bounds = [np.concatenate([before[:, which], counts[:, which].sum(keepdims=True)]) for which in range(_COUNTS)]
    runs = reader.table(bounds[_RUNS], shape.width + 2)
    nodes = reader.table(bounds[_NODES], NODE_WIDTH)
    events = reader.table(bounds[_EVENTS], shape.event_width)
    lengths = reader.table(bounds[_KEYS], 1)
    keys = reader.texts(lengths[:, 0], bounds[_KEYS], None)
    retained = _retained(reader, events, bounds[_EVENTS], shape)
    reader.end()
    run_rule, run_key = runs[:, shape.width].astype(np.int32), runs[:, shape.width + 1].astype(np.int32)
    runs = np.ascontiguousarray(runs[:, : shape.width])
    if len(pages) > 1:  # what points to a node or a row of its page
        assert row_registers is not None, "several pages"
        own = (bounds[which] for which in (_RUNS, _NODES, _EVENTS))
        if not point_among_all(runs, run_rule, nodes, row_registers, *own):
            raise _torn()
        keys_before = before[:, _KEYS].astype(np.int32)
        run_key += np.repeat(keys_before, counts[:, _RUNS])
        retained.key[:] += np.repeat(keys_before, counts[:, _EVENTS])
        order = np.lexsort((run_key, run_rule))
        runs, run_rule, run_key = runs.take(order, axis=0), run_rule[order], run_key[order]
    return KeyedState(shape.layout, keys, runs, run_rule, run_key, nodes, retained)


def runs_count(pages: Sequence[bytes]) -> int:
    """How many runs are in these pages. Raises: StateCorruptError."""
    return int(_Reader(pages).counts[:, _RUNS].sum()) if pages else 0


class _Reader:
    """Reads from all pages at once what `pack` has written to each, in the same order.

    Everything raises StateCorruptError where bytes are missing.
    """

    def __init__(self, pages: Sequence[bytes]) -> None:
        self._data = np.frombuffer(b"".join(pages), np.uint8)
        sizes = np.fromiter(map(len, pages), np.int64, len(pages))
        self._ends = np.cumsum(sizes)
        self._cursor = self._ends - sizes + _HEAD.size
        self.counts = self.table(np.arange(len(pages) + 1), _COUNTS)
        if ((self.counts < 0) | (self.counts > _COUNT_MAX)).any():
            raise _torn()

    def table(self, bounds: Int64, width: int) -> Int64:
        """The next table: int64[rows of all pages, width]; those of page p are bounds[p] <= i < bounds[p + 1]."""
        found = np.empty((int(bounds[-1]), width), np.int64)
        if not read_columns(self._data, self._ends, self._cursor, bounds, found):
            raise _torn()
        return found

    def texts(self, lengths: Int64, bounds: Int64, nulls: NDArray[np.bool_] | None) -> pa.Array:
        """The next column of texts, of these lengths."""
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        own = offsets[bounds]
        if (lengths < 0).any() or int(own[-1]) > len(self._data):
            raise _torn()
        content = np.empty(int(own[-1]), np.uint8)
        if not read_bytes(self._data, self._ends, self._cursor, own, content):
            raise _torn()
        valid = None if nulls is None else pa.array(~nulls).buffers()[1]
        return pa.LargeStringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(content), valid)

    def end(self) -> None:
        """All has been read."""
        if (self._cursor != self._ends).any():
            raise _torn()


def _torn() -> StateCorruptError:
    return StateCorruptError("what a page holds does not add up to its bytes; restore a checkpoint")


# ------------------------------------------------------------------------------------------------------ tables


def _tables(arranged: Arranged, shape: Shape) -> list[tuple[Int64, Int64]]:
    """Runs, nodes, events and keys as tables, with the rows of each part."""
    whole = arranged.whole
    events = whole.events
    runs = np.empty((len(whole.runs), shape.width + 2), np.int64)
    runs[:, : shape.width] = whole.runs
    runs[:, shape.width], runs[:, shape.width + 1] = whole.run_rule, whole.run_key
    own = np.empty((len(events), shape.event_width), np.int64)
    own[:, 0], own[:, 1], own[:, 2] = events.key, events.event_type, events.time_ms
    own[:, _EVENT_FIXED + len(shape.events)] = np.diff(_offsets(events.event_id))
    for at, (name, code) in enumerate(shape.events):
        column = events.columns[name]
        own[:, _EVENT_FIXED + at] = np.diff(_offsets(column)) if code == "t" else _bits(column, code)
        is_null = np.asarray(column.is_null()) if column.null_count else 0
        own[:, _EVENT_FIXED + len(shape.events) + 1 + at] = is_null
    keys = np.diff(_offsets(whole.keys))[:, None]
    return [(runs, arranged.runs), (whole.nodes, arranged.nodes), (own, arranged.events), (keys, arranged.keys)]


def _texts(keyed_state: KeyedState, shape: Shape) -> list[tuple[int, NDArray[np.uint8], Int64]]:
    """(which count, bytes, where each row begins and the last one ends) of every column of texts."""
    events = keyed_state.events
    columns = [(_KEYS, keyed_state.keys), (_EVENTS, events.event_id)]
    columns += [(_EVENTS, events.columns[name]) for name, code in shape.events if code == "t"]
    return [(which, _text_bytes(column), _offsets(column)) for which, column in columns]


def _retained(reader: _Reader, rows: Int64, bounds: Int64, shape: Shape) -> RetainedEvents:
    """The events of all pages; the numbers of their keys are those within a page."""
    names = len(shape.events)
    event_id = reader.texts(rows[:, _EVENT_FIXED + names], bounds, None)
    columns: dict[str, pa.Array] = {}
    for at, (name, code) in enumerate(shape.events):
        values = rows[:, _EVENT_FIXED + at]
        flags = rows[:, _EVENT_FIXED + names + 1 + at]
        nulls = flags.astype(bool) if flags.any() else None
        if code == "t":
            columns[name] = reader.texts(values, bounds, nulls)
        else:
            own = values.astype(bool) if code == "b" else np.ascontiguousarray(values).view(_NUMBERS[code])
            columns[name] = pa.array(own, _TYPES[code], mask=nulls)
    return RetainedEvents(rows[:, 0].astype(np.int32), event_id, rows[:, 1].copy(), rows[:, 2].copy(), columns)


def _bits(column: pa.Array, code: str) -> np.ndarray:
    """Numbers as int64 with the same bits, truth as 0 or 1; 0 for a null."""
    if column.null_count:
        column = column.fill_null(False if code == "b" else 0)
    values: np.ndarray = column.to_numpy(zero_copy_only=False)
    return values if code == "b" else values.view(np.int64)


def _offsets(text: pa.Array) -> Int64:
    """Where each text begins in its buffer, and where the last one ends."""
    if not len(text):
        return np.zeros(1, np.int64)
    return np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]


def _text_bytes(text: pa.Array) -> NDArray[np.uint8]:
    content = text.buffers()[2] if len(text) else None
    # As an array that cannot be written to in either case: another type to the compiler.
    return read_only(np.empty(0, np.uint8)) if content is None else np.frombuffer(content, np.uint8)
