"""The progress of one key group at one stage, as Spark's state has it, and an index of the entries stored with it.

Tested by: tests/runners/spark/test_state.py, tests/runners/spark/test_live.py
"""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson

from cep.base.errors import StateFormatError
from cep.base.limits import TIME_MS_MAX, TIME_MS_MIN
from cep.step.event_time import PartitionTimes, times_from_json, times_json
from cep.step.ties import LastEvent

_VALUES_COUNTS = (9, 10, 11, 12)  # earlier builds had no gap, no last event, or no waiting heartbeat


@dataclass(slots=True)
class GroupProgress:
    """The progress of a key group (step/step.py) with an index of its stored entries."""

    rulebook: str = ""  # its digest; empty before the first micro-batch
    watermark_ms: int = TIME_MS_MIN
    times: PartitionTimes = field(default_factory=dict)
    deadlines: dict[int, int] = field(default_factory=dict)  # page id → earliest expiry.
    waiting_ms: int | None = None  # earliest event that waits for the watermark.
    seen: dict[int, list[int]] = field(default_factory=dict)  # domain → buckets of ids.
    over: dict[int, int] = field(default_factory=dict)  # page id → when all of its histories is over
    since_ms: int = TIME_MS_MAX  # of the first event
    digests: dict[int, str] = field(default_factory=dict)  # page id → hash of its bytes (cached_pages.py), if known
    heartbeat_ms: int = TIME_MS_MIN  # of the latest that does not count yet
    last_event: LastEvent | None = None  # matched at the watermark (step/ties.py)
    gap_ms: int = TIME_MS_MIN

    def to_bytes(self) -> bytes:
        """Encode it for Spark's state."""
        values = [
            self.rulebook, self.watermark_ms, times_json(self.times), self.deadlines, self.waiting_ms, self.seen,
            self.over, self.since_ms, self.digests, self.heartbeat_ms,
            LastEvent.to_json(self.last_event), self.gap_ms,
        ]  # fmt: skip
        return orjson.dumps(values, option=orjson.OPT_NON_STR_KEYS)

    @staticmethod
    def from_bytes(data: bytes) -> GroupProgress:
        """Decode the bytes of `to_bytes`. Raises: StateFormatError."""
        values = orjson.loads(data)
        if len(values) not in _VALUES_COUNTS:
            raise StateFormatError(
                "the checkpoint is of a build that kept other things of a key group; "
                "start from an empty checkpoint directory, or with the build that wrote it"
            )
        rulebook, watermark_ms, times, pages, waiting_ms, id_buckets, over, since_ms, digests, *later = values
        defaults = [TIME_MS_MIN, None, TIME_MS_MIN]
        heartbeat_ms, last_event, gap_ms = later + defaults[len(later) :]
        return GroupProgress(
            rulebook,
            watermark_ms,
            times_from_json(times),
            {int(page): ms for page, ms in pages.items()},
            waiting_ms,
            {int(domain): buckets for domain, buckets in id_buckets.items()},
            {int(page): ms for page, ms in over.items()},
            since_ms,
            {int(page): digest for page, digest in digests.items()},
            heartbeat_ms,
            LastEvent.from_json(last_event),
            gap_ms,
        )
