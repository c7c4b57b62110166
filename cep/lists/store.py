"""The lists of a job: their sets in a folder or in memory, their content, and the version that an event sees.

    FOLDER/NAME.keys    one set (members.py), written once

A name identifies the records from which the set was made: an existing set is not made again. All users of a set in a
process share one mapping.

    base       4111 4222 …   millions, shared by many versions
    added      4333          not in the base
    removed    4222          of the base

A change of a few entries makes two small sets and leaves the base alone; past LIST_CHANGES_MAX a new base is made.

    version 1   ├────────┤
    version 2            ├─────▶      an event of time t sees the last version that starts at or before t

Before the first version a list is unknown, not empty: whether something is in it is null then. A list that a rule gives
in place is a name that is the JSON of its entries.
Tested by: tests/lists/test_lists.py
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
import pyarrow as pa

from cep.base.limits import LIST_CHANGES_MAX, TIME_MS_MIN
from cep.kernels.layout import Int64, UInt8
from cep.kernels.records import Layers
from cep.kernels.text.members import networks_within, numbers_within, prefixes_within, texts_within
from cep.lists.entries import TEXT, Keys, keys_of, text_keys
from cep.lists.members import EMPTY, KeySet, build, choose_keys, join_keys, map_set_file, write

SUFFIX = ".keys"
NO_ENTRIES = ""  # the name of the empty set
_GIVEN = "0" * 16
_MAPPED_MAX = 1_024
_MAPPED: OrderedDict[Path, KeySet] = OrderedDict()


def name_of(*parts: str | bytes) -> str:
    """Name a set that is made of these parts."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def given_name(kind: str, digest: str) -> str:
    """Return the name of a set with which a job begins. Any start may need it, independent of the rules."""
    return _GIVEN + name_of("given", kind, digest)[len(_GIVEN) :]


def is_given(name: str) -> bool:
    """Return True if it is such a name."""
    return name.startswith(_GIVEN)


@dataclass(frozen=True, slots=True, eq=False)
class ListStore:
    """The sets of one job. Without a folder they are in memory and private."""

    folder: Path | None = None
    _sets: dict[str, KeySet] = field(default_factory=dict, compare=False, repr=False)

    def put(self, name: str, make: Callable[[], KeySet]) -> None:
        """Store the set with this name, if it is new. Raises: StoreError, and the errors of `make`."""
        if self.folder is None:
            if name not in self._sets:
                self._sets[name] = make()
        elif not self.path(name).exists():
            write(self.path(name), make())

    def get(self, name: str) -> KeySet:
        """Return the set with this name. Raises: StateCorruptError if it is missing or damaged.

        The file of a name never changes, so the mappings of files into memory are shared; the oldest ones are dropped.
        """
        if name == NO_ENTRIES:
            return EMPTY
        if self.folder is None:
            return self._sets[name]
        path = self.path(name)
        if path not in _MAPPED:
            _MAPPED[path] = map_set_file(path)
            while len(_MAPPED) > _MAPPED_MAX:
                _MAPPED.popitem(last=False)
        return _MAPPED[path]

    def path(self, name: str) -> Path:
        assert self.folder is not None, "sets in memory have no files"
        return self.folder / (name + SUFFIX)

    def names(self) -> list[str]:
        if self.folder is None:
            return list(self._sets)
        return sorted(path.name.removesuffix(SUFFIX) for path in self.folder.glob("*" + SUFFIX) if path.name[0] != ".")

    def files(self) -> list[Path]:
        return [] if self.folder is None else [self.path(name) for name in self.names()]

    def __eq__(self, other: object) -> bool:
        """Return True for the same folder. A store in memory equals itself alone."""
        same_folder = isinstance(other, ListStore) and self.folder is not None and self.folder == other.folder
        return self is other or same_folder

    def __hash__(self) -> int:
        return id(self) if self.folder is None else hash(self.folder)

    def copy_into(self, other: ListStore) -> None:
        """Put every set into another store. Raises: StoreError."""
        for name in self.names():
            other.put(name, lambda members=name: self.get(members))  # type: ignore[misc]

    def keep_only(self, names: Iterable[str]) -> None:
        """Remove the sets without a name in use; a mapped set stays until it is released."""
        for name in set(self.names()) - set(names):
            if self.folder is None:
                del self._sets[name]
            else:
                _MAPPED.pop(self.path(name), None)
                self.path(name).unlink(missing_ok=True)


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
        """Return the content after a change. It is `base` and `added` without `removed`; after many changes all keys
        become a new base. Cost: the keys of the change, added and removed ones, or all keys."""
        if change == "replace":
            return Content(self.kind, build(keys, self.kind))
        in_base = self.base.has(keys)
        added, removed = self.added.keys, self.removed.keys
        keys_set = build(keys, self.kind)
        if change == "add":
            added = join_keys(added, choose_keys(keys, ~in_base))
            removed = choose_keys(removed, ~keys_set.has(removed))
        else:  # remove
            added = choose_keys(added, ~keys_set.has(added))
            removed = join_keys(removed, choose_keys(keys, in_base))
        after = Content(self.kind, self.base, build(added, self.kind), build(removed, self.kind))
        return after if len(after.added) + len(after.removed) <= LIST_CHANGES_MAX else after.with_new_base()

    def with_new_base(self) -> Content:
        remaining = choose_keys(self.base.keys, ~self.removed.has(self.base.keys))
        return Content(self.kind, build(join_keys(remaining, self.added.keys), self.kind))

    def texts_within(self, texts: pa.Array) -> tuple[UInt8, UInt8]:
        """Look up texts, none of which is null. Return two uint8[N]: 1 for texts in the list, 1 for invalid addresses.

        `_layers` are the sets of base, added and removed keys. `_lengths` has a 1 for each length of a prefix in them.
        """
        texts = texts.cast(TEXT)
        is_member, is_invalid = np.empty(len(texts), np.uint8), np.zeros(len(texts), np.uint8)
        keys = text_keys(texts)
        if self.kind == "cidr":
            networks_within(self._layers, self._lengths, keys.offsets, keys.data, is_member)
            is_invalid = (is_member == 2).astype(np.uint8)  # 2: the text is not an address
            is_member[is_invalid != 0] = 0
        elif self.kind == "prefix":
            lengths = self._lengths[: 1 + _last(self._lengths)]  # up to the longest prefix
            prefixes_within(self._layers, lengths, keys.offsets, keys.data, is_member)
        else:
            texts_within(self._layers, keys.offsets, keys.data, is_member)
        return is_member, is_invalid

    def numbers_within(self, values: Int64) -> UInt8:
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


