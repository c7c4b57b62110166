"""`cep job state`, `savepoint`, `restore`, `rescale`: a job's checkpoint folder, shown, copied, made again and divided.

Tested by: tests/cli/test_job.py, tests/runners/spark/test_savepoint.py
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from rich.text import Text

from cep.base.errors import UsageError
from cep.base.limits import NODES_PER_KEY_MAX, RUNS_PER_KEY_MAX
from cep.base.terminal import Terminal, new_table
from cep.cli.paths import printed
from cep.cli.verbs import Parser
from cep.model.setting_types import moment_ms, range_of
from cep.report.keyed_state import BusyKey, RunFacts, RunTotals, busiest_keys, count_runs, runs_of_key
from cep.report.past import KeyPast, PastPart, PastShare, past_of_key, past_shares
from cep.runners.embedded import savepoint as embedded
from cep.runners.embedded.opening import is_embedded
from cep.runners.embedded.savepoint import newest_pages
from cep.runners.handover.payload import Payload, consequences, read_payload, set_back
from cep.runners.handover.to_spark import load_for_spark
from cep.state.target import Target

_RULES_SHOWN = 5

HELP = """\
Show the keyed state of a live job at the end of its last finished micro-batch: pages, keys, runs and bytes of each
rule. The stored past events are listed with the rules that need them. A part that several rules need is kept and
counted once.

With --busiest, name the keys nearest to a limit. At its limit a rule loses the oldest runs of a key; metrics and logs
name the rule, but not the key.

With --key, show every open run of one key, with its events and the events that it waits for. Its past follows: counts
and sums as they stand, and the last events.

examples:
  cep job state --checkpoint /var/lib/cep/job
  cep job state --checkpoint /var/lib/cep/job --busiest 10
  cep job state --checkpoint /var/lib/cep/job --key c17
  cep job state --checkpoint /var/lib/cep/job --json | jq .rules
