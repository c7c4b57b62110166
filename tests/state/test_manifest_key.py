"""Signed manifests: a job with a key accepts only manifests that were made with it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import StateCorruptError, UsageError
from cep.state.checkpoints import Checkpoints, Part, payload_bytes, restore
from cep.state.manifest import Manifest, StoredFile, StoredPart
from cep.state.manifest_key import KEY, KEY_FILE, check_first_line, first_line
from cep.state.memory import MemoryStore
from cep.state.savepoints import NAME, open_savepoint, write_savepoint
from cep.state.target import Target

SECRET = "0123456789abcdef"
MANIFEST = Manifest("savepoint", 3, 5, (StoredPart("s", 0, 4),), (StoredFile("payload", 1, "0" * 64),))


def test_with_and_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = MANIFEST.to_bytes()
    monkeypatch.setenv(KEY, SECRET)
    signed = MANIFEST.to_bytes()
    assert Manifest.from_bytes(signed, "m") == MANIFEST
    assert SECRET.encode() not in signed
    with pytest.raises(StateCorruptError, match="is not signed, and"):
        Manifest.from_bytes(plain, "m")
    monkeypatch.setenv(KEY, SECRET[::-1])
    with pytest.raises(StateCorruptError, match="is not signed with"):
        Manifest.from_bytes(signed, "m")
    monkeypatch.delenv(KEY)
    assert Manifest.from_bytes(signed, "m") == Manifest.from_bytes(plain, "m") == MANIFEST


def test_a_key_may_stand_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{SECRET}\n")
    monkeypatch.setenv(KEY_FILE, str(tmp_path / "key"))
    signed = MANIFEST.to_bytes()
    monkeypatch.setenv(KEY, SECRET)
    with pytest.raises(UsageError, match="exclude each other"):
        Manifest.from_bytes(signed, "m")
    monkeypatch.delenv(KEY_FILE)
    assert Manifest.from_bytes(signed, "m") == MANIFEST
    monkeypatch.delenv(KEY)
    for content in (b"", b"short", b"x" * 5_000):
        (tmp_path / "key").write_bytes(content)
        monkeypatch.setenv(KEY_FILE, str(tmp_path / "key"))
        with pytest.raises(UsageError, match="give 16 to"):
            MANIFEST.to_bytes()
    monkeypatch.setenv(KEY_FILE, str(tmp_path / "gone"))
    with pytest.raises(UsageError, match="cannot be read"):
        MANIFEST.to_bytes()


@given(st.binary(min_size=1, max_size=60), st.data())
def test_any_changed_byte_is_noticed(body: bytes, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY, SECRET)
        whole = first_line(body) + b"\n" + body
        place = data.draw(st.integers(0, len(whole) - 1))
        changed = whole[:place] + data.draw(st.sampled_from([b"", b"0", b"f", b"\n", b" "])) + whole[place + 1 :]
        line, _, rest = changed.partition(b"\n")
        if changed == whole:
            check_first_line(line, rest, "m")
            return
        with pytest.raises(StateCorruptError):
            check_first_line(line, rest, "m")
        # An attacker without the key can correct the checksum, but not the signature.
        mended = hashlib.sha256(rest).hexdigest().encode() + line[64:]
        if rest != body:
            with pytest.raises(StateCorruptError):
                check_first_line(mended, rest, "m")


def test_a_planted_checkpoint_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = Target(str(tmp_path / "target"))

    def checkpoint(payload: bytes) -> None:
        with Checkpoints(target, tmp_path / payload.decode()) as checkpoints:
            copying = checkpoints.begin([Part("store", MemoryStore(), 0, 4)], payload, 0)
            assert copying is not None
            copying.result(timeout=60)

    monkeypatch.setenv(KEY, SECRET)
    checkpoint(b"ours")
    monkeypatch.delenv(KEY)
    checkpoint(b"planted")
    monkeypatch.setenv(KEY, SECRET)
    restored = restore(target, tmp_path / "into")
    assert restored is not None
    assert restored.payload == b"ours"
    assert "is not signed" in restored.refused[0]


def test_a_planted_savepoint_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = Target(str(tmp_path / "target"))
    write_savepoint(target, tmp_path / "work", [Part("store", MemoryStore(), 0, 4)], b"payload", 5)
    assert NAME in target.sizes()
    monkeypatch.setenv(KEY, SECRET)
    with pytest.raises(StateCorruptError, match="is not signed"):
        open_savepoint(target, tmp_path / "opened")


def test_an_old_checkpoint_under_a_higher_number_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = Target(str(tmp_path / "target"))
    monkeypatch.setenv(KEY, SECRET)
    with Checkpoints(target, tmp_path / "work") as checkpoints:
        for payload in (b"first", b"second"):
            copying = checkpoints.begin([Part("store", MemoryStore(), 0, 4)], payload, 0)
            assert copying is not None
            copying.result(timeout=60)
    first, second = (tmp_path / "target" / name for name in sorted(n for n in target.sizes() if "manifest" in n))
    renamed = second.with_name(second.name.replace("2", "9"))
    renamed.write_bytes(first.read_bytes())
    restored = restore(target, tmp_path / "into")
    assert restored is not None
    assert restored.payload == b"second"
    assert "is checkpoint 1 under another number" in restored.refused[0]
    with pytest.raises(StateCorruptError, match="under another number"):
        payload_bytes(target, 9)
