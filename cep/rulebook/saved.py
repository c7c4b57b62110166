"""A rulebook ↔ bytes: an index of versions, and their records, each stored under the hash of its bytes.

    index     {"format": 3, "epoch": …, "rules": {id: {pauses, changes}}, "ledger": {…}, …}
    records   {sha-256 of the record: the record as JSON}

A change of one rule among thousands adds one record and rewrites the index. Equal rulebooks have equal bytes. Counters
are not saved.

A job with a folder keeps each part in a file under the hash of its bytes, shared by all key groups:

    DIRECTORY/index/HASH ── the versions of one rulebook
    DIRECTORY/record/HASH ── one record, shared by rulebooks that differ in another rule
    DIRECTORY/list/NAME ── the entries of lists (lists/store.py), which every process maps
    DIRECTORY/control/HASH ── the control records of one micro-batch, whose hash every key group receives

A key group stores the hash of its rulebook, 64 characters, in its own state. A process that sees a hash for the first
time reads the files. A file is written under another name and renamed, so it is complete or missing. Every process of
the job must see the folder, like the checkpoint.
Tested by: tests/rulebook/test_rulebook.py
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from cep.base.audit import Trail
from cep.base.errors import SinkError, StateCorruptError, StateFormatError
from cep.base.files import replace_file
from cep.base.schema import Schema
from cep.lists.store import ListStore, is_given
from cep.model.rule import UpsertRecord, parse_control
from cep.rulebook.compatible import KeyDomains, compile_rule
from cep.rulebook.ledger import Ledger
from cep.rulebook.lists import RuleLists
from cep.rulebook.outcome import Outcome, Refusal
from cep.rulebook.rulebook import LevelBounds, Rulebook
from cep.rulebook.trust import snooze_line
from cep.rulebook.versions import Change, RuleVersions, Snoozes, deployed_rule, entry_of

FORMAT, FORMAT_EARLIER = 3, 2


@dataclass(frozen=True, slots=True)
class Saved:
    """A rulebook as bytes: an index, and the records that it refers to by their hash."""

    index: bytes
    records: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """The hash of the index. Rulebooks with equal rules have other hashes if they remember other versions."""
        return hashlib.sha256(self.index).hexdigest()

    def to_bytes(self) -> bytes:
        return _json({"index": self.index.decode(), "records": {k: v.decode() for k, v in self.records.items()}})

    @staticmethod
    def from_bytes(data: bytes) -> Saved:
        """Invert `to_bytes`. Raises: StateCorruptError."""
        try:
            both = orjson.loads(data)
            return Saved(both["index"].encode(), {k: v.encode() for k, v in both["records"].items()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _corrupt(data, error) from error


def save(book: Rulebook) -> Saved:
    """Convert a rulebook to an index and one record for each version, which `restore` reads."""
    records = {entry.digest: entry.data for versions in book.rules.values() for entry in versions.entries}
    # Each rule's part is already text (RuleVersions.data), so that only changed rules are written again.
    rules = ",".join(f"{json.dumps(name)}:{book.rules[name].data}" for name in sorted(book.rules))
    cached_part = '{"rules":{' + rules + '},"ledger":' + book.ledger.data + ","
    index = {
        "format": FORMAT,
        "epoch": book.epoch,
        "snoozes": book.snoozes.to_json(),
        "lists": book.lists.to_json(),
        **book.ledger.facts(),
    }
    if book.trail != Trail():  # an audit (log of changes) has begun
        index["audit"] = book.trail.to_json()
    if book.level_bounds is not None:
        index["places"] = book.level_bounds.to_json()  # bounds of the levels of new rules
    return Saved(cached_part.encode() + _json(index).removeprefix(b"{"), records)  # one JSON object


def record_digests(index: bytes) -> set[str]:
    """Return the hashes of the records that an index names. Raises: StateCorruptError."""
    try:
        rules = orjson.loads(index)["rules"].values()
        entries = [change[3] for rule in rules for track in ("live", "shadow") for change in rule[track]]
        return {entry[0] for entry in entries if entry is not None}
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise _corrupt(index, error) from error


def list_names(index: bytes) -> list[str]:
    """Return the names of the lists' sets that an index names. Raises: StateCorruptError."""
    try:
        return RuleLists.from_json(orjson.loads(index).get("lists", []), ListStore()).names()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _corrupt(index, error) from error


