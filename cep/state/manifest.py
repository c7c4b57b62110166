"""What a checkpoint or savepoint is made of ↔ a small file that says so and checks itself.

    first line: sha256 of the rest, in hex | JSON: format, kind, number, created_ms, parts, files with size and sha256

The files lie in the target under their checksum, `files/SHA256`: what two checkpoints share is there once, and a file
that comes again after a restore, with another name or the same, cannot be taken for another.
Tested by: tests/state/test_checkpoints.py
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from cep.base.errors import StateCorruptError, StateFormatError
from cep.state.target import Target

MANIFEST_FORMAT = 1
FOLDER = "files"
# At once. Whoever computes checksums gives way, but has the interpreter between two reads: then all wait with it.
_READ = 16 << 20


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
        return hashlib.sha256(body).hexdigest().encode() + b"\n" + body

    @staticmethod
    def from_bytes(data: bytes, name: str) -> Manifest:
        """Raises: StateCorruptError if it is damaged or torn, StateFormatError if a later build wrote it."""
        checksum, _, body = data.partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != checksum:
            raise StateCorruptError(f"{name} fails its checksum")
        found = json.loads(body)
        if found["format"] != MANIFEST_FORMAT:
            raise StateFormatError(
                f"{name} has format {found['format']}, this build reads {MANIFEST_FORMAT}; use the build that wrote it"
            )
        return Manifest(
            found["kind"],
            found["number"],
            found["created_ms"],
            tuple(StoredPart(**part) for part in found["parts"]),
            tuple(StoredFile(**file) for file in found["files"]),
        )


def sha256_of(path: Path) -> str:
    """The checksum of a local file, in hex. Raises: OSError."""
    # Not a bytearray: that is filled with zeros first, all of it with the interpreter's lock held.
    found, buffer = hashlib.sha256(), np.empty(min(_READ, path.stat().st_size), np.uint8).data
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            found.update(buffer[:count])
    return found.hexdigest()


def fetch(target: Target, file: StoredFile, into: Path, may_link: bool) -> None:
    """A verified local copy. Raises: StateCorruptError for other bytes than were stored, StoreError if it is gone."""
    target.get(f"{FOLDER}/{file.sha256}", into, may_link)
    size = into.stat().st_size
    if size != file.size:
        raise StateCorruptError(f"{file.name} has {size} bytes instead of {file.size}")
    if sha256_of(into) != file.sha256:
        raise StateCorruptError(f"{file.name} fails its checksum")
