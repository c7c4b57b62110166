"""Manifests: they are read as they were written, and untrusted contents are refused before a file is made.

A job with a key accepts only manifests that were made with it. A damaged list of a store's files is refused before
RocksDB reads it; the list of a good store is accepted.
"""

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cep.base.errors import StateCorruptError, StateError, StateFormatError, UsageError
from cep.state import manifest
from cep.state.checkpoints import Checkpoints, Part, payload_bytes, restore
from cep.state.memory import MemoryStore
from cep.state.rocks import RocksMemory, RocksSettings, RocksStore, check_manifest
from cep.state.savepoints import NAME, load_lists, load_savepoint, open_savepoint, write_savepoint
from cep.state.target import Target

SHA256 = hashlib.sha256(b"x").hexdigest()
GOOD = manifest.Manifest(
    "savepoint",
    3,
    5,
    (manifest.StoredPart("store", 0, 4),),
    (manifest.StoredFile("payload", 1, SHA256), manifest.StoredFile("beside/a.keys", 1, SHA256)),
)
OUTSIDE = [
    "",
    ".",
    "..",
    "../x",
    "/etc/x",
    "beside//etc/x",
    "beside/../..",
    "beside/../../x",
    "beside/./x",
    "beside/",
    "beside/x\0",
    "beside/x\ny",
    "beside\\..\\x",
    "beside/\ud800",
]


def signed(fields: dict[str, Any]) -> bytes:
    """Return a manifest of these fields with the right checksum."""
    body = json.dumps(fields).encode()
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def changed(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    fields = json.loads(data.partition(b"\n")[2])
    change(fields)
    return signed(fields)


def test_a_manifest_comes_back() -> None:
    assert manifest.Manifest.from_bytes(GOOD.to_bytes(), "m", "savepoint") == GOOD


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("which", ["files", "parts"])
def test_a_name_that_leads_out_of_its_folder_is_refused(name: str, which: str, tmp_path: Path) -> None:
    data = changed(GOOD.to_bytes(), lambda fields: fields[which][-1].update(name=name))
    with pytest.raises(StateCorruptError, match="outside of its folder"):
        manifest.Manifest.from_bytes(data, "m")
    with pytest.raises(StateCorruptError, match="outside of"):
        manifest.path_inside(tmp_path, name)


def test_a_symbolic_link_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "out").symlink_to(tmp_path)
    with pytest.raises(StateCorruptError, match="outside of"):
        manifest.path_inside(tmp_path / "in", "out/x")
    assert manifest.path_inside(tmp_path / "in", "here/x") == tmp_path / "in" / "here" / "x"


def test_a_symbolic_link_inside_the_target_is_copied_and_not_linked(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "elsewhere").write_bytes(b"x")
    (tmp_path / "files" / SHA256).symlink_to(tmp_path / "elsewhere")
    Target(str(tmp_path)).get(f"files/{SHA256}", tmp_path / "here", 1, may_link=True)
    assert not (tmp_path / "here").is_symlink()
    assert (tmp_path / "here").read_bytes() == b"x"


FIELDS = ["format", "kind", "number", "created_ms", "parts", "files"]
WRONG = [None, "text", -1, 1.5, True, [1], {"a": 1}]


@pytest.mark.parametrize("name", FIELDS)
def test_a_manifest_without_a_field_is_refused_by_name(name: str) -> None:
    with pytest.raises(StateCorruptError, match=f"^m is not a manifest that cep writes: {name} is missing"):
        manifest.Manifest.from_bytes(changed(GOOD.to_bytes(), lambda fields: fields.pop(name)), "m")


@pytest.mark.parametrize("which", ["parts", "files"])
def test_an_entry_without_a_field_is_refused_by_name(which: str) -> None:
    for name in json.loads(GOOD.to_bytes().partition(b"\n")[2])[which][0]:
        data = changed(GOOD.to_bytes(), lambda fields, name=name: fields[which][0].pop(name))  # type: ignore[misc]
        with pytest.raises(StateCorruptError, match=f"{name} is missing"):
            manifest.Manifest.from_bytes(data, "m")


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_a_field_of_another_type_is_refused(value: Any) -> None:
    places: list[tuple[Any, ...]] = [(name,) for name in FIELDS]
    places += [("parts", 0, name) for name in ("name", "first", "end")]
    places += [("files", 0, name) for name in ("name", "size", "sha256")]
    for *path, last in places:
        if value == "text" and last in ("kind", "name"):
            continue

        def change(fields: Any, path: list[Any] = path, last: str = last) -> None:
            for step in path:
                fields = fields[step]
            fields[last] = value

        with pytest.raises((StateCorruptError, StateFormatError)):
            manifest.Manifest.from_bytes(changed(GOOD.to_bytes(), change), "m", "savepoint")


@pytest.mark.parametrize("body", [b"", b"[]", b"3", b"{", b"null"])
def test_a_manifest_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(StateCorruptError, match="is not a manifest"):
        manifest.Manifest.from_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body, "m")