def restore(
    index: bytes, record_of: Callable[[str], bytes], schema: Schema, key_domains: KeyDomains | None,
    lists: ListStore | None = None,
) -> Rulebook:  # fmt: skip
    """Restore a rulebook from its index. `record_of` returns a record by its hash, `lists` has entries of lists.

    A version that this build or this job no longer accepts becomes a refusal, as it would on arrival. Raises:
    StateFormatError for an unknown format, StateCorruptError for invalid bytes, and the errors of `record_of`.
    """
    book = Rulebook(schema, key_domains, lists)
    try:
        saved_index = orjson.loads(index)
        if saved_index["format"] == FORMAT_EARLIER:
            saved_index = _from_earlier(saved_index)
        if saved_index["format"] != FORMAT:
            raise StateFormatError(
                f"the rulebook was saved in format {saved_index['format']}, this build reads {FORMAT}; "
                "start with the build that wrote it, or from a new checkpoint directory"
            )
        book.epoch = saved_index["epoch"]
        book.ledger = Ledger.from_json(saved_index["ledger"], saved_index)
        book.snoozes = Snoozes.from_json(saved_index["snoozes"])
        book.lists = RuleLists.from_json(saved_index.get("lists", []), book.lists.store)
        book.trail = Trail.from_json(saved_index["audit"]) if "audit" in saved_index else Trail()
        book.level_bounds = LevelBounds.from_json(saved_index["places"]) if "places" in saved_index else None
        for name, rule in saved_index["rules"].items():
            book.rules[name] = RuleVersions(
                tuple(_change(book, saved, record_of) for saved in rule["live"]),  # it may add a refusal to the ledger
                tuple(_change(book, saved, record_of) for saved in rule["shadow"]),
                tuple((start, end) for start, end in rule["pauses"]),
            )
            for entry in book.rules[name].entries:
                book.ledger.take_hash(entry.record)
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
    """Restore one change of a rule; a version that does not compile any more becomes a refusal."""
    version, from_ms, drops_runs, entry, *final_times = saved  # the ends of its match starts, events and last pause
    if entry is None:  # a retirement: no version to match
        return Change(version, from_ms, drops_runs, None, *final_times)
    digest, epoch, carries, *times = entry  # epoch: number of the change; carries: version whose runs it takes over
    record, problems = parse_control(record_of(digest))
    if not isinstance(record, UpsertRecord):
        raise ValueError("; ".join(str(problem) for problem in problems) or "not an upsert")  # noqa: TRY004 of bytes
    compiled = compile_rule(record, book.schema, book.key_domains)
    if isinstance(compiled, Outcome):
        book.ledger.set_aside(Refusal(record.id, record.version, compiled.full_reason))
        return Change(version, from_ms, drops_runs, None, *final_times)
    complete_ms, folded_since_ms, level = (*times, None, None, None)[:3]  # None: an earlier build did not save it
    rule = replace(
        deployed_rule(record, compiled, epoch),
        complete_ms=tuple(complete_ms or ()),  # since when its histories have all their past events
        folded_since_ms=tuple(folded_since_ms or ()),  # the same for keys with folded events (merged into an aggregate)
        level=level,
    )
    return Change(version, from_ms, drops_runs, entry_of(record, rule, carries), *final_times)


