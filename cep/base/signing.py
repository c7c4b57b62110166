"""Ed25519 keys: files of private keys, public keys as text, signatures over bytes.

    NAME.pem    the private key (PKCS 8), readable only by its owner; a passphrase encrypts it
    NAME.pub    the public key as text: ed25519:HEX

The underlying library is loaded with the first key: a job without signed rules starts without it.
Tested by: tests/base/test_signing.py
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from cep.base.errors import UnreadableError, UsageError
from cep.base.files import read_file
from cep.base.limits import KEY_FILE_BYTES_MAX

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_PREFIX = "ed25519:"
_PUBLIC = re.compile(r"ed25519:[0-9a-f]{64}")
_SIGNATURE = re.compile(r"[0-9a-f]{128}")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_VERIFIED_MAX = 4_096
_FIELD = 2**255 - 19
_SIGN_BIT = 1 << 255
# The y coordinates of the eight points of small order (RFC 8032, 5.1). Anybody can sign for such a key.
_SMALL_ORDER = frozenset({
    0, 1, _FIELD - 1,
    0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826,
    0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A private key. It is never printed."""

    _key: Ed25519PrivateKey

    def __repr__(self) -> str:
        return f"SigningKey({self.public})"

    @property
    def public(self) -> str:
        """The public key as text."""
        return _PREFIX + self._key.public_key().public_bytes_raw().hex()

    def sign(self, message: bytes) -> str:
        """Return the signature as hex."""
        return self._key.sign(message).hex()


def new_key(path: Path, passphrase: str | None = None) -> SigningKey:
    """Create a key pair and write its two files. Raises: UsageError if a file exists, or cannot be written."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
        BestAvailableEncryption,
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    key = Ed25519PrivateKey.generate()
    protection = BestAvailableEncryption(passphrase.encode()) if passphrase else NoEncryption()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection)
    pair = SigningKey(key)
    try:
        _write_new(path, pem, 0o600)
        try:
            _write_new(path.with_suffix(".pub"), f"{pair.public}\n".encode(), 0o644)
        except OSError:
            path.unlink()
            raise
    except OSError as error:
        raise UsageError(f"{error.filename or path} cannot be made: {error.strerror}; name another file") from error
    return pair


def read_key(path: Path, passphrase: str | None = None) -> SigningKey:
    """Read a private key. Raises: UsageError for an invalid file, or one that other users may read."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise UsageError(f"the key {path} is no file; name a file that `cep keys new` has made")
        if mode & _OTHERS:
            raise UsageError(f"others may read the private key {path}; run `chmod 600 {path}`")
        pem = read_file(path, KEY_FILE_BYTES_MAX)
    except (OSError, ValueError, UnreadableError) as error:
        raise UsageError(f"the key {path} cannot be read: {error}; `cep keys new FILE` makes one") from error
    try:
        key = load_pem_private_key(pem, passphrase.encode() if passphrase else None)
    except TypeError as error:
        fault = "has no passphrase" if passphrase else "has a passphrase"
        raise UsageError(f"the key {path} {fault}; CEP_KEY_PASSPHRASE in the environment gives it") from error
    except Exception as error:
        raise UsageError(
            f"{path} is no private key, or CEP_KEY_PASSPHRASE is wrong; `cep keys new FILE` makes a key"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{path} is no ed25519 key; `cep keys new FILE` makes one")
    return SigningKey(key)


def is_public_key(text: str) -> bool:
    """Return True for the text of a public key. A point of small order is no key, nor is a second spelling of one."""
    if _PUBLIC.fullmatch(text) is None:
        return False
    y = int.from_bytes(bytes.fromhex(text.removeprefix(_PREFIX)), "little") & ~_SIGN_BIT
    return y < _FIELD and y not in _SMALL_ORDER


@lru_cache(_VERIFIED_MAX)
def is_signed(message: bytes, signature: str, public: str) -> bool:
    """Return True if the key has signed the message; False for invalid signatures or keys."""
    if not is_public_key(public) or _SIGNATURE.fullmatch(signature) is None:
        return False
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public.removeprefix(_PREFIX)))
        key.verify(bytes.fromhex(signature), message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _write_new(path: Path, data: bytes, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError:  # such as a full disk
        path.unlink()
        raise
