"""A rulebook ↔ bytes: an index of versions, and their records, each stored under the hash of its bytes.

    index     {"format": 2, "epoch": …, "rules": {id: {versions, pauses, changes}}, …}
    records   {sha-256 of the record: the record as JSON}

A change of one rule among thousands adds one record and rewrites the index; a store that keeps records by their hash
writes little. Equal rulebooks have equal bytes. Counters are not saved. The entries of lists are in their own store.
Tested by: tests/rulebook/test_rulebook_properties.py, tests/rulebook/test_rulebook.py
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cep.base.errors import StateCorruptError, StateFormatError
from cep.base.schema import Schema
from cep.lists.store import ListStore
from cep.model.rule import UpsertRecord, parse_control
from cep.rulebook.chains import Chains
from cep.rulebook.compatible import KeyDomains, Refused, compile_rule
from cep.rulebook.intervals import Change, Switch
from cep.rulebook.levels import Places
from cep.rulebook.lists import RuleLists
from cep.rulebook.outcome import Outcome, Refusal
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.snoozes import Snoozes
from cep.rulebook.trust import Accepted
from cep.rulebook.versions import RuleVersions, deployed_rule, entry_of

FORMAT = 2


@dataclass(frozen=True, slots=True)
class Saved:
    """A rulebook as bytes. `records` are the records of the index, by their hash."""

    index: bytes
    records: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """The hash of the index: another one for rulebooks that match alike but remember other versions."""
        return hashlib.sha256(self.index).hexdigest()

    def to_bytes(self) -> bytes:
        """Index and records in one."""
        return _json({"index": self.index.decode(), "records": {k: v.decode() for k, v in self.records.items()}})

    @staticmethod
    def from_bytes(data: bytes) -> Saved:
        """Invert `to_bytes`. Raises: StateCorruptError."""
        try:
            both = json.loads(data)
            return Saved(both["index"].encode(), {k: v.encode() for k, v in both["records"].items()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _corrupt(data, error) from error


def save(book: Rulebook) -> Saved:
    """Write down the applied facts of a rulebook."""
    records = {entry.digest: entry.data for versions in book.rules.values() for entry in versions.entries}
    # Each rule's part is already text (RuleVersions.data), so that only changed rules are written again.
    rules = ",".join(f"{json.dumps(name)}:{book.rules[name].data}" for name in sorted(book.rules))
    first = '{"rules":{' + rules + '},"taken":' + book.chains.data + ","
    index = {
        "format": FORMAT,
        "epoch": book.epoch,
        "snoozes": book.snoozes.to_json(),
        "lists": book.lists.to_json(),
        "refused": [book.refusals[name].to_json() for name in sorted(book.refusals)],
    }
    accepted = book.accepted.to_json()
    if accepted is not None:
        index["accepted"] = accepted
    if book.places is not None:
        index["places"] = book.places.to_json()
    return Saved(first.encode() + _json(index).removeprefix(b"{"), records)


def record_digests(index: bytes) -> set[str]:
    """Return the hashes of the records that an index names. Raises: StateCorruptError."""
    try:
        rules = json.loads(index)["rules"].values()
        entries = [change[3] for rule in rules for track in ("live", "shadow") for change in rule[track]]
        return {entry[0] for entry in entries if entry is not None}
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise _corrupt(index, error) from error


def list_names(index: bytes) -> list[str]:
    """Return the names of the lists' sets that an index names. Raises: StateCorruptError."""
    try:
        return RuleLists.from_json(json.loads(index).get("lists", []), ListStore()).names()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _corrupt(index, error) from error


