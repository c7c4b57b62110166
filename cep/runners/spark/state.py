"""Spark's checkpoint of a live job → its stored pages and programs, through Spark's state data source.

The result is the state at the end of the last recorded micro-batch. `rescale` gives a stopped job another number of
matching tasks by Spark's checkpoint repartitioning, as a micro-batch that reads nothing. A micro-batch that has begun
must end first: its rows are in no state yet, and the sinks know it by its number.
Tested by: tests/runners/spark/test_savepoint.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import orjson
import pyarrow as pa
import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 the name that Spark's own documentation uses

from cep.base.errors import StateCorruptError, StateError, UsageError
from cep.columnar.batch import TEXT
from cep.columnar.decode import KeyDomain, key_groups
from cep.nfa.program import Program
from cep.rulebook.saved import RulebookStore
from cep.runners.handover.group_entries import PAGE_BITS
from cep.runners.live_checkpoint import QUERY_FOLDER, RULEBOOKS_FOLDER, lock_checkpoint, read_job
from cep.runners.spark.group_parts import PAGES, PAST, PROGRESS, SEGMENTS, VARIABLE, prepare_query
from cep.runners.spark.group_ports import GroupProgress
from cep.state.past import StoredPage, StoredPast
from cep.step.job import Job
from cep.step.rules import programs_by_level


def job_of(checkpoint: Path) -> Job:
    """Read the job of a checkpoint directory. Raises: UsageError for a directory without a job or without state."""
    job = read_job(checkpoint)
    if job is None:
        raise UsageError(f"{checkpoint} is no checkpoint directory of a live job; give the folder of `--checkpoint`")
    if last_batch(checkpoint) is None:
        raise UsageError(f"{checkpoint} has no finished micro-batch yet; let the job run first")
    return job


def last_batch(checkpoint: Path) -> int | None:
    """Return the last micro-batch whose end Spark has recorded."""
    return _highest(checkpoint / QUERY_FOLDER / "commits")


def planned_batch(checkpoint: Path) -> int | None:
    """Return the last micro-batch that Spark has begun."""
    return _highest(checkpoint / QUERY_FOLDER / "offsets")


def ended_batch(checkpoint: Path, verb: str) -> int:
    """Return the last micro-batch, which has ended. Raises: UsageError, which names the `verb` to repeat."""
    planned, ended = planned_batch(checkpoint), last_batch(checkpoint)
    assert ended is not None, "job_of has refused one without"
    if planned != ended:
        raise UsageError(
            f"micro-batch {planned} of {checkpoint} has begun and not ended; "
            f"run `cep live --available-now` with the job's settings once, then {verb}"
        )
    return ended


def stored_pages(spark: SparkSession, checkpoint: Path, job: Job, key: str | None = None) -> Iterator[StoredPage]:
    """Yield the pages of a checkpoint, one after another; with a key, only the pages of its key group."""
    for operator in operators(checkpoint):
        frame = stored_part(spark, checkpoint, PAGES, operator)
        frame = frame if key is None else _of_key(frame, key, job)
        with readable(checkpoint):
            for row in frame.toLocalIterator():
                yield StoredPage(row.key_group, job.domains[row.at >> PAGE_BITS], bytes(row.content))


def stored_pasts(spark: SparkSession, checkpoint: Path, job: Job, key: str | None = None) -> Iterator[StoredPast]:
    """Yield the pages of histories (aggregates over past events): the head of each, which lists its segments (stored
    blocks of events). A key limits the pages to its key group; the segments themselves are read only with a key."""
    for operator in operators(checkpoint):
        heads, segments = (stored_part(spark, checkpoint, name, operator) for name in (PAST, SEGMENTS))
        segments_of: dict[int, dict[int, bytes]] = {}
        with readable(checkpoint):
            if key is not None:
                heads, segments = (_of_key(frame, key, job) for frame in (heads, segments))
                for row in segments.toLocalIterator():
                    segments_of.setdefault(row.at, {})[row.number] = bytes(row.content)
            for row in heads.toLocalIterator():
                domain = job.domains[row.at >> PAGE_BITS]  # `at`: the page's id, its upper bits the domain's number
                yield StoredPast(row.key_group, domain, bytes(row.content), segments_of.get(row.at, {}))


def _of_key(frame: DataFrame, key: str, job: Job) -> DataFrame:
    """Select the rows of the key group of a key."""
    return frame.where(F.col("key_group") == int(key_groups(pa.array([key], TEXT), job.groups_count)[0]))


def programs_of(spark: SparkSession, checkpoint: Path, job: Job) -> Sequence[Mapping[KeyDomain, Program]]:
    """Compile the rules in force, by key domain, for each level of patterns that feed each other."""
    with readable(checkpoint):
        rows = stored_part(spark, checkpoint, PROGRESS, operators(checkpoint)[0]).limit(1).collect()
    digest = GroupProgress.from_bytes(bytes(rows[0].content)).rulebook if rows else ""
    if not digest:
        return []
    store = RulebookStore(checkpoint / RULEBOOKS_FOLDER)
    rulebook = store.get(digest, job.schema, job.domains)
    rulebook.keep_levels(job.levels_count)
    return programs_by_level(rulebook, job.schema, job.levels_count)


def operators(checkpoint: Path) -> list[int]:
    """Return Spark's numbers of the matching stages, by level: Spark begins to number with the last stage."""
    numbers = (path.name for path in (checkpoint / QUERY_FOLDER / "state").glob("*") if path.name.isdigit())
    return sorted(map(int, numbers), reverse=True)


