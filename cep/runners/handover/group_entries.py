"""The keyed state of one key group ⇄ entries of a keyed store: the portable form, which both runners read and write.

    | key group | "" | "pages"          | domain | page u16         |  →  encode_page(…)      bytes as in Spark's state
    | key group | "" | "past"           | domain | page u16         |  →  encode_head(…)      of the histories of a page
    | key group | "" | "segments"       | domain | page, number u32 |  →  encode_segment(…)   their past events
    | key group | "" | "waiting"        | domain |                  |  →  encode_batch(…)     events that are not due
    | key group | "" | "event-ids"      | domain | bucket i64       |  →  secret, pairs       ids (duplicates.py)
    | key group | "" | "deadlines"      | level  |                  |  →  int64[domains, pages], NEVER: there is no page
    | key group | "" | "past deadlines" | level  |                  |  →  the same of histories: when all is over

Numbers in store keys are big-endian. Levels of patterns that feed each other keep their state apart by their names.
Tested by: tests/runners/handover/test_handover.py
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from cep.base.limits import TIME_MS_MAX
from cep.columnar.decode import KeyDomain
from cep.kernels.arrange import page_keys
from cep.kernels.layout import Int64, UInt8
from cep.state.store import split_key, store_key
from cep.step.duplicates import refuse_earlier_ids
from cep.step.job import Job

PAGES, WAITING, SEEN, DEADLINES = b"pages", b"waiting", b"event-ids", b"deadlines"
EARLIER_SEEN = (b"seen", b"ids")  # ids of earlier builds
PAST, SEGMENTS, PAST_DEADLINES = b"past", b"segments", b"past deadlines"
PAGE_BITS = 16  # of a page id; the number of the key domain is above them
NEVER = TIME_MS_MAX
_PAGE_MASK = (1 << PAGE_BITS) - 1
PAGE, SEGMENT, BUCKET = struct.Struct(">H"), struct.Struct(">HI"), struct.Struct(">q")
_DEADLINE = np.dtype("<i8")


@dataclass(frozen=True, slots=True)
class GroupState:
    """The keyed state of a key group at one level. Page ids: number of the key domain << PAGE_BITS | page."""

    pages: dict[int, bytes] = field(default_factory=dict)
    deadlines: dict[int, int] = field(default_factory=dict)  # page id → ms.
    waiting: dict[int, bytes] = field(default_factory=dict)  # number of the key domain → events.
    seen: dict[tuple[int, int], bytes] = field(default_factory=dict)  # number, bucket → hashes.
    heads: dict[int, bytes] = field(default_factory=dict)  # page id → head: its histories without their segments.
    segments: dict[tuple[int, int], bytes] = field(default_factory=dict)  # page id, number → segment: past events.
    expiry_ms: dict[int, int] = field(default_factory=dict)  # page id → time at which all of its histories have expired


def domain_name(domain: KeyDomain, level: int = 0) -> bytes:
    """Return the name of a key domain in a store key."""
    name = ",".join(domain).encode()
    return name if level == 0 else b"@%d " % level + name


def deadlines_name(level: int) -> bytes:
    """Return the name of a level's deadlines in a store key."""
    return b"" if level == 0 else b"@%d" % level


def page_id(domain_number: int, page: int) -> int:
    """Return the number of a page among the pages of all key domains."""
    return domain_number << PAGE_BITS | page


def page_prefixes(groups: Iterable[int], name: bytes) -> UInt8:
    """Return for each key group a store key of its pages of a domain, with room for the page: uint8[key groups, B]."""
    keys = [store_key(group, b"", PAGES, name) + bytes(PAGE.size) for group in groups]
    return np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), -1)


def page_store_keys(slots: Int64, pages_count: int, prefixes: UInt8) -> list[bytes]:
    """Return the store keys of the pages of these slots, of which each key group of `prefixes` has `pages_count`."""
    rows = np.empty((len(slots), prefixes.shape[1]), np.uint8)
    page_keys(slots, pages_count, prefixes, rows)
    keys: list[bytes] = rows.view(f"V{rows.shape[1]}")[:, 0].tolist()
    return keys


