"""A secret of the environment → the first line of a manifest, and whether one that came back fits.

    CEP_MANIFEST_KEY         the key itself
    CEP_MANIFEST_KEY_FILE    or a file that has it

    without a key   SHA256
    with a key      SHA256 hmac-sha256:HEX

The same key signs other short facts of a job, such as the head of its audit: `fact_signature`.

A process that has a key refuses every manifest that was not signed with it. One without reads both.
Tested by: tests/state/test_manifest.py
"""

from __future__ import annotations

import hashlib
import hmac
import os

from cep.base.errors import StateCorruptError, UsageError

KEY, KEY_FILE = "CEP_MANIFEST_KEY", "CEP_MANIFEST_KEY_FILE"
_MARK = b" hmac-sha256:"
_MANIFEST = b"cep manifest 1\n"
_KEY_BYTES_MIN, _KEY_BYTES_MAX = 16, 4_096


def first_line(body: bytes) -> bytes:
    """Return the line before a manifest's body. Raises: UsageError for an invalid key."""
    key = _key()
    checksum = hashlib.sha256(body).hexdigest().encode()
    return checksum if key is None else checksum + _MARK + _signature(key, _MANIFEST + body)


def check_first_line(line: bytes, body: bytes, name: str) -> None:
    """Check the checksum of a manifest, and its signature if the process has a key; `name` is for messages.

    Raises: StateCorruptError if one does not fit, or is missing; UsageError for an invalid key.
    """
    checksum, mark, signature = line.partition(_MARK)
    if hashlib.sha256(body).hexdigest().encode() != checksum:
        raise StateCorruptError(f"{name} fails its checksum")
    key = _key()
    if key is None:
        return
    if not mark:
        raise StateCorruptError(f"{name} is not signed, and {KEY} asks for it; take a copy that was made with the key")
    if not hmac.compare_digest(signature, _signature(key, _MANIFEST + body)):
        raise StateCorruptError(
            f"{name} is not signed with {KEY}; do not use it, or give the key that it was made with"
        )


def fact_signature(fact: str) -> str | None:
    """Return the signature of a fact of a job, one line of text; None without a key. Raises: UsageError."""
    key = _key()
    return None if key is None else _signature(key, b"cep fact 1\n" + fact.encode()).decode()


def check_fact(fact: str, signature: object, name: str) -> None:
    """Check the signature of a fact if the process has a key; `name` is for messages.

    Raises: StateCorruptError if it is missing or does not fit; UsageError for an invalid key.
    """
    expected = fact_signature(fact)
    if expected is None:
        return
    if signature is None:
        raise StateCorruptError(f"{name} is not signed, and {KEY} asks for it; do not trust it")
    if not isinstance(signature, str) or not hmac.compare_digest(signature.encode(), expected.encode()):
        raise StateCorruptError(f"{name} is not signed with {KEY}; do not trust it, or give the key of the job")


def _signature(key: bytes, data: bytes) -> bytes:
    return hmac.new(key, data, hashlib.sha256).hexdigest().encode()


def _key() -> bytes | None:
    """Read the key from the environment or its file, None without one. Raises: UsageError.

    The key is read again each time: manifests are rare, and a key should not stay in memory.
    """
    text, path = os.environ.get(KEY), os.environ.get(KEY_FILE)
    if text is None and path is None:
        return None
    if text is not None and path is not None:
        raise UsageError(f"{KEY} and {KEY_FILE} exclude each other")
    try:
        if path is None:
            key = os.environb[KEY.encode()]
        else:
            with open(path, "rb") as file:  # noqa: PTH123 a name of the environment, read once
                key = file.read(_KEY_BYTES_MAX + 1).strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"{KEY_FILE} names {path}, which cannot be read: {error}") from error
    if not _KEY_BYTES_MIN <= len(key) <= _KEY_BYTES_MAX:
        raise UsageError(f"the key of manifests has {len(key)} bytes; give {_KEY_BYTES_MIN} to {_KEY_BYTES_MAX}")
    return key
