"""Histories of several pages ↔ one value for a call: joined before the call, divided by page after it.

Tested by: tests/histories/test_store.py, tests/step/test_step.py
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from cep.histories import store
from cep.kernels.layout import Int64


def concat_histories(parts: Sequence[tuple[int, store.Histories]]) -> store.Histories:
    """Join the histories of pages (stored groups of keys), each with its number, for one batch. No key is in two parts.

    A part without a page (-1) is the past of a whole state. Such parts are joined to divide them in another way. Then
    all tallies (running counts and sums) are dropped, because they may be of different times.
    """
    if not parts:
        return store.no_histories()
    if len(parts) > 1 and any(page < 0 for page, _ in parts):
        panes = [part.facts.panes for _, part in parts if part]  # the numbers of complete panes
        facts = store.PageFacts(panes=frozenset.intersection(*panes) if panes else frozenset())
        parts = [(page, replace(part, tallies={}, sub_tallies={}, facts=facts, pages={})) for page, part in parts]
    offsets = np.cumsum([0, *(len(part.keys) for _, part in parts)])
    numbered = [(part, offset) for (_, part), offset in zip(parts, offsets[:-1], strict=True)]
    pinned = [part.pinned.of_keys(part.pinned.key + np.int32(offset)) for part, offset in numbered]
    names = dict.fromkeys(name for _, part in parts for name in part.tallies)
    subs: dict[str, list[store.SubTallies]] = {}
    for part, offset in numbered:
        for name, entries in part.sub_tallies.items():
            subs.setdefault(name, []).append(entries.of_keys(entries.key + offset))
    return store.Histories(
        pa.concat_arrays([part.keys for _, part in parts]),
        store.concat_rows(pinned),
        tuple(replace(segment, page=page) for page, part in parts for segment in part.segments),
        max(part.excess_allowed for _, part in parts),
        parts[0][1].facts if len(parts) == 1 else store.PageFacts(),
        tallies={name: np.concatenate([_tally(part, name) for _, part in parts]) for name in names},
        sub_tallies={name: store.concat_sub_tallies(entries) for name, entries in subs.items()},
        pages={page: part.facts for page, part in parts},
    )


def _tally(part: store.Histories, name: str) -> Int64:
    tally = part.tallies.get(name)
    return np.zeros((len(part.keys), store.tally_width(name)), np.int64) if tally is None else tally


def keys_with_past(histories: store.Histories) -> pa.Array:
    """Return the keys that have a past, possibly repeated. Every segment is read."""
    return pa.concat_arrays([histories.keys, *(segment.load().keys for segment in histories.segments)])


def detach_segments(segments: Sequence[store.Segment]) -> tuple[store.Segment, ...]:
    """Return the segments as unstored and without a page, so that they can be divided by key again."""
    return tuple(replace(segment, stored=None, page=-1) for segment in segments)


def partition_histories(
    histories: store.Histories, pages: Sequence[int], page_of: Callable[[pa.Array], Int64]
) -> list[store.Histories]:
    """Divide histories by page. `pages` are ascending; `page_of` returns the page of each key of an array."""
    if not pages:
        return []
    if len(pages) == 1:
        return [replace(histories, segments=tuple(replace(s, page=pages[0]) for s in histories.segments))]
    at_page = {page: part_index for part_index, page in enumerate(pages)}
    segments: list[list[store.Segment]] = [[] for _ in pages]
    for segment in histories.segments:
        if segment.page >= 0:
            segments[at_page[segment.page]].append(segment)
            continue
        block = segment.load()
        for part_index, share in _cut(block.keys, block.rows, np.searchsorted(pages, page_of(block.keys)), len(pages)):
            share_segment = store.segment_of(share, segment.span_ms, pages[part_index], segment.panes_number)
            segments[part_index].append(share_segment)
    parts = [
        store.Histories(segments=tuple(theirs), excess_allowed=histories.excess_allowed, facts=histories.facts)
        for theirs in segments
    ]
    if len(histories.keys):
        part = np.searchsorted(pages, page_of(histories.keys))
        order = np.argsort(part, kind="stable")
        bounds = np.searchsorted(part[order], np.arange(len(pages) + 1))
        pinned_part = part[histories.pinned.key]
        for part_index in np.flatnonzero(np.diff(bounds)).tolist():
            chosen = order[bounds[part_index] : bounds[part_index + 1]]
            rows = histories.pinned.take(np.flatnonzero(pinned_part == part_index))
            key = np.searchsorted(chosen, rows.key).astype(np.int32)
            tallies = {name: tally[chosen] for name, tally in histories.tallies.items()}
            subs = {}
            for name, entries in histories.sub_tallies.items():
                theirs = entries.take(np.flatnonzero(part[entries.key] == part_index))
                subs[name] = theirs.of_keys(np.searchsorted(chosen, theirs.key))
            parts[part_index] = replace(
                parts[part_index], keys=histories.keys.take(pa.array(chosen)), pinned=rows.of_keys(key),
                tallies=tallies, sub_tallies=subs,
            )  # fmt: skip
    return parts


def _cut(keys: pa.Array, rows: store.HistoryRows, part: Int64, parts_count: int) -> list[tuple[int, store.Block]]:
    """Divide events among parts, part int64[K] of each key. Return (part, events) for each part that has events."""
    row_part = part[rows.key]
    order = np.argsort(row_part, kind="stable")
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(row_part, minlength=parts_count))])
    ordered = rows.take(order)
    shares = []
    for part_index in np.flatnonzero(np.diff(bounds)).tolist():
        part_rows = ordered.take(np.arange(bounds[part_index], bounds[part_index + 1]))
        used_keys, key = np.unique(part_rows.key, return_inverse=True)
        block = store.Block(keys.take(pa.array(used_keys)), part_rows.of_keys(key.astype(np.int32)))
        shares.append((part_index, block))
    return shares
