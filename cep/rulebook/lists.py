"""List records → the versions of each list, in event time.

A list has a name and a type of entries. Its versions count up, each holds from its start on. `replace` gives all
entries. `add` and `remove` change the version before, so they wait for that one. A version may come in parts, and holds
once it has all of them. So the order in which records come does not matter in the end.

    version 3 replace, part 1 of 2 ──▶ waits
    version 4 add                  ──▶ waits for version 3
    version 3 replace, part 2 of 2 ──▶ version 3 holds, then version 4

Entries go into the store (lists/store.py) as they come; the rulebook keeps names.
Tested by: tests/rulebook/test_lists.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cep.base.errors import StateError
from cep.base.limits import CHANGES_BEFORE_EVENTS_MAX, LIST_ENTRIES_MAX, LIST_VERSIONS_MAX, LISTS_MAX, TIME_MS_MAX
from cep.lists.entries import Keys, keys_of
from cep.lists.members import KeySet, build, join_keys
from cep.lists.store import NO_ENTRIES, NO_LISTS, Content, Lists, ListStore, ListVersion, name_of
from cep.model.rule import ListRecord
from cep.rulebook.outcome import ListReport, Outcome
from cep.rulebook.versions import start_of

ListKey = tuple[str, str]  # name, type of its entries


@dataclass(frozen=True, slots=True)
class _Version:
    """A version that is applied; its sets are names in the store."""

    version: int
    from_ms: int
    base: str
    added: str
    removed: str
    count: int
    digest: str


_NO_VERSION = _Version(0, 0, NO_ENTRIES, NO_ENTRIES, NO_ENTRIES, 0, "")


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A version that lacks parts, or the version before it. `parts` are (number, name of the set)."""

    version: int
    change: str
    effective_ms: int | None
    parts_count: int
    parts: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class _ListVersions:
    """The versions of one list: the applied ones, the newest last, and the ones that wait."""

    versions: tuple[_Version, ...] = ()  # applied ones
    waiting: tuple[_Waiting, ...] = ()  # each until all its parts have come and the version before it is applied

    @property
    def last(self) -> _Version:
        return self.versions[-1] if self.versions else _NO_VERSION

    def next_ready(self) -> _Waiting | None:
        """Return the lowest version that can be applied now: it has all parts, and replaces all or is the next."""
        with_all_parts = (w for w in sorted(self.waiting, key=lambda w: w.version) if len(w.parts) == w.parts_count)
        return next((w for w in with_all_parts if w.change == "replace" or w.version == self.last.version + 1), None)


