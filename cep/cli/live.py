"""`cep live`: rules and streams → the live job, until it is stopped, and a table of its results.

Tested by: tests/cli/test_main.py, tests/runners/spark/test_live_process.py
"""

import argparse
import sys

from cep.base.errors import UsageError
from cep.cli.settings import add_job_arguments, settings_of
from cep.cli.verbs import Parser
from cep.runners.assembly import run_job
from cep.runners.observe import Log

HELP = """\
Match a stream as it comes, with Spark Structured Streaming, until it is stopped. A job that starts again with the same
checkpoint directory continues where it stopped.

examples:
  cep live --rules rules --bootstrap-servers kafka:9092 --topic payments --checkpoint /var/lib/cep/job
  cep replay --rules rules --events history/ --out past.jsonl --savepoint warm/
  cep live --from warm/ --bootstrap-servers kafka:9092 --topic payments --checkpoint /var/lib/cep/job
"""


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    add_job_arguments(parser, "spark")
    parser.declare(
        "--accept-gap",
        "refused: Spark cannot go on after deleted events; the message names the way, over `cep run --accept-gap`",
    )


def run(options: argparse.Namespace) -> int:
    """Run the job. Return 0, or 1 if a rule of the folder or too many records were set aside."""
    if options.accept_gap:
        raise UsageError(
            "Spark cannot go on after events that its topic has deleted; move the job with `cep job savepoint` and "
            "`cep job restore` to `cep run`, start that once with --accept-gap --available-now, and move it back "
            "(`cep docs guides/move`)"
        )
    settings = settings_of(options)
    # Loaded here because Spark takes a second to import, and the help of the verb does without.
    from cep.runners.spark_job import SparkRunner  # noqa: PLC0415

    return run_job(settings, SparkRunner(), Log(settings.observe.log, sys.stderr), until_end=options.available_now)
