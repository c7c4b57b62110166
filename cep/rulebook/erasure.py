"""Keys → a rulebook that does not name them: without their snoozes, and without texts about them.

The version of a snooze stays, under the hash of the key, so that an old record of it is refused. Texts of rules and
entries of lists must be changed by people: `cep erase` reports them.
Tested by: tests/rulebook/test_erasure.py, tests/cli/test_erase.py
"""

from __future__ import annotations

from collections.abc import Collection

from cep.rulebook.rulebook import Rulebook


def forget_keys(book: Rulebook, keys: Collection[str]) -> int:
    """Take keys out of a rulebook, in place; return how many snoozes went."""
    before = len(book.snoozes.versions())
    book.snoozes = book.snoozes.without(keys)
    book.chains = book.chains.without(keys)
    book.accepted.forget_keys(keys)
    book.refusals = {
        name: refusal for name, refusal in book.refusals.items() if not any(key in refusal.reason for key in keys)
    }
    return before - len(book.snoozes.versions())
