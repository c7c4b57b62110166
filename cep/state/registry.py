"""What is declared against what a store holds: the same, evolved in a way that old values can be read, or refused.

    allowed   a new field that may be null; a field left out; null allowed; symbols added at an enum's end
    refused   another kind, another type, null forbidden, a left-out field back with another type; a layout by time
              buckets on or off; a stored name that nobody declares: it is a renamed one, or is given up on purpose

The schemas lie in the store, so that they are in its checkpoints, and move with its key groups.
Tested by: tests/state/test_registry.py
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from cep.base.errors import StateSchemaError
from cep.base.limits import TTL_BUCKETS_MAX
from cep.base.schema import Field, Kind, Type
from cep.state.descriptors import Descriptor, StateKind, described, fields_from_json, fields_to_json
from cep.state.keys import STORE_GROUP, prefix_range, split_key, store_key
from cep.state.store import KeyedStore

_SCHEMAS = b"schemas"
# Time buckets of one state that may hold something alive: a read looks into each of them.
_BUCKETS_A_TTL = 4


@dataclass(frozen=True, slots=True)
class Known:
    """What a store knows of one state.

    `given_up` are fields that old values still have. `bucket_ms` is the width of a time bucket, 0 without. Buckets
    `dropped` <= b <= `newest` may hold values; None before the first one.
    """

    name: str
    kind: StateKind
    fields: tuple[Field, ...]
    given_up: tuple[Field, ...] = ()
    bucket_ms: int = 0
    dropped: int = 0
    newest: int | None = None

    def __str__(self) -> str:
        return described(self.name, self.kind, self.fields)


def known_states(store: KeyedStore) -> dict[str, Known]:
    """The states that the store holds."""
    found = (_known(key, value) for key, value in store.scan(prefix_range(STORE_GROUP, b"", _SCHEMAS)))
    return {known.name: known for known in found}


def remember(store: KeyedStore, known: Known) -> None:
    """Write what is known into the store."""
    store.put(store_key(STORE_GROUP, b"", _SCHEMAS, known.name.encode()), _to_bytes(known))


def _known(key: bytes, value: bytes) -> Known:
    data = json.loads(value)
    return Known(
        split_key(key).name.decode(),
        StateKind(data["kind"]),
        fields_from_json(data["fields"]),
        fields_from_json(data["given_up"]),
        data["bucket_ms"],
        data["dropped"],
        data["newest"],
    )


def _to_bytes(known: Known) -> bytes:
    data = {
        "kind": known.kind.value,
        "fields": fields_to_json(known.fields),
        "given_up": fields_to_json(known.given_up),
        "bucket_ms": known.bucket_ms,
        "dropped": known.dropped,
        "newest": known.newest,
    }
    return json.dumps(data).encode()


def forget(store: KeyedStore, name: str) -> None:
    """The state is no longer the store's."""
    store.delete(store_key(STORE_GROUP, b"", _SCHEMAS, name.encode()))


def merged(entries: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """What several stores know of themselves, as what one store knows, sorted. Time buckets are those of any of them.

    Raises: StateSchemaError if two declare different state.
    """
    found: dict[bytes, bytes] = {}
    for key, value in entries:
        before = found.setdefault(key, value)
        if before == value:
            continue
        if split_key(key).namespace != _SCHEMAS:
            raise StateSchemaError(f"two stores hold different values of {key!r}, and cannot become one")
        found[key] = _to_bytes(_merged(_known(key, before), _known(key, value)))
    return sorted(found.items())


def _merged(one: Known, other: Known) -> Known:
    if replace(one, dropped=0, newest=None) != replace(other, dropped=0, newest=None):
        raise StateSchemaError(f"two stores declare different state, and cannot become one:\n  {one}\n  {other}")
    if one.newest is None or other.newest is None:
        return other if one.newest is None else one
    return replace(one, dropped=min(one.dropped, other.dropped), newest=max(one.newest, other.newest))


def reconcile(stored: dict[str, Known], declared: Sequence[Descriptor], given_up: Collection[str]) -> dict[str, Known]:
    """What the store is to know from now on.

    Raises: StateSchemaError with both sides of what does not fit.
    """
    names = {descriptor.name for descriptor in declared}
    assert len(names) == len(declared), "a name is declared twice"
    orphans = [known for name, known in stored.items() if name not in names and name not in given_up]
    if orphans:
        raise StateSchemaError(
            "the store holds state that nobody declares: declare it under its old name, or give it up by name\n"
            + _sides(orphans, [descriptor for descriptor in declared if descriptor.name not in stored])
        )
    return {d.name: _evolved(stored[d.name], d) if d.name in stored else _fresh(d) for d in declared}


def _fresh(descriptor: Descriptor) -> Known:
    width_ms = max(1, descriptor.ttl.duration_ms // _BUCKETS_A_TTL) if descriptor.ttl and descriptor.is_bucketed else 0
    return Known(descriptor.name, descriptor.kind, descriptor.fields, bucket_ms=width_ms)


def _evolved(known: Known, declared: Descriptor) -> Known:
    reason = _misfit(known, declared)
    if reason:
        raise StateSchemaError(f"{reason}\n" + _sides([known], [declared]))
    names = {field.name for field in declared.fields}
    left_out = tuple(field for field in (*known.fields, *known.given_up) if field.name not in names)
    return replace(known, fields=declared.fields, given_up=left_out)


def _misfit(known: Known, declared: Descriptor) -> str:
    if known.kind is not declared.kind:
        return f"{declared.name} is a {known.kind.value} in the store; use another name for the {declared.kind.value}"
    if bool(known.bucket_ms) != declared.is_bucketed:
        return (
            f"{declared.name} cannot change to or from cleanup in compaction: its values lie elsewhere; use a new name"
        )
    if declared.ttl is not None and known.bucket_ms and declared.ttl.duration_ms > TTL_BUCKETS_MAX * known.bucket_ms:
        limit = TTL_BUCKETS_MAX * known.bucket_ms
        return (
            f"the TTL of {declared.name} has grown past {limit} ms, for which its time buckets are made; use a new name"
        )
    before = {field.name: field.type for field in (*known.fields, *known.given_up)}
    stored_now = {field.name for field in known.fields}
    for field in declared.fields:
        if field.name not in before:
            if not field.type.nullable:
                return f"field {field.name} of {declared.name} is new: old values lack it, so declare it {field.type}?"
        elif not _readable(before[field.name], field.type):
            return (
                f"field {field.name} of {declared.name} has the type {before[field.name]} in the store; add a new field"
            )
        elif field.name not in stored_now and not field.type.nullable:
            return (
                f"field {field.name} of {declared.name} is back: values in between lack it, so declare it {field.type}?"
            )
    return ""


def _readable(stored: Type, declared: Type) -> bool:
    if stored.nullable and not declared.nullable:
        return False
    if stored.kind is Kind.ENUM and declared.kind is Kind.ENUM:
        return declared.symbols[: len(stored.symbols)] == stored.symbols
    return stored.as_nullable(declared.nullable) == declared


def _sides(stored: Sequence[Known], declared: Sequence[Descriptor]) -> str:
    lines = [f"  stored    {known}" for known in stored] + [f"  declared  {descriptor}" for descriptor in declared]
    return "\n".join(lines)