def stored_part(spark: SparkSession, checkpoint: Path, name: str, operator: int) -> DataFrame:
    """Read one part of all key groups at a stage (group_parts.py): key_group, at, number, content.

    Raises: UsageError if an older build wrote it, StateCorruptError.
    """
    prepare_query(checkpoint / QUERY_FOLDER)
    reader = spark.read.format("statestore").option("stateVarName", VARIABLE).option("operatorId", operator)
    with readable(checkpoint):
        entries = reader.load(str(checkpoint / QUERY_FOLDER)).where(F.col("user_map_key.part") == name)
        return entries.selectExpr("key.key_group", "user_map_key.at", "user_map_key.number", "user_map_value.content")


@contextmanager
def readable(checkpoint: Path) -> Iterator[None]:
    """Raise StateCorruptError if Spark cannot read the checkpoint in the block."""
    try:
        yield
    except PySparkException as error:
        raise StateCorruptError(
            f"{checkpoint} cannot be read: {error}; restore a savepoint with `cep job restore`"
        ) from error


def _highest(folder: Path) -> int | None:
    """Return the largest number among a log's file names; compacted and unfinished files have other names."""
    numbers = [int(path.name) for path in folder.glob("*") if path.name.isdigit()] if folder.is_dir() else []
    return max(numbers, default=None)


PARTITIONS = "spark.sql.shuffle.partitions"
CAN_REPARTITION = hasattr(SparkSession, "_streamingCheckpointManager")  # Spark 4.1 does not have it


def partitions_of(checkpoint: Path) -> int:
    """Return the number of matching tasks that a job's state is in. Raises: StateError if Spark's log does not tell."""
    return _partitions_at(checkpoint, last_batch(checkpoint))


def partitions_next(spark: SparkSession, checkpoint: Path) -> int:
    """Return the partitions of a job that starts now: from Spark's log, or else the session. Raises: StateError."""
    planned = planned_batch(checkpoint)
    return int(spark.conf.get(PARTITIONS) or 1) if planned is None else _partitions_at(checkpoint, planned)


def _partitions_at(checkpoint: Path, batch_id: int | None) -> int:
    path = checkpoint / QUERY_FOLDER / "offsets" / str(batch_id)
    try:
        # v1 | metadata, with the settings that state depends on | offsets …
        partitions = int(orjson.loads(path.read_text().splitlines()[1])["conf"][PARTITIONS])
    except (OSError, ValueError, IndexError, KeyError, TypeError) as error:
        raise StateError(f"{path} does not say how many partitions there are ({error!r}); restore it") from error
    return partitions


def rescale(spark: SparkSession, checkpoint: Path, partitions: int) -> int:
    """Divide the state of a stopped job among `partitions` tasks. Return the previous number.

    Raises: UsageError if nothing would change, the job runs, its last micro-batch has not ended, or Spark is too old.
    """
    if not CAN_REPARTITION:
        raise UsageError(
            f"Spark {pyspark.__version__} cannot lay out a checkpoint anew; run this with Spark 4.3, or make a "
            "savepoint with `cep job savepoint --portable` and restore it with `cep job restore --engine spark`"
        )
    job = job_of(checkpoint)
    if not 1 <= partitions <= job.groups_count:
        raise UsageError(f"{partitions} partitions: give 1 to {job.groups_count}, the job's key groups")
    with lock_checkpoint(checkpoint):
        ended_batch(checkpoint, "rescale")
        before = partitions_of(checkpoint)
        if before == partitions:
            raise UsageError(f"{checkpoint} is laid out for {partitions} partitions already")
        try:
            spark._streamingCheckpointManager.repartition(str((checkpoint / QUERY_FOLDER).resolve()), partitions)  # noqa: SLF001 Spark's name for an API that still evolves
        except PySparkException as error:
            raise StateError(
                f"{checkpoint} could not be laid out for {partitions} partitions: {error}; run the same again, or "
                "restore a savepoint"
            ) from error
    return before
