"""A set of keys against Python's own; its file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import StateCorruptError, StateFormatError, StoreError
from cep.kernels.records import MemberSet
from cep.kernels.text.members import _has, distinct
from cep.lists.entries import Keys, keys_of
from cep.lists.members import EMPTY, build, chosen, joined, mapped, write

TEXTS = st.lists(st.text(st.sampled_from("ab4é"), min_size=1, max_size=4), max_size=40)


def keys(texts: list[str]) -> Keys:
    good_keys, wrong = keys_of(texts, "string")
    assert not wrong
    return good_keys


@given(TEXTS, TEXTS)
def test_a_set_has_what_was_put_in(entries: list[str], values: list[str]) -> None:
    members = build(keys(entries), "string")
    assert len(members) == len(set(entries))
    assert members.has(keys(values)).tolist() == [text in entries for text in values]
    assert not EMPTY.has(keys(values)).any()


@given(TEXTS, TEXTS, st.integers(1, 3))
def test_keys_that_are_made_to_collide(entries: list[str], values: list[str], hashes_count: int) -> None:
    """Crafted keys that share a few hashes: the set has each once, in order, and all of them."""
    given_keys, many = keys(entries), keys([f"C-{number}" for number in range(40)])
    both = joined(given_keys, many)
    hashes = np.array([len(text) % hashes_count for text in [*entries, *(f"C-{n}" for n in range(40))]], np.uint64)
    order = np.argsort(hashes, kind="stable")
    order = order[: distinct(order, hashes, both.offsets, both.data)]
    texts = [bytes(both.data[both.offsets[n] : both.offsets[n + 1]]) for n in order]
    every = {*entries, *(f"C-{n}" for n in range(40))}
    assert texts == sorted({text.encode() for text in every}, key=lambda t: (len(t.decode()) % hashes_count, len(t), t))
    distinct_keys = Keys(np.cumsum([0, *map(len, texts)]), np.frombuffer(b"".join(texts), np.uint8))
    members = MemberSet(np.array([0, len(texts)]), hashes[order], distinct_keys.offsets, distinct_keys.data)
    for text in [*values, *every, "D-7"]:
        data = np.frombuffer(text.encode(), np.uint8)
        assert _has(members, np.uint64(len(text) % hashes_count), data, 0, len(data)) == (text in every)


def test_the_empty_set_is_that_of_no_keys() -> None:
    built = build(keys([]), "string")
    assert [array.tolist() for array in EMPTY.members] == [array.tolist() for array in built.members]
    assert [array.dtype for array in EMPTY.members] == [array.dtype for array in built.members]
    assert (EMPTY.lengths.tolist(), EMPTY.digest) == (built.lengths.tolist(), built.digest)


@given(TEXTS)
def test_the_digest_is_of_the_entries_alone(entries: list[str]) -> None:
    one, other = build(keys(entries), "string"), build(keys(entries[::-1] + entries[:3]), "string")
    assert one.digest == other.digest
    assert build(keys([*entries, "zzzzz"]), "string").digest != one.digest


@given(TEXTS, TEXTS)
def test_keys_are_joined_and_chosen(one: list[str], other: list[str]) -> None:
    both = joined(keys(one), keys(other))
    is_chosen = np.arange(len(both)) % 2 == 0
    assert build(both, "string").digest == build(keys(one + other), "string").digest
    assert build(chosen(both, is_chosen), "string").digest == build(keys((one + other)[::2]), "string").digest


def test_a_file_is_the_set(tmp_path: Path) -> None:
    texts = [f"C-{number}" for number in range(10_000)]
    members = build(keys(texts), "string")
    write(tmp_path / "lists" / "a", members)
    file_keys = mapped(tmp_path / "lists" / "a")
    assert file_keys.has(keys(texts)).all()
    assert not file_keys.has(keys(["C-10000", "C-", "c-1"])).any()
    assert file_keys.digest == members.digest
    assert [path.name for path in (tmp_path / "lists").iterdir()] == ["a"]


@pytest.mark.parametrize("start", [b"", b"x"])
@pytest.mark.parametrize("end", [-1, 0, 20])
def test_a_damaged_file_is_told(tmp_path: Path, start: bytes, end: int) -> None:
    write(tmp_path / "a", build(keys(["x", "yy"]), "string"))
    (tmp_path / "a").write_bytes(start + (tmp_path / "a").read_bytes()[:end])
    with pytest.raises(StateCorruptError, match="restore it"):
        mapped(tmp_path / "a")


def test_a_changed_bit_is_told_and_a_later_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write(path, build(keys([f"C-{number}" for number in range(20)]), "string"))
    good = path.read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << position % 8
        path.write_bytes(bad)
        with pytest.raises((StateCorruptError, StateFormatError)):
            mapped(path)
    path.write_bytes(good[:7] + b"3" + good[8:])
    with pytest.raises(StateFormatError, match=r"list .* has format 3, this build reads 2; start with the build that"):
        mapped(path)


def test_a_file_without_a_checksum_is_refused_by_its_format(tmp_path: Path) -> None:
    write(tmp_path / "a", build(keys(["x", "yy"]), "string"))
    written = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(b"CEPLIST1" + written[8:56] + written[64:])
    with pytest.raises(StateFormatError, match="has format 1, this build reads 2"):
        mapped(tmp_path / "a")


def test_a_missing_file_and_a_folder_that_refuses(tmp_path: Path) -> None:
    with pytest.raises(StateCorruptError, match="cannot be read"):
        mapped(tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        write(tmp_path / "file" / "a", EMPTY)