class RuleLists:
    """The lists of one job."""

    def __init__(self, store: ListStore, lists: Mapping[ListKey, _ListVersions] | None = None) -> None:
        self.store = store
        self._lists = dict(lists or {})
        self._timelines: Lists | None = None

    def copy(self) -> RuleLists:
        other = RuleLists(self.store, self._lists)
        other._timelines = self._timelines
        return other

    def apply(self, record: ListRecord, last_event_ms: int | None) -> Outcome:
        """Add one record: a version, or a part of one. Apply each version that has all its parts. Raises: StateError.

        `last_event_ms` is the last event time that has been matched; None before the first event.
        """
        list_key = record.id, record.of
        listed = self._lists.get(list_key, _ListVersions())
        if record.version <= listed.last.version:
            return Outcome("ignored", f"version {record.version} is not newer than {listed.last.version}")
        if list_key not in self._lists and len(self._lists) >= LISTS_MAX:
            return Outcome("refused", f"the job knows {LISTS_MAX} lists, which is the limit")
        waiting = next((w for w in listed.waiting if w.version == record.version), None)
        if waiting is None:
            limit = CHANGES_BEFORE_EVENTS_MAX if last_event_ms is None else LIST_VERSIONS_MAX
            if len(listed.waiting) + len(listed.versions) >= limit:
                return Outcome("refused", f"{limit} versions of the list wait, which is the limit")
            waiting = _Waiting(record.version, record.change, record.effective_ms, record.parts, ())
        if (waiting.change, waiting.parts_count) != (record.change, record.parts):
            return Outcome("refused", f"version {record.version} has other parts already; raise the version")
        if any(number == record.part for number, _ in waiting.parts):
            return Outcome("ignored", f"part {record.part} of version {record.version} is there")
        checked_part = self._stored_part(record)
        if isinstance(checked_part, Outcome):
            return checked_part
        parts = tuple(sorted((*waiting.parts, (record.part, checked_part))))
        others = tuple(w for w in listed.waiting if w.version != record.version)
        updated, outcome = self._apply_ready_versions(
            list_key, replace(listed, waiting=(*others, replace(waiting, parts=parts))), last_event_ms
        )
        if updated is not None:
            self._lists[list_key] = updated
        return outcome

    def version(self, name: str, kind: str) -> int:
        return self._lists.get((name, kind), _ListVersions()).last.version

    def forget(self, watermark_ms: int) -> None:
        """Drop the versions that no event from the watermark on sees; the last one stays."""
        for list_key, listed in self._lists.items():
            later = listed.versions[1:]
            pairs = zip(listed.versions, later, strict=False)
            still_seen = [version for version, successor in pairs if successor.from_ms > watermark_ms]
            if len(still_seen) + 1 < len(listed.versions):
                self._lists[list_key] = replace(listed, versions=(*still_seen, listed.versions[-1]))
                self._timelines = None

    @property
    def forget_ms(self) -> int:
        """The watermark at which a version is over."""
        return min((h.from_ms for listed in self._lists.values() for h in listed.versions[1:]), default=TIME_MS_MAX)

    def timelines(self) -> Lists:
        """Return the versions that programs look up; the same object until a list changes."""
        if self._timelines is None:
            timelines = {
                list_key: tuple(self._version(list_key[1], version) for version in listed.versions)
                for list_key, listed in self._lists.items()
                if listed.versions
            }
            self._timelines = timelines or NO_LISTS
        return self._timelines

    def last(self) -> list[list[str | int]]:
        last = ((list_key, listed.versions[-1]) for list_key, listed in sorted(self._lists.items()) if listed.versions)
        return [[*list_key, version.version, version.digest] for list_key, version in last]

    def report(self) -> tuple[ListReport, ...]:
        return tuple(_report(list_key, self._lists[list_key]) for list_key in sorted(self._lists))

    def names(self) -> list[str]:
        names: set[str] = set()
        for listed in self._lists.values():
            for version in listed.versions:
                names |= {version.base, version.added, version.removed}
            for waiting in listed.waiting:
                names |= {name for _, name in waiting.parts}
        return sorted(names - {NO_ENTRIES})

    def files(self) -> list[Path]:
        """Return the files of the sets in use; none if they are in memory."""
        return [] if self.store.folder is None else [self.store.path(name) for name in self.names()]

    # ------------------------------------------------------------------------------------------------- content

    def _stored_part(self, record: ListRecord) -> str | Outcome:
        """Store the entries of a record as a set. Return the set's name (a hash), or why the record is refused."""
        if record.stored is not None:
            try:
                self.store.get(record.stored)
            except (StateError, KeyError):
                return Outcome("refused", f"the job has no set {record.stored[:12]}…; send the entries")
            return record.stored
        keys, wrong = keys_of([str(entry) for entry in record.entries], record.of)
        if wrong:
            return Outcome("refused", "; ".join(f"{entry.code} {entry.message}" for entry in wrong))
        name = name_of("part", record.of, *(str(entry) for entry in record.entries))
        self.store.put(name, lambda: build(keys, record.of))
        return name

    def _apply_ready_versions(
        self, list_key: ListKey, listed: _ListVersions, last_event_ms: int | None
    ) -> tuple[_ListVersions | None, Outcome]:
        """Apply every version whose parts have all arrived. Return the list, and the outcome for the new record."""
        note, late_ms, from_ms, count = "", 0, 0, 0  # late_ms: the sum of how much later than asked the versions start
        while (ready := listed.next_ready()) is not None:  # a version may have waited for the one before it
            version = self._built_version(list_key[1], listed, ready)
            if isinstance(version, Outcome):
                return None, version
            from_ms, late = start_of(ready.effective_ms, last_event_ms)
            version, late_ms, count = replace(version, from_ms=from_ms), late_ms + late, count + 1
            note = f"{version.count} in the list"
            # It replaces earlier versions that would have started later, or at the same time.
            earlier = tuple(applied for applied in listed.versions if applied.from_ms < from_ms)
            later = tuple(waiting for waiting in listed.waiting if waiting.version > version.version)
            listed = _ListVersions((*earlier, version), later)
        if not count:
            return listed, Outcome("waiting", _lacking(listed))
        self._timelines = None
        return listed, Outcome("applied", note, late_ms=late_ms, from_ms=from_ms)

    def _built_version(self, kind: str, listed: _ListVersions, ready: _Waiting) -> _Version | Outcome:
        """Build a version of a list from three stored sets: its entries are `base` plus `added` minus `removed`. Each
        name is a hash of the change and the sets before, equal in every process. Small changes keep the `base`."""
        names = [name for _, name in ready.parts]  # of the sets of the record's entries
        if ready.change == "replace":
            base = names[0] if len(names) == 1 else name_of("replace", kind, *names)
            self.store.put(base, lambda: build(self._entries(names), kind))
            return self._within_limit(ready, Content(kind, self.store.get(base)), (base, NO_ENTRIES, NO_ENTRIES))
        previous = listed.last
        content = self._version(kind, previous).content
        after = content.changed("add" if ready.change == "add" else "remove", self._entries(names))
        origin = (ready.change, kind, previous.base, previous.added, previous.removed, *names)
        base = previous.base if after.base is content.base else self._put(after.base, name_of("base", *origin))
        added, removed = (
            self._put(members, name_of(part, *origin))
            for part, members in (("added", after.added), ("removed", after.removed))
        )
        return self._within_limit(ready, after, (base, added, removed))

    def _put(self, members: KeySet, name: str) -> str:
        if not len(members):
            return NO_ENTRIES
        self.store.put(name, lambda: members)
        return name

    def _entries(self, names: list[str]) -> Keys:
        return join_keys(*(self.store.get(name).keys for name in names))

    def _within_limit(self, ready: _Waiting, content: Content, sets: tuple[str, str, str]) -> _Version | Outcome:
        count = len(content)
        if count > LIST_ENTRIES_MAX:
            return Outcome("refused", f"the list would have {count} entries, the limit is {LIST_ENTRIES_MAX}")
        return _Version(ready.version, 0, *sets, count, content.digest)

    def _version(self, kind: str, version: _Version) -> ListVersion:
        return ListVersion(version.from_ms, kind, self.store, version.base, version.added, version.removed)

    # ---------------------------------------------------------------------------------------------------- bytes

    def to_json(self) -> list[Any]:
        """Return all but the sets, as JSON values."""
        return [
            [*list_key, [*map(_values, listed.versions)], [*map(_values, listed.waiting)]]
            for list_key, listed in sorted(self._lists.items())
        ]

    @staticmethod
    def from_json(saved: list[Any], store: ListStore) -> RuleLists:
        """Invert `to_json`. Raises: ValueError, KeyError or TypeError for other values."""
        lists: dict[ListKey, _ListVersions] = {}
        for name, kind, versions, waiting in saved:
            waits = (_Waiting(*(*facts, tuple((n, part) for n, part in parts))) for *facts, parts in waiting)
            lists[name, kind] = _ListVersions(tuple(_Version(*version) for version in versions), tuple(waits))
        return RuleLists(store, lists)


def _values(version: _Version | _Waiting) -> list[Any]:
    return [getattr(version, name) for name in type(version).__slots__]


def _lacking(listed: _ListVersions) -> str:
    first = min(listed.waiting, key=lambda w: w.version)
    lacking_count = first.parts_count - len(first.parts)
    if lacking_count:
        return f"version {first.version} waits for {lacking_count} of {first.parts_count} parts"
    return f"version {first.version} waits for version {first.version - 1}"


def _report(list_key: ListKey, listed: _ListVersions) -> ListReport:
    last, waiting = listed.last, tuple(sorted(w.version for w in listed.waiting))
    return ListReport(*list_key, last.version, last.from_ms, last.count, last.digest, waiting)
