"""The statement that people sign for a control record, and the reasons for which a job refuses a record.

A job checks a record in this order:

    1  is it signed, for this set of rules?
    2  may its author write changes of this thing?
    3  does the author's signature agree with the record?
    4  has another person approved, where two are asked for?
    5  has no later change of the same thing been taken?            (ledger.py)
    6  was it signed as a change of what holds?                     (ledger.py)
    7  if it is a rollback: has the job taken that version, or is the version itself signed?

The verdict follows from the records and the job's trust, never from a clock, so a running job, a replay, and a job that
is built again from the same records agree.

A statement names the rule set, the rule, its version, the hash of its meaning (meaning.py), the version that it
changes, and the hash of the whole record. So a signature counts for no other rule, version, place in the history, or
set of rules. Author and approver sign different statements: the approver's names the author's key.
Tested by: tests/rulebook/test_trust.py.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar

from cep.base.signing import SigningKey, is_signed
from cep.base.text import utc_text
from cep.lang.walk import histories
from cep.model.rule import (
    HeartbeatRecord,
    ListRecord,
    PauseRecord,
    ResumeRecord,
    RetireRecord,
    RollbackRecord,
    RuleChange,
    Signature,
    Signed,
    SnoozeRecord,
    UpsertRecord,
)
from cep.rulebook.compatible import checked_text
from cep.rulebook.meaning import content_hash, earlier_hash
from cep.rulebook.outcome import Outcome

Signable = RuleChange | SnoozeRecord | ListRecord
Role = Literal["author", "approver"]
R = TypeVar("R", bound=Signable)
_FORMAT, _HEARTBEAT_FORMAT = "cep change 1", "cep heartbeat 1"
_OF_KEY = "/snooze/"
_NONE = "0" * 128  # in place of a signature, until the author has signed
_NONCE_BYTES = 16


def version_line(record: Signable) -> str:
    """Return the name of a record's line: a sequence of versions that count up, independently of other lines."""
    match record:
        case UpsertRecord(id=name, status="shadow"):  # a rule on trial: it does not replace the live version
            return f"{name}/shadow"
        case RollbackRecord(id=name) if record.rule.status == "shadow":
            return f"{name}/shadow"
        case PauseRecord(id=name) | ResumeRecord(id=name):
            return f"{name}/pause"
        case SnoozeRecord(id=name, key=key):
            return snooze_line(name, key)
        case ListRecord(id=name, of=kind):
            return f"list:{name}/{kind}"
        case UpsertRecord(id=name) | RollbackRecord(id=name) | RetireRecord(id=name):  # the live version
            return name


def snooze_line(rule_id: str, key: str | None) -> str:
    """Return the name of the line of the snoozes of a rule, or of one key of it."""
    return f"{rule_id}/snooze" if key is None else f"{rule_id}{_OF_KEY}{key}"


def erased_line(line: str) -> str:
    """Return the line that replaces the snoozes of an erased key: with its hash, so that an old record is refused."""
    return f"{line.partition(_OF_KEY)[0]}{_OF_KEY}#{hashlib.sha256(line.encode()).hexdigest()}"


def snoozed_key(line: str) -> str | None:
    """Return the key in the name of a line of snoozes; None for another line."""
    _, has_key, key = line.partition(_OF_KEY)
    return key if has_key else None


def names_key(text: str, keys: Collection[str]) -> bool:
    """Return True if a text has one of the keys as a whole: no letter, digit or underscore stands next to it."""
    return any(re.search(rf"(?<!\w){re.escape(key)}(?!\w)", text) is not None for key in keys if key in text)


def digest_of(record: Signable) -> str:
    """Return the hash by which a later change refers to this one: of a rule its meaning, otherwise of the record.

    It is the hash of builds before 0.3, so that their signatures count, although `{3}` and `{3,}` have the same one.
    """
    rule = record.as_upsert() if isinstance(record, RollbackRecord) else record
    return earlier_hash(rule) or content_hash(rule) if isinstance(rule, UpsertRecord) else body_hash(record)


def body_hash(record: Signable) -> str:
    """SHA-256 of the whole record without its signatures."""
    return hashlib.sha256(unsigned(record).to_json()).hexdigest()


