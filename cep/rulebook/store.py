"""Rulebooks of a job as files, each part under the hash of its bytes: what key groups need not keep a copy of.

    DIRECTORY/index/HASH     the versions of one rulebook
    DIRECTORY/record/HASH    one record; rulebooks that differ in one rule share all others
    DIRECTORY/control/HASH   the control records of one micro-batch, which every key group is told of

A key group keeps the hash of its rulebook, 64 characters, in its own state; whichever process meets a hash for the
first time reads the files. A file is made under another name and renamed, so that it is there whole or not at all, and
two processes that write the same hash write the same bytes. Every process of the job must see the folder, as it must
see the checkpoint.
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
from cep.rulebook.compatible import KeyDomains
from cep.rulebook.rulebook import Rulebook
from cep.rulebook.saved import Saved, record_digests, restore

_INDEX, _RECORD, _CONTROL = "index", "record", "control"


@dataclass(frozen=True, slots=True)
class RulebookStore:
    """The folder of one job."""

    directory: Path

    def put(self, saved: Saved) -> str:
        """Keep a rulebook; returns its digest. Raises: SinkError if the folder cannot be written."""
        missing = [digest for digest in saved.records if not (self.directory / _RECORD / digest).exists()]
        for digest in missing:
            self._put(_RECORD, digest, saved.records[digest], is_last=digest == missing[-1])
        self._put(_INDEX, saved.digest, saved.index)  # last: an index never names what is not there
        return saved.digest

    def get(self, digest: str, schema: Schema, key_domains: KeyDomains | None) -> Rulebook:
        """The rulebook of this digest. Raises: StateCorruptError if a file is missing or not what its name says."""
        return restore(self._get(_INDEX, digest), lambda name: self._get(_RECORD, name), schema, key_domains)

    def put_control(self, data: bytes) -> str:
        """Keep the control records of a micro-batch; returns their digest. Raises: as put."""
        digest = hashlib.sha256(data).hexdigest()
        self._put(_CONTROL, digest, data)
        return digest

    def get_control(self, digest: str) -> bytes:
        """What `put_control` was given. Raises: StateCorruptError."""
        return self._get(_CONTROL, digest)

    def prune(self, kept: Collection[str]) -> int:
        """Remove every rulebook but these, the records that none of them has, all control records of micro-batches, and
        what killed processes have left half written. To be called between micro-batches; returns how many files went.

        Raises: SinkError, StateCorruptError if one that is kept cannot be read.
        """
        records = {digest for index in kept for digest in record_digests(self._get(_INDEX, index))}
        wanted = {_INDEX: set(kept), _RECORD: records, _CONTROL: set()}
        count = 0
        try:
            for kind, names in wanted.items():
                for path in (self.directory / kind).glob("*"):
                    if path.name not in names:
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
