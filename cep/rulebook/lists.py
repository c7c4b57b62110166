"""List records → the versions of each list, in event time.

A list has a name and what it is of; versions count up, each from its start on. `replace` says all entries; `add` and
`remove` change the version before, so they wait until that one is there. A version may come in parts, and holds once it
has all of them. So whatever the order in which records come, what a list holds in the end is the same.

    version 3 replace, part 1 of 2 ──▶ waits
    version 4 add                  ──▶ waits for version 3
    version 3 replace, part 2 of 2 ──▶ version 3 holds, then version 4

Entries go into the store (lists/store.py) as they come; the rulebook keeps names. A change of a list touches no rule.
Tested by: tests/rulebook/test_lists.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cep.base.errors import StateError
from cep.base.limits import CHANGES_BEFORE_EVENTS_MAX, LIST_ENTRIES_MAX, LIST_VERSIONS_MAX, LISTS_MAX, TIME_MS_MAX
from cep.lists.content import Content
from cep.lists.entries import Keys, keys_of
from cep.lists.members import KeySet, build, joined
from cep.lists.store import NOTHING, ListStore, name_of
from cep.lists.timeline import NO_LISTS, Lists, ListVersion
from cep.model.rule import ListRecord
from cep.rulebook.intervals import start_of
from cep.rulebook.outcome import ListReport, Outcome

ListKey = tuple[str, str]  # name, what it is of


@dataclass(frozen=True, slots=True)
class _Held:
    """A version that is applied; its sets are names in the store."""

    version: int
    from_ms: int
    base: str
    added: str
    removed: str
    count: int
    digest: str


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A version that lacks parts, or the version before it. `parts` are (number, name of the set)."""

    version: int
    change: str
    effective_ms: int | None
    parts_count: int
    parts: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class _Known:
    versions: tuple[_Held, ...] = ()
    waiting: tuple[_Waiting, ...] = ()

    @property
    def version(self) -> int:
        return self.versions[-1].version if self.versions else 0

    def next(self) -> _Waiting | None:
        """The lowest version that is whole and stands on what is there."""
        whole = (w for w in sorted(self.waiting, key=lambda w: w.version) if len(w.parts) == w.parts_count)
        return next((w for w in whole if w.change == "replace" or w.version == self.version + 1), None)


