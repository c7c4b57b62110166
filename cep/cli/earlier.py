"""A rule and a version → its record, from the control topic or from the history of the rules in git.

Tested by: tests/cli/test_publish.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cep.model.rule import ControlRecord, RollbackRecord, UpsertRecord
from cep.rulebook.history import at_commit, history


def on_topic(records: Sequence[ControlRecord], rule_id: str, version: int) -> UpsertRecord | None:
    """Return the first record of a version; the job refused the later ones. Otherwise None."""
    upserts = (r.rule if isinstance(r, RollbackRecord) and r.version != version else r for r in records)
    whole = (r.as_upsert() if isinstance(r, RollbackRecord) else r for r in upserts)
    return next((r for r in whole if isinstance(r, UpsertRecord) and (r.id, r.version) == (rule_id, version)), None)


def in_git(directory: Path, rule_id: str, version: int) -> UpsertRecord | None:
    """Return the version from the newest commit that has it, or None."""
    for commit in history(directory, rule_id):
        record = at_commit(directory, commit.split(" ", 1)[0], rule_id)
        if record is not None and record.version == version:
            return record
    return None
