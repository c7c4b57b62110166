"""A rulebook ↔ bytes: an index of versions, and their records beside it, each under the hash of its bytes.

    index     {"format": 2, "epoch": …, "rules": {id: {versions, pauses, changes}}, …}
    records   {sha-256 of the record: the record as JSON}

A change of one rule of thousands adds one record and writes the index anew; whoever keeps records by their hash writes
little. Equal rulebooks have equal bytes. Counters are not saved, nor what lists hold: that is in their store.
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
from cep.rulebook.compatible import KeyDomains, Refused, compile_rule
from cep.rulebook.intervals import Change, Switch
from cep.rulebook.levels import Places
from cep.rulebook.lists import RuleLists
from cep.rulebook.outcome import Outcome, Refusal
from cep.rulebook.rulebook import Known, Rulebook, deployed_rule, entry_of
from cep.rulebook.snoozes import Snoozes

FORMAT = 2


@dataclass(frozen=True, slots=True)
class Saved:
    """A rulebook as bytes. `records` are those that the index names, by their hash."""

    index: bytes
    records: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """Tells a rulebook from every other, those that match alike but remember other versions too."""
        return hashlib.sha256(self.index).hexdigest()

    def to_bytes(self) -> bytes:
        """Index and records in one."""
        return _json({"index": self.index.decode(), "records": {k: v.decode() for k, v in self.records.items()}})

    @staticmethod
    def from_bytes(data: bytes) -> Saved:
        """What `to_bytes` gave. Raises: StateCorruptError."""
        try:
            both = json.loads(data)
            return Saved(both["index"].encode(), {k: v.encode() for k, v in both["records"].items()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _corrupt(data, error) from error


def save(book: Rulebook) -> Saved:
    """The applied facts."""
    records = {entry.digest: entry.data for known in book.known.values() for entry in known.entries}
    # Each rule's part is text already (Known.data): what has not changed is not written anew.
    rules = ",".join(f"{json.dumps(name)}:{book.known[name].data}" for name in sorted(book.known))
    index = {
        "format": FORMAT,
        "epoch": book.epoch,
        "snoozes": book.snoozes.to_json(),
        "lists": book.lists.to_json(),
        "refused": [book.refusals[name].to_json() for name in sorted(book.refusals)],
    }
    if book.places is not None:
        index["places"] = book.places.to_json()
    return Saved(b'{"rules":{' + rules.encode() + b"}," + _json(index).removeprefix(b"{"), records)


def record_digests(index: bytes) -> set[str]:
    """The records that an index names. Raises: StateCorruptError."""
    try:
        rules = json.loads(index)["rules"].values()
        held = [change[3] for rule in rules for track in ("live", "shadow") for change in rule[track]]
        return {entry[0] for entry in held if entry is not None}
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise _corrupt(index, error) from error


def list_names(index: bytes) -> list[str]:
    """The sets of lists that an index names. Raises: StateCorruptError."""
    try:
        return RuleLists.from_json(json.loads(index).get("lists", []), ListStore()).names()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _corrupt(index, error) from error


def restore(
    index: bytes, record_of: Callable[[str], bytes], schema: Schema, key_domains: KeyDomains | None,
    lists: ListStore | None = None,
) -> Rulebook:  # fmt: skip
    """The rulebook of this index; `record_of` gives a record by its hash, `lists` has the sets that it names.

    A version that this build or this job no longer accepts is set aside as refused, as it would be on arrival.
    Raises: StateFormatError for an unknown format, StateCorruptError for bytes that are not a rulebook, and what
    `record_of` raises.
    """
    book = Rulebook(schema, key_domains, lists)
    try:
        found = json.loads(index)
        if found["format"] != FORMAT:
            raise StateFormatError(
                f"the rulebook was saved in format {found['format']}, this build reads {FORMAT}; "
                "start with the build that wrote it, or from a new checkpoint directory"
            )
        book.epoch = found["epoch"]
        book.refusals = {r["rule_id"]: Refusal(**r) for r in found["refused"]}
        book.snoozes = Snoozes.from_json(found["snoozes"])
        book.lists = RuleLists.from_json(found.get("lists", []), book.lists.store)
        book.places = Places.from_json(found["places"]) if "places" in found else None
        for name, rule in found["rules"].items():
            version, shadow_version, switch_version = rule["versions"]
            book.known[name] = Known(
                version,
                shadow_version,
                tuple(_change(book, saved, record_of) for saved in rule["live"]),
                tuple(_change(book, saved, record_of) for saved in rule["shadow"]),
                Switch(switch_version, tuple((start, end) for start, end in rule["pauses"])),
            )
    except (ValueError, KeyError, TypeError) as error:
        raise _corrupt(index, error) from error
    return book


def rulebook_bytes(book: Rulebook) -> bytes:
    """All of a rulebook in one."""
    return save(book).to_bytes()


def rulebook_from_bytes(
    data: bytes, schema: Schema, key_domains: KeyDomains | None, lists: ListStore | None = None
) -> Rulebook:
    """The rulebook that `rulebook_bytes` wrote. Raises: as `restore`."""
    saved = Saved.from_bytes(data)
    return restore(saved.index, saved.records.__getitem__, schema, key_domains, lists)


def _change(book: Rulebook, saved: list[Any], record_of: Callable[[str], bytes]) -> Change:
    version, from_ms, drops, held, *settled = saved
    if held is None:
        return Change(version, from_ms, drops, None, *settled)
    digest, epoch, carries, *known = held
    record, problems = parse_control(record_of(digest))
    if not isinstance(record, UpsertRecord):
        raise ValueError("; ".join(str(problem) for problem in problems) or "not an upsert")  # noqa: TRY004 of bytes
    compiled = compile_rule(record, book.schema, book.key_domains)
    if isinstance(compiled, Refused):
        reason = Outcome("refused", compiled.reason, compiled.diagnostics).full_reason
        book.set_aside(Refusal(record.id, record.version, reason))
        return Change(version, from_ms, drops, None, *settled)
    known_ms, busy_ms, level = (*known, None, None, None)[:3]  # earlier builds did not keep all of them
    rule = replace(
        deployed_rule(record, compiled, epoch),
        known_ms=tuple(known_ms or ()),
        busy_ms=tuple(busy_ms or ()),
        level=level,
    )
    return Change(version, from_ms, drops, entry_of(record, rule, carries), *settled)


def _corrupt(data: bytes, error: Exception) -> StateCorruptError:
    return StateCorruptError(f"{len(data)} bytes are not a saved rulebook ({error!r}); restore an older checkpoint")


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
