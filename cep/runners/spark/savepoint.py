"""The checkpoint directory of a stopped live job on Spark → a savepoint in a target, as a copy or for both runners.

A copy is verified in both directions:

    TARGET/savepoint-NNNNNN.manifest    what the savepoint is made of (state/manifest.py); number: its last micro-batch
    TARGET/files/SHA256                 the files; what two savepoints share is there once

Steps of a savepoint, each of which may be the last one before a crash:

    1  hash     every file of the checkpoint directory
    2  copy     the files that the target does not have
    3  verify   that what the target has, has the bytes that were hashed
    4  publish  the manifest: from here on the savepoint is there, before it is not

A restore fetches and verifies every file into a folder next to the new checkpoint directory, and renames it last.

`save_for_both` writes a savepoint that both runners start from. The last micro-batch must have ended:

    Spark's state store, by its data source ─▶ entries by key group (group_entries.py), through a store on disk
    progress of a key group, rulebook ───────▶ rulebook, watermark, event times
    Spark's offset log ──────────────────────▶ positions: next offsets of a topic, names of files that were read
Tested by: tests/runners/spark/test_savepoint.py.
"""

import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import orjson
from pyspark.sql import SparkSession

from cep.base.errors import StateCorruptError, UsageError
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import RulebookStore, rulebook_bytes
from cep.runners import live_checkpoint
from cep.runners.handover.beginning import lane_name, read_beginning
from cep.runners.handover.group_entries import GroupState, entries_of
from cep.runners.handover.payload import STAGES, Payload, Saved
from cep.runners.rule_output import last_alerted
from cep.runners.spark.group_parts import PAGES, PAST, PROGRESS, SEEN, SEGMENTS, WAITING
from cep.runners.spark.group_ports import GroupProgress
from cep.runners.spark.sink_queue import refuse_waiting
from cep.runners.spark.state import ended_batch, job_of, last_batch, operators, readable, stored_part
from cep.sources.offsets import Position, by_lane
from cep.state.checkpoints import Part
from cep.state.manifest import FOLDER, Manifest, StoredFile, fetch, path_inside, sha256_of
from cep.state.rocks import RocksMemory, RocksSettings, RocksStore
from cep.state.savepoints import write_savepoint
from cep.state.store import WriteBatch
from cep.state.target import Target
from cep.step.event_time import times_json
from cep.step.job import Job

KIND = "spark-savepoint"
_PREFIX, _SUFFIX = "savepoint-", ".manifest"


@dataclass(frozen=True, slots=True)
class CopiedCheckpoint:
    """An existing savepoint. Units: bytes; `copied` are the bytes that the target did not have."""

    name: str
    batch_id: int
    files_count: int
    size: int
    copied: int


def save(checkpoint: Path, target: Target) -> CopiedCheckpoint:
    """Copy the checkpoint directory of a stopped job to a target, by the hash of each file, and verify the copies.

    Raises: UsageError if the folder is not a job's, or in use; StoreError; StateCorruptError if written bytes differ.
    """
    job_of(checkpoint)
    with live_checkpoint.lock_checkpoint(checkpoint):
        batch_id = last_batch(checkpoint)  # with the lock: a job that ends just now has written its last number
        assert batch_id is not None, "job_of has refused one without"
        files = [
            StoredFile(path.relative_to(checkpoint).as_posix(), path.stat().st_size, sha256_of(path))
            for path in sorted(checkpoint.rglob("*"))
            if path.is_file() and path.name != live_checkpoint.LOCK_FILE and not path.name.endswith(".tmp")
        ]
        sizes = target.sizes(FOLDER)
        copied = 0
        for file in files:
            if sizes.get(file.sha256) != file.size:
                target.put(checkpoint / file.name, f"{FOLDER}/{file.sha256}")
                sizes[file.sha256] = file.size
                copied += file.size
        with tempfile.TemporaryDirectory() as scratch:
            for file in files:  # read each copy back, which compares its hash
                fetch(target, file, Path(scratch) / "file", may_link=False)
        name = f"{_PREFIX}{batch_id:09d}-{int(time.time() * 1_000)}"
        manifest = Manifest(KIND, batch_id, int(time.time() * 1_000), (), tuple(files))
        target.create(name + _SUFFIX, manifest.to_bytes())
    return CopiedCheckpoint(name, batch_id, len(files), sum(f.size for f in files), copied)


def savepoints(target: Target) -> list[str]:
    """Return the names of all savepoints, the latest last."""
    names = [name.removesuffix(_SUFFIX) for name in target.sizes() if name.endswith(_SUFFIX)]
    return sorted(name for name in names if name.startswith(_PREFIX))


