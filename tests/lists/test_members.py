"""A set of keys against Python's own; its file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import StateCorruptError, StoreError
from cep.lists.entries import Keys, keys_of
from cep.lists.members import EMPTY, build, chosen, joined, mapped, write

TEXTS = st.lists(st.text(st.sampled_from("ab4é"), min_size=1, max_size=4), max_size=40)


def keys(texts: list[str]) -> Keys:
    found, wrong = keys_of(texts, "string")
    assert not wrong
    return found


@given(TEXTS, TEXTS)
def test_a_set_has_what_was_put_in(held: list[str], asked: list[str]) -> None:
    members = build(keys(held), "string")
    assert len(members) == len(set(held))
    assert members.has(keys(asked)).tolist() == [text in held for text in asked]
    assert not EMPTY.has(keys(asked)).any()


@given(TEXTS)
def test_the_digest_is_of_the_entries_alone(held: list[str]) -> None:
    one, other = build(keys(held), "string"), build(keys(held[::-1] + held[:3]), "string")
    assert one.digest == other.digest
    assert build(keys([*held, "zzzzz"]), "string").digest != one.digest


@given(TEXTS, TEXTS)
def test_keys_are_joined_and_chosen(one: list[str], other: list[str]) -> None:
    both = joined(keys(one), keys(other))
    wanted = np.arange(len(both)) % 2 == 0
    assert build(both, "string").digest == build(keys(one + other), "string").digest
    assert build(chosen(both, wanted), "string").digest == build(keys((one + other)[::2]), "string").digest


def test_a_file_is_the_set(tmp_path: Path) -> None:
    texts = [f"C-{number}" for number in range(10_000)]
    members = build(keys(texts), "string")
    write(tmp_path / "lists" / "a", members)
    found = mapped(tmp_path / "lists" / "a")
    assert found.has(keys(texts)).all()
    assert not found.has(keys(["C-10000", "C-", "c-1"])).any()
    assert found.digest == members.digest
    assert [path.name for path in (tmp_path / "lists").iterdir()] == ["a"]


@pytest.mark.parametrize("start", [b"", b"x"])
@pytest.mark.parametrize("end", [-1, 0, 20])
def test_a_damaged_file_is_told(tmp_path: Path, start: bytes, end: int) -> None:
    write(tmp_path / "a", build(keys(["x", "yy"]), "string"))
    (tmp_path / "a").write_bytes(start + (tmp_path / "a").read_bytes()[:end])
    with pytest.raises(StateCorruptError, match="restore it"):
        mapped(tmp_path / "a")


def test_a_missing_file_and_a_folder_that_refuses(tmp_path: Path) -> None:
    with pytest.raises(StateCorruptError, match="cannot be read"):
        mapped(tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        write(tmp_path / "file" / "a", EMPTY)
