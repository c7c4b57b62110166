"""`cep job erase`: keys → a stopped job's state or a savepoint without them, and the other places that may have them.

Tested by: tests/cli/test_erase.py
"""

import argparse
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cep.base.audit import is_audit, texts_of, without_texts
from cep.base.errors import SinkError, UnreadableError, UsageError
from cep.base.files import read_lines
from cep.base.limits import RECORD_BYTES_MAX
from cep.base.secrets import use_secrets_file
from cep.cli.keys import private_key
from cep.cli.paths import printed
from cep.cli.settings import add_secrets_argument, add_setting_arguments, settings_of
from cep.cli.verbs import Parser
from cep.columnar.decode import KeyDomain, key_of
from cep.columnar.tokens import tokens_of_key
from cep.rulebook.erasure import check_request, read_request, write_request
from cep.rulebook.trust import names_key, snoozed_key
from cep.runners.embedded import savepoint as embedded
from cep.runners.embedded.opening import default_target, is_embedded, target_of
from cep.runners.handover.erase import Erased, erase_savepoint, has_any_in_file, has_other_tokens, ways_to_write
from cep.runners.handover.payload import payload_in
from cep.runners.live_checkpoint import read_job
from cep.runners.rule_output import AUDIT_FOLDER
from cep.sinks.kafka import KafkaDeadLettersAtOnce
from cep.state.savepoints import open_savepoint
from cep.state.target import Target
from cep.step.job import Job

HELP = """\
Remove keys from the state of a stopped job of `cep run`, or from a portable savepoint: runs, waiting events, histories,
times of suppression, snoozes, dead letters, and the texts of the audit about them. The folder then has one new
checkpoint, and no older one. At the end every file and entry is searched for the keys. Other keys are not changed.

examples:
  cep job erase --key card_id=c17 --checkpoint /var/lib/cep/job
  cep job erase --key card=4111111111111111 --secrets cep-keys --checkpoint /var/lib/cep/job
  cep job erase --key card_id=c17 --checkpoint /var/lib/cep/job --dead-letter-topic cep-dead --conf cep.toml
  cep job erase --key card_id=c17,merchant_id=m3 --savepoint /backup/cep
  cep job erase --keys-file keys.txt --checkpoint /var/lib/cep/job      (a line a key)

A job on Spark: `cep job savepoint --portable`, then `cep job erase --savepoint`, then `cep job restore --engine spark`
into a new folder. Remove the old one.

A job that takes signed changes erases keys only if two people have signed the request:
  cep job erase --key card_id=c17 --checkpoint job --request erase.json --sign-with ada.pem
  cep job erase --key card_id=c17 --checkpoint job --request erase.json --sign-with bob.pem
  cep job erase --key card_id=c17 --checkpoint job --request erase.json
"""


_ESCAPED = re.compile(r"\\u([0-9A-Fa-f]{4})")


