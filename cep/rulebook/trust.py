"""A signed control record, and the signers → the reason why a job refuses it, or None.

    1  is it signed, for this set of rules?
    2  may its author write changes of this thing?
    3  does the author's signature agree with the record?
    4  has another person approved, where two are asked for?
    5  has no later change of the same thing been taken?
    6  was it signed as a change of what holds?
    7  if it is a rollback: has the job taken that version, or is the version itself signed?

The verdict follows from the records and the job's trust, never from a clock. A running job, a replay, and a job that is
built again from the same records therefore agree. A withdrawn or expired key counts only for the records whose hashes
the signers file names.
Tested by: tests/rulebook/test_trust.py, tests/rulebook/test_trust_properties.py
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from cep.base.audit import ERASED_LINES, Head, extended
from cep.base.limits import SIGNED_LINES_MAX, UNVERIFIED_MAX
from cep.base.signing import is_signed
from cep.base.utc import utc_text
from cep.columnar.tokens import hide_card_numbers
from cep.lang.walk import histories
from cep.model.rule import HeartbeatRecord, ListRecord, RollbackRecord, UpsertRecord
from cep.model.signed import Signature, Signed
from cep.rulebook.compatible import checked_text
from cep.rulebook.meaning import content_hash
from cep.rulebook.outcome import Outcome, Refusal
from cep.rulebook.statement import (
    Role,
    Signable,
    body_hash,
    digest_of,
    erased_line,
    heartbeat_statement,
    line_of,
    names_key,
    snoozed_key,
    statement,
)

CHANGE = "change"  # the kinds of an audit line about a control record
PEOPLE = ("upsert", "rollback", "retire", "pause", "resume", "snooze", "list")
_PEOPLE_MOST = 2
HEARTBEAT = "heartbeat"  # what the rules of a signer must cover for one
UNREADABLE = "unreadable"  # of a record
SIGNERS = "signers"  # what the audit says of another signers file
GAP = "gap"
FIRST = "first"  # of a record that the job begins with
_SALT, _MIXED = b"cep audit salt ", b"cep audit mixed "
_REASON_MAX = 500  # characters of a reason in the audit; the dead letter has all


@dataclass(frozen=True, slots=True)
class Scope:
    """The bounds of what a signer's rules say that other rules feel, as patterns of names like in `rules`.

    groups: the exclusive groups that a rule may join, in which one rule silences the others; None: as `rules`.
    produces: the event types that a rule may produce, which other rules read; None: as `rules`. events: the event
    types that a rule may read. priority_min: the smallest `priority`; of an exclusive group the rule with the smallest
    one fires.
    """

    groups: tuple[str, ...] | None = None
    produces: tuple[str, ...] | None = None
    events: tuple[str, ...] = ("*",)
    priority_min: int = 0

    def reason_against(self, record: Signable, rules: tuple[str, ...]) -> str | None:
        """Return the part of this rule that is outside the signer's scope; None in the scope, and for other records."""
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
        return None if other is None else f"patterns that read {', '.join(self.events)}, not {other}"


@dataclass(frozen=True, slots=True)
class Signer:
    """A person's key: what it may sign.

    only: the hashes of the records for which a withdrawn or expired key counts; None for other keys. scope: the bounds
    of what the rules may say that other rules feel. expires: the last day of the key, for people who read it;
    signers.py judges it.
    """

    name: str
    key: str
    may: tuple[str, ...]
    rules: tuple[str, ...]
    only: tuple[str, ...] | None = None
    scope: Scope = Scope()
    expires: str | None = None

    def reason_against(self, record: Signable, right: str) -> str | None:
        """Return why the key may not sign this record with this right; None if it may."""
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
        """Return how many people must sign a change of this kind."""
        return dict(self.people)[kind]

    def asking_one(self) -> Trust:
        """Return the same trust that asks for the author alone."""
        return replace(self, people=tuple((kind, 1) for kind, _ in self.people))

    @property
    def in_force(self) -> str:
        """The digest of the signers file, and the keys that count no more since a day that it names."""
        ended = [signer.key for signer in self.signers if signer.expires is not None and signer.only is not None]
        return " ".join([self.file_digest, *ended])

    def after(self, seen_ms: int | None) -> Trust:
        """Return the trust after events up to `seen_ms`: a key whose last day is over has expired there.

        The time of events decides, not the clock, so that a replay comes to the same answer.
        """
        day = "" if seen_ms is None else utc_text(seen_ms)[:10]
        signers = tuple(
            replace(signer, only=()) if signer.only is None and (signer.expires or day) < day else signer
            for signer in self.signers
        )
        return self if signers == self.signers else replace(self, signers=signers)

    def signer(self, key: str) -> Signer | None:
        """Return whose key it is."""
        return next((signer for signer in self.signers if signer.key == key), None)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        signers = [[s.name, s.key, s.may, s.rules, s.only, asdict(s.scope), s.expires] for s in self.signers]
        return {
            "rule_set": self.rule_set,
            "version": self.version,
            "root_key": self.root_key,
            "people": dict(self.people),
            "signers": signers,
            "earlier_roots": self.earlier_roots,
            "file_digest": self.file_digest,
        }

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
    """Return the refusal of a record whose signatures do not count; None if they do. Steps 1 to 4."""
    signed, needed = record.signed, trust.needed(record.kind)
    if signed is None and isinstance(record, ListRecord) and record.stored is not None:
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


