"""`cep demo`: the simulated day in this process, then commands to go on with.

Tested by: tests/cli/test_main.py, tests/demo/test_wheel.py
"""

import argparse
import shlex
import tempfile
import time
from pathlib import Path

from rich.console import Console

from cep.base.terminal import Terminal
from cep.cli.verbs import Parser
from cep.demo.day import CONTROL, PAYMENTS, PAYMENTS_FILE, SEED, SIZES, Day, Outcome, run_day
from cep.demo.in_process import InProcess, MemoryTopics
from cep.demo.labels import LABELS_FILE
from cep.demo.library import copy_library
from cep.runners.embedded.commit import Sources

HELP = """\
Show a simulated day of card payments. A live job finds the fraud that is planted in it, takes up a new rule while it
runs, and a replay of the same payments finds the same. Everything runs in this process: no Java, no Kafka, no files.

examples:
  cep demo
  cep demo --into day       keep payments, patterns and rules in the folder day, to play with
"""
_FOLDER = Path("day")


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    parser.declare("--into FOLDER", "keep the payments, patterns and rules here")
    parser.declare("--size", "small is a twentieth of the payments", choices=tuple(SIZES), default="default")
    parser.declare("--seed N", f"another day (default {SEED})", default=SEED)
    parser.declare("--seconds N", "how long the day takes at least (default 12)", type=float, default=12.0)
    parser.declare("--cores N", "cores to use (default 2)", default=2)


def run(options: argparse.Namespace) -> int:
    """Run the simulated day live and as a replay. Return 0, or 1 if the alerts differ. Raises: CepError."""
    began_s = time.monotonic()
    console = Terminal(highlight=False, soft_wrap=True)
    if options.into is not None:
        copy_library(options.into)
    topics = MemoryTopics()
    with tempfile.TemporaryDirectory(prefix="cep-demo-") as scratch:

        def platform() -> InProcess:
            return InProcess(
                Path(scratch), options.cores, console, lambda: Sources(topics.reader(PAYMENTS), topics.reader(CONTROL))
            )

        day = Day(options.seed, options.size, options.seconds)
        outcome, is_good = run_day(day, topics, platform, options.into or Path(scratch), console)
    console.print(f"[dim]{time.monotonic() - began_s:.0f} s in all[/dim]")
    _print_next_steps(options.into, outcome, console)
    return 0 if is_good else 1


def _print_next_steps(into: Path | None, outcome: Outcome, console: Console) -> None:
    """Print commands to continue with. The first one writes the files that the others need, unless they are there."""
    miss = next(case for case in outcome.stream.planted if case.rule_id == "card_testing" and not case.fires)
    folder = shlex.quote(str(into or _FOLDER))
    data = f"--rules {folder}/rules --events {folder}/{PAYMENTS_FILE}"
    steps = [
        (f"cep test {folder}/patterns", "run the tests that stand beside the patterns"),
        (f"cep replay --engine embedded {data} --out {folder}/alerts.jsonl", "find the fraud again, in a file"),
        (
            f"cep report {data} --labels {folder}/{LABELS_FILE} --out {folder}/report.html",
            "see what each rule is worth",
        ),
        (f"cep why-not --rule card_testing --key {miss.key} {data}", "ask why a near miss is no alert"),
        (f"cep new pattern rapid_refunds --folder {folder}/patterns --events events.cep", "begin a pattern"),
    ]
    if into is None:
        steps.insert(0, (f"cep demo --into {folder}", "keep the payments, patterns and rules of this day as files"))
    console.print()
    console.print("[bold]What next[/bold]")
    for command, purpose in steps:
        console.print(f"  [dim]# {purpose}[/dim]")
        console.print(f"  {command}", markup=False)
