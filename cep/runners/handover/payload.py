"""The part of a savepoint outside its entries ↔ JSON: the job, its first rules, positions and totals.

    {"job": job.json, "rules": initial_rules.json,
     "checkpoint": {"format": 1, "base": number of the last micro-batch, "engine": the progress that all key groups
                    share, "positions": {"events" | "control": {lane: offset}}, "totals": {counter: count},
                    "topic_ids": {topic: id}}}

Both runners write it and both read it. A savepoint may come from anywhere, so `from_bytes` checks every field.
Tested by: tests/runners/handover/test_handover.py, tests/runners/embedded/test_savepoint.py
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from cep.base.errors import StateCorruptError, StateFormatError
from cep.base.shapes import of_type
from cep.state.savepoints import Savepoint
from cep.step.event_time import PartitionTime
from cep.step.job import Job

PAYLOAD_FORMAT = 1
STAGES = "stages"  # name of the part that Spark's stages come from
_MIXED = "spark"  # its name in builds up to 0.2.0, which took the last level for the first
_ENGINE = {"rulebook": str, "held_memory": list, "watermark_ms": int, "times": dict}


@dataclass(frozen=True, slots=True)
class Saved:
    """The key groups, files and entries of a savepoint or a restored folder. `entries` is counted by a restore only."""

    groups: range
    files_count: int
    entries: int = 0


@dataclass(frozen=True, slots=True)
class Payload:
    """A job as a savepoint describes it, apart from keyed state.

    `job` and `rules` are the JSON of the job's folder. `engine` is the progress that all key groups share. `base` is
    the number of the last micro-batch. `topic_ids` are of the topics that `positions` name, as far as they are known.
    """

    job: Mapping[str, Any]
    rules: Mapping[str, Any]
    base: int
    engine: Mapping[str, Any]
    positions: Mapping[str, Mapping[str, int]]
    totals: Mapping[str, int]
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the payload's bytes."""
        checkpoint = {
            "format": PAYLOAD_FORMAT,
            "base": self.base,
            "engine": self.engine,
            "positions": self.positions,
            "totals": self.totals,
            "topic_ids": self.topic_ids,
        }
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
            payload = Payload(
                fields["job"],
                fields["rules"],
                checkpoint["base"],
                checkpoint["engine"],
                checkpoint["positions"],
                checkpoint["totals"],
                checkpoint.get("topic_ids", {}),  # an earlier build went by the names of topics
            )
            payload._check()
        except (KeyError, TypeError, ValueError) as error:
            reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
            raise StateCorruptError(
                f"the savepoint in {place} does not describe a job: {reason}; take an older one"
            ) from error
        return payload

    def _check(self) -> None:
        """Check the fields that its readers rely on. Raises: KeyError, TypeError, ValueError."""
        Job.from_json(self.job)
        of_type("base", self.base, int)
        of_type("engine", self.engine, dict)
        for name, type_ in _ENGINE.items():
            of_type(name, self.engine[name], type_)
        for record in of_type("records", of_type("rules", self.rules, dict)["records"], list):
            of_type("a rule", record, str)
        for time in self.engine["times"].values():
            for ms in PartitionTime.from_json(of_type("the times of a partition", time, list))[:-1]:
                of_type("an event time", ms, int)
            of_type("an event time", time[0], int)
        for lanes in of_type("positions", self.positions, dict).values():
            for lane, offset in of_type("positions", lanes, dict).items():
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
