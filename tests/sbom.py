"""The packages of an installation → a software bill of materials: `.venv/bin/python -m tests.sbom --out sbom.json`.

CycloneDX 1.6 as JSON: each installed package with its version, licence, address and dependencies. If `pip-audit` is
installed, it then searches them for known weaknesses. The search needs an index of packages that knows weaknesses, as
pypi.org does. A package that is missing in the index was not audited: it is named, and never counts as sound.
Tested by: tests/test_sbom.py
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from cep import __version__

_LICENCE_CHARS = 200  # a longer licence field is the whole text


def bill(packages: Iterable[Distribution], now: datetime) -> dict[str, Any]:
    by_name = {_canonical(package.metadata["Name"]): package for package in packages}
    root = by_name.pop("cep", None)
    about = {"type": "application", "bom-ref": "cep", "name": "cep", "version": __version__}
    roots = sorted(map(_ref, by_name.values())) if root is None else _needed(root, by_name)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {"timestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ"), "component": about},
        "components": [_component(by_name[name]) for name in sorted(by_name)],
        "dependencies": [
            {"ref": "cep", "dependsOn": roots},
            *({"ref": _ref(by_name[name]), "dependsOn": _needed(by_name[name], by_name)} for name in sorted(by_name)),
        ],
    }


def _component(package: Distribution) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": _ref(package),
        "name": package.metadata["Name"],
        "version": package.version,
        "purl": _ref(package),
    }
    fields = [name for name in ("License-Expression", "License") if name in package.metadata]
    licence = package.metadata[fields[0]] if fields else ""
    if 0 < len(licence) <= _LICENCE_CHARS:
        component["licenses"] = [{"license": {"name": licence}}]
    return component


def _needed(package: Distribution, by_name: dict[str, Distribution]) -> list[str]:
    """Return the installed packages that one needs, including its extras."""
    needed = set()
    for line in package.requires or ():
        try:
            name = _canonical(Requirement(line).name)
        except InvalidRequirement:
            continue
        if name in by_name:
            needed.add(_ref(by_name[name]))
    return sorted(needed)


def _ref(package: Distribution) -> str:
    return f"pkg:pypi/{_canonical(package.metadata['Name'])}@{package.version}"


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def audited(report: dict[str, Any], own_name: str) -> tuple[list[str], int]:
    """Return an auditor's results as lines, and 1 for a known weakness, 2 if packages were not audited, otherwise 0.

    `report` is the JSON of pip-audit, `own_name` the name of the package that no index has.
    """
    packages = [package for package in report["dependencies"] if _canonical(package["name"]) != own_name]
    skipped = sorted(package["name"] for package in packages if "skip_reason" in package)
    lines = [
        f"{package['name']} {package['version']}: {weakness['id']}, mended in {', '.join(weakness['fix_versions'])}"
        for package in packages
        for weakness in package.get("vulns", ())
    ]
    count = len(lines)
    lines.append(f"{len(packages) - len(skipped)} of {len(packages)} packages audited, {count} known weaknesses")
    if skipped:
        lines.append(f"not audited, as the index knows nothing of them: {', '.join(skipped)}")
    return lines, 1 if count else 2 if skipped else 0


def main() -> int:
    """Write the bill, and audit if possible.

    Returns 1 if a known weakness was found, 2 if some packages were not audited, for example without an auditor.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.sbom", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("sbom.json"), help="the file (default: sbom.json)")
    options = parser.parse_args()
    document = bill(distributions(), datetime.now(UTC))
    options.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"{options.out} has {len(document['components'])} packages")
    auditor = shutil.which("pip-audit", path=str(Path(sys.executable).parent)) or shutil.which("pip-audit")
    if auditor is None:
        print("not audited: pip-audit is not installed (pip install pip-audit)", file=sys.stderr)
        return 2
    arguments = [auditor, "--path", sysconfig.get_path("purelib"), "--format", "json", "--progress-spinner", "off"]
    process = subprocess.run(arguments, check=False, stdout=subprocess.PIPE, text=True)
    try:
        lines, code = audited(json.loads(process.stdout), "cep")
    except (ValueError, KeyError):
        print(f"not audited: {auditor} ended with {process.returncode}", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
