"""Declared lists, and what a job and its control topic say → the records that make the job hold what is declared.

A list is compared by the hash of its entries. A change is one `replace` in as many records as it takes; it has the next
version. Records that a replacement in force has made pointless are forgotten, so that a compacted topic does not grow.
Tested by: tests/rulebook/test_publish_lists.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.base.limits import CONTROL_RECORD_BYTES_MAX
from cep.lists.store import ListStore
from cep.model.rule import ControlRecord, ListRecord, topic_key
from cep.nfa.given_lists import GivenList
from cep.rulebook.lists import ListKey, RuleLists
from cep.rulebook.outcome import ListReport

_ENTRY_ROOM = 4  # beside an entry's bytes: quotes, a comma, now and then an escape
_RECORD_BYTES = CONTROL_RECORD_BYTES_MAX // 2


@dataclass(frozen=True, slots=True)
class ListStep:
    """One line of a plan; `records` are what is to be sent."""

    name: str
    kind: Literal["new", "changed", "unchanged"]
    what: str
    records: tuple[ListRecord, ...] = ()


def running_lists(status: Mapping[str, Any] | None, records: Sequence[ControlRecord]) -> dict[ListKey, ListReport]:
    """The last version of each list: what the job says, or the control topic where that is ahead of it."""
    lists = RuleLists(ListStore())
    for record in records:
        if isinstance(record, ListRecord):
            lists.apply(record, None)
    found = {(report.name, report.of): report for report in lists.report()}
    for said in (status or {}).get("lists", ()):
        report = ListReport(**{**said, "waiting": tuple(said["waiting"])})
        known = found.get((report.name, report.of))
        if known is None or (known.version, known.waiting) <= (report.version, report.waiting):
            found[report.name, report.of] = report
    return found


def next_version(running: ListReport | None) -> int:
    """The version of a change that is published now: above all that are there, those too that wait."""
    return 1 if running is None else max(running.version, *running.waiting, 0) + 1


def plan_lists(
    given: Sequence[GivenList], running: Mapping[ListKey, ListReport], effective_at: str | None
) -> list[ListStep]:
    """What to do with each declared list."""
    return [_step(declared, running.get((declared.name, declared.kind)), effective_at) for declared in given]


def _step(given: GivenList, running: ListReport | None, effective_at: str | None) -> ListStep:
    shown = f"list {given.name}"
    size = f"{len(given.content):,} of {given.kind}"
    if running is not None and not running.waiting and running.digest == given.content.digest:
        return ListStep(shown, "unchanged", f"version {running.version}, {size}")
    version = next_version(running)
    records = tuple(replacing(given.name, given.kind, version, given.entries, effective_at))
    if running is None or running.version == 0:
        return ListStep(shown, "new", f"version {version}, {size}", records)
    what = f"version {running.version}, {running.entries:,} → {version}, {size}"
    return ListStep(shown, "changed", what, records)


def replacing(name: str, of: str, version: int, entries: pa.Array, effective_at: str | None) -> list[ListRecord]:
    """The records, at least one, that together replace a list by these entries."""
    parts = list(_parts(entries))
    return [
        ListRecord(
            id=name, of=of, version=version, change="replace", entries=part.to_pylist(), part=number, parts=len(parts),
            effective_at=effective_at,
        )
        for number, part in enumerate(parts, start=1)
    ]  # fmt: skip


def _parts(entries: pa.Array) -> Iterator[pa.Array]:
    """Slices that each fit into a record; one that is empty if there are no entries."""
    if not len(entries):
        yield entries
        return
    sizes = np.asarray(pc.binary_length(entries)) + _ENTRY_ROOM
    number = (np.cumsum(sizes) - sizes) // _RECORD_BYTES
    bounds = [*np.flatnonzero(np.diff(number, prepend=-1)).tolist(), len(entries)]
    for start, end in pairwise(bounds):
        yield entries.slice(start, end - start)


def pointless_keys(records: Sequence[ControlRecord], now_ms: int) -> list[str]:
    """The keys of list records in the topic that a newer replacement, whole and begun, has made pointless."""
    found: list[str] = []
    by_list: dict[ListKey, list[ListRecord]] = {}
    for record in records:
        if isinstance(record, ListRecord):
            by_list.setdefault((record.id, record.of), []).append(record)
    for own in by_list.values():
        parts: dict[int, set[int]] = {}
        for record in own:
            if record.change == "replace" and (record.effective_ms is None or record.effective_ms <= now_ms):
                parts.setdefault(record.version, set()).add(record.part)
        whole = [r.version for r in own if len(parts.get(r.version, ())) == r.parts]
        found += [topic_key(record) for record in own if record.version < max(whole, default=0)]
    return list(dict.fromkeys(found))


def acknowledged_lists(status: Mapping[str, Any], records: Sequence[ControlRecord]) -> tuple[list[str], dict[str, str]]:
    """(what the job has not spoken of yet, what it has refused and why) of list records that were published."""
    refused = {(r["rule_id"], r["version"]): r["reason"] for r in status["refused"]}
    versions = {(r["name"], r["of"]): r["version"] for r in status.get("lists", ())}
    open_: list[str] = []
    reasons: dict[str, str] = {}
    for record in records:
        if not isinstance(record, ListRecord):
            continue
        name = f"list {record.id} version {record.version}"
        if (f"list {record.id}", record.version) in refused:
            reasons[name] = refused[f"list {record.id}", record.version]
        elif versions.get((record.id, record.of), 0) < record.version:
            open_.append(name)
    return list(dict.fromkeys(open_)), reasons