def statement(record: Signable, signed: Signed, role: Role) -> bytes:
    """Build the text that `role` signs. `signed` has the rule set, the author's key, and the version changed by it."""
    is_rule = isinstance(record, UpsertRecord | RollbackRecord)
    values: dict[str, Any] = {
        "what": _FORMAT,
        "role": role,
        "author": signed.author.key,
        "rule_set": signed.rule_set,
        "kind": record.kind,
        "line": version_line(record),  # its rule, pause, snooze or list: versions count up in each
        "version": record.version,
        "meaning": digest_of(record) if is_rule else None,  # independent of layout and comments
        "record": body_hash(record),
        "previous": [signed.previous_version, signed.previous],
    }
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sign(record: R, key: SigningKey, rule_set: str, previous: tuple[int, str] = (0, "")) -> R:
    """Return the record with the author's signature and no other. `previous`: the version it changes, and its hash."""
    author = Signature(key=key.public, signature=_NONE)
    signed = Signed(rule_set=rule_set, previous_version=previous[0], previous=previous[1], author=author)
    author = Signature(key=key.public, signature=key.sign(statement(record, signed, "author")))
    return _with(record, signed=signed.model_copy(update={"author": author}))


def approve(record: R, key: SigningKey) -> R:
    """Return a signed record with the approver's signature, too."""
    assert record.signed is not None, "the author signs first"
    approver = Signature(key=key.public, signature=key.sign(statement(record, record.signed, "approver")))
    return _with(record, signed=record.signed.model_copy(update={"approver": approver}))


def heartbeat_statement(record: HeartbeatRecord, signed: Signed) -> bytes:
    """Return the statement that the author of a heartbeat signs: its time, for one set of rules."""
    values = {
        "what": _HEARTBEAT_FORMAT,
        "author": signed.author.key,
        "rule_set": signed.rule_set,
        "event_time_ms": record.event_time_ms,
    }
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def sign_heartbeat(record: HeartbeatRecord, key: SigningKey, rule_set: str) -> HeartbeatRecord:
    """Return the heartbeat with the signature of one person."""
    signed = Signed(rule_set=rule_set, author=Signature(key=key.public, signature=_NONE))
    author = Signature(key=key.public, signature=key.sign(heartbeat_statement(record, signed)))
    return record.model_copy(update={"signed": signed.model_copy(update={"author": author})})


def with_nonce(record: R) -> R:
    """Return an unsigned record with a random number, so that the input of its hashes cannot be guessed."""
    return _with(record, nonce=secrets.token_hex(_NONCE_BYTES))


def unsigned(record: R) -> R:
    """Return the record without signatures."""
    return _with(record, signed=None)


def _with(record: R, **changes: object) -> R:
    copied: R = record.model_copy(update=changes)  # type: ignore[assignment]  # mypy joins the union
    return copied


PEOPLE = ("upsert", "rollback", "retire", "pause", "resume", "snooze", "list")
_PEOPLE_MOST = 2
HEARTBEAT = "heartbeat"  # what the rules of a signer must cover for one


@dataclass(frozen=True, slots=True)
class Scope:
    """The limits on the effects that a signer's rules may have on other rules, as patterns of names such as `card_*`.

    groups: the exclusive groups that a rule may join; in a group, only the rule with the smallest `priority` fires.
    produces: the event types that a rule may produce for other rules. If one of these two is None, the names of rules
    that the signer may sign count. events: the event types that a rule may read. priority_min: the least `priority`.
    """

    groups: tuple[str, ...] | None = None
    produces: tuple[str, ...] | None = None
    events: tuple[str, ...] = ("*",)
    priority_min: int = 0

    def reason_against(self, record: Signable, rules: tuple[str, ...]) -> str | None:
        """Return the end of "NAME may sign …" if a rule is outside the scope, or None. `rules` replace a limit None."""
        rule = record.rule if isinstance(record, RollbackRecord) else record
        if not isinstance(rule, UpsertRecord):
            return None
        if rule.priority < self.priority_min:
            return f"a `priority` from {self.priority_min} on, not {rule.priority}"
        groups, produced = (rules if names is None else names for names in (self.groups, self.produces))
        if rule.exclusive is not None and not _covers(groups, rule.exclusive):
            return f"rules of the exclusive groups {', '.join(groups)}, not {rule.exclusive}"
        pattern = checked_text(rule.source).patterns.get(rule.pattern)
        if pattern is None:
            return None  # it does not compile, so no job takes it
        if pattern.produces is not None and not _covers(produced, pattern.produces):
            return f"patterns that produce {', '.join(produced)}, not {pattern.produces}"
        read = (*pattern.event_types, *(past.event_type for past in histories(pattern)))
        other = next((name for name in read if not _covers(self.events, name)), None)
        other = other or (None if other is None else "all event types, as `first_seen` does")
        return None if other is None else f"patterns that read {', '.join(self.events)}, not {other}"


