"""`cep rules audit`: the audit of a job → the changes of its rules, or the faults of the audit itself.

Tested by: tests/cli/test_rules.py, tests/runners/embedded/test_signed.py, tests/base/test_signing.py
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from cep.base.audit import Head, Line, is_letter, texts_of, verify
from cep.base.errors import StateCorruptError, StateFormatError, UnreadableError, UsageError
from cep.base.files import read_document, read_lines
from cep.base.terminal import Terminal, new_table
from cep.cli.settings import add_setting_arguments, settings_of
from cep.cli.verbs import Parser
from cep.rulebook.audit import FIRST
from cep.rulebook.kafka import Topic
from cep.runners.control_topic import read_audit, read_status
from cep.runners.embedded.commit_entries import audit_of_payload
from cep.runners.embedded.opening import is_embedded, target_of
from cep.runners.rule_output import STATUS_FILE
from cep.state.checkpoints import checkpoint_numbers, payload_bytes
from cep.state.manifest import fact_signature
from cep.state.target import Target
from cep.step.rules import read_head

HELP = """\
Show or verify the audit trail of a job whose rules can change or that has signers. The trail is among the dead letters
of the job, as lines with the code `audit`. Each line has the hash of the line before. Give the folder or the topic of
the dead letters. If they go to a topic, the lines are also in `audit` of the checkpoint folder.

`verify` finds lines that were removed, changed, inserted or moved. It finds lines missing at the end if it has the head
of the chain: the job writes it to its status topic and its checkpoint folder, or --head names it. A head is signed if
the job has CEP_MANIFEST_KEY. With the same key, `verify` does not accept another head.

examples:
  cep rules audit verify job/dead_letters --conf cep.toml
  cep rules audit verify audit.jsonl --head 12:5a0c…
  cep rules audit verify --dead-letter-topic cep-dead --conf cep.toml
  cep rules audit show job/dead_letters
"""


def add_arguments(parser: Parser) -> None:
    """Declare the verbs below `cep rules audit` and their arguments."""
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, line in (("verify", "report the faults of the trail"), ("show", "print the trail")):
        verb = verbs.add_parser(name, help=line)
        verb.declare(
            "path PATH", "JSON lines of the audit, or a folder of dead letters; without it the topic is read", nargs="?"
        )
        verb.declare("--dead-letter-topic TOPIC", "the job's topic of letters", dest="output.dead_letter_topic")
        if name == "verify":
            verb.declare("--head COUNT:HASH", "the last line that must be there")
            verb.declare(
                "--checkpoint FOLDER",
                "checkpoint folder of the job, which has the head (default: the folder around PATH, if it is one)",
            )
        add_setting_arguments(verb, *(("control", "kafka") if name == "verify" else ("kafka",)))


def run(options: argparse.Namespace) -> int:
    """Show the audit's lines, or verify them with heads (number and hash of a last line). Return 1 if one is wrong."""
    console = Terminal(highlight=False, soft_wrap=True)
    if options.what == "show":
        _print_lines(_trail(options), console)
        return 0
    heads = _known_heads(options)
    verdict = verify(_trail(options), heads.last, heads.earlier_by_place)
    problems = (*heads.problems, *verdict.problems)
    has_head = heads.last is not None or bool(heads.earlier_by_place)
    has_key = fact_signature("") is not None  # CEP_MANIFEST_KEY is set, which signs heads
    if has_key and not has_head:
        problems += ("no signed head was found, so lines may be missing at the end; give --checkpoint or --head",)
    for problem in problems:
        console.print(problem, markup=False, style="red")
    if not has_head and not has_key:
        console.print("without a head, lines missing at the end are not noticed; give --head", markup=False)
    elif not has_key and options.head is None:
        console.print("the head is not checked by a signature: CEP_MANIFEST_KEY is not set", markup=False)
    if verdict.erased:
        console.print(f"{len(verdict.erased)} line(s) without texts, which an erasure has taken away", markup=False)
    outcome = "is not what the job wrote" if problems else "is whole"
    last = f"{verdict.head.count}:{verdict.head.hash}"
    console.print(f"the trail {outcome}: {verdict.head.count} line(s), head {last}", markup=False)
    return 1 if problems else 0


@dataclass(slots=True)
class _Heads:
    """The heads (number and hash of a last line) that places outside of an audit have noted, now or earlier, by place.
    The audit must have all of these lines, or it was cut or changed. `problems` are the faults of invalid heads."""

    last: Head | None = None
    earlier_by_place: dict[str, Head] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, place: str, read: Callable[[], Any], *, is_last: bool = True) -> None:
        """Add the head (number and hash of a line) that a place outside of the audit has, such as a checkpoint. The
        first head with `is_last` must be the audit's last line; all others must be among its lines."""
        try:
            values = read()
            if values is None:  # the place has noted no head yet
                return
            head = read_head(values, place)
        except (StateCorruptError, StateFormatError) as error:
            self.problems.append(str(error))
            return
        if self.last is None and is_last:
            self.last = head
        else:
            self.earlier_by_place[place] = head