def restore(
    index: bytes, record_of: Callable[[str], bytes], schema: Schema, key_domains: KeyDomains | None,
    lists: ListStore | None = None,
) -> Rulebook:  # fmt: skip
    """Restore the rulebook of this index; `record_of` returns a record by its hash, `lists` has its sets.

    A version that this build or this job no longer accepts is set aside as refused, as it would be on arrival. Raises:
    StateFormatError for an unknown format, StateCorruptError for invalid bytes, and the errors of `record_of`.
    """
    book = Rulebook(schema, key_domains, lists)
    try:
        saved_index = json.loads(index)
        if saved_index["format"] != FORMAT:
            raise StateFormatError(
                f"the rulebook was saved in format {saved_index['format']}, this build reads {FORMAT}; "
                "start with the build that wrote it, or from a new checkpoint directory"
            )
        book.epoch = saved_index["epoch"]
        book.refusals = {r["rule_id"]: Refusal(**r) for r in saved_index["refused"]}
        book.snoozes = Snoozes.from_json(saved_index["snoozes"])
        book.lists = RuleLists.from_json(saved_index.get("lists", []), book.lists.store)
        book.accepted = Accepted.from_json(saved_index.get("accepted"))
        book.chains = Chains.from_json(saved_index.get("taken", {}))
        book.places = Places.from_json(saved_index["places"]) if "places" in saved_index else None
        for name, rule in saved_index["rules"].items():
            version, shadow_version, switch_version = rule["versions"]
            book.rules[name] = RuleVersions(
                version,
                shadow_version,
                tuple(_change(book, saved, record_of) for saved in rule["live"]),
                tuple(_change(book, saved, record_of) for saved in rule["shadow"]),
                Switch(switch_version, tuple((start, end) for start, end in rule["pauses"])),
            )
            for entry in book.rules[name].entries:
                book.chains.take_current_hash(entry.record)
            _chain_unsaid(book, name)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _corrupt(index, error) from error
    return book


def rulebook_bytes(book: Rulebook) -> bytes:
    """Write a whole rulebook as one piece of bytes."""
    return save(book).to_bytes()


def rulebook_from_bytes(
    data: bytes, schema: Schema, key_domains: KeyDomains | None, lists: ListStore | None = None
) -> Rulebook:
    """Restore the rulebook that `rulebook_bytes` wrote. Raises: as `restore`."""
    saved = Saved.from_bytes(data)
    return restore(saved.index, saved.records.__getitem__, schema, key_domains, lists)


def _change(book: Rulebook, saved: list[Any], record_of: Callable[[str], bytes]) -> Change:
    version, from_ms, drops, entry, *settled = saved
    if entry is None:
        return Change(version, from_ms, drops, None, *settled)
    digest, epoch, carries, *times = entry
    record, problems = parse_control(record_of(digest))
    if not isinstance(record, UpsertRecord):
        raise ValueError("; ".join(str(problem) for problem in problems) or "not an upsert")  # noqa: TRY004 of bytes
    compiled = compile_rule(record, book.schema, book.key_domains)
    if isinstance(compiled, Refused):
        reason = Outcome("refused", compiled.reason, compiled.diagnostics).full_reason
        book.set_aside(Refusal(record.id, record.version, reason))
        return Change(version, from_ms, drops, None, *settled)
    complete_ms, unfolded_ms, level = (*times, None, None, None)[:3]  # earlier builds did not save all of them
    rule = replace(
        deployed_rule(record, compiled, epoch),
        complete_ms=tuple(complete_ms or ()),
        unfolded_ms=tuple(unfolded_ms or ()),
        level=level,
    )
    return Change(version, from_ms, drops, entry_of(record, rule, carries), *settled)


def _chain_unsaid(book: Rulebook, name: str) -> None:
    """Start the chains of a rule that an earlier build has saved without them, from its remaining records."""
    versions = book.rules[name]
    last = max(versions.version, versions.shadow_version)
    hashes = [entry.rule.content_hash for entry in versions.entries if entry.rule.version == last]
    book.chains.take_unsaid(name, last, *hashes[:1])
    book.chains.take_unsaid(f"{name}/pause", versions.switch.version)


def _corrupt(data: bytes, error: Exception) -> StateCorruptError:
    return StateCorruptError(f"{len(data)} bytes are not a saved rulebook ({error!r}); restore an older checkpoint")


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
