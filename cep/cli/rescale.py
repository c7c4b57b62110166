"""`cep job rescale`: another number of matching tasks for a stopped live job.

Tested by: tests/runners/spark/test_rescale.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from cep.base.errors import UsageError
from cep.base.terminal import Terminal
from cep.cli.paths import printed
from cep.runners.embedded.targets import is_embedded

HELP = """\
Change the number of matching tasks of a stopped live job. Its key groups are moved whole; no record is read or matched.
From then on the job has the new number of tasks, even if --partitions differs.

Make a savepoint first: Spark calls its repartitioning experimental.

examples:
  cep job savepoint --checkpoint /var/lib/cep/job --to /backup/cep
  cep job rescale --checkpoint /var/lib/cep/job --partitions 4
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument(
        "--checkpoint", type=Path, required=True, metavar="FOLDER", help="checkpoint folder of the stopped job"
    )
    parser.add_argument("--partitions", type=int, required=True, metavar="N", help="matching tasks from now on")
    parser.add_argument("--cores", type=int, default=2, metavar="N", help="cores to use for the move (default 2)")


def run(options: argparse.Namespace) -> int:
    """Rescale. Raises: UsageError, StateError."""
    # Loaded here because Spark takes a second to import, and `cep check` does without.
    from cep.runners.spark.rescale import rescale  # noqa: PLC0415
    from cep.runners.spark.session import create_session  # noqa: PLC0415
    from cep.runners.spark.state import job_of  # noqa: PLC0415

    if is_embedded(options.checkpoint):
        raise UsageError(
            f"{options.checkpoint} is of `cep run`, which has no tasks to change: --workers sets its threads, and "
            "`cep job savepoint` with `cep job restore --groups 0-15` divides it among processes "
            "(`cep docs guides/move`)"
        )
    job_of(options.checkpoint)
    console = Terminal(stderr=True, highlight=False)
    with console.status("starting Spark"):
        spark = create_session("cep job rescale", options.cores)
    try:
        with console.status("moving key groups"):
            before = rescale(spark, options.checkpoint, options.partitions)
    finally:
        spark.stop()
    printed(f"{options.checkpoint}: {before} partitions are {options.partitions} now")
    return 0
