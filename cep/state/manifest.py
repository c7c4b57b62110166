"""The files of a checkpoint or savepoint ↔ a manifest: a small file that lists them and checks itself.

    first line: below | JSON: format, kind, number, created_ms, parts, files with size and sha256

The files lie in the target under their checksum, `files/SHA256`, so two checkpoints share a file that both have.

A manifest may come from anywhere, so `from_bytes` checks each field and each name. `path_inside` is the one place that
turns a name into a path: it never leaves the folder of the restore.

The first line depends on the secret in CEP_MANIFEST_KEY, or in the file that CEP_MANIFEST_KEY_FILE names:

    without a key   SHA256
    with a key      SHA256 hmac-sha256:HEX

A process that has a key refuses every manifest that was not signed with it. One without reads both. The same key signs
other short facts of a job, such as the head of its audit: `fact_signature`.

Tested by: tests/state/test_manifest.py, tests/state/test_checkpoints.py.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from cep.base.errors import StateCorruptError, StateFormatError, UsageError
from cep.base.limits import KEY_GROUPS_MAX
from cep.state.target import Target

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
    """Check a manifest's checksum, and its signature if there is a key. Raises: StateCorruptError, UsageError."""
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
    """Check the signature of a fact if there is a key; `name` is for messages. Raises: as `check_first_line`."""
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
    """Read the key that signs manifests, None if there is none. It does not stay in memory. Raises: UsageError."""
    text, path = os.environ.get(KEY), os.environ.get(KEY_FILE)
    if text is None and path is None:
        return None
    if text is not None and path is not None:
        raise UsageError(f"{KEY} and {KEY_FILE} exclude each other")
    try:
        if path is None:
            key = os.environb[KEY.encode()]
        else:
            with open(path, "rb") as file:  # noqa: PTH123 the path comes from the environment
                key = file.read(_KEY_BYTES_MAX + 1).strip()  # one byte more shows that a key is too long
    except (OSError, ValueError) as error:
        raise UsageError(f"{KEY_FILE} names {path}, which cannot be read: {error}") from error
    if not _KEY_BYTES_MIN <= len(key) <= _KEY_BYTES_MAX:
        raise UsageError(f"the key of manifests has {len(key)} bytes; give {_KEY_BYTES_MIN} to {_KEY_BYTES_MAX}")
    return key


MANIFEST_FORMAT = 1
FOLDER = "files"
# Bytes read at once. The thread that computes checksums gives way to others, but between two reads it has the
# interpreter, and then all others wait for it.
_READ = 16 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file: its name in the snapshot (`worker-0/000012.sst`), its bytes, its checksum."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class StoredPart:
    """One store of the checkpoint, and the key groups first <= g < end that it holds."""

    name: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checkpoint's description. Units: created_ms is UTC."""

    kind: str
    number: int
    created_ms: int
    parts: tuple[StoredPart, ...]
    files: tuple[StoredFile, ...]

    def to_bytes(self) -> bytes:
        body = json.dumps({"format": MANIFEST_FORMAT, **asdict(self)}, indent=1).encode()
        return first_line(body) + b"\n" + body

    @staticmethod
    def from_bytes(data: bytes, name: str, kind: str | None = None) -> Manifest:
        """Parse a manifest. Check its signature, every field, and that it has this `kind`. `name` is for messages.

        Raises: StateCorruptError if it is damaged or no build writes such a one, StateFormatError for a later build's.
        """
        line, _, body = data.partition(b"\n")
        check_first_line(line, body, name)
        try:
            fields = json.loads(body)
            if _count(fields, "format") != MANIFEST_FORMAT:
                raise StateFormatError(
                    f"{name} has format {fields['format']}, this build reads {MANIFEST_FORMAT}; "
                    "use the build that wrote it"
                )
            return _checked(fields, kind)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
            raise StateCorruptError(f"{name} is not a manifest that cep writes: {reason}; take another copy") from error

    def check_number(self, number: int, name: str) -> None:
        """Raise StateCorruptError if the manifest lies under the name of another number."""
        if self.number != number:
            raise StateCorruptError(
                f"{name} is {self.kind} {self.number} under another number; do not use it, and ask who has renamed it"
            )

    def file(self, name: str) -> StoredFile:
        """Return the file of this name. Raises: StateCorruptError if the manifest does not list it."""
        for file in self.files:
            if file.name == name:
                return file
        raise StateCorruptError(f"the manifest of {self.kind} {self.number} lists no file {name}; take another copy")


