"""`cep keys …`, `cep rules sign`, `cep rules approve`: keys, the file of signers, and changes that two people sign.

Tested by: tests/cli/test_publish.py
"""

import argparse
import difflib
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cep.base.errors import UsageError
from cep.base.signing import SigningKey, new_key, read_key
from cep.base.terminal import Terminal, new_table
from cep.base.text import utc_ms, utc_text
from cep.cli.paths import printed
from cep.cli.settings import add_setting_arguments, settings_of
from cep.cli.verbs import Parser
from cep.lang.format.file import format_text
from cep.lang.parse.lexer import without_comments
from cep.model.rule import HeartbeatRecord, RetireRecord, UpsertRecord
from cep.model.setting_types import moment_ms
from cep.model.settings import Settings
from cep.rulebook.deploy import with_lists
from cep.rulebook.files import change_path, read_change, read_rules, version_before, write_change
from cep.rulebook.lock import problems_of_lock, read_lock
from cep.rulebook.meaning import content_hash
from cep.rulebook.signers import (
    given_trust,
    read_trust,
    roots_path,
    rotate_root,
    sign_signers,
    signature_path,
    withdraw,
)
from cep.rulebook.trust import (
    Signable,
    Trust,
    approve,
    digest_of,
    reason_against,
    reason_against_heartbeat,
    sign,
    sign_heartbeat,
)

HELP = """\
Make keys, and say who may sign changes of rules. A private key stays with its person. CEP_KEY_PASSPHRASE in the
environment encrypts a new key, and opens it later. `cep docs approve` shows the whole way.

examples:
  cep keys new ada.pem                                          also writes ada.pub
  cep keys show ada.pem
  cep keys trust rules/signed/signers.toml --sign-with root.pem  signs the file of signers
  cep keys check rules/signed/signers.toml --root-key ed25519:…
  cep keys withdraw rules/signed/signers.toml --key ed25519:… --sign-with root.pem
  cep keys rotate rules/signed/signers.toml --key ed25519:… --sign-with root.pem
"""
PASSPHRASE = "CEP_KEY_PASSPHRASE"  # noqa: S105 the name of the variable


def add_arguments(parser: Parser) -> None:
    """Declare the verbs below `cep keys` and their arguments."""
    verbs = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, line in (
        ("new", "make a key: FILE, and FILE with the ending .pub"),
        ("show", "print the public part of a key"),
    ):
        verbs.add_parser(name, help=line).declare("file FILE", "the private key")
    trust = verbs.add_parser("trust", help="sign a signers file with the root key")
    trust.declare("file FILE", "file of signers (signers.toml)")
    trust.declare("--sign-with FILE", "the root key", required=True)
    gone = verbs.add_parser("withdraw", help="withdraw a key, but for the versions that it has signed")
    gone.declare("file FILE", "file of signers; the signed changes are next to it")
    gone.declare("--key KEY", "public key of the person (ed25519:…)", required=True)
    gone.declare("--sign-with FILE", "the root key", required=True)
    rotate = verbs.add_parser("rotate", help="sign the change to another root key with the old one")
    rotate.declare("file FILE", "file of signers (signers.toml)")
    rotate.declare("--key KEY", "public part of the new root key (ed25519:…)", required=True)
    rotate.declare("--sign-with FILE", "the old root key", required=True)
    check = verbs.add_parser("check", help="check a signers file, and print the rights of each person")
    check.declare("file FILE", "file of signers (signers.toml)")
    check.declare("--root-key KEY", "public key that it is signed with", required=True)


def run(options: argparse.Namespace) -> int:
    """Make keys, or change the signers file (people whose keys sign rules), which the root key signs. Return 0."""
    console = Terminal(highlight=False, soft_wrap=True)
    match options.what:
        case "new":
            key = new_key(options.file, os.environ.get(PASSPHRASE))
            console.print(f"{options.file} is the private key: give it to nobody", markup=False)
            console.print(f"{options.file.with_suffix('.pub')} is the public key: {key.public}", markup=False)
        case "show":
            console.print(private_key(options.file).public, markup=False)
        case "trust":
            trust = sign_signers(options.file, private_key(options.sign_with))
            _print(trust, console)
            console.print(f"signed: {signature_path(options.file)}; the root key is {trust.root_key}", markup=False)
        case "withdraw":
            trust, only = withdraw(options.file, options.key, private_key(options.sign_with))  # only: these still count
            _print(trust, console)
            console.print(f"withdrawn, but for {len(only)} record(s) that it has signed", markup=False)
        case "rotate":
            rotate_root(options.file, options.key, private_key(options.sign_with))
            step = f"raise `version` in {options.file}, and sign it with the new key: `cep keys trust`"
            console.print(f"signed: {roots_path(options.file)}; {step}", markup=False)
        case _:
            _print(read_trust(options.file, options.root_key), console)
    return 0


def private_key(path: Path | None) -> SigningKey:
    """Read the key of the user of the verb. Raises: UsageError if no key is named, or it cannot be read."""
    if path is None:
        raise UsageError("name your private key with --sign-with FILE; `cep keys new FILE` makes one")
    return read_key(path, os.environ.get(PASSPHRASE))


