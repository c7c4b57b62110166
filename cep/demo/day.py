"""A simulated day of card payments → a live job that finds the fraud in it, and a replay that must find the same.

    payments ─▶ topics ──▶ live job ─▶ alerts ─┐
       │          ▲ a rule, at eleven          ├─ equal?
       └────────▶ Parquet ─▶ replay ─▶ alerts ─┘

The caller chooses the topics and the runner: `cep demo` takes this process for both, the demo of the repository an
embedded Kafka and Spark.
Tested by: tests/demo/test_demo.py, tests/cli/test_main.py
"""

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from cep.base.errors import CepError
from cep.base.files import replace_file
from cep.base.limits import DEDUP_MS_DEFAULT
from cep.base.terminal import new_table
from cep.base.text import utc_text
from cep.columnar.decode import decode_json, route, split_by_group
from cep.demo.labels import write_labels
from cep.demo.library import library_folder
from cep.demo.stream import DAY_MS, HOUR_MS, MINUTE_MS, START_MS, Stream, StreamSize, build, json_lines
from cep.model.rule import HeartbeatRecord, UpsertRecord
from cep.rulebook.deploy import deploy
from cep.rulebook.files import read_rules
from cep.rulebook.rulebook import Rulebook
from cep.runners.compiling import announced_compiling
from cep.runners.output import Replayed
from cep.sinks.json_form import json_lines as alert_lines
from cep.step.job import Job
from cep.step.match import MatchOutput, match_events
from cep.step.rules import Programs

EXPECTED = Path(__file__).with_name("expected_alerts.json")
SEED = 7  # of the days whose alert ids are in EXPECTED


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a simulated day: the planted cases, the alerts of the live job and its replay, the live totals."""

    stream: Stream
    live: pa.Table
    replayed: pa.Table
    totals: Counter[str]

    def ids_by_rule(self) -> dict[str, list[str]]:
        """Return the ids of the live alerts, for each rule that has fraud planted for it."""
        planted = sorted({case.rule_id for case in self.stream.planted if case.fires})
        return {
            rule_id: sorted(json.loads(line)["alert_id"] for line in _lines_of(self.live, rule_id))
            for rule_id in planted
        }


def expected_ids(seed: int, size: str) -> dict[str, list[str]] | None:
    """Return the alert ids that this day must give, by rule; None if they are not recorded."""
    ids_by_size: dict[str, dict[str, list[str]]] = json.loads(EXPECTED.read_text(encoding="utf-8"))
    return ids_by_size.get(size) if seed == SEED else None


def write_expected(size: str, ids: dict[str, list[str]]) -> None:
    """Make these the alert ids that a day of this size must give."""
    ids_by_size = json.loads(EXPECTED.read_text(encoding="utf-8"))
    ids_by_size[size] = ids
    replace_file(EXPECTED, f"{json.dumps(ids_by_size, indent=1, sort_keys=True)}\n".encode())


def compare(outcome: Outcome, expected: dict[str, list[str]] | None, notes: dict[str, str], console: Console) -> bool:
    """Print the counts of alerts by rule, with notes. Return True if live, replay and `expected` have equal alerts."""
    planted = Counter(case.rule_id for case in outcome.stream.planted if case.fires)  # planted frauds by rule
    table = new_table(("rule",), ("planted", "live", "replay"), ("equal",))
    for rule_id in sorted(planted):
        live, replayed = _lines_of(outcome.live, rule_id), _lines_of(outcome.replayed, rule_id)
        equal = "[green]yes[/green]" if live == replayed else "[bold red]NO[/bold red]"
        name = rule_id + notes.get(rule_id, "")
        table.add_row(name, str(planted[rule_id]), str(len(live)), str(len(replayed)), equal)
    console.print(table)
    console.print()
    is_same = sorted(alert_lines(outcome.live)) == sorted(alert_lines(outcome.replayed))
    if is_same:
        equal = f"All {outcome.live.num_rows} alerts are equal, byte for byte: the replay is the live engine."
        console.print(f"[green]{equal}[/green]")
    else:
        counts = f"Live has {outcome.live.num_rows} alerts, replay {outcome.replayed.num_rows}: they differ."
        console.print(f"[bold red]{counts}[/bold red]")
    totals = outcome.totals
    is_complete = totals["late_events"] == 0
    is_complete &= totals["records"] == totals["events"] == outcome.stream.payments.num_rows
    if not is_complete:
        console.print(f"[bold red]Payments were lost: {dict(totals)}[/bold red]")
    is_expected = expected is None or expected == outcome.ids_by_rule()
    if not is_expected:
        console.print(f"[bold red]These are not the alerts of {EXPECTED.name}.[/bold red]")
    return is_same and is_complete and is_expected


def _lines_of(alerts: pa.Table, rule_id: str) -> list[bytes]:
    """Return a rule's whole alerts, sorted."""
    return sorted(line for line in alert_lines(alerts) if json.loads(line)["rule_id"] == rule_id)


