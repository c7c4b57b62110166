"""A record and its outcome → a line of the audit, in the rulebook's name (base/audit.py has the form of lines).

Each function reads the rulebook's terms (`trust`, `is_audited`) and moves its `trail` on.
Tested by: tests/rulebook/test_trust.py, tests/rulebook/test_signers.py
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from cep.base.audit import ERASED_LINES, Trail, add_line
from cep.base.text import utc_text
from cep.columnar.tokens import hide_card_numbers
from cep.rulebook.outcome import Outcome
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.trust import Signable, Trust, digest_of, version_line

# The subjects of lines: a control record, one that the job begins with, and one that cannot be read.
CHANGE, FIRST, UNREADABLE = "change", "first", "unreadable"
_SALT, _MIXED = b"cep audit salt ", b"cep audit mixed "
_REASON_MAX = 500  # characters of a reason in the audit; the dead letter has all


def writes_audit(book: Rulebook) -> bool:
    """Return True if changes go into an audit. One that has begun continues, so that erasures are in it."""
    return book.trust is not None or book.is_audited or book.trail.head.count > 0


def note(book: Rulebook, record: Signable | None, outcome: Outcome, data: bytes, subject: str) -> list[bytes]:
    """Return the audit lines about a record, and first about new signers. `subject`: CHANGE, FIRST or UNREADABLE."""
    if not writes_audit(book):
        return []
    before = note_signers(book)
    facts, texts = _facts_and_texts(book, record, outcome, data, subject)
    # A line has salted hashes of its texts, so that a text can be erased and the chain of lines still be checked. The
    # salt depends on all records so far, with their signatures and nonces: without these a text cannot be guessed.
    hash_of_records = hashlib.sha256(_MIXED + book.trail.records_hash.encode() + data).hexdigest()
    salt = hashlib.sha256(_SALT + hash_of_records.encode()).hexdigest()
    head, line = add_line(book.trail.head, facts, texts, salt)
    book.trail = Trail(head, hash_of_records, book.trail.signers)
    return [*before, line]


def has_new_signers(book: Rulebook) -> bool:
    """Return True if the audit has to say that another signers file counts, or that a key has expired."""
    return book.trust is not None and book.trail.signers not in ("", book.trust.in_force)


def note_signers(book: Rulebook) -> list[bytes]:
    """Return the line of the audit about another signers file or an expired key; none if both are as before."""
    trust, lines = book.trust, []
    if trust is not None and has_new_signers(book):
        people = [
            [s.name, s.key, "counts" if s.only is None else f"counts for {len(s.only)} records"] for s in trust.signers
        ]
        facts = {"version": trust.version, "file": trust.file_digest, "root_key": trust.root_key}
        lines = _added(book, "signers", **facts, earlier_roots=list(trust.earlier_roots), people=people)
    book.trail = Trail(book.trail.head, book.trail.records_hash, "" if trust is None else trust.in_force)
    return lines


def note_erasure(
    book: Rulebook, keys: Mapping[str, int], removed: Mapping[str, int], lines: Sequence[int],
    digests: Sequence[str] = (),
) -> list[bytes]:  # fmt: skip
    """Write the audit line about erased keys: counts by domain, and counts of the removed items.

    `lines` of the audit have lost their texts. `digests` are keyed digests of keys that two people have signed.
    """
    more = {"digests": list(digests)} if digests else {}
    counts = {"keys": dict(keys), "removed": dict(removed), ERASED_LINES: sorted(lines)}
    return _added(book, "erasure", **counts, **more)


def note_gaps(book: Rulebook, gaps: Mapping[str, tuple[int, int]], until_ms: int) -> list[bytes]:
    """Return the line of the audit about records that are gone, and that an operator lets the job go on without."""
    offsets = {partition: list(offsets) for partition, offsets in sorted(gaps.items())}
    return _added(book, "gap", offsets=offsets, history_from=utc_text(until_ms))


def _added(book: Rulebook, subject: str, **facts: Any) -> list[bytes]:
    """Return a line without texts, or an empty list without an audit."""
    if not writes_audit(book):
        return []
    head, line = add_line(book.trail.head, {"what": subject, "outcome": "applied", **facts, **_signers_fact(book)})
    book.trail = Trail(head, book.trail.records_hash, book.trail.signers)
    return [line]


def _signers_fact(book: Rulebook) -> dict[str, Any]:
    """Return the version of the signers file that gives the names in a line their keys; null without signatures."""
    return {"signers_version": None if book.trust is None else book.trust.version}


def _facts_and_texts(
    book: Rulebook, record: Signable | None, outcome: Outcome, data: bytes, subject: str
) -> tuple[dict[str, Any], dict[str, str | None]]:
    """Divide a record into facts that stay in the audit, and texts that may name a key and may have to be erased."""
    facts: dict[str, Any] = {"what": subject}
    texts: dict[str, str | None] = {}
    if record is not None:
        names = [] if book.trust is None else _signers_of(record, book.trust)
        facts |= {"kind": record.kind, "id": record.id, "version": record.version, "by": names}
        # CEP320: the key of a snooze is a raw value, such as a card number. Leave version_line out: it has this key.
        has_raw_key = any(diagnostic.code == "CEP320" for diagnostic in outcome.diagnostics)
        texts |= {"of": record.id if has_raw_key else version_line(record), "sent_by": record.by, "why": record.reason}
    facts |= {"outcome": outcome.kind, "cause": outcome.cause, **_signers_fact(book)}
    texts["reason"] = outcome.full_reason[:_REASON_MAX]
    texts = {name: None if text is None else hide_card_numbers(text) for name, text in texts.items()}
    # These hashes are erased with the texts: they would let an attacker find an erased key by trying many.
    hashes = {"record": hashlib.sha256(data).hexdigest()}
    if record is not None:
        hashes["changes"] = digest_of(record)  # by which a later change refers to this one
    return facts, {**texts, **hashes}


def _signers_of(record: Signable, trust: Trust) -> list[str]:
    """Return the names of the people whose keys a record has. They have signed it only if it was not refused."""
    signed = record.signed
    keys = [s.key for s in (signed.author, signed.approver) if s is not None] if signed is not None else []
    people = [(key, trust.signer(key)) for key in keys]
    return [key if person is None else person.name for key, person in people]
