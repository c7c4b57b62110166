"""A portable savepoint → the same without some keys, and the entries that still have their bytes.

A key is removed from the pages of runs, the waiting events, the histories, the last alerts, and its snoozes. Ids of
seen events stay: they are hashes of ids, not of keys. The state of all other keys is unchanged, so that a job that
continues gives them the same alerts. At the end every written entry is searched for the keys.
Tested by: tests/cli/test_erase.py
"""

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from cep.base.secrets import TOKENS_MATCH
from cep.columnar.batch import TEXT, decode_batch, encode_batch
from cep.columnar.decode import KeyDomain
from cep.engine.keyed_state import partition_keys
from cep.engine.migrate import count_runs, migrate_state
from cep.histories.pages import detach_segments, keys_with_past, partition_histories
from cep.histories.store import Block, StoredSegment
from cep.kernels.layout import Int64
from cep.nfa.program import Program
from cep.rulebook.audit import note_erasure
from cep.rulebook.erasure import forget_keys
from cep.rulebook.saved import rulebook_bytes, rulebook_from_bytes
from cep.runners.handover.group_entries import PAGE_BITS, GroupState, entries_of, state_of
from cep.runners.handover.payload import Payload, payload_in
from cep.state.checkpoints import Part
from cep.state.memory import MemoryStore
from cep.state.past import (
    SegmentCache,
    decode_head,
    decode_page,
    decode_segment,
    encode_head,
    encode_page,
    store_segments,
)
from cep.state.savepoints import Savepoint, entries_of_group, load_lists, open_savepoint, write_savepoint
from cep.state.store import split_key
from cep.state.target import Target
from cep.step.job import Job
from cep.step.rules import programs_by_level

# SHA-256 as JSON has it, and the random id of a job: a short key may be among its digits.
_HASH = re.compile(rb"(?<![0-9a-f])(?:[0-9a-f]{64}|[0-9a-f]{32})(?![0-9a-f])")
# A text of fewer bytes stands somewhere in a gigabyte of random ones.
_CHANCE_BYTES = 6
_TOKEN = re.compile(TOKENS_MATCH.encode())
KeysOf = Mapping[KeyDomain, Collection[str]]


@dataclass(slots=True)
class Erased:
    """Counts of removed items by kind, and of entries that still have a key's bytes; lines of the job's audit."""

    removed: Counter[str] = field(default_factory=Counter)
    remaining: Counter[str] = field(default_factory=Counter)
    unsearched: Counter[str] = field(default_factory=Counter)  # entries whose tokens of an unknown secret may be a key
    audit: list[bytes] = field(default_factory=list)


def erase_savepoint(
    source: Target, target: Target, work: Path, keys: KeysOf, audit_lines: Collection[int] = (),
    digests: Sequence[str] = (),
) -> Erased:  # fmt: skip
    """Copy a savepoint without the data of some keys. `keys`: the keys of each key domain (fields of a key).

    `work`: a new local folder. `audit_lines`: the numbers of audit lines whose texts are removed. `digests`: keyed
    hashes, by which the audit names the keys (rulebook/erasure.py). Raises: StateError, StoreError.
    """
    savepoint = open_savepoint(source, work / "payload")
    payload = payload_in(savepoint)
    job = Job.from_json(payload.job)
    rulebook = rulebook_from_bytes(payload.engine["rulebook"].encode(), job.schema, job.domains)
    rulebook.keep_levels(job.levels_count)  # rules that read others' alerts keep their level
    programs = programs_by_level(rulebook, job.schema, job.levels_count)
    erasing = _Erasing(job, programs, {domain: pa.array(sorted(keys.get(domain, ())), TEXT) for domain in job.domains})
    payload = _without_last_alerts(payload, keys, erasing.erased)  # the last alert of each rule and erased key
    searched = ways_to_write({text for texts in keys.values() for text in texts})
    with ExitStack() as opened:
        parts = []
        for group in savepoint.groups:
            entries = sorted(erasing.entries(group, savepoint, work / "entries"))
            _count_remaining(entries, searched, erasing.erased)  # entries in which a key's bytes are still found
            store = opened.enter_context(MemoryStore())
            store.ingest(entries)
            parts.append(Part(f"group-{group}", store, group, group + 1))
        payload = replace(payload, totals=dict(erasing.totals(payload.totals)))
        payload = _with_rules(payload, job, keys, erasing.erased, (audit_lines, digests))
        _count_remaining([(b"", payload.to_bytes())], searched, erasing.erased)
        lists = load_lists(savepoint, work / "beside")  # files with the entries of lists
        write_savepoint(target, work / "new", parts, payload.to_bytes(), int(time.time() * 1_000), lists)
    return erasing.erased