"""


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    parser.declare("--checkpoint FOLDER", "of the live job", required=True)
    which = parser.add_mutually_exclusive_group()
    parser.declare("--key KEY", "only this key; a key of several fields has U+001F between them", group=which)
    parser.declare("--busiest N", "the N keys with the most runs of a rule", group=which)
    parser.declare("--json", "print JSON")


def run(options: argparse.Namespace) -> int:
    """Print the keyed state of `cep run` (embedded) or `cep live` (Spark): pages have the open runs of keys, pasts the
    past events. Return 0, or 1 for an unknown key. Raises: UsageError, StateError."""
    if options.busiest is not None and options.busiest < 1:
        raise UsageError(f"--busiest {options.busiest}: give how many keys to name, 1 or more")
    if is_embedded(options.checkpoint):
        newest = newest_pages(options.checkpoint, options.key)
        if options.busiest is not None:
            return _print_busiest(busiest_keys(newest.pages, options.busiest), options.json)
        if options.key is None:
            _print_totals(count_runs(newest.pages), past_shares(newest.pasts, newest.programs), options.json)
            return 0
        runs = list(runs_of_key(newest.pages, options.key, newest.programs))
        past = list(past_of_key(newest.pasts, options.key, newest.programs))
        return _print_key(options.key, runs, past, options.json)
    from cep.runners.spark.state import job_of, programs_of, stored_pages, stored_pasts  # noqa: PLC0415 slow to import

    job = job_of(options.checkpoint)
    with _session("cep job state", "reading the state", 1) as session:
        pages = stored_pages(session, options.checkpoint, job, options.key)
        if options.busiest is not None:
            return _print_busiest(busiest_keys(pages, options.busiest), options.json)
        pasts = stored_pasts(session, options.checkpoint, job, options.key)
        programs = programs_of(session, options.checkpoint, job)  # the compiled rules, which explain stored states
        if options.key is None:
            _print_totals(count_runs(pages), past_shares(pasts, programs), options.json)
            return 0
        runs = list(runs_of_key(pages, options.key, programs))
        past = list(past_of_key(pasts, options.key, programs))
    return _print_key(options.key, runs, past, options.json)


@contextmanager
def _session(name: str, task: str, cores: int) -> Iterator[Any]:
    """Start Spark for a block whose task a terminal shows."""
    # Loaded here because Spark takes a second to import, and `cep check` does without.
    from cep.runners.spark.session import create_session  # noqa: PLC0415

    console = Terminal(stderr=True, highlight=False)
    with console.status("starting Spark"):
        session = create_session(name, cores)
    try:
        with console.status(task):
            yield session
    finally:
        session.stop()


def _named(rule_id: str, version: int) -> str:
    """Name a rule, or a state that several rules share, which lacks a version."""
    return f"{rule_id} v{version}" if version else rule_id


def _print_totals(totals: RunTotals, past: Sequence[PastShare], as_json: bool) -> None:
    """Print the sizes of runs (partial matches) and of the past: panes are time slices, segments blocks of events."""
    if as_json:
        printed(json.dumps({**asdict(totals), "histories": [asdict(share) for share in past]}, indent=2))
        return
    printed(
        f"{totals.runs:,} runs of {totals.keys:,} keys, {totals.size:,} bytes in {totals.pages:,} pages of "
        f"{totals.key_groups:,} key groups; the largest page has {totals.largest:,} bytes"
    )
    table = new_table(("rule", "by"), ("runs", "keys", "bytes"))
    for rule in totals.rules:
        counts = (f"{rule.runs:,}", f"{rule.keys:,}", f"{rule.size:,}")
        table.add_row(Text(_named(rule.rule_id, rule.version)), Text(",".join(rule.domain)), *counts)
    Terminal(highlight=False).print(table)
    for share in past:
        printed(
            f"histories by {','.join(share.domain)}: {share.events:,} past events, {share.panes:,} rows of panes, "
            f"{share.size:,} bytes in {share.segments:,} segments; {share.keys:,} keys, "
            f"{share.head_size:,} bytes in {share.pages:,} heads"
        )
        _print_parts(share.parts)


def _print_busiest(busiest: Sequence[BusyKey], as_json: bool) -> int:
    """Print the keys with the most runs (partial matches) of a rule, and how full the nearer limit is. Return 0."""
    if as_json:
        printed(json.dumps([asdict(busy) for busy in busiest], indent=2))
        return 0
    table = new_table(("rule", "by", "key"), ("runs", "bound events", "full"))
    for busy in busiest:
        counts = (f"{busy.runs:,}", f"{busy.bound:,}", f"{busy.fullness:.0%}")
        table.add_row(Text(_named(busy.rule_id, busy.version)), Text(",".join(busy.domain)), Text(busy.key), *counts)
    Terminal(highlight=False, soft_wrap=True).print(table)
    printed(
        f"a rule keeps {RUNS_PER_KEY_MAX:,} runs of a key and {NODES_PER_KEY_MAX:,} events that they have bound; the "
        "oldest go first, and `cep_rule_runs_evicted_total` counts them"
    )
    return 0


def _print_parts(parts: Sequence[PastPart]) -> None:
    """Print the parts of the retained past, and the rules that need each. A part that rules share is printed once."""
    table = new_table(("past", "of"), ("rows", "bytes"), ("for",))
    for part in parts:
        named = ", ".join(part.rules[:_RULES_SHOWN]) or "no rule any more"
        left_out = len(part.rules) - _RULES_SHOWN
        named += f" and {left_out:,} others" if left_out > 0 else ""
        table.add_row(part.kind, Text(part.of), f"{part.rows:,}", f"{part.size:,}", Text(named))
    if parts:
        Terminal(highlight=False).print(table)


def _print_key(key: str, runs: list[RunFacts], past: list[KeyPast], as_json: bool) -> int:
    """Print one key. Return 0, or 1 without any state for it."""
    if as_json:
        printed(json.dumps([asdict(run) for run in runs] + [asdict(share) for share in past], indent=2))
    else:
        _print_runs(key, runs)
        for share in past:
            _print_past(share)
    return 0 if runs or past else 1


def _print_past(past: KeyPast) -> None:
    """Print a key's stored past: values and events of histories such as `count(…)`, and rows of panes (time slices)."""
    panes = f", {past.panes_count:,} rows of panes" if past.panes_count else ""
    printed(f"histories by {','.join(past.domain)}, at {past.clock}: {past.events_count:,} past events{panes}")
    for history, value in past.tallies:
        printed(f"    {history} is {value:,}")
    left_out = past.events_count - len(past.events)
    if left_out:
        printed(f"    ({left_out:,} older events)")
    for event in past.events:
        fields = " ".join(
            f"{name}={value}" for name, value in event.items() if name not in ("event_time", "event_type")
        )
        printed(f"    {event['event_time']}  {event['event_type']} {fields}")


def _print_runs(key: str, runs: list[RunFacts]) -> None:
    if not runs:
        printed(f"no rule has a run for {key}")
    for run in runs:
        until = f", until {run.expires}" if run.expires else ""
        waits = " or ".join(run.waits_for)
        printed(f"{_named(run.rule_id, run.version)} by {','.join(run.domain)}: waits for {waits}{until}")
        for event in run.bound:
            printed(f"    {event.time}  {event.variable}: {event.event_type} {event.event_id}")


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


def add_arguments_savepoint(parser: Parser) -> None:
    """Declare the arguments of `cep job savepoint`."""
    parser.declare(
        "--checkpoint FOLDER",
        "checkpoint folder of the stopped job; for `cep run` the folders of all its processes",
        required=True,
        nargs="+",
    )
    parser.declare("--to PLACE", "a folder, or a URL of fsspec", required=True)
    parser.declare("--portable", "write a job on Spark in the form that `cep run` can start from too")


