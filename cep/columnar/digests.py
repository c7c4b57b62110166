"""Decoded events → two more columns: digests of their keys and of their content, by which a job recognises an event.

    KEYS      event type and the values of all key fields of the job
    CONTENT   these, the event time to the microsecond, and every other field

A digest is 64 bits of type, name and value of each field that has a value. It is the same in every process of a job and
does not change when a type gets a field that events do not have.

A digest has a key, which the job draws when it begins. Without it a sender could make two events with one id and one
digest, such as a decoy and a fraud: the job would ignore the second one as a repeat of the first.
Tested by: tests/columnar/test_route.py
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from typing import TypeVar

import numpy as np
import pyarrow as pa

from cep.base.schema import Schema
from cep.columnar.batch import ORDER_US, TEXT, WHOLES, EventBatch, numbers, read_only, slot_values, text_buffers
from cep.columnar.decode import Decoded
from cep.kernels.arrange import hash_texts
from cep.kernels.groups import add_numbers, add_texts
from cep.kernels.layout import UInt64

KEYS, CONTENT = "\x00keys", "\x00content"  # no field can have such a name
_TIME, _MICROSECONDS = "\x00time_ms", "\x00us"
_ALL_VALID = read_only(np.empty(0, np.uint8))
_WORD_BITS = 64
_SALT_WORDS = 3
_SALTS_CACHED = 64
E = TypeVar("E", Decoded, EventBatch)


def with_digests(schema: Schema, domains: Sequence[tuple[str, ...]], decoded: E, key: str = "") -> E:
    """Add two columns of digests to decoded events. KEYS (of type and key fields) is a part of an event's identity.
    CONTENT (of all fields) shows whether an event with a known id is a repeat or another event. `domains` are the
    tuples of key fields. A digest is the sum of a hash of each field. Cost: a pass over each column with values.

    `key`: hex of 16 bytes; empty for the digests that an earlier build has stored, which anyone can compute.
    """
    type_salts = _salts(tuple(event_type.name for event_type in schema.event_types), key)
    names = (_TIME, _MICROSECONDS, *decoded.columns)
    salts = dict(zip(names, _salts(names, key), strict=True))
    key_fields = {name for domain in domains for name in domain}
    keys: UInt64 = type_salts[decoded.event_type, 0]
    for name in key_fields:
        _add(decoded.columns[name], salts[name], keys)
    content = keys.copy()
    add_numbers(read_only(decoded.time_ms), _ALL_VALID, 0, salts[_TIME], content)
    if decoded.order is not None and (us := np.ascontiguousarray(decoded.order[:, ORDER_US])).any():
        # Zero microseconds add nothing: the digest is the same whether or not the batch has an order table.
        has_us = read_only(np.packbits(us != 0, bitorder="little"))
        add_numbers(read_only(us), has_us, 0, salts[_MICROSECONDS], content)
    for name, column in decoded.columns.items():
        if name not in key_fields:
            _add(column, salts[name], content)
    digests = ((KEYS, keys), (CONTENT, content))
    columns = {name: numbers(digest.view(np.int64), WHOLES, None) for name, digest in digests}
    return replace(decoded, columns={**decoded.columns, **columns})


def without_digests(batch: EventBatch) -> EventBatch:
    """Return the batch with the fields of its events alone."""
    return replace(batch, columns={name: column for name, column in batch.columns.items() if name[:1] != "\x00"})


@lru_cache(_SALTS_CACHED)
def _salts(names: tuple[str, ...], key: str) -> UInt64:
    """Compute a salt for each name of a field or type, so that equal values of two fields have different digests:
    uint64[N, 3], read-only. A secret `key` (hex) makes salts that senders cannot compute. Without a key, as in earlier
    builds, the first two words are plain hashes of the name and the third is 0."""
    salts = np.zeros((len(names), _SALT_WORDS), np.uint64)
    if key:
        for number, name in enumerate(names):
            salt = blake2b(name.encode(), key=bytes.fromhex(key), digest_size=8 * _SALT_WORDS).digest()
            salts[number] = np.frombuffer(salt, "<u8")
        return read_only(salts)
    for seed in range(2):
        column = np.empty(len(names), np.uint64)
        hash_texts(*text_buffers(pa.array(names, TEXT)), seed, column)
        salts[:, seed] = column
    return read_only(salts)


def _add(column: pa.Array, salt: UInt64, digest: UInt64) -> None:
    """Add a hash of each value to the digest of its event, in place. Nulls add nothing. `salt` differs by field."""
    nulls_count = column.null_count
    if nulls_count == len(column):
        return
    valid_bits = read_only(np.frombuffer(column.buffers()[0], np.uint8)) if nulls_count else _ALL_VALID
    first_bit = column.offset if nulls_count else 0
    if column.type == TEXT:
        add_texts(*text_buffers(column), valid_bits, first_bit, salt, digest)
    elif column.type.bit_width == _WORD_BITS:  # numbers, read without a copy
        words = read_only(np.frombuffer(column.buffers()[1], np.int64, len(column), column.offset * 8))
        add_numbers(words, valid_bits, first_bit, salt, digest)
    else:  # truth values, as 0 and 1
        add_numbers(read_only(slot_values(column)), valid_bits, first_bit, salt, digest)
