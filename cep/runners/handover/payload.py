"""The part of a savepoint outside its entries ↔ JSON: the job, its first rules, positions and totals.

    {"job": job.json, "rules": initial_rules.json,
     "checkpoint": {"format": 1, "base": number of the last micro-batch, "engine": the progress that all key groups
                    share, "positions": {"events" | "control": {lane: offset}}, "totals": {counter: count},
                    "topic_ids": {topic: id}}}

Both runners write it and both read it. A savepoint may come from anywhere, so `from_bytes` checks every field.

An event from the future, or a wrong heartbeat, may have set the watermark so far ahead that every later event is late.
`set_back` gives such a savepoint an earlier watermark. Windows that the watermark has closed stay closed.
Tested by: tests/runners/handover/test_handover.py, tests/runners/embedded/test_savepoint.py.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from cep.base.errors import StateCorruptError, StateFormatError, UsageError
from cep.base.limits import EVENT_TIME_MS_MAX, EVENT_TIME_MS_MIN, TIME_MS_MIN
from cep.base.text import of_type, utc_text
from cep.rulebook.suppression import fired_from_json
from cep.state.savepoints import Savepoint, open_savepoint
from cep.state.target import Target
from cep.step.event_time import PartitionTime, times_from_json, times_json
from cep.step.job import Job

PAYLOAD_FORMAT = 1
STAGES = "stages"  # name of the part that Spark's stages come from
_MIXED = "spark"  # its name in builds up to 0.2.0, which took the last level for the first
_ENGINE = {"rulebook": str, "held_memory": list, "watermark_ms": int, "times": dict}
_ENGINE_TIMES = ("since_ms", "gap_ms", "heartbeat_ms")  # an earlier build did not store them


@dataclass(frozen=True, slots=True)
class Saved:
    """The key groups, files and entries of a savepoint or a restored folder. `entries` is counted by a restore only."""

    groups: range
    files_count: int
    entries: int = 0


@dataclass(frozen=True, slots=True)
class Payload:
    """A job as a savepoint describes it, apart from keyed state. The module docstring describes the fields."""

    job: Mapping[str, Any]
    rules: Mapping[str, Any]
    base: int
    engine: Mapping[str, Any]
    positions: Mapping[str, Mapping[str, int]]
    totals: Mapping[str, int]
    topic_ids: Mapping[str, str] = field(default_factory=dict)  # of the topics in `positions`, as far as known

    def to_bytes(self) -> bytes:
        """Encode the payload."""
        names = "base", "engine", "positions", "totals", "topic_ids"
        checkpoint = {"format": PAYLOAD_FORMAT, **{name: getattr(self, name) for name in names}}
        return orjson.dumps({"job": self.job, "rules": self.rules, "checkpoint": checkpoint})

    @staticmethod
    def from_bytes(data: bytes, place: str) -> Payload:
        """Read a payload; `place` is for messages. Raises: StateCorruptError, StateFormatError."""
        try:
            fields = orjson.loads(data)
            checkpoint = fields["checkpoint"]
            if checkpoint["format"] != PAYLOAD_FORMAT:
                raise StateFormatError(
                    f"the savepoint in {place} was written in format {checkpoint['format']}, this build reads "
                    f"{PAYLOAD_FORMAT}; restore it with the build that wrote it"
                )
            topic_ids = checkpoint.get("topic_ids", {})  # an earlier build stored the names of topics alone
            base, engine, positions, totals = (checkpoint[name] for name in ("base", "engine", "positions", "totals"))
            payload = Payload(fields["job"], fields["rules"], base, engine, positions, totals, topic_ids)
            payload._check_fields()
        except (KeyError, TypeError, ValueError) as error:
            reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
            raise StateCorruptError(
                f"the savepoint in {place} does not describe a job: {reason}; take an older one"
            ) from error
        return payload

    def _check_fields(self) -> None:
        """Check the fields that readers of a savepoint rely on. Raises: KeyError, TypeError, ValueError."""
        Job.from_json(self.job)
        of_type("base", self.base, int)
        of_type("engine", self.engine, dict)
        for name, type_ in _ENGINE.items():
            of_type(name, self.engine[name], type_)
        for name in _ENGINE_TIMES:
            of_type(name, self.engine.get(name, TIME_MS_MIN), int)
        fired_from_json(self.engine["held_memory"])  # for its errors
        for record in of_type("records", of_type("rules", self.rules, dict)["records"], list):
            of_type("a rule", record, str)
        for time in self.engine["times"].values():
            for ms in PartitionTime.from_json(of_type("the times of a partition", time, list))[:-1]:  # the last: counts
                of_type("an event time", ms, int)
            of_type("an event time", time[0], int)  # the stored value: `from_json` also accepts a text of digits
        for offsets in of_type("positions", self.positions, dict).values():  # by lane: partition of a topic, or a file
            for lane, offset in of_type("positions", offsets, dict).items():
                of_type(f"the position of {lane}", offset, int)
        for name, count in of_type("totals", self.totals, dict).items():
            of_type(name, count, int)
        for topic, topic_id in of_type("topic_ids", self.topic_ids, dict).items():
            of_type(f"the id of {topic}", topic_id, str)


def payload_in(savepoint: Savepoint) -> Payload:
    """Return the payload of a savepoint, checked. Raises: StateCorruptError, StateFormatError."""
    place = savepoint.target.url
    payload = Payload.from_bytes(savepoint.payload, place)
    names = {part.name for part in savepoint.manifest.parts}
    if _MIXED in names and Job.from_json(payload.job).levels_count > 1:
        raise StateFormatError(
            f"the savepoint in {place} was made of a job on Spark by cep 0.2.0, which mixed up the levels of patterns "
            "that feed each other; make it again with this build, `cep job savepoint --portable`, from the job's folder"
        )
    return payload


def read_payload(target: Target) -> Payload:
    """Read the payload of a savepoint in the portable form. Raises: StateError, StoreError."""
    with tempfile.TemporaryDirectory(prefix="cep-payload-") as scratch:
        savepoint = open_savepoint(target, Path(scratch) / "payload")
        return payload_in(savepoint)


def set_back(payload: Payload, to_ms: int, now_ms: int) -> Payload:
    """Set the watermark of a stopped job back to `to_ms`, so that events after it are matched. Raises: UsageError.

    Events before the old watermark may have been late, and were then set aside. Later alerts say that some may be
    missing."""
    progress, lateness_ms = payload.engine, Job.from_json(payload.job).lateness_ms
    if progress["watermark_ms"] <= to_ms:
        raise UsageError(f"the watermark is {_shown(progress['watermark_ms'])}: {utc_text(to_ms)} is not back from it")
    times = {
        name: PartitionTime(min(time.last_ms, to_ms + lateness_ms), time.is_behind)  # watermark = last_ms - lateness
        for name, time in times_from_json(progress["times"]).items()
    }
    # Events before `gap_ms` may be missing: up to the watermark, or the clock `now_ms` if that is earlier.
    gap_ms = max(progress.get("gap_ms", TIME_MS_MIN), min(progress["watermark_ms"], now_ms))
    # A heartbeat (a time without an event) that still waits is dropped: it may have set the watermark too far ahead.
    engine = {
        **progress, "watermark_ms": to_ms, "gap_ms": gap_ms, "times": times_json(times),
        "heartbeat_ms": TIME_MS_MIN, "last_event": None,  # None: the order of events begins again
    }  # fmt: skip
    return replace(payload, engine=engine)


def consequences(payload: Payload, to_ms: int) -> list[str]:
    """Return sentences that explain the consequences of a watermark at `to_ms`."""
    before, after = _shown(payload.engine["watermark_ms"]), utc_text(to_ms)
    over = "partial matches, past events, versions of rules, pauses, snoozes and times of suppression"
    return [
        f"The watermark goes back from {before} to {after}. Events from {after} on are matched again.",
        "Events that were late stay set aside. Their dead letters name them; a replay of the history has their alerts.",
        f"What was over at the old watermark stays over: {over}.",
        "Alerts say in `history_from` that the past before now may lack events.",
        "A key of an event from the future may give a wrong alert.",
    ]


def _shown(watermark_ms: int) -> str:
    return utc_text(watermark_ms) if EVENT_TIME_MS_MIN <= watermark_ms <= EVENT_TIME_MS_MAX else "no time"