def _reason_against_rollback(record: Signable, rolled_back: str, trust: Trust) -> Outcome | None:
    """Return the refusal of a rollback to a text that the job has not had and that has no signature. Step 7."""
    if not isinstance(record, RollbackRecord) or content_hash(record.rule) == rolled_back:
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
    """Return the refusal of a heartbeat without a valid signature for these rules; None if it counts.

    One person is enough: it changes no rule. A withdrawn or expired key does not count.
    """
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


class Accepted:
    """The signed changes that a job has taken: of each line of versions the last one, and its hash.

    `unverified` are the last refusals of records whose signatures do not count. `trust` and `is_audited` are terms of
    the job (step/job.py), which are not saved with the rules.
    """

    def __init__(self, trust: Trust | None = None, *, is_audited: bool = False) -> None:
        self.trust = trust
        self.is_audited = is_audited
        self.signers_version = 0
        self._last: dict[str, tuple[int, str]] = {}
        self.unverified: dict[str, Refusal] = {}
        self.head = Head()
        self._noted_signers = ""  # the hash of the signers file that the audit speaks of last
        self._mixed = ""  # a hash of all records that the audit has a line about

    def copy(self) -> Accepted:
        """Return an equal value that changes on its own."""
        other = Accepted(self.trust, is_audited=self.is_audited)
        other.signers_version = self.signers_version
        other._last = dict(self._last)
        other.unverified = dict(self.unverified)
        other.head, other._mixed, other._noted_signers = self.head, self._mixed, self._noted_signers
        return other

    def outcome(
        self, record: Signable, list_version: int, rolled_back: str = "", seen_ms: int | None = None
    ) -> Outcome | None:
        """Return the outcome of a record that is refused or changes nothing, None for one that counts.

        list_version: the last version of its list, for a list. rolled_back: the hash of the version that it goes back
        to, for a rollback; empty if the job has not taken it. seen_ms: the largest event time that has been matched.
        """
        if self.trust is None:
            return None
        trust = self.trust.after(seen_ms)
        if self.trust.version < self.signers_version:
            return _refused(
                "old_signers",
                f"the signers file has version {self.trust.version}, and the job has gone by version "
                f"{self.signers_version}; restore the newer file",
            )
        return (
            reason_against(record, trust)
            or self._order(record, list_version)
            or _reason_against_rollback(record, rolled_back, trust)
        )

    def take(self, record: Signable) -> None:
        """Remember a record that the rulebook has applied, or that waits."""
        if self.trust is not None:
            self.signers_version = self.trust.version
            if record.signed is not None and not isinstance(record, ListRecord):
                self._last[self._line(record)] = record.version, digest_of(record)
            name = _named(record)
            if name in self.unverified and self.unverified[name].version <= record.version:
                del self.unverified[name]

    @property
    def writes_audit(self) -> bool:
        """Return True if changes go into an audit. One that has begun continues, so that erasures are in it."""
        return self.trust is not None or self.is_audited or self.head.count > 0

    def note(self, record: Signable | None, outcome: Outcome, data: bytes, subject: str) -> list[bytes]:
        """Return the audit line about a record, or an empty list without an audit. `subject` names the event."""
        if not self.writes_audit:
            return []
        before = self.note_signers()
        facts, texts = self._facts(record, outcome, data, subject)
        # The salt depends on the signatures and nonces of this record and all earlier ones. Without these records it
        # cannot be guessed, not even the salt of a record that has neither.
        self._mixed = hashlib.sha256(_MIXED + self._mixed.encode() + data).hexdigest()
        salt = hashlib.sha256(_SALT + self._mixed.encode()).hexdigest()
        self.head, line = extended(self.head, facts, texts, salt)
        return [*before, line]

    @property
    def has_new_signers(self) -> bool:
        """Return True if the audit has to say that another signers file counts, or that a key has expired."""
        return self.trust is not None and self._noted_signers not in ("", self.trust.in_force)

    def note_signers(self) -> list[bytes]:
        """Return the line of the audit about another signers file or an expired key; none if both are as before."""
        lines = []
        if self.has_new_signers and self.trust is not None:
            trust = self.trust
            facts: dict[str, Any] = {"what": SIGNERS, "outcome": "applied", "version": trust.version}
            facts |= {"file": trust.file_digest, "root_key": trust.root_key, "earlier_roots": list(trust.earlier_roots)}
            facts["people"] = [
                [s.name, s.key, "counts" if s.only is None else f"counts for {len(s.only)} records"]
                for s in trust.signers
            ]
            self.head, line = extended(self.head, {**facts, **self._vouching()})
            lines.append(line)
        self._noted_signers = "" if self.trust is None else self.trust.in_force
        return lines

    def take_audit(self) -> Accepted:
        """Reset the audit. Return its state before the reset."""
        other = self.copy()
        self.head, self._mixed = Head(), ""
        return other

    def go_on_from(self, other: Accepted) -> None:
        """Continue the audit from the state of `other`."""
        self.head, self._mixed, self._noted_signers = other.head, other._mixed, other._noted_signers

    def note_erasure(
        self, keys: Mapping[str, int], removed: Mapping[str, int], lines: Sequence[int], digests: Sequence[str] = ()
    ) -> list[bytes]:
        """Return the audit line about erased keys: counts by domain, and counts of the removed items.

        lines: the lines of the audit that have lost their texts. digests: the keyed digests of the keys that two people
        have signed (erasure_request.py).
        """
        if not self.writes_audit:
            return []
        facts: dict[str, Any] = {"what": "erasure", "outcome": "applied", "keys": dict(keys), "removed": dict(removed)}
        facts[ERASED_LINES] = sorted(lines)
        if digests:
            facts["digests"] = list(digests)
        self.head, line = extended(self.head, {**facts, **self._vouching()})
        return [line]

    def gap_lines(self, gaps: Mapping[str, tuple[int, int]], until_ms: int) -> list[bytes]:
        """Return the line of the audit about records that are gone, and that an operator lets the job go on without."""
        if not self.writes_audit:
            return []
        offsets = {partition: list(offsets) for partition, offsets in sorted(gaps.items())}
        facts = {"what": GAP, "outcome": "applied", "offsets": offsets, "history_from": utc_text(until_ms)}
        self.head, line = extended(self.head, {**facts, **self._vouching()})
        return [line]

    def _vouching(self) -> dict[str, Any]:
        """Return the fact that names who vouches for the names in a line; null without signatures."""
        return {"signers_version": None if self.trust is None else self.trust.version}

    def _facts(
        self, record: Signable | None, outcome: Outcome, data: bytes, subject: str
    ) -> tuple[dict[str, Any], dict[str, str | None]]:
        """Return the permanent facts, and the texts that may name a key and may have to be erased."""
        facts: dict[str, Any] = {"what": subject}
        texts: dict[str, str | None] = {}
        if record is not None:
            names = [] if self.trust is None else _signers_of(record, self.trust)
            facts |= {"kind": record.kind, "id": record.id, "version": record.version, "by": names}
            # A snooze that is refused for the value as its key does not bring it into the audit.
            is_raw = any(diagnostic.code == "CEP320" for diagnostic in outcome.diagnostics)
            texts |= {"of": record.id if is_raw else line_of(record), "sent_by": record.by, "why": record.reason}
        facts |= {"outcome": outcome.kind, "cause": outcome.cause, **self._vouching()}
        texts["reason"] = outcome.full_reason[:_REASON_MAX]
        texts = {name: None if text is None else hide_card_numbers(text) for name, text in texts.items()}
        # A hash of the whole record would let an attacker find the key by trying many.
        hashes = {"record": hashlib.sha256(data).hexdigest()}
        if record is not None:
            hashes["changes"] = digest_of(record)
        return facts, {**texts, **hashes}

    def set_aside(self, record: Signable, reason: str) -> None:
        """Remember the last refusal of each rule and list, up to a limit."""
        self.unverified.pop(_named(record), None)
        self.unverified[_named(record)] = Refusal(_named(record), record.version, reason)
        while len(self.unverified) > UNVERIFIED_MAX:
            del self.unverified[next(iter(self.unverified))]

    def _order(self, record: Signable, list_version: int) -> Outcome | None:
        """Refuse a record that comes too late, or that was signed for another past: steps 5 and 6."""
        assert record.signed is not None, "its signatures count"
        if isinstance(record, ListRecord):
            # Parts of a version may come in any order, and versions wait for each other.
            if record.version < list_version:
                return _replayed(record.version, list_version)
            return None
        line = self._line(record)
        last, digest = self._last.get(line, (0, ""))
        if line not in self._last:
            if len(self._last) >= SIGNED_LINES_MAX:
                return Outcome("refused", f"{SIGNED_LINES_MAX} rules, pauses and snoozes have changed: the limit")
            return None
        if record.version < last:
            return _replayed(record.version, last)
        if record.version == last:
            if digest_of(record) == digest:
                return Outcome("ignored", f"version {last} holds already, and this is a copy of it")
            return _refused("replayed", f"another version {last} has been taken; sign the change as version {last + 1}")
        past = record.signed.previous_version
        if past < last or (past == last and record.signed.previous != digest):
            signed_for = f"version {past}" if past != last else f"another version {past}"
            return _refused(
                "superseded", f"it was signed as a change of {signed_for}, and version {last} holds; sign it again"
            )
        return None

    def _line(self, record: Signable) -> str:
        """Return the name of a record's line, which is another one after its key was erased."""
        line = line_of(record)
        erased = erased_line(line) if line not in self._last and snoozed_key(line) is not None else line
        return erased if erased in self._last else line

    def forget_keys(self, keys: Collection[str]) -> None:
        """Remove lines whose name, or whose text about a refused record, has one of these keys."""
        self._last = {
            erased_line(line) if snoozed_key(line) in keys else line: last for line, last in self._last.items()
        }
        self.unverified = {
            name: refusal
            for name, refusal in self.unverified.items()
            if not names_key(f"{refusal.reason} {name}", keys)
        }

    # ---------------------------------------------------------------------------------------------------- bytes

    def to_json(self) -> dict[str, Any] | None:
        """Return it as JSON values; None for an empty state."""
        if not (self._last or self.unverified or self.signers_version or self.head.count):
            return None
        last = {line: list(values) for line, values in sorted(self._last.items())}
        unverified = [refusal.to_json() for refusal in self.unverified.values()]
        return {
            "signers_version": self.signers_version,
            "last": last,
            "unverified": unverified,
            "audit": {**self.head.to_json(), "mixed": self._mixed, "signers": self._noted_signers},
        }

    @staticmethod
    def from_json(saved: Mapping[str, Any] | None) -> Accepted:
        """Read the values of `to_json`. Raises: KeyError, TypeError or ValueError for other values."""
        accepted = Accepted()
        if saved is not None:
            accepted.signers_version = int(saved["signers_version"])
            accepted._last = {line: (int(version), str(digest)) for line, (version, digest) in saved["last"].items()}
            accepted.head = Head(int(saved["audit"]["count"]), str(saved["audit"]["hash"]))
            accepted._mixed = str(saved["audit"].get("mixed", ""))  # an earlier build did not write it
            accepted._noted_signers = str(saved["audit"].get("signers", ""))
            accepted.unverified = {values["rule_id"]: Refusal(**values) for values in saved["unverified"]}
        return accepted


def _signers_of(record: Signable, trust: Trust) -> list[str]:
    """Return the names of the people whose keys a record has. They have signed it only if it was not refused."""
    signed = record.signed
    keys = [s.key for s in (signed.author, signed.approver) if s is not None] if signed is not None else []
    people = [(key, trust.signer(key)) for key in keys]
    return [key if person is None else person.name for key, person in people]


def _named(record: Signable) -> str:
    return f"list {record.id}" if isinstance(record, ListRecord) else record.id


def _replayed(version: int, last: int) -> Outcome:
    return _refused(
        "replayed",
        f"version {version} is older than version {last}, which has been taken; to go back, sign a new change: "
        "`cep rules rollback` makes one",
    )


def _refused(cause: str, reason: str) -> Outcome:
    return Outcome("refused", reason, cause=cause)


def _people(count: int) -> str:
    return "one person" if count == 1 else "an author and another who approves"
