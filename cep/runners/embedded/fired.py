"""When each rule that suppresses last fired on each key (rulebook/memory.py), as entries of the store.

    | FFFF | "" | "fired" | rule | digest of the key |  →  event time of the last alert that went out i64, key

So a commit writes what has changed. A key may be longer than a store key, which is why that has but a digest of it.
Tested by: tests/runners/embedded/test_fired.py
"""

from __future__ import annotations

import struct
from hashlib import blake2b

import orjson

from cep.base.errors import StateCorruptError
from cep.rulebook.held import fired_from_json
from cep.rulebook.memory import Memory
from cep.state.keys import STORE_GROUP, prefix_range, split_key, store_key
from cep.state.store import KeyedStore, WriteBatch

FIRED = b"fired"
_EARLIER = store_key(STORE_GROUP, b"", b"engine", b"held_memory")  # all of it in one value, by an earlier build
_TIME = struct.Struct("<q")
_DIGEST_BYTES = 16


class StoredMemory(Memory):
    """A memory that is in the store as of the last `save`."""

    def __init__(self) -> None:
        super().__init__()
        self._is_earlier = False

    def save(self, batch: WriteBatch) -> None:
        """Add what has changed since the last time."""
        for at in self.changed():
            ms = self.last.get(at)
            if ms is None:
                batch.delete(_key(*at))
            else:
                batch.put(_key(*at), _TIME.pack(ms) + at[1].encode())
        if self._is_earlier:
            batch.delete(_EARLIER)
            self._is_earlier = False

    def restore(self, store: KeyedStore) -> None:
        """Take over what the store has; nothing has changed yet. Raises: StateCorruptError."""
        try:
            for raw, data in store.scan(prefix_range(STORE_GROUP, b"", FIRED)):
                at = split_key(raw).name.decode(), data[_TIME.size :].decode()
                self.last[at] = _TIME.unpack_from(data)[0]
            earlier = store.get(_EARLIER)
            if earlier is not None:
                self.put(fired_from_json(orjson.loads(earlier)))
                self._is_earlier = True
        except (struct.error, TypeError, ValueError) as error:
            raise StateCorruptError(f"who was alerted cannot be read ({error!r}); restore a checkpoint") from error


def _key(rule_id: str, key: str) -> bytes:
    digest = blake2b(key.encode(), digest_size=_DIGEST_BYTES).digest()
    return store_key(STORE_GROUP, b"", FIRED, rule_id.encode(), digest)
