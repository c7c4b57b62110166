"""A change of a list or a snooze, and the rules that there are → why a job would refuse the values in it.

A job refuses such a record. But then the values stand in the control topic. So a verb asks before it sends.
Tested by: tests/rulebook/test_list_tokens.py, tests/cli/test_lists.py
"""

from __future__ import annotations

from collections.abc import Iterable

from cep.lists.entries import Keys
from cep.model.rule import ControlRecord, ListRecord, RollbackRecord, SnoozeRecord, UpsertRecord
from cep.rulebook.compatible import Refused, compile_rule
from cep.rulebook.deploy import schema_of
from cep.rulebook.list_tokens import raw_entries, raw_key


def values_in(change: ListRecord | SnoozeRecord, rules: Iterable[ControlRecord]) -> str | None:
    """Return the reason why a job with these rules would refuse the values of a change; None if it would not."""
    for record in rules:
        upsert = record.as_upsert() if isinstance(record, RollbackRecord) else record
        if not isinstance(upsert, UpsertRecord):
            continue
        if change.id not in (upsert.source if isinstance(change, ListRecord) else upsert.id):
            continue
        schema = schema_of([upsert])
        pattern = compile_rule(upsert, schema, None)
        if isinstance(pattern, Refused):
            continue
        if isinstance(change, ListRecord):
            outcome = raw_entries(change, [pattern], _not_here)
        else:
            outcome = raw_key(change, [pattern] if upsert.id == change.id else [], schema)
        if outcome is not None:
            return outcome.full_reason
    return None


def _not_here(name: str) -> Keys:
    raise KeyError(name)