def test_other_mistakes_are_refused() -> None:
    changes: dict[str, Callable[[dict[str, Any]], object]] = {
        "a file twice": lambda fields: fields["files"].append(fields["files"][0]),
        "has the checksum": lambda fields: fields["files"][0].update(sha256="../" + SHA256[3:]),
        "has the key groups": lambda fields: fields["parts"][0].update(first=4),
        "it is a checkpoint": lambda fields: fields.update(kind="checkpoint"),
    }
    for reason, change in changes.items():
        with pytest.raises(StateCorruptError, match=reason):
            manifest.Manifest.from_bytes(changed(GOOD.to_bytes(), change), "m", "savepoint")
    with pytest.raises(StateCorruptError, match="lists no file about"):
        GOOD.file("about")


def forged(target: Path, name: str, file_name: str, content: bytes) -> None:
    """Add a file to a snapshot's manifest, like an attacker who can write to the target."""
    digest = hashlib.sha256(content).hexdigest()
    (target / manifest.FOLDER / digest).write_bytes(content)
    entry = {"name": file_name, "size": len(content), "sha256": digest}
    path = target / name
    path.write_bytes(changed(path.read_bytes(), lambda fields: fields["files"].append(entry)))


def load_all(target: Target, work: Path, lists: Path) -> None:
    savepoint = open_savepoint(target, work)
    load_savepoint(savepoint, MemoryStore(), range(4), work)
    load_lists(savepoint, lists)


@pytest.mark.parametrize("how", ["absolute", "upwards"])
def test_a_savepoint_writes_nothing_outside_of_its_folder(tmp_path: Path, how: str) -> None:
    target = Target(str(tmp_path / "savepoint"))
    write_savepoint(target, tmp_path / "work", [Part("store", MemoryStore(), 0, 4)], b"{}", 0)
    file_name = f"beside/{tmp_path}/victim" if how == "absolute" else "beside/../../victim"
    forged(tmp_path / "savepoint", NAME, file_name, b"bad")
    (tmp_path / "in" / "lists").mkdir(parents=True)
    with pytest.raises(StateError, match="outside of"):
        load_all(target, tmp_path / "work", tmp_path / "in" / "lists")
    assert not list(tmp_path.rglob("victim"))


@pytest.mark.parametrize("how", ["absolute", "upwards"])
def test_a_checkpoint_writes_nothing_outside_of_its_folder(tmp_path: Path, how: str) -> None:
    target = Target(str(tmp_path / "target"))
    with Checkpoints(target, tmp_path / "work") as checkpoints:
        copying = checkpoints.begin([Part("store", MemoryStore(), 0, 4)], b"", 0)
        assert copying is not None
        copying.result(timeout=60)
    (name,) = [path.name for path in (tmp_path / "target").glob("*.manifest")]
    file_name = f"beside/{tmp_path}/victim" if how == "absolute" else "beside/../../../victim"
    forged(tmp_path / "target", name, file_name, b"bad")
    (tmp_path / "in").mkdir()
    with pytest.raises(StateCorruptError, match="outside of"):
        restore(target, tmp_path / "in" / "back")
    assert not list(tmp_path.rglob("victim"))


SECRET = "0123456789abcdef"
MANIFEST = manifest.Manifest(
    "savepoint", 3, 5, (manifest.StoredPart("s", 0, 4),), (manifest.StoredFile("payload", 1, "0" * 64),)
)


def test_with_and_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = MANIFEST.to_bytes()
    monkeypatch.setenv(manifest.KEY, SECRET)
    signed = MANIFEST.to_bytes()
    assert manifest.Manifest.from_bytes(signed, "m") == MANIFEST
    assert SECRET.encode() not in signed
    with pytest.raises(StateCorruptError, match="is not signed, and"):
        manifest.Manifest.from_bytes(plain, "m")
    monkeypatch.setenv(manifest.KEY, SECRET[::-1])
    with pytest.raises(StateCorruptError, match="is not signed with"):
        manifest.Manifest.from_bytes(signed, "m")
    monkeypatch.delenv(manifest.KEY)
    assert manifest.Manifest.from_bytes(signed, "m") == manifest.Manifest.from_bytes(plain, "m") == MANIFEST


def test_a_key_may_stand_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{SECRET}\n")
    monkeypatch.setenv(manifest.KEY_FILE, str(tmp_path / "key"))
    signed = MANIFEST.to_bytes()
    monkeypatch.setenv(manifest.KEY, SECRET)
    with pytest.raises(UsageError, match="exclude each other"):
        manifest.Manifest.from_bytes(signed, "m")
    monkeypatch.delenv(manifest.KEY_FILE)
    assert manifest.Manifest.from_bytes(signed, "m") == MANIFEST
    monkeypatch.delenv(manifest.KEY)
    for content in (b"", b"short", b"x" * 5_000):
        (tmp_path / "key").write_bytes(content)
        monkeypatch.setenv(manifest.KEY_FILE, str(tmp_path / "key"))
        with pytest.raises(UsageError, match="give 16 to"):
            MANIFEST.to_bytes()
    monkeypatch.setenv(manifest.KEY_FILE, str(tmp_path / "gone"))
    with pytest.raises(UsageError, match="cannot be read"):
        MANIFEST.to_bytes()


