"""The contract of every keyed store, as plain functions.

All keys belong to one key group, `GROUP`. Each check begins with an empty store.
"""

import random
from collections.abc import Callable

from cep.state.store import KeyedStore, KeyRange, WriteBatch, group_range, prefix_range, store_key

GROUP = 7
Check = Callable[[KeyedStore], None]


def key_of(key: str, name: str = "n", item: bytes = b"") -> bytes:
    return store_key(GROUP, key.encode(), b"ns", name.encode(), item)


def everything(store: KeyedStore) -> list[tuple[bytes, bytes]]:
    return list(store.scan(group_range(GROUP)))


def nothing_is_there_at_first(store: KeyedStore) -> None:
    assert store.get(key_of("a")) is None
    assert store.multi_get([]) == []
    assert store.multi_get([key_of("a"), key_of("b")]) == [None, None]
    assert everything(store) == []
    store.delete(key_of("a"))
    store.delete_range(group_range(GROUP))


def the_last_write_is_read(store: KeyedStore) -> None:
    store.put(key_of("a"), b"1")
    store.put(key_of("a"), b"2")
    store.put(key_of("b"), b"")
    assert store.get(key_of("a")) == b"2"
    assert store.get(key_of("b")) == b"", "an empty value is a value"
    store.delete(key_of("a"))
    assert store.get(key_of("a")) is None


def many_are_read_in_the_order_asked(store: KeyedStore) -> None:
    for key in "abc":
        store.put(key_of(key), key.encode())
    assert store.multi_get([key_of("c"), key_of("x"), key_of("a"), key_of("c")]) == [b"c", None, b"a", b"c"]


def any_bytes_come_back(store: KeyedStore) -> None:
    value = bytes(range(256)) * 400
    key = store_key(GROUP, b"\x00\x01\xff", b"\x00", b"\xff\xff", b"\x00\x00")
    store.put(key, value)
    assert store.get(key) == value
    assert everything(store) == [(key, value)]


def a_scan_is_sorted_and_stays_in_its_range(store: KeyedStore) -> None:
    keys = [key_of(key, name, bytes([item])) for key in ("b", "a", "ab") for name in ("m", "n") for item in (9, 0, 255)]
    for key in keys:
        store.put(key, key)
    assert everything(store) == [(key, key) for key in sorted(keys)]
    within = [key for key, _ in store.scan(prefix_range(GROUP, b"a"))]
    assert within == sorted(key_of("a", name, bytes([i])) for name in "mn" for i in (0, 9, 255)), "ab is another key"
    within = [key for key, _ in store.scan(prefix_range(GROUP, b"b", b"ns", b"m"))]
    assert within == [key_of("b", "m", bytes([i])) for i in (0, 9, 255)]
    assert [key for key, _ in store.scan(group_range(GROUP), 2)] == sorted(keys)[:2]
    first, second = sorted(keys)[:2]
    assert [key for key, _ in store.scan(KeyRange(first, second))] == [first], "the end is outside"


def a_scan_sees_the_store_as_it_began(store: KeyedStore) -> None:
    for key in "abc":
        store.put(key_of(key), b"old")
    scanned = store.scan(group_range(GROUP))
    store.put(key_of("b"), b"new")
    store.put(key_of("d"), b"new")
    store.delete(key_of("c"))
    assert [value for _, value in scanned] == [b"old", b"old", b"old"]
    assert [value for _, value in everything(store)] == [b"old", b"new", b"new"]


def a_range_is_deleted_without_its_neighbours(store: KeyedStore) -> None:
    for key in ("a", "b", "b\x00", "ba", "c"):
        store.put(key_of(key), b"1")
    store.delete_range(prefix_range(GROUP, b"b"))
    assert [key for key, _ in everything(store)] == sorted(key_of(key) for key in ("a", "b\x00", "ba", "c"))
    store.put(key_of("b"), b"again")
    assert store.get(key_of("b")) == b"again", "a later write is not covered"
    store.delete_range(group_range(GROUP))
    assert everything(store) == []


def a_write_batch_is_applied_in_order(store: KeyedStore) -> None:
    for key in "abc":
        store.put(key_of(key), b"old")
    batch = WriteBatch()
    batch.put(key_of("a"), b"1")
    batch.delete_range(group_range(GROUP))
    batch.put(key_of("b"), b"2")
    batch.put(key_of("c"), b"3")
    batch.delete(key_of("c"))
    assert len(batch) == 5
    assert store.get(key_of("a")) == b"old", "nothing happens before it is written"
    store.write(batch)
    assert everything(store) == [(key_of("b"), b"2")]
    store.write(WriteBatch())


def random_changes_agree_with_a_dictionary(store: KeyedStore) -> None:
    chance = random.Random(11)
    model: dict[bytes, bytes] = {}
    keys = [key_of(key, name) for key in ("", "a", "a\x00", "b") for name in ("", "n", "nn")]
    for step in range(300):
        key, other = chance.choice(keys), chance.choice(keys)
        match chance.randrange(4):
            case 0 | 1:
                model[key] = str(step).encode()
                store.put(key, model[key])
            case 2:
                model.pop(key, None)
                store.delete(key)
            case _ if step % 5 == 0:
                gone = KeyRange(min(key, other), max(key, other))
                model = {k: v for k, v in model.items() if not gone.begin <= k < gone.end}
                store.delete_range(gone)
        assert store.get(other) == model.get(other)
    assert everything(store) == sorted(model.items())
    assert store.multi_get(keys) == [model.get(key) for key in keys]


CHECKS: tuple[Check, ...] = (
    nothing_is_there_at_first,
    the_last_write_is_read,
    many_are_read_in_the_order_asked,
    any_bytes_come_back,
    a_scan_is_sorted_and_stays_in_its_range,
    a_scan_sees_the_store_as_it_began,
    a_range_is_deleted_without_its_neighbours,
    a_write_batch_is_applied_in_order,
    random_changes_agree_with_a_dictionary,
)
