"""Declared lists, a job's status and its control topic → the records that give the job the declared entries.

A list is compared by the hash of its entries. A change is one `replace` in as many records as necessary, with the next
version. Records that a replacement in force has made obsolete are forgotten, so that a compacted topic does not grow.
Tested by: tests/rulebook/test_publish_lists.py
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cep.base.limits import CONTROL_RECORD_BYTES_MAX, TIME_MS_MIN
from cep.lists.store import ListStore
from cep.model.rule import ControlRecord, ListRecord
from cep.nfa.given_lists import GivenList
from cep.rulebook.lists import ListKey, RuleLists
from cep.rulebook.outcome import ListReport
from cep.rulebook.publish import lost_to, name_of_change, refusal

_ENTRY_ROOM = 4  # in addition to an entry's bytes: quotes, a comma, sometimes an escape
_RECORD_BYTES = CONTROL_RECORD_BYTES_MAX // 2


@dataclass(frozen=True, slots=True)
class ListStep:
    """One line of a plan; `records` are to be sent."""

    name: str
    kind: Literal["new", "changed", "unchanged"]
    what: str
    records: tuple[ListRecord, ...] = ()


def running_lists(status: Mapping[str, Any] | None, records: Sequence[ControlRecord]) -> dict[ListKey, ListReport]:
    """Return the last version of each list: the job's, or the control topic's if that is ahead."""
    lists = RuleLists(ListStore())
    for record in records:
        if isinstance(record, ListRecord):
            lists.apply(record, None)
    reports = {(report.name, report.of): report for report in lists.report()}
    for entry in (status or {}).get("lists", ()):
        from_ms = TIME_MS_MIN if entry["from_ms"] is None else entry["from_ms"]  # one that has held ever since
        report = ListReport(**{**entry, "from_ms": from_ms, "waiting": tuple(entry["waiting"])})
        earlier = reports.get((report.name, report.of))
        if earlier is None or (earlier.version, earlier.waiting) <= (report.version, report.waiting):
            reports[report.name, report.of] = report
    return reports


def next_version(running: ListReport | None) -> int:
    """Return the version of a change that is published now: above all versions, including waiting ones."""
    return 1 if running is None else max(running.version, *running.waiting, 0) + 1


def plan_lists(
    lists: Sequence[GivenList], running: Mapping[ListKey, ListReport], effective_at: str | None
) -> list[ListStep]:
    """Plan a step for each declared list."""
    return [_step(declared, running.get((declared.name, declared.kind)), effective_at) for declared in lists]


def _step(source: GivenList, running: ListReport | None, effective_at: str | None) -> ListStep:
    shown = f"list {source.name}"
    size = f"{len(source.content):,} of {source.kind}"
    if running is not None and not running.waiting and running.digest == source.content.digest:
        return ListStep(shown, "unchanged", f"version {running.version}, {size}")
    version = next_version(running)
    records = tuple(replacing(source.name, source.kind, version, source.entries, effective_at))
    if running is None or running.version == 0:
        return ListStep(shown, "new", f"version {version}, {size}", records)
    action = f"version {running.version}, {running.entries:,} → {version}, {size}"
    return ListStep(shown, "changed", action, records)


def replacing(
    name: str, of: str, version: int, entries: pa.Array, effective_at: str | None,
    change: Literal["replace", "add", "remove"] = "replace",
) -> list[ListRecord]:  # fmt: skip
    """Return the records, one or more, that together change a list by these entries."""
    parts = list(_parts(entries))
    records = [
        ListRecord(
            id=name, of=of, version=version, change=change, entries=part.to_pylist(), part=number, parts=len(parts),
        )
        for number, part in enumerate(parts, start=1)
    ]  # fmt: skip
    whole = hashlib.sha256(b"".join(hashlib.sha256(record.to_json()).digest() for record in records)).hexdigest()
    return [record.model_copy(update={"whole": whole, "effective_at": effective_at}) for record in records]


def _parts(entries: pa.Array) -> Iterator[pa.Array]:
    """Yield slices that each fit into a record; an empty one without entries."""
    if not len(entries):
        yield entries
        return
    sizes = np.asarray(pc.binary_length(entries)) + _ENTRY_ROOM
    number = (np.cumsum(sizes) - sizes) // _RECORD_BYTES
    bounds = [*np.flatnonzero(np.diff(number, prepend=-1)).tolist(), len(entries)]
    for start, end in pairwise(bounds):
        yield entries.slice(start, end - start)


def pointless_keys(places: Iterable[tuple[bytes, ControlRecord]], now_ms: int) -> list[bytes]:
    """Return the keys of list records that a newer replacement, whole and begun, has made pointless.

    `places` are the keys of the control topic and their records, in the topic's order.
    """
    keys: list[bytes] = []
    by_list: dict[ListKey, list[tuple[bytes, ListRecord]]] = {}
    for key, record in places:
        if isinstance(record, ListRecord):
            by_list.setdefault((record.id, record.of), []).append((key, record))
    for same_list in by_list.values():
        first: dict[int, ListRecord] = {}  # of two changes of one version the first counts
        parts: dict[int, set[int]] = {}
        for _, record in same_list:
            one = first.setdefault(record.version, record)
            is_begun = record.effective_ms is None or record.effective_ms <= now_ms
            if record.change == "replace" and is_begun and record.whole == one.whole:
                parts.setdefault(record.version, set()).add(record.part)
        whole = [version for version, there in parts.items() if len(there) == first[version].parts]
        keys += [key for key, record in same_list if record.version < max(whole, default=0)]
    return list(dict.fromkeys(keys))


def acknowledged_lists(status: Mapping[str, Any], records: Sequence[ControlRecord]) -> tuple[list[str], dict[str, str]]:
    """Return the published lists that the job has not reported yet, and the refused ones, with the reasons."""
    versions = {(r["name"], r["of"]): r["version"] for r in status.get("lists", ())}
    open_: list[str] = []
    reasons: dict[str, str] = {}
    for record in records:
        if not isinstance(record, ListRecord):
            continue
        name = name_of_change(record)
        reason = refusal(status, record) or lost_to(status, record)
        if reason is not None:
            reasons[name] = reason
        elif versions.get((record.id, record.of), 0) < record.version:
            open_.append(name)
    return list(dict.fromkeys(open_)), reasons