def add_arguments(parser: Parser) -> None:
    """Declare the arguments of `cep job erase`."""
    parser.declare(
        "--key FIELD=VALUE,…",
        "a key, with the value of each of its fields; may be given several times",
        action="append",
        default=[],
    )
    parser.declare("--keys-file FILE", "a file of keys, a line each, as with --key")
    group = parser.add_mutually_exclusive_group(required=True)
    parser.declare("--checkpoint FOLDER", "checkpoint folder of a stopped `cep run`", group=group)
    parser.declare("--savepoint FOLDER", "folder of a portable savepoint", group=group)
    parser.declare(
        "--audit FOLDER",
        "with --savepoint: a folder of the job's dead letters, whose audit loses its texts about the keys",
    )
    parser.declare(
        "--dead-letter-topic TOPIC",
        "with --checkpoint: the topic of the job's dead letters, if it has one; its audit goes on there",
        dest="output.dead_letter_topic",
    )
    parser.declare(
        "--request FILE",
        "of a job that takes signed changes: the request that an author and another person have signed",
    )
    parser.declare("--sign-with FILE", "sign the request with this private key, and erase nothing")
    add_setting_arguments(parser, "kafka")
    add_secrets_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Erase keys. Return 0, or 1 if a key is left, a place was not searched, or the audit's topic lacks a line."""
    use_secrets_file(options.secrets)
    key_texts = [*options.key, *_lines(options.keys_file)]
    if not key_texts:
        raise UsageError("give --key FIELD=VALUE, or --keys-file")
    folder: Path = options.checkpoint or options.savepoint
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}")
    if options.audit is not None and (options.checkpoint or not options.audit.is_dir()):
        raise UsageError(f"--audit {options.audit} needs --savepoint, and a folder of dead letters")
    for place in (folder, options.audit) if options.audit is not None else (folder,):
        for path in place.rglob("*"):
            if path.is_symlink():  # the renames below would replace the link, and its target would keep the key
                raise UsageError(f"{path} is a link; put the real file or folder in its place")
    if options.checkpoint and not is_embedded(folder):
        raise UsageError(
            f"{folder} is no checkpoint folder of `cep run`. For a job on Spark make a portable savepoint, erase the "
            "key there, and restore it into a new folder: `cep job erase --help` has the commands"
        )
    erasure = _ErasureRequest(tuple(key_texts), options.request, options.sign_with)
    if erasure.sign_with is not None:  # to erase, the command is run again when two people have signed
        return _sign_request(folder, erasure, is_job=options.checkpoint is not None)
    topic = _audit_topic(options)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-erase-", dir=folder.resolve().parent) as scratch:
        erased, searched_texts, unwritten = (
            _erase_job(folder, Path(scratch), erasure, has_topic=topic is not None)
            if options.checkpoint
            else _erase_saved(folder, Path(scratch), erasure, options.audit)
        )
    files_left, unsearched = _files_with(folder, searched_texts)
    unsearched += [f"{count:,} entries of {kind}" for kind, count in sorted(erased.unsearched.items())]
    _print(folder, erased, files_left, unsearched)
    # Lines about this erasure that are in no folder: to be sent to the topic, otherwise printed for the user.
    unsent = _unsent(topic, unwritten) if topic is not None else ()
    for line in unwritten if topic is None else unsent:
        printed("the job's audit goes on with this line; put it behind the others, into their folder or their topic:")
        printed(line.decode())
    if options.checkpoint is not None:
        printed("a job with --changelog: name a new topic at its next start, and delete the old one with its state")
    printed("not reached: alerts and letters in topics and tables; savepoints elsewhere; backups; sources of events;")
    printed("records of the control topic that name a key, as those of snoozes do")
    return 1 if erased.remaining or files_left or unsearched or unsent else 0


@dataclass(frozen=True, slots=True)
class _ErasureRequest:
    """A user's request to erase keys: the keys as given, the file of signatures, and the private key to sign with."""

    keys: tuple[str, ...]
    request: Path | None
    sign_with: Path | None

    def digests(self, job: Job, key_texts: Collection[str]) -> list[str]:
        """Return the hashes of the keys that two people have signed, for the audit; none for a job without signers."""
        if job.trust is None:
            return []
        if self.request is None:
            raise UsageError(
                "the job takes signed changes, so two people must sign the erasure: each runs this command with "
                "--request FILE and --sign-with KEY; then run it with --request FILE"
            )
        request = read_request(self.request)
        check_request(request, key_texts, job.trust)
        return sorted(request.digests)