def _known_heads(options: argparse.Namespace) -> _Heads:
    """Collect heads of the audit (number and hash of its last line) from --head, the status topic and the checkpoint
    folder: an audit without one of these lines was cut or changed. Raises: UsageError, SourceError."""
    heads = _Heads(_given_head(options.head))
    settings = settings_of(options)
    servers, name = settings.kafka.bootstrap_servers, settings.control.status_topic
    if heads.last is None and servers is not None and name is not None:
        status = read_status(Topic(servers, name, tuple(settings.kafka.client_settings().items())))
        if (status or {}).get("audit") is None:
            raise UsageError(
                f"the job of {name} says no head; a job has one if its rules can change or it has --signers"
            )
        heads.add(name, lambda: (status or {})["audit"])
    folder = options.checkpoint or (None if options.path is None else options.path.resolve().parent)
    if folder is not None and (folder / STATUS_FILE).exists():
        heads.add(STATUS_FILE, lambda: read_document(folder / STATUS_FILE).get("audit"))
    if folder is not None and is_embedded(folder):
        target = target_of(folder)
        for number in checkpoint_numbers(target)[-1:]:  # the newest, if there is one; later lines may follow its head
            read = partial(_checkpoint_head, target, number)
            heads.add(f"checkpoint {number}", read, is_last=False)
    return heads


def _checkpoint_head(target: Target, number: int) -> Any:
    return audit_of_payload(payload_bytes(target, number))


def _given_head(text: str | None) -> Head | None:
    if text is None:
        return None
    count, _, digest = text.partition(":")
    if not (count.isascii() and count.isdigit() and len(count) <= 12 and digest):
        raise UsageError(f"--head {text}: give COUNT:HASH, as `cep rules audit verify` prints it")
    return Head(int(count), digest)


def _trail(options: argparse.Namespace) -> Iterator[Line]:
    if options.path is not None:
        return _lines(options.path)
    settings = settings_of(options)
    servers, name = settings.kafka.bootstrap_servers, settings.output.dead_letter_topic
    if servers is None or name is None:
        raise UsageError("give a file, a folder, or --dead-letter-topic and --bootstrap-servers")
    return iter(read_audit(Topic(servers, name, tuple(settings.kafka.client_settings().items()))))


def _lines(path: Path) -> Iterator[Line]:
    """Yield the audit lines of a file, or of a folder in the order of the files' names; letters are left out."""
    for file_path in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
        try:
            lines = (
                Line(f"{file_path.name}:{n}", data) for n, data in enumerate(read_lines(file_path), 1) if data.strip()
            )
            yield from (line for line in lines if not is_letter(line.data))
        except (UnreadableError, ValueError) as error:
            raise UsageError(f"{file_path} cannot be read: {error}; name a file or a folder of dead letters") from error


def _print_lines(lines: Iterator[Line], console: Console) -> None:
    """Print the lines of an audit as a table, with a remark for each line that cannot be read."""
    table = new_table(("line", "what", "of", "version", "outcome", "by", "reason"))
    for line in lines:
        try:
            values = dict(json.loads(line.data))
            values |= texts_of(line.data)
            values["what"] = _subject(values)
            cells = [str(values.get(name, "")) for name in ("number", "what", "of", "version")]
            people = _people(values)
        except (ValueError, TypeError, RecursionError):
            values, cells, people = {"reason": "cannot be read"}, [line.place, "", "", ""], ""
        outcome = str(values.get("cause") or values.get("outcome", ""))  # a refusal has a cause
        table.add_row(cells[0].lstrip("0"), *cells[1:], outcome, people, str(values.get("reason", "")))
    console.print(table)


def _people(values: Mapping[str, Any]) -> str:
    """Return the signers; otherwise the sender that the record names, with a remark that nobody vouches for it."""
    if "signers_version" in values and values["signers_version"] is None and values.get("sent_by") is not None:
        return f"{values['sent_by']} (not signed)"
    return " and ".join(map(str, values.get("by", ())))


def _subject(values: Mapping[str, Any]) -> str:
    """Return the subject of a line: the kind of its record, or the name of another event of the job."""
    subject, kind = str(values.get("what", "")), values.get("kind")
    if kind is None:
        return subject
    return f"{subject} {kind}" if subject == FIRST else str(kind)
