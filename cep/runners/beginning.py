"""Keyed state made elsewhere → what a live job on Spark begins with: files in its checkpoint directory.

    CHECKPOINT/begins/begins.json         rulebook, watermark, event times, positions, which key groups have files
    CHECKPOINT/begins/group-00042.cep     the entries of a key group (group_entries.py)

A key group that has no state in Spark's store yet begins with its file. That is in the first micro-batch with records,
in which every key group has a part. The file stays: a micro-batch that comes again finds it again, so that a crash in
between changes nothing. The query's plan knows nothing of it. Sources begin behind the positions.
Tested by: tests/runners/test_beginning.py, tests/runners/spark/test_moved.py
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from cep.base.durable import replace_file, sync
from cep.base.errors import StateCorruptError, StateFormatError, UsageError
from cep.base.limits import TIME_MS_MIN
from cep.runners.event_time import PartitionTimes
from cep.runners.group_entries import GroupState, state_of
from cep.runners.job import Job
from cep.state.entries import read_entries, write_entries

FOLDER = "begins"
FORMAT = 1
_FILE = "begins.json"
# How the two runners call what is read in order: topic[3] and topic-3, files and source.
_LANE, _PARTITION = re.compile(r"(.+)\[(\d+)\]"), re.compile(r"(.+)-(\d+)")
_LANE_OF_FILES, _WHOLE_SOURCE = "files", "source"
Entries = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Beginning:
    """What all key groups begin with. `rulebook` is the digest of one in the job's folder (rulebook/store.py).

    `times` and `positions` are called as in savepoints: `topic[3]`, and files by their names. `first_number` is that of
    the first micro-batch, above all that the job before has used: sinks take a number again for a redelivery. `groups`
    are the key groups that have a file. `since_ms`: all events from then on have been seen, TIME_MS_MIN if not known.
    """

    rulebook: str
    watermark_ms: int
    times: PartitionTimes
    positions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    first_number: int = 0
    groups: tuple[int, ...] = ()
    since_ms: int = TIME_MS_MIN

    def partition_times(self) -> PartitionTimes:
        """`times` as Spark's runner calls partitions."""
        return {partition_name(lane): at for lane, at in self.times.items()}

    def starting(self, kind: str, topic: str) -> str | None:
        """Where the partitions of a topic start, as {"topic": {"3": 17}}; None if the state was made without it.

        `kind` is `events` or `control`. Raises: UsageError if something else was read.
        """
        known = self.positions.get(kind, {})
        if not known:
            return None
        found = {lane: _LANE.fullmatch(lane) for lane in known}
        others = sorted({m[1] if m else lane for lane, m in found.items() if m is None or m[1] != topic})
        if others:
            raise _other_source(kind, f"topic {topic}", others)
        offsets = {m[2]: known[lane] for lane, m in found.items() if m is not None}
        return orjson.dumps({topic: offsets}).decode()

    def files_read(self, kind: str) -> tuple[str, ...]:
        """The names of the files that need not be read any more.

        Raises: UsageError if one was read in part, or a topic.
        """
        known = self.positions.get(kind, {})
        topics = sorted({m[1] for lane in known if (m := _LANE.fullmatch(lane))})
        if topics:
            raise _other_source(kind, "a folder", topics)
        parts = sorted(name for name, done in known.items() if done >= 0)
        if parts:
            raise UsageError(
                f"{parts[0]} was read in part, and Spark reads whole files; let the job before come to the end of it "
                "with --available-now, and make the savepoint then"
            )
        return tuple(sorted(known))


def partition_name(lane: str) -> str:
    """What the embedded runner calls `topic[3]` is `topic-3` on Spark."""
    found = _LANE.fullmatch(lane)
    return f"{found[1]}-{found[2]}" if found else _WHOLE_SOURCE


def lane_name(partition: str) -> str:
    """The reverse."""
    found = _PARTITION.fullmatch(partition)
    return f"{found[1]}[{found[2]}]" if found else _LANE_OF_FILES


def write_beginning(checkpoint: Path, begins: Beginning, groups: Iterable[tuple[int, Entries]]) -> int:
    """Put it into a checkpoint directory that no job has used yet; returns how many entries the key groups have.

    Raises: StoreError, OSError.
    """
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
    known = replace(begins, groups=tuple(counts))
    replace_file(folder / _FILE, orjson.dumps({"format": FORMAT, **asdict(known)}))
    return sum(counts.values())


def read_beginning(checkpoint: Path) -> Beginning | None:
    """What the job of a checkpoint directory begins with; None: with nothing.

    Raises: StateCorruptError, StateFormatError.
    """
    path = checkpoint / FOLDER / _FILE
    if not path.exists():
        return None
    try:
        found: dict[str, Any] = orjson.loads(path.read_bytes())
        if found.pop("format") != FORMAT:
            raise StateFormatError(f"{path} has another format, this build reads {FORMAT}; use the build that wrote it")
        found["times"] = {lane: (ms, behind) for lane, (ms, behind) in found["times"].items()}
        found["groups"] = tuple(found["groups"])
        return Beginning(**found)
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise StateCorruptError(f"{path} cannot be read ({error!r}); restore the savepoint again") from error


def group_beginning(checkpoint: Path, begins: Beginning, job: Job, level: int, group: int) -> GroupState:
    """What a key group begins with at a level. Raises: StateCorruptError."""
    if group not in begins.groups:
        return GroupState()
    return state_of(job, level, read_entries(checkpoint / FOLDER / _group_file(group)))


def _group_file(group: int) -> str:
    return f"group-{group:05}.cep"


def _other_source(kind: str, asked: str, had: list[str]) -> UsageError:
    return UsageError(
        f"{kind} come from {asked}, but the state that the job begins with was made of {', '.join(had[:5])}; "
        "read the same source, under the same name"
    )
