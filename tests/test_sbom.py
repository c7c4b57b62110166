"""The bill of materials names every package of the lock that is installed, each once, and what it needs."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from importlib.metadata import distributions

from tests.sbom import bill
from tests.tidy.source import ROOT


def test_every_pinned_package_is_in_it_with_its_version() -> None:
    made = bill(distributions(), datetime(2026, 3, 1, tzinfo=UTC))
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    assert made["metadata"]["timestamp"] == "2026-03-01T00:00:00Z"
    refs = [component["bom-ref"] for component in made["components"]]
    assert len(refs) == len(set(refs))
    versions = {c["purl"].removeprefix("pkg:pypi/").split("@")[0]: c["version"] for c in made["components"]}
    pinned = re.findall(r"^([\w.-]+)(?:\[.*\])?==([\w.+-]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    names = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pinned}
    assert len(names) > 50
    for name, version in names.items():
        assert versions.get(name, version) == version
    assert {"numpy", "pyarrow", "pydantic"} <= versions.keys()
    known = {"cep", *refs}
    for needs in made["dependencies"]:
        assert {needs["ref"], *needs["dependsOn"]} <= known