PAYMENTS, CONTROL = "payments", "rules"
EFFECTIVE_MS = START_MS + 12 * HOUR_MS  # from when the late rule is in force
SLICE_MS = 10 * MINUTE_MS
_PUBLISHED_AT_MS = START_MS + 11 * HOUR_MS
# The limit of payments sent and not yet matched, as a share of all. The topics could hold more, but a viewer wants to
# see alerts as they come.
_AHEAD_SHARE = 1 / 8
_WAIT_S = 180
_POLL_S = 0.02


class Topics(Protocol):
    """The place to which the feed sends: Kafka, or the memory of this process."""

    def create(self, topic: str) -> None: ...

    def send(self, topic: str, records: Iterable[tuple[str, bytes]]) -> None: ...


class Report(Protocol):
    """The report of a micro-batch, by any runner."""

    @property
    def alerts(self) -> pa.Table: ...

    @property
    def totals(self) -> Counter[str]: ...


@dataclass(slots=True)
class Watch:
    """The reports of the live job so far, and a way to wait for more."""

    alerts: list[pa.Table] = field(default_factory=list)
    totals: Counter[str] = field(default_factory=Counter)
    reason_of_end: Callable[[], str | None] = lambda: None

    def take(self, report: Report) -> None:
        self.alerts.append(report.alerts)
        self.totals = Counter(report.totals)

    def wait(self, goal: str, is_done: Callable[[], bool]) -> None:
        """Wait until the job has come so far. Raises: CepError if it stops before, or takes too long."""
        deadline_s = time.monotonic() + _WAIT_S
        while not is_done():
            reason = self.reason_of_end()
            if reason is not None:
                raise CepError(f"the live job stopped before {goal}: {reason}")
            if time.monotonic() > deadline_s:
                raise CepError(f"the live job took more than {_WAIT_S} s before {goal}")
            time.sleep(_POLL_S)


