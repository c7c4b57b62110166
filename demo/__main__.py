"""A simulated day of card payments → a live job that finds the fraud in it, and a replay that must find the same.

    payments ─▶ embedded Kafka ─▶ live job ─▶ alerts ─┐
       │          ▲ a rule, at noon                   ├─ equal?
       └────────▶ Parquet ───────▶ replay ─▶ alerts ──┘

Where there is no Java for Spark, both run in this process. Exit codes: 0 both found the same, and what is expected for
this seed; 1 they did not; 2 usage, as --engine spark without Java; 3 something broke.
Tested by: tests/demo/test_demo.py
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from cep.base.errors import CepError, UsageError
from cep.columnar.decode import decode_json
from cep.columnar.route import route, split_by_group
from cep.model.rule import HeartbeatRecord, UpsertRecord, utc_text
from cep.rulebook.deploy import deploy
from cep.rulebook.files import read_rules
from cep.rulebook.rulebook import Rulebook
from cep.runners.java import check_java
from cep.runners.job import Job, Programs, StepOutput, match_step
from cep.sinks.json_form import json_lines as alert_lines
from demo.in_process import InProcess
from demo.kafka import EmbeddedKafka
from demo.on_spark import OnSpark
from demo.stream import DAY_MS, HOUR_MS, MINUTE_MS, START_MS, Stream, StreamSize, build, json_lines

ROOT = Path(__file__).parents[1]
EXPECTED = Path(__file__).with_name("expected_alerts.json")
SIZES = {"default": StreamSize(), "small": StreamSize(cards_count=300, payments_per_card=12)}
SEED = 7

_PAYMENTS, _CONTROL = "payments", "rules"
_LATE_RULE = "impossible_travel"  # published while the job is at work
_PUBLISHED_AT_MS = START_MS + 11 * HOUR_MS
_EFFECTIVE_MS = START_MS + 12 * HOUR_MS
_SLICE_MS = 10 * MINUTE_MS
_LATENESS_MS = 2 * _SLICE_MS  # payments of a slice reach four partitions in any order, those of two slices do not
_KEY_GROUPS = 32
# Payments sent and not yet matched, as a share of all: what the embedded Kafka keeps is more, but a viewer wants to see
# alerts as they come.
_AHEAD_SHARE = 1 / 8
_WAIT_S = 180
_POLL_S = 0.02


class Report(Protocol):
    """What is told of a micro-batch, by whichever runner."""

    @property
    def alerts(self) -> pa.Table: ...

    @property
    def totals(self) -> Counter[str]: ...


@dataclass(slots=True)
class Watch:
    """What the live job has reported so far, and how to wait for more."""

    alerts: list[pa.Table]
    totals: Counter[str]
    ended: Callable[[], str | None]

    def take(self, report: Report) -> None:
        """Called after each micro-batch."""
        self.alerts.append(report.alerts)
        self.totals = Counter(report.totals)

    def wait(self, what: str, done: Callable[[], bool]) -> None:
        """Wait until the job has come so far. Raises: CepError if it stops before, or takes too long."""
        deadline_s = time.monotonic() + _WAIT_S
        while not done():
            reason = self.ended()
            if reason is not None:
                raise CepError(f"the live job stopped before {what}: {reason}")
            if time.monotonic() > deadline_s:
                raise CepError(f"the live job took more than {_WAIT_S} s before {what}")
            time.sleep(_POLL_S)


def main(arguments: list[str] | None = None) -> int:
    """Run the demo and return its exit code."""
    parser = argparse.ArgumentParser(prog="demo", description="A live job and a replay over the same simulated day.")
    parser.add_argument("--size", choices=tuple(SIZES), default="default", help="small is a tenth of a day's payments")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the simulated day (default {SEED})")
    parser.add_argument("--seconds", type=float, default=25.0, help="how long the day takes at least (default 25)")
    parser.add_argument(
        "--engine", choices=("spark", "embedded"), help="default: spark, or embedded where there is no Java for it"
    )
    parser.add_argument("--cores", type=int, default=2, help="cores to use (default 2)")
    parser.add_argument(
        "--update-expected", action="store_true", help="write this run's alert ids as the expected ones"
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
    _section(console, "The day")
    stream = build(options.seed, SIZES[options.size])
    fraud = [case for case in stream.planted if case.fires]
    console.print(f"{stream.payments.num_rows:,} card payments of one day, seed {options.seed}")
    console.print(f"{len(fraud)} frauds are planted among them, and {len(stream.planted) - len(fraud)} near misses")
    records, problems = read_rules(ROOT / "rules")
    if problems:
        raise CepError(problems[0])
    initial = [record for record in records if record.id != _LATE_RULE]
    late_rule = next(record for record in records if record.id == _LATE_RULE)
    late_rule = late_rule.model_copy(update={"effective_at": utc_text(_EFFECTIVE_MS)})
    deployment = deploy(records)
    job = Job(deployment.schema, deployment.key_domains, _KEY_GROUPS, lateness_ms=_LATENESS_MS)

    with console.status("compiling the matcher, which takes a while the first time"):
        _compile(job, deployment.rulebook, stream)

    _section(console, "Live")
    platform = _platform(options, folder, console)
    try:
        with EmbeddedKafka() as kafka:
            watch = Watch([], Counter(), lambda: None)
            feed = Feed(kafka, stream, console, watch)
            feed.send_first()
            given = [record.to_json() for record in initial]
            with platform.live(job, given, (kafka.address, _PAYMENTS, _CONTROL), watch.take) as watch.ended:
                feed.send_day(late_rule, options.seconds)
        live = pa.concat_tables(watch.alerts)

        _section(console, "Replay")
        pq.write_table(stream.payments, folder / "payments.parquet")
        in_force = deploy([*initial, late_rule]).rulebook
        with console.status("matching the same payments from Parquet, in batch"):
            began_s = time.monotonic()
            replayed = platform.replay(job, in_force, folder / "payments.parquet")
        console.print(f"{replayed.counters['events']:,} payments matched in {time.monotonic() - began_s:.1f} s")
    finally:
        platform.close()

    _section(console, "Live and replay compared")
    code = _compare(options, stream, live, replayed.alerts, watch.totals, console)
    console.print(f"[dim]{time.monotonic() - started_s:.0f} s in all[/dim]")
    return code


def _platform(options: argparse.Namespace, folder: Path, console: Console) -> InProcess | OnSpark:
    """Spark if there is a Java for it, or if it was asked for; else this process, which is said."""
    if options.engine == "embedded":
        return InProcess(folder, options.cores, console)
    try:
        check_java()
    except UsageError as problem:
        if options.engine == "spark":
            raise
        console.print(f"Spark cannot be used: {problem}")
        console.print("[bold]So the day goes through the embedded runner, as with `cep run`: the same engine.[/bold]")
        return InProcess(folder, options.cores, console)
    return OnSpark(folder, options.cores, console)


def _compile(job: Job, rulebook: Rulebook, stream: Stream) -> None:
    """Match a part of the day here, so that Spark's workers find every kernel compiled in the user's cache folder."""
    lines = list(itertools.islice(json_lines(stream.payments), 5_000))
    decoded = decode_json(job.schema, pa.array(lines, pa.binary()))
    programs = Programs().of(rulebook, job.schema)
    for domain, program in programs.items():
        batch, _ = route(decoded, domain, job.schema.columns())
        for _, share in itertools.islice(split_by_group(batch, job.groups_count), 2):
            match_step(program, None, share, START_MS + DAY_MS, StepOutput())


def _section(console: Console, title: str) -> None:
    console.print()
    console.rule(f"[bold]{title}", align="left")


# ---------------------------------------------------------------------------------------------------------- sending


class Feed:
    """Sends the day slice by slice, and at noon a rule; waits where the live job has to catch up."""

    def __init__(self, kafka: EmbeddedKafka, stream: Stream, console: Console, watch: Watch) -> None:
        self._kafka = kafka
        self._console = console
        self._watch = watch
        self._times = stream.payments["event_time"].to_numpy().astype("datetime64[ms]").astype(np.int64)
        self._records = list(zip(stream.payments["card_id"].to_pylist(), json_lines(stream.payments), strict=True))
        self._sent = 0
        for topic in (_PAYMENTS, _CONTROL):
            kafka.create(topic)

    def send_first(self) -> None:
        """What lies before the day, and its first slice: there when the job starts, so that it is read at once."""
        self._send_until(START_MS + _SLICE_MS)

    def send_day(self, late_rule: UpsertRecord, seconds: float) -> None:
        """Send the rest, publish the rule on the way, and end with a heartbeat that lets nothing wait."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True) as bar:
            task = bar.add_task("the job starts", total=len(self._records))
            self._watch.wait("its first payments", lambda: self._matched > 0)
            last_ms = int(self._times[-1])
            ends = range(START_MS + 2 * _SLICE_MS, last_ms + 2 * _SLICE_MS, _SLICE_MS)
            pause_s = seconds / len(ends)
            ahead_max = int(len(self._records) * _AHEAD_SHARE)
            for end_ms in ends:
                next_s = time.monotonic() + pause_s
                self._send_until(end_ms)
                if end_ms == _PUBLISHED_AT_MS:
                    self._publish(late_rule)
                self._show(bar, task, end_ms)
                self._watch.wait("it caught up", lambda: self._sent - self._matched < ahead_max)
                time.sleep(max(0.0, next_s - time.monotonic()))
            self._watch.wait("all payments", lambda: self._matched == self._sent)
            self._show(bar, task, last_ms)
            heartbeat = HeartbeatRecord(event_time=utc_text(last_ms + DAY_MS))
            self._kafka.send(_CONTROL, [("heartbeat", heartbeat.to_json())])
            self._watch.wait("the heartbeat", lambda: self._watch.totals["control_heartbeat"] > 0)
        self._console.print(f"{self._matched:,} payments matched, no restart; a heartbeat ended the day")

    @property
    def _matched(self) -> int:
        return self._watch.totals["records"]

    def _send_until(self, end_ms: int) -> None:
        end = int(np.searchsorted(self._times, end_ms))
        self._kafka.send(_PAYMENTS, self._records[self._sent : end])
        self._sent = end

    def _publish(self, rule: UpsertRecord) -> None:
        """The rule must reach the job before the first payment that it is to see: then it is not late."""
        self._kafka.send(_CONTROL, [(rule.id, rule.to_json())])
        at, effective = utc_text(_PUBLISHED_AT_MS)[11:16], utc_text(_EFFECTIVE_MS)[11:16]
        self._console.print(f"[bold green]{at} rule {rule.id} is published, in force from {effective}[/bold green]")
        self._watch.wait("the new rule", lambda: self._watch.totals["control_applied"] > 0)

    def _show(self, bar: Progress, task: TaskID, now_ms: int) -> None:
        alerts_count = sum(alerts.num_rows for alerts in self._watch.alerts)
        text = f"{utc_text(now_ms)[11:16]}  {alerts_count} alerts"
        bar.update(task, completed=min(self._matched, len(self._records)), description=text)