_IN_PLACE_CACHED = 1_024


@dataclass(frozen=True)  # without slots: the content is loaded when it is first asked for
class ListVersion:
    """A version of a list, from event time `from_ms` on. `base`, `added` and `removed` are names of sets in `store`."""

    from_ms: int
    kind: str
    store: ListStore
    base: str
    added: str = NO_ENTRIES
    removed: str = NO_ENTRIES

    @cached_property
    def content(self) -> Content:
        """The keys, read at first use. Raises: StateCorruptError if a file of a set is damaged or gone."""
        return Content(self.kind, *(self.store.get(name) for name in (self.base, self.added, self.removed)))


@dataclass(frozen=True, slots=True)
class FixedVersion:
    """A version whose content is here."""

    from_ms: int
    content: Content


Timeline = Sequence[ListVersion | FixedVersion]  # in the order of their starts
Lists = Mapping[tuple[str, str], Timeline]  # by name and kind
NO_LISTS: Lists = MappingProxyType({})


def timeline_of(lists: Lists, name: str, kind: str) -> Timeline:
    """Return the versions of a list, if any."""
    return _in_place(name, kind) if name.startswith("[") else lists.get((name, kind), ())


def fixed(entries: Sequence[str], kind: str) -> Timeline:
    """Make a list with these entries, which are checked already, for all time."""
    keys, wrong = keys_of(entries, kind)
    assert not wrong, wrong
    return (FixedVersion(TIME_MS_MIN, Content(kind).changed("replace", keys)),)


@lru_cache(_IN_PLACE_CACHED)
def _in_place(name: str, kind: str) -> Timeline:
    return fixed(json.loads(name), kind)


def spans(timeline: Timeline, times: Int64) -> Iterator[tuple[Content | None, Int64 | slice]]:
    """Group times by the version of a list at that time. Yield (content, rows); None before the first version."""
    if not timeline or not len(times):
        yield None, slice(None)
        return
    starts = np.array([version.from_ms for version in timeline], np.int64)
    numbers = np.searchsorted(starts, times, side="right") - 1
    first, last = int(numbers.min()), int(numbers.max())
    for number in range(first, last + 1):
        rows: Int64 | slice = slice(None) if first == last else np.flatnonzero(numbers == number)
        if isinstance(rows, slice) or len(rows):
            yield (timeline[number].content if number >= 0 else None), rows
