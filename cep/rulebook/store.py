"""Rulebooks of a job as files, each part under the hash of its bytes, shared by all key groups.

    DIRECTORY/index/HASH ── the versions of one rulebook
    DIRECTORY/record/HASH ── one record, shared by rulebooks that differ in another rule
    DIRECTORY/list/NAME ── the entries of lists (lists/store.py), which every process maps
    DIRECTORY/control/HASH ── the control records of one micro-batch, whose hash every key group receives

A key group stores the hash of its rulebook, 64 characters, in its own state. A process that sees a hash for the first
time reads the files. A file is written under another name and renamed, so it is complete or missing. Two processes that
write the same hash write the same bytes. Every process of the job must see the folder, like the checkpoint.
Tested by: tests/rulebook/test_store.py
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from cep.base.durable import replace_file
from cep.base.errors import SinkError, StateCorruptError
from cep.base.schema import Schema
from cep.lists.store import ListStore, is_given
from cep.rulebook.compatible import KeyDomains
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import Saved, list_names, record_digests, restore

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
        """The store of the entries of the job's lists."""
        return ListStore(self.list_folder)

    @property
    def list_folder(self) -> Path:
        """The folder of their files."""
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
        """Remove every rulebook but these, and the records and lists that none of them has.

        Control records of micro-batches and half-written files of killed processes go too. The lists that the job began
        with stay. Call it between micro-batches.
        Returns: how many files went. Raises: SinkError, StateCorruptError if a retained rulebook cannot be read.
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