@given(st.binary(min_size=1, max_size=60), st.data())
def test_any_changed_byte_is_noticed(body: bytes, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(manifest.KEY, SECRET)
        whole = manifest.first_line(body) + b"\n" + body
        place = data.draw(st.integers(0, len(whole) - 1))
        changed = whole[:place] + data.draw(st.sampled_from([b"", b"0", b"f", b"\n", b" "])) + whole[place + 1 :]
        line, _, rest = changed.partition(b"\n")
        if changed == whole:
            manifest.check_first_line(line, rest, "m")
            return
        with pytest.raises(StateCorruptError):
            manifest.check_first_line(line, rest, "m")
        # An attacker without the key can correct the checksum, but not the signature.
        mended = hashlib.sha256(rest).hexdigest().encode() + line[64:]
        if rest != body:
            with pytest.raises(StateCorruptError):
                manifest.check_first_line(mended, rest, "m")


def test_a_planted_checkpoint_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = Target(str(tmp_path / "target"))

    def checkpoint(payload: bytes) -> None:
        with Checkpoints(target, tmp_path / payload.decode()) as checkpoints:
            copying = checkpoints.begin([Part("store", MemoryStore(), 0, 4)], payload, 0)
            assert copying is not None
            copying.result(timeout=60)

    monkeypatch.setenv(manifest.KEY, SECRET)
    checkpoint(b"ours")
    monkeypatch.delenv(manifest.KEY)
    checkpoint(b"planted")
    monkeypatch.setenv(manifest.KEY, SECRET)
    restored = restore(target, tmp_path / "into")
    assert restored is not None
    assert restored.payload == b"ours"
    assert "is not signed" in restored.refused[0]


def test_a_planted_savepoint_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = Target(str(tmp_path / "target"))
    write_savepoint(target, tmp_path / "work", [Part("store", MemoryStore(), 0, 4)], b"payload", 5)
    assert NAME in target.sizes()
    monkeypatch.setenv(manifest.KEY, SECRET)
    with pytest.raises(StateCorruptError, match="is not signed"):
        open_savepoint(target, tmp_path / "opened")


def test_an_old_checkpoint_under_a_higher_number_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = Target(str(tmp_path / "target"))
    monkeypatch.setenv(manifest.KEY, SECRET)
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


SETTINGS = RocksSettings(RocksMemory(4 << 20, 1 << 20), background_jobs=1)


def store(folder: Path, flushes: int) -> Path:
    """Make a store whose list has a record for each flush; return the list."""
    with RocksStore(folder, SETTINGS) as opened:
        for number in range(flushes):
            opened.put(b"%d" % number, b"x" * 100)
            opened.checkpoint(folder.with_name(f"{folder.name}-{number}"))
    return folder / (folder / "CURRENT").read_text().strip()


def test_a_record_of_a_kind_that_only_logs_have_is_refused(tmp_path: Path) -> None:
    """RocksDB would loop for ever: a middle piece of a recycled log, with a length beyond the end of the file."""
    path = store(tmp_path / "store", 2)
    data = path.read_bytes()
    first = 7 + struct.unpack_from("<IHB", data)[1]
    for kind, length in ((7, 2_048), (9, 3), (130, 1), (0, 5), (1, 40_000)):
        path.write_bytes(data[:first] + struct.pack("<IHB", 1, length, kind) + data[first + 7 :])
        with pytest.raises(StateCorruptError, match=f"damaged at byte {first}"):
            RocksStore(tmp_path / "store", SETTINGS)
    path.write_bytes(data)
    RocksStore(tmp_path / "store", SETTINGS).close()


def test_a_good_list_passes_also_over_several_blocks_and_cut_off(tmp_path: Path) -> None:
    path = store(tmp_path / "store", 3)
    check_manifest(tmp_path / "store")
    check_manifest(tmp_path / "new")
    record = struct.pack("<IHB", 1, 32_754, 2) + bytes(32_754)
    assert len(record) == 32_761, "seven bytes are left in the block: a header without data"
    whole = record + struct.pack("<IHB", 1, 0, 3) + record[:-1]
    for data in (whole, whole[:40_000], whole[:100], b"", bytes(32_768) + record):
        path.write_bytes(data)
        check_manifest(tmp_path / "store")
    (tmp_path / "store" / "CURRENT").write_text("../../etc/passwd\n")
    with pytest.raises(StateCorruptError, match="cannot be read"):
        check_manifest(tmp_path / "store")


def test_a_store_may_be_named_relative_to_here_and_lie_behind_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(tmp_path / "store", 2)
    (tmp_path / "link").symlink_to(tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    for name in ("store", "link"):
        RocksStore(Path(name), SETTINGS).close()