def entries_of(job: Job, level: int, group: int, group_state: GroupState) -> Iterator[tuple[bytes, bytes]]:
    """Yield the store entries of a key group's state at one level (order in which rules run), not sorted."""
    names = [domain_name(domain, level) for domain in job.domains]  # indexed by the upper bits of a page id
    for page, data in group_state.pages.items():
        yield store_key(group, b"", PAGES, names[page >> PAGE_BITS], PAGE.pack(page & _PAGE_MASK)), data
    for number, data in group_state.waiting.items():  # events that the watermark has not passed
        yield store_key(group, b"", WAITING, names[number]), data
    for (number, bucket), data in group_state.seen.items():  # hashes of event ids, in buckets of time
        yield store_key(group, b"", SEEN, names[number], BUCKET.pack(bucket)), data
    for page, data in group_state.heads.items():  # a head lists the segments (past events) of its page
        yield store_key(group, b"", PAST, names[page >> PAGE_BITS], PAGE.pack(page & _PAGE_MASK)), data
    for (page, segment), data in group_state.segments.items():
        yield store_key(group, b"", SEGMENTS, names[page >> PAGE_BITS], SEGMENT.pack(page & _PAGE_MASK, segment)), data
    for name, times_ms in ((DEADLINES, group_state.deadlines), (PAST_DEADLINES, group_state.expiry_ms)):
        if times_ms:  # by page, when its state expires; NEVER stands for a page that is absent, so a time is less
            deadlines = np.full((len(job.domains), job.pages_count), NEVER, _DEADLINE)
            for page, ms in times_ms.items():
                deadlines[page >> PAGE_BITS, page & _PAGE_MASK] = min(ms, NEVER - 1)
            yield store_key(group, b"", name, deadlines_name(level)), deadlines.tobytes()


def state_of(job: Job, level: int, entries: Iterable[tuple[bytes, bytes]]) -> GroupState:
    """Build a key group's state from its entries of one level (order in which rules run). Raises: StateFormatError."""
    domain_numbers = {domain_name(domain, level): domain_number for domain_number, domain in enumerate(job.domains)}
    group_state = GroupState()
    for raw_key, data in entries:
        entry_key = split_key(raw_key)
        if entry_key.namespace in EARLIER_SEEN:  # event ids of an earlier build
            refuse_earlier_ids()
        if entry_key.namespace in (DEADLINES, PAST_DEADLINES):
            if entry_key.name == deadlines_name(level):
                times_ms = group_state.deadlines if entry_key.namespace == DEADLINES else group_state.expiry_ms
                times = np.frombuffer(data, _DEADLINE).reshape(len(job.domains), job.pages_count)
                for domain_number, page in np.argwhere(times != NEVER).tolist():  # NEVER: the page is absent
                    times_ms[page_id(domain_number, page)] = int(times[domain_number, page])
        elif entry_key.name in domain_numbers:
            domain_number = domain_numbers[entry_key.name]
            if entry_key.namespace == PAGES:
                group_state.pages[page_id(domain_number, *PAGE.unpack(entry_key.item))] = data
            elif entry_key.namespace == PAST:  # the head of a page of histories: its record of segments
                group_state.heads[page_id(domain_number, *PAGE.unpack(entry_key.item))] = data
            elif entry_key.namespace == SEGMENTS:
                page, segment = SEGMENT.unpack(entry_key.item)
                group_state.segments[page_id(domain_number, page), segment] = data
            elif entry_key.namespace == WAITING:  # events that the watermark has not passed
                group_state.waiting[domain_number] = data
            elif entry_key.namespace == SEEN:  # hashed event ids, in buckets of time
                group_state.seen[domain_number, BUCKET.unpack(entry_key.item)[0]] = data
    return group_state
