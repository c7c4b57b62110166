"""Records of lists and snoozes, and the rules in force → the number of raw values where the rules see tokens.

The later one is refused: the list, or the rule that looks up a card number in it.
Tested by: tests/rulebook/test_list_tokens.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

import pyarrow as pa

from cep.base.errors import StateError
from cep.base.schema import Schema
from cep.base.secrets import token_key
from cep.columnar.route import key_parts
from cep.lang.diagnostics import Diagnostic
from cep.lang.ir import PatternIR
from cep.lists.entries import TEXT, Keys
from cep.lists.timeline import Lists
from cep.model.rule import ListRecord, SnoozeRecord
from cep.nfa.list_tokens import raw_count, raw_keys, token_lists
from cep.rulebook.outcome import Outcome

_HELP = "give tokens, as alerts show them"


def raw_entries(record: ListRecord, patterns: Iterable[PatternIR], stored: Callable[[str], Keys]) -> Outcome | None:
    """Return the refusal of a list in which a rule looks a protected field up, and that has values; None for others.

    `stored` gives the entries that a record names. Such entries may be removed, if they came before the rule.
    """
    if record.change == "remove":
        return None
    if not any((record.id, record.of) in token_lists(pattern) for pattern in patterns):
        return None
    raw = raw_count(pa.array([str(entry) for entry in record.entries], TEXT))
    if record.stored is not None:
        with suppress(StateError, KeyError):  # RuleLists says that it is not there
            raw += raw_keys(stored(record.stored), record.of)
    message = f"{raw} of its entries are no tokens, and a rule looks a field of type pan or sensitive up in the list"
    return _refused(message) if raw else None


def raw_lists(pattern: PatternIR, lists: Lists) -> Outcome | None:
    """Return the refusal of a rule that looks a protected field up in a list that has values; None for others."""
    for key in sorted(token_lists(pattern)):
        for version in lists.get(key, ())[-1:]:
            content = version.content
            raw = sum(raw_keys(part.keys, key[1]) for part in (content.base, content.added))
            raw -= raw_keys(content.removed.keys, key[1])
            if raw:
                return _refused(
                    f"{raw} entries of the list `{key[0]}` are no tokens, and the rule looks a field of type pan or "
                    "sensitive up in it"
                )
    return None


def raw_key(record: SnoozeRecord, patterns: Iterable[PatternIR], schema: Schema) -> Outcome | None:
    """Return the refusal of a snooze whose key has a value where a pattern of its rule has a token; None for others."""
    protected = {name for name, _ in schema.protected}
    for fields in {pattern.key for pattern in patterns}:
        named = zip(fields, key_parts(record.key or "", fields), strict=False)
        if record.key is not None and any(name in protected and token_key(part) is None for name, part in named):
            return _refused("its key is no token, and the rule has a field of type pan or sensitive as its key")
    return None


def _refused(message: str) -> Outcome:
    return Outcome("refused", _HELP, (Diagnostic("CEP320", message),))
