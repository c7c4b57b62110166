"""The bill of materials has every installed package of the lock once; an unaudited package is not sound."""

import json
import re
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path

import pytest

from tests.sbom import audited, bill, main
from tests.tidy.source import ROOT


def test_every_pinned_package_is_in_it_with_its_version() -> None:
    document = bill(distributions(), datetime(2026, 3, 1, tzinfo=UTC))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    assert document["metadata"]["timestamp"] == "2026-03-01T00:00:00Z"
    refs = [component["bom-ref"] for component in document["components"]]
    assert len(refs) == len(set(refs))
    versions = {c["purl"].removeprefix("pkg:pypi/").split("@")[0]: c["version"] for c in document["components"]}
    installed, _, _ = (ROOT / "lock.txt").read_text().partition("# end of dev")
    pinned = re.findall(r"^([\w.-]+)(?:\[.*\])?==([\w.+-]+)", installed, re.MULTILINE)
    names = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pinned}
    assert len(names) > 50
    for name, version in names.items():
        assert versions.get(name, version) == version
    assert {"numpy", "pyarrow", "pydantic"} <= versions.keys()
    refs_and_cep = {"cep", *refs}
    for needs in document["dependencies"]:
        assert {needs["ref"], *needs["dependsOn"]} <= refs_and_cep


def test_what_no_index_knows_is_not_sound() -> None:
    good: dict[str, object] = {"name": "numpy", "version": "2", "vulns": []}
    weak = {"name": "rich", "version": "1", "vulns": [{"id": "X-1", "fix_versions": ["1.1"]}]}
    own_package = {"name": "cep", "skip_reason": "not found"}
    lines, code = audited({"dependencies": [good, own_package]}, "cep")
    assert (lines, code) == (["1 of 1 packages audited, 0 known weaknesses"], 0)
    lines, code = audited({"dependencies": [good, own_package, {"name": "six", "skip_reason": "not found"}]}, "cep")
    assert code == 2
    assert "six" in lines[-1]
    lines, code = audited({"dependencies": [good, weak, own_package]}, "cep")
    assert (lines[0], code) == ("rich 1: X-1, mended in 1.1", 1)


def test_without_an_auditor_nothing_is_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.setattr("sys.argv", ["sbom", "--out", str(tmp_path / "sbom.json")])
    assert main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("not audited: pip-audit is not installed")
    assert json.loads((tmp_path / "sbom.json").read_bytes())["components"]