@dataclass(frozen=True, slots=True)
class Signer:
    """A person's public key, and what the person may sign.

    only: the hashes of the records for which a withdrawn or expired key counts; None for other keys. scope: the limits
    on effects on other rules. expires: the last day of the key, for readers of the file; signers.py judges it.
    """

    name: str
    key: str
    may: tuple[str, ...]
    rules: tuple[str, ...]
    only: tuple[str, ...] | None = None
    scope: Scope = Scope()
    expires: str | None = None

    def reason_against(self, record: Signable, right: str) -> str | None:
        """Return the reason why the key cannot sign this record with this right; None if it can."""
        if right not in self.may:
            return f"{self.name} has no right to {right}"
        name = f"list:{record.id}" if isinstance(record, ListRecord) else record.id
        if not _covers(self.rules, name):
            return f"{self.name} may sign {', '.join(self.rules)}, not {name}"
        if self.only is not None and body_hash(record) not in self.only:
            return (
                f"the key of {self.name} is withdrawn or has expired, and the signers file does not name this record "
                f"among its {len(self.only)} records that count"
            )
        reason = self.scope.reason_against(record, self.rules)
        return None if reason is None else f"{self.name} may sign {reason}"


@dataclass(frozen=True, slots=True)
class Trust:
    """The signers of a set of rules, and the number of people that each kind of change needs.

    earlier_roots: the root keys that have signed the rotation to the next one. file_digest: SHA-256 of the signers
    file; empty in values of an earlier build.
    """

    rule_set: str
    version: int
    root_key: str
    people: tuple[tuple[str, int], ...]
    signers: tuple[Signer, ...]
    earlier_roots: tuple[str, ...] = ()
    file_digest: str = ""

    def needed(self, kind: str) -> int:
        return dict(self.people)[kind]

    def asking_one(self) -> Trust:
        """Return the same trust that asks for the author alone."""
        return replace(self, people=tuple((kind, 1) for kind, _ in self.people))

    @property
    def in_force(self) -> str:
        """The digest of the signers file, and the keys that count no more since a day that it names."""
        ended = [signer.key for signer in self.signers if signer.expires is not None and signer.only is not None]
        return " ".join([self.file_digest, *ended])

    def after(self, last_event_ms: int | None) -> Trust:
        """Return the trust with the keys that have expired by `last_event_ms`: event time, so that a replay agrees."""
        day = "" if last_event_ms is None else utc_text(last_event_ms)[:10]
        signers = tuple(
            replace(signer, only=()) if signer.only is None and (signer.expires or day) < day else signer
            for signer in self.signers
        )
        return self if signers == self.signers else replace(self, signers=signers)

    def signer(self, key: str) -> Signer | None:
        return next((signer for signer in self.signers if signer.key == key), None)

    def to_json(self) -> dict[str, Any]:
        signers = [[s.name, s.key, s.may, s.rules, s.only, asdict(s.scope), s.expires] for s in self.signers]
        values = {name: getattr(self, name) for name in self.__slots__}
        return {**values, "people": dict(self.people), "signers": signers}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Trust:
        """Read the values of `to_json`. Raises: KeyError, TypeError or ValueError for other values."""
        signers = tuple(map(_signer_from_json, data["signers"]))
        people = tuple((kind, data["people"].get(kind, _PEOPLE_MOST)) for kind in PEOPLE)  # a kind may be a later one
        roots, file_digest = tuple(data.get("earlier_roots", ())), data.get("file_digest", "")
        return Trust(data["rule_set"], data["version"], data["root_key"], people, signers, roots, file_digest)


def _signer_from_json(data: Sequence[Any]) -> Signer:
    name, key, may, rules, only, *later = data
    scope: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in (later[0] if later else {}).items()}
    # An earlier build saved pairs of a line and a version, which are not hashes.
    digests = None if only is None else tuple(value for value in only if isinstance(value, str))
    return Signer(name, key, tuple(may), tuple(rules), digests, Scope(**scope), *later[1:2])


