"""The keyed state of one key group ⇄ entries of a keyed store: the form that both runners' savepoints have.

    | key group | "" | "pages"          | domain | page u16         |  →  encode_page(…)      bytes as in Spark's state
    | key group | "" | "past"           | domain | page u16         |  →  encode_head(…)      of the histories of a page
    | key group | "" | "segments"       | domain | page, number u32 |  →  encode_segment(…)   their past events
    | key group | "" | "waiting"        | domain |                  |  →  encode_batch(…)     events that are not due
    | key group | "" | "seen"           | domain | bucket i64       |  →  sorted uint64, LE   ids (duplicates.py)
    | key group | "" | "deadlines"      | level  |                  |  →  int64[domains, pages], NEVER: there is no page
    | key group | "" | "past deadlines" | level  |                  |  →  the same of histories: when all is over

Numbers in store keys are big-endian. Levels of patterns that feed each other keep their state apart by their names.
Tested by: tests/runners/test_group_entries.py
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from cep.base.limits import TIME_MS_MAX
from cep.columnar.route import KeyDomain
from cep.runners.job import Job
from cep.state.keys import split_key, store_key

PAGES, WAITING, SEEN, DEADLINES = b"pages", b"waiting", b"seen", b"deadlines"
PAST, SEGMENTS, PAST_DEADLINES = b"past", b"segments", b"past deadlines"
PAGE_BITS = 16  # of a page id; the number of the key domain is above them
NEVER = TIME_MS_MAX
_PAGE_MASK = (1 << PAGE_BITS) - 1
PAGE, SEGMENT, BUCKET = struct.Struct(">H"), struct.Struct(">HI"), struct.Struct(">q")
_DEADLINE = np.dtype("<i8")


@dataclass(frozen=True, slots=True)
class GroupState:
    """What a key group keeps at one level. Page ids: number of the key domain << PAGE_BITS | page."""

    pages: dict[int, bytes] = field(default_factory=dict)
    deadlines: dict[int, int] = field(default_factory=dict)  # page id → ms
    waiting: dict[int, bytes] = field(default_factory=dict)  # number of the key domain → events
    seen: dict[tuple[int, int], bytes] = field(default_factory=dict)  # number, bucket → hashes
    heads: dict[int, bytes] = field(default_factory=dict)  # page id → of its histories
    segments: dict[tuple[int, int], bytes] = field(default_factory=dict)  # page id, number → past events
    over: dict[int, int] = field(default_factory=dict)  # page id → when all of its histories is over


def domain_name(domain: KeyDomain, level: int = 0) -> bytes:
    """A key domain as it stands in a store key."""
    name = ",".join(domain).encode()
    return name if level == 0 else b"@%d " % level + name


def deadlines_name(level: int) -> bytes:
    """What tells the deadlines of one level from those of another."""
    return b"" if level == 0 else b"@%d" % level


def entries_of(job: Job, level: int, group: int, kept: GroupState) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a key group's state, in no order."""
    names = [domain_name(domain, level) for domain in job.domains]
    for page, data in kept.pages.items():
        yield store_key(group, b"", PAGES, names[page >> PAGE_BITS], PAGE.pack(page & _PAGE_MASK)), data
    for number, data in kept.waiting.items():
        yield store_key(group, b"", WAITING, names[number]), data
    for (number, bucket), data in kept.seen.items():
        yield store_key(group, b"", SEEN, names[number], BUCKET.pack(bucket)), data
    for page, data in kept.heads.items():
        yield store_key(group, b"", PAST, names[page >> PAGE_BITS], PAGE.pack(page & _PAGE_MASK)), data
    for (page, segment), data in kept.segments.items():
        yield store_key(group, b"", SEGMENTS, names[page >> PAGE_BITS], SEGMENT.pack(page & _PAGE_MASK, segment)), data
    for name, known in ((DEADLINES, kept.deadlines), (PAST_DEADLINES, kept.over)):
        if known:
            deadlines = np.full((len(job.domains), job.pages_count), NEVER, _DEADLINE)
            for page, ms in known.items():
                deadlines[page >> PAGE_BITS, page & _PAGE_MASK] = min(ms, NEVER - 1)
            yield store_key(group, b"", name, deadlines_name(level)), deadlines.tobytes()


def state_of(job: Job, level: int, entries: Iterable[tuple[bytes, bytes]]) -> GroupState:
    """What a key group keeps at a level; its entries of other levels are passed over."""
    numbers = {domain_name(domain, level): number for number, domain in enumerate(job.domains)}
    found = GroupState()
    for raw, data in entries:
        at = split_key(raw)
        if at.namespace in (DEADLINES, PAST_DEADLINES):
            if at.name == deadlines_name(level):
                known = found.deadlines if at.namespace == DEADLINES else found.over
                times = np.frombuffer(data, _DEADLINE).reshape(len(job.domains), job.pages_count)
                for number, page in np.argwhere(times != NEVER).tolist():
                    known[number << PAGE_BITS | page] = int(times[number, page])
        elif at.name in numbers:
            number = numbers[at.name]
            if at.namespace == PAGES:
                found.pages[number << PAGE_BITS | PAGE.unpack(at.item)[0]] = data
            elif at.namespace == PAST:
                found.heads[number << PAGE_BITS | PAGE.unpack(at.item)[0]] = data
            elif at.namespace == SEGMENTS:
                page, segment = SEGMENT.unpack(at.item)
                found.segments[number << PAGE_BITS | page, segment] = data
            elif at.namespace == WAITING:
                found.waiting[number] = data
            elif at.namespace == SEEN:
                found.seen[number, BUCKET.unpack(at.item)[0]] = data
    return found
