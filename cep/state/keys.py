"""The place of a value in a store: (key group, key, namespace, name, item) ↔ one byte string with the same sort order.

    | key group u16 | key 00 01 | namespace 00 01 | name 00 01 | item |      big-endian

In key, namespace and name a byte 00 is written 00 FF. The end mark 00 01 therefore occurs at no other place and sorts
below every continuation. The order of store keys is the order of the tuples, and a prefix of the parts is one range. A
key group, a key of it, or one name of a key can be scanned, counted, moved or deleted as a whole. `item` is raw bytes,
such as the number of a page. The escape is the one of CockroachDB's ordered keys.
Tested by: tests/state/test_pages.py
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from cep.base.errors import LimitError, StateCorruptError
from cep.base.limits import KEY_GROUPS_MAX, STORE_KEY_BYTES_MAX

_GROUP = struct.Struct(">H")
_END = b"\x00\x01"
_AFTER_END = b"\x00\x02"  # no escaped part holds it: the first byte string above every key with a prefix
# A store's own entries belong to no key group and are above all of them.
STORE_GROUP = 0xFFFF


class StoreKey(NamedTuple):
    """The parts of a store key."""

    key_group: int
    key: bytes
    namespace: bytes
    name: bytes
    item: bytes = b""


class KeyRange(NamedTuple):
    """Store keys k with begin <= k < end."""

    begin: bytes
    end: bytes


ALL_KEYS = KeyRange(b"\x00\x00", b"\xff\xff\xff")


def store_key(key_group: int, key: bytes, namespace: bytes, name: bytes, item: bytes = b"") -> bytes:
    """Return the store key of these parts.

    Raises: LimitError for a store key longer than STORE_KEY_BYTES_MAX.
    """
    assert 0 <= key_group < KEY_GROUPS_MAX or key_group == STORE_GROUP, f"no key group has the number {key_group}"
    raw = _GROUP.pack(key_group) + _closed(key) + _closed(namespace) + _closed(name) + item
    if len(raw) > STORE_KEY_BYTES_MAX:
        raise LimitError("bytes of a store key", len(raw), STORE_KEY_BYTES_MAX, "use a shorter key, or its hash")
    return raw


def split_key(raw: bytes) -> StoreKey:
    """Return the parts of a store key. Raises: StateCorruptError for invalid bytes."""
    parts: list[bytes] = []
    position = _GROUP.size
    for _ in range(3):
        end = raw.find(_END, position)
        if end < 0:
            raise StateCorruptError(f"store key {raw!r} has {len(parts)} of 3 parts; the bytes are not ours")
        parts.append(raw[position:end].replace(b"\x00\xff", b"\x00"))
        position = end + len(_END)
    return StoreKey(key_group_of(raw), parts[0], parts[1], parts[2], raw[position:])


def key_group_of(raw: bytes) -> int:
    """Return the key group of a store key."""
    (key_group,) = _GROUP.unpack_from(raw)
    return int(key_group)


def group_range(first: int, end: int | None = None) -> KeyRange:
    """Return the range of the key groups first <= g < end; without `end`, the range of `first`."""
    last = (first if end is None else end - 1) if first != STORE_GROUP else first
    after = ALL_KEYS.end if last == STORE_GROUP else _GROUP.pack(last + 1)
    return KeyRange(_GROUP.pack(first), after)


def prefix_range(key_group: int, *parts: bytes) -> KeyRange:
    """Return the range below (key group, key), (…, namespace) or (…, name). Give at least the key."""
    assert 1 <= len(parts) <= 3, "a prefix is the key, then the namespace, then the name"
    prefix = _GROUP.pack(key_group) + b"".join(_closed(part) for part in parts)
    return KeyRange(prefix, prefix.removesuffix(_END) + _AFTER_END)


def _closed(part: bytes) -> bytes:
    return part.replace(b"\x00", b"\x00\xff") + _END
