"""Keyed state made elsewhere → files in the checkpoint directory of a live job on Spark, which begins with them.

    CHECKPOINT/begins/begins.json         rulebook, watermark, event times, positions, which key groups have files
    CHECKPOINT/begins/group-00042.cep     the entries of a key group (group_entries.py)

A key group without state in Spark's store begins with its file, in the first micro-batch with records. The file stays:
a repeated micro-batch finds it again, so a crash in between changes nothing. Sources begin after the positions.
Tested by: tests/runners/handover/test_handover.py, tests/runners/spark/test_savepoint.py
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from cep.base.errors import StateCorruptError, StateFormatError, UsageError
from cep.base.files import replace_file, sync
from cep.base.limits import TIME_MS_MIN
from cep.runners.handover.group_entries import GroupState, state_of
from cep.runners.live_checkpoint import BEGINS_FOLDER
from cep.state.savepoints import read_entries, write_entries
from cep.step.event_time import PartitionTimes, times_from_json, times_json
from cep.step.job import Job

FOLDER = BEGINS_FOLDER
FORMAT = 1
_FILE = "begins.json"
# The names of lanes in the two runners: topic[3] and topic-3, files and source.
_TOPIC_PARTITION, _PARTITION = re.compile(r"(.+)\[(\d+)\]"), re.compile(r"(.+)-(\d+)")
_LANE_OF_FILES, _WHOLE_SOURCE = "files", "source"
Entries = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Beginning:
    """The progress of an earlier job that a job on Spark continues. Lanes are called `topic[3]`, or as a file."""

    rulebook: str  # digest of a rulebook in the job's folder
    watermark_ms: int
    times: PartitionTimes
    positions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # The first micro-batch has a number above all of the previous job: sinks take an equal one for a redelivery.
    first_number: int = 0
    groups: tuple[int, ...] = ()  # that have a file
    since_ms: int = TIME_MS_MIN  # the job has seen all events from then on; TIME_MS_MIN if unknown
    heartbeat_ms: int = TIME_MS_MIN  # of a heartbeat that waits for earlier records
    topic_ids: Mapping[str, str] = field(default_factory=dict)  # of the topics in `positions`
    gap_ms: int = TIME_MS_MIN  # events from before may be missing

    def partition_times(self) -> PartitionTimes:
        """Return `times` with the names of partitions on Spark."""
        return {partition_name(lane): time_ms for lane, time_ms in self.times.items()}

    def starting_offsets(self, kind: str, topic: str) -> str | None:
        """Return the offsets at which Spark starts, as {"topic": {"3": 17}}; None if the state has no positions.

        `kind` is `events` or `control`. A lane is `topic[3]` (partition 3) or a file. Raises: UsageError if another
        topic was read, or a file."""
        positions = self.positions.get(kind, {})
        if not positions:
            return None
        lanes = {lane: _TOPIC_PARTITION.fullmatch(lane) for lane in positions}  # m[1]: the topic; m[2]: the partition
        others = sorted({m[1] if m else lane for lane, m in lanes.items() if m is None or m[1] != topic})
        if others:
            raise _other_source(kind, f"topic {topic}", others)
        offsets = {m[2]: positions[lane] for lane, m in lanes.items() if m is not None}
        return orjson.dumps({topic: offsets}).decode()

    def files_read(self, kind: str) -> tuple[str, ...]:
        """Return the files that an earlier job has read, so that Spark skips them.

        `kind` is `events` or `control`. A position below 0 means that the file was read to its end. Raises: UsageError
        if the job has read a topic instead, or a file only in part."""
        positions = self.positions.get(kind, {})
        topics = sorted({m[1] for source_name in positions if (m := _TOPIC_PARTITION.fullmatch(source_name))})
        if topics:
            raise _other_source(kind, "a folder", topics)
        parts = sorted(name for name, position in positions.items() if position >= 0)  # files that were read in part
        if parts:
            raise UsageError(
                f"{parts[0]} was read in part, and Spark reads whole files; let the job before come to the end of it "
                "with --available-now, and make the savepoint then"
            )
        return tuple(sorted(positions))


def partition_name(lane: str) -> str:
    """Return the name of a lane on Spark: `topic-3` for `topic[3]`."""
    topic = _TOPIC_PARTITION.fullmatch(lane)
    return f"{topic[1]}-{topic[2]}" if topic else _WHOLE_SOURCE


def lane_name(partition: str) -> str:
    """Return the lane of a partition on Spark: `topic[3]` for `topic-3`."""
    topic = _PARTITION.fullmatch(partition)
    return f"{topic[1]}[{topic[2]}]" if topic else _LANE_OF_FILES


def write_beginning(checkpoint: Path, beginning: Beginning, groups: Iterable[tuple[int, Entries]]) -> int:
    """Write the state that a job begins with into a new checkpoint directory. Return the number of entries."""
    folder = checkpoint / FOLDER
    folder.mkdir(parents=True)
    counts: dict[int, int] = {}
    for group, entries in groups:
        path = folder / _group_file(group)
        count = write_entries(path, entries)
        if count:
            counts[group] = count
            sync(path)
        else:
            path.unlink()
    complete = replace(beginning, groups=tuple(counts))
    replace_file(
        folder / _FILE, orjson.dumps({"format": FORMAT, **asdict(complete), "times": times_json(complete.times)})
    )
    return sum(counts.values())


def read_beginning(checkpoint: Path) -> Beginning | None:
    """Read the progress that a job began with; None if it began empty. Raises: StateCorruptError, StateFormatError."""
    path = checkpoint / FOLDER / _FILE
    if not path.exists():
        return None
    try:
        fields: dict[str, Any] = orjson.loads(path.read_bytes())
        if fields.pop("format") != FORMAT:
            raise StateFormatError(f"{path} has another format, this build reads {FORMAT}; use the build that wrote it")
        fields["times"] = times_from_json(fields["times"])
        fields["groups"] = tuple(fields["groups"])
        return _checked(Beginning(**fields))
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateCorruptError(f"{path} cannot be read ({error!r}); restore the savepoint again") from error


def group_beginning(checkpoint: Path, beginning: Beginning, job: Job, level: int, group: int) -> GroupState:
    """Read the state that a key group begins with at a level. Raises: StateCorruptError."""
    if group not in beginning.groups:
        return GroupState()
    return state_of(job, level, read_entries(checkpoint / FOLDER / _group_file(group)))


def _checked(beginning: Beginning) -> Beginning:
    """Return the progress if its fields have their types. Raises: ValueError."""
    times = beginning.watermark_ms, beginning.since_ms, beginning.heartbeat_ms, beginning.gap_ms
    numbers = (*beginning.groups, beginning.first_number, *times)
    is_written = (
        isinstance(beginning.rulebook, str)
        and all(type(number) is int for number in numbers)
        and isinstance(beginning.positions, dict)
        and all(isinstance(by_partition, dict) for by_partition in beginning.positions.values())
        and all(
            type(position) is int for by_partition in beginning.positions.values() for position in by_partition.values()
        )
        and isinstance(beginning.topic_ids, dict)
        and all(isinstance(topic_id, str) for topic_id in beginning.topic_ids.values())
    )
    if not is_written:
        raise ValueError("its fields are not those that were written")
    return beginning


def _group_file(group: int) -> str:
    return f"group-{group:05}.cep"


def _other_source(kind: str, source: str, had: list[str]) -> UsageError:
    return UsageError(
        f"{kind} come from {source}, but the state that the job begins with was made of {', '.join(had[:5])}; "
        "read the same source, under the same name"
    )