def _sign_request(folder: Path, erasure: _ErasureRequest, *, is_job: bool) -> int:
    """Sign a request as its author, or an existing one as its approver, and print the next step. Return 0."""
    if is_job:  # `folder` is the checkpoint folder of a job; otherwise it is a savepoint
        job = read_job(folder)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            saved = open_savepoint(Target(str(folder.resolve())), Path(scratch) / "payload")
            job = Job.from_json(payload_in(saved).job)
    if job is None or job.trust is None or erasure.request is None:  # no trust: no signers
        raise UsageError("--sign-with needs --request FILE, and a job that takes signed changes")
    key_texts = {text for domain_texts in _keys(job, erasure.keys).values() for text in domain_texts}
    both_signed = write_request(erasure.request, key_texts, job.trust, private_key(erasure.sign_with))
    step = "run it without --sign-with to erase" if both_signed else "another person runs the same command"
    printed(f"signed: {erasure.request}; {step}")
    return 0


def _audit_topic(options: argparse.Namespace) -> KafkaDeadLettersAtOnce | None:
    settings = settings_of(options)
    servers, name = settings.kafka.bootstrap_servers, settings.output.dead_letter_topic
    if name is None:
        return None
    if servers is None or not options.checkpoint:
        raise UsageError("--dead-letter-topic needs --checkpoint and --bootstrap-servers")
    return KafkaDeadLettersAtOnce(servers, name, settings.kafka.client_settings())


def _unsent(topic: KafkaDeadLettersAtOnce, lines: Sequence[bytes]) -> Sequence[bytes]:
    """Write the lines of the audit into the job's topic; return them, and say so, if they did not arrive."""
    try:
        topic.write(lines, 0)
    except SinkError as error:
        printed(f"NOT WRITTEN: the audit: {error}")
        return lines
    finally:
        topic.close()
    return ()