def restore(target: Target, checkpoint: Path, name: str | None = None) -> CopiedCheckpoint:
    """Create a checkpoint directory from a savepoint, by default from the latest one.

    Raises: UsageError; StateCorruptError if a file differs from the saved one; nothing has been created then.
    """
    names = savepoints(target)
    if not names:
        raise UsageError(f"{target.url} has no savepoints; make one with `cep job savepoint`")
    chosen = names[-1] if name is None else name
    if chosen not in names:
        raise UsageError(f"{target.url} has no savepoint {chosen}, only {', '.join(names)}")
    live_checkpoint.check_empty(checkpoint)
    manifest = Manifest.from_bytes(target.read(chosen + _SUFFIX), chosen)
    if manifest.kind != KIND:
        raise UsageError(f"{chosen} is a {manifest.kind}, not a savepoint of a live job on Spark")
    manifest.check_number(int(chosen.removeprefix(_PREFIX).partition("-")[0]), chosen)  # savepoint-NUMBER-TIME
    with live_checkpoint.new_checkpoint(checkpoint) as fresh:
        for file in manifest.files:
            fetch(target, file, path_inside(fresh, file.name), may_link=False)
    size = sum(file.size for file in manifest.files)
    return CopiedCheckpoint(chosen, manifest.number, len(manifest.files), size, size)


# Part of the state of a key group in Spark → the entry of a savepoint: from at, number, and content (group_parts.py).
_ENTRIES: Mapping[str, Callable[[int, int, bytes], GroupState]] = {
    PAGES: lambda page, _, content: GroupState(pages={page: content}),
    PAST: lambda page, _, content: GroupState(heads={page: content}),
    SEGMENTS: lambda page, segment, content: GroupState(segments={(page, segment): content}),
    WAITING: lambda domain, _, content: GroupState(waiting={domain: content}),
    SEEN: lambda domain, bucket, content: GroupState(seen={(domain, bucket): content}),
}
_CACHE_BYTES = 64 << 20
_ENTRIES_AT_ONCE = 256
_DONE = -1  # of a file that was read to its end (sources/live/files.py)
_LOG_FILE = re.compile(r"(\d+)(\.compact)?")


