"""Changes that a verb is about to send → the same, signed, where a job asks for signatures; or why they cannot go.

Tested by: tests/cli/test_publish.py
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cep.cli.keys import private_key
from cep.cli.sign import store_signed
from cep.cli.topics import Answer, Topics, await_answer, send
from cep.model.rule import ControlRecord, HeartbeatRecord, ListRecord, RetireRecord, UpsertRecord
from cep.rulebook.files import change_path, last_of, read_change, signed_version
from cep.rulebook.trust import Signable, Trust, reason_against, sign

Change = UpsertRecord | RetireRecord


def stand_for(
    options: argparse.Namespace, topics: Topics, records: Sequence[Signable], there: Sequence[ControlRecord],
    console: Console,
) -> list[Signable] | None:  # fmt: skip
    """Sign a change with the user's key, if the job needs signatures.

    `there` are the records of the control topic. Returns: the records to send; None, after a line about it, if another
    person must approve first. Raises: UsageError.
    """
    trust = topics.trust
    if trust is None:
        return list(records)
    key = private_key(topics.settings.publish.sign_with)
    signers = topics.settings.control.signers
    assert signers is not None, "trust comes from it"
    is_waiting = trust.needed(records[0].kind) > 1 and options.effective_at is None
    signed: list[Signable] = []
    for signable in records:
        # Its approval takes a while: a start soon after now would be in the past.
        record = signable.model_copy(update={"effective_at": None}) if is_waiting else signable
        changes = [other for other in there if not isinstance(other, HeartbeatRecord)]
        past = (0, "") if isinstance(record, ListRecord) else last_of(changes, record)
        signed.append(sign(record, key, trust.rule_set, past))
    path = signers.parent / change_path(Path(), signed[0]).name
    return signed if store_signed(signed, path, trust, console) else None


def send_change(
    options: argparse.Namespace, topics: Topics, record: Signable, there: Sequence[ControlRecord], console: Console
) -> Answer:
    """Sign one change if the job asks for that, send it, and wait for the answer. Raises: as `stand_for`, `send`."""
    signed = stand_for(options, topics, [record], there, console)
    if signed is None:
        return Answer(is_sent=False)
    send(topics, signed, console)
    return await_answer(options, topics, signed, console)


def signed_rules(
    topics: Topics, directory: Path, changes: Sequence[Change], console: Console
) -> tuple[list[Change], int]:
    """Return the changes of rules as they were signed, and how many lack signatures, after a line for each."""
    trust = topics.trust
    if trust is None:
        return list(changes), 0
    signed: list[Change] = []
    missing_count = 0
    for record in changes:
        stored = _signed_rule(directory, record)
        refusal = reason_against(stored or record, trust)
        if refusal is not None:
            flag = "" if isinstance(record, UpsertRecord) else " --retire"
            text = f"{record.id} version {record.version}: {refusal.reason} (`cep rules sign {record.id}{flag}` begins)"
            console.print(text, markup=False, style="red")
            missing_count += 1
        signed.append(stored or record)
    return signed, missing_count


def signed_lists(
    topics: Topics, directory: Path, changes: Sequence[ListRecord], console: Console
) -> tuple[list[ListRecord], int]:
    """Return the changes of lists as they were signed, and how many lack signatures, after a line for each."""
    trust = topics.trust
    if trust is None:
        return list(changes), 0
    signed: list[ListRecord] = []
    for record in changes:
        path = change_path(directory, record)
        there = read_change(path) if path.exists() else []
        signed += [other for other in there if isinstance(other, ListRecord) and _same_entries(other, record)]
    missing = {record.id for record in changes} - {r.id for r in signed if reason_against(r, trust) is None}
    for name in sorted(missing):
        console.print(
            f"list {name}: nobody has signed its entries; run `cep lists replace {name} --from FILE --sign-with FILE`",
            markup=False,
            style="red",
        )
    return signed, len(missing)


def checked_changes(paths: Sequence[Path], trust: Trust | None, console: Console) -> list[Signable] | None:
    """Read signed changes from files; None after a line for each that the job would refuse. Raises: UsageError."""
    records = [record for path in paths for record in read_change(path)]
    refusals = [(record, reason_against(record, trust)) for record in records] if trust is not None else []
    wrong = [(record, refusal) for record, refusal in refusals if refusal is not None]
    for record, refusal in wrong:
        console.print(f"{record.id} version {record.version}: {refusal.reason}", markup=False, style="red")
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
