"""`cep run`: rules and streams → the job in this process, until it is stopped or its events end.

Tested by: tests/cli/test_run.py
"""

import argparse
import sys

from cep.cli.settings import add_job_arguments, settings_of
from cep.cli.verbs import Parser
from cep.report.keyed_state import runs_of_key
from cep.runners.assembly import run_job
from cep.runners.embedded.job import EmbeddedRunner
from cep.runners.embedded.reports import KeyAnswers
from cep.runners.observe import Log

HELP = """\
Match a stream in this process, without Java: a topic, files that appear in a folder, or JSON lines on standard input. A
job that starts again with the same checkpoint folder continues where it stopped; without a folder no state is kept.

examples:
  cep run --rules rules --events payments.jsonl --available-now
  generate | cep run --rules rules --events -
  cep replay --rules rules --events history/ --out past.jsonl --savepoint warm/
  cep run --from warm/ --bootstrap-servers kafka:9092 --topic payments --checkpoint /var/lib/cep
  cep run --rules rules --bootstrap-servers kafka:9092 --topic payments --alerts kafka:alerts --checkpoint /var/lib/cep
  cep run … --checkpoint /var/lib/cep --checkpoint-target s3://bucket/job     (pip install 'cep[s3]')
  cep run … --checkpoint /var/lib/cep --changelog payments-state              (state goes to a topic, too)
  cep run … --checkpoint /var/lib/cep --changelog payments-state --standby    (started twice: one works, one waits)
"""


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    add_job_arguments(parser, "embedded")
    parser.declare(
        "--accept-gap",
        "go on though the topic has deleted events before they were read; alerts that may lack events say so in "
        "`history_from`, and the audit has a line",
    )


def run(options: argparse.Namespace) -> int:
    """Run the job. Return 0, or 1 if a rule of the folder or too many records were set aside."""
    settings = settings_of(options)
    runner = EmbeddedRunner(KeyAnswers(runs_of_key), options.accept_gap)
    return run_job(settings, runner, Log(settings.observe.log, sys.stderr), until_end=options.available_now)
