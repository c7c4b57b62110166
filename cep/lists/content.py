"""The entries of a list at one time: a base, and the few entries added and removed → who is in it.

    base       4111 4222 …   millions, shared by many versions
    added      4333          not in the base
    removed    4222          of the base

A change of a few entries makes two small sets and leaves the base alone; past LIST_CHANGES_MAX a new base is made.
Tested by: tests/lists/test_lists.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from cep.base.limits import LIST_CHANGES_MAX
from cep.kernels.layout import Int64, UInt8
from cep.kernels.records import Layers
from cep.kernels.text.members import networks_within, numbers_within, prefixes_within, texts_within
from cep.lists.entries import TEXT, Keys
from cep.lists.members import EMPTY, KeySet, build, chosen, joined

ChangeKind = Literal["replace", "add", "remove"]


@dataclass(frozen=True, slots=True)
class Content:
    """A list of one kind. `added` and `base` are disjoint, `removed` is part of `base`."""

    kind: str
    base: KeySet = EMPTY
    added: KeySet = EMPTY
    removed: KeySet = EMPTY

    def __len__(self) -> int:
        return len(self.base) + len(self.added) - len(self.removed)

    @property
    def digest(self) -> str:
        """Equal for lists of one kind with the same entries, however they came about. 32 hexadecimal digits."""
        parts = zip(self.base.digest, self.added.digest, self.removed.digest, strict=True)
        return "".join(f"{(base + added - removed) % 2**64:016x}" for base, added, removed in parts)

    def changed(self, change: ChangeKind, keys: Keys) -> Content:
        """Return the content after an addition, a removal or a replacement.

        Cost: proportional to the keys and to the difference from the base; for a replacement or a new base, to all
        entries.
        """
        if change == "replace":
            return Content(self.kind, build(keys, self.kind))
        in_base = self.base.has(keys)
        added, removed = self.added.keys, self.removed.keys
        keys_set = build(keys, self.kind)
        if change == "add":
            added = joined(added, chosen(keys, ~in_base))
            removed = chosen(removed, ~keys_set.has(removed))
        else:
            added = chosen(added, ~keys_set.has(added))
            removed = joined(removed, chosen(keys, in_base))
        after = Content(self.kind, self.base, build(added, self.kind), build(removed, self.kind))
        return after if len(after.added) + len(after.removed) <= LIST_CHANGES_MAX else after.settled()

    def settled(self) -> Content:
        """Return the same entries, all of them in the base."""
        remaining = chosen(self.base.keys, ~self.removed.has(self.base.keys))
        return Content(self.kind, build(joined(remaining, self.added.keys), self.kind))

    def texts_within(self, texts: pa.Array) -> tuple[UInt8, UInt8]:
        """Look texts up in the list.

        Returns uint8[N] twice: 1 for texts in the list, and 1 for texts that are not addresses.

        No text is null.
        """
        texts = texts.cast(TEXT)
        is_member, is_invalid = np.empty(len(texts), np.uint8), np.zeros(len(texts), np.uint8)
        _, bounds, buffer = texts.buffers()
        offsets = np.frombuffer(bounds, np.int64, len(texts) + 1, texts.offset * 8) if len(texts) else np.zeros(1, int)
        data = np.frombuffer(buffer, np.uint8) if buffer is not None and buffer.size else np.zeros(0, np.uint8)
        if self.kind == "cidr":
            networks_within(self._layers, self._lengths, offsets, data, is_member)
            is_invalid = (is_member == 2).astype(np.uint8)
            is_member[is_invalid != 0] = 0
        elif self.kind == "prefix":
            prefixes_within(self._layers, self._lengths[: 1 + _last(self._lengths)], offsets, data, is_member)
        else:
            texts_within(self._layers, offsets, data, is_member)
        return is_member, is_invalid

    def numbers_within(self, values: Int64) -> UInt8:
        """Flag the scaled numbers that are in the list: uint8[N]."""
        out = np.empty(len(values), np.uint8)
        numbers_within(self._layers, np.ascontiguousarray(values), out)
        return out

    @property
    def _layers(self) -> Layers:
        return Layers(self.base.members, self.added.members, self.removed.members)

    @property
    def _lengths(self) -> UInt8:
        return self.base.lengths | self.added.lengths


def _last(flags: UInt8) -> int:
    places = np.flatnonzero(flags)
    return int(places[-1]) if len(places) else 0