def path_inside(folder: Path, name: str) -> Path:
    """Return the path of a stored file in a folder. Raises: StateCorruptError if it leads out, also by a link."""
    path = folder / name
    if not _is_inside(name) or not path.resolve().is_relative_to(folder.resolve()):
        raise StateCorruptError(f"a manifest names the file {name!r}, which lies outside of {folder}; do not use it")
    return path


def sha256_of(path: Path) -> str:
    """Return the checksum of a local file, in hex. Raises: OSError."""
    # Not a bytearray: that is filled with zeros first, all of it with the interpreter's lock held.
    digest, buffer = hashlib.sha256(), np.empty(min(_READ, path.stat().st_size), np.uint8).data
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def fetch(target: Target, file: StoredFile, into: Path, may_link: bool) -> None:
    """Make a verified local copy. Raises: StateCorruptError if the file is gone or has other bytes; StoreError."""
    target.get(f"{FOLDER}/{file.sha256}", into, file.size, may_link)
    if sha256_of(into) != file.sha256:
        raise StateCorruptError(f"{file.name} fails its checksum")


# ---------------------------------------------------------------------------------------------------- the schema


def _checked(fields: dict[str, Any], kind: str | None) -> Manifest:
    """Build the manifest; its names must be unique and inside its folder. Raises: ValueError, KeyError, TypeError."""
    if kind not in (None, fields["kind"]):
        raise ValueError(f"it is a {fields['kind']}, not a {kind}")
    manifest = Manifest(
        _text(fields, "kind"), _count(fields, "number"), _count(fields, "created_ms"),
        tuple(_each(fields, "parts", _part)), tuple(_each(fields, "files", _file)),
    )  # fmt: skip
    for names in ([part.name for part in manifest.parts], [file.name for file in manifest.files]):
        for name in names:
            if not _is_inside(name):
                raise ValueError(f"it names {name!r}, which lies outside of its folder")
        if len(set(names)) < len(names):
            raise ValueError("it names a file twice")
    return manifest


def _part(fields: dict[str, Any]) -> StoredPart:
    part = StoredPart(_text(fields, "name"), _count(fields, "first"), _count(fields, "end"))
    if not part.first < part.end <= KEY_GROUPS_MAX:
        raise ValueError(f"{part.name} has the key groups {part.first} to {part.end}")
    return part


def _file(fields: dict[str, Any]) -> StoredFile:
    file = StoredFile(_text(fields, "name"), _count(fields, "size"), _text(fields, "sha256"))
    if not _SHA256.fullmatch(file.sha256):
        raise ValueError(f"{file.name} has the checksum {file.sha256!r}")
    return file


def _each(fields: dict[str, Any], name: str, read: Callable[[dict[str, Any]], T]) -> list[T]:
    values = fields[name]
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise TypeError(f"{name} is no list of objects")
    return [read(value) for value in values]


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}, not a text")
    return value


def _count(fields: dict[str, Any], name: str) -> int:
    value = fields[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"{name} is {value!r}, not a number from 0 on")
    return value


def _is_inside(name: str) -> bool:
    """Return True if the name is relative and each part goes down: no empty part, `.`, `..` or control character."""
    return name.isprintable() and "\\" not in name and all(part not in ("", ".", "..") for part in name.split("/"))
