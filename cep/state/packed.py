"""Many pages at once: the runs of a KeyedState ↔ the bytes of each page, without an object or a call for each of them.

    | "CPP" | format u8 | shape u64 | counts u32 × 4 | bytes of varying sections u32 … | sections … |   little-endian

A page here is a few keys, and a micro-batch touches many of them. So what all of them have in common, their *shape*
(the layout of their program, names and types of columns), is said once under its hash and not in every page; and pages
are taken apart and put together by one gather over all of their sections, which only counts and lengths describe:

    int64   runs, nodes, event type, event time, columns of numbers
    int32   run rule, run key, event key, lengths of texts
    uint8   texts, columns of truth, nulls of each column (empty, or one byte a row)

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
from cep.columnar.batch import TEXT
from cep.engine.keyed_state import KeyedState, Layout, RetainedEvents
from cep.engine.partition import Arranged
from cep.kernels import layout as y
from cep.kernels.layout import NODE_WIDTH, Int64

PACKED_FORMAT = 1
_MAGIC = b"CPP"
_HEAD = struct.Struct("<3sBQ")
_KEYS, _RUNS, _NODES, _EVENTS = range(4)
_COUNTS = 4
_CODES = {pa.int64(): "i", pa.float64(): "f", pa.bool_(): "b", TEXT: "t"}
_TYPES = {code: type_ for type_, code in _CODES.items()}
_NUMBERS = {"i": np.int64, "f": np.float64}
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
    def sections(self) -> tuple[tuple[int, int], ...]:
        """(which count, bytes a row) of every section behind the head; 0 bytes: its length is said in the head."""
        found = [(_RUNS, 8 * self.width), (_NODES, 8 * NODE_WIDTH), (_EVENTS, 8), (_EVENTS, 8)]
        columns = [(_EVENTS, code) for _, code in self.events]
        found += [(count, 8) for count, code in columns if code in _NUMBERS]
        found += [(_RUNS, 4), (_RUNS, 4), (_EVENTS, 4), (_KEYS, 4), (_EVENTS, 4)]
        found += [(count, 4) for count, code in columns if code == "t"]
        found += [(_KEYS, 0), (_EVENTS, 0)]
        found += [(count, 0 if code == "t" else 1) for count, code in columns if code in "tb"]
        return (*found, *((count, 0) for count, _ in columns))

    @cached_property
    def varying(self) -> NDArray[np.int64]:
        """The sections whose length is said in the head."""
        return np.flatnonzero(np.array([width == 0 for _, width in self.sections]))

    @property
    def head_bytes(self) -> int:
        return _HEAD.size + 4 * (_COUNTS + len(self.varying))

    def lengths(self, counts: Int64, varying: Int64) -> Int64:
        """The bytes of every section: int64[P, S] of counts int64[P, 4] and varying int64[P, V]."""
        which, width = np.array(self.sections, np.int64).T
        found: Int64 = counts[:, which] * width
        found[:, self.varying] = varying
        return found


# ------------------------------------------------------------------------------------------------------- pages


def pack(arranged: Arranged, shape: Shape) -> list[bytes]:
    """The bytes of each part; those of a part without keys mean nothing.

    Cost: O(state) copying, and less than a microsecond for each part.
    """
    bounds = (arranged.keys, arranged.runs, arranged.nodes, arranged.events)
    counts = np.stack([np.diff(own) for own in bounds], axis=1)
    parts_count = len(counts)
    found = _sections_of(arranged.whole, shape)
    assert len(found) == len(shape.sections), "one for each"
    # Where each part of each section begins, in the bytes of all sections one after the other.
    at = np.empty((len(found), parts_count + 1), np.int64)
    for number, ((which, width), (data, ends)) in enumerate(zip(shape.sections, found, strict=True)):
        at[number] = bounds[which] * width if ends is None else ends[bounds[which]]
        assert at[number, -1] == data.nbytes, "a section is all of its parts"
    varying = np.diff(at[shape.varying], axis=1).T
    head = np.zeros((parts_count, shape.head_bytes), np.uint8)
    head[:, : _HEAD.size] = np.frombuffer(_HEAD.pack(_MAGIC, PACKED_FORMAT, shape.number), np.uint8)
    head[:, _HEAD.size :] = np.concatenate([counts, varying], axis=1).astype("<u4").view(np.uint8)
    at = np.concatenate([np.arange(parts_count + 1)[None, :] * shape.head_bytes, at])
    data = np.concatenate([head.reshape(-1), *(section for section, _ in found)])
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(at[:, -1])])
    offsets = np.concatenate([(at[:, :-1] + starts[:-1, None]).reshape(-1), starts[-1:]])
    order = np.arange(len(at) * parts_count).reshape(len(at), parts_count).T.reshape(-1)
    offsets, content = _gathered(data, offsets, order)
    whole = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), parts_count, [None, pa.py_buffer(np.ascontiguousarray(offsets[:: len(at)])), content]
    )
    pages: list[bytes] = whole.to_pylist()
    return pages


def shape_number(page: bytes) -> int:
    """The shape that a page names. Raises: StateFormatError, StateCorruptError."""
    if len(page) < _HEAD.size:
        raise StateCorruptError(f"a page of {len(page)} bytes is shorter than its head of {_HEAD.size}")
    magic, format_, number = _HEAD.unpack_from(page)
    if magic != _MAGIC:
        raise StateCorruptError(f"a page begins with {magic!r}, not {_MAGIC!r}; the bytes are not ours")
    if format_ != PACKED_FORMAT:
        raise StateFormatError(
            f"a page has format {format_}, this build reads {PACKED_FORMAT}; start with the build that wrote it"
        )
    return int(number)


def unpack(pages: Sequence[bytes], shape: Shape, row_registers: np.ndarray | None) -> KeyedState:
    """The state of all these pages, which have this shape and no key in common; its keys stand page by page.

    `row_registers` are those of the program that wrote them; None if the pages are one.
    Raises: StateCorruptError for bytes that do not add up.
    """
    joined = np.frombuffer(b"".join(pages), np.uint8)
    sizes = np.fromiter(map(len, pages), np.int64, len(pages))
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    if int(sizes.min()) < shape.head_bytes:
        raise StateCorruptError(f"a page of {sizes.min()} bytes is shorter than its head of {shape.head_bytes}")
    heads = joined[starts[:-1, None] + np.arange(_HEAD.size, shape.head_bytes)]
    numbers = np.ascontiguousarray(heads).view("<u4").astype(np.int64)
    counts, varying = numbers[:, :_COUNTS], numbers[:, _COUNTS:]
    lengths = shape.lengths(counts, varying)
    if (lengths.sum(axis=1) + shape.head_bytes != sizes).any():
        raise StateCorruptError("the sections of a page do not add up to its bytes; restore a checkpoint")
    lengths = np.concatenate([np.full((len(pages), 1), shape.head_bytes), lengths], axis=1)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    order = np.arange(lengths.size).reshape(lengths.shape)[:, 1:].T.reshape(-1)
    ends, content = _gathered(joined, offsets, order)
    data, ends = np.frombuffer(content, np.uint8), ends[:: len(pages)]
    sections = [data[a:b] for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
    return _state_of(sections, counts, lengths[:, 1:], shape, row_registers)


def runs_count(pages: Sequence[bytes]) -> int:
    """How many runs are in these pages."""
    at = _HEAD.size + 4 * _RUNS
    return sum(int.from_bytes(page[at : at + 4], "little") for page in pages)


def _gathered(data: NDArray[np.uint8], offsets: Int64, order: Int64) -> tuple[Int64, pa.Buffer]:
    """The stretches offsets[i] <= at < offsets[i + 1] in another order: where each begins now, and their bytes."""
    array = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
    taken = array.take(pa.array(order))
    _, ends, content = taken.buffers()
    return np.frombuffer(ends, np.int64)[: len(order) + 1], content if content is not None else pa.py_buffer(b"")


# ---------------------------------------------------------------------------------------------------- sections


def _sections_of(keyed_state: KeyedState, shape: Shape) -> list[tuple[NDArray[np.uint8], Int64 | None]]:
    """The bytes of every section; of those with a varying length also where each row begins, and the last one ends."""
    events = keyed_state.events
    columns = [(events.columns[name], code) for name, code in shape.events]
    texts = [keyed_state.keys, events.event_id, *(column for column, code in columns if code == "t")]
    offsets = [_offsets(text) for text in texts]
    flat: list[np.ndarray] = [keyed_state.runs, keyed_state.nodes, events.event_type, events.time_ms]
    flat += [_values(column, _NUMBERS[code]) for column, code in columns if code in _NUMBERS]
    flat += [keyed_state.run_rule, keyed_state.run_key, events.key]
    flat += [np.diff(own).astype(np.int32) for own in offsets]
    found: list[tuple[NDArray[np.uint8], Int64 | None]] = [(_bytes(values), None) for values in flat]
    of_text = iter([(_text_bytes(text, own), own - own[0]) for text, own in zip(texts, offsets, strict=True)])
    found += [next(of_text), next(of_text)]
    found += [
        next(of_text) if code == "t" else (_bytes(_values(c, np.uint8)), None) for c, code in columns if code in "tb"
    ]
    for column, _ in columns:
        nulls = np.asarray(column.is_null()).astype(np.uint8) if column.null_count else np.empty(0, np.uint8)
        found.append((nulls, np.arange(len(column) + 1) if len(nulls) else np.zeros(len(column) + 1, np.int64)))
    return found


def _bytes(values: np.ndarray) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def _values(column: pa.Array, dtype: type) -> np.ndarray:
    if column.null_count:
        column = column.fill_null(False if pa.types.is_boolean(column.type) else 0)
    values: np.ndarray = column.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
    return values


def _offsets(text: pa.Array) -> Int64:
    """Where each text begins in the bytes of all, and where the last one ends."""
    if not len(text):
        return np.zeros(1, np.int64)
    return np.frombuffer(text.buffers()[1], np.int64)[text.offset : text.offset + len(text) + 1]


def _text_bytes(text: pa.Array, offsets: Int64) -> NDArray[np.uint8]:
    content = text.buffers()[2] if len(text) else None
    return np.empty(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)[offsets[0] : offsets[-1]]


def _state_of(
    sections: list[NDArray[np.uint8]], counts: Int64, lengths: Int64, shape: Shape, row_registers: np.ndarray | None
) -> KeyedState:
    """Of sections that hold the rows of all pages; what points within a page is moved to where it stands now."""
    own = iter(sections)

    def integers(dtype: type) -> np.ndarray:
        return next(own).view(dtype).copy()

    runs, nodes = integers(np.int64).reshape(-1, shape.width), integers(np.int64).reshape(-1, NODE_WIDTH)
    event_type, event_time = (integers(np.int64) for _ in range(2))
    codes = [code for _, code in shape.events]
    numbers = iter([next(own).view(_NUMBERS[code]).copy() for code in codes if code in _NUMBERS])
    run_rule, run_key, event_key = (integers(np.int32) for _ in range(3))
    text_lengths = iter([integers(np.int32) for _ in range(2 + codes.count("t"))])
    keys, event_id = (_text(next(text_lengths), next(own), None) for _ in range(2))
    varied = iter([next(own) for code in codes if code in "tb"])
    columns: list[pa.Array] = []
    for at, code in enumerate(codes):
        section = len(sections) - len(codes) + at
        nulls = _nulls(sections[section], counts[:, _EVENTS], lengths[:, section])
        if code == "t":
            columns.append(_text(next(text_lengths), next(varied), nulls))
        else:
            values = next(varied).astype(bool) if code == "b" else next(numbers)
            columns.append(pa.array(values, _TYPES[code], mask=nulls))
    before = np.cumsum(counts, axis=0) - counts
    if len(counts) > 1:
        assert row_registers is not None, "several pages"
        _move(runs, nodes, run_rule, counts, before, row_registers)
        keys_before = before[:, _KEYS].astype(np.int32)
        run_key += np.repeat(keys_before, counts[:, _RUNS])
        event_key += np.repeat(keys_before, counts[:, _EVENTS])
        order = np.lexsort((np.arange(len(run_key)), run_key, run_rule))
        runs, run_rule, run_key = runs[order], run_rule[order], run_key[order]
    of_events = {name: column for (name, _), column in zip(shape.events, columns, strict=True)}
    events = RetainedEvents(event_key, event_id, event_type, event_time, of_events)
    return KeyedState(shape.layout, keys, runs, run_rule, run_key, nodes, events)


def _move(
    runs: Int64, nodes: Int64, run_rule: np.ndarray, counts: Int64, before: Int64, row_registers: np.ndarray
) -> None:
    """What points to a node or a row of its page, to where that stands among those of all pages; in place."""
    rows_before, nodes_before = (np.repeat(before[:, which], counts[:, _RUNS]) for which in (_EVENTS, _NODES))
    runs[:, y.RUN_NODE] += nodes_before
    runs[:, y.RUN_START_ROW] += rows_before
    if row_registers.shape[1]:
        registers = runs[:, y.RUN_HEADER : y.RUN_HEADER + row_registers.shape[1]]
        holds_row = row_registers[run_rule].astype(bool) & (registers >= 0)
        registers += np.where(holds_row, rows_before[:, None], 0)
    rows_before, nodes_before = (np.repeat(before[:, which], counts[:, _NODES]) for which in (_EVENTS, _NODES))
    union = nodes[:, y.NODE_ROW] < 0
    nodes[:, y.NODE_ROW] += np.where(union, 0, rows_before)
    nodes[:, y.NODE_STATE] += np.where(union, nodes_before, 0)
    nodes[:, y.NODE_PREVIOUS] += np.where(nodes[:, y.NODE_PREVIOUS] >= 0, nodes_before, 0)


def _text(lengths: NDArray[np.int32], content: NDArray[np.uint8], nulls: NDArray[np.bool_] | None) -> pa.Array:
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    valid = None if nulls is None else pa.array(~nulls).buffers()[1]
    return pa.LargeStringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(content.copy()), valid)


def _nulls(flags: NDArray[np.uint8], rows: Int64, lengths: Int64) -> NDArray[np.bool_] | None:
    """bool[rows of all pages]: pages that had no null say nothing."""
    if not len(flags):
        return None
    found = np.zeros(int(rows.sum()), bool)
    found[np.repeat(lengths > 0, rows)] = flags.astype(bool)
    return found
