"""Events with unreadable values → marks of their keys → `flawed` in the next alerts of these keys.

A rule that reads an unreadable value sees null, so a sender may hide an event from the rule. An alert is `flawed` if
its key had such an event at the time of the alert, or less than MARK_MS before. A replay knows all times of a key. A
job remembers a mark of each key, among the last alerts of its rules (rulebook/suppression.py):

    "flawed card_id", key  →  last event, MARK_MS, last event before the pause, first event after the pause

A pause is a time of MARK_MS without such an event. A job remembers one pause; an alert cannot be older than two pauses.
Tested by: tests/step/test_step.py, tests/runners/test_flawed.py
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import orjson
import pyarrow as pa

from cep.base.limits import MARK_MS, MARKS_MAX, TIME_MS_MIN
from cep.columnar.batch import TEXT, EventBatch
from cep.columnar.decode import Decoded
from cep.columnar.texts import rows_among
from cep.rulebook.suppression import Fired, LastAlert, LastAlerts, mark_name

FLAWED = "flawed"
Marks = Mapping[tuple[str, str], Sequence[int]]  # ascending event times by mark_name and key
NO_MARKS: Marks = {}
Keys = dict[str, list[str]]  # by the fields of the key domain, as "card_id"


def keys_of_flawed(
    decoded: Decoded, domains: Sequence[Sequence[str]], batches: Sequence[EventBatch]
) -> dict[tuple[str, int], Keys]:
    """Return the keys of each event with unreadable values, by its id and time: for its dead letter, and to flag the
    next alerts of these keys, because a rule may have missed a value."""
    flawed = {(poison.event_id, poison.time_ms) for poison in decoded.poison if poison.bad_values}
    keys: dict[tuple[str, int], Keys] = {event: {} for event in flawed}
    if not flawed:
        return keys
    event_ids = pa.array(sorted({event_id for event_id, _ in flawed}), TEXT)
    for domain, batch in zip(domains, batches, strict=True):
        rows = np.flatnonzero(rows_among(batch.event_id, event_ids) >= 0)
        row_numbers = pa.array(rows)
        event_ids_here, domain_keys = batch.event_id.take(row_numbers), batch.key.take(row_numbers)
        events = zip(event_ids_here.to_pylist(), batch.time_ms[rows].tolist(), domain_keys.to_pylist(), strict=True)
        for event_id, time_ms, key in events:
            if (event_id, time_ms) in flawed:
                keys_of_domain = keys[event_id, time_ms].setdefault(",".join(domain), [])
                if key not in keys_of_domain:
                    keys_of_domain.append(key)
    return keys


def marks_of(keys_of_events: Mapping[tuple[str, int], Keys]) -> Marks:
    """Return the marks that events give to their keys."""
    return joined_marks(
        {(mark_name(fields), key): [time_ms] for key in keys}
        for (_, time_ms), by_domain in keys_of_events.items()
        for fields, keys in by_domain.items()
    )


def joined_marks(parts: Iterable[Marks]) -> Marks:
    """Join the marks of several parts of the events."""
    filled = [part for part in parts if part]
    if len(filled) < 2:
        return filled[0] if filled else NO_MARKS
    joined: dict[tuple[str, str], list[int]] = {}
    for part in filled:
        for name_key, times in part.items():
            joined.setdefault(name_key, []).extend(times)
    return {name_key: sorted(times) for name_key, times in joined.items()}


def marks_bytes(marks: Marks) -> bytes:
    """Write marks as JSON."""
    return orjson.dumps([[name, key, times] for (name, key), times in marks.items()])


def marks_from_bytes(data: bytes) -> Marks:
    """Read the marks that `marks_bytes` wrote."""
    return {(name, key): times for name, key, times in orjson.loads(data)}


def with_marks(
    alerts: pa.Table, keys: Mapping[tuple[str, int], str], marks: Marks, last_alerts: LastAlerts | None = None
) -> pa.Table:
    """Set the column `flawed` of alerts whose key had an event with unreadable values less than MARK_MS before.

    `marks` are the times of such events in this micro-batch, by key. `last_alerts` has the ones of earlier
    micro-batches, each stored as if it were a last alert. `keys` has the key fields of each rule and version. Cost: a
    look-up for each alert."""
    has_marks = last_alerts is not None and last_alerts.marks_count > 0
    if not alerts.num_rows or not (marks or has_marks):
        return alerts
    remembered: Fired = last_alerts.last if last_alerts is not None else {}
    columns = (alerts[name].to_pylist() for name in ("rule_id", "version", "key"))
    detected_ms = alerts["detected_at"].cast(pa.int64()).to_pylist()
    flags: list[bool] = []
    for rule_id, version, key, time_ms in zip(*columns, detected_ms, strict=True):
        mark = mark_name(keys.get((rule_id, version), "")), key
        flags.append(_is_near(marks.get(mark, ()), time_ms) or _covers(remembered.get(mark), time_ms))
    if not any(flags):
        return alerts
    index = alerts.schema.get_field_index(FLAWED)
    return alerts.set_column(index, alerts.schema.field(index), pa.array(flags))


def remember_marks(last_alerts: LastAlerts, marks: Marks) -> int:
    """Store the marks of keys, to flag their next alerts. A mark: when a key had events with unreadable values.

    Marks lie among the last alerts, because both are stored by key until they expire. Return how many found no room."""
    lost_count = 0
    for mark_key, times in marks.items():
        mark = last_alerts.last.get(mark_key)  # a mark is stored as if it were a rule's last alert
        if mark is None and last_alerts.marks_count >= MARKS_MAX:
            lost_count += 1
            continue
        for time_ms in times:
            mark = _add_to_mark(mark, time_ms)
        last_alerts.put({mark_key: mark})
    return lost_count


def _is_near(times: Sequence[int], time_ms: int) -> bool:
    """Return True if one of the ascending times is at this time, or less than MARK_MS before."""
    number = int(np.searchsorted(times, time_ms, side="right"))
    return number > 0 and time_ms < times[number - 1] + MARK_MS


def _covers(mark: LastAlert | None, time_ms: int) -> bool:
    if mark is None:
        return False
    last_ms, for_ms, before_ms, first_ms = mark
    return first_ms <= time_ms < last_ms + for_ms or before_ms <= time_ms < before_ms + for_ms


def _add_to_mark(mark: LastAlert | None, time_ms: int) -> LastAlert:
    if mark is None:
        return time_ms, MARK_MS, TIME_MS_MIN, float(time_ms)
    last_ms, _, before_ms, first_ms = mark
    if time_ms > last_ms + MARK_MS:
        return time_ms, MARK_MS, last_ms, float(time_ms)
    if time_ms + MARK_MS < first_ms:
        return last_ms, MARK_MS, max(before_ms, time_ms), first_ms
    return max(last_ms, time_ms), MARK_MS, before_ms, min(first_ms, float(time_ms))
