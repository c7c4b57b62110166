"""`cep lists`: the entries of the lists of rules, in a folder and in a running job; and changes of a job's lists.

Tested by: tests/cli/test_publish.py
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console

from cep.base.errors import UsageError
from cep.base.terminal import Terminal, new_table
from cep.cli.settings import settings_of
from cep.cli.topics import (
    Topics,
    add_person_arguments,
    add_topic_arguments,
    await_answer,
    effective_at,
    last_status,
    published,
    read_ledger,
    read_places,
    rules_of_folder,
    send,
    sign_if_needed,
    topics_of,
    with_predecessor,
)
from cep.cli.verbs import Parser
from cep.lang.show import show_time
from cep.lists.entries import TEXT, is_kind, keys_of, read_entries
from cep.model.rule import ListRecord, name_problem
from cep.rulebook.files import declared_lists
from cep.rulebook.outcome import ListReport
from cep.rulebook.publish import next_version, refusal_of_values, replacing, running_lists, superseded_keys

HELP = """\
Show the lists that the patterns of a folder's rules declare with a type, and change lists of a running job. A change
holds from an event time on, like a change of a rule. Rules are not compiled again.

  cep lists show                                print the declared lists; with topics, the job's lists, too
  cep lists add blocked C-104 C-105             add entries
  cep lists remove blocked C-104                remove entries
  cep lists replace blocked --from blocked.csv  give all entries, up to millions

`cep rules publish` sends the entries of declared lists.

examples:
  cep lists show --rules rules --conf cep.toml
  cep lists add bins 411111 --of prefix --conf cep.toml --effective-at 2026-06-01T00:00:00Z
"""
_SHORT = 12
_PIPE_WIDTH = 240  # A pipe lacks a width. Lines stay whole, so that they can be searched.


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of the verb."""
    subparsers = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    show = subparsers.add_parser("show", help="entries of lists", description=HELP.split("\n\n", maxsplit=1)[0])
    show.declare("--rules FOLDER", "rule files (rules)", default=Path("rules"))
    add_topic_arguments(show)
    for name, line in (("add", "entries more"), ("remove", "entries less"), ("replace", "all entries")):
        changes = subparsers.add_parser(name, help=line, description=HELP.split("\n\n", maxsplit=1)[0])
        changes.declare("list LIST", "the list's name")
        changes.declare("entries ENTRY", "entries; or entries of a file, with --from", nargs="*")
        changes.declare("--from FILE", "an entry a line, or a .csv file", dest="file")
        changes.declare("--of KIND", "string, int, decimal(2), prefix or cidr (default: the list's type)")
        add_person_arguments(changes)
        add_topic_arguments(changes)


def run(options: argparse.Namespace) -> int:
    """Run `cep lists`. Returns 0, or 1 if something is wrong with a list. Raises: UsageError and other CepErrors."""
    console = Terminal(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    return _show(options, console) if options.what == "show" else _change(options, console)


def send_lists(topics: Topics, changes: Sequence[ListRecord]) -> None:
    """Send list records. Remove the sent records that a replacement in force makes unnecessary."""
    send(topics, changes)
    places = [(place.key, place.record) for place in read_places(topics)]
    forgotten = superseded_keys(places, int(time.time() * 1_000))
    if forgotten:
        topics.control.send((key, None) for key in forgotten)
        topics.console.print(f"forgot {len(forgotten)} record(s) of earlier versions", markup=False)


def _show(options: argparse.Namespace, console: Console) -> int:
    if not options.rules.is_dir():
        raise UsageError(f"--rules {options.rules} is not a folder")
    declarations, problems = declared_lists(options.rules)
    table = new_table(("list", "of", "entries", "twice", "hash"), no_wrap=True)
    for declared in declarations:
        count = f"{len(declared.content):,}"
        digest = declared.content.digest[:_SHORT]
        table.add_row(declared.name, declared.kind, count, f"{declared.repeated_count:,}", digest)
    console.print(f"{options.rules} declares {len(declarations)} list(s) with entries", markup=False)
    console.print(table)
    for problem in problems:
        console.print(problem, markup=False, style="red")
    settings = settings_of(options)
    if settings.kafka.bootstrap_servers is not None and settings.control.topic is not None:
        topics = topics_of(options, console)
        status = last_status(topics)
        _print_running(running_lists(status, published(topics)), status, console)
    return 1 if problems else 0


def _print_running(running: Mapping[Any, ListReport], status: Mapping[str, Any] | None, console: Console) -> None:
    table = new_table(("list", "of", "version", "entries", "hash", "from", "waiting"), no_wrap=True)
    for _, report in sorted(running.items()):
        starts = show_time(report.from_ms) if report.from_ms > 0 else "ever"  # 0 or less: it had no start
        waiting = ", ".join(str(version) for version in report.waiting)  # versions that start later
        table.add_row(
            report.name, report.of, str(report.version), f"{report.entries:,}", report.digest[:_SHORT], starts, waiting
        )
    console.print("\nthe job holds" if status is not None else "\nthe control topic holds", markup=False)
    console.print(table)
    for name, kind in (status or {}).get("lists_missing", ()):
        console.print(f"rules ask the list {name} of {kind}, which nobody has given", markup=False, style="yellow")


def _change(options: argparse.Namespace, console: Console) -> int:
    """Send a change of a list, and wait for the job's answer. Return 1 if an entry is wrong or the job refuses it."""
    if (problem := name_problem("list", options.list)) is not None:
        raise UsageError(problem)
    topics = topics_of(options, console)
    topic_records = published(topics)
    status = last_status(topics)
    running = running_lists(status, topic_records)
    kind = _kind(options, running)
    entries = _entries(options)
    _, wrong = keys_of(entries, kind)
    for entry in wrong:
        console.print(f"{entry.code} {entry.message}", markup=False, style="red")
    if wrong:
        console.print("nothing is sent", markup=False)
        return 1
    version = next_version(running.get((options.list, kind)))
    starts_at, ledger = effective_at(topics), read_ledger(topics, topic_records)  # the changes that the job has taken
    records = replacing(options.list, kind, version, entries, starts_at, options.what)
    records = [with_predecessor(topics, record, ledger) for record in records]  # each names the change before it
    rules = [*topic_records, *rules_of_folder(topics)]
    for reason in filter(None, (refusal_of_values(record, rules) for record in records)):
        console.print(f"{reason}\nnothing is sent", markup=False)
        return 1
    signed = sign_if_needed(topics, records, topic_records)
    if signed is None:  # another person must approve first
        return 0
    changes = [record for record in signed if isinstance(record, ListRecord)]
    send_lists(topics, changes)
    return await_answer(topics, changes).print_epoch(console)


def _kind(options: argparse.Namespace, running: Mapping[tuple[str, str], ListReport]) -> str:
    kinds = sorted(kind for name, kind in running if name == options.list)
    if options.of is not None and not is_kind(options.of):
        raise UsageError(f"--of {options.of}: a list is of string, int, decimal(2), prefix or cidr")
    if options.of is None and len(kinds) != 1:
        problem = (
            f"there are lists {options.list} of {' and '.join(kinds)}" if kinds else f"no list {options.list} is known"
        )
        raise UsageError(f"{problem}; say with --of which is meant")
    return options.of or kinds[0]


def _entries(options: argparse.Namespace) -> pa.Array:
    if (options.file is not None) == bool(options.entries):
        raise UsageError("give the entries, or a file of them with --from")
    return pa.array(options.entries, TEXT) if options.file is None else read_entries(options.file, options.list)