class Feed:
    """Sends the day slice by slice and a rule on the way. Waits where the live job has to catch up."""

    def __init__(self, topics: Topics, stream: Stream, console: Console, watch: Watch) -> None:
        self._topics = topics
        self._console = console
        self._watch = watch
        self._times = stream.payments["event_time"].to_numpy().astype("datetime64[ms]").astype(np.int64)
        self._records = list(zip(stream.payments["card_id"].to_pylist(), json_lines(stream.payments), strict=True))
        self._sent_count = 0
        for topic in (PAYMENTS, CONTROL):
            topics.create(topic)

    def send_day(self, late_rule: UpsertRecord, seconds: float) -> None:
        """Send the payments, and publish a late rule on the way. A heartbeat (a later time) ends the runs that wait."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True) as bar:
            task = bar.add_task("the job starts", total=len(self._records))
            self._send_until(START_MS + SLICE_MS)  # with the payments from before the day
            self._watch.wait("its first payments", lambda: self._matched_count > 0)
            last_ms = int(self._times[-1])
            ends = range(START_MS + 2 * SLICE_MS, last_ms + 2 * SLICE_MS, SLICE_MS)  # of the slices of the day
            pause_s = seconds / len(ends)
            ahead_max = int(len(self._records) * _AHEAD_SHARE)  # payments that the job has not matched yet
            for end_ms in ends:
                next_s = time.monotonic() + pause_s
                self._send_until(end_ms)
                if end_ms == _PUBLISHED_AT_MS:
                    self._publish(late_rule)
                self._show(bar, task, end_ms)
                self._watch.wait("it caught up", lambda: self._sent_count - self._matched_count < ahead_max)
                time.sleep(max(0.0, next_s - time.monotonic()))
            self._watch.wait("all payments", lambda: self._matched_count == self._sent_count)
            self._show(bar, task, last_ms)
            heartbeat = HeartbeatRecord(event_time=utc_text(last_ms + DAY_MS))
            self._topics.send(CONTROL, [("heartbeat", heartbeat.to_json())])
            self._watch.wait("the heartbeat", lambda: self._watch.totals["control_heartbeat"] > 0)
        self._console.print(f"{self._matched_count:,} payments matched, no restart; a heartbeat ended the day")

    @property
    def _matched_count(self) -> int:
        return self._watch.totals["records"]

    def _send_until(self, end_ms: int) -> None:
        end = int(np.searchsorted(self._times, end_ms))
        self._topics.send(PAYMENTS, self._records[self._sent_count : end])
        self._sent_count = end

    def _publish(self, rule: UpsertRecord) -> None:
        """Publish the rule and wait for it: it must reach the job before the first payment that it is to see."""
        self._topics.send(CONTROL, [(rule.id, rule.to_json())])
        time, effective = utc_text(_PUBLISHED_AT_MS)[11:16], utc_text(EFFECTIVE_MS)[11:16]
        self._console.print(f"[bold green]{time} rule {rule.id} is published, in force from {effective}[/bold green]")
        self._watch.wait("the new rule", lambda: self._watch.totals["control_applied"] > 0)

    def _show(self, bar: Progress, task: TaskID, now_ms: int) -> None:
        alerts_count = sum(alerts.num_rows for alerts in self._watch.alerts)
        text = f"{utc_text(now_ms)[11:16]}  {alerts_count} alerts"
        bar.update(task, completed=min(self._matched_count, len(self._records)), description=text)


SIZES = {"default": StreamSize(), "small": StreamSize(cards_count=300, payments_per_card=12)}
PAYMENTS_FILE = "payments.parquet"
_LATE_RULE = "impossible_travel"  # published while the job is at work
# Payments of one slice reach four partitions in any order, payments of different slices stay in order.
_LATENESS_MS = 2 * SLICE_MS
_KEY_GROUPS = 32
_SAMPLE = 5_000


@dataclass(frozen=True, slots=True)
class Day:
    """The requested day. `seconds` is its minimum duration.

    `compiles_here`: this process matches. Otherwise the platform compiles the kernels where they are needed.
    """

    seed: int = SEED
    size: str = "default"
    seconds: float = 25.0
    updates_expected: bool = False
    compiles_here: bool = True


class Platform(Protocol):
    """A runner for both jobs."""

    def live(
        self, job: Job, initial: Sequence[bytes], take: Callable[[Report], None]
    ) -> AbstractContextManager[Callable[[], str | None]]: ...

    def replay(self, job: Job, rulebook: Rulebook, path: Path) -> Replayed: ...

    def close(self) -> None: ...


def _library_rules() -> tuple[list[UpsertRecord], UpsertRecord]:
    """Return the rules at the start of the job, and the rule that is added while it runs."""
    records, problems = read_rules(library_folder() / "rules")
    if problems:
        raise CepError(problems[0])
    late = next(record for record in records if record.id == _LATE_RULE)
    records.remove(late)
    return records, late.model_copy(update={"effective_at": utc_text(EFFECTIVE_MS)})


def run_day(
    day: Day, topics: Topics, platform_of: Callable[[], Platform], folder: Path, console: Console
) -> tuple[Outcome, bool]:
    """Run the day and print it. Return the outcome, and True if live and replay agree and are as expected.

    `platform_of` gives the runner, with compiled kernels; the payments and labels go to `folder`. Raises: CepError.
    """
    _print_title(console, "The day")
    stream = build(day.seed, SIZES[day.size])
    frauds_count = sum(case.fires for case in stream.planted)
    console.print(f"{stream.payments.num_rows:,} card payments of one day, seed {day.seed}")
    console.print(f"{frauds_count} frauds are planted among them, and {len(stream.planted) - frauds_count} near misses")
    initial_rules, late_rule = _library_rules()
    deployment = deploy([*initial_rules, late_rule])
    job = Job(
        deployment.schema, deployment.key_domains, _KEY_GROUPS, lateness_ms=_LATENESS_MS, dedup_ms=DEDUP_MS_DEFAULT
    )  # fmt: skip
    if day.compiles_here:
        with announced_compiling():
            _compile(job, deployment.rulebook, stream)
    watch = Watch()
    feed = Feed(topics, stream, console, watch)
    with closing(platform_of()) as platform:
        _print_title(console, "Live")
        initial = [record.to_json() for record in initial_rules]
        with platform.live(job, initial, watch.take) as watch.reason_of_end:
            feed.send_day(late_rule, day.seconds)

        _print_title(console, "Replay")
        path = folder / PAYMENTS_FILE
        pq.write_table(stream.payments, path)
        write_labels(stream, folder)
        began_s = time.monotonic()
        with console.status("matching the same payments from Parquet, in batch"):
            replayed = platform.replay(job, deployment.rulebook, path)
        console.print(f"{replayed.counters['events']:,} payments matched in {time.monotonic() - began_s:.1f} s")

    _print_title(console, "Live and replay compared")
    outcome = Outcome(stream, pa.concat_tables(watch.alerts), replayed.alerts, watch.totals)
    if day.updates_expected and day.seed == SEED:
        write_expected(day.size, outcome.ids_by_rule())
    notes = {_LATE_RULE: f" (in force from {utc_text(EFFECTIVE_MS)[11:16]})"}
    return outcome, compare(outcome, expected_ids(day.seed, day.size), notes, console)


def _compile(job: Job, rulebook: Rulebook, stream: Stream) -> None:
    """Match a part of the day, so that every kernel that the day needs is compiled before the first payment."""
    lines = list(itertools.islice(json_lines(stream.payments), _SAMPLE))
    decoded = decode_json(job.schema, pa.array(lines, pa.binary()))
    programs = Programs().of(rulebook, job.schema)
    for domain, program in programs.items():
        batch, _ = route(decoded, domain, job.schema.columns())
        for _, share in itertools.islice(split_by_group(batch, job.groups_count), 2):
            match_events(program, None, share, START_MS + DAY_MS, MatchOutput())


def _print_title(console: Console, title: str) -> None:
    console.print()
    console.rule(f"[bold]{title}", align="left")
