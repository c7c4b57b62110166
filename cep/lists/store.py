"""The store of the sets of a job's lists, in a folder or in memory. A name identifies the origin of a set.

    FOLDER/NAME.keys    one set (members.py), written once

A name identifies the records from which the set was made. So two processes that make a set write the same file, and an
existing set is not made again. All users of a set in a process share one mapping.
Tested by: tests/lists/test_lists.py
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cep.lists.members import EMPTY, KeySet, mapped, write

SUFFIX = ".keys"
NOTHING = ""  # the name of the empty set
_GIVEN = "0" * 16
_MAPPED_MAX = 1_024
_MAPPED: OrderedDict[Path, KeySet] = OrderedDict()


def name_of(*parts: str | bytes) -> str:
    """Name a set that is made of these parts."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def given_name(kind: str, digest: str) -> str:
    """Return the name of a set with which a job begins. Any start may need it, independent of the rules."""
    return _GIVEN + name_of("given", kind, digest)[len(_GIVEN) :]


def is_given(name: str) -> bool:
    """Return True if it is such a name."""
    return name.startswith(_GIVEN)


@dataclass(frozen=True, slots=True, eq=False)
class ListStore:
    """The sets of one job. Without a folder they are in memory and private."""

    folder: Path | None = None
    _sets: dict[str, KeySet] = field(default_factory=dict, compare=False, repr=False)

    def put(self, name: str, make: Callable[[], KeySet]) -> None:
        """Store the set with this name; an existing one is not made again. Raises: StoreError, and the errors of
        `make`.
        """
        if self.folder is None:
            if name not in self._sets:
                self._sets[name] = make()
        elif not self.path(name).exists():
            write(self.path(name), make())

    def get(self, name: str) -> KeySet:
        """Return the set with this name. Raises: StateCorruptError if it is missing or damaged."""
        if name == NOTHING:
            return EMPTY
        if self.folder is None:
            return self._sets[name]
        path = self.path(name)
        if path not in _MAPPED:
            _MAPPED[path] = mapped(path)
            while len(_MAPPED) > _MAPPED_MAX:
                _MAPPED.popitem(last=False)
        return _MAPPED[path]

    def path(self, name: str) -> Path:
        """Return the file of a set."""
        assert self.folder is not None, "sets in memory have no files"
        return self.folder / (name + SUFFIX)

    def names(self) -> list[str]:
        """Return the names of the sets that are there."""
        if self.folder is None:
            return list(self._sets)
        return sorted(path.name.removesuffix(SUFFIX) for path in self.folder.glob("*" + SUFFIX) if path.name[0] != ".")

    def files(self) -> list[Path]:
        """Return the files of the sets that are there; none in memory."""
        return [] if self.folder is None else [self.path(name) for name in self.names()]

    def __eq__(self, other: object) -> bool:
        """Return True for the same folder. A store in memory equals itself alone."""
        same_folder = isinstance(other, ListStore) and self.folder is not None and self.folder == other.folder
        return self is other or same_folder

    def __hash__(self) -> int:
        return id(self) if self.folder is None else hash(self.folder)

    def copy_into(self, other: ListStore) -> None:
        """Put every set into another store, which may have it. Raises: StoreError."""
        for name in self.names():
            other.put(name, lambda members=name: self.get(members))  # type: ignore[misc]

    def keep_only(self, names: Iterable[str]) -> None:
        """Remove the sets without a name in use; a mapped set stays until it is released."""
        for name in set(self.names()) - set(names):
            if self.folder is None:
                del self._sets[name]
            else:
                _MAPPED.pop(self.path(name), None)
                self.path(name).unlink(missing_ok=True)
