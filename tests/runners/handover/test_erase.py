"""What is searched for a key's bytes: texts count, digits of hashes and of a job's id do not."""

from __future__ import annotations

import pytest

from cep.runners.handover.erase import has_any

ID, HASH = b"9f00c1aa" * 4, b"0c1e55aa" * 8


@pytest.mark.parametrize(
    ("data", "is_there"),
    [
        (b'{"key":"c1"}', True),
        (b'{"id":"' + ID + b'"}', False),
        (b'{"hash":"' + HASH + b'"}', False),
        (b'{"id":"' + ID + b'","key":"c1"}', True),
        (b'{"id":"' + ID[:-1] + b'"}', True),
        (b'{"key":"c2"}', False),
    ],
)
def test_a_short_key_is_not_found_in_random_digits(data: bytes, is_there: bool) -> None:
    assert has_any(data, [b"c1"]) is is_there


@pytest.mark.parametrize("key", [ID, HASH])
def test_a_key_that_looks_like_them_is_found(key: bytes) -> None:
    assert has_any(b'{"key":"' + key + b'"}', [key])
