"""`cep live`: rules and streams → the live job, until it is stopped, and a table of what it found.

Tested by: tests/cli/test_live.py, tests/runners/spark/test_live_process.py
"""

from __future__ import annotations

import argparse
import re
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cep.base.errors import UsageError
from cep.base.limits import IDLE_MS_DEFAULT, KEY_GROUPS_DEFAULT
from cep.lang.render import render_text
from cep.rulebook.deploy import Deployment, deploy
from cep.rulebook.files import read_rules
from cep.runners.job import ARRIVAL, EVENT_TIME, Job
from cep.sinks.base import AlertSink
from cep.sinks.console import ConsoleSink
from cep.sinks.jsonl import JsonLinesSink
from cep.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from cep.runners.spark.live import LiveSettings, Source
    from cep.runners.spark.live_output import BatchReport, LiveOutput

_UNITS_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+)\s*(ms|s|min|h|d)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument(
        "--rules", type=Path, required=True, metavar="FOLDER", help="rule files that the job begins with"
    )
    events = parser.add_argument_group("events")
    events.add_argument("--events", type=Path, metavar="FOLDER", help="files that appear here: JSON lines or Parquet")
    events.add_argument("--bootstrap-servers", metavar="HOST:PORT", help="Kafka brokers")
    events.add_argument("--topic", metavar="NAME", help="topic of events, JSON values")
    events.add_argument(
        "--starting", choices=("earliest", "latest"), default="earliest", help="where a new job begins in the topic"
    )
    events.add_argument("--max-records", type=int, metavar="N", help="records of a topic in one micro-batch at most")
    events.add_argument("--max-files", type=int, metavar="N", help="files of a folder in one micro-batch at most")
    control = parser.add_argument_group("control records: rules published, changed and retired while the job goes on")
    control.add_argument("--control", type=Path, metavar="FOLDER", help="files of JSON lines that appear here")
    control.add_argument("--control-topic", metavar="NAME", help="topic of control records")
    output = parser.add_argument_group("output")
    output.add_argument(
        "--alerts",
        action="append",
        metavar="WHERE",
        help="console (default), kafka:TOPIC, or a folder for JSON lines; may be given several times",
    )
    output.add_argument(
        "--dead-letters",
        type=Path,
        metavar="FOLDER",
        help="for records set aside (default: in the checkpoint directory)",
    )
    _add_job_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the job; returns 0, or 1 if a rule of the folder was set aside. Raises: UsageError and other CepErrors."""
    # Loaded here because Spark takes a second to import, and `cep check` does without.
    from cep.runners.spark.live import serve, start_live  # noqa: PLC0415
    from cep.runners.spark.live_checkpoint import open_checkpoint  # noqa: PLC0415
    from cep.runners.spark.live_output import LiveOutput  # noqa: PLC0415
    from cep.runners.spark.session import create_session  # noqa: PLC0415

    console = Console(stderr=True, highlight=False)
    events, control = _sources(options)
    records, problems = read_rules(options.rules)
    deployment = deploy(records)
    _print_problems(problems, deployment, console)
    job = _job(options, deployment)
    initial = tuple(record.to_json() for record in records)
    kept, goes_on = open_checkpoint(options.checkpoint, job, initial)
    if goes_on and kept != initial:
        _say(
            console,
            f"the job goes on with the rules it began with; publish changes of {options.rules} as control records",
        )
    letters = options.dead_letters or options.checkpoint / "dead_letters"
    stop = _stop_on_signals()
    with console.status("starting Spark"):
        spark = create_session("cep live", options.cores, _spark_settings(options))
    _stop_on_signals(stop)  # Spark has set its own handler for interrupts meanwhile
    output = LiveOutput(options.checkpoint, letters, _sinks(options), lambda report: _print_batch(report, console))
    try:
        query = start_live(spark, _settings(options, job, kept, events, control), output)
        _say(console, f"the job {'goes on' if goes_on else 'begins'}; {options.checkpoint} keeps its progress")
        serve(query, output, stop)
    finally:
        output.close()
        spark.stop()
        _print_summary(output, letters, console)
    return 1 if problems or deployment.set_aside else 0


def _add_job_arguments(parser: argparse.ArgumentParser) -> None:
    times = parser.add_argument_group("event times")
    times.add_argument(
        "--lateness", type=_duration, default=0, metavar="TIME", help="disorder to expect, as `10 s` (0 s)"
    )
    times.add_argument(
        "--order",
        choices=(EVENT_TIME, ARRIVAL),
        default=EVENT_TIME,
        help="event_time (default): an event waits until no earlier one is expected, so that the order of arrival does "
        "not matter; arrival: events are matched as they come",
    )
    times.add_argument(
        "--idle",
        type=_duration,
        default=IDLE_MS_DEFAULT,
        metavar="TIME",
        help="event time for which a partition without new records holds back the others (10 s)",
    )
    times.add_argument(
        "--dedup",
        type=_duration,
        default=0,
        metavar="TIME",
        help="event time for which event ids are remembered; one that comes again is ignored and counted (0 s: never)",
    )
    job = parser.add_argument_group("the job")
    job.add_argument("--checkpoint", type=Path, required=True, metavar="FOLDER", help="progress and keyed state; kept")
    job.add_argument(
        "--trigger", type=_duration, default=0, metavar="TIME", help="least time between micro-batches (0 s)"
    )
    job.add_argument("--available-now", action="store_true", help="stop when everything that is there is processed")
    job.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="FIELDS",
        help="a key that later rules may use, as card_id,merchant_id",
    )
    job.add_argument(
        "--key-groups",
        type=int,
        default=KEY_GROUPS_DEFAULT,
        metavar="N",
        help="bound of the parallelism, for the job's whole life (default %(default)s); fewer cost less a micro-batch",
    )
    job.add_argument(
        "--pages", type=int, default=1, metavar="N", help="parts of a key group's state; more if keys are sparse"
    )
    job.add_argument("--cores", type=int, default=2, metavar="N", help="cores of this machine to use (default 2)")
    job.add_argument("--partitions", type=int, metavar="N", help="matching tasks (default: as many as cores)")


def _duration(text: str) -> int:
    """`10 s` in milliseconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as `500 ms`, `10 s`, `5 min`, `2 h`")
    return int(found[1]) * _UNITS_MS[found[2]]


