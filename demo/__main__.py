"""The simulated day through an embedded Kafka and Spark, as a platform would run it: `./demo/run`.

Where there is no Java for Spark, both jobs run in this process. Exit codes: 0 both found the same, and what is expected
for this seed; 1 they did not; 2 usage, as --engine spark without Java; 3 something broke.
Tested by: tests/demo/test_demo.py
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from rich.console import Console

from cep.base.errors import CepError, UsageError
from cep.demo.day import CONTROL, PAYMENTS, PAYMENTS_FILE, SEED, SIZES, Day, Platform, run_day
from cep.demo.in_process import InProcess
from cep.demo.labels import LABELS_FILE, report_day
from cep.runners.embedded.commit import Sources
from cep.runners.java import check_java
from cep.runners.warm import Warming
from cep.sources.kafka import KafkaSettings
from cep.sources.live.kafka import TopicSource
from demo.kafka import EmbeddedKafka
from demo.on_spark import OnSpark

REPORT = Path(__file__).parents[1] / "build" / "day.html"


def main(arguments: list[str] | None = None) -> int:
    """Run the demo and return its exit code."""
    parser = argparse.ArgumentParser(prog="demo", description="A live job and a replay over the same simulated day.")
    parser.add_argument("--size", choices=tuple(SIZES), default="default", help="small is a twentieth of the payments")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the simulated day (default {SEED})")
    parser.add_argument("--seconds", type=float, default=25.0, help="how long the day takes at least (default 25)")
    parser.add_argument(
        "--engine", choices=("spark", "embedded"), help="default: spark, or embedded where there is no Java for it"
    )
    parser.add_argument("--cores", type=int, default=2, help="cores to use (default 2)")
    parser.add_argument(
        "--update-expected", action="store_true", help="write this run's alert ids as the expected ones"
    )
    parser.add_argument(
        "--report", type=Path, default=REPORT, metavar="FILE", help="write the report of the day here (build/day.html)"
    )
    options = parser.parse_args(arguments)
    console = Console(highlight=False, soft_wrap=True)
    try:
        with tempfile.TemporaryDirectory(prefix="cep-demo-") as folder:
            return _run(options, Path(folder), console)
    except UsageError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except (CepError, OSError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 3


def _run(options: argparse.Namespace, folder: Path, console: Console) -> int:
    started_s = time.monotonic()
    uses_spark = _uses_spark(options, console)
    day = Day(options.seed, options.size, options.seconds, options.update_expected, compiles_here=not uses_spark)
    with ExitStack() as ends:
        warming = ends.enter_context(closing(Warming())) if uses_spark else None
        kafka, beside = ends.enter_context(EmbeddedKafka()), ends.enter_context(ThreadPoolExecutor(1))
        platform: Callable[[], Platform]
        if warming is not None:
            starting = beside.submit(OnSpark, folder, options.cores, console, kafka.address, warming)
            platform = partial(_on_spark, starting, console)
        else:
            sources = partial(_sources, KafkaSettings(kafka.address))
            platform = partial(InProcess, folder, options.cores, console, sources)
        _, is_good = run_day(day, kafka, platform, folder, console)
    _report(options, folder, console)
    console.print(f"[dim]{time.monotonic() - started_s:.0f} s in all[/dim]")
    return 0 if is_good else 1


def _report(options: argparse.Namespace, folder: Path, console: Console) -> None:
    """Measure the rules by what was planted, and say where the report lies."""
    console.print()
    console.rule("[bold]Report", align="left")
    made = report_day(folder / PAYMENTS_FILE, folder / LABELS_FILE, options.cores, Console(quiet=True))
    path = options.report.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(made.html, encoding="utf-8")
    path.with_suffix(".json").write_bytes(made.numbers)
    console.print(f"what the rules found, what they missed and why: open {path} in a browser", markup=False)


def _on_spark(starting: Future[OnSpark], console: Console) -> OnSpark:
    """Wait for Spark."""
    with console.status("starting Spark"):
        return starting.result()


def _sources(kafka: KafkaSettings) -> Sources:
    return Sources(TopicSource(kafka, PAYMENTS), TopicSource(kafka, CONTROL))


def _uses_spark(options: argparse.Namespace, console: Console) -> bool:
    """Return True if Spark is to be used: it was asked for, or there is a Java for it. Raises: UsageError."""
    if options.engine == "embedded":
        return False
    try:
        check_java()
    except UsageError as problem:
        if options.engine == "spark":
            raise
        console.print(f"Spark cannot be used: {problem}")
        console.print("[bold]So the day goes through the embedded runner, as with `cep run`: the same engine.[/bold]")
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