class RuleLists:
    """The lists of one job."""

    def __init__(self, store: ListStore, known: Mapping[ListKey, _Known] | None = None) -> None:
        self.store = store
        self._known = dict(known or {})
        self._timelines: Lists | None = None

    def copy(self) -> RuleLists:
        """Lists of their own that say the same, in the same store."""
        other = RuleLists(self.store, self._known)
        other._timelines = self._timelines
        return other

    def apply(self, record: ListRecord, seen_ms: int | None) -> Outcome:
        """Apply one record (Rulebook.apply). Raises: StateError if the store refuses."""
        at = record.id, record.of
        known = self._known.get(at, _Known())
        if record.version <= known.version:
            return Outcome("ignored", f"version {record.version} is not newer than {known.version}")
        if at not in self._known and len(self._known) >= LISTS_MAX:
            return Outcome("refused", f"the job knows {LISTS_MAX} lists, which is the limit")
        waiting = next((w for w in known.waiting if w.version == record.version), None)
        if waiting is None:
            limit = CHANGES_BEFORE_EVENTS_MAX if seen_ms is None else LIST_VERSIONS_MAX
            if len(known.waiting) + len(known.versions) >= limit:
                return Outcome("refused", f"{limit} versions of the list wait, which is the limit")
            waiting = _Waiting(record.version, record.change, record.effective_ms, record.parts, ())
        if (waiting.change, waiting.parts_count) != (record.change, record.parts):
            return Outcome("refused", f"version {record.version} has other parts already; raise the version")
        if any(number == record.part for number, _ in waiting.parts):
            return Outcome("ignored", f"part {record.part} of version {record.version} is there")
        taken = self._part(record)
        if isinstance(taken, Outcome):
            return taken
        parts = tuple(sorted((*waiting.parts, (record.part, taken))))
        others = tuple(w for w in known.waiting if w.version != record.version)
        found, outcome = self._settle(at, replace(known, waiting=(*others, replace(waiting, parts=parts))), seen_ms)
        if found is not None:
            self._known[at] = found
        return outcome

    def forget(self, watermark_ms: int) -> None:
        """Drop the versions that no event from the watermark on sees; the last one stays."""
        for at, known in self._known.items():
            later = known.versions[1:]
            kept = [held for held, after in zip(known.versions, later, strict=False) if after.from_ms > watermark_ms]
            if len(kept) + 1 < len(known.versions):
                self._known[at] = replace(known, versions=(*kept, known.versions[-1]))
                self._timelines = None

    @property
    def forget_ms(self) -> int:
        """The watermark at which a version is over."""
        return min((h.from_ms for known in self._known.values() for h in known.versions[1:]), default=TIME_MS_MAX)

    def timelines(self) -> Lists:
        """What programs ask; the same object until something changes."""
        if self._timelines is None:
            found = {
                at: tuple(self._version(at[1], held) for held in known.versions)
                for at, known in self._known.items()
                if known.versions
            }
            self._timelines = found or NO_LISTS
        return self._timelines

    def last(self) -> list[list[str | int]]:
        """The last word on each list."""
        held = ((at, known.versions[-1]) for at, known in sorted(self._known.items()) if known.versions)
        return [[*at, version.version, version.digest] for at, version in held]

    def report(self) -> tuple[ListReport, ...]:
        """The last version of each list, and those that wait."""
        return tuple(_report(at, self._known[at]) for at in sorted(self._known))

    def names(self) -> list[str]:
        """The sets that are in use."""
        found: set[str] = set()
        for known in self._known.values():
            for held in known.versions:
                found |= {held.base, held.added, held.removed}
            for waiting in known.waiting:
                found |= {name for _, name in waiting.parts}
        return sorted(found - {NOTHING})

    def files(self) -> list[Path]:
        """The files of the sets that are in use; none if they are in memory."""
        return [] if self.store.folder is None else [self.store.path(name) for name in self.names()]

    # ------------------------------------------------------------------------------------------------- content

    def _part(self, record: ListRecord) -> str | Outcome:
        """The name of the set of a record's entries, which is now in the store."""
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

    def _settle(self, at: ListKey, known: _Known, seen_ms: int | None) -> tuple[_Known | None, Outcome]:
        """Apply every version that can be; what has become of the record that brought it."""
        note, late_ms, from_ms, count = "", 0, 0, 0
        while (ready := known.next()) is not None:
            held = self._content(at[1], known, ready)
            if isinstance(held, Outcome):
                return None, held
            from_ms, late = start_of(ready.effective_ms, seen_ms)
            held, late_ms, count = replace(held, from_ms=from_ms), late_ms + late, count + 1
            note = f"{held.count} in the list"
            # A version that starts before one that has not started yet takes its whole turn.
            earlier = tuple(h for h in known.versions if h.from_ms < from_ms)
            known = _Known((*earlier, held), tuple(w for w in known.waiting if w.version > held.version))
        if not count:
            return known, Outcome("waiting", _lacking(known))
        self._timelines = None
        return known, Outcome("applied", note, late_ms=late_ms, from_ms=from_ms)

    def _content(self, of: str, known: _Known, ready: _Waiting) -> _Held | Outcome:
        names = [name for _, name in ready.parts]
        if ready.change == "replace":
            base = names[0] if len(names) == 1 else name_of("replace", of, *names)
            self.store.put(base, lambda: build(self._entries(names), of))
            return self._checked(ready, Content(of, self.store.get(base)), (base, NOTHING, NOTHING))
        before = known.versions[-1] if known.versions else _Held(0, 0, NOTHING, NOTHING, NOTHING, 0, "")
        content = self._version(of, before).content
        after = content.changed("add" if ready.change == "add" else "remove", self._entries(names))
        origin = (ready.change, of, before.base, before.added, before.removed, *names)
        base = before.base if after.base is content.base else self._kept(after.base, name_of("base", *origin))
        added, removed = (
            self._kept(members, name_of(part, *origin))
            for part, members in (("added", after.added), ("removed", after.removed))
        )
        return self._checked(ready, after, (base, added, removed))

    def _kept(self, members: KeySet, name: str) -> str:
        if not len(members):
            return NOTHING
        self.store.put(name, lambda: members)
        return name

    def _entries(self, names: list[str]) -> Keys:
        return joined(*(self.store.get(name).keys for name in names))

    def _checked(self, ready: _Waiting, content: Content, sets: tuple[str, str, str]) -> _Held | Outcome:
        count = len(content)
        if count > LIST_ENTRIES_MAX:
            return Outcome("refused", f"the list would have {count} entries, the limit is {LIST_ENTRIES_MAX}")
        return _Held(ready.version, 0, *sets, count, content.digest)

    def _version(self, of: str, held: _Held) -> ListVersion:
        return ListVersion(held.from_ms, of, self.store, held.base, held.added, held.removed)

    # ---------------------------------------------------------------------------------------------------- bytes

    def to_json(self) -> list[Any]:
        """Everything but the sets."""
        return [
            [*at, [_values(held) for held in known.versions], [_values(waiting) for waiting in known.waiting]]
            for at, known in sorted(self._known.items())
        ]

    @staticmethod
    def from_json(found: list[Any], store: ListStore) -> RuleLists:
        """What `to_json` gave. Raises: ValueError, KeyError or TypeError for something else."""
        known: dict[ListKey, _Known] = {}
        for name, of, versions, waiting in found:
            known[name, of] = _Known(tuple(_Held(*held) for held in versions), tuple(_waiting(*w) for w in waiting))
        return RuleLists(store, known)


def _waiting(version: int, change: str, effective_ms: int | None, parts_count: int, parts: list[Any]) -> _Waiting:
    return _Waiting(version, change, effective_ms, parts_count, tuple((number, name) for number, name in parts))


def _values(held: _Held | _Waiting) -> list[Any]:
    return [getattr(held, name) for name in type(held).__slots__]


def _lacking(known: _Known) -> str:
    first = min(known.waiting, key=lambda w: w.version)
    lacking_count = first.parts_count - len(first.parts)
    if lacking_count:
        return f"version {first.version} waits for {lacking_count} of {first.parts_count} parts"
    return f"version {first.version} waits for version {first.version - 1}"


def _report(at: ListKey, known: _Known) -> ListReport:
    waiting = tuple(sorted(w.version for w in known.waiting))
    if not known.versions:
        return ListReport(*at, 0, 0, 0, "", waiting)
    last = known.versions[-1]
    return ListReport(*at, last.version, last.from_ms, last.count, last.digest, waiting)
