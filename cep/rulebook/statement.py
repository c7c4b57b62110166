"""A control record → the bytes that a person signs, and the line of versions that it belongs to.

The statement names the rule set, the rule, its version, the hash of its meaning (meaning.py), the version that it
changes, and the hash of the whole record. So a signature counts for no other rule, version, place in the history, or
set of rules. The key that a pattern matches by is in its meaning. Author and approver sign different statements: the
approver's names the author's key.
Tested by: tests/rulebook/test_trust.py
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Collection
from typing import Any, Literal, TypeVar

from cep.base.signing import SigningKey
from cep.model.rule import (
    HeartbeatRecord,
    ListRecord,
    PauseRecord,
    ResumeRecord,
    RetireRecord,
    RollbackRecord,
    RuleChange,
    SnoozeRecord,
    UpsertRecord,
)
from cep.model.signed import Signature, Signed
from cep.rulebook.meaning import content_hash, earlier_hash

Signable = RuleChange | SnoozeRecord | ListRecord
Role = Literal["author", "approver"]
R = TypeVar("R", bound=Signable)
_FORMAT, _HEARTBEAT_FORMAT = "cep change 1", "cep heartbeat 1"
_OF_KEY = "/snooze/"
# A signature is 128 characters; one of none stands where the author has not signed yet.
_NONE = "0" * 128
_NONCE_BYTES = 16


def line_of(record: Signable) -> str:
    """Return the name of the sequence of versions that a record belongs to; each sequence counts on its own."""
    match record:
        case UpsertRecord(id=name, status="shadow"):
            return f"{name}/shadow"
        case RollbackRecord(id=name) if record.rule.status == "shadow":
            return f"{name}/shadow"
        case PauseRecord(id=name) | ResumeRecord(id=name):
            return f"{name}/pause"
        case SnoozeRecord(id=name, key=key):
            return snooze_line(name, key)
        case ListRecord(id=name, of=kind):
            return f"list:{name}/{kind}"
        case UpsertRecord(id=name) | RollbackRecord(id=name) | RetireRecord(id=name):
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

    It is the hash of builds before 0.3, so that their signatures count. `{3}` and `{3,}` have the same one, but a
    statement also names the hash of the whole record.
    """
    rule = record.as_upsert() if isinstance(record, RollbackRecord) else record
    return earlier_hash(rule) or content_hash(rule) if isinstance(rule, UpsertRecord) else body_hash(record)


def body_hash(record: Signable) -> str:
    """SHA-256 of the whole record without its signatures."""
    return hashlib.sha256(unsigned(record).to_json()).hexdigest()


def statement(record: Signable, signed: Signed, role: Role) -> bytes:
    """Build the text that `role` signs. `signed` has the rule set, the past and the author's key."""
    is_rule = isinstance(record, UpsertRecord | RollbackRecord)
    values: dict[str, Any] = {
        "what": _FORMAT,
        "role": role,
        "author": signed.author.key,
        "rule_set": signed.rule_set,
        "kind": record.kind,
        "line": line_of(record),
        "version": record.version,
        "meaning": digest_of(record) if is_rule else None,
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
