"""A file or the environment → the keys that turn card numbers into tokens, and the token of one value.

    CEP_SECRETS_FILE names a file, or CEP_SECRETS has the same text: one line per key
        ID SECRET [TIME]      k2 9f0c…(32 characters or more) 2026-12-01T00:00:00Z

A token is `pan_ID_HASH` or `secret_ID_HASH`. HASH is HMAC-SHA-256 of the value, cut to 128 bits, in 32 letters from a
to p: without digits a token never looks like a card number. HMAC-SHA-256 is standard, and tokens reveal nothing about
the key.

The key of an event is the key with the latest TIME that its event time has reached. Of keys without a time the first
counts. Keys come only from the environment: job descriptions, checkpoints and pickles of Spark never contain one.
Tested by: tests/base/test_secrets.py
"""

import hmac
import os
import re
from binascii import hexlify
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path

from cep.base.errors import UnreadableError, UsageError
from cep.base.files import read_file
from cep.base.limits import SECRET_CHARS_MIN, SECRETS_FILE_BYTES_MAX, SECRETS_MAX, TIME_MS_MIN

SECRETS_FILE, SECRETS = "CEP_SECRETS_FILE", "CEP_SECRETS"
PAN, SENSITIVE = "pan", "sensitive"  # declared kinds of a field
_PREFIXES = {PAN: "pan", SENSITIVE: "secret"}
TOKEN_STARTS = tuple(f"{prefix}_" for prefix in _PREFIXES.values())
_HASH_BYTES = 16
_ID = re.compile(r"[a-z0-9]{1,16}")
TOKENS_MATCH = r"(?:pan|secret)_([a-z0-9]{1,16})_[a-p]{32}"
_TOKEN = re.compile(TOKENS_MATCH)
_ALPHABET = bytes.maketrans(b"0123456789abcdef", b"abcdefghijklmnop")
_HELP = "a line of it is `ID SECRET` or `ID SECRET TIME`, as `k1 …` with 32 characters or more"


@dataclass(frozen=True, slots=True)
class SecretKey:
    """One key: its id, its secret, and the event time from which it is used. `repr` does not show the secret."""

    id: str
    secret: bytes = field(repr=False)
    from_ms: int = TIME_MS_MIN

    def token(self, kind: str, value: bytes) -> str:
        """Return the token of a value of a field of this kind."""
        digest = hmac.digest(self.secret, kind.encode() + b"\0" + value, "sha256")
        hash_text = hexlify(digest[:_HASH_BYTES]).translate(_ALPHABET).decode()  # letters only: not like a card number
        return f"{_PREFIXES[kind]}_{self.id}_{hash_text}"


def token_key(text: str) -> str | None:
    """Return the key's id of a token, None for other texts."""
    parts = _TOKEN.fullmatch(text)
    return None if parts is None else parts[1]


def secret_keys() -> tuple[SecretKey, ...]:
    """Return the keys of this process, those without a time first. Raises: UsageError for none, or bad ones."""
    file, text = os.environ.get(SECRETS_FILE), os.environ.get(SECRETS)
    if not file and not text:
        raise UsageError(
            "the events have a field of type pan or sensitive, and there is no key to replace its values with; name a "
            "file of keys with --secrets or CEP_SECRETS_FILE, or put its text into CEP_SECRETS"
        )
    return _file_keys(file) if file else _read(text or "", SECRETS)


def hide_tokens(text: str) -> str:
    """Return a text in which no token can be read."""
    return _TOKEN.sub("•••", text)


def use_secrets_file(path: Path | None) -> None:
    """Make this process, and the processes that it starts, take their keys from a file."""
    if path is not None:
        os.environ[SECRETS_FILE] = str(path.resolve())


@lru_cache(maxsize=8)
def _file_keys(path: str) -> tuple[SecretKey, ...]:
    try:
        return _read(read_file(Path(path), SECRETS_FILE_BYTES_MAX).decode(), path)
    except (UnreadableError, ValueError) as error:
        reason = str(error) if isinstance(error, UnreadableError) else "it is no text in UTF-8"
        raise UsageError(f"the file of keys {path} cannot be read: {reason}; {_HELP}") from None


@lru_cache(maxsize=8)
def _read(text: str, where: str) -> tuple[SecretKey, ...]:
    """Parse the text of a key file. Return its keys, the oldest first. Raises: UsageError."""
    keys: list[SecretKey] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if words and not words[0].startswith("#"):
            keys.append(_key(words, f"line {number} of {where}"))
    if not 1 <= len(keys) <= SECRETS_MAX:
        raise UsageError(f"{where} has {len(keys)} keys, 1 to {SECRETS_MAX} are possible; {_HELP}")
    if len({key.id for key in keys}) < len(keys):
        raise UsageError(f"two keys of {where} have one id; give each an id of its own")
    if all(key.from_ms > TIME_MS_MIN for key in keys):  # TIME_MS_MIN: a key without a time
        raise UsageError(f"every key of {where} has a time, so earlier events have none; leave out that of the oldest")
    return tuple(sorted(keys, key=lambda key: key.from_ms))  # stable: keys without a time keep their order


def _key(words: list[str], where: str) -> SecretKey:
    """Parse one line of a key file. Raises: UsageError."""
    if len(words) not in (2, 3) or not _ID.fullmatch(words[0]) or len(words[1]) < SECRET_CHARS_MIN:
        raise UsageError(
            f"{where} is no key: an id of letters a-z and digits, a secret of {SECRET_CHARS_MIN} characters or more, "
            "and perhaps a time; the secret is not shown"
        )
    try:
        moment = datetime.fromisoformat(words[2]) if len(words) == 3 else None
    except ValueError:
        raise UsageError(f"{where}: the third word is no time such as 2026-12-01T00:00:00Z") from None
    if moment is None:
        return SecretKey(words[0], words[1].encode())
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    from_ms = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)  # exact, unlike float seconds
    return SecretKey(words[0], words[1].encode(), from_ms)


# The part between `//` and the last `@` before the path: a user, a password or a token.
_USER = re.compile(r"://[^/?#]*@")
_BEHIND = re.compile(r"[?#]")
_REGISTRY = re.compile(r"(https?|mock)://[^/?#@\\\s]+(/[^?#@\\\s]*)?")


def without_user(address: str) -> str | None:
    """Return the address without its user, password or token; None if it has none."""
    return _BEHIND.split(_USER.sub("://…@", address))[0] if _USER.search(address) else None


def check_place(place: str, instead: str) -> None:
    """Check that an address of data contains no secret; `instead` names its right place. Raises: UsageError."""
    if "://" not in place:
        return
    shown = without_user(place)
    if shown is not None:
        raise UsageError(f"{shown} has a user or a password in it; {instead}")
    address, *behind = _BEHIND.split(place, maxsplit=1)
    if behind:
        raise UsageError(f"{address} has a query or a fragment behind it, which may hold a token; {instead}")


def check_registry(addresses: str) -> None:
    """Check the addresses of a schema registry, with commas between them. Raises: UsageError that shows none."""
    for address in addresses.split(","):
        if not _REGISTRY.fullmatch(address.strip()):
            raise UsageError(
                "`url` of [events.registry] is https://HOST:PORT/PATH without a user, a password or a query, which "
                'would come into logs; give "basic.auth.user.info" = "env:NAME" or "bearer.auth.token" instead'
            )
