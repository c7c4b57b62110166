"""A simulated day of card payments → a live job that finds the fraud in it, and a replay that must find the same.

    payments ─▶ topics ──▶ live job ─▶ alerts ─┐
       │          ▲ a rule, at eleven          ├─ equal?
       └────────▶ Parquet ─▶ replay ─▶ alerts ─┘

Where the topics are and which runner matches is the caller's choice: `cep demo` takes this process for both, the demo
of the repository an embedded Kafka and Spark.
Tested by: tests/demo/test_demo.py, tests/cli/test_main.py
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from cep.base.errors import CepError
from cep.base.limits import DEDUP_MS_DEFAULT
from cep.base.text import utc_text
from cep.columnar.decode import decode_json, route, split_by_group
from cep.demo.compare import SEED, Outcome, compare, expected_ids, write_expected
from cep.demo.feed import EFFECTIVE_MS, SLICE_MS, Feed, Report, Topics, Watch
from cep.demo.labels import write_labels
from cep.demo.library import library_folder
from cep.demo.stream import DAY_MS, START_MS, Stream, StreamSize, build, json_lines
from cep.model.rule import UpsertRecord
from cep.rulebook.deploy import deploy
from cep.rulebook.files import read_rules
from cep.rulebook.rulebook import Rulebook
from cep.runners.compiling import announced_compiling
from cep.runners.output import Replayed
from cep.step.job import Job
from cep.step.match import MatchOutput, match_events
from cep.step.rules import Programs

SIZES = {"default": StreamSize(), "small": StreamSize(cards_count=300, payments_per_card=12)}
PAYMENTS_FILE = "payments.parquet"
_LATE_RULE = "impossible_travel"  # published while the job is at work
_LATENESS_MS = (
    2 * SLICE_MS
)  # payments of one slice reach four partitions in any order, payments of different slices stay in order
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


@dataclass(frozen=True, slots=True)
class _Rules:
    """The rules of the library: the rules at the start of the job, and the rule that is added while it runs."""

    initial: list[UpsertRecord]
    late: UpsertRecord

    @staticmethod
    def read() -> _Rules:
        records, problems = read_rules(library_folder() / "rules")
        if problems:
            raise CepError(problems[0])
        late = next(record for record in records if record.id == _LATE_RULE)
        late = late.model_copy(update={"effective_at": utc_text(EFFECTIVE_MS)})
        return _Rules([record for record in records if record.id != _LATE_RULE], late)


def run_day(
    day: Day, topics: Topics, platform_of: Callable[[], Platform], folder: Path, console: Console
) -> tuple[Outcome, bool]:
    """Run the day and print it. Return the outcome, and True if live and replay agree and are as expected.

    `platform_of` gives the runner, whose live job has its kernels compiled; `folder` is for payments and labels as
    files.
    Raises: CepError.
    """
    _print_title(console, "The day")
    stream = build(day.seed, SIZES[day.size])
    frauds_count = sum(case.fires for case in stream.planted)
    console.print(f"{stream.payments.num_rows:,} card payments of one day, seed {day.seed}")
    console.print(f"{frauds_count} frauds are planted among them, and {len(stream.planted) - frauds_count} near misses")
    rules = _Rules.read()
    deployment = deploy([*rules.initial, rules.late])
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
        initial = [record.to_json() for record in rules.initial]
        with platform.live(job, initial, watch.take) as watch.reason_of_end:
            feed.send_day(rules.late, day.seconds)

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
