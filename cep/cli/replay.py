"""`cep replay`: rules and a finite history → a file of alerts, and a table of the results.

Tested by: tests/cli/test_replay.py, tests/runners/test_replay.py
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cep.api.replay import GivenRules, Terms, finish, job_of
from cep.base.errors import UsageError
from cep.base.limits import EVENT_TIME_MS_MAX, EVENT_TIME_MS_MIN, IN_PROCESS_BYTES_MAX, KEY_GROUPS_DEFAULT, TIME_MS_MAX
from cep.base.secrets import secret_keys, use_secrets_file
from cep.base.terminal import Terminal, new_table
from cep.base.text import utc_text
from cep.cli.given_events import (
    add_dedup_argument,
    add_events_arguments,
    add_to_the_end_argument,
    exit_code_of,
    given_events,
    given_period,
)
from cep.cli.help_pages import RULE_FILES, with_page
from cep.cli.settings import add_secrets_argument, add_trust_arguments
from cep.cli.verbs import Parser
from cep.lang.explain.render import render_text
from cep.model.rule import ListRecord
from cep.model.setting_types import OFF, length_ms
from cep.rulebook.deploy import Deployment, deploy
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.signers import given_trust
from cep.rulebook.suppression import LastAlerts, Suppression, fired_json
from cep.runners.embedded import replay as embedded
from cep.runners.handover.warm_start import About, Ending, check_free, put_lists
from cep.runners.handover.warm_start import finish as end
from cep.runners.java import check_java
from cep.runners.meanings import is_loss
from cep.runners.output import Replayed, check_writable, format_of, write_outputs
from cep.sources.inputs import Records
from cep.sources.pieces import period_of
from cep.step.job import Job
from cep.step.marks import remember_marks
from cep.step.rules import refusal_dead_letters
from cep.step.step import suppressed_lines

HELP = """\
Match a finite history, in this process or on Spark (--engine), and write its alerts. The same rules on the same
events give the same alerts as the live job.

With --rules alone, that job began with these rules. With --control, it also got the control records, in their order.
Records that the job refused are refused here, with the same letter.

