"""The parts that verbs of the control topic share: its flags and records, signing, sending, and the job's answer.

A change is signed before it is sent if the job asks for signatures; otherwise a line says why it cannot go.
Tested by: tests/cli/test_publish.py
"""

import argparse
import getpass
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from cep.base.errors import SourceError, UsageError
from cep.base.kafka import check_access
from cep.base.limits import RULE_TEXT_CHARS_MAX
from cep.base.text import utc_text
from cep.cli.keys import private_key, store_signed
from cep.cli.settings import add_setting_arguments, settings_of
from cep.cli.verbs import Parser
from cep.columnar.tokens import hide_card_numbers
from cep.model.rule import ControlRecord, HeartbeatRecord, ListRecord, RetireRecord, UpsertRecord, topic_key
from cep.model.setting_types import moment_ms
from cep.model.settings import Settings
from cep.rulebook.difference import difference
from cep.rulebook.files import change_path, last_of, read_change, read_rules, signed_version
from cep.rulebook.kafka import Topic
from cep.rulebook.ledger import Ledger, described, hash_of
from cep.rulebook.publish import (
    Running,
    accepted_records,
    acknowledged,
    first_of,
    name_of_change,
    running_of_records,
    running_of_status,
)
from cep.rulebook.signers import given_trust
from cep.rulebook.trust import Signable, Trust, reason_against, sign, with_nonce
from cep.runners.control_topic import Place, read_control_topic, read_status, wait_for_status

_TOKEN_BYTES = 6  # of a record's own key
R = TypeVar("R", bound=Signable)


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one job, and the verb that uses them; `status` is None if the job does not publish its rules."""

    control: Topic
    status: Topic | None
    settings: Settings
    options: argparse.Namespace
    console: Console

    @property
    def trust(self) -> Trust | None:
        """Read who may sign changes; None if changes need no signature. Raises: UsageError."""
        return given_trust(self.settings.control.signers, self.settings.control.root_key)


def add_topic_arguments(parser: Parser) -> None:
    """Declare where the topics are, when a change starts, and how long its acknowledgement is waited for."""
    add_setting_arguments(parser, "control", "publish", "kafka")
    starts = parser.add_mutually_exclusive_group()
    parser.declare(
        "--effective-at TIME", "event time from which the change holds, as 2026-01-31T00:00:00Z", group=starts
    )
    parser.declare("--at-once", "right after the last event that the job has seen", group=starts)
    parser.declare("--wait SECONDS", "for the job's acknowledgement (60); 0: do not wait", default=60.0)


def add_person_arguments(parser: Parser) -> None:
    """Declare who changes something, and why."""
    parser.declare("--by NAME", "who wants it (default: your name on this machine)")
    parser.declare("--why --reason TEXT", "the reason, for the record")


def topics_of(options: argparse.Namespace, console: Console) -> Topics:
    """Read the topics that flags and settings name. Raises: UsageError if they name none."""
    settings = settings_of(options)
    servers, control, status = settings.kafka.bootstrap_servers, settings.control.topic, settings.control.status_topic
    if servers is None or control is None:
        raise UsageError("name --bootstrap-servers and --control-topic, or the same in a settings file (--conf)")
    check_access(servers, settings.kafka.client_settings())
    client = tuple(settings.kafka.client_settings().items())
    answers = None if status is None else Topic(servers, status, client)
    return Topics(Topic(servers, control, client), answers, settings, options, console)


def effective_at(topics: Topics) -> str | None:
    """Return when changes start: the time asked for, or soon after now. Raises: UsageError for other texts."""
    if topics.options.at_once:
        return None
    if topics.options.effective_at is None:
        return utc_text(int(time.time() * 1_000) + topics.settings.publish.lead)
    return utc_text(moment_ms("--effective-at", topics.options.effective_at))


def published(topics: Topics) -> list[ControlRecord]:
    """Read the control records; none if the topic is not there yet. Raises: SourceError."""
    if topics.control.create():
        return []
    return [place.record for place in read_places(topics)]


def read_places(topics: Topics) -> list[Place]:
    """Read the control records, without the ones that cannot have their signatures from signers. Raises: SourceError.

    Such a record changes nothing in the job. A publisher must not count its version, or remove a list's records because
    of it. A key that has expired or was withdrawn may have signed a change that the job has taken.
    """
    places, trust = read_control_topic(topics.control)[0], topics.trust
    return places if trust is None else [place for place in places if _may_be_taken(place.record, trust)]


def _may_be_taken(record: ControlRecord, trust: Trust) -> bool:
    refusal = None if isinstance(record, HeartbeatRecord) else reason_against(record, trust)
    return refusal is None or refusal.cause == "not_allowed"


def rules_of_folder(topics: Topics) -> list[UpsertRecord]:
    """Read the rules of the settings' folder, which a job may have begun with; empty without a folder."""
    folder = topics.settings.job.rules
    return [] if folder is None or not folder.is_dir() else read_rules(folder)[0]