def _print(trust: Trust, console: Console) -> None:
    table = new_table(("who", "may", "rules", "expires", "withdrawn"))
    for signer in trust.signers:
        only = "" if signer.only is None else f"counts for {len(signer.only)} record(s)"
        table.add_row(signer.name, ", ".join(signer.may), ", ".join(signer.rules), signer.expires or "", only)
    console.print(f"rules of {trust.rule_set}, version {trust.version} of the signers", markup=False)
    console.print(table)
    two = ", ".join(kind for kind, count in trust.people if count == 2)
    console.print(f"two people for {two or 'nothing'}; one for all else", markup=False)


HELP_SIGN = """\
Sign a version of a rule as its author. The change is written to rules/signed/, where another person approves it. A
change without `--effective-at` starts when the job reads it, or when its file says.

examples:
  cep rules sign card_testing --sign-with ada.pem --conf cep.toml
  cep rules sign card_testing --retire --sign-with ada.pem --conf cep.toml
  cep rules sign --heartbeat 2026-03-01T00:00:00Z --sign-with ada.pem --conf cep.toml     (print it, for the control
  topic)
"""
HELP_APPROVE = """\
Show a change that its author has signed, and approve it. `cep rules publish` then sends it.

examples:
  cep rules approve rules/signed/card_testing.2.json --sign-with bob.pem --conf cep.toml
  cep rules approve rules/signed/card_testing.2.json --conf cep.toml     (show it, and sign nothing)
"""
_STEP = "cep rules approve {path} --sign-with FILE"


def add_arguments_sign(parser: Parser) -> None:
    """Declare the arguments of `cep rules sign`."""
    parser.declare("rule RULE", "the rule's id", nargs="?")
    parser.declare("--heartbeat TIME", "sign that no event before this time will come; no rule")
    parser.declare("--rules FOLDER", "rule files (rules)", default=Path("rules"))
    parser.declare("--retire", "end the rule, with the version after the file's")
    parser.declare("--effective-at TIME", "event time from which it holds (2026-01-31T00:00:00Z)")
    add_setting_arguments(parser, "control", "publish")


def add_arguments_approve(parser: Parser) -> None:
    """Declare the arguments of `cep rules approve`."""
    parser.declare("change FILE", "a change that `cep rules sign` has written")
    add_setting_arguments(parser, "control", "publish")


def run_sign(options: argparse.Namespace) -> int:
    """Sign a rule as its author. Return 0, or 1 if the rule has mistakes. Raises: UsageError."""
    console = Terminal(highlight=False, soft_wrap=True)
    settings = settings_of(options)
    trust = _required_trust(settings)
    if (options.rule is None) == (options.heartbeat is None):
        raise UsageError("name a rule, or give --heartbeat TIME")
    if options.heartbeat is not None:
        return _sign_heartbeat(options.heartbeat, settings, trust)
    records, problems = read_rules(options.rules)
    record = next((record for record in records if record.id == options.rule), None)
    if record is None:
        raise UsageError("\n".join(problems) if problems else f"{options.rules} has no rule {options.rule}")
    change: UpsertRecord | RetireRecord = _started(record, options.effective_at)
    if options.retire:
        change = RetireRecord(id=record.id, version=record.version + 1, effective_at=change.effective_at)
    else:
        contradictions = problems_of_lock([record], read_lock(options.rules))
        for contradiction in contradictions:
            console.print(str(contradiction), markup=False, style="red")
        if contradictions:
            return 1
        change = with_lists(options.rules, _started(record, options.effective_at))  # names the entries of its lists
    key = private_key(settings.publish.sign_with)
    signed = sign(change, key, trust.rule_set, version_before(options.rules, change))
    path = change_path(options.rules, signed)
    store_signed([signed], path, trust, console)
    return 0


def _sign_heartbeat(time_text: str, settings: Settings, trust: Trust) -> int:
    """Print a signed heartbeat. Raises: UsageError if the job would refuse it."""
    try:
        heartbeat = HeartbeatRecord(event_time=utc_text(utc_ms(time_text)))
    except ValueError as error:
        raise UsageError(f"--heartbeat {time_text} is no time such as 2026-03-01T00:00:00Z") from error
    signed = sign_heartbeat(heartbeat, private_key(settings.publish.sign_with), trust.rule_set)
    refusal = reason_against_heartbeat(signed, trust)
    if refusal is not None:
        raise UsageError(refusal.full_reason)
    printed(signed.to_json().decode())
    return 0