A later rule is refused if it reads event types or fields that the first rules do not declare. It is also refused if the
job did not route by its key (--key), or if no level was left (--levels). With --control alone the job begins with all
of the records, which find their levels together.
"""


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    parser.declare("--rules FOLDER", "rule files (*.toml) that the job begins with")
    parser.declare(
        "--control FILE",
        "control records (JSON lines) that came to the job then, in the order of the topic: each version sees its "
        "own span of event time, so each needs its `effective_at`, as `cep rules publish` stamps it",
    )
    add_trust_arguments(parser)
    add_events_arguments(parser)
    parser.declare("--out FILE", "alerts go here; set-aside records to FILE.dead.jsonl", required=True)
    parser.declare("--format", "of the alerts; told from the name of FILE if left out", choices=("parquet", "jsonl"))
    parser.declare(
        "--engine",
        "embedded matches in this process, from memory and without Java; spark starts in half a minute "
        "and can match more than fits into memory; both give the same alerts (default: embedded for up to "
        f"{IN_PROCESS_BYTES_MAX >> 20} MB of events or without Java, otherwise spark)",
        choices=("spark", "embedded"),
    )
    parser.declare("--cores N", "cores of this machine to use (default 2)", default=2)
    parser.declare("--partitions N", "Spark's matching tasks (default: as many as cores)")
    parser.declare(
        "--key-groups N",
        f"how finely keys are divided among tasks (default {KEY_GROUPS_DEFAULT}); does not change the alerts",
        default=KEY_GROUPS_DEFAULT,
    )
    _add_job(parser)


def _add_job(parser: Parser) -> None:
    """Declare the arguments that describe the live job. With --control this is the job whose alerts the replay repeats.
    With --savepoint it is the job that goes on from the cut, which is the end of the replay."""
    parser.declare(
        "--levels N",
        "levels of patterns that feed each other, as the live job's --levels: with --control, a record for which "
        "that leaves none is refused; with --savepoint, the job that goes on has them (default: as many as the first "
        "rules need)",
        default=1,
    )
    parser.declare(
        "--key FIELDS",
        "with --control: fields by which the job routes, in addition to the keys of its first rules; "
        "like the live job's --key",
        action="append",
        default=[],
    )
    add_dedup_argument(parser)
    parser.declare(
        "--ahead-max TIME",
        "how far ahead of this machine's clock an event may be dated; later events are set aside "
        "(default 1 min; off: no limit)",
        default="1 min",
    )
    parser.declare(
        "--savepoint FOLDER",
        "end in a cut, and put the state there: `cep live --from FOLDER` and "
        "`cep run --from FOLDER` go on with open windows, runs and histories",
    )
    parser.declare(
        "--until TIME",
        "events from this event time on are left out, like 2026-03-01T00:00:00Z; with --savepoint it is "
        "the cut: the rest belongs to the job that continues (default: just after the last event)",
    )
    add_to_the_end_argument(parser)
    parser.declare("--since TIME", "events before this event time are left out")
    add_secrets_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Replay. Return 0, or 1 if a rule, a control record or too many records were set aside (refused or unreadable)."""
    use_secrets_file(options.secrets)
    format_ = options.format or format_of(options.out)
    check_writable(options.out)
    _check_numbers(options)
    keys = tuple(tuple(field.strip() for field in text.split(",")) for text in options.key)
    rules = GivenRules.read(
        options.rules, options.control, options.levels, keys, given_trust(options.signers, options.root_key)
    )
    problems, deployment = rules.problems, rules.deployment
    errors = Terminal(stderr=True, highlight=False)
    _print_problems(problems, deployment, errors)
    findings = bool(problems or deployment.set_aside)
    if deployment.schema.protected:
        secret_keys()  # an error now, if they are not set
    if not deployment.key_domains:  # each rule in force has one: the fields of its key
        print("cep: no rule is in force; nothing was replayed", file=sys.stderr)
        return 1
    ending = _ending(options)  # the cut at which --savepoint saves the state; None without it
    refused = refusal_dead_letters(deployment.refused)
    if ending is not None:  # a live job goes on from the savepoint, and begins with all control records that were taken
        deployment = deploy(deployment.taken, deployment.rulebook.lists.store, deployment.rulebook.trust)
    job = _job(options, deployment, rules.levels_count if ending else 1)  # 1: as many as these rules need
    records = given_events(options, deployment.schema)
    replayed = _replay(options, job, deployment.rulebook, records, ending, errors)
    outcome = finish(deployment.rulebook, replayed, refused)
    if ending is not None:
        _save_state(ending, replayed, deployment, outcome.suppression, job)
    suppressed = suppressed_lines(outcome.suppression)
    paths = write_outputs(outcome.replayed.alerts, outcome.replayed.dead_letters, options.out, format_, suppressed)
    _print_summary(deployment, outcome.replayed, paths, ending)
    return exit_code_of(options, errors, int(findings), replayed)


def _ending(options: argparse.Namespace) -> Ending | None:
    if options.savepoint is None:
        return None
    until_ms = None if options.until is None else period_of(None, options.until, "--").until_ms
    ending = Ending(options.savepoint, until_ms)
    check_free(ending)
    return ending


def _job(options: argparse.Namespace, deployment: Deployment, levels_count: int) -> Job:
    ahead_ms = None if options.ahead_max == OFF else length_ms("--ahead-max", options.ahead_max)
    period = given_period(options)
    if options.savepoint is not None:  # the job goes on after the cut
        period = replace(period, until_ms=TIME_MS_MAX)
    return job_of(deployment, Terms(options.cores, options.key_groups, ahead_ms, period), levels_count)


def _save_state(ending: Ending, replayed: Replayed, deployment: Deployment, suppression: Suppression, job: Job) -> None:
    assert replayed.until_ms is not None, "it has ended in a cut"
    records = deployment.taken
    rules = tuple(record.to_json() for record in records)
    named = [record.stored for record in records if isinstance(record, ListRecord) and record.stored is not None]
    files = [*replayed.state_files, *put_lists(ending.folder, named, deployment.rulebook.lists.store)]
    last_alerts = LastAlerts(suppression.fired)
    remember_marks(last_alerts, replayed.marks)
    end(ending.folder, files, About(job, rules, replayed.since_ms, replayed.until_ms, fired_json(last_alerts.last)))