def _from_earlier(index: dict[str, Any]) -> dict[str, Any]:
    """Convert the index of a build before 0.3, which had last versions in four places. Now the ledger has all."""
    accepted = index.get("accepted") or {}  # version of the signers file; "last": version and hash of signed changes
    taken = dict(index.get("taken", {}))  # by rule or list: its last few versions
    for name, rule in index["rules"].items():
        live, _shadow, _pause = rule["versions"]  # last versions; one above `live` must be a shadow (on trial)
        taken[name] = [{**entry, "is_shadow": entry["version"] > live} for entry in taken.get(name, ())]
    ledger = Ledger.from_json({name: chain for name, chain in taken.items() if chain})
    for name, rule in index["rules"].items():
        live, shadow, pause = rule["versions"]  # numbers, 0 where there is none
        ledger.take_saved_version(name, live)
        ledger.take_saved_version(f"{name}/shadow", shadow if shadow > live else 0)
        ledger.take_saved_version(f"{name}/pause", pause)
    for rule_id, key, version, _ in index["snoozes"]:
        ledger.take_saved_version(snooze_line(rule_id, key), version)
    for line, (version, digest) in accepted.get("last", {}).items():
        ledger.take_saved_version(line, version, signed=digest)
    return {**index, **accepted, "format": FORMAT, "ledger": orjson.loads(ledger.data)}


def _corrupt(data: bytes, error: Exception) -> StateCorruptError:
    return StateCorruptError(f"{len(data)} bytes are not a saved rulebook ({error!r}); restore an older checkpoint")


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


_INDEX, _RECORD, _CONTROL, _LIST = "index", "record", "control", "list"


@dataclass(frozen=True, slots=True)
class RulebookStore:
    """The folder of one job."""

    directory: Path

    def put(self, saved: Saved) -> str:
        """Keep a rulebook; returns its digest. Raises: SinkError if the folder cannot be written."""
        missing = [digest for digest in saved.records if not (self.directory / _RECORD / digest).exists()]
        for digest in missing:
            self._put(_RECORD, digest, saved.records[digest], is_last=digest == missing[-1])
        self._put(_INDEX, saved.digest, saved.index)  # last, so that an index never names a missing file
        return saved.digest

    def get(self, digest: str, schema: Schema, key_domains: KeyDomains | None) -> Rulebook:
        """Read the rulebook of this digest. Raises: StateCorruptError if a file is missing or differs from its name."""
        index = self._get(_INDEX, digest)
        return restore(index, lambda name: self._get(_RECORD, name), schema, key_domains, self.lists)

    @property
    def lists(self) -> ListStore:
        return ListStore(self.list_folder)

    @property
    def list_folder(self) -> Path:
        return self.directory / _LIST

    def put_control(self, data: bytes) -> str:
        """Keep the control records of a micro-batch; returns their digest. Raises: as put."""
        digest = hashlib.sha256(data).hexdigest()
        self._put(_CONTROL, digest, data)
        return digest

    def get_control(self, digest: str) -> bytes:
        """Invert `put_control`. Raises: StateCorruptError."""
        return self._get(_CONTROL, digest)

    def prune(self, retained: Collection[str]) -> int:
        """Remove all files that the `retained` rulebooks do not need, between micro-batches; return how many.

        Control records of micro-batches and half-written files of killed processes go too. The lists that the job began
        with stay. Raises: SinkError, StateCorruptError if a retained rulebook cannot be read.
        """
        indices = [self._get(_INDEX, index) for index in retained]
        records = {digest for index in indices for digest in record_digests(index)}
        lists = {self.lists.path(name).name for index in indices for name in list_names(index)}
        used = {_INDEX: set(retained), _RECORD: records, _CONTROL: set(), _LIST: lists}
        count = 0
        try:
            for kind, names in used.items():
                for path in (self.directory / kind).glob("*"):
                    if path.name not in names and not (kind == _LIST and is_given(path.name)):
                        path.unlink(missing_ok=True)
                        count += 1
        except OSError as error:
            raise SinkError(f"{self.directory} cannot be cleared: {error}; nothing is lost, mend the folder") from error
        return count

    def _put(self, kind: str, digest: str, data: bytes, *, is_last: bool = True) -> None:
        path = self.directory / kind / digest
        if path.exists():
            return
        try:
            replace_file(path, data, many_writers=True, is_last=is_last)
        except OSError as error:
            raise SinkError(
                f"{path} cannot be written: {error}; the job goes on from its checkpoint once it can"
            ) from error

    def _get(self, kind: str, digest: str) -> bytes:
        path = self.directory / kind / digest
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StateCorruptError(f"{path} cannot be read ({error}); restore it with the checkpoint") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise StateCorruptError(f"{path} holds other bytes than its name says; restore it with the checkpoint")
        return data
