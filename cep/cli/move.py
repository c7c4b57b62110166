"""`cep job savepoint`, `restore` and `rescale`: the checkpoint folder of a stopped job, copied, made again and divided.

Tested by: tests/runners/spark/test_savepoint.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from cep.base.errors import UsageError
from cep.base.terminal import Terminal
from cep.base.text import utc_ms
from cep.cli.paths import printed
from cep.model.setting_types import range_of
from cep.runners.embedded import savepoint as embedded
from cep.runners.embedded.opening import is_embedded
from cep.runners.handover.payload import Payload, consequences, read_payload, set_back
from cep.runners.handover.to_spark import load_for_spark
from cep.state.target import Target

HELP_SAVEPOINT = """\
Copy the checkpoint folder of a stopped job: progress, rules, keyed state. Every copied file is verified. Files that an
earlier savepoint in the same place has are not copied again.

examples:
  cep job savepoint --checkpoint /var/lib/cep/job --to /backup/cep
  cep job savepoint --checkpoint /var/lib/cep/job --to s3://bucket/cep     (with s3fs installed)
  cep job savepoint --checkpoint /var/lib/cep/job --to /backup/move --portable

With --portable, the savepoint of a job on Spark has the same form as a savepoint of `cep run`. From that form
`cep job restore` makes a folder for `cep live` or for `cep run`, with any number of tasks or processes.
"""
HELP_RESTORE = """\
Make a checkpoint folder from a savepoint, verified file by file. A job that starts with it goes on where the savepoint
was made. It reads and matches later events again, and sends their alerts again under the same alert ids.

examples:
  cep job restore --from /backup/cep --checkpoint /var/lib/cep/job-2
  cep job restore --from /backup/cep --list
  cep job restore --from /backup/run --checkpoint /var/lib/cep/left --groups 0-15     (a process of `cep run`)
  cep job restore --from /backup/run --checkpoint /var/lib/cep/job-3 --engine spark   (for `cep live`)
  cep job restore --from /backup/run --checkpoint /var/lib/cep/job-4 --watermark-back 2026-03-01T00:00:00Z
"""
HELP_RESCALE = """\
Change the number of matching tasks of a stopped live job. Its key groups are moved whole; no record is read or matched.
From then on the job has the new number of tasks, even if --partitions differs.

Make a savepoint first: Spark calls its repartitioning experimental.

examples:
  cep job savepoint --checkpoint /var/lib/cep/job --to /backup/cep
  cep job rescale --checkpoint /var/lib/cep/job --partitions 4
"""


def add_arguments_savepoint(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `cep job savepoint`."""
    parser.add_argument(
        "--checkpoint",
        type=Path,
        required=True,
        nargs="+",
        metavar="FOLDER",
        help="checkpoint folder of the stopped job; for `cep run` the folders of all its processes",
    )
    parser.add_argument("--to", required=True, metavar="PLACE", help="a folder, or a URL of fsspec")
    parser.add_argument(
        "--portable", action="store_true", help="write a job on Spark in the form that `cep run` can start from too"
    )