# ---------------------------------------------------------------------------------------------------- what to run


def _sources(options: argparse.Namespace) -> tuple[Source, Source | None]:
    from cep.runners.spark.live import FolderSource, TopicSource  # noqa: PLC0415

    for name in ("cores", "partitions", "max_records", "max_files", "pages"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} is 1 or more, not {value}")
    servers = options.bootstrap_servers
    if (options.events is None) == (options.topic is None):
        raise UsageError("give the events: either --events FOLDER, or --bootstrap-servers and --topic")
    if options.control is not None and options.control_topic is not None:
        raise UsageError("give --control or --control-topic, not both: control records have one order")
    wants_topic = any(name is not None for name in (options.topic, options.control_topic))
    if servers is None and (wants_topic or any(a.startswith("kafka:") for a in options.alerts or ())):
        raise UsageError("a topic needs --bootstrap-servers HOST:PORT")
    events: Source
    if options.topic is not None:
        events = TopicSource(servers, options.topic, options.max_records, options.starting)
    else:
        events = FolderSource(options.events, options.max_files)
    control: Source | None = None
    if options.control_topic is not None:
        control = TopicSource(servers, options.control_topic)
    elif options.control is not None:
        control = FolderSource(options.control)
    return events, control


def _job(options: argparse.Namespace, deployment: Deployment) -> Job:
    known = deployment.schema.columns()
    extra = [tuple(field.strip() for field in text.split(",")) for text in options.key]
    for domain in extra:
        for field in domain:
            if field not in known:
                raise UsageError(
                    f"--key {','.join(domain)}: the events have no field `{field}`, only {', '.join(known)}"
                )
    domains = tuple(sorted({*deployment.key_domains, *extra}))
    return Job(
        deployment.schema,
        domains,
        options.key_groups,
        options.pages,
        options.lateness,
        options.order,
        options.idle,
        options.dedup,
    )


def _settings(
    options: argparse.Namespace, job: Job, initial: tuple[bytes, ...], events: Source, control: Source | None
) -> LiveSettings:
    from cep.runners.spark.live import LiveSettings  # noqa: PLC0415
    from cep.runners.spark.live_checkpoint import QUERY_FOLDER  # noqa: PLC0415

    checkpoint = options.checkpoint / QUERY_FOLDER
    return LiveSettings(
        job, initial, events, control, checkpoint, options.trigger, options.available_now, options.cores
    )


def _spark_settings(options: argparse.Namespace) -> dict[str, str]:
    from cep.runners.spark.live import SPARK_SETTINGS  # noqa: PLC0415

    if options.partitions is None:
        return SPARK_SETTINGS
    # Counts at a job's first start: Spark keeps the number in its checkpoint.
    return {**SPARK_SETTINGS, "spark.sql.shuffle.partitions": str(options.partitions)}


def _sinks(options: argparse.Namespace) -> list[AlertSink]:
    sinks: list[AlertSink] = []
    for where in dict.fromkeys(options.alerts or ["console"]):
        if where == "console":
            sinks.append(ConsoleSink())
        elif where.startswith("kafka:"):
            sinks.append(KafkaSink(options.bootstrap_servers, where.removeprefix("kafka:")))
        else:
            sinks.append(JsonLinesSink(Path(where)))
    return sinks


def _stop_on_signals(stop: threading.Event | None = None) -> threading.Event:
    """An event that SIGINT and SIGTERM set, so that the job ends between two steps and not in one."""
    chosen = stop or threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: chosen.set())
    return chosen


# -------------------------------------------------------------------------------------------------------- printing


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _print_problems(problems: Sequence[str], deployment: Deployment, console: Console) -> None:
    for problem in problems:
        _say(console, problem)
    for rule in deployment.set_aside:
        _say(console, f"rule {rule.rule_id} version {rule.version} is set aside: {rule.reason}")
        if rule.diagnostics:
            _say(console, render_text(rule.diagnostics, {rule.rule_id: rule.source}))


def _print_batch(report: BatchReport, console: Console) -> None:
    """One line for a micro-batch in which something happened."""
    if not report.counters:
        return
    parts = [f"{report.counters['events']:,} events", f"{report.alerts.num_rows:,} alerts"]
    aside = {name: n for name, n in report.counters.items() if name.startswith(("poison[", "late", "control_"))}
    parts += [f"{count:,} {name}" for name, count in sorted(aside.items())]
    _say(console, f"micro-batch {report.batch_id}: {', '.join(parts)}; {report.totals['events']:,} events so far")


def _print_summary(output: LiveOutput, letters: Path, console: Console) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for name, count in sorted(output.totals.items()):
        table.add_row(Text(name), f"{count:,}")
    console.print(table)
    if letters.is_dir() and any(letters.iterdir()):
        _say(console, f"records set aside: {letters}")
