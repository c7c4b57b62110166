"""`cep audit`: what a job wrote about changes of its rules → what happened, or what is wrong with the record of it.

Tested by: tests/runners/embedded/test_signed.py, tests/base/test_audit.py
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cep.base.audit import Head, Line, is_letter, texts_of, verify
from cep.base.errors import UnreadableError, UsageError
from cep.base.reading import read_lines
from cep.base.terminal import Terminal
from cep.cli.configured import add_setting_arguments, settings_of
from cep.rulebook.kafka import Topic
from cep.rulebook.trust import FIRST
from cep.runners.control_topic import read_audit, read_status

HELP = """\
Show or verify the audit trail of a job: of one whose rules change while it runs, or that has signers. It is among the
dead letters of the job, as lines with the code `audit`. Each has the hash of the line before. Give their folder, or
their topic. Beside a topic the lines are also in `audit` of the checkpoint folder.

`verify` finds lines that were removed, changed, inserted or moved. It finds lines missing at the end if it has the
head of the chain: the job says it on its status topic, or --head names it.

examples:
  cep audit verify job/dead_letters --conf cep.toml
  cep audit verify audit.jsonl --head 12:5a0c…
  cep audit verify --dead-letter-topic cep-dead --conf cep.toml
  cep audit show job/dead_letters
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs below `cep audit` and their arguments."""
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, line in (("verify", "say what is wrong with the trail"), ("show", "print the trail")):
        verb = verbs.add_parser(name, help=line)
        verb.add_argument(
            "path", nargs="?", type=Path, metavar="PATH",
            help="JSON lines of the audit, or a folder of dead letters; without it the topic is read",
        )  # fmt: skip
        verb.add_argument(
            "--dead-letter-topic", dest="output.dead_letter_topic", metavar="TOPIC", help="the job's topic of letters"
        )
        if name == "verify":
            verb.add_argument("--head", metavar="COUNT:HASH", help="the last line that must be there")
        add_setting_arguments(verb, *(("control", "kafka") if name == "verify" else ("kafka",)))


def run(options: argparse.Namespace) -> int:
    """Run `cep audit`. Returns 0, or 1 if something is wrong with the trail. Raises: UsageError, SourceError."""
    console = Terminal(highlight=False, soft_wrap=True)
    if options.what == "show":
        _show(_trail(options), console)
        return 0
    head = _head(options)
    verdict = verify(_trail(options), head)
    for problem in verdict.problems:
        console.print(problem, markup=False, style="red")
    if head is None:
        console.print("without --head or a status topic, lines missing at the end are not noticed", markup=False)
    if verdict.erased:
        console.print(f"{len(verdict.erased)} line(s) without texts, which an erasure has taken away", markup=False)
    outcome = "is not what the job wrote" if verdict.problems else "is whole"
    last = f"{verdict.head.count}:{verdict.head.hash}"
    console.print(f"the trail {outcome}: {verdict.head.count} line(s), head {last}", markup=False)
    return 1 if verdict.problems else 0


def _head(options: argparse.Namespace) -> Head | None:
    if options.head is not None:
        count, _, digest = options.head.partition(":")
        if not (count.isascii() and count.isdigit() and len(count) <= 12 and digest):
            raise UsageError(f"--head {options.head}: give COUNT:HASH, as `cep audit verify` prints it")
        return Head(int(count), digest)
    settings = settings_of(options)
    servers, name = settings.kafka.bootstrap_servers, settings.control.status_topic
    if servers is None or name is None:
        return None
    status = read_status(Topic(servers, name, tuple(settings.kafka.client_settings().items())))
    said = (status or {}).get("audit")
    if said is None:
        raise UsageError(f"the job of {name} says no head; a job has one if its rules can change or it has --signers")
    return Head(said["count"], said["hash"])


def _trail(options: argparse.Namespace) -> Iterator[Line]:
    """Return the lines of the file, folder or topic that was given. Raises: UsageError, SourceError."""
    if options.path is not None:
        return _lines(options.path)
    settings = settings_of(options)
    servers, name = settings.kafka.bootstrap_servers, settings.output.dead_letter_topic
    if servers is None or name is None:
        raise UsageError("give a file, a folder, or --dead-letter-topic and --bootstrap-servers")
    return iter(read_audit(Topic(servers, name, tuple(settings.kafka.client_settings().items()))))


def _lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a file, or the audit's among those of a folder, its files in the order of their names.

    In a file on its own each line is one of the audit, or a dead letter, which names another code. Raises: UsageError.
    """
    for file_path in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
        try:
            yield from (line for line in _lines_of(file_path) if not is_letter(line.data))
        except (UnreadableError, ValueError) as error:
            raise UsageError(f"{file_path} cannot be read: {error}; name a file or a folder of dead letters") from error


def _lines_of(path: Path) -> Iterator[Line]:
    return (Line(f"{path.name}:{number}", data) for number, data in enumerate(read_lines(path), 1) if data.strip())


def _show(lines: Iterator[Line], console: Console) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("line", "what", "of", "version", "outcome", "by", "reason"):
        table.add_column(title)
    for line in lines:
        try:
            values = dict(json.loads(line.data))
            values |= texts_of(line.data)
            values["what"] = _what(values)
            cells = [str(values.get(name, "")) for name in ("number", "what", "of", "version")]
            people = _people(values)
        except (ValueError, TypeError, RecursionError):
            values, cells, people = {"reason": "cannot be read"}, [line.place, "", "", ""], ""
        outcome = str(values.get("cause") or values.get("outcome", ""))
        table.add_row(cells[0].lstrip("0"), *cells[1:], outcome, people, str(values.get("reason", "")))
    console.print(table)


def _people(values: Mapping[str, Any]) -> str:
    """Return who has signed. Without signers: who sent it by what the record says, and that nobody vouches for that."""
    if "signers_version" in values and values["signers_version"] is None and values.get("sent_by") is not None:
        return f"{values['sent_by']} (not signed)"
    return " and ".join(map(str, values.get("by", ())))


def _what(values: Mapping[str, Any]) -> str:
    """Return what a line is about: a kind of record, perhaps a first one of the job, or something else."""
    what, kind = str(values.get("what", "")), values.get("kind")
    if kind is None:
        return what
    return f"{what} {kind}" if what == FIRST else str(kind)
