"""The search for a key's bytes: texts count, digits of hashes and of a job's id do not."""

from __future__ import annotations

from random import Random

import pytest

from cep.runners.handover.erase import has_any, has_any_in_file

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


def test_a_short_key_is_not_found_by_chance_in_a_binary_file() -> None:
    noise = Random(7).randbytes(1_000_000)
    assert b"c1" in noise
    assert not has_any_in_file(noise, [b"c1"])
    assert has_any_in_file(noise + b"card-17", [b"c1", b"card-17"])
    assert has_any_in_file(b'{"key":"c1"}', [b"c1"])


@pytest.mark.parametrize("key", [ID, HASH])
def test_a_key_that_looks_like_them_is_found(key: bytes) -> None:
    assert has_any(b'{"key":"' + key + b'"}', [key])