def save_for_both(spark: SparkSession, checkpoint: Path, target: Target) -> Saved:
    """Write a savepoint of a stopped job, from which both `cep live` (Spark) and `cep run` (embedded) can start. It has
    the keyed state, sorted, and a payload (rules and positions). Raises: UsageError, StateError, StoreError."""
    job = job_of(checkpoint)
    with (
        live_checkpoint.lock_checkpoint(checkpoint),
        tempfile.TemporaryDirectory(prefix="cep-savepoint-", dir=checkpoint) as scratch,
    ):
        last_batch_id = ended_batch(checkpoint, "make the savepoint")  # refuses a micro-batch that has not ended
        refuse_waiting(checkpoint)  # alerts for sinks that are away, which a savepoint cannot keep
        memory = RocksMemory(_CACHE_BYTES, _CACHE_BYTES // 4)  # a quarter is for writing
        with RocksStore(Path(scratch) / "store", RocksSettings(memory, wal=False)) as store:  # thrown away, so no log
            progress = _copy_entries(spark, checkpoint, job, store)
            rulebooks = RulebookStore(checkpoint / live_checkpoint.RULEBOOKS_FOLDER)
            rulebook = rulebooks.get(progress.rulebook, job.schema, job.domains)
            payload = _payload(checkpoint, rulebook, progress, last_batch_id)
            part = Part(STAGES, store, 0, job.groups_count)  # all key groups are in one store
            created_ms = int(time.time() * 1_000)
            work, lists = Path(scratch) / "entries", rulebook.lists.files()
            savepoint = write_savepoint(target, work, (part,), payload.to_bytes(), created_ms, lists)
    return Saved(range(job.groups_count), len(savepoint.files))


def _copy_entries(spark: SparkSession, checkpoint: Path, job: Job, store: RocksStore) -> GroupProgress:
    """Copy the keyed state of all levels of rules, each a stateful operator of the query, into a store, by key group.
    Return the progress of one key group: the rulebook, the watermark and the partition times are equal in all."""
    shared_progress: GroupProgress | None = None
    for level, operator in enumerate(operators(checkpoint)):
        batch = WriteBatch()
        for group, group_state, progress in _stored_parts(spark, checkpoint, operator):
            if level == 0 and progress is not None:
                shared_progress = progress  # equal in every key group, except the deadlines
            for key, value in entries_of(job, level, group, group_state):
                batch.put(key, value)
            if len(batch.changes) >= _ENTRIES_AT_ONCE:
                store.write(batch)
                batch = WriteBatch()
        store.write(batch)
    if shared_progress is None:
        raise StateCorruptError(f"{checkpoint} has no key groups; restore it")
    return shared_progress


def _stored_parts(
    spark: SparkSession, checkpoint: Path, operator: int
) -> Iterator[tuple[int, GroupState, GroupProgress | None]]:
    """Yield (key group, a part of its state, its progress if that is the part)."""
    with readable(checkpoint):
        for row in stored_part(spark, checkpoint, PROGRESS, operator).toLocalIterator():
            progress = GroupProgress.from_bytes(bytes(row.content))
            yield row.key_group, GroupState(deadlines=progress.deadlines, expiry_ms=progress.expiry_ms), progress
        for name, entry in _ENTRIES.items():
            for row in stored_part(spark, checkpoint, name, operator).toLocalIterator():
                yield row.key_group, entry(row.at, row.number, bytes(row.content)), None


def _payload(checkpoint: Path, rulebook: Rulebook, progress: GroupProgress, batch_id: int) -> Payload:
    """Describe the job of a savepoint, apart from its keyed state. If the job continues an earlier one, the numbers of
    micro-batches go on, and positions of lanes (partitions or files) that only the earlier job has read are kept."""
    beginning = read_beginning(checkpoint)
    query = checkpoint / live_checkpoint.QUERY_FOLDER
    earlier_positions = {} if beginning is None else beginning.positions
    names = ("events", "control")  # the sources of the query, as Spark numbers them
    offsets = [_offset(query, number, batch_id) for number in range(len(names))]
    return Payload(
        job=orjson.loads((checkpoint / live_checkpoint.JOB_FILE).read_bytes()),
        rules=orjson.loads((checkpoint / live_checkpoint.RULES_FILE).read_bytes()),
        base=batch_id + (0 if beginning is None else beginning.first_number),  # number of the last micro-batch
        engine={  # the progress, which all key groups share
            "rulebook": rulebook_bytes(rulebook).decode(),
            "held_memory": last_alerted(checkpoint),  # when each rule and key last fired
            "watermark_ms": progress.watermark_ms,
            "since_ms": progress.since_ms,  # the time of the first event
            "gap_ms": progress.gap_ms,  # events from before this time may be missing
            "heartbeat_ms": progress.heartbeat_ms,  # of a heartbeat (a control record) that waits for earlier records
            "times": times_json({lane_name(partition): time_ms for partition, time_ms in progress.times.items()}),
        },
        positions={
            name: {**earlier_positions.get(name, {}), **read_positions(query, number, batch_id)}
            for number, name in enumerate(names)
        },
        totals=dict(live_checkpoint.read_progress(checkpoint)[1]),  # [0]: the last micro-batch
        topic_ids={  # by topic: one that was created again has another id
            **({} if beginning is None else beginning.topic_ids),
            **{t: i for offset in offsets if isinstance(offset, Position) for t, i in offset.topic_ids.items()},
        },
    )


def _offset(query: Path, source: int, batch_id: int) -> Position | set[str]:
    """Return how far a source was read: offsets of topics, or names of files; none for a source that the job lacks."""
    path = query / "offsets" / str(batch_id)
    try:
        lines = path.read_text().splitlines()[2:]  # v1 | metadata | the offset of each source
        if source >= len(lines) or lines[source] == "-":
            return set()
        offset = orjson.loads(lines[source])
        if "logOffset" in offset:
            return _files_read(query / "sources" / str(source), offset["logOffset"])
        return Position.from_json(offset)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateCorruptError(f"{path} does not say how far the job has read ({error!r}); restore it") from error


def read_positions(query: Path, source: int, batch_id: int) -> dict[str, int]:
    """Return how far a source (0: events, 1: control) was read after a micro-batch. Raises: StateCorruptError."""
    offset = _offset(query, source, batch_id)
    if isinstance(offset, set):
        return dict.fromkeys(offset, _DONE)
    return by_lane(offset.offsets)


def _files_read(log: Path, last: int) -> set[str]:
    """Yield the names in Spark's log of files, up to an entry; older entries are gathered into one now and then."""
    names: set[str] = set()
    for path in log.iterdir():
        numbered = _LOG_FILE.fullmatch(path.name)
        if numbered and int(numbered[1]) <= last:
            for line in path.read_text().splitlines()[1:]:
                names.add(unquote(orjson.loads(line)["path"].rpartition("/")[2]))
    return names
