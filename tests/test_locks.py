"""The locks have the pins of constraints.txt and pyproject.toml, and a hash of each file."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distribution

import pytest
from packaging.requirements import Requirement

from tests.tidy.source import ROOT

_PIN = re.compile(r"^([\w.-]+)(?:\[.*?\])?==([\w.+]+)(.*)$", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def _entries(text: str) -> list[str]:
    return re.split(r"^(?=\S)", text, flags=re.MULTILINE)[1:]


def _pins(text: str) -> dict[str, str]:
    return {_name(name): version for name, version, _ in _PIN.findall(text)}


@pytest.mark.parametrize("lock", ["build", "demo", "dev", "image"])
def test_each_version_is_the_pinned_one_and_has_hashes(lock: str) -> None:
    text = (ROOT / "demo" / "locks" / f"{lock}.txt").read_text()
    pinned = _pins((ROOT / "constraints.txt").read_text())
    locked = _pins(text)
    assert {name: version for name, version in locked.items() if pinned.get(name) != version} == {}
    entries = _entries(text)
    assert len(entries) == len(locked)
    assert [entry for entry in entries if not _HASH.search(entry)] == []


def test_the_audit_has_hashes() -> None:
    """Its packages have their own environment, so they have no pins."""
    text = (ROOT / "demo" / "locks" / "audit.txt").read_text()
    assert "pip-audit" in _pins(text)
    assert [entry for entry in _entries(text) if not _HASH.search(entry)] == []


def test_nothing_that_is_pinned_is_missing() -> None:
    pinned, locked = (_pins((ROOT / name).read_text()) for name in ("constraints.txt", "demo/locks/dev.txt"))
    assert pinned.keys() == locked.keys()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {_name(re.split(r"[\[=<>~]", one)[0]) for one in project["dependencies"]}
    assert required <= _pins((ROOT / "demo" / "locks" / "demo.txt").read_text()).keys()


def test_the_lock_of_the_image_has_what_its_extras_bring_along() -> None:
    (line,) = re.findall(r"^lock .*image\.txt.*$", (ROOT / "demo" / "locks" / "write").read_text(), re.MULTILINE)
    extras = re.findall(r"--extra (\w+)", line)
    assert {"kafka", "s3"} <= set(extras)
    needed: dict[str, set[str]] = {}
    waiting = [("cep", set(extras))]
    while waiting:
        name, asked_extras = waiting.pop()
        if name not in needed or not asked_extras <= needed[name]:
            needed[name] = needed.get(name, set()) | asked_extras | {""}
            waiting += [
                (_name(needs.name), needs.extras | {""})
                for needs in map(Requirement, distribution(name).requires or ())
                if needs.marker is None or any(needs.marker.evaluate({"extra": e}) for e in needed[name])
            ]
    locked = {name: _pins((ROOT / "demo" / "locks" / f"{name}.txt").read_text()) for name in ("image", "demo")}
    assert needed.keys() - {"cep"} <= locked["image"].keys()
    assert locked["image"].items() <= locked["demo"].items()
    assert len(locked["image"]) < len(locked["demo"])