def _replay(
    options: argparse.Namespace, job: Job, rulebook: Rulebook, records: Records, ending: Ending | None, errors: Console
) -> Replayed:
    if _engine(options, records.paths, errors) == "embedded":
        return embedded.read_and_replay(job, rulebook, records, options.cores, errors, ending)
    # Loaded here because Spark takes a second to import, and the embedded engine does without.
    from cep.runners.spark.replay import Tasks, read_and_replay  # noqa: PLC0415

    tasks = Tasks(options.cores, options.partitions)
    return read_and_replay(job, rulebook, records, tasks, errors, ending)


def _engine(options: argparse.Namespace, paths: Sequence[Path], errors: Console) -> str:
    """Return the engine to use: the requested one, or Spark for large inputs if Java is available."""
    if options.engine is not None:
        return str(options.engine)
    if options.partitions is None and sum(map(_size, paths)) <= IN_PROCESS_BYTES_MAX:
        return "embedded"
    try:
        check_java()
    except UsageError as problem:
        errors.print(f"Spark cannot be used ({problem}); the embedded engine takes its place", markup=False)
        return "embedded"
    return "spark"


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files if file.is_file())


def _check_numbers(options: argparse.Namespace) -> None:
    if options.rules is None and options.control is None:
        raise UsageError("give --rules, --control, or both")
    if options.to_the_end and options.savepoint is not None:
        raise UsageError(
            "--to-the-end closes all windows, and --savepoint leaves them open for the job that goes on; give one"
        )


def _print_problems(problems: Sequence[str], deployment: Deployment, errors: Console) -> None:
    for problem in problems:
        errors.print(problem, markup=False, soft_wrap=True)
    if problems:
        outcome = "rules with a problem are left out; lists with a problem may lack entries"
        errors.print(with_page(outcome, RULE_FILES), markup=False, soft_wrap=True)
    for rule in deployment.set_aside:
        line = f"rule {rule.rule_id} version {rule.version} is set aside: {rule.reason}"
        errors.print(line, markup=False, soft_wrap=True)
        if rule.diagnostics:
            text = render_text(rule.diagnostics, {rule.rule_id: rule.source})
            errors.print(text, markup=False, soft_wrap=True)


def _print_summary(deployment: Deployment, replayed: Replayed, paths: Sequence[Path], ending: Ending | None) -> None:
    console = Terminal(highlight=False)
    rules = new_table(("rule", "version", "status", "severity"), ("alerts",))
    for rule in sorted(deployment.rulebook.deployed(), key=lambda r: (r.rule_id, r.version)):
        count = replayed.counters[f"alerts[{rule.rule_id}@{rule.version}]"]
        rules.add_row(rule.rule_id, str(rule.version), rule.status, rule.severity, f"{count:,}")
    console.print(rules)
    figures = Table(box=None, show_header=False, pad_edge=False)
    figures.add_column()
    figures.add_column(justify="right")
    for name, value in _figures(replayed):
        figures.add_row(Text(name), value)  # as text, because `poison[…]` would be markup
    console.print()
    console.print(figures)
    if EVENT_TIME_MS_MIN <= replayed.watermark_ms <= EVENT_TIME_MS_MAX and ending is None:
        end = f"the history ends at {utc_text(replayed.watermark_ms)}; windows that end later are open"
        console.print(end, markup=False, soft_wrap=True)
    for path in paths:
        console.print(f"wrote {path}", markup=False, soft_wrap=True)
    if ending is not None and replayed.until_ms is not None:
        cut = f"wrote {ending.folder}: the state of {utc_text(replayed.until_ms)}, to go on from with --from"
        console.print(cut, markup=False, soft_wrap=True)


def _figures(replayed: Replayed) -> list[tuple[str, str]]:
    """List the figures of records, events and runs; losses only if there were any."""
    counters, events = replayed.counters, replayed.counters["events"]
    losses = [name for name in sorted(counters) if is_loss(name) and name != "duplicates" and counters[name]]
    figures = [(name, counters[name]) for name in ("records", "events")]
    figures += [("duplicates", counters["duplicates"])] if counters["duplicates"] else []
    figures += [(name.replace("_", " "), counters[name]) for name in losses]
    figures += [("runs started", counters["runs_started"]), ("alerts", replayed.alerts.num_rows)]
    rate = f"{events / replayed.seconds:,.0f}"
    return [
        *((name, f"{value:,}") for name, value in figures),
        ("seconds", f"{replayed.seconds:.1f}"),
        ("events a second", rate),
    ]
