"""A stopped live job → the same job with another number of matching tasks: Spark's checkpoint repartitioning.

Key groups move whole, because they are Spark's keys. Repartitioning writes a micro-batch of its own that reads nothing;
the job goes on after it. A micro-batch that has begun and not ended must end first: its rows are in no state yet, and
the sinks know it by its number.
Tested by: tests/runners/spark/test_savepoint.py
"""

from __future__ import annotations

from pathlib import Path

import orjson
import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cep.base.errors import StateError, UsageError
from cep.runners.live_checkpoint import QUERY_FOLDER, lock_checkpoint
from cep.runners.spark.state import ended_batch, job_of, last_batch, planned_batch

PARTITIONS = "spark.sql.shuffle.partitions"
CAN_REPARTITION = hasattr(SparkSession, "_streamingCheckpointManager")  # Spark 4.1 does not have it


def partitions_of(checkpoint: Path) -> int:
    """Return the number of matching tasks that a job's state is in. Raises: StateError if Spark's log does not tell."""
    return _partitions_at(checkpoint, last_batch(checkpoint))


def partitions_next(spark: SparkSession, checkpoint: Path) -> int:
    """Return the partitions of a job that starts now: from Spark's log, otherwise from the session.

    Raises: as partitions_of.
    """
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
