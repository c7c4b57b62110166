"""The versions of a list, in event time → which version an event sees.

    version 1   ├────────┤
    version 2            ├─────▶      an event of time t sees the last version that starts at or before t

Before the first version a list is unknown, not empty: whether something is in it is null then. A list that a rule gives
in place is a name that is the JSON of its entries.
Tested by: tests/lists/test_lists.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType

import numpy as np

from cep.base.limits import TIME_MS_MIN
from cep.kernels.layout import Int64
from cep.lists.content import Content
from cep.lists.entries import keys_of
from cep.lists.store import NOTHING, ListStore

_IN_PLACE_CACHED = 1_024


@dataclass(frozen=True)  # without slots: the content is loaded when it is first asked for
class ListVersion:
    """One version of a list, from the event time `from_ms` on. Its sets are names in the store."""

    from_ms: int
    kind: str
    store: ListStore
    base: str
    added: str = NOTHING
    removed: str = NOTHING

    @cached_property
    def content(self) -> Content:
        """Raises: StateCorruptError if a file of it is damaged or gone."""
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
    """Return the versions of a list; empty for a list without any."""
    return _in_place(name, kind) if name.startswith("[") else lists.get((name, kind), ())


def fixed(entries: Sequence[str], kind: str) -> Timeline:
    """Make a list with these entries for all time. The entries are checked already."""
    keys, wrong = keys_of(entries, kind)
    assert not wrong, wrong
    return (FixedVersion(TIME_MS_MIN, Content(kind).changed("replace", keys)),)


@lru_cache(_IN_PLACE_CACHED)
def _in_place(name: str, kind: str) -> Timeline:
    return fixed(json.loads(name), kind)


def spans(timeline: Timeline, times: Int64) -> Iterator[tuple[Content | None, Int64 | slice]]:
    """Group times by the version of a list at that time.

    Yield (content, rows); content is None before the first version.
    """
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