def add_arguments_restore(parser: Parser) -> None:
    """Declare the arguments of `cep job restore`."""
    parser.declare("--from PLACE", "where savepoints are", dest="source", required=True)
    group = parser.add_mutually_exclusive_group(required=True)
    parser.declare("--checkpoint FOLDER", "checkpoint folder to make; new or empty", group=group)
    parser.declare("--list", "print the names of the savepoints, the latest last", group=group)
    parser.declare("--name NAME", "name of the savepoint (default: the latest)")
    parser.declare("--groups RANGE", "key groups of this process of `cep run`, such as 0-15")
    parser.declare(
        "--engine",
        "make a folder for `cep run` or for `cep live`; for savepoints of `cep run` and portable ones",
        choices=("embedded", "spark"),
    )
    parser.declare(
        "--watermark-back TIME",
        "set the watermark back to this time, such as 2026-03-01T00:00:00Z: for a job whose events are "
        "all late because one was from the future. Prints the consequences, and does it with --yes",
    )
    parser.declare("--yes", "accept the consequences of --watermark-back")
    parser.declare("--store", "store of `cep run` (default rocksdb)", choices=("rocksdb", "memory"), default="rocksdb")


def add_arguments_rescale(parser: Parser) -> None:
    """Declare the arguments of `cep job rescale`."""
    parser.declare("--checkpoint FOLDER", "checkpoint folder of the stopped job", required=True)
    parser.declare("--partitions N", "matching tasks from now on", required=True)
    parser.declare("--cores N", "cores to use for the move (default 2)", default=2)


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
    from cep.runners.spark.savepoint import save, save_for_both  # noqa: PLC0415 slow to import

    if options.portable:
        with _session("cep job savepoint", "writing the savepoint", 2) as session:
            written = save_for_both(session, options.checkpoint[0], Target(options.to))
        printed(f"{options.to}: all {len(written.groups)} key groups, {written.files_count:,} files, for either engine")
        return 0
    saved = save(options.checkpoint[0], Target(options.to))
    printed(
        f"{saved.name}: {saved.files_count:,} files, {saved.size:,} bytes, {saved.copied:,} of them copied; "
        f"up to micro-batch {saved.batch_id}"
    )
    return 0


def run_restore(options: argparse.Namespace) -> int:
    """Restore a savepoint into the new folder `options.checkpoint`, or list savepoints of Spark."""
    target = Target(options.source)
    change_payload = _change_of_payload(options, target)  # sets the watermark back, if flags say so
    is_portable = embedded.has_savepoint(target)  # of `cep run`, or a portable one of `cep live`
    if is_portable and options.checkpoint is not None and options.name is None:
        if options.engine == "spark":
            if options.groups is not None:
                raise UsageError("a job on Spark has all key groups; leave --groups out")
            begun = load_for_spark(target, options.checkpoint, change_payload)
            printed(f"{options.checkpoint}: {begun.entries:,} entries; start `cep live` with it")
            return 0
        groups = None if options.groups is None else range_of(options.groups)
        loaded = embedded.load(target, options.checkpoint, groups, options.store, change_payload)
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
        names = savepoints(target)
        if not names and not is_portable:
            raise UsageError(f"{options.source} has no savepoints; make one with `cep job savepoint`")
        for name in names:
            printed(name)
        if is_portable:
            printed("a portable savepoint, which has no name; leave --name out to restore it")
        return 0
    restored = restore(target, options.checkpoint, options.name)
    printed(f"{options.checkpoint} is {restored.name}, up to micro-batch {restored.batch_id}; start the job with it")
    return 0


def run_rescale(options: argparse.Namespace) -> int:
    """Divide a job's state among another number of tasks. Raises: UsageError, StateError."""
    from cep.runners.spark.state import job_of, rescale  # noqa: PLC0415 slow to import

    if is_embedded(options.checkpoint):
        raise UsageError(
            f"{options.checkpoint} is of `cep run`, which has no tasks to change: --workers sets its threads, and "
            "`cep job savepoint` with `cep job restore --groups 0-15` divides it among processes "
            "(`cep docs guides/move`)"
        )
    job_of(options.checkpoint)
    with _session("cep job rescale", "moving key groups", options.cores) as session:
        before = rescale(session, options.checkpoint, options.partitions)
    printed(f"{options.checkpoint}: {before} partitions are {options.partitions} now")
    return 0


def _change_of_payload(options: argparse.Namespace, target: Target) -> Callable[[Payload], Payload]:
    """Return a function that sets a savepoint's watermark back if flags say so. Raises: UsageError if unconfirmed."""
    if options.watermark_back is None:
        return lambda payload: payload
    if options.checkpoint is None or not embedded.has_savepoint(target):
        raise UsageError(
            "--watermark-back makes a new checkpoint folder from a savepoint of `cep run`, or of `cep live` with "
            "`cep job savepoint --portable`"
        )
    to_ms = moment_ms("--watermark-back", options.watermark_back)
    payload, now_ms = read_payload(target), int(time.time() * 1_000)
    set_back(payload, to_ms, now_ms)  # only to raise before anything is printed: it returns a changed copy
    for sentence in consequences(payload, to_ms):
        printed(sentence)
    if not options.yes:
        raise UsageError("nothing was made; give --yes too if that is what you want")
    return lambda stored: set_back(stored, to_ms, now_ms)