def _lines(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        return [line.strip() for data in read_lines(path, RECORD_BYTES_MAX) if (line := data.decode()).strip()]
    except UnreadableError as error:
        raise UsageError(f"the file of keys {path} cannot be read: {error}") from None
    except UnicodeDecodeError:  # its own message quotes the text
        raise UsageError(f"the file of keys {path} cannot be read: it is not UTF-8") from None


def _keys(job: Job, key_texts: Sequence[str]) -> dict[KeyDomain, set[str]]:
    """Return the keys to erase, as events have them, by domain (names of the key's fields). A protected field's value
    becomes tokens (keyed hashes), one for each secret. Raises: UsageError that does not quote a value."""
    keys: dict[KeyDomain, set[str]] = {}
    for number, text in enumerate(key_texts, 1):  # messages name a key by its number, because its text is secret
        pairs = [part.partition("=")[::2] for part in text.split(",")]
        parts = dict(pairs)
        domain = next((domain for domain in job.domains if sorted(domain) == sorted(name for name, _ in pairs)), None)
        if domain is None or not all(parts.values()):
            domains = " or ".join(",".join(f"{name}=…" for name in domain) for domain in job.domains)
            raise UsageError(f"key {number} is none of this job: write {domains}")
        for variant in tokens_of_key(job.schema, domain, [parts[name] for name in domain]):
            keys.setdefault(domain, set()).add(key_of(variant))
    return keys


def _erase_job(
    folder: Path, scratch: Path, erasure: _ErasureRequest, *, has_topic: bool
) -> tuple[Erased, list[bytes], list[bytes]]:
    """Erase keys from a stopped job: copy its savepoint without the keys, and load the copy into a new job folder.
    Return the erased items, the texts to search for, and audit lines that the topic or the user is still to get."""
    folder = folder.resolve()  # not a link to it, which would be renamed in its place
    job = read_job(folder)
    if job is None:
        raise UsageError(f"{folder} has no job")
    keys = _keys(job, erasure.keys)
    key_texts = {text for domain_texts in keys.values() for text in domain_texts}
    digests = erasure.digests(job, key_texts)
    source = Target(str(scratch / "before"))
    embedded.save([folder], source)
    copied = _copy_dead_letters(folder, scratch / "letters", key_texts)
    # `emptied`: numbers of audit lines that lost their texts; `digests`: signed hashes of the keys, for the audit.
    erased = erase_savepoint(source, Target(str(scratch / "after")), scratch / "work", keys, copied.emptied, digests)
    embedded.load(Target(str(scratch / "after")), scratch / "job")
    if (scratch / "letters").is_dir():  # without the folder, the job has set nothing aside
        shutil.copytree(scratch / "letters", scratch / "job", dirs_exist_ok=True)
    erased.removed["lines of dead letters"] += copied.left_out
    erased.removed["texts of the audit"] += len(copied.emptied)
    unwritten = erased.audit  # the lines about this erasure, for the topic or the user
    if (folder / AUDIT_FOLDER).is_dir():  # the job sends its audit to a topic, and has a copy here: both get the lines
        _append_audit(scratch / "job" / AUDIT_FOLDER, erased.audit)
    elif not has_topic and (copied.has_audit or _begins_audit(erased.audit)):  # the audit is among the dead letters
        _append_audit(scratch / "job" / "dead_letters", erased.audit)
        unwritten = []
    target = target_of(folder)
    if target.url != default_target(folder).url:  # checkpoints elsewhere have the key, and a start would use them
        for part in ("", "files"):  # the checkpoints, and the folder of the files that they name
            for name in list(target.sizes(part)):
                target.remove(f"{part}/{name}" if part else name)
    folder.rename(scratch / "gone")  # the old job: the caller deletes `scratch`
    (scratch / "job").rename(folder)
    return erased, ways_to_write(key_texts), unwritten


def _erase_saved(
    folder: Path, scratch: Path, erasure: _ErasureRequest, audit: Path | None
) -> tuple[Erased, list[bytes], list[bytes]]:
    """Replace a savepoint by a copy without the keys, and the dead letters and audit lines in `audit` likewise. Return
    the erased items, the texts to search for, and the new lines of the audit, for which a savepoint has no place."""
    folder = folder.resolve()  # as in `_erase_job`
    source = Target(str(folder))
    payload = payload_in(open_savepoint(source, scratch / "payload"))
    job = Job.from_json(payload.job)
    keys = _keys(job, erasure.keys)
    key_texts = {text for domain_texts in keys.values() for text in domain_texts}
    digests = erasure.digests(job, key_texts)
    copied = _Copied() if audit is None else _copy_dead_letters(audit, scratch / "letters", key_texts)
    erased = erase_savepoint(source, Target(str(scratch / "after")), scratch / "work", keys, copied.emptied, digests)
    folder.rename(scratch / "gone")  # the old savepoint: the caller deletes `scratch`
    (scratch / "after").rename(folder)
    if audit is not None:
        erased.removed["lines of dead letters"] += copied.left_out
        erased.removed["texts of the audit"] += len(copied.emptied)
        for path in sorted(path for path in (scratch / "letters").rglob("*") if path.is_file()):
            shutil.move(path, audit / path.relative_to(scratch / "letters"))
    return erased, ways_to_write(key_texts), erased.audit


@dataclass(slots=True)
class _Copied:
    """The count of dead letters left out, the numbers of audit lines that lost texts, and if there is an audit."""

    left_out: int = 0
    emptied: set[int] = field(default_factory=set)
    has_audit: bool = False


def _copy_dead_letters(folder: Path, into: Path, key_texts: Collection[str]) -> _Copied:
    """Copy a folder of dead letters without the letters about the keys. Lines of the audit are copied, too, but a line
    about a snooze (suppressed alerts) of such a key loses its texts."""
    copied = _Copied()
    for path in sorted(path for path in folder.rglob("*.jsonl") if path.is_file()):
        copy = into / path.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as lines, copy.open("wb") as others:
            for line in lines:
                if is_audit(line):
                    copied.has_audit = True
                    if snoozed_key(str(texts_of(line.rstrip(b"\n")).get("of", ""))) in key_texts:
                        number, emptied_line = without_texts(line)
                        copied.emptied.add(number)
                        others.write(emptied_line + b"\n")
                        continue
                elif _is_about(line, key_texts):
                    copied.left_out += 1
                    continue
                others.write(line)
        shutil.copymode(path, copy)
    return copied


def _is_about(line: bytes, key_texts: Collection[str]) -> bool:
    """Return True if a value of a dead letter or of its record is a key; in a text that is not JSON, if a word is."""
    try:
        letter = json.loads(line)
        record = letter.pop("record", None)
    except (ValueError, AttributeError, TypeError, RecursionError):  # `pop` of a text or a list
        return names_key(line.decode("utf-8", "backslashreplace"), key_texts)
    if any(value in key_texts for value in _values(letter)):
        return True
    if not isinstance(record, str):
        return any(value in key_texts for value in _values(record))
    try:
        return any(value in key_texts for value in _values(json.loads(record)))
    except (ValueError, RecursionError):
        unescaped = _ESCAPED.sub(lambda code: chr(int(code[1], 16)), record)  # \u0041 is A
        return names_key(record, key_texts) or names_key(unescaped, key_texts)


def _values(value: Any) -> Iterator[str]:
    """Yield the texts in a JSON document that can be a key: each value, and each list, as a key of several fields."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += [*each.values()]
        elif isinstance(each, list):
            yield json.dumps(each, ensure_ascii=False, separators=(",", ":"))
            waiting += each
        elif each is not None:
            yield each if isinstance(each, str) else json.dumps(each)
            if isinstance(each, float) and each.is_integer():  # a field of whole numbers reads 1.0 as 1
                yield str(int(each))


def _append_audit(folder: Path, lines: Sequence[bytes]) -> None:
    if lines:
        folder.mkdir(exist_ok=True)
        last = max(folder.glob("*.jsonl"), default=folder / "batch-0000000000000000000.jsonl")
        with last.open("ab") as file:
            file.write(b"".join(line + b"\n" for line in lines))


def _begins_audit(lines: Sequence[bytes]) -> bool:
    return bool(lines) and int(json.loads(lines[0])["number"]) == 1


def _files_with(folder: Path, searched_texts: Sequence[bytes]) -> tuple[list[Path], list[str]]:
    """Search files for the texts of keys. Return the files that have one, and the files that cannot be searched:
    unreadable ones, and files with tokens (hashes of values) of another secret, which may stand for the same keys."""
    files_left: list[Path] = []
    unsearched: list[str] = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        try:
            data = path.read_bytes()
        except OSError as error:
            unsearched.append(f"{path}: {error.strerror}")
            continue
        if has_any_in_file(data, searched_texts):
            files_left.append(path)
        if path.suffix == ".jsonl" and has_other_tokens(data, searched_texts):
            unsearched.append(str(path))
    return files_left, unsearched


def _print(folder: Path, erased: Erased, files_left: Sequence[Path], unsearched: Sequence[str]) -> None:
    """Print the erased and the remaining items, without a key's text. A token is a protected value's keyed hash."""
    for kind, count in sorted((+Counter(erased.removed)).items()):  # `+` leaves out counts of 0
        printed(f"removed: {count:,} {kind}")
    if not +erased.removed:
        printed("removed: nothing; the state has no such key")
    for kind, count in sorted(erased.remaining.items()):
        printed(f"LEFT: {count:,} entries of {kind} have its text; erase the keys that have it among their events too")
    for path in files_left:
        printed(f"LEFT: {path}")
    for where in unsearched:
        printed(f"NOT SEARCHED: {where}")
    if unsearched:  # unreadable files, or tokens made with another secret than the given ones
        printed("a token there is of a key that you did not give, so it may stand for the same value; give the number,")
        printed("and all keys that the job has ever had, with --secrets")
    if not erased.remaining and not files_left and not unsearched:
        printed(f"searched: no file and no entry of {folder} has a key's text")
