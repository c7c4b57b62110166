"""Decoded events → one EventBatch a key domain, split by key group.

A key domain is a tuple of key fields. An event goes once to every domain of the job whose fields its type has and that
are not null in it. The key is text: the fields' values, joined by U+001F where there are several. In parts that hold
one, U+001F is written U+001E 1, and U+001E is written U+001E 0.
Tested by: tests/columnar/test_route.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.base.schema import Kind, Type
from cep.columnar.batch import TEXT, EventBatch, text_buffers
from cep.columnar.decode import Decoded
from cep.kernels.arrange import hash_slots, hash_texts
from cep.kernels.layout import Int64

KEY_SEPARATOR = "\x1f"
_ESCAPE = "\x1e"
KeyDomain = tuple[str, ...]


def route(decoded: Decoded, domain: KeyDomain, types: dict[str, Type]) -> tuple[EventBatch, int]:
    """Return the events with a key in this domain, and the number of events without one."""
    parts = [_key_text(decoded.columns[field], types[field]) for field in domain]
    key = parts[0] if len(parts) == 1 else _composite(parts)
    batch = EventBatch(key, decoded.event_id, decoded.event_type, decoded.time_ms, decoded.columns, decoded.order)
    if key.null_count == 0:
        return batch, 0
    keyed = np.asarray(pc.is_valid(key))
    return batch.take(keyed), int(len(keyed) - keyed.sum())


def _composite(parts: Sequence[pa.Array]) -> pa.Array:
    """Join the parts; null where one is. A part that holds the separator is escaped: no two keys look alike."""
    safe = [_escaped(part) for part in parts]
    return pc.binary_join_element_wise(*safe, pa.scalar(KEY_SEPARATOR, TEXT))


def _escaped(part: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring_regex(part, f"[{_ESCAPE}{KEY_SEPARATOR}]")).as_py():
        return part
    part = pc.replace_substring(part, _ESCAPE, _ESCAPE + "0")
    return pc.replace_substring(part, KEY_SEPARATOR, _ESCAPE + "1")


def key_of(parts: Sequence[str]) -> str:
    """Return the key that `route` makes of these values."""
    if len(parts) == 1:
        return parts[0]
    return KEY_SEPARATOR.join(p.replace(_ESCAPE, _ESCAPE + "0").replace(KEY_SEPARATOR, _ESCAPE + "1") for p in parts)


def key_parts(key: str, domain: KeyDomain) -> list[str]:
    """Return the values of a key as `route` joined them."""
    if len(domain) == 1:
        return [key]
    return [p.replace(_ESCAPE + "1", KEY_SEPARATOR).replace(_ESCAPE + "0", _ESCAPE) for p in key.split(KEY_SEPARATOR)]


def _key_text(values: pa.Array, type_: Type) -> pa.Array:
    if type_.kind is Kind.ENUM:
        return pa.array(type_.symbols, TEXT).take(values)
    return values if values.type == TEXT else values.cast(TEXT)


def key_hashes(key: pa.Array) -> np.ndarray:
    """Hash each key, the same in every process: uint64[N]."""
    offsets, data = text_buffers(key)
    hashes = np.empty(len(key), np.uint64)
    hash_texts(offsets, data, 0, hashes)
    return hashes


def key_groups(key: pa.Array, groups_count: int) -> np.ndarray:
    """Return the key group of each key: int32[N] in [0, groups_count)."""
    return key_slots(key, groups_count, 1, 0).astype(np.int32)


def key_pages(key: pa.Array, groups_count: int, pages_count: int) -> np.ndarray:
    """Return the page of each key inside its key group: int32[N] in [0, pages_count)."""
    return (key_slots(key, groups_count, pages_count, 0) % pages_count).astype(np.int32)


def key_slots(key: pa.Array, groups_count: int, pages_count: int, first_group: int) -> Int64:
    """Return the number of each key's page, counted from key group `first_group`: int64[N].

    Keys of later key groups are beyond the last page, keys of earlier ones below 0.
    """
    offsets, data = text_buffers(key)
    slots: Int64 = np.empty(len(key), np.int64)
    hash_slots(offsets, data, groups_count, first_group, pages_count, slots)
    return slots


def split_by_group(batch: EventBatch, groups_count: int) -> Iterator[tuple[int, EventBatch]]:
    """(key group, its events) for each group that has any, in group order; the order of events is kept."""
    groups = key_groups(batch.key, groups_count).astype(np.uint16)  # 16 bits: numpy sorts those by counting
    order = np.argsort(groups, kind="stable")
    sorted_batch = batch.take(order)
    sorted_groups = groups[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = sorted_groups[1:] != sorted_groups[:-1]
    bounds = [*np.flatnonzero(is_first).tolist(), len(order)]
    for start, end in pairwise(bounds):
        yield int(sorted_groups[start]), slice_batch(sorted_batch, start, end)


def slice_batch(batch: EventBatch, start: int, end: int) -> EventBatch:
    """Events [start, end), without a copy."""
    return EventBatch(
        batch.key.slice(start, end - start),
        batch.event_id.slice(start, end - start),
        batch.event_type[start:end],
        batch.time_ms[start:end],
        {name: column.slice(start, end - start) for name, column in batch.columns.items()},
        None if batch.order is None else batch.order[start:end],
    )
