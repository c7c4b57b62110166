"""Addresses of servers → refused where they hold a secret, because addresses come into messages and logs.

Tested by: tests/base/test_secrets.py
"""

from __future__ import annotations

import re

from cep.base.errors import UsageError

# The part between `//` and the last `@` before the path: a user, a password or a token.
_USER = re.compile(r"://[^/?#]*@")
_BEHIND = re.compile(r"[?#]")
_REGISTRY = re.compile(r"(https?|mock)://[^/?#@\\\s]+(/[^?#@\\\s]*)?")


def without_user(address: str) -> str | None:
    """Return the address without its user, password or token; None if it has none."""
    return _BEHIND.split(_USER.sub("://…@", address))[0] if _USER.search(address) else None


def check_place(place: str, instead: str) -> None:
    """Check that an address contains no secret. `instead` names the right place for secrets.

    The address is the path or URL of a table or of checkpoints. Raises: UsageError for a URL with a user, a password or
    a query, without showing them.
    """
    if "://" not in place:
        return
    shown = without_user(place)
    if shown is not None:
        raise UsageError(f"{shown} has a user or a password in it; {instead}")
    address, *behind = _BEHIND.split(place, maxsplit=1)
    if behind:
        raise UsageError(f"{address} has a query or a fragment behind it, which may hold a token; {instead}")


def check_registry(addresses: str) -> None:
    """Check the addresses of a schema registry, with commas between them.

    Raises: UsageError that shows none of them, for they may hold a user, a password or a token.
    """
    for address in addresses.split(","):
        if not _REGISTRY.fullmatch(address.strip()):
            raise UsageError(
                "`url` of [events.registry] is https://HOST:PORT/PATH without a user, a password or a query, which "
                'would come into logs; give "basic.auth.user.info" = "env:NAME" or "bearer.auth.token" instead'
            )