def run_approve(options: argparse.Namespace) -> int:
    """Show a signed change, and approve it. Return 0. Raises: UsageError if a signature is not valid."""
    console = Terminal(highlight=False, soft_wrap=True)
    settings = settings_of(options)
    trust = _required_trust(settings)
    records = read_change(options.change)
    for record in records:
        if record.signed is None:
            raise UsageError(f"{options.change} has no author's signature; its author runs `cep rules sign`")
        # The author's signature must be valid, judged alone: without the approval, and as if one person were enough.
        refusal = reason_against(_of_author(record), trust.asking_one())
        if refusal is not None:
            raise UsageError(f"{options.change}: {refusal.reason}")
    _show_change(options.change, records, trust)
    _check_lists(options.change, records[0])
    if settings.publish.sign_with is None:
        console.print(f"approve it with `{_STEP.format(path=options.change)}`", markup=False)
        return 0
    key = private_key(settings.publish.sign_with)
    approved = [approve(record, key) for record in records]
    store_signed(approved, options.change, trust, console)
    return 0


def _check_lists(path: Path, record: Signable) -> None:
    """Check that the declared lists are the lists that the author has signed. Raises: UsageError."""
    if not isinstance(record, UpsertRecord) or not record.lists:
        return
    here = with_lists(path.parent.parent, record).lists or {}
    other = sorted(name for name, stored in record.lists.items() if here.get(name) != stored)
    if other:
        raise UsageError(
            f"{path}: the entries of {', '.join(other)} are not the entries that its author has signed; restore the "
            "list, or let the author run `cep rules sign` again"
        )


def store_signed(records: list[Signable], path: Path, trust: Trust, console: Console) -> bool:
    """Write a signed change and print the next step. Return True if no other person must sign.

    Raises: UsageError if a signature does not count.
    """
    refusal = reason_against(records[0], trust)
    is_open = refusal is not None and refusal.cause == "unsigned"  # another person must sign, too
    if refusal is not None and not is_open:
        raise UsageError(f"{path.name}: {refusal.reason}")
    write_change(path, records)
    next_step = f"another person runs `{_STEP.format(path=path)}`" if is_open else "`cep rules publish` sends it"
    console.print(f"signed: {path}; {next_step}", markup=False)
    return not is_open


def _required_trust(settings: Settings) -> Trust:
    trust = given_trust(settings.control.signers, settings.control.root_key)
    if trust is None:
        raise UsageError(
            "name --signers and --root-key, or the same in a settings file (--conf); see `cep docs approve`"
        )
    return trust


def _started(record: UpsertRecord, effective_at: str | None) -> UpsertRecord:
    if effective_at is None:
        return record
    return record.model_copy(update={"effective_at": utc_text(moment_ms("--effective-at", effective_at))})


def _of_author(record: Signable) -> Signable:
    assert record.signed is not None, "only signed changes come here"
    return record.model_copy(update={"signed": record.signed.model_copy(update={"approver": None})})


def _show_change(path: Path, records: list[Signable], trust: Trust) -> None:
    """Show a signed change to the person who may approve it. It has several records if it is a list in parts."""
    record = records[0]
    assert record.signed is not None, "only signed changes come here"
    author = trust.signer(record.signed.author.key)
    printed(f"{record.kind} {record.id} version {record.version}, signed by {author.name if author else '?'}")
    printed(
        f"after version {record.signed.previous_version or 'none'}; starts {record.effective_at or 'when it is read'}"
    )
    if isinstance(record, UpsertRecord):
        printed(f"meaning {content_hash(record)}")
    before = _before(path, record, trust) if isinstance(record, UpsertRecord) else []
    for title, lines in (("text", _lines), ("meaning, without comments and layout", _meaning)):
        printed(f"{title}:")
        for line in difflib.unified_diff(lines(before), lines(records), "before", "after", lineterm=""):
            printed(f"  {line}")


def _before(path: Path, record: UpsertRecord, trust: Trust) -> list[Signable]:
    """Return the version that a change follows; [] if its file has another hash or no signatures."""
    assert record.signed is not None, "only signed changes come here"
    if record.signed.previous_version == 0:
        return []
    file = path.with_name(f"{record.id}.{record.signed.previous_version}.json")
    if not file.exists():
        printed(f"there is no {file.name} to compare with: all of the text is shown")
        return []
    before = read_change(file)
    refusal = reason_against(before[0], trust)
    if digest_of(before[0]) != record.signed.previous:
        printed(f"{file.name} is not the version that this change follows: all of the text is shown")
    elif refusal is not None:
        printed(f"{file.name} does not count ({refusal.reason}): all of the text is shown")
    else:
        return before
    return []


def _lines(records: Sequence[Signable]) -> list[str]:
    lines: list[str] = []
    for record in records:
        values = record.model_dump(exclude_none=True, exclude={"signed", "source"})
        lines += [f"{name} = {value}" for name, value in values.items()]
        lines += record.source.split("\n") if isinstance(record, UpsertRecord) else []
    return lines


def _meaning(records: Sequence[Signable]) -> list[str]:
    lines: list[str] = []
    for record in records:
        if isinstance(record, UpsertRecord):
            _, mistakes = format_text(record.source, record.id)
            text, _ = format_text(without_comments(record.source), record.id)
            lines += [f"{mistake.code}: {mistake.message}" for mistake in mistakes] + (text or "").split("\n")
    return [line for line in lines if line]
