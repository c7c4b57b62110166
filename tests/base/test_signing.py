"""Keys of people: files, and signatures over bytes."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import UsageError
from cep.base.signing import _SMALL_ORDER, is_public_key, is_signed, new_key, read_key
from tests.rulebook.people import ADA


def test_a_key_is_private_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "ada.pem"
    key = new_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (tmp_path / "ada.pub").read_text() == f"{key.public}\n"
    assert is_public_key(key.public)
    assert read_key(path).public == key.public
    assert is_signed(b"text", read_key(path).sign(b"text"), key.public)
    with pytest.raises(UsageError, match="name another file"):
        new_key(path)


def test_a_passphrase_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "ada.pem"
    key = new_key(path, "correct horse")
    assert read_key(path, "correct horse").public == key.public
    for wrong in (None, "", "battery"):
        with pytest.raises(UsageError, match="CEP_KEY_PASSPHRASE"):
            read_key(path, wrong)
    new_key(tmp_path / "bob.pem")
    with pytest.raises(UsageError, match="has no passphrase"):
        read_key(tmp_path / "bob.pem", "correct horse")


def test_what_is_no_private_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    with pytest.raises(UsageError, match="cannot be read"):
        read_key(path)
    path.write_bytes(b"\x00nothing")
    path.chmod(0o600)
    with pytest.raises(UsageError, match="is no private key"):
        read_key(path)
    new_key(tmp_path / "ada.pem").sign(b"")
    (tmp_path / "ada.pem").chmod(0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        read_key(tmp_path / "ada.pem")
    with pytest.raises(UsageError, match="is no file"):
        read_key(Path("/dev/null"))


def test_a_key_is_not_printed(tmp_path: Path) -> None:
    path = tmp_path / "ada.pem"
    key = new_key(path)
    secret = key._key.private_bytes_raw().hex()
    assert secret not in repr(key)
    assert secret not in str(vars(type(key)))


@given(st.binary(max_size=40), st.integers(0, 127), st.sampled_from("0123456789abcdef"))
def test_another_signature_or_message_is_noticed(message: bytes, index: int, digit: str) -> None:
    signature = ADA.sign(message)
    changed = signature[:index] + digit + signature[index + 1 :]
    assert is_signed(message, changed, ADA.public) == (changed == signature)
    assert not is_signed(message + b"x", signature, ADA.public)


@pytest.mark.parametrize("text", ["", "ed25519:", "ed25519:" + "0" * 63, "ED25519:" + "0" * 64, "rsa:" + "0" * 64])
def test_what_is_no_public_key_signs_nothing(text: str) -> None:
    assert not is_signed(b"", "0" * 128, text)


# The curve in its plainest form (RFC 8032, 5.1), to multiply the point of each refused key by eight.
_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P


def _added(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    (x1, y1), (x2, y2) = one, other
    product = _D * x1 * x2 * y1 * y2
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, _P)
    return x % _P, (y1 * y2 + x1 * x2) * pow(1 - product, -1, _P) % _P


def _point(y: int, odd: int) -> tuple[int, int] | None:
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    x = x if x * x % _P == square else x * pow(2, (_P - 1) // 4, _P) % _P
    return None if x * x % _P != square else (x if x % 2 == odd else -x % _P, y)


def test_keys_that_anybody_can_sign_for_are_refused() -> None:
    """All keys of small order, in each spelling. The library accepts a signature of zeros for some of them."""
    assert len(_SMALL_ORDER) == 5, "eight points: three have x = 0 or one spelling of it"
    for y in _SMALL_ORDER:
        for odd in (0, 1):
            point = _point(y, odd)
            assert point is not None
            for _ in range(3):
                point = _added(point, point)
            assert point == (0, 1), "eight times the point is the neutral one"
        for spelled in (y, y + _P):
            for sign_bit in (0, 1 << 255):
                if spelled < 1 << 255:
                    text = "ed25519:" + (spelled | sign_bit).to_bytes(32, "little").hex()
                    assert not is_public_key(text)
                    assert not is_signed(b"anything", (1).to_bytes(32, "little").hex() + "0" * 64, text)
