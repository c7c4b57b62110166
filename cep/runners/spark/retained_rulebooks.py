"""Changes of a live job's rulebook → the rulebooks that it may still need; the others are removed from its folder.

    CHECKPOINT/rulebooks/kept.json    {"since": 4, "swept": 120, "rulebooks": [[batch id, digest], …]}

All key groups change their rulebook in the same micro-batch, and Spark can go back by MICRO_BATCHES_RETAINED of them. A
rulebook that was replaced longer ago is therefore not needed any more, and the control records of a micro-batch are not
needed after its end. State that a job began with from elsewhere stays.
Tested by: tests/runners/spark/test_retained_rulebooks.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from cep.base.errors import StateCorruptError
from cep.base.limits import MICRO_BATCHES_RETAINED
from cep.rulebook.store import RulebookStore
from cep.runners.documents import read_document
from cep.sinks.durable import write_durably

_FILE = "kept.json"


class RetainedRulebooks:
    """The rulebooks of one job, in `directory`. `first` is the digest of the one that it has begun with, if it has."""

    def __init__(self, directory: Path, first: str | None = None) -> None:
        self._path = directory / _FILE
        self._store = RulebookStore(directory)
        self._first = first

    def changed(self, digest: str, batch_id: int) -> int:
        """Note that a micro-batch has ended with this rulebook; return how many files were removed.

        The same again changes nothing. Raises: SinkError.
        """
        ledger: dict[str, Any] = {"since": batch_id, "swept": batch_id}
        if self._path.exists():
            ledger = self._read()
        earlier = [entry for entry in ledger.get("rulebooks", []) if entry[0] < batch_id]
        rulebooks = [*earlier, [batch_id, digest]]
        oldest = batch_id - MICRO_BATCHES_RETAINED
        is_due = min(oldest - ledger["since"], oldest - ledger["swept"]) >= 0
        if is_due:
            followed_at = [first_batch for first_batch, _ in rulebooks[1:]] + [batch_id]
            rulebooks = [rulebook for rulebook, end in zip(rulebooks, followed_at, strict=True) if end > oldest]
            ledger["swept"] = batch_id
        write_durably(self._path, orjson.dumps({**ledger, "rulebooks": rulebooks}))
        if not is_due:  # not earlier, because the list does not have rulebooks from before its start
            return 0
        digests = {entry_digest for _, entry_digest in rulebooks}
        return self._store.prune(digests | ({self._first} if self._first else set()))

    def _read(self) -> dict[str, Any]:
        ledger = read_document(self._path)
        entries = ledger.get("rulebooks", [])
        numbers = [ledger.get("since"), ledger.get("swept")]
        is_right = isinstance(entries, list) and all(isinstance(entry, list) and len(entry) == 2 for entry in entries)
        if is_right:
            numbers += [entry[0] for entry in entries]
            is_right = all(isinstance(entry[1], str) for entry in entries)
        if not is_right or any(type(number) is not int for number in numbers):
            raise StateCorruptError(f"{self._path} does not list the rulebooks; restore it with the checkpoint")
        return ledger