def running(topics: Topics, records: Sequence[ControlRecord]) -> tuple[dict[str, Running], str]:
    """Return the running version of each rule, and the source: the job, and the records published since its status."""
    status = last_status(topics)
    rules = running_of_records(accepted_records(status, records)[0])
    if status is None:
        return rules, f"the control topic {topics.control.name}; no job has spoken"
    running_rules = running_of_status(status)
    for rule_id, rule in running_rules.items():
        if rule_id not in rules or rules[rule_id].version <= rule.version:
            rules[rule_id] = rule
    return rules, f"the job at epoch {status['epoch']}"


def read_ledger(topics: Topics, records: Sequence[ControlRecord]) -> Ledger:
    """Read the ledger: the changes that the job has taken, and the later ones of the topic. Raises: SourceError."""
    return accepted_records(last_status(topics), records)[1]


def who(options: argparse.Namespace) -> str:
    """Return who changes something: `--by`, or the name of the user. Raises: as `short_text`."""
    if options.by is not None:
        return short_text("--by", str(options.by))
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container may run without a name
        return "unknown"


def short_text(flag: str, text: str) -> str:
    """Return a text that fits into a record. Raises: UsageError for another one, which no job could read."""
    if not 0 < len(text) <= RULE_TEXT_CHARS_MAX:
        raise UsageError(f"{flag} has {len(text)} characters; write 1 to {RULE_TEXT_CHARS_MAX}")
    return text


def with_predecessor(topics: Topics, record: R, ledger: Ledger) -> R:
    """Return the record with its predecessor, its sender and the reason. Raises: UsageError for a wrong reason."""
    options = topics.options
    if options.why is not None:
        short_text("--why", options.why)
    if hide_card_numbers(options.why or "") != (options.why or ""):
        raise UsageError("--why has a card number, which would stand in the topic; write the token, as alerts show it")
    update = {"changes": ledger.head(record), "by": who(options), "reason": options.why}
    stamped: R = record.model_copy(update=update)  # type: ignore[assignment]  # mypy joins the union
    return stamped


def numbered(topics: Topics, first: R, ledger: Ledger) -> R:
    """Return the record as `with_predecessor` does, with the number after the version that it changes."""
    record = with_predecessor(topics, first, ledger)
    assert record.changes is not None, "it has just been said"
    counted: R = record.model_copy(update={"version": record.changes.version + 1})  # type: ignore[assignment]  # as above
    return counted


def running_rule(rule_id: str, topics: Topics, records: Sequence[ControlRecord]) -> Running:
    """Return the running version of one rule. Raises: UsageError for an unknown rule."""
    rules, _ = running(topics, records)
    if rule_id not in rules:
        raise UsageError(f"no job and no record on {topics.control.name} knows a rule {rule_id}")
    return rules[rule_id]


def last_status(topics: Topics) -> dict[str, Any] | None:
    """Read the last status of the job; None before the first one. Raises: SourceError."""
    if topics.status is None or topics.status.create():
        return None
    return read_status(topics.status)


