"""Keys of people: files, and signatures over bytes."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import UsageError
from cep.base.signing import is_public_key, is_signed, new_key, read_key
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
def test_another_signature_or_message_is_noticed(message: bytes, at: int, digit: str) -> None:
    signature = ADA.sign(message)
    changed = signature[:at] + digit + signature[at + 1 :]
    assert is_signed(message, changed, ADA.public) == (changed == signature)
    assert not is_signed(message + b"x", signature, ADA.public)


@pytest.mark.parametrize("text", ["", "ed25519:", "ed25519:" + "0" * 63, "ED25519:" + "0" * 64, "rsa:" + "0" * 64])
def test_what_is_no_public_key_signs_nothing(text: str) -> None:
    assert not is_signed(b"", "0" * 128, text)
