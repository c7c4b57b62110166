"""Control records → the last taken versions of each rule, pause, snooze and list, with their hashes.

    card_testing         1 ──▶ 2 ──▶ 3        rule versions, including shadows
    card_testing/pause   1 ──▶ 2              pauses and resumptions

Publishing is compare-and-set. A record names the version that it changes and its hash. If the job has another one,
another publisher was first, and the record is refused. Two records cannot share a version: the first one counts. The
verdict follows from the records and their order alone, so a running job, a replay, and a job that is rebuilt from the
same records agree. A record that names nothing counts by its version, like records of other programs.
Tested by: tests/rulebook/test_chains.py
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from cep.base.limits import CHAIN_VERSIONS_MAX, SNOOZES_MAX, VERSION_FREE_MAX
from cep.columnar.tokens import hide_card_numbers
from cep.model.rule import Changes, ListRecord, RetireRecord, RollbackRecord, SnoozeRecord, UpsertRecord
from cep.rulebook.meaning import content_hash, earlier_hash
from cep.rulebook.outcome import Outcome
from cep.rulebook.statement import Signable, erased_line, line_of, names_key, snoozed_key

_SHORT = 12  # characters of a hash that a person reads


def chain_of(record: Signable) -> str:
    """Return the name of the chain of versions that a record belongs to. A rule has one, shadows and all."""
    return record.id if isinstance(record, UpsertRecord | RollbackRecord | RetireRecord) else line_of(record)


def hash_of(record: Signable) -> str:
    """Return the hash of a record's change, without its start, its sender and its reason."""
    if isinstance(record, RollbackRecord):
        return content_hash(record.as_upsert())
    if isinstance(record, UpsertRecord):
        return content_hash(record)
    if isinstance(record, ListRecord) and (record.whole is not None or record.stored is not None):
        return record.whole or ""  # an initial rule stands for any published record of its version
    facts: list[Any] = [record.kind, chain_of(record), record.version]
    if isinstance(record, SnoozeRecord):
        facts.append(record.until)
    elif isinstance(record, ListRecord):
        # Without `whole` parts belong together by their number.
        facts += [record.change, record.parts, record.entries if record.parts == 1 else None]
    return hashlib.sha256(json.dumps(facts, ensure_ascii=False).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Taken:
    """A version that a job has taken. An empty hash is one that an earlier build has not written down.

    `after` is the version that it was written against, None if its record does not say. `earlier` is the hash by which
    builds before 0.3 name it, if that is another one.
    """

    version: int
    hash: str
    after: int | None = None
    by: str | None = None
    reason: str | None = None
    earlier: str | None = None

    @property
    def text(self) -> str:
        """The version, the beginning of its hash, who sent it and why."""
        return described(self.version, self.hash, self.by, self.reason)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values, nothing that is unset."""
        names = ("version", "hash", "after", "by", "reason", "earlier")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class Chain:
    """The last versions of one chain, the lowest first."""

    taken: tuple[Taken, ...]

    @cached_property
    def data(self) -> str:
        """The chain as JSON, so that a change of one costs the others nothing."""
        return json.dumps([record.to_json() for record in self.taken], ensure_ascii=False)

    @property
    def last(self) -> Taken:
        return self.taken[-1]


class Chains:
    """The chains of a job."""

    def __init__(self, chains: Mapping[str, Chain] | None = None) -> None:
        self._chains = dict(chains or {})

    def copy(self) -> Chains:
        """Return equal chains that change on their own."""
        return Chains(self._chains)

    def last(self, name: str) -> Taken | None:
        """Return the last version of a chain, None if nothing was taken."""
        chain = self._chains.get(name)
        return None if chain is None else chain.last

    def rolled_back_digest(self, record: Signable) -> str:
        """Return the hash of the version that a rollback goes back to; empty if it is not among the last versions."""
        chain = self._chains.get(self._name(record))
        if chain is None or not isinstance(record, RollbackRecord):
            return ""
        return next((entry.hash for entry in chain.taken if entry.version == record.to_version), "")

    def is_behind(self, record: Signable) -> bool:
        """Return True if a later version than the record's has been taken."""
        last = self.last(self._name(record))
        return last is not None and last.version > record.version

    def head(self, record: Signable) -> Changes:
        """Return the `changes` of a record that is written now."""
        last = self.last(self._name(record))
        return Changes() if last is None else Changes(version=last.version, hash=last.hash)

    def outcome(self, record: Signable) -> Outcome | None:
        """Return the refusal of a record that does not follow the taken version; None for others."""
        chain = self._chains.get(self._name(record))
        last = Taken(0, "") if chain is None else chain.last
        named = record.changes
        before = max(last.version, 0 if named is None else named.version)
        if record.version > VERSION_FREE_MAX and record.version > before + 1:
            return Outcome(
                "refused",
                f"versions above {VERSION_FREE_MAX} count up one by one, or none would be left; send it as version "
                f"{before + 1}",
            )
        if chain is None:
            return None
        same = next((entry for entry in chain.taken if entry.version == record.version), None)
        if same is not None:
            is_other = same.hash and same.hash != hash_of(record)
            return _conflict(f"{same.text} was first", last) if is_other else None
        if isinstance(record, ListRecord) or named is None:
            return None  # versions of a list wait for each other
        if record.version < last.version:
            follower = next(entry for entry in chain.taken if entry.version > record.version)
            is_passed = follower.after is not None and follower.after < record.version
            return _conflict(f"{follower.text} was first", last) if is_passed else None
        is_other = named.version == last.version and last.hash and named.hash not in ("", last.hash, last.earlier)
        if named.version < last.version or is_other:
            return _conflict(f"it was written against version {named.version or 'none'}, and {last.text} holds", last)
        return None

    def take(self, record: Signable) -> None:
        """Remember a record that the rulebook has applied, or that waits."""
        name = self._name(record)
        chain = self._chains.get(name, Chain(()))
        is_forgotten = len(chain.taken) == CHAIN_VERSIONS_MAX and record.version < chain.taken[0].version
        if is_forgotten or any(entry.version == record.version for entry in chain.taken):
            return
        after = None if record.changes is None else record.changes.version
        by, reason = (None if text is None else hide_card_numbers(text) for text in (record.by, record.reason))
        entry = Taken(record.version, hash_of(record), after, by, reason, _earlier_hash(record))
        in_order = sorted((*chain.taken, entry), key=lambda one: one.version)
        self._chains[name] = Chain(tuple(in_order[-CHAIN_VERSIONS_MAX:]))

    def take_current_hash(self, record: UpsertRecord) -> None:
        """Replace the hash of a version that a build before 0.3 has saved."""
        chain, earlier = self._chains.get(record.id), _earlier_hash(record)
        if chain is not None and earlier is not None:
            self._chains[record.id] = Chain(
                tuple(
                    replace(entry, hash=content_hash(record), earlier=earlier)
                    if (entry.version, entry.hash) == (record.version, earlier)
                    else entry
                    for entry in chain.taken
                )
            )

    def take_unsaid(self, name: str, version: int, digest: str = "") -> None:
        """Remember a version of a rulebook that an earlier build has saved, which did not save chains."""
        if name not in self._chains and version:
            self._chains[name] = Chain((Taken(version, digest),))

    def _name(self, record: Signable) -> str:
        """Return the name of a record's chain, which is another one after its key was erased."""
        name = chain_of(record)
        erased = erased_line(name) if name not in self._chains and snoozed_key(name) is not None else name
        return erased if erased in self._chains else name

    def without(self, keys: Collection[str]) -> Chains:
        """Return the chains without these keys, in names and in texts of people."""
        gone = set(keys)
        return Chains(
            {
                erased_line(name) if snoozed_key(name) in gone else name: Chain(
                    tuple(_without_texts(entry, gone) for entry in chain.taken)
                )
                for name, chain in self._chains.items()
            }
        )

    def forget(self, snoozed: Iterable[str]) -> None:
        """Forget the snoozes that are not among these, where there are too many."""
        snoozes = [name for name in self._chains if "/snooze" in name]
        if len(snoozes) > SNOOZES_MAX:
            names = set(snoozed)
            for name in set(snoozes) - names - set(map(erased_line, names)):
                del self._chains[name]

    # ---------------------------------------------------------------------------------------------------- bytes

    def report(self) -> dict[str, list[dict[str, Any]]]:
        """Return the last versions of every chain as JSON values."""
        return {name: [entry.to_json() for entry in chain.taken] for name, chain in sorted(self._chains.items())}

    @property
    def data(self) -> str:
        """Return all chains as JSON, as `from_json` reads them."""
        return "{" + ",".join(f"{json.dumps(name)}:{self._chains[name].data}" for name in sorted(self._chains)) + "}"

    @staticmethod
    def from_json(saved: Mapping[str, Any]) -> Chains:
        """Invert `report`. Raises: KeyError, TypeError, AttributeError for other values."""
        return Chains({name: Chain(tuple(Taken(**values) for values in chain)) for name, chain in saved.items()})


def news(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Taken]]:
    """Return the changes that a job has taken between two of its reports, each with the name of its chain."""
    return [
        (name, Taken(**record))
        for name, chain in after.items()
        if chain != before.get(name)
        for record in chain
        if record not in before.get(name, ())
    ]


def _earlier_hash(record: Signable) -> str | None:
    """Return the hash that builds before 0.3 gave a version of a rule; None if it is the same."""
    rule = record.as_upsert() if isinstance(record, RollbackRecord) else record
    earlier = earlier_hash(rule) if isinstance(rule, UpsertRecord) else None
    return None if earlier == hash_of(record) else earlier


def _without_texts(record: Taken, keys: Collection[str]) -> Taken:
    by, reason = (None if text is None or names_key(text, keys) else text for text in (record.by, record.reason))
    return replace(record, by=by, reason=reason)


def described(version: int, digest: str, by: str | None, reason: str | None) -> str:
    """Describe a version for a person."""
    shown = f"version {version}" + (f" ({digest[:_SHORT]})" if digest else "")
    return shown + (f" by {by}" if by else "") + (f": {reason}" if reason else "")


def _conflict(subject: str, last: Taken) -> Outcome:
    return Outcome(
        "refused", f"{subject}; look at it, and send the change as version {last.version + 1}", is_conflict=True
    )