def _without_last_alerts(payload: Payload, keys: KeysOf, erased: Erased) -> Payload:
    gone = {text for texts in keys.values() for text in texts}
    memory = payload.engine["held_memory"]
    others = [entry for entry in memory if entry[1] not in gone]
    erased.removed["alerts remembered"] += len(memory) - len(others)
    return replace(payload, engine={**payload.engine, "held_memory": others})


def _with_rules(
    payload: Payload, job: Job, keys: KeysOf, erased: Erased, noted: tuple[Collection[int], Sequence[str]]
) -> Payload:
    """Remove the keys from the rulebook, and add the erasure to the audit. `noted`: the lines, the digests of keys."""
    rulebook = rulebook_from_bytes(payload.engine["rulebook"].encode(), job.schema, job.domains)
    job.govern(rulebook)
    erased.removed["snoozes"] += forget_keys(rulebook, {text for texts in keys.values() for text in texts})
    counts = {",".join(domain): len(texts) for domain, texts in sorted(keys.items())}
    erased.audit += note_erasure(rulebook, counts, +erased.removed, sorted(noted[0]), noted[1])
    return replace(payload, engine={**payload.engine, "rulebook": rulebook_bytes(rulebook).decode()})


def ways_to_write(texts: Iterable[str]) -> list[bytes]:
    """Return the bytes that texts may have in files: plain, and as JSON with or without other characters than ASCII."""
    ways = ((text.encode(), orjson.dumps(text)[1:-1], json.dumps(text)[1:-1].encode()) for text in texts)
    return sorted({*chain.from_iterable(ways)})


def has_any(data: bytes, searched: Iterable[bytes]) -> bool:
    """Return True if uncompressed data has one of the texts. A short text inside a hash or a job's id is ignored."""
    if not any(text in data for text in searched):
        return False
    bare = _HASH.sub(b"", data)
    return any(text in (data if _HASH.search(text) else bare) for text in searched)


def has_other_tokens(data: bytes, searched: Iterable[bytes]) -> bool:
    """Return True if tokens are searched for, and the data has one of another secret: it may stand for the same key."""
    secret_ids = {match[1] for text in searched for match in _TOKEN.finditer(text)}
    return bool(secret_ids) and any(match[1] not in secret_ids for match in _TOKEN.finditer(data))


def has_any_in_file(data: bytes, searched: Iterable[bytes]) -> bool:
    """Return True if a job's file has one of the texts. Short ones, there by chance in a binary file, do not count."""
    is_binary = b"\0" in data
    return has_any(data, [text for text in searched if not is_binary or len(text) >= _CHANCE_BYTES])


def _count_remaining(entries: Sequence[tuple[bytes, bytes]], searched: Sequence[bytes], erased: Erased) -> None:
    """Count in `erased` the entries that still have one of the searched texts, or that cannot be searched."""
    for raw, data in entries:
        is_left, is_unsearched = has_any(data, searched), has_other_tokens(data, searched)
        if is_left or is_unsearched:
            entry_key = split_key(raw) if raw else None
            name = "rulebook" if entry_key is None else f"{entry_key.namespace.decode()} by {entry_key.name.decode()}"
            erased.remaining.update([name] * is_left)
            erased.unsearched.update([name] * is_unsearched)