def send(topics: Topics, records: Sequence[ControlRecord]) -> None:
    """Send records to the control topic. Raises: SinkError.

    Each record has its own key, so that compaction removes none: of two changes of one version the first counts, and a
    job that is built again must see it. A heartbeat has no successor to decide about. Unsigned records get a nonce.
    """
    topics.control.send((_key(record), _unguessable(record).to_json()) for record in records)
    noun = "record" if len(records) == 1 else "records"
    topics.console.print(f"sent {len(records)} {noun} to {topics.control.name}", markup=False)


def _unguessable(record: ControlRecord) -> ControlRecord:
    return record if isinstance(record, HeartbeatRecord) or record.signed is not None else with_nonce(record)


def _key(record: ControlRecord) -> bytes:
    key = topic_key(record)
    return (key if isinstance(record, HeartbeatRecord) else f"{key}#{secrets.token_hex(_TOKEN_BYTES)}").encode()


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of the job to changes: the exit code (1 if it refuses one), and its status, None without a wait.

    `is_sent` is False for a change that another person must approve first.
    """

    code: int = 0
    status: dict[str, Any] | None = None
    is_sent: bool = True

    def print_epoch(self, console: Console, sentence: str = "") -> int:
        """Print the job's epoch (number of its changes so far) after `sentence`, if it answered. Return the code."""
        if self.status is not None:
            console.print(f"{sentence}the job is at epoch {self.status['epoch']}", markup=False)
        return self.code


def await_answer(topics: Topics, records: Sequence[Signable]) -> Answer:
    """Wait until the job has answered these changes. Print the refused ones, and changes that other people have sent
    under the same versions: the first on the topic counts. Raises: SourceError if the job does not answer."""

    def is_done(status: dict[str, Any]) -> bool:
        return not acknowledged(status, records)[0]  # none is unanswered

    status = _await_status(topics, is_done)
    if status is None:
        return Answer()
    _, reasons = acknowledged(status, records)
    for name, reason in reasons.items():
        topics.console.print(f"the job refuses {name}: {reason}", markup=False, style="red")
    topic_records = published(topics)
    for record in records:
        _print_other(record, first_of(topic_records, record), topics.console, is_lost=name_of_change(record) in reasons)
    return Answer(int(bool(reasons)), status)


def _print_other(record: Signable, first: Signable | None, console: Console, *, is_lost: bool) -> None:
    """Print the record that another person has sent before under the same version."""
    if first is None or first.to_json() == record.to_json() or getattr(first, "part", 1) != getattr(record, "part", 1):
        return
    lines = difference(first, record)
    if is_lost or lines:
        theirs, ours = (described(one.version, hash_of(one), one.by, one.reason) for one in (first, record))
        console.print(f"{record.id}: first on the topic is {theirs}; yours is {ours}", markup=False, style="yellow")
    for line in lines:
        console.print(f"  {line}", markup=False)


