"""Keys → a rulebook that does not name them: without their snoozes, and without texts about them.

The version of a snooze stays, under the hash of the key, so that an old record of it is refused. Texts of rules and
entries of lists must be changed by people: `cep job erase` reports them.
Tested by: tests/rulebook/test_erasure.py, tests/cli/test_erase.py
"""

from __future__ import annotations

from collections.abc import Collection

from cep.rulebook.rulebook import Rulebook


def forget_keys(book: Rulebook, keys: Collection[str]) -> int:
    """Take keys out of a rulebook, in place; return how many snoozes went.

    A key takes its snoozes along, and texts of people and refusals that have the key as a whole word. A key that is a
    part of other words takes nothing along.
    """
    before = len(book.snoozes.names())
    book.snoozes = book.snoozes.without(keys)
    book.ledger = book.ledger.without(keys)
    return before - len(book.snoozes.names())
