"""Records and events that are set aside → dead letters; step 5 of a micro-batch: late events.

A dead letter is a JSON object with a code and a reason. It is about an undecodable record, a refused control record, a
key that lost partial matches to a limit, or an event: late, too far ahead of the clock, with the id of another event,
or with unreadable values.

Tested by: tests/step/test_step.py, tests/runners/spark/test_tasks.py, tests/runners/spark/test_live.py
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow.compute as pc
from numpy.typing import NDArray

from cep.base.limits import EQUAL_LETTERS_MAX
from cep.base.text import utc_text
from cep.columnar.batch import EventBatch, concat_batches
from cep.columnar.decode import Decoded, Poison
from cep.engine.advance import Evicted
from cep.step.job import Job
from cep.step.match import MatchOutput

_RECORD_TEXT_MAX = 2_000
COUNTED = "\x00counted"


def dead_letter(poison: Poison, more: Mapping[str, Any] | None = None) -> bytes:
    """Describe a rejected record: code, reason, the record cut to a limit, its unreadable fields, and `more`."""
    letter = {"code": poison.code, "reason": poison.reason, "record": poison.record[:_RECORD_TEXT_MAX], **(more or {})}
    if poison.bad_values:
        letter["null_fields"] = [name for _, name in poison.bad_values]
    return json.dumps(letter, ensure_ascii=False).encode()


def bounded_equals(dead_letters: Sequence[bytes], counters: Counter[str]) -> Sequence[bytes]:
    """Remove and count equal dead letters beyond a limit: a packed file of kilobytes can have a million equal rows."""
    if len(dead_letters) <= EQUAL_LETTERS_MAX:
        return dead_letters
    counts: Counter[bytes] = Counter()
    remaining: list[bytes] = []
    for letter in dead_letters:
        counts[letter] += 1
        if counts[letter] <= EQUAL_LETTERS_MAX:
            remaining.append(letter)
    if len(remaining) < len(dead_letters):
        counters["letters_left_out"] += len(dead_letters) - len(remaining)
    return remaining


def under_rules(dead_letters: Iterable[bytes], epoch: int, content_hash: str) -> list[bytes]:
    """Add to each dead letter the rules under which its event or record was set aside."""
    rules = orjson.dumps({"epoch": epoch, "rulebook": content_hash})[1:]
    return [letter.rstrip()[:-1] + b"," + rules for letter in dead_letters]


def split_late(
    job: Job, batches: Mapping[int, Sequence[EventBatch]], watermark_ms: int, output: MatchOutput
) -> dict[int, EventBatch]:
    """Return the events that are not late, by number of the key domain; describe and count the others.

    An event with keys in several domains counts only once."""
    on_time: dict[int, EventBatch] = {}
    for number, parts in batches.items():
        batch = concat_batches(parts)
        if np.count_nonzero(batch.time_ms < watermark_ms):
            is_on_time = batch.time_ms >= watermark_ms
            late_batch = batch.take(~is_on_time)
            output.events_aside += describe(job, number, late_batch)
            output.counters["late_events"] += count_once(job, number, late_batch)
            batch = batch.take(is_on_time)
        if len(batch):
            on_time[number] = batch
    return on_time


def event_dead_letters(events: Iterable[Mapping[str, Any]]) -> list[bytes]:
    """Return the dead letters of described events; a description without a code is about a late event."""
    return [orjson.dumps({"code": "late", **event}) for event in events]


def evicted_dead_letters(evicted: Iterable[Evicted]) -> list[bytes]:
    """Write a dead letter for each rule and key that lost partial matches to a limit, which may be an attack."""
    reason = (
        "the key has more partial matches than the limit, and the oldest were dropped: what they waited for gives no "
        "alert; look at the events of the key, and make the first step of the rule narrower or its window shorter"
    )
    return [
        orjson.dumps(
            {
                "code": "runs_evicted", "reason": reason, "rule_id": e.rule.rule_id, "version": e.rule.version,
                "key_domain": ",".join(e.rule.pattern.key), "key": e.key, "runs": e.runs_count,
            }
        )
        for e in evicted
    ]  # fmt: skip


def ahead_dead_letters(job: Job, ahead: Decoded, now_ms: int) -> list[bytes]:
    """Return the dead letters of events that are dated too far ahead of the clock."""
    reason = f"dated more than {job.ahead_ms} ms ahead of the job's clock, {utc_text(now_ms)}"
    return [orjson.dumps({"code": "ahead", "reason": reason, **event}) for event in _named(job, ahead)]


def count_once(job: Job, number: int, batch: EventBatch) -> int:
    """Count the events that no earlier key domain has, so that an event with several keys counts once."""
    return int(np.count_nonzero(is_counted(job, number, batch)))


def is_counted(job: Job, number: int, batch: EventBatch) -> NDArray[np.bool_]:
    """Mark the events that no earlier key domain has: bool[N]. A batch without key fields has them in COUNTED."""
    if COUNTED in batch.columns:
        return np.asarray(batch.columns[COUNTED])
    is_keyed = np.zeros(len(batch), bool)
    for domain in job.domains[:number]:
        has_key = np.ones(len(batch), bool)
        for name in domain:
            has_key &= np.asarray(pc.is_valid(batch.columns[name]))
        is_keyed |= has_key
    return ~is_keyed


def describe(job: Job, number: int, batch: EventBatch) -> list[dict[str, Any]]:
    """Describe events that are set aside, for their dead letters."""
    domain = ",".join(job.domains[number])
    events = zip(_named(job, batch), batch.key.to_pylist(), strict=True)
    return [{**event, "key_domain": domain, "key": key} for event, key in events]


def _named(job: Job, events: Decoded | EventBatch) -> list[dict[str, Any]]:
    types = [job.schema.event_types[code].name for code in events.event_type.tolist()]
    columns = zip(events.event_id.to_pylist(), types, events.time_ms.tolist(), strict=True)
    return [dict(zip(("event_id", "event_type", "event_time_ms"), values, strict=True)) for values in columns]