@dataclass(slots=True)
class _Erasing:
    """The keys to remove, by domain, with the means to read their states."""

    job: Job
    programs: Sequence[Mapping[KeyDomain, Program]]
    keys: Mapping[KeyDomain, pa.Array]
    erased: Erased = field(default_factory=Erased)
    gone_runs: Counter[str] = field(default_factory=Counter)  # in all and by rule, as the totals of a job count them

    def totals(self, before: Mapping[str, int]) -> Counter[str]:
        """Return the totals of the job without the runs that were removed."""
        totals = Counter(before)
        totals.subtract(self.gone_runs)
        return totals

    def entries(self, group: int, savepoint: Savepoint, work: Path) -> Iterator[tuple[bytes, bytes]]:
        """Yield the entries of a key group without the erased keys."""
        stored = list(entries_of_group(savepoint, group, work))
        for level, programs in enumerate(self.programs):  # the compiled rules by level (order in which rules run)
            group_state = state_of(self.job, level, stored)
            for page_id in list(group_state.pages):  # pages of runs
                self._erase_runs(group_state, page_id, programs)
            for page_id in list(group_state.heads):  # pages of histories
                self._erase_histories(group_state, page_id)
            for domain_number in list(group_state.waiting):  # events
                self._erase_waiting(group_state, domain_number)
            yield from entries_of(self.job, level, group, group_state)

    def _is_gone(self, domain_number: int, keys: pa.Array) -> Any:
        return np.asarray(pc.is_in(keys, value_set=self.keys[self.job.domains[domain_number]]))

    def _count(self, kind: str, domain_number: int, count: int) -> None:
        if count:
            self.erased.removed[f"{kind} by {','.join(self.job.domains[domain_number])}"] += count

    def _erase_runs(self, group_state: GroupState, page_id: int, programs: Mapping[KeyDomain, Program]) -> None:
        """Remove the runs of erased keys from a page (stored runs of some keys), and the page if it becomes empty."""
        domain_number = page_id >> PAGE_BITS
        stored = decode_page(group_state.pages[page_id])
        gone = self._is_gone(domain_number, stored.keys)
        if not gone.any():
            return
        program = programs.get(self.job.domains[domain_number])
        rest = None  # without a program, no rule of the domain is left that would use the runs
        self.gone_runs.update(count_runs(stored))
        self._count("runs", domain_number, int(gone[stored.run_key].sum()))
        if program is not None and not gone.all():
            fitted, _ = migrate_state(stored, program)  # an earlier version of the rules may have written the page
            part = self._is_gone(domain_number, fitted.keys).astype(np.int64)
            rest, _ = partition_keys(fitted, part, 2, program.row_registers)  # part 0 stays, part 1 is gone
        if rest is None or rest.expiry_min is None:
            del group_state.pages[page_id]
            group_state.deadlines.pop(page_id, None)
            return
        self.gone_runs.subtract(count_runs(rest))
        group_state.pages[page_id] = encode_page(rest)
        group_state.deadlines[page_id] = rest.expiry_min

    def _erase_histories(self, group_state: GroupState, page_id: int) -> None:
        """Remove erased keys from a page of histories: its head (record of segments) and segments (past events)."""
        domain_number = page_id >> PAGE_BITS

        def load(stored: StoredSegment) -> Block:
            return decode_segment(group_state.segments[page_id, stored.number])

        past = decode_head(group_state.heads[page_id], load)
        gone = self._is_gone(domain_number, keys_with_past(past))
        if not gone.any():
            return
        self._count("keys with a past", domain_number, len(pc.unique(keys_with_past(past).filter(pa.array(gone)))))
        whole = replace(past, segments=detach_segments(past.segments))  # all in memory: a segment mixes several keys
        part_of: Callable[[pa.Array], Int64] = lambda keys: self._is_gone(domain_number, keys).astype(np.int64)  # noqa: E731
        parts = sorted({*part_of(keys_with_past(past)).tolist()})
        by_part = dict(zip(parts, partition_histories(whole, parts, part_of), strict=True))
        new_segments: dict[int, bytes] = {}
        remaining = by_part.get(0)  # part 0 has the keys that stay, part 1 the erased keys
        if remaining is not None:
            remaining = store_segments(remaining, new_segments.__setitem__, load, SegmentCache(None))
        for segment in [segment for segment in group_state.segments if segment[0] == page_id]:
            del group_state.segments[segment]
        if remaining is None:
            del group_state.heads[page_id]
            group_state.expiry_ms.pop(page_id, None)
            return
        group_state.segments.update({(page_id, segment): data for segment, data in new_segments.items()})
        group_state.heads[page_id] = encode_head(remaining)

    def _erase_waiting(self, group_state: GroupState, domain_number: int) -> None:
        events = decode_batch(group_state.waiting[domain_number])
        gone = self._is_gone(domain_number, events.key)
        self._count("waiting events", domain_number, int(gone.sum()))
        del group_state.waiting[domain_number]
        if not gone.all():
            # Even if all events stay: a slice of a larger batch contains some bytes of the events after it.
            group_state.waiting[domain_number] = encode_batch(events.take(~gone))
