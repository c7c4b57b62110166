"""Manifests: they are read as they were written, and untrusted contents are refused before a file is made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cep.base.errors import StateCorruptError, StateError, StateFormatError
from cep.state.checkpoints import Checkpoints, Part, restore
from cep.state.manifest import FOLDER, Manifest, StoredFile, StoredPart, path_inside
from cep.state.memory import MemoryStore
from cep.state.savepoints import NAME, load_beside, load_savepoint, open_savepoint, write_savepoint
from cep.state.target import Target

SHA256 = hashlib.sha256(b"x").hexdigest()
GOOD = Manifest(
    "savepoint",
    3,
    5,
    (StoredPart("store", 0, 4),),
    (StoredFile("payload", 1, SHA256), StoredFile("beside/a.keys", 1, SHA256)),
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
    assert Manifest.from_bytes(GOOD.to_bytes(), "m", "savepoint") == GOOD


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("which", ["files", "parts"])
def test_a_name_that_leads_out_of_its_folder_is_refused(name: str, which: str, tmp_path: Path) -> None:
    data = changed(GOOD.to_bytes(), lambda fields: fields[which][-1].update(name=name))
    with pytest.raises(StateCorruptError, match="outside of its folder"):
        Manifest.from_bytes(data, "m")
    with pytest.raises(StateCorruptError, match="outside of"):
        path_inside(tmp_path, name)


def test_a_symbolic_link_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "out").symlink_to(tmp_path)
    with pytest.raises(StateCorruptError, match="outside of"):
        path_inside(tmp_path / "in", "out/x")
    assert path_inside(tmp_path / "in", "here/x") == tmp_path / "in" / "here" / "x"


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
        Manifest.from_bytes(changed(GOOD.to_bytes(), lambda fields: fields.pop(name)), "m")


@pytest.mark.parametrize("which", ["parts", "files"])
def test_an_entry_without_a_field_is_refused_by_name(which: str) -> None:
    for name in json.loads(GOOD.to_bytes().partition(b"\n")[2])[which][0]:
        data = changed(GOOD.to_bytes(), lambda fields, name=name: fields[which][0].pop(name))  # type: ignore[misc]
        with pytest.raises(StateCorruptError, match=f"{name} is missing"):
            Manifest.from_bytes(data, "m")


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
            Manifest.from_bytes(changed(GOOD.to_bytes(), change), "m", "savepoint")


@pytest.mark.parametrize("body", [b"", b"[]", b"3", b"{", b"null"])
def test_a_manifest_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(StateCorruptError, match="is not a manifest"):
        Manifest.from_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body, "m")


def test_other_mistakes_are_refused() -> None:
    changes: dict[str, Callable[[dict[str, Any]], object]] = {
        "a file twice": lambda fields: fields["files"].append(fields["files"][0]),
        "has the checksum": lambda fields: fields["files"][0].update(sha256="../" + SHA256[3:]),
        "has the key groups": lambda fields: fields["parts"][0].update(first=4),
        "it is a checkpoint": lambda fields: fields.update(kind="checkpoint"),
    }
    for reason, change in changes.items():
        with pytest.raises(StateCorruptError, match=reason):
            Manifest.from_bytes(changed(GOOD.to_bytes(), change), "m", "savepoint")
    with pytest.raises(StateCorruptError, match="lists no file about"):
        GOOD.file("about")


def forged(target: Path, name: str, file_name: str, content: bytes) -> None:
    """Add a file to a snapshot's manifest, like an attacker who can write to the target."""
    digest = hashlib.sha256(content).hexdigest()
    (target / FOLDER / digest).write_bytes(content)
    entry = {"name": file_name, "size": len(content), "sha256": digest}
    path = target / name
    path.write_bytes(changed(path.read_bytes(), lambda fields: fields["files"].append(entry)))


def load_all(target: Target, work: Path, lists: Path) -> None:
    savepoint = open_savepoint(target, work)
    load_savepoint(savepoint, MemoryStore(), range(4), work)
    load_beside(savepoint, lists)


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