def reason_against(record: Signable, trust: Trust) -> Outcome | None:
    """Check that the signers of a record may sign it and have signed it. Return its refusal, None if they have."""
    signed, needed = record.signed, trust.needed(record.kind)
    if signed is None and isinstance(record, ListRecord) and record.stored is not None:  # declared in a file
        return _refused(
            "unsigned",
            "its entries are not the entries that the signed rules name; look at what has changed in the list, and "
            "sign the rules that read it again with `cep rules sign`",
        )
    if signed is None:
        return _refused("unsigned", f"it is not signed, and {_people(needed)} must sign; run `cep rules sign`")
    if signed.rule_set != trust.rule_set:
        return _refused("other_rules", f"it is signed for the rules `{signed.rule_set}`, not `{trust.rule_set}`")
    refusal = _against(record, signed, signed.author, "author", trust)
    if refusal is not None:
        return refusal
    if signed.approver is None:
        if needed == 1:
            return None
        return _refused(
            "unsigned", "its author has signed, and nobody has approved; another person runs `cep rules approve`"
        )
    author, approver = trust.signer(signed.author.key), trust.signer(signed.approver.key)
    if signed.approver.key == signed.author.key or (
        author is not None and approver is not None and author.name.casefold() == approver.name.casefold()
    ):
        return _refused("self_approved", "its author has approved it; another person must run `cep rules approve`")
    return _against(record, signed, signed.approver, "approver", trust)


def reason_against_signers(trust: Trust, taken_version: int) -> Outcome | None:
    """Return the refusal of every record if the job has taken a change under a later version of the signers file."""
    if trust.version >= taken_version:
        return None
    return _refused(
        "old_signers",
        f"the signers file has version {trust.version}, and the job has gone by version {taken_version}; restore the "
        "newer file",
    )


def reason_against_rollback(record: Signable, taken_hash: str, trust: Trust) -> Outcome | None:
    """Refuse a rollback whose rule is neither the version that the job has taken nor validly signed. Otherwise None."""
    if not isinstance(record, RollbackRecord) or content_hash(record.rule) == taken_hash:  # of the version taken
        return None
    refusal = reason_against(record.rule, trust)
    if refusal is None:
        return None
    return replace(
        refusal,
        reason=f"its `rule` is not the version {record.to_version} that the job has taken, and does not count as a "
        f"signed version: {refusal.reason}",
    )


def reason_against_heartbeat(record: HeartbeatRecord, trust: Trust) -> Outcome | None:
    """Refuse a heartbeat that one person has not validly signed for these rules. Return None if it counts."""
    signed = record.signed
    if signed is None:
        return _refused("unsigned", "the heartbeat is not signed; run `cep rules sign --heartbeat TIME`")
    if signed.rule_set != trust.rule_set:
        return _refused("other_rules", f"it is signed for the rules `{signed.rule_set}`, not `{trust.rule_set}`")
    signer = trust.signer(signed.author.key)
    if signer is None:
        return _refused("unknown_signer", f"its author's key {signed.author.key} is none of the signers file")
    if "author" not in signer.may or signer.only is not None or not _covers(signer.rules, HEARTBEAT):
        return _refused("not_allowed", f"{signer.name} may not sign heartbeats")
    if not is_signed(heartbeat_statement(record, signed), signed.author.signature, signed.author.key):
        return _refused("forged", f"it is not what {signer.name} has signed; sign it again")
    return None


def _covers(patterns: tuple[str, ...], name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _against(record: Signable, signed: Signed, signature: Signature, role: Role, trust: Trust) -> Outcome | None:
    signer = trust.signer(signature.key)
    if signer is None:
        return _refused("unknown_signer", f"its {role}'s key {signature.key} is none of the signers file")
    reason = signer.reason_against(record, "author" if role == "author" else "approve")
    if reason is not None:
        return _refused("not_allowed", reason)
    if not is_signed(statement(record, signed, role), signature.signature, signature.key):
        return _refused("forged", f"it is not what {signer.name} has signed as its {role}; sign it again")
    return None


def _refused(cause: str, reason: str) -> Outcome:
    return Outcome("refused", reason, cause=cause)


def _people(count: int) -> str:
    return "one person" if count == 1 else "an author and another who approves"
