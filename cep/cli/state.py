"""`cep state`: the checkpoint directory of a live job → how much it keeps, for which rules, and the runs of one key.

Tested by: tests/cli/test_state.py, tests/runners/spark/test_state.py
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cep.cli.paths import printed
from cep.report.keyed_state import Held, RunFacts, held, runs_of_key
from cep.runners.embedded.savepoint import is_embedded, newest_pages

HELP = """\
Show the keyed state of a live job, as it was at the end of its last finished micro-batch: pages, keys, runs and bytes,
shared out among the rules; or, with --key, every partial match of one key with its events and what it waits for.

examples:
  cep state --checkpoint /var/lib/cep/job
  cep state --checkpoint /var/lib/cep/job --key c17
  cep state --checkpoint /var/lib/cep/job --json | jq .rules
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the verb."""
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="FOLDER", help="of the live job")
    parser.add_argument("--key", metavar="KEY", help="only this key; a key of several fields has U+001F between them")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print; returns 0, or 1 if the key has no runs. Raises: UsageError, StateError."""
    if is_embedded(options.checkpoint):
        kept, programs = newest_pages(options.checkpoint, options.key)
        if options.key is None:
            _print_held(held(kept), options.json)
            return 0
        found = list(runs_of_key(kept, options.key, [programs]))
        _print_runs(options.key, found, options.json)
        return 0 if found else 1
    # Loaded here because Spark takes a second to import, and `cep check` does without.
    from cep.runners.spark.session import create_session  # noqa: PLC0415
    from cep.runners.spark.state import job_of, programs_of, stored_pages  # noqa: PLC0415

    job = job_of(options.checkpoint)
    console = Console(stderr=True, highlight=False)
    with console.status("starting Spark"):
        spark = create_session("cep state", 1)
    try:
        with console.status("reading the state"):
            pages = stored_pages(spark, options.checkpoint, job, options.key)
            if options.key is None:
                _print_held(held(pages), options.json)
                return 0
            runs = list(runs_of_key(pages, options.key, programs_of(spark, options.checkpoint, job)))
    finally:
        spark.stop()
    _print_runs(options.key, runs, options.json)
    return 0 if runs else 1


def _print_held(found: Held, as_json: bool) -> None:
    if as_json:
        printed(json.dumps(asdict(found), indent=2))
        return
    printed(
        f"{found.runs:,} runs of {found.keys:,} keys, {found.size:,} bytes in {found.pages:,} pages of "
        f"{found.key_groups:,} key groups; the largest page has {found.largest:,} bytes"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("rule", "by", "runs", "keys", "bytes"):
        table.add_column(name, justify="left" if name in ("rule", "by") else "right")
    for rule in found.rules:
        counts = (f"{rule.runs:,}", f"{rule.keys:,}", f"{rule.size:,}")
        table.add_row(Text(f"{rule.rule_id} v{rule.version}"), Text(",".join(rule.domain)), *counts)
    Console(highlight=False).print(table)


def _print_runs(key: str, runs: list[RunFacts], as_json: bool) -> None:
    if as_json:
        printed(json.dumps([asdict(found) for found in runs], indent=2))
        return
    if not runs:
        printed(f"no rule has a run for {key}")
    for found in runs:
        until = f", until {found.expires}" if found.expires else ""
        waits = " or ".join(found.waits_for)
        printed(f"{found.rule_id} v{found.version} by {','.join(found.domain)}: waits for {waits}{until}")
        for event in found.bound:
            printed(f"    {event.time}  {event.variable}: {event.event_type} {event.event_id}")
