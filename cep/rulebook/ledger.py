"""Control records → the ledger of a job: the last versions of each item, with their hashes, authors and reasons.

    card_testing         1 ──▶ 2 ──▶ 3        versions of a rule, including shadows
    card_testing/pause   1 ──▶ 2              pauses and resumptions
    list:blocked/string  1 ──▶ 2              and snoozes, by rule and key

The ledger answers every question about the order of records, for signed and unsigned ones:

    another version N has been taken   of two records of one version the first one counts
    a later version has been taken     a record that comes too late changes nothing
    written against another version    publishing is compare-and-set: a record names the version that it changes

The answers follow from the records and their order alone, so a running job, a replay, and a job that is rebuilt from
the same records agree. A record that names nothing counts by its version. A signed record names the version before
under its signatures (trust.py); an unsigned one has `changes`.
Tested by: tests/rulebook/test_publish.py, tests/rulebook/test_trust.py, tests/upgrade/test_upgrade.py
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from cep.base.limits import (
    CHAIN_VERSIONS_MAX,
    RULES_MAX,
    SIGNED_LINES_MAX,
    SNOOZES_MAX,
    UNVERIFIED_MAX,
    VERSION_FREE_MAX,
)
from cep.columnar.tokens import hide_card_numbers
from cep.model.rule import (
    Changes,
    ListRecord,
    PauseRecord,
    ResumeRecord,
    RetireRecord,
    RollbackRecord,
    SnoozeRecord,
    UpsertRecord,
)
from cep.rulebook.meaning import content_hash, earlier_hash
from cep.rulebook.outcome import Outcome, Refusal
from cep.rulebook.trust import Signable, digest_of, erased_line, names_key, snoozed_key, version_line

_SHORT = 12  # characters of a hash that a person reads
_SHOWN = ("version", "hash", "after", "by", "reason", "earlier")
_SHADOW = "/shadow"  # the end of a line's name (trust.version_line)


def chain_of(record: Signable) -> str:
    """Return the name of the chain of versions that a record belongs to. A rule has one, shadows and all."""
    return record.id if isinstance(record, UpsertRecord | RollbackRecord | RetireRecord) else version_line(record)


def item_of(record: Signable) -> str:
    """Return the name by which a report names the rule or the list of a record."""
    return f"list {record.id}" if isinstance(record, ListRecord) else record.id


def hash_of(record: Signable) -> str:
    """Return the hash of the change in a record: equal for records that differ in start, sender and reason only."""
    if isinstance(record, UpsertRecord | RollbackRecord):
        return content_hash(record.as_upsert() if isinstance(record, RollbackRecord) else record)
    if isinstance(record, ListRecord) and (record.whole is not None or record.stored is not None):
        return record.whole or ""  # `whole`: the hash of all parts of a change; "": unknown, never a conflict
    facts: list[Any] = [record.kind, chain_of(record), record.version]
    if isinstance(record, SnoozeRecord):
        facts.append(record.until)
    elif isinstance(record, ListRecord):
        # The parts of one change must have equal hashes, so the entries of a change with several parts do not count.
        facts += [record.change, record.parts, record.entries if record.parts == 1 else None]
    return hashlib.sha256(json.dumps(facts, ensure_ascii=False).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class TakenVersion:
    """A version of a rule, list, pause or snooze (suppression of a rule's alerts for a time) that a job has taken.

    `hash` is the hash of its content, which the next record names in `changes`. `earlier` is the hash that builds
    before 0.3 gave it, None if it is the same. `after` is the version that it was written to change, None if unknown.
    `signed` is the hash that the next signed change must name; only the last version with valid signatures has one.
    """

    version: int
    hash: str  # "": a build that did not store it
    after: int | None = None
    by: str | None = None
    reason: str | None = None
    earlier: str | None = None
    is_shadow: bool = False
    signed: str | None = None

    @property
    def text(self) -> str:
        return described(self.version, self.hash, self.by, self.reason)

    def to_json(self) -> dict[str, Any]:
        """Return it as the status shows it: JSON values, nothing that is unset."""
        return {name: value for name in _SHOWN if (value := getattr(self, name)) is not None}

    def saved(self) -> dict[str, Any]:
        """Return all of it as JSON values, for the next start of the job."""
        more = {} if self.signed is None else {"signed": self.signed}
        return {**self.to_json(), **({"is_shadow": True} if self.is_shadow else {}), **more}


@dataclass(frozen=True)  # without slots: it remembers its JSON
class Chain:
    """The last few versions of a rule, pause, snooze or list, and its last live, shadow and signed one, in order."""

    entries: tuple[TakenVersion, ...]

    @cached_property
    def data(self) -> str:
        """The chain as JSON. It is cached, because a rulebook is saved after each change of one of its chains."""
        return json.dumps([entry.saved() for entry in self.entries], ensure_ascii=False)

    @property
    def recent(self) -> tuple[TakenVersion, ...]:
        """The last few versions: the status report shows them, and a new record is compared with them."""
        return self.entries[-CHAIN_VERSIONS_MAX:]

    @cached_property
    def versions(self) -> tuple[int, int]:
        """The last version, and the last one in shadow; 0 where there is none."""
        last = {entry.is_shadow: entry.version for entry in self.entries}
        return last.get(False, 0), last.get(True, 0)

    def last_signed(self, *, is_shadow: bool) -> TakenVersion | None:
        return next((e for e in self.entries if e.signed is not None and e.is_shadow == is_shadow), None)

    @cached_property
    def signed_count(self) -> int:
        return sum(entry.signed is not None for entry in self.entries)

    def with_entry(self, entry: TakenVersion) -> Chain:
        """Return the chain with an entry, which replaces the entry of its version, and without entries to forget."""
        others = (e for e in self.entries if (e.version, e.is_shadow) != (entry.version, entry.is_shadow))
        entries = sorted((*others, entry), key=lambda one: one.version)
        last = {e.is_shadow: e for e in entries}  # the last live entry, and the last one in shadow
        last_signed = {e.is_shadow: e for e in entries if e.signed is not None}  # only they keep `signed`
        entries = [e if e in last_signed.values() else replace(e, signed=None) for e in entries]
        needed = (*entries[-CHAIN_VERSIONS_MAX:], *last.values(), *last_signed.values())
        return Chain(tuple(e for e in entries if e in needed))


_NO_CHAIN = Chain(())


class Ledger:
    """The ledger of a job, and the last refused record of each rule and list.

    `unverified` are the refusals of records whose signatures do not count; an attacker can send any number of them, so
    they take no other refusal's place. `signers_version` is the version of the signers file at the last change.
    """

    def __init__(self, chains: Mapping[str, Chain] | None = None) -> None:
        self._chains = dict(chains or {})
        self._signed_count = sum(chain.signed_count for chain in self._chains.values())
        self.refusals: dict[str, Refusal] = {}
        self.unverified: dict[str, Refusal] = {}
        self.signers_version = 0

    def copy(self) -> Ledger:
        other = copy.copy(self)
        vars(other)["_chains"] = dict(self._chains)
        other.refusals, other.unverified = dict(self.refusals), dict(self.unverified)
        return other

    # ---------------------------------------------------------------------------------------------- questions

    def versions(self, name: str) -> tuple[int, int]:
        """Return the last version of a chain, and the last one in shadow; 0 where there is none."""
        return self._chain(name).versions

    def last(self, name: str) -> TakenVersion | None:
        """Return the last version of a chain, shadow or not; None if nothing was taken."""
        return next(reversed(self._chain(name).entries), None)

    def rollback_target_hash(self, record: Signable) -> str:
        """Return the hash of the version that a rollback goes back to; empty if it is not among the last versions."""
        if not isinstance(record, RollbackRecord):
            return ""
        recent = self._chain(record.id).recent
        return next((entry.hash for entry in recent if entry.version == record.to_version), "")

    def is_behind(self, record: Signable) -> bool:
        last = self.last(chain_of(record))
        return last is not None and last.version > record.version

    def head(self, record: Signable) -> Changes:
        """Return the `changes` of a record that is written now."""
        last = self.last(chain_of(record))
        return Changes() if last is None else Changes(version=last.version, hash=last.hash)

    def not_newer(self, record: Signable) -> Outcome | None:
        """Return the outcome of an old record of a rule, a pause or a snooze; None for others."""
        last, last_shadow = self.versions(chain_of(record))
        if _is_shadow(record):
            last = max(last, last_shadow)
        if record.version > last:
            return None
        return Outcome("ignored", f"version {record.version} is not newer than {last}")

    def outcome(self, record: Signable) -> Outcome | None:
        """Refuse a record that does not follow the last version of its rule or list. Return None for other records."""
        chain = self._chain(chain_of(record))  # the last versions that the job has taken
        last = next(reversed(chain.entries), TakenVersion(0, ""))
        written_against = record.changes  # the version that its author knew: two people must not overwrite each other
        before = max(last.version, 0 if written_against is None else written_against.version)
        if record.version > VERSION_FREE_MAX and record.version > before + 1:  # smaller versions may leave out numbers
            return Outcome(
                "refused",
                f"versions above {VERSION_FREE_MAX} count up one by one, or none would be left; send it as version "
                f"{before + 1}",
            )
        if not chain.entries:
            return None
        first = next((entry for entry in chain.recent if entry.version == record.version), None)
        if first is not None:  # the version is taken: the record is a copy, or another change
            is_other = first.hash and first.hash != hash_of(record)
            return _conflict(f"{first.text} was first", last) if is_other else None
        if isinstance(record, ListRecord) or written_against is None:
            return None  # a list's versions wait for each other; other records may name no version
        if record.version < last.version:  # it comes late: a conflict if the next version was written without it
            follower = next(entry for entry in chain.recent if entry.version > record.version)
            is_skipped = follower.after is not None and follower.after < record.version  # it changes an older version
            return _conflict(f"{follower.text} was first", last) if is_skipped else None
        version, digest = written_against.version, written_against.hash  # last.earlier: hash by builds before 0.3
        is_other = version == last.version and last.hash and digest not in ("", last.hash, last.earlier)  # "": unknown
        if version < last.version or is_other:  # the author did not know the last version
            return _conflict(f"it was written against version {version or 'none'}, and {last.text} holds", last)
        return None

    def outcome_of_signed(self, record: Signable, list_version: int) -> Outcome | None:
        """Refuse a signed record, such as an old one, that does not name the last signed version. Otherwise None."""
        assert record.signed is not None, "its signatures count"
        if isinstance(record, ListRecord):  # parts of a version may come in any order; versions wait for each other
            return _replayed(record.version, list_version) if record.version < list_version else None
        last = self._chain(chain_of(record)).last_signed(is_shadow=_is_shadow(record))  # of the rule, pause or snooze
        if last is None:  # its first signed change: the job remembers a limited number of items
            if self._signed_count >= SIGNED_LINES_MAX:
                return Outcome("refused", f"{SIGNED_LINES_MAX} rules, pauses and snoozes have changed: the limit")
            return None
        if record.version < last.version:
            return _replayed(record.version, last.version)
        if record.version == last.version:
            if digest_of(record) == last.signed:
                return Outcome("ignored", f"version {last.version} holds already, and this is a copy of it")
            reason = f"another version {last.version} has been taken; sign the change as version {last.version + 1}"
            return Outcome("refused", reason, cause="replayed")
        previous = record.signed.previous_version
        if previous < last.version or (previous == last.version and record.signed.previous != last.signed):
            signed_for = f"version {previous}" if previous != last.version else f"another version {previous}"
            reason = f"it was signed as a change of {signed_for}, and version {last.version} holds; sign it again"
            return Outcome("refused", reason, cause="superseded")
        return None

    def _chain(self, name: str) -> Chain:
        return self._chains.get(self._stored_name(name), _NO_CHAIN)

    def _stored_name(self, name: str) -> str:
        """Return the name under which a chain is here: another one after its key was erased."""
        erased = erased_line(name) if name not in self._chains and snoozed_key(name) is not None else name
        return erased if erased in self._chains else name

    # ------------------------------------------------------------------------------------------------ changes

    def take(self, record: Signable, *, is_applied: bool = True, signers_version: int | None = None) -> None:
        """Add a record that the rulebook has applied, or that waits (as a part of a list), to the versions of its item.

        `signers_version` is the version of the signers file with which its signatures are valid; None without signers.
        """
        name = self._stored_name(chain_of(record))
        chain = self._chains.get(name, Chain(()))
        is_shadow, is_signed = _is_shadow(record), signers_version is not None
        same_version = [entry for entry in chain.entries if entry.version == record.version]
        # Entries without a hash are of an earlier build. There, a live and a shadow version could have the same number.
        if not any(entry.hash or entry.is_shadow == is_shadow for entry in same_version):  # it is not taken yet
            after = None if record.changes is None else record.changes.version
            by, reason = (None if text is None else hide_card_numbers(text) for text in (record.by, record.reason))
            has_hash = is_signed and record.signed is not None and not isinstance(record, ListRecord)
            earlier, signed = _earlier_hash(record), digest_of(record) if has_hash else None
            entry = TakenVersion(record.version, hash_of(record), after, by, reason, earlier, is_shadow, signed)
            self._chains[name] = chain.with_entry(entry)
            self._signed_count += self._chains[name].signed_count - chain.signed_count
        if signers_version is not None:
            self.signers_version = signers_version
            _drop_refusal(self.unverified, record)
        if is_applied and not isinstance(record, PauseRecord | ResumeRecord | SnoozeRecord):
            _drop_refusal(self.refusals, record)  # an applied version corrects refused ones; a pause or snooze does not

    def refuse(self, record: Signable, outcome: Outcome) -> None:
        """Remember the refusal of a record: the newest of each rule and list, up to a limit."""
        refusal = Refusal(item_of(record), record.version, outcome.full_reason)
        if outcome.cause:
            self.unverified.pop(refusal.rule_id, None)
            self.unverified[refusal.rule_id] = refusal
            while len(self.unverified) > UNVERIFIED_MAX:
                del self.unverified[next(iter(self.unverified))]
        elif not (outcome.is_conflict and self.is_behind(record)):
            self.set_aside(replace(refusal, hash=hash_of(record)))

    def set_aside(self, refusal: Refusal) -> None:
        """Remember the newest refusal of each rule."""
        newest = self.refusals.get(refusal.rule_id)
        if newest is not None and newest.version > refusal.version:
            return  # the newest counts, or a repeated record would change the report
        self.refusals[refusal.rule_id] = refusal
        while len(self.refusals) > RULES_MAX:  # ids that were only ever refused: forget the oldest
            del self.refusals[next(iter(self.refusals))]

    def take_hash(self, record: UpsertRecord) -> None:
        """Write the hash of a version that a build before 0.3 has saved without a hash, or with its own."""
        earlier = _earlier_hash(record)
        chain = self._chains.get(record.id, Chain(()))
        for entry in chain.entries:
            if entry.version == record.version and entry.hash in ("", earlier):
                chain = chain.with_entry(replace(entry, hash=content_hash(record), earlier=earlier))
                self._chains[record.id] = chain

    def take_saved_version(self, line: str, version: int, digest: str = "", signed: str | None = None) -> None:
        """Remember the version of a line (trust.version_line) that an earlier build has saved elsewhere, if above 0."""
        is_shadow = line.endswith(_SHADOW) and snoozed_key(line) is None
        name = line.removesuffix(_SHADOW) if is_shadow else line
        chain = self._chains.get(name, Chain(()))
        entry = next((e for e in chain.entries if e.version == version), TakenVersion(version, digest))
        if version:
            others = Chain(tuple(e for e in chain.entries if e is not entry))
            self._chains[name] = others.with_entry(replace(entry, is_shadow=is_shadow, signed=signed or entry.signed))

    def without(self, keys: Collection[str]) -> Ledger:
        """Return the ledger without erased keys (of persons): in the names of snoozes, in reasons, and in refusals."""
        gone = set(keys)  # a snooze's versions stay, under the hash of its key, so that old records are refused
        other = Ledger(
            {
                erased_line(name) if snoozed_key(name) in gone else name: Chain(
                    tuple(_without_texts(entry, gone) for entry in chain.entries)
                )
                for name, chain in self._chains.items()
            }
        )
        other.refusals, other.unverified = (
            {name: refusal for name, refusal in refusals.items() if not names_key(f"{refusal.reason} {name}", keys)}
            for refusals in (self.refusals, self.unverified)  # unverified: of records without valid signatures
        )
        other.signers_version = self.signers_version
        return other

    def forget(self, snoozed: Iterable[str]) -> None:
        """Forget the snoozes that are not among these, where there are too many. A signed one could come again."""
        snoozes = [name for name in self._chains if "/snooze" in name]
        if len(snoozes) > SNOOZES_MAX:
            names = set(snoozed)
            for name in set(snoozes) - names - set(map(erased_line, names)):
                if self._chains[name].last_signed(is_shadow=False) is None:
                    del self._chains[name]

    # ---------------------------------------------------------------------------------------------------- bytes

    def report(self) -> dict[str, list[dict[str, Any]]]:
        """Return the last versions of every chain as JSON values, as the status shows them."""
        return {name: [entry.to_json() for entry in chain.recent] for name, chain in sorted(self._chains.items())}

    @property
    def data(self) -> str:
        """Return all chains as JSON, as `from_json` reads them."""
        return "{" + ",".join(f"{json.dumps(name)}:{self._chains[name].data}" for name in sorted(self._chains)) + "}"

    def facts(self) -> dict[str, Any]:
        """Return everything but the chains as JSON values, nothing that is empty."""
        unverified = [asdict(refusal) for refusal in self.unverified.values()]
        facts = {"unverified": unverified, "signers_version": self.signers_version}
        refused = [asdict(self.refusals[name]) for name in sorted(self.refusals)]
        return {"refused": refused, **{name: value for name, value in facts.items() if value}}

    @staticmethod
    def from_json(chains: Mapping[str, Any], facts: Mapping[str, Any] | None = None) -> Ledger:
        """Invert `data` (or `report`) and `facts`. Raises: KeyError, TypeError, AttributeError for other values."""
        ledger = Ledger({name: Chain(tuple(TakenVersion(**one) for one in chain)) for name, chain in chains.items()})
        values = facts or {}
        ledger.refusals, ledger.unverified = (
            {one["rule_id"]: Refusal(**one) for one in values.get(name, ())} for name in ("refused", "unverified")
        )
        ledger.signers_version = int(values.get("signers_version", 0))
        return ledger


def news(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, TakenVersion]]:
    """Return the changes that a job has taken between two of its reports, each with the name of its chain."""
    return [
        (name, TakenVersion(**record))
        for name, chain in after.items()
        if chain != before.get(name)
        for record in chain
        if record not in before.get(name, ())
    ]


def _drop_refusal(refusals: dict[str, Refusal], record: Signable) -> None:
    """Remove the refusal of an older version, or of this one."""
    refusal = refusals.get(item_of(record))
    if refusal is not None and refusal.version <= record.version:
        del refusals[refusal.rule_id]


def _is_shadow(record: Signable) -> bool:
    return version_line(record) != chain_of(record)


def _earlier_hash(record: Signable) -> str | None:
    """Return the hash that builds before 0.3 gave a version of a rule; None if it is the same."""
    rule = record.as_upsert() if isinstance(record, RollbackRecord) else record
    return earlier_hash(rule) if isinstance(rule, UpsertRecord) else None


def _without_texts(record: TakenVersion, keys: Collection[str]) -> TakenVersion:
    by, reason = (None if text is None or names_key(text, keys) else text for text in (record.by, record.reason))
    return replace(record, by=by, reason=reason)


def described(version: int, digest: str, by: str | None, reason: str | None) -> str:
    """Describe a version for a person."""
    shown = f"version {version}" + (f" ({digest[:_SHORT]})" if digest else "")
    return shown + (f" by {by}" if by else "") + (f": {reason}" if reason else "")


def _conflict(subject: str, last: TakenVersion) -> Outcome:
    return Outcome(
        "refused", f"{subject}; look at it, and send the change as version {last.version + 1}", is_conflict=True
    )


def _replayed(version: int, last: int) -> Outcome:
    return Outcome(
        "refused",
        f"version {version} is older than version {last}, which has been taken; to go back, sign a new change: "
        "`cep rules rollback` makes one",
        cause="replayed",
    )
