"""Keys come from a file or the environment; no output shows a secret, nor an address with a password."""

import hashlib
import hmac
from pathlib import Path

import pytest

from cep.base.errors import UsageError
from cep.base.secrets import (
    SecretKey,
    check_place,
    check_registry,
    secret_keys,
    token_key,
    use_secrets_file,
    without_user,
)

ONE, OTHER = "a1" * 20, "b2" * 20


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CEP_SECRETS", raising=False)
    monkeypatch.setenv("CEP_SECRETS_FILE", "")


def test_keys_of_the_environment_and_of_a_file_are_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = f"# keys\nk1 {ONE}\n\nk2 {OTHER} 2004-05-05T20:46:14.728Z\n"
    monkeypatch.setenv("CEP_SECRETS", text)
    secrets = secret_keys()
    (tmp_path / "keys").write_text(text)
    use_secrets_file(tmp_path / "keys")
    assert secrets == secret_keys()
    assert [(key.id, key.from_ms) for key in secrets][1] == ("k2", 1_083_789_974_728)  # floats are one off


def test_a_token_is_128_bits_of_the_hmac_and_names_its_key() -> None:
    token = SecretKey("k1", ONE.encode()).token("pan", b"4111111111111111")
    digest = hmac.new(ONE.encode(), b"pan\x004111111111111111", hashlib.sha256).digest()
    assert token.startswith("pan_k1_")
    assert token.removeprefix("pan_k1_") == "".join(chr(ord("a") + int(half, 16)) for half in digest[:16].hex())
    assert token_key(token) == "k1"
    assert token_key("4111111111111111") is None
    assert SecretKey("k1", OTHER.encode()).token("pan", b"4111111111111111") != token
    assert SecretKey("k1", ONE.encode()).token("sensitive", b"4111111111111111")[-32:] != token[-32:]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "there is no key"),
        ("# nothing", "has 0 keys"),
        ("k1 short", "line 1"),
        (f"K1 {ONE}", "line 1"),
        (f"k1 {ONE}\nk1 {OTHER}", "one id"),
        (f"k1 {ONE} tomorrow", "no time"),
        (f"k1 {ONE} 2026-12-01T00:00:00Z", "earlier events have none"),
    ],
)
def test_bad_keys_are_refused_without_showing_them(monkeypatch: pytest.MonkeyPatch, text: str, reason: str) -> None:
    monkeypatch.setenv("CEP_SECRETS", text)
    with pytest.raises(UsageError, match=reason) as refused:
        secret_keys()
    assert "short" not in str(refused.value)
    assert ONE not in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, data in (("missing", None), ("bytes", b"\xff\xfe"), ("large", b"#" * 70_000)):
        if data is not None:
            (tmp_path / name).write_bytes(data)
        monkeypatch.setenv("CEP_SECRETS_FILE", str(tmp_path / name))
        with pytest.raises(UsageError, match=name):
            secret_keys()


def test_a_key_in_a_message_has_no_secret() -> None:
    assert ONE not in repr(SecretKey("k1", ONE.encode()))


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("sftp://ann@host/folder", "sftp://…@host/folder"),
        ("sftp://ann:pw@host/folder", "sftp://…@host/folder"),
        ("sftp://ann:p@w@host/folder?key=t0p", "sftp://…@host/folder"),
        ("sftp://ann:p@w@host/folder#key=t0p?x", "sftp://…@host/folder"),
        ("s3://bucket/folder", None),
        ("s3://bucket/ann@bank.example", None),
        ("/var/lib/a@b", None),
    ],
)
def test_a_user_is_hidden(address: str, shown: str | None) -> None:
    assert without_user(address) == shown


@pytest.mark.parametrize("place", ["s3://bucket/folder", "/var/lib/a@b?c", "memory://x", "folder?x=1"])
def test_places(place: str) -> None:
    check_place(place, "")


@pytest.mark.parametrize(
    "place",
    [
        "s3://ann:t0p-secret@bucket/x",
        "sftp://t0p-secret@host/x",
        "https://host/x?sig=t0p-secret",
        "az://c/x?t0p-secret",
        "az://c/x#t0p-secret",
        "az://c/x#y?t0p-secret",
    ],
)
def test_a_place_with_a_secret_is_refused_without_it(place: str) -> None:
    with pytest.raises(UsageError, match="in the environment") as refused:
        check_place(place, "give it in the environment")
    assert "t0p" not in str(refused.value)


@pytest.mark.parametrize(
    "addresses",
    ["https://registry:8081", "http://127.0.0.1:80/apis/ccompat/v7", "mock://tests", "https://a:1/, https://b:1"],
)
def test_addresses_of_a_registry(addresses: str) -> None:
    check_registry(addresses)


@pytest.mark.parametrize(
    "addresses",
    [
        "http://ann:pass-word@host:8081",
        "https://t0p-secret@host",
        "https://host/?token=t0p-secret",
        "https://host#t0p-secret",
        "https://fine:1,https://ann:pass-word@host",
        "https:\\\\ann:pass-word@host",
        "https://host\\@t0p-secret/",
        "ann:pass-word@host:8081",
        "",
    ],
)
def test_a_registrys_address_with_a_secret_is_refused_unshown(addresses: str) -> None:
    with pytest.raises(UsageError, match=r"basic\.auth\.user\.info") as error:
        check_registry(addresses)
    assert "pass-word" not in str(error.value)
    assert "t0p" not in str(error.value)