# -------------------------------------------------------------------------------------------------------- comparing


def _compare(
    options: argparse.Namespace, stream: Stream, live: pa.Table, replayed: pa.Table, totals: Counter[str],
    console: Console,
) -> int:  # fmt: skip
    """Print a table by rule; returns 0 if live, replay and what is expected agree."""
    planted = Counter(case.rule_id for case in stream.planted if case.fires)
    found = {name: (_by_rule(live, name), _by_rule(replayed, name)) for name in sorted(planted)}
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("rule")
    for title in ("planted", "live", "replay"):
        table.add_column(title, justify="right")
    table.add_column("equal")
    for name, (ours, theirs) in found.items():
        equal = "[green]yes[/green]" if ours == theirs else "[bold red]NO[/bold red]"
        note = f" (in force from {utc_text(_EFFECTIVE_MS)[11:16]})" if name == _LATE_RULE else ""
        table.add_row(name + note, str(planted[name]), str(len(ours)), str(len(theirs)), equal)
    console.print(table)
    same = sorted(alert_lines(live)) == sorted(alert_lines(replayed))
    nothing_lost = totals["late_events"] == 0 and totals["records"] == totals["events"] == stream.payments.num_rows
    ids = {name: sorted(json.loads(line)["alert_id"] for line in ours) for name, (ours, _) in found.items()}
    expected = _expected(options, ids)
    console.print()
    if same:
        console.print(
            f"[green]All {live.num_rows} alerts are equal, byte for byte: the replay is the live engine.[/green]"
        )
    else:
        console.print(f"[bold red]Live has {live.num_rows} alerts, replay {replayed.num_rows}: they differ.[/bold red]")
    if not nothing_lost:
        console.print(f"[bold red]Payments were lost: {dict(totals)}[/bold red]")
    if expected is not None and expected != ids:
        console.print(f"[bold red]These are not the alerts of {EXPECTED.name}.[/bold red]")
    return 0 if same and nothing_lost and expected in (None, ids) else 1


def _by_rule(alerts: pa.Table, rule_id: str) -> list[bytes]:
    """A rule's whole alerts, sorted."""
    return sorted(line for line in alert_lines(alerts) if json.loads(line)["rule_id"] == rule_id)


def _expected(options: argparse.Namespace, ids: dict[str, list[str]]) -> dict[str, list[str]] | None:
    """The alert ids that this seed and size must give; None where none are known."""
    if options.seed != SEED:
        return None
    known = json.loads(EXPECTED.read_text(encoding="utf-8")) if EXPECTED.exists() else {}
    if options.update_expected:
        known[options.size] = ids
        EXPECTED.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    found: dict[str, list[str]] | None = known.get(options.size)
    return found


if __name__ == "__main__":
    sys.exit(main())
