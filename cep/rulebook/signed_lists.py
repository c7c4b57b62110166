"""Declared lists of a folder of rules → the names of their entries, with which rules are signed.

A list may change without a new version of its rules. So its entries are not a part of a rule's meaning, and a signature
of the rule alone would not notice an edited list. `cep rules sign` puts the name of each list's entries
(lists/store.py) into the record. A job takes a declared list only if its signed rules name these entries, or if a
signed change of the list in `signed/` has the same entries.
Tested by: tests/rulebook/test_signed_lists.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cep.base.errors import UsageError
from cep.lists.content import Content
from cep.lists.entries import keys_of
from cep.lists.store import given_name
from cep.model.rule import ListRecord, UpsertRecord
from cep.nfa.given_lists import GivenList, asked_lists
from cep.rulebook.changes import change_path, read_change
from cep.rulebook.deploy import deploy
from cep.rulebook.files import declared_lists


def list_name(declared: GivenList) -> str:
    """Return the name of a list as `lists` of a record has it."""
    return f"{declared.name}/{declared.kind}"


def entries_name(declared: GivenList) -> str:
    """Return the name of a list's entries."""
    return given_name(declared.kind, declared.content.digest)


def with_lists(directory: Path, record: UpsertRecord) -> UpsertRecord:
    """Return the rule with the names of the entries of the declared lists that it reads. Raises: UsageError."""
    list_keys = _asked([record])
    lists, problems = declared_lists(directory) if list_keys else ([], [])
    if problems:
        raise UsageError("; ".join(problems))
    entries = {list_name(each): entries_name(each) for each in lists if (each.name, each.kind) in list_keys}
    return record.model_copy(update={"lists": entries or None})


def first_lists(directory: Path, lists: Sequence[ListRecord], rules: Sequence[UpsertRecord]) -> list[ListRecord]:
    """Return the lists that a job with signatures begins with: the lists that its rules read.

    If a signed change of a list has the declared entries, its records replace the declared list.
    """
    list_keys = _asked(rules) if lists else set()
    first: list[ListRecord] = []
    for record in lists:
        if (record.id, record.of) in list_keys:
            first += _newest_change(directory, record) or [record]
    return first


def _asked(rules: Sequence[UpsertRecord]) -> set[tuple[str, str]]:
    return asked_lists(rule.pattern for rule in deploy(rules).rulebook.deployed())


def _newest_change(directory: Path, record: ListRecord) -> list[ListRecord]:
    """Return the newest signed change that replaces the list by the declared entries; empty without such a change."""
    name = change_path(directory, record).name.removesuffix(f".{record.version}.json")
    newest: list[ListRecord] = []
    for path in sorted((directory / "signed").glob(f"{name}.*.json")):
        try:
            change = [each for each in read_change(path) if isinstance(each, ListRecord)]
        except UsageError:
            continue
        if (
            change
            and _changed_entries(change) == record.stored
            and change[0].version > sum(r.version for r in newest[:1])
        ):
            newest = change
    return newest


def _changed_entries(change: Sequence[ListRecord]) -> str | None:
    """Return the name of the entries that a whole change gives a list; None for a change that adds or removes."""
    if any(record.change != "replace" for record in change) or len(change) != change[0].parts:
        return None
    kind = change[0].of
    keys, wrong = keys_of([str(entry) for record in change for entry in record.entries], kind)
    return None if wrong else given_name(kind, Content(kind).changed("replace", keys).digest)
