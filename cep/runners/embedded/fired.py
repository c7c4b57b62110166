"""The last alert of each rule that suppresses, by key (rulebook/suppression.py), as entries of the store.

    | FFFF | "" | "fired for" | rule | digest of the key |  →  of the last alert:
                                                    event time i64, ~for how long i64, severity i64, value f64, key

Builds up to 0.2.0 wrote "for how long" without the complement, and no severity and value.

A commit therefore writes only the changes. A key may be longer than a store key, so the store key has its digest.
Tested by: tests/runners/embedded/test_stored_parts.py
"""

from __future__ import annotations

import struct
from hashlib import blake2b

from cep.base.errors import StateCorruptError
from cep.rulebook.suppression import NO_MEASURE, UNKNOWN_SEVERITY, Fired, LastAlert, LastAlerts
from cep.state.keys import STORE_GROUP, prefix_range, split_key, store_key
from cep.state.store import KeyedStore, WriteBatch

FIRED = b"fired for"
_TIMES, _VALUES = struct.Struct("<qq"), struct.Struct("<qqqd")
_DIGEST_BYTES = 16


class StoredLastAlerts(LastAlerts):
    """The last alerts of a job, stored with each `save`."""

    def save(self, batch: WriteBatch) -> None:
        """Add the changes since the last call."""
        for rule_and_key in self.changed():
            times = self.last.get(rule_and_key)
            if times is None:
                batch.delete(_key(*rule_and_key))
            else:
                batch.put(_key(*rule_and_key), _packed(times) + rule_and_key[1].encode())

    def restore(self, store: KeyedStore) -> None:
        """Restore the entries of the store; there are no changes after it. Raises: StateCorruptError."""
        fired: Fired = {}
        try:
            for raw, data in store.scan(prefix_range(STORE_GROUP, b"", FIRED)):
                last, size = _unpacked(data)
                fired[split_key(raw).name.decode(), data[size:].decode()] = last
            self.put(fired)
            self.changed()
        except (struct.error, TypeError, ValueError) as error:
            raise StateCorruptError(f"who was alerted cannot be read ({error!r}); restore a checkpoint") from error


def _packed(last: LastAlert) -> bytes:
    return _VALUES.pack(last[0], ~last[1], *last[2:])


def _unpacked(data: bytes) -> tuple[LastAlert, int]:
    """Return the last alert of an entry, and how many bytes it takes. Raises: struct.error."""
    time_ms, for_ms = _TIMES.unpack_from(data)
    if for_ms >= 0:
        return (time_ms, for_ms, UNKNOWN_SEVERITY, NO_MEASURE), _TIMES.size
    _, _, rank, value = _VALUES.unpack_from(data)
    return (time_ms, ~for_ms, rank, value), _VALUES.size


def _key(rule_id: str, key: str) -> bytes:
    digest = blake2b(key.encode(), digest_size=_DIGEST_BYTES).digest()
    return store_key(STORE_GROUP, b"", FIRED, rule_id.encode(), digest)
