"""lock.txt has a version and the hashes of each package that an installation brings along, part by part."""

import re
import subprocess
import tomllib
from importlib.metadata import distribution

import pytest
from packaging.requirements import Requirement

from tests.tidy.source import ROOT

TEXT = (ROOT / "lock.txt").read_text()
PARTS = re.findall(r"^# end of (\w+)$", TEXT, re.MULTILINE)
_LINE = re.compile(r"([\w.-]+)==([\w.+]+) ; [^#]+?((?: --hash=sha256:[0-9a-f]{64})+)")


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def _versions(part: str) -> dict[str, str]:
    """Return the versions of the packages of a part, as demo/bootstrap.sh reads them."""
    script = f". demo/bootstrap.sh; locked {part}"
    lines = subprocess.run(["bash", "-c", script], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    matches = [_LINE.fullmatch(line) for line in lines.splitlines() if not line.startswith("#")]
    return {_name(match[1]): match[2] for match in matches if match}


def test_each_line_is_a_package_with_its_hashes() -> None:
    lines = [line for line in TEXT.splitlines() if not line.startswith("#")]
    assert [line[:80] for line in lines if not _LINE.fullmatch(line)] == []
    names = [line.split("==")[0] for line in lines]
    assert len(names) == len(set(names)) == len(_versions("audit"))


def test_each_part_includes_the_parts_before_it() -> None:
    assert PARTS == ["build", "image", "demo", "dev", "audit"]
    counts = [len(_versions(part)) for part in PARTS]
    assert counts == sorted(set(counts))
    assert "pip-audit" in _versions("audit").keys() - _versions("dev").keys()


@pytest.mark.parametrize(("part", "extras"), [("image", None), ("demo", {"all"}), ("dev", {"dev"})])
def test_a_part_has_all_packages_that_its_extras_bring_along(part: str, extras: set[str] | None) -> None:
    if extras is None:
        (line,) = re.findall(r"^lock .*/image\"$", (ROOT / "tests" / "lock").read_text(), re.MULTILINE)
        extras = set(re.findall(r"--extra (\w+)", line))
        assert {"kafka", "s3"} <= extras
    needed: dict[str, set[str]] = {}
    waiting = [("cep", extras)]
    while waiting:
        name, asked_extras = waiting.pop()
        if name not in needed or not asked_extras <= needed[name]:
            needed[name] = needed.get(name, set()) | asked_extras | {""}
            waiting += [
                (_name(needs.name), needs.extras | {""})
                for needs in map(Requirement, distribution(name).requires or ())
                if needs.marker is None or any(needs.marker.evaluate({"extra": e}) for e in needed[name])
            ]
    assert needed.keys() - {"cep"} <= _versions(part).keys()


def test_the_versions_are_in_the_ranges_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    texts = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    texts += [text for name in ("all", "dev") for text in project["project"]["optional-dependencies"][name]]
    versions = _versions("dev")
    ranges = [needs for needs in map(Requirement, texts) if needs.name != "cep"]
    assert [str(needs) for needs in ranges if not needs.specifier.contains(versions[_name(needs.name)])] == []
