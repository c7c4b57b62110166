"""Addresses with a user, a password or a token are recognised, and never shown whole."""

from __future__ import annotations

import pytest

from cep.base.addresses import check_place, check_registry, without_user
from cep.base.errors import UsageError


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