def add_arguments_restore(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `cep job restore`."""
    parser.add_argument("--from", dest="source", required=True, metavar="PLACE", help="where savepoints are")
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="checkpoint folder to make; new or empty")
    group.add_argument("--list", action="store_true", help="print the names of the savepoints, the latest last")
    parser.add_argument("--name", metavar="NAME", help="name of the savepoint (default: the latest)")
    parser.add_argument("--groups", metavar="RANGE", help="key groups of this process of `cep run`, such as 0-15")
    parser.add_argument(
        "--engine",
        choices=("embedded", "spark"),
        help="make a folder for `cep run` or for `cep live`; for savepoints of `cep run` and portable ones",
    )
    parser.add_argument(
        "--watermark-back",
        metavar="TIME",
        help="set the watermark back to this time, such as 2026-03-01T00:00:00Z: for a job whose events are "
        "all late because one was from the future. Prints the consequences, and does it with --yes",
    )
    parser.add_argument("--yes", action="store_true", help="accept the consequences of --watermark-back")
    parser.add_argument(
        "--store", choices=("rocksdb", "memory"), default="rocksdb", help="store of `cep run` (default rocksdb)"
    )


def add_arguments_rescale(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `cep job rescale`."""
    parser.add_argument(
        "--checkpoint", type=Path, required=True, metavar="FOLDER", help="checkpoint folder of the stopped job"
    )
    parser.add_argument("--partitions", type=int, required=True, metavar="N", help="matching tasks from now on")
    parser.add_argument("--cores", type=int, default=2, metavar="N", help="cores to use for the move (default 2)")


def run_savepoint(options: argparse.Namespace) -> int:
    """Make a savepoint of a stopped job. Raises: UsageError, StateError."""
    if is_embedded(options.checkpoint[0]):
        savepoint = embedded.save(options.checkpoint, Target(options.to))
        printed(
            f"{options.to}: key groups {savepoint.groups.start}-{savepoint.groups.stop - 1}, "
            f"{savepoint.files_count:,} files"
        )
        return 0
    if len(options.checkpoint) > 1:
        raise UsageError("a job on Spark has one checkpoint directory; several are those of `cep run`")
    # Loaded here because Spark takes a second to import, and `cep check` does without.
    from cep.runners.spark.savepoint import (  # noqa: PLC0415
        save,
        save_for_both,
    )
    from cep.runners.spark.session import create_session  # noqa: PLC0415

    if options.portable:
        spark = create_session("cep job savepoint")
        try:
            written = save_for_both(spark, options.checkpoint[0], Target(options.to))
        finally:
            spark.stop()
        printed(f"{options.to}: all {len(written.groups)} key groups, {written.files_count:,} files, for either engine")
        return 0
    saved = save(options.checkpoint[0], Target(options.to))
    printed(
        f"{saved.name}: {saved.files_count:,} files, {saved.size:,} bytes, {saved.copied:,} of them copied; "
        f"up to micro-batch {saved.batch_id}"
    )
    return 0


def run_restore(options: argparse.Namespace) -> int:
    """Restore a savepoint into a new folder, or list savepoints. Raises: UsageError, StateError."""
    target = Target(options.source)
    change = _set_back(options, target)
    if embedded.has_savepoint(target) and options.checkpoint is not None:
        if options.engine == "spark":
            if options.groups is not None:
                raise UsageError("a job on Spark has all key groups; leave --groups out")
            begun = load_for_spark(target, options.checkpoint, change)
            printed(f"{options.checkpoint}: {begun.entries:,} entries; start `cep live` with it")
            return 0
        groups = None if options.groups is None else range_of(options.groups)
        loaded = embedded.load(target, options.checkpoint, groups, options.store, change)
        shown = f"{loaded.groups.start}-{loaded.groups.stop - 1}"
        printed(
            f"{options.checkpoint}: key groups {shown}, {loaded.entries:,} entries; `cep run` with --groups {shown}"
        )
        return 0
    from cep.runners.spark.savepoint import restore, savepoints  # noqa: PLC0415

    if options.engine == "embedded":
        raise UsageError(
            f"{options.source} has no savepoint that `cep run` starts from; make one with "
            "`cep job savepoint --portable`"
        )

    if options.list:
        for name in savepoints(target):
            printed(name)
        return 0
    restored = restore(target, options.checkpoint, options.name)
    printed(f"{options.checkpoint} is {restored.name}, up to micro-batch {restored.batch_id}; start the job with it")
    return 0


def run_rescale(options: argparse.Namespace) -> int:
    """Divide a job's state among another number of tasks. Raises: UsageError, StateError."""
    # Loaded here because Spark takes a second to import, and `cep check` does without.
    from cep.runners.spark.session import create_session  # noqa: PLC0415
    from cep.runners.spark.state import (  # noqa: PLC0415
        job_of,
        rescale,
    )

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


def _set_back(options: argparse.Namespace, target: Target) -> Callable[[Payload], Payload]:
    """Return a function that changes the payload as the flags say, such as a watermark that is set back.

    Raises: UsageError if it is impossible, or not confirmed; StateError.
    """
    if options.watermark_back is None:
        return lambda payload: payload
    if options.checkpoint is None or not embedded.has_savepoint(target):
        raise UsageError(
            "--watermark-back makes a new checkpoint folder from a savepoint of `cep run`, or of `cep live` with "
            "`cep job savepoint --portable`"
        )
    try:
        to_ms = utc_ms(options.watermark_back)
    except ValueError as error:
        raise UsageError(f"--watermark-back: {error}") from error
    payload, now_ms = read_payload(target), int(time.time() * 1_000)
    set_back(payload, to_ms, now_ms)  # refused before anything is said of it
    for sentence in consequences(payload, to_ms):
        printed(sentence)
    if not options.yes:
        raise UsageError("nothing was made; give --yes too if that is what you want")
    return lambda stored: set_back(stored, to_ms, now_ms)