def _await_status(topics: Topics, is_done: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
    """Wait for the expected status of the job; None without a status topic, or if the user does not want to wait."""
    wait_s = topics.options.wait
    if topics.status is None or wait_s <= 0:
        why = "no --status-topic is named" if topics.status is None else "--wait is 0"
        topics.console.print(f"not waiting for the job: {why}", markup=False)
        return None
    with topics.console.status("waiting for the job"):
        status = wait_for_status(topics.status, is_done, wait_s)
    if status is None:
        raise SourceError(
            f"the job has not acknowledged within {wait_s:.0f} s on {topics.status.name}; the records are sent "
            "and count once it reads them: see that it runs with this control topic and this status topic"
        )
    return status


Change = UpsertRecord | RetireRecord


def sign_if_needed(
    topics: Topics, records: Sequence[Signable], topic_records: Sequence[ControlRecord]
) -> list[Signable] | None:  # fmt: skip
    """Sign a change with the user's key, if the job needs signatures (`trust` has its signers). Return the records to
    send; None, after a line about it, if another person must approve first. Raises: UsageError."""
    trust = topics.trust
    if trust is None:
        return list(records)
    key = private_key(topics.settings.publish.sign_with)
    signers_file = topics.settings.control.signers
    assert signers_file is not None, "trust comes from it"
    is_waiting = trust.needed(records[0].kind) > 1 and topics.options.effective_at is None  # two people must sign
    signed: list[Signable] = []
    for signable in records:
        # Its approval takes a while: a start soon after now would be in the past.
        record = signable.model_copy(update={"effective_at": None}) if is_waiting else signable
        changes = [other for other in topic_records if not isinstance(other, HeartbeatRecord)]
        # The signature covers the number and hash of the version before; a signed list says nothing of it.
        previous = (0, "") if isinstance(record, ListRecord) else last_of(changes, record)
        signed.append(sign(record, key, trust.rule_set, previous))
    path = signers_file.parent / change_path(Path(), signed[0]).name  # for the person who approves
    return signed if store_signed(signed, path, trust, topics.console) else None


def send_change(topics: Topics, record: Signable, topic_records: Sequence[ControlRecord]) -> Answer:
    """Sign one change if needed, send it, and wait for the answer. Raises: as `sign_if_needed`, `send`."""
    signed = sign_if_needed(topics, [record], topic_records)
    if signed is None:
        return Answer(is_sent=False)
    send(topics, signed)
    return await_answer(topics, signed)


def signed_rules(topics: Topics, changes: Sequence[Change]) -> tuple[list[Change], int]:
    """Return the signed changes of rules, from files, and how many are unsigned; print a line for each unsigned one."""
    trust = topics.trust
    if trust is None:
        return list(changes), 0
    signed: list[Change] = []
    missing_count = 0
    for record in changes:
        stored = _signed_rule(topics.options.rules, record)
        refusal = reason_against(stored or record, trust)
        if refusal is not None:
            flag = "" if isinstance(record, UpsertRecord) else " --retire"
            text = f"{record.id} version {record.version}: {refusal.reason} (`cep rules sign {record.id}{flag}` begins)"
            topics.console.print(text, markup=False, style="red")
            missing_count += 1
        signed.append(stored or record)  # an unsigned one, too: its caller sends nothing then
    return signed, missing_count


def signed_lists(topics: Topics, changes: Sequence[ListRecord]) -> tuple[list[ListRecord], int]:
    """Return the signed changes of lists, from files, and how many lists have none; print a line for each such list."""
    trust = topics.trust
    if trust is None:
        return list(changes), 0
    signed: list[ListRecord] = []
    missing: set[str] = set()
    for record in changes:  # a list has a record for each of its parts
        path = change_path(topics.options.rules, record)
        stored = read_change(path) if path.exists() else []
        same = [other for other in stored if isinstance(other, ListRecord) and _same_entries(other, record)]
        if all(reason_against(other, trust) is not None for other in same):
            missing.add(record.id)
        signed += same
    for name in sorted(missing):
        step = f"run `cep lists replace {name} --from FILE --sign-with FILE`"
        topics.console.print(f"list {name}: nobody has signed its entries; {step}", markup=False, style="red")
    return signed, len(missing)


def checked_changes(topics: Topics) -> list[Signable] | None:
    """Read the changes of --change; None after a line for each that the job would refuse. Raises: UsageError."""
    trust = topics.trust
    records = [record for path in topics.options.change for record in read_change(path)]
    refusals = [(record, reason_against(record, trust)) for record in records] if trust is not None else []
    wrong = [(record, refusal) for record, refusal in refusals if refusal is not None]
    for record, refusal in wrong:
        topics.console.print(f"{record.id} version {record.version}: {refusal.reason}", markup=False, style="red")
    return None if wrong else records


def _signed_rule(directory: Path, record: Change) -> Change | None:
    if isinstance(record, UpsertRecord):
        return signed_version(directory, record)
    path = change_path(directory, record)
    signed = read_change(path)[0] if path.exists() else None
    return signed if isinstance(signed, RetireRecord) and signed.id == record.id else None


def _same_entries(one: ListRecord, other: ListRecord) -> bool:
    names = {"id", "of", "version", "change", "entries", "part", "parts"}
    return one.model_dump(include=names) == other.model_dump(include=names)
